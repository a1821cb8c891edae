"""UniLab/G1WalkFlat-v0: what the task is, in numbers, on both backends."""

import math

import mujoco
import numpy as np
import pytest
import torch
from helpers.g1 import (
    JOINTS,
    SOLES,
    STAND,
    actions,
    check_column_i_moves_joint_i,
    count_a_step,
    layout,
    observed,
    zeros,
)
from helpers.go2 import put

from unilab_gym.contract import contract_hash, resolve
from unilab_gym.tasks.g1_walk_flat import owner

BOTH = pytest.mark.parametrize("backend", ["mujoco", "mjwarp"])
POLICY = {
    "torso_gyro": 3,
    "projected_gravity": 3,
    "joint_pos_rel": 29,
    "joint_vel": 29,
    "last_action": 29,
    "command": 3,
    "gait_phase": 2,
}
WEIGHTS = {
    "track_lin_vel": 2.0,
    "track_ang_vel": 0.2,
    "feet_phase": 1.0,
    "air_time": 0.25,
    "lin_vel_z": -1.0,
    "ang_vel_xy": -0.25,
    "base_height": -500.0,
    "orientation": -5.0,
    "action_rate": -0.01,
    "pose": -0.1,
}


@BOTH
def test_layout_timing_and_first_observation(g1, backend):
    env = g1("G1WalkFlat", backend, play=True)
    assert layout(env, "policy") == POLICY
    assert layout(env, "critic") == POLICY | {"base_lin_vel": 3}
    assert env.single_observation_space.shape == (98,) and env.state_space.shape == (101,)
    assert (env.step_dt, env.cfg.sim_dt, env.max_episode_steps) == (0.02, 0.005, 1000)
    env.reset(seed=0)
    env.hold_command("twist", [0.5, -0.1, 0.2])
    obs, _ = env.reset(seed=0)
    assert torch.equal(obs, env.state()[:, :98])  # no noise in play
    assert not env.cfg.events
    expected = {"projected_gravity": [0.0, 0.0, -1.0], "command": [0.5, -0.1, 0.2]}
    zero = ("torso_gyro", "joint_pos_rel", "joint_vel", "last_action", "base_lin_vel")
    for name, value in (expected | {name: [0.0] for name in zero}).items():
        got = observed(env, name)
        assert torch.allclose(got, torch.tensor(value).expand_as(got), atol=1e-5), name
    phase = observed(env, "gait_phase")
    assert torch.allclose(phase.square().sum(1), torch.ones(env.num_envs), atol=1e-5)
    assert phase[:, 0].unique().numel() > 20  # drawn for each row
    env.release_command("twist")
    joints = env.runtime.index.joints
    assert [joint.default for joint in joints] == pytest.approx(STAND[7:])
    assert tuple(joint.name for joint in joints) == JOINTS


@BOTH
def test_the_gait_clock_runs_at_one_and_a_half_hertz(g1, backend):
    env = g1("G1WalkFlat", backend, play=True)
    env.reset(seed=0)
    env.hold_command("twist", [0.5, 0.0, 0.0])
    env.reset(seed=0)
    start = env.runtime.rt.commands.terms["gait"].parts["phase"].clone()
    assert torch.allclose((start[:, 1] - start[:, 0]) % 1.0, torch.tensor(0.5), atol=1e-5)
    for _ in range(4):
        env.step(zeros(env))
    later = env.runtime.rt.commands.terms["gait"].parts["phase"]
    turned = (later - start) % 1.0
    assert torch.allclose(turned, torch.tensor(4 * 0.02 * 1.5), atol=1e-4)
    angle = 2 * math.pi * later[:, 0]
    assert torch.allclose(observed(env, "gait_phase")[:, 0], angle.sin(), atol=1e-5)
    env.hold_command("twist", [0.0, 0.0, 0.04])
    env.step(zeros(env))
    assert torch.equal(observed(env, "gait_phase"), torch.tensor([[0.0, 1.0]]).repeat(30, 1))
    env.release_command("twist")


@BOTH
def test_action_column_i_moves_the_joint_of_slot_i(g1, backend):
    check_column_i_moves_joint_i(g1("G1WalkFlat", backend, play=True))


def by_hand(env, twist, phase, action, last):
    """Every reward term of row 0 in float64 from MuJoCo's own kinematics."""
    model, views = env.runtime.backend.spec.model, env.runtime.backend.views()
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = views.qpos[0].numpy(), views.qvel[0].numpy()
    mujoco.mj_forward(model, data)
    rotation = data.body("pelvis").xmat.reshape(3, 3)
    v, w = rotation.T @ data.qvel[:3], data.qvel[3:6]
    gravity = rotation.T @ [0, 0, -1]
    height = np.array([data.geom(s).xpos[2] - 0.005 for s in SOLES]).reshape(2, 4).min(1)
    t = 1 - abs(2 * phase - 1)
    wanted = 0.09 * (3 * t**2 - 2 * t**3)
    loose = ("hip_pitch", "knee", "shoulder_pitch", "elbow")
    weights = [0.01 if any(part in joint for part in loose) else 1.0 for joint in JOINTS]
    return {
        "track_lin_vel": np.exp(-((v[:2] - twist[:2]) ** 2).sum() / 0.25),
        "track_ang_vel": np.exp(-((w[2] - twist[2]) ** 2) / 0.25),
        "feet_phase": np.exp(-((height - wanted) ** 2).sum() / 0.008),
        "lin_vel_z": v[2] ** 2,
        "ang_vel_xy": (w[:2] ** 2).sum(),
        "base_height": (data.qpos[2] - 0.754) ** 2,
        "orientation": (gravity[:2] ** 2).sum(),
        "action_rate": ((action - last) ** 2).sum(),
        "pose": (np.array(weights) * (data.qpos[7:] - STAND[7:]) ** 2).sum(),
    }


@BOTH
def test_rewards_equal_the_formulas(g1, backend):
    env = g1("G1WalkFlat", backend, play=True)
    env.reset(seed=4)
    env.hold_command("twist", [0.4, 0.1, -0.2])
    env.reset(seed=4)
    rt = env.runtime.rt
    last = np.zeros(29)
    for action in actions(3, env.num_envs):
        phase = rt.commands.terms["gait"].parts["phase"][0].double().numpy()
        _, reward, *_ = env.step(action)
        now = action[0].double().numpy()
        terms = by_hand(env, np.array([0.4, 0.1, -0.2]), phase, now, last)
        got = dict(zip(rt.rewards.names, rt.rewards.values[0].tolist(), strict=True))
        for name, value in terms.items():
            assert got[name] == pytest.approx(value, rel=1e-3, abs=2e-5), name
        total = 0.02 * sum(WEIGHTS[name] * value for name, value in got.items())
        assert reward[0] == pytest.approx(total, rel=1e-3, abs=1e-5)
        last = now
    assert tuple(WEIGHTS) == rt.rewards.names
    env.release_command("twist")


@pytest.mark.parametrize(
    ("what", "degrees", "height", "counter", "ends"),
    [
        ("nothing", 24.0, 1.0, 0, None),
        ("tilt", 26.0, 1.0, 0, "terminated"),
        ("time_out", 0.0, None, 999, "truncated"),
        ("tilt", 90.0, 1.0, 999, "terminated"),
    ],
)
@BOTH
def test_what_ends_an_episode(g1, backend, what, degrees, height, counter, ends):
    env = g1("G1WalkFlat", backend)
    env.reset(seed=0)
    half = math.radians(degrees) / 2
    put(env, 2, quat=[math.cos(half), 0.0, math.sin(half), 0.0], height=height, velocity=0.0)
    counters = torch.zeros(env.num_envs, dtype=torch.int64)
    counters[2] = counter
    env.episode_length_buf = counters
    *_, terminated, truncated, info = env.step(zeros(env))
    assert terminated.tolist() == [i == 2 and ends == "terminated" for i in range(6)]
    assert truncated.tolist() == [i == 2 and ends == "truncated" for i in range(6)]
    if ends:
        assert info["final_info"][f"termination/{what}"][2] == 1


@BOTH
def test_a_crouch_is_too_low(g1, backend):
    env = g1("G1WalkFlat", backend)
    env.reset(seed=0)
    backend, offset = env.runtime.backend, env.runtime.index.qpos_offset
    state = backend.get_state()
    for row, height in ((1, 0.57), (2, 0.53)):
        state[row, offset + 2] = height
        state[row, offset + 3 : offset + 7] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        for hip in (7, 13):  # legs folded: the feet hang above the floor
            state[row, offset + hip] = -1.6
            state[row, offset + hip + 3] = 2.4
    backend.set_state(state, torch.ones(6, dtype=torch.bool))
    *_, terminated, _, info = env.step(zeros(env))
    assert terminated.tolist() == [i == 2 for i in range(6)]
    assert info["final_info"]["termination/too_low"][2] == 1


@BOTH
def test_a_step_dispatches_at_most_230_operations_and_never_waits(g1, backend):
    env = g1("G1WalkFlat", backend)

    def end(rows):
        env.episode_length_buf = torch.where(rows, 999, 5)

    assert count_a_step(env, 210, zeros(env), end) <= 210


def test_both_engines_agree_at_the_start(g1):
    """E28: one control step from one state, the first observation, every reward term."""
    results = []
    for backend in ("mujoco", "mjwarp"):
        env = g1("G1WalkFlat", backend, play=True)
        obs, _ = env.reset(seed=3)
        env.step(actions(1, env.num_envs, seed=2)[0])
        views = env.runtime.backend.views()
        values = env.runtime.rt.rewards.values.clone()
        results.append((obs, views.qpos.clone(), views.qvel.clone(), values))
    for first, second, bound in zip(*results, (1e-4, 2e-6, 2e-4, 1e-5), strict=True):
        relative = 1e-3 if first is results[0][-1] else 0.0
        assert torch.allclose(first, second, rtol=relative, atol=bound)


def test_contract_is_the_same_on_both_backends_and_names_the_clock():
    contracts = [resolve(owner(backend)) for backend in ("mujoco", "mjwarp")]
    assert contract_hash(contracts[0]) == contract_hash(contracts[1])
    assert contracts[0]["commands"]["gait"]["frequency"] == 1.5
    assert contracts[0]["joints"]["names"] == list(JOINTS)

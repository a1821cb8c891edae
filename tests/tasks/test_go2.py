"""UniLab/Go2JoystickFlat-v0: what the task is, in numbers, on both backends."""

import math

import mujoco
import numpy as np
import pytest
import torch
from helpers.face import ACTIONS, actions, frozen, leaves, make_go2, same
from helpers.go2 import DEFAULT, EXTRA, FEET, JOINTS, POLICY, critic, put, zeros
from helpers.opcount import count_ops

from unilab_gym.contract import contract_hash, resolve, resolve_from
from unilab_gym.errors import ConfigError
from unilab_gym.tasks.go2_joystick_flat import owner

# -- observations and actions ----------------------------------------------------------------------


def test_layout_of_the_observations(train_env):
    observations = train_env.runtime.rt.observations
    policy = [(term.name, term.width) for term in observations.layout("policy")]
    assert policy == list(POLICY.items())
    everything = [(term.name, term.width) for term in observations.layout("critic")]
    assert everything == [*POLICY.items(), *EXTRA.items()]
    assert train_env.single_observation_space.shape == (49,)
    assert train_env.state_space.shape == (60,)
    assert train_env.runtime.index.joint_names == JOINTS
    assert [joint.default for joint in train_env.runtime.index.joints] == pytest.approx(DEFAULT)


def test_first_observation_at_rest(play_env):
    play_env.reset(seed=0)
    play_env.hold_command("twist", [0.5, -0.1, 0.2])
    play_env.reset(seed=0)
    n = play_env.num_envs
    for name, value in {
        "base_ang_vel": [0.0] * 3,
        "projected_gravity": [0.0, 0.0, -1.0],
        "joint_pos_rel": [0.0] * 12,
        "joint_vel": [0.0] * 12,
        "last_action": [0.0] * 12,
        "command": [0.5, -0.1, 0.2],
        "base_lin_vel": [0.0] * 3,
        "foot_height": [0.0, 0.0, 0.00963, 0.00963],
        "foot_contact": [1.0, 1.0, 0.0, 0.0],
    }.items():
        expected = torch.tensor(value).expand(n, -1)
        assert torch.allclose(critic(play_env, name), expected, atol=1e-5), name
    phase = critic(play_env, "gait_phase")
    assert torch.allclose(phase[:, :2].square().sum(1), torch.ones(n), atol=1e-5)
    assert torch.allclose(phase[:, 2:], -phase[:, :2], atol=1e-5)  # half a period later
    assert len({round(float(x), 4) for x in phase[:, 0]}) > n // 2  # drawn for each row
    play_env.hold_command("twist", [0.0, 0.0, 0.04])
    play_env.step(zeros(play_env))
    assert not critic(play_env, "gait_phase").any()  # standing: the clock is silent
    play_env.release_command("twist")


def test_the_gait_clock_runs_at_two_hertz(go2):
    env = go2("mujoco", play=True)
    env.reset(seed=0)
    env.hold_command("twist", [0.5, 0.0, 0.0])
    env.reset(seed=0)
    start = critic(env, "gait_phase")
    angle = torch.atan2(start[:, 0], start[:, 1])
    for _ in range(5):
        env.step(zeros(env))
    later = critic(env, "gait_phase")
    advance = torch.atan2(later[:, 0], later[:, 1]) - angle
    expected = 2 * math.pi * 2.0 * 5 * 0.02
    assert torch.allclose(torch.cos(advance), torch.tensor(math.cos(expected)), atol=1e-4)
    assert torch.allclose(torch.sin(advance), torch.tensor(math.sin(expected)), atol=1e-4)
    shares = []
    for _ in range(25):  # one period
        env.step(zeros(env))
        pairs = critic(env, "gait_phase").view(-1, 2, 2)
        phase = torch.atan2(pairs[..., 0], pairs[..., 1]) / (2 * math.pi) % 1.0
        stance = env.runtime.rt.commands.terms["gait"].parts["stance"]
        clear = (phase - 0.6).abs() > 1e-3
        pair = clear & (phase > 1e-3) & (phase < 1 - 1e-3)
        for leg, which in ((0, 0), (1, 1), (2, 1), (3, 0)):  # FL and RR, FR and RL
            sure = pair[:, which]
            assert torch.equal(stance[sure, leg], (phase < 0.6)[sure, which])
        shares.append(stance.float().mean(1))
    assert torch.stack(shares).mean() == pytest.approx(0.6, abs=0.02)
    env.release_command("twist")


def test_play_has_no_noise_randomization_or_push(play_env):
    obs = play_env.reset(seed=0)[0]
    assert not play_env.runtime.backend.spec.model_fields
    assert not play_env.cfg.events and play_env.cfg.play
    assert torch.equal(obs, play_env.state()[:, :49])
    rest = frozen({"qpos": play_env.runtime.backend.views().qpos})["/qpos"]
    assert torch.equal(rest, rest[:1].expand_as(rest))
    play_env.reset(seed=1)
    assert torch.equal(play_env.runtime.backend.views().qpos, rest)
    with pytest.raises(ConfigError, match="not declared"):
        play_env.runtime.backend.get_model_field("body_mass")


def test_action_column_i_moves_the_joint_of_slot_i(play_env):
    """E01. Row 0 rests; row 1 + j gets +1 in column j for two control steps."""
    play_env.reset(seed=0)
    action = torch.cat((torch.zeros(1, ACTIONS), torch.eye(ACTIONS)))
    for _ in range(2):
        play_env.step(action)
    targets = play_env.runtime.rt.actions.ctrl
    change = targets[1:] - targets[:1]
    actuators = {a.joint: a.index for a in play_env.runtime.index.actuators}
    order = torch.tensor([actuators[joint] for joint in JOINTS])
    assert torch.allclose(change[:, order], 0.25 * torch.eye(ACTIONS), atol=1e-6)
    assert torch.allclose(targets[0, order], torch.tensor(DEFAULT))
    joints = critic(play_env, "joint_pos_rel")
    moved = joints[1:] - joints[:1]
    assert moved.abs().argmax(1).tolist() == list(range(ACTIONS))
    assert (moved.diagonal() > 0.02).all()
    assert torch.equal(critic(play_env, "last_action")[1:], torch.eye(ACTIONS))


def test_the_action_term_keeps_a_given_joint_order():
    reverse = list(reversed(JOINTS))
    env = make_go2(2, play=True, overrides={"actions.joint_pos.params.joints": reverse})
    env.reset(seed=0)
    action = torch.zeros(2, ACTIONS)
    action[1, 0] = 1.0
    for _ in range(2):
        env.step(action)
    joints = critic(env, "joint_pos_rel")
    assert (joints[1] - joints[0]).abs().argmax() == 11  # RR_calf is listed first
    assert env.runtime.rt.actions.specs["joint_pos"].joints == tuple(reverse)
    env.close()


# -- rewards ---------------------------------------------------------------------------------------


def rewards_by_hand(env, before):
    """Every term in float64 from MuJoCo's own kinematics; formulas as in the task's table."""
    runtime = env.runtime
    model, index = runtime.backend.spec.model, runtime.index
    views, commands = runtime.backend.views(), before
    result = []
    for row in range(env.num_envs):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = views.qpos[row].numpy(), views.qvel[row].numpy()
        mujoco.mj_forward(model, data)
        rotation = data.body("base").xmat.reshape(3, 3)
        v, w = rotation.T @ data.qvel[:3], data.qvel[3:6]
        c, stance = commands["twist"][row].double().numpy(), commands["stance"][row].numpy()
        height = np.array([data.geom(f).xpos[2] - model.geom(f).size[0] for f in FEET])
        touching = height < 0.005
        foot = np.array([data.sensor(f"{f}_foot_vel").data[:2] for f in FEET])
        deviation = data.qpos[7:] - np.array(index.default_qpos[7:])
        action, last = (commands[key][row].double().numpy() for key in ("action", "last"))
        swing = np.exp(-((height - 0.1) ** 2) / 0.01) * ~stance
        terms = {
            "track_lin_vel": (2.0, np.exp(-((v[:2] - c[:2]) ** 2).sum() / 0.5)),
            "track_ang_vel": (0.5, np.exp(-((w[2] - c[2]) ** 2) / 0.5)),
            "lin_vel_z": (-5.0, v[2] ** 2),
            "ang_vel_xy": (-0.1, (w[:2] ** 2).sum()),
            "base_height": (-100.0, (data.qpos[2] - 0.30) ** 2),
            "action_rate": (-0.01, ((action - last) ** 2).sum()),
            "joint_deviation": (-0.1, abs(deviation).sum()),
            "gait_contact": (0.5, (touching == stance).mean()),
            "swing_height": (4.0, swing.sum() / 4),
            "foot_slip": (-0.05, ((foot**2).sum(1) * touching).sum()),
        }
        result.append(terms)
    return result


def test_rewards_equal_the_formulas(play_env):
    """Three steps of random actions: every term, the weights, and their sum times dt."""
    play_env.reset(seed=4)
    rt = play_env.runtime.rt
    n, last = play_env.num_envs, zeros(play_env)
    for action in actions(3, n, scale=2.0):
        before = {
            "twist": rt.commands.terms["twist"].value.clone(),
            "stance": rt.commands.terms["gait"].parts["stance"].clone(),
            "action": action,
            "last": last,
        }
        _, reward, terminated, _, _ = play_env.step(action)
        assert not terminated.any()
        for row, terms in enumerate(rewards_by_hand(play_env, before)):
            assert tuple(terms) == rt.rewards.names
            values = torch.tensor([value for _, value in terms.values()])
            assert torch.allclose(rt.rewards.values[row].double(), values, rtol=1e-3, atol=1e-5)
            total = 0.02 * sum(weight * value for weight, value in terms.values())
            assert reward[row] == pytest.approx(total, rel=1e-3, abs=1e-5)
        last = action
    assert rt.rewards.values[:, rt.rewards.names.index("swing_height")].any()


def test_standing_still_earns_the_known_numbers(go2):
    """At rest, command zero, all four feet down: tracking is perfect, nothing swings or slips."""
    env = go2("mujoco", play=True)
    env.reset(seed=0)
    env.hold_command("twist", [0.0, 0.0, 0.0])
    env.reset(seed=0)
    for _ in range(100):  # settles in 0.9 s
        _, reward, *_ = env.step(zeros(env))
    values = dict(zip(env.runtime.rt.rewards.names, env.runtime.rt.rewards.values[0], strict=True))
    assert values["track_lin_vel"] == pytest.approx(1.0, abs=1e-3)
    assert values["track_ang_vel"] == pytest.approx(1.0, abs=1e-3)
    assert values["gait_contact"] == 1.0 and values["swing_height"] == 0.0
    assert values["action_rate"] == 0.0 and values["foot_slip"] < 1e-3
    assert values["base_height"] < 1e-4 and env.runtime.backend.views().qpos[0, 2] > 0.29
    deviation = float(values["joint_deviation"])
    assert 0.2 < deviation < 2.0  # the joints sag under the weight
    expected = 0.02 * (2.0 + 0.5 + 0.5 - 0.1 * deviation - 100 * float(values["base_height"]))
    assert reward[0] == pytest.approx(expected, abs=2e-4)
    env.release_command("twist")


# -- terminations and faults -----------------------------------------------------------------------


def turned(degrees, axis):
    """A rotation about x (1) or y (2)."""
    half = math.radians(degrees) / 2
    quat = [math.cos(half), 0.0, 0.0, 0.0]
    quat[axis] = math.sin(half)
    return quat


@pytest.mark.parametrize(
    ("what", "quat", "height", "counter", "ends"),
    [
        ("upright", None, None, 0, None),
        ("59.5 degrees", turned(59.5, 1), 1.0, 0, None),
        ("tilt", turned(60.5, 2), 1.0, 0, "terminated"),
        ("trunk_contact", None, 0.04, 0, "terminated"),
        ("time_out", None, None, 999, "truncated"),
        ("tilt", turned(-170.0, 1), 1.0, 999, "terminated"),
    ],
)
def test_what_ends_an_episode(train_env, what, quat, height, counter, ends):
    """E07: limits truncate, failures terminate, both at once terminate; only that row."""
    train_env.reset(seed=0)
    put(train_env, 2, quat=quat, height=height, velocity=0.0)
    counters = torch.zeros(train_env.num_envs, dtype=torch.int64)
    counters[2] = counter
    train_env.episode_length_buf = counters
    *_, terminated, truncated, info = train_env.step(zeros(train_env))
    expected = torch.arange(train_env.num_envs) == 2
    none = torch.zeros_like(expected)
    assert torch.equal(terminated, expected if ends == "terminated" else none)
    assert torch.equal(truncated, expected if ends == "truncated" else none)
    if ends:
        assert info["final_info"][f"termination/{what}"][2] == 1
        assert train_env.extras["log"][f"termination/{what}"] == 1


def test_a_non_finite_row_stays_alone(train_env):
    """E13: it ends this step with finite numbers and a counted cause; the others do not notice."""
    n, bad = train_env.num_envs, 4
    others = torch.arange(n) != bad
    steps = actions(14, n)
    runs = []
    for inject in (False, True):
        results = [frozen(train_env.reset(seed=6))]
        for number, action in enumerate(steps):
            if inject and number == 5:
                put(train_env, bad, velocity=torch.nan)
            results.append(frozen((*train_env.step(action), train_env.get_observations())))
            log = {key: float(value) for key, value in train_env.extras["log"].items()}
            if inject and number == 5:
                faults = {k: v for k, v in log.items() if k.startswith("fault/") and v}
        runs.append(results)
    for number, (control, got) in enumerate(zip(*runs, strict=True)):
        same(control, got, others)
        assert all(leaf.isfinite().all() for _, leaf in leaves(got)), number
    result = runs[1][6]
    assert result["[2]"][bad] and not result["[3]"][bad] and result["[1]"][bad] == 0.0
    assert torch.equal(result["[4]/final_obs"][bad], runs[1][5]["[0]"][bad])  # boundary before
    assert faults and set(faults) <= {
        "fault/engine_bad_state",
        "fault/state_nonfinite",
        "fault/reward_nonfinite",
    }
    totals = train_env.runtime.fault_totals()
    assert totals["engine_bad_state"] + totals["state_nonfinite"] >= 1
    assert not any(result["[2]"][bad] for result in runs[1][7:10])  # a fresh episode


# -- what a step may cost --------------------------------------------------------------------------


def test_a_step_dispatches_few_operations_and_never_waits(train_env):
    """The bar of the hot path, resets included: 210 operations, no host read, no upload."""
    n = train_env.num_envs
    train_env.reset(seed=0)
    steps = actions(14, n)
    for action in steps[:2]:
        train_env.step(action)
    kinds = set()
    for number, action in enumerate(steps[2:]):
        if number % 3 == 0:  # some rows, later all rows
            rows = torch.arange(n) < (2 if number < 6 else n)
            train_env.episode_length_buf = torch.where(rows, 999, 5)
        counts = count_ops(lambda action=action: train_env.step(action))
        ended = int(train_env.extras["log"]["episode/ended"])
        kinds.add("none" if ended == 0 else "all" if ended == n else "some")
        assert counts["nonview"] <= 210, counts
        assert (counts["sync"], counts["host"], counts["upload"]) == (0, 0, 0), counts
    assert kinds == {"none", "some", "all"}


# -- contract --------------------------------------------------------------------------------------


def test_the_built_environment_has_the_resolved_contract(go2):
    digests = set()
    for backend in ("mujoco", "mjwarp"):
        env, cfg = go2(backend), owner(backend)
        contract = resolve(cfg)
        observations = env.runtime.rt.observations
        widths = {
            group: {term.name: term.width for term in observations.layout(group)}
            for group in ("policy", "critic")
        }
        built = resolve_from(
            env.cfg,
            env.runtime.index,
            task=env.spec.id,
            algo=cfg.algo,
            widths=widths,
            actions=env.runtime.rt.actions.specs,
        )
        assert built == contract
        digests.add(contract_hash(contract))
    assert len(digests) == 1
    assert contract["joints"]["names"] == contract["actions"]["joints"] == list(JOINTS)
    assert contract["actions"]["offset"] == pytest.approx(DEFAULT)
    assert set(contract["actions"]["scale"]) == {0.25} and set(contract["actions"]["box"]) == {4.0}
    assert contract["joints"]["kp"] == [35.0] * 12 and contract["joints"]["kd"] == [0.5] * 12
    assert contract["joints"]["effort"] == [23.7, 23.7, 45.43] * 4
    assert (contract["control_dt"], contract["decimation"]) == (0.02, 4)

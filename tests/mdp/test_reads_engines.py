"""Torques, accelerations, body velocities and self collisions: what both engines serve."""

import mujoco
import numpy as np
import pytest
import torch
from helpers.probe import obs_term, one

import unilab_gym
from unilab_gym.config import (
    ActionTermCfg,
    EnvCfg,
    ObservationGroupCfg,
    RewardTermCfg,
    SceneCfg,
    SimCfg,
)
from unilab_gym.mdp import actions, observations, rewards
from unilab_gym.runtime.dynamics_reads import (
    BodyAngVelW,
    BodyLinVelW,
    JointTorque,
    RootAcc,
)
from unilab_gym.runtime.reads import JointAcc
from unilab_gym.runtime.term import term

XML = """
<mujoco model="arms">
  <compiler angle="radian"/>
  <option gravity="0 0 -9.81"/>
  <worldbody>
    <body name="base" pos="0 0 2">
      <freejoint name="root"/>
      <site name="imu"/>
      <geom name="trunk" type="box" size=".2 .1 .05" mass="3" contype="0" conaffinity="0"/>
      <body name="left" pos=".2 0 0">
        <joint name="left_arm" axis="0 1 0" range="-2 2" armature=".01"/>
        <geom name="left_hand" type="sphere" pos="0 0 -.3" size=".06" mass=".3"/>
      </body>
      <body name="right" pos="-.2 0 0">
        <joint name="right_arm" axis="0 1 0" range="-2 2" armature=".01"/>
        <geom name="right_hand" type="sphere" pos="0 0 -.3" size=".06" mass=".3"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="right_servo" joint="right_arm" kp="20" kv="1"/>
    <position name="left_servo" joint="left_arm" kp="20" kv="1"/>
  </actuator>
  <sensor>
    <contact name="hands" subtree1="left" subtree2="right" data="found"/>
    <accelerometer name="unused" site="imu"/>
  </sensor>
  <keyframe><key name="home" qpos="0 0 2 1 0 0 0 0 0" ctrl="0 0"/></keyframe>
</mujoco>
"""
BODIES = ("right", "base", "left")
COLUMNS = {"ang": 9, "lin": 9, "torque": 2, "acc": 2, "root": 6, "hit": 1}
STEPS, DECIMATION, DT = 6, 2, 0.01


@term(reads=(BodyAngVelW(BODIES),), width=9)
def turning(frame):
    return frame[BodyAngVelW(BODIES)]


@term(reads=(BodyLinVelW(BODIES),), width=9)
def moving(frame):
    return frame[BodyLinVelW(BODIES)]


@term(reads=(RootAcc(),), width=6)
def root_acc(frame):
    return frame[RootAcc()]


@term(reads=lambda p: rewards.self_collision.__term__.reads(p), width=1)
def hits(frame, *, sensors):
    return rewards.self_collision(frame, sensors=sensors).unsqueeze(1)


def arms_cfg(folder):
    path = folder / "arms.xml"
    path.write_text(XML)
    terms = {
        "ang": obs_term(turning),
        "lin": obs_term(moving),
        "torque": obs_term(observations.joint_torque),
        "acc": obs_term(observations.joint_acc),
        "root": obs_term(root_acc),
        "hit": obs_term(hits, params={"sensors": ("hands",)}),
    }
    return EnvCfg(
        scene=SceneCfg(robot=str(path), ground="none"),
        sim=SimCfg(iterations=4, ls_iterations=8),
        sim_dt=DT,
        ctrl_dt=DT * DECIMATION,
        actions={"arms": ActionTermCfg(func=actions.JointPositionAction, params={"box": 2.0})},
        observations={"policy": ObservationGroupCfg(terms=terms)},
        rewards={"one": RewardTermCfg(func=one, weight=1.0)},
    )


def by_hand(model, targets, substep):
    """MuJoCo C itself, one row: columns at every boundary; contacts there or a substep before."""
    data, rows = mujoco.MjData(model), []
    mujoco.mj_resetDataKeyframe(model, data, 0)
    for target in targets:
        data.ctrl[:] = target[::-1]  # actuators are listed right first
        for _ in range(DECIMATION):
            mujoco.mj_step(model, data)
        last = [*data.qfrc_actuator[6:], *data.qacc[6:], *data.qacc[:6]]
        copy = mujoco.MjData(model)
        copy.qpos[:], copy.qvel[:] = data.qpos, data.qvel
        mujoco.mj_forward(model, copy)
        found = (data if substep else copy).sensordata[0] > 0
        velocity = np.zeros((3, 6))
        for row, name in enumerate(BODIES):
            kind = mujoco.mjtObj.mjOBJ_XBODY
            mujoco.mj_objectVelocity(model, copy, kind, model.body(name).id, velocity[row], 0)
        rows.append([*velocity[:, :3].flatten(), *velocity[:, 3:].flatten(), *last, found])
    return torch.tensor(np.array(rows, dtype=np.float32))


@pytest.mark.parametrize("backend", ["mujoco", "mjwarp"])
def test_reads_are_those_of_mujoco_and_zero_after_a_reset(tmp_path, backend):
    if backend == "mjwarp":
        pytest.importorskip("mujoco_warp")
    env = unilab_gym.make(arms_cfg(tmp_path), 2, backend=backend, device="cpu")
    obs, _ = env.reset(seed=0)
    assert not obs.any()
    # Row 0 claps its hands (left arm back, right arm forth), row 1 swings both alike.
    targets = torch.tensor([[1.0, -1.0], [0.7, 0.7]])
    seen = []
    for _ in range(STEPS):
        obs, *_ = env.step(targets)
        seen.append(obs)
    seen = torch.stack(seen)  # [steps, 2, columns]
    model = env.runtime.backend.spec.model
    for row in range(2):
        wanted = by_hand(model, [targets[row].tolist()] * STEPS, backend == "mjwarp")
        scale = 1.0 + wanted.abs().amax(0)
        error = ((seen[:, row] - wanted).abs() / scale).amax(0)
        assert error.max() < 2e-3, error
    hit = sum(COLUMNS.values()) - 1
    assert seen[:, 0, hit].max() == 1.0
    assert seen[0, 0, hit] == 0.0
    assert not seen[:, 1, hit].any()
    assert seen[-1, :, 18:28].abs().amax(1).min() > 0.1
    mask = torch.tensor([True, False])
    after, _ = env.reset(options={"reset_mask": mask})
    assert not after[0].any()
    assert torch.equal(after[1], seen[-1, 1])
    env.close()


def test_reads_name_what_the_robot_lacks():
    from helpers.probe import tiny_index

    from unilab_gym.errors import ConfigError

    with pytest.raises(ConfigError, match="RootAcc needs a floating base"):
        RootAcc().resolve(tiny_index())
    with pytest.raises(ConfigError, match="no joint matches 'kne'"):
        JointTorque(("kne",)).resolve(tiny_index())
    assert JointAcc(("toe", "hip")).resolve(tiny_index()).columns == (2, 0)

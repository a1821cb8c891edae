"""Robots from an MJCF path: meshes, actuators, sensors and default poses that a config gives."""

import mujoco
import numpy as np
import pytest
import torch
from helpers.mesh import MOTORS, write_arm
from helpers.probe import write_probe, write_walker

import unilab_gym
from unilab_gym.config import (
    ActionTermCfg,
    ActuatorCfg,
    EnvCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    SceneCfg,
    SensorCfg,
    SimCfg,
    from_dict,
    to_dict,
)
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import actions, observations
from unilab_gym.model_index import Stage
from unilab_gym.robot import SENSOR_KINDS
from unilab_gym.scene import build_scene

SERVO = ActuatorCfg(joints=(".*",), kp=30.0, kd=2.0, effort=8.0)
STIFF = ActuatorCfg(joints=(".*",), kp=300.0, kd=20.0)


def scene(robot, visuals=False, **kwargs):
    cfg = SceneCfg(robot=str(robot), **({"keyframe": None} | kwargs))
    return build_scene(cfg, SimCfg(), 0.005, visuals=visuals)


def arm_cfg(robot, **kwargs):
    terms = {
        "q": ObservationTermCfg(func=observations.joint_pos_rel),
        "v": ObservationTermCfg(func=observations.joint_vel),
    }
    return EnvCfg(
        scene=SceneCfg(robot=robot, keyframe=None, **kwargs),
        sim=SimCfg(num_threads=1),
        actions={"arm": ActionTermCfg(func=actions.JointPositionAction)},
        observations={"policy": ObservationGroupCfg(terms=terms)},
    )


# --- files ----------------------------------------------------------------------------------------


def test_meshes_and_included_files_lie_beside_the_mjcf(tmp_path, monkeypatch):
    robot = write_arm(tmp_path / "robots")
    monkeypatch.chdir(tmp_path)
    for path in (robot, "robots/arm.xml"):
        built = scene(path)
        assert built.index.joint_names == ("shoulder", "elbow")
        assert built.index.geoms["tip"].kind == "mesh"
    assert built.model.nmesh == 1  # the cover is only seen
    assert scene(robot, visuals=True).model.nmesh == 2
    assert not built.index.floating
    assert scene(write_arm(tmp_path / "free", free=True)).index.floating


def test_a_mesh_robot_moves_its_joints_by_name(tmp_path):
    """Its motors are listed elbow first: the first action column is still the shoulder."""
    cfg = arm_cfg(write_arm(tmp_path), actuators={"all": STIFF})
    env = unilab_gym.make(cfg, 2, backend="mujoco")
    env.reset(seed=0)
    for _ in range(40):
        obs, *_ = env.step(torch.tensor([[0.5, 0.0], [0.0, 0.5]]))
    assert 0.3 < obs[0, 0] < 0.7 and obs[0, 1].abs() < 0.2
    assert 0.3 < obs[1, 1] < 0.7 and obs[1, 0].abs() < 0.2
    env.close()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / "meshes" / "link.stl").unlink(), r"arm.xml does not compile: .*link.stl"),
        (lambda f: (f / "parts" / "assets.xml").unlink(), r"arm.xml is not a valid .*assets.xml"),
        (lambda f: (f / "arm.xml").write_text("<mujoco>"), r"arm.xml is not a valid MJCF file"),
        (
            lambda f: (f / "arm.xml").write_text("<mujoco><bdy/></mujoco>"),
            r"(?s)arm.xml is not .*bdy",
        ),
        (lambda f: (f / "meshes" / "link.stl").write_bytes(b"x"), r"arm.xml does not compile"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_path(tmp_path, break_it, message):
    robot = write_arm(tmp_path)
    break_it(tmp_path)
    with pytest.raises(ConfigError, match=message) as raised:
        scene(robot)
    assert robot in str(raised.value)


def test_a_folder_and_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="is a folder, not an MJCF file"):
        scene(tmp_path)
    with pytest.raises(ConfigError, match=r"no file '.*gone.xml'"):
        scene(tmp_path / "gone.xml")
    write_arm(tmp_path)
    with pytest.raises(ConfigError, match=r"no file '.*arn.xml'; did you mean '.*arm.xml'"):
        scene(tmp_path / "arn.xml")


def test_a_world_of_ones_own(tmp_path):
    path = tmp_path / "world.xml"
    text = (tmp_path / write_walker(tmp_path)).read_text()
    path.write_text(
        text.replace("<worldbody>", '<worldbody><geom name="floor" type="plane" size="9 9 1"/>')
    )
    with pytest.raises(ConfigError, match=r"world.xml has a geom 'floor' of its own"):
        scene(path)
    assert scene(path, ground="none").index.geoms["floor"].kind == "plane"
    with pytest.raises(ConfigError, match="ground_friction has no effect with ground='none'"):
        scene(path, ground="none", ground_friction=0.5)


# --- actuators ------------------------------------------------------------------------------------


def test_without_a_config_the_mjcf_decides(tmp_path):
    index = scene(write_arm(tmp_path)).index
    assert [a.kind for a in index.actuators] == ["motor", "motor"]
    assert [(a.kp, a.kd) for a in index.actuators] == [(0.0, 0.0)] * 2
    with pytest.raises(
        ConfigError,
        match=r"position.*shoulder_motor",
    ):
        actions.JointPositionAction.resolve(index)
    velocity = '<actuator><velocity name="v" joint="elbow" kv="3"/></actuator>'
    (info,) = scene(write_arm(tmp_path, actuators=velocity)).index.actuators
    assert (info.kind, info.kp, info.kd) == ("velocity", 0.0, 3.0)


def test_actuators_of_the_config_take_the_place_of_the_mjcfs(tmp_path):
    cfg = {
        "shoulder": ActuatorCfg(
            joints=("shoul.*",),
            kp=30.0,
            kd=2.0,
            effort=8.0,
            armature=0.01,
            frictionloss=0.1,
            damping=0.0,
        ),
        "elbow": ActuatorCfg(joints=("elbow",), kind="motor"),
    }
    built = scene(write_arm(tmp_path), actuators=cfg)
    elbow, shoulder = built.index.actuators  # in the MJCF's order, under its names
    assert (elbow.name, elbow.kind, elbow.effort) == ("elbow_motor", "motor", np.inf)
    assert (shoulder.name, shoulder.kp, shoulder.kd, shoulder.effort) == (
        "shoulder_motor",
        30.0,
        2.0,
        8.0,
    )
    model = built.model
    assert model.dof_armature.tolist() == [0.01, 0.0]
    assert model.dof_frictionloss.tolist() == [0.1, 0.0]
    assert model.dof_damping.tolist() == [0.0, 0.0]
    assert model.actuator_gear[:, 0].tolist() == [1.0, 1.0]
    assert not model.actuator_ctrllimited.any()


def test_a_joint_without_an_actuator_gets_one_of_its_name(tmp_path):
    one = MOTORS.replace(
        '<motor name="shoulder_motor" joint="shoulder" gear="50" ctrlrange="-1 1"/>', ""
    )
    for text, names in ((one, ["elbow_motor", "shoulder"]), ("", ["shoulder", "elbow"])):
        index = scene(write_arm(tmp_path, actuators=text), actuators={"all": SERVO}).index
        assert [a.name for a in index.actuators] == names
        assert {(a.kp, a.kd, a.effort) for a in index.actuators} == {(30.0, 2.0, 8.0)}


def test_the_force_is_the_law_of_the_config(tmp_path):
    servo = ActuatorCfg(joints=(".*",), kp=30.0, kd=2.0, effort=8.0)
    model = scene(write_arm(tmp_path), actuators={"all": servo}).model
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = (0.1, 0.2), (1.0, -1.0), (0.3, 0.3)
    mujoco.mj_forward(model, data)
    assert data.actuator_force.tolist() == pytest.approx([30 * (0.3 - 0.2) + 2.0, 30 * 0.2 - 2.0])
    data.ctrl[:] = 9.0
    mujoco.mj_forward(model, data)
    assert data.actuator_force.tolist() == [8.0, 8.0]


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (
            {"a": ActuatorCfg(joints=("sholder",), kp=1.0)},
            r"scene.actuators.a: no joint matches 'sholder'; did you mean 'shoulder'",
        ),
        (
            {"a": ActuatorCfg(joints=("(",), kp=1.0)},
            r"scene.actuators.a: pattern '\(' is not valid",
        ),
        ({"a": ActuatorCfg(joints=(), kp=1.0)}, r"scene.actuators.a: joints must be a tuple"),
        (
            {"a": SERVO, "b": ActuatorCfg(joints=("elbow",), kp=1.0)},
            r"scene.actuators.b: joint 'elbow' is claimed by 'a' too",
        ),
    ],
)
def test_actuators_that_fit_nothing(tmp_path, cfg, message):
    with pytest.raises(ConfigError, match=message):
        scene(write_arm(tmp_path), actuators=cfg)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "kind 'position' needs kp"),
        ({"kind": "motor", "kp": 1.0}, "kp and kd have no effect on an actuator of kind 'motor'"),
        ({"kind": "servo"}, "kind: 'servo'; available: position, motor"),
        ({"kp": 0.0}, "actuator kp must be positive and finite, got 0.0"),
        ({"kp": 1.0, "kd": -1.0}, "actuator kd must be not negative and finite, got -1.0"),
        ({"kp": 1.0, "effort": float("inf")}, "actuator effort must be positive and finite"),
    ],
)
def test_an_actuator_that_cannot_be(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        ActuatorCfg(joints=(".*",), **kwargs)


# --- sensors --------------------------------------------------------------------------------------


def test_sensors_are_added_by_name(tmp_path):
    cfg = {
        "gyro": SensorCfg(kind="gyro", body="base"),
        "tool_vel": SensorCfg(kind="framelinvel", site="tool"),
        "tip_pos": SensorCfg(kind="framepos", geom="tip"),
        "elbow_pos": SensorCfg(kind="jointpos", joint="elbow"),
        "com": SensorCfg(kind="subtreecom", body="base"),
    }
    index = scene(write_arm(tmp_path, free=True), sensors=cfg).index
    assert list(index.sensors) == list(cfg)
    assert [index.sensors[name].dim for name in cfg] == [3, 3, 3, 1, 3]
    assert index.sensors["gyro"].stage is Stage.VEL


@pytest.mark.parametrize("kind", SENSOR_KINDS)
def test_every_kind_of_sensor_compiles(tmp_path, kind):
    names = {"site": "tool", "body": "lower", "geom": "tip", "joint": "elbow"}
    cfg = {what: SensorCfg(kind=kind, **{what: names[what]}) for what in SENSOR_KINDS[kind]}
    assert set(scene(write_arm(tmp_path), sensors=cfg).index.sensors) == set(SENSOR_KINDS[kind])


@pytest.mark.parametrize(
    ("sensor", "message"),
    [
        (SensorCfg(kind="gyr", site="tool"), r"scene.sensors.s: kind 'gyr'; did you mean 'gyro'"),
        (
            SensorCfg(kind="gyro", site="tol"),
            r"scene.sensors.s: no site 'tol'; did you mean 'tool'",
        ),
        (SensorCfg(kind="framepos", body="uper"), r"no body 'uper'; did you mean 'upper'"),
        (
            SensorCfg(kind="gyro", joint="elbow"),
            r"a gyro is fixed to a site or body, not to a joint",
        ),
    ],
)
def test_a_sensor_that_fits_nothing(tmp_path, sensor, message):
    with pytest.raises(ConfigError, match=message):
        scene(write_arm(tmp_path), sensors={"s": sensor})


def test_a_sensor_is_fixed_to_one_thing_and_has_a_name_of_its_own(tmp_path):
    for what in ({}, {"site": "tool", "body": "base"}):
        with pytest.raises(ConfigError, match="fixed to one of site, body, geom, joint"):
            SensorCfg(kind="gyro", **what)
    with pytest.raises(ConfigError, match=r"scene.sensors.angle: the MJCF has a sensor of that"):
        scene(write_probe(tmp_path), sensors={"angle": SensorCfg(kind="jointpos", joint="hinge")})


# --- default pose ---------------------------------------------------------------------------------


def test_a_default_pose_without_a_keyframe(tmp_path):
    index = scene(
        write_arm(tmp_path, free=True),
        actuators={"all": SERVO},
        joint_pos={"shoul.*": 0.5, "elbow": -1.0},
        root_pos=(0.0, 0.0, 0.8),
    ).index
    assert index.default_qpos == (0.0, 0.0, 0.8, 1.0, 0.0, 0.0, 0.0, 0.5, -1.0)
    assert [joint.default for joint in index.joints] == [0.5, -1.0]
    assert index.default_ctrl == (-1.0, 0.5)  # elbow first, as its actuators are


def test_a_default_pose_over_a_keyframe(tmp_path):
    robot = write_walker(tmp_path)
    home = scene(robot, keyframe="home").index
    moved = scene(robot, keyframe="home", joint_pos={"left_hip": 0.3}).index
    assert moved.default_qpos[7:] == (0.3, home.default_qpos[8])
    assert moved.default_qpos[:7] == home.default_qpos[:7]
    assert moved.default_ctrl == (0.3, home.default_ctrl[1])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"joint_pos": {"elbw": 0.1}},
            r"scene.joint_pos: no joint matches 'elbw'; did you mean 'elbow'",
        ),
        (
            {"joint_pos": {"elbow": 0.1, ".*": 0.2}},
            r"scene.joint_pos: joint 'elbow' is claimed with",
        ),
        (
            {"joint_pos": {"elbow": 2.5}},
            r"scene.joint_pos: 2.5 of joint 'elbow' lies outside its range -2 .. 2",
        ),
        ({"root_pos": (0.0, 0.0, 1.0)}, r"scene.root_pos needs a floating base"),
        (
            {"keyframe": "home"},
            r"no keyframe 'home'; available: nothing; keyframe=None takes qpos0",
        ),
    ],
)
def test_a_pose_that_fits_nothing(tmp_path, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        scene(write_arm(tmp_path), **kwargs)


def test_an_episode_starts_in_the_default_pose_and_holds_it(tmp_path):
    """Joints that no action drives are held by their servos, too."""
    cfg = arm_cfg(
        write_arm(tmp_path), actuators={"all": STIFF}, joint_pos={"shoulder": -0.3, "elbow": 0.7}
    )
    cfg = from_dict(EnvCfg, to_dict(cfg))
    env = unilab_gym.make(cfg, 1, backend="mujoco")
    obs, _ = env.reset(seed=0)
    assert torch.equal(obs, torch.zeros(1, 4))
    assert env.runtime.backend.views().qpos[0].tolist() == pytest.approx([-0.3, 0.7])
    for _ in range(25):
        obs, *_ = env.step(torch.zeros(1, 2))
    assert obs[0, :2].abs().max() < 0.05
    env.close()

"""Scenes: what is composed, what the name tables say, and what is refused."""

import math

import mujoco
import numpy as np
import pytest
import torch
from helpers.probe import PROBE_XML, write_probe, write_walker

import unilab_gym
from unilab_gym.config import (
    ActionTermCfg,
    EnvCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    SceneCfg,
    SimCfg,
)
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import actions, observations
from unilab_gym.model_index import ActuatorInfo, JointInfo, SensorInfo, Stage
from unilab_gym.scene import build_scene, index_model


def scene(path, sim=None, dt=0.01, **kwargs):
    visuals = kwargs.pop("visuals", False)
    return build_scene(SceneCfg(robot=str(path), **kwargs), sim or SimCfg(), dt, visuals=visuals)


def index_of(xml, keyframe="home"):
    return index_model(mujoco.MjModel.from_xml_string(xml), keyframe)


def test_engine_settings_replace_those_of_the_file(tmp_path):
    sim = SimCfg(
        integrator="euler",
        solver="cg",
        cone="elliptic",
        iterations=7,
        ls_iterations=9,
        impratio=3.0,
        gravity=(1.0, 0.0, -2.0),
    )
    option = scene(write_probe(tmp_path), sim, dt=0.004).model.opt
    assert option.timestep == 0.004
    assert option.integrator == mujoco.mjtIntegrator.mjINT_EULER
    assert option.solver == mujoco.mjtSolver.mjSOL_CG
    assert option.cone == mujoco.mjtCone.mjCONE_ELLIPTIC
    assert (option.iterations, option.ls_iterations, option.impratio) == (7, 9, 3.0)
    assert option.gravity.tolist() == [1.0, 0.0, -2.0]


def test_the_tables_of_a_hinge_by_hand(tmp_path):
    index = scene(write_probe(tmp_path), ground="none").index
    assert index.joints == (JointInfo("hinge", 0, 0, -2.0, 2.0, 0.1, 0.0),)
    assert index.actuators == (ActuatorInfo("servo", 0, "hinge", 20.0, 2.0, 20.0),)
    assert index.sensors == {
        "angle": SensorInfo("angle", 0, 1, Stage.POS, "jointpos"),
        "tip_vel": SensorInfo("tip_vel", 1, 3, Stage.VEL, "framelinvel"),
        "tip_acc": SensorInfo("tip_acc", 4, 3, Stage.ACC, "accelerometer"),
    }
    assert (index.bodies, index.sites) == ({"world": 0, "arm": 1}, {"tip": 0})
    assert (index.floating, index.root_body, index.sim_dt) == (False, "arm", 0.01)
    assert (index.default_qpos, index.default_ctrl) == ((0.1,), (0.1,))
    assert index.geoms["link"].kind == "capsule"
    assert index.geoms["link"].size[:2] == pytest.approx((0.02, 0.15))
    assert index.field_widths["sensordata"] == 7


def test_a_packed_row_holds_positions_and_velocities_where_the_index_says(tmp_path):
    built = scene(write_walker(tmp_path))
    index, model = built.index, built.model
    data = mujoco.MjData(model)
    data.qpos[:] = np.arange(index.nq)
    data.qvel[:] = -np.arange(index.nv)
    row = np.zeros(index.nstate)
    mujoco.mj_getState(model, data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
    q, v = index.qpos_offset, index.qvel_offset
    assert row[q : q + index.nq].tolist() == data.qpos.tolist()
    assert row[v : v + index.nv].tolist() == data.qvel.tolist()


def test_the_ground_is_added_once_and_touches(tmp_path):
    with_ground, without = (
        scene(write_walker(tmp_path), **ground)
        for ground in ({"ground": "flat", "ground_friction": 0.7}, {"ground": "none"})
    )
    assert with_ground.index.geoms["floor"].kind == "plane"
    assert with_ground.index.geoms["floor"].friction[0] == 0.7
    assert "floor" not in without.index.geoms
    assert with_ground.model.ngeom == without.model.ngeom + 1
    data = mujoco.MjData(with_ground.model)
    data.qpos[:] = with_ground.index.default_qpos
    data.qpos[2] = 0.44
    mujoco.mj_forward(with_ground.model, data)
    assert data.ncon == 2
    assert {contact.dim for contact in data.contact} == {3}


def test_a_free_joint_is_the_root_and_no_scalar_joint(tmp_path):
    index = scene(write_walker(tmp_path)).index
    assert index.floating
    assert index.root_body == "base"
    assert index.joint_names == ("left_hip", "right_hip")
    assert [(joint.qpos_adr, joint.dof_adr) for joint in index.joints] == [(7, 6), (8, 7)]
    assert (index.nq, index.nv, index.nu) == (9, 8, 2)


def test_without_a_keyframe_the_default_is_qpos0(tmp_path):
    index = scene(write_walker(tmp_path), keyframe=None).index
    assert index.default_qpos == (0.0, 0.0, 0.45, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert index.default_ctrl == (0.0, 0.0)


def test_what_is_only_seen_is_not_simulated(tmp_path):
    looks = '<geom name="shell" type="box" size="1 1 1" contype="0" conaffinity="0" group="2"/>'
    path = tmp_path / "seen.xml"
    path.write_text(PROBE_XML.replace("<site", looks + "<site"))
    physics, seen = scene(path), scene(path, visuals=True)
    assert "shell" not in physics.index.geoms
    assert "shell" in seen.index.geoms
    assert physics.index.nstate == seen.index.nstate
    assert physics.index.default_qpos == seen.index.default_qpos


def test_unlimited_joints_and_actuators():
    xml = PROBE_XML.replace('range="-2 2"', "").replace('forcerange="-20 20"', "")
    index = index_of(xml)
    assert (index.joints[0].lower, index.joints[0].upper) == (-math.inf, math.inf)
    assert index.actuators[0].effort == math.inf


BODY = '<geom size="1"/><site name="s"/></body></worldbody>'
HINGE = '<joint name="j"/>'


@pytest.mark.parametrize(
    ("joint", "rest", "message"),
    [
        ("<joint/>", "", r"joint number 0 of body 1 has no name"),
        ('<joint name="j" type="ball"/>', "", r"joint 'j' \(number 0\) is neither hinge nor slide"),
        (HINGE, "<actuator><motor joint='j'/></actuator>", r"actuator number 0 has no name"),
        (HINGE, "<sensor><jointpos joint='j'/></sensor>", r"sensor number 0 has no name"),
        (
            HINGE,
            "<actuator><motor name='thrust' site='s'/></actuator>",
            r"actuator 'thrust' does not drive a joint",
        ),
    ],
)
def test_a_model_that_the_tables_cannot_describe(joint, rest, message):
    with pytest.raises(ConfigError, match=message):
        index_of(f"<mujoco><worldbody><body>{joint}{BODY}{rest}</mujoco>", None)
    good = index_of(f"<mujoco><worldbody><body>{HINGE}{BODY}</mujoco>", None)
    assert good.joint_names == ("j",)


def test_an_unknown_keyframe():
    with pytest.raises(ConfigError, match=r"no keyframe 'homme'; did you mean 'home'"):
        index_of(PROBE_XML, "homme")


def test_a_scene_names_an_mjcf():
    with pytest.raises(ConfigError, match=r"scene\.robot must name an MJCF file, got ''"):
        SceneCfg(robot="")


def test_a_plain_world_with_one_joint_is_enough(tmp_path):
    """No robot in the usual sense, no ground, no keyframe: nothing is added to the file."""
    path = tmp_path / "door.xml"
    path.write_text(
        """<mujoco><worldbody><body name="door"><joint name="hinge" axis="0 0 1"/>
        <geom name="leaf" type="box" size=".4 .02 1" mass="8"/></body></worldbody>
        <actuator><motor name="push" joint="hinge"/></actuator></mujoco>"""
    )
    cfg = EnvCfg(
        scene=SceneCfg(robot=str(path), ground="none", keyframe=None),
        actions={"push": ActionTermCfg(func=actions.JointEffortAction, params={"scale": 5.0})},
        observations={
            "policy": ObservationGroupCfg(
                terms={"angle": ObservationTermCfg(func=observations.joint_pos_rel)}
            )
        },
    )
    env = unilab_gym.make(cfg, 3, backend="mujoco", seed=0)
    env.reset()
    pushed = torch.tensor([[0.0], [1.0], [-1.0]])
    for _ in range(10):
        obs, *_ = env.step(pushed)
    assert env.runtime.backend.model.ngeom == 1 and env.runtime.index.sensors == {}
    assert obs[0, 0] == 0.0 and obs[1, 0] > 0.01 and obs[2, 0] == -obs[1, 0]
    env.close()


def test_files_that_are_missing_or_no_mjcf(tmp_path):
    with pytest.raises(ConfigError, match=r"no file 'robots/go2/go3.xml'; did you mean .*go2.xml"):
        scene("robots/go2/go3.xml")
    broken = tmp_path / "broken.xml"
    broken.write_text("<mujoco><worldbody><body></mujoco>")
    with pytest.raises(ConfigError, match=r"broken.xml is not a valid MJCF file"):
        scene(broken)
    empty = tmp_path / "massless.xml"
    empty.write_text('<mujoco><worldbody><body><joint name="j"/></body></worldbody></mujoco>')
    with pytest.raises(ConfigError, match=r"massless.xml does not compile: .*mass"):
        scene(empty)


@pytest.mark.parametrize(
    ("sim", "message"),
    [
        (SimCfg(integrator="rk5"), r"sim.integrator: 'rk5'; available: euler, implicitfast"),
        (SimCfg(solver="newtn"), r"sim.solver: 'newtn'; did you mean 'newton'"),
        (SimCfg(cone="round"), r"sim.cone: 'round'; available: pyramidal, elliptic"),
    ],
)
def test_unknown_engine_settings(tmp_path, sim, message):
    with pytest.raises(ConfigError, match=message):
        scene(write_probe(tmp_path), sim)


def test_the_robot_keeps_its_own_names(tmp_path):
    index = scene(write_walker(tmp_path)).index
    assert set(index.geoms) == {"floor", "trunk", "left_foot", "right_foot"}
    assert index.names("actuator") == ("left_servo", "right_servo")
    assert index.match("joint", ("right.*", "left.*")) == ("right_hip", "left_hip")

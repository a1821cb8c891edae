"""The G1 file says what Unitree published, and what the tasks need."""

import json
import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest

REPO = Path(__file__).resolve().parents[2]
XML = REPO / "assets" / "robots" / "g1" / "g1.xml"
CHECKER = REPO / "tests" / "data" / "robots" / "check_robot.py"
FACTS_FILE = REPO / "tests" / "data" / "robots" / "g1_facts.json"
FACTS = json.loads(FACTS_FILE.read_text())
JOINTS = FACTS["joint_order_natural"]
SOLES = [f"{side}_foot_contact_{i}" for side in ("left", "right") for i in range(4)]


def on_floor(*, discardvisual: bool = False) -> mujoco.MjModel:
    spec = mujoco.MjSpec.from_file(str(XML))
    spec.compiler.discardvisual = discardvisual
    spec.worldbody.add_geom(
        name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05], contype=1, conaffinity=1
    )
    return spec.compile()


def standing(model: mujoco.MjModel) -> mujoco.MjData:
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("stand").id)
    mujoco.mj_forward(model, data)
    return data


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(XML))


@pytest.fixture(scope="module")
def scene() -> mujoco.MjModel:
    return on_floor()


def contacts(model: mujoco.MjModel, data: mujoco.MjData) -> set[tuple[str, str]]:
    return {tuple(sorted(model.geom(g).name for g in c.geom)) for c in data.contact}


def test_checker_agrees_with_the_published_figures() -> None:
    command = [sys.executable, str(CHECKER), str(XML), str(FACTS_FILE)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "OK"


def test_bodies_carry_the_published_inertials(model: mujoco.MjModel) -> None:
    assert model.nbody == FACTS["nbody_including_world"]
    for want in FACTS["bodies"]:
        body = model.body(want["name"])
        assert model.body(body.parentid[0]).name == want["parent"]
        assert body.mass[0] == pytest.approx(want["mass"], rel=1e-12)
        np.testing.assert_allclose(body.ipos, want["inertial_pos"], atol=1e-12)
        np.testing.assert_allclose(body.inertia, want["diaginertia"], rtol=1e-9)


def test_joints_are_in_natural_order_with_range_and_motor(model: mujoco.MjModel) -> None:
    names = [model.joint(i).name for i in range(model.njnt)]
    assert names == ["floating_base_joint", *JOINTS]
    for want in FACTS["joints"][1:]:
        joint = model.joint(want["name"])
        motor = FACTS["per_joint_motor_mjlab"][want["name"]]
        assert (joint.qposadr[0], joint.dofadr[0]) == (want["qposadr"], want["dofadr"])
        np.testing.assert_array_equal(joint.range, want["range"])
        np.testing.assert_array_equal(joint.axis, want["axis"])
        assert joint.armature[0] == pytest.approx(motor["armature"], rel=1e-9)
        assert joint.frictionloss[0] == want["frictionloss"]
    assert np.all(model.dof_damping == 0), "the damping belongs to the actuator alone"


def test_actuators_are_in_the_order_of_the_joints_with_their_gains(model: mujoco.MjModel) -> None:
    assert [model.joint(i).name for i in model.actuator_trnid[:, 0]] == JOINTS
    for want in FACTS["actuators"]:
        actuator = model.actuator(want["name"])
        assert actuator.gainprm[0] == want["kp"]
        np.testing.assert_array_equal(actuator.biasprm[:3], [0, -want["kp"], -want["kd"]])
        np.testing.assert_array_equal(actuator.forcerange, want["forcerange"])
    assert np.all(model.actuator_forcelimited)
    assert not np.any(model.actuator_ctrllimited)


def test_collision_shapes_are_the_published_ones(model: mujoco.MjModel) -> None:
    """The feet apart: four spheres under each sole, and one shell instead of seven capsules."""
    wanted = {
        g["name"].replace("_geom", ""): g
        for g in FACTS["collision_geoms"]
        if g["body"] != "world" and ("foot" not in g["name"] or "contact" in g["name"])
    }
    collides = np.flatnonzero((model.geom_contype != 0) | (model.geom_conaffinity != 0))
    names = {model.geom(i).name for i in collides}
    assert names == {*wanted, "left_foot_collision", "right_foot_collision"}
    for name, want in wanted.items():
        geom = model.geom(name)
        assert geom.type[0] == getattr(mujoco.mjtGeom, f"mjGEOM_{want['type'].upper()}"), name
        assert model.body(geom.bodyid[0]).name == want["body"]
        np.testing.assert_allclose(geom.size, want["size"], atol=1e-12, err_msg=name)
        np.testing.assert_allclose(geom.pos, want["pos"], atol=1e-12, err_msg=name)
    for name in SOLES:
        geom = model.geom(name)
        assert (geom.condim[0], geom.priority[0], geom.friction[0]) == (3, 1, 0.6)


def test_no_mesh_and_nothing_unnamed(model: mujoco.MjModel) -> None:
    assert model.nmesh == model.nhfield == model.ntex == model.nskin == 0
    kinds = {"body": model.nbody, "joint": model.njnt, "actuator": model.nu}
    for kind, count in (kinds | {"site": model.nsite, "sensor": model.nsensor}).items():
        assert all(getattr(model, kind)(i).name for i in range(count)), kind
    for site in FACTS["sites"]:
        np.testing.assert_array_equal(model.site(site["name"]).pos, site["pos"])
        assert model.body(model.site(site["name"]).bodyid[0]).name == site["body"]
    assert set(FACTS["bodies_tracked_14"]) <= {model.body(i).name for i in range(model.nbody)}


def test_discarding_visuals_keeps_the_motion_bit_for_bit(scene: mujoco.MjModel) -> None:
    bare = on_floor(discardvisual=True)
    assert bare.ngeom < scene.ngeom / 2
    noise = np.random.default_rng(0).normal(scale=0.3, size=(60, bare.nu))
    ends = []
    for m in (scene, bare):
        data = standing(m)
        for row in noise:
            data.ctrl[:] = m.key("stand").ctrl + row
            mujoco.mj_step(m, data, 4)
        ends.append(np.concatenate([data.qpos, data.qvel, data.sensordata]))
    np.testing.assert_array_equal(ends[0], ends[1])


def test_stand_is_the_published_pose_on_eight_spheres(scene: mujoco.MjModel) -> None:
    want = FACTS["keyframes"]["stand"]
    np.testing.assert_array_equal(scene.key("stand").qpos, want["qpos"])
    np.testing.assert_array_equal(scene.key("stand").ctrl, want["ctrl"])
    data = standing(scene)
    assert contacts(scene, data) == {tuple(sorted(("floor", name))) for name in SOLES}
    lowest = FACTS["check_values"]["stand_keyframe"]["foot_geom_lowest_z"]
    for name in SOLES:
        bottom = data.geom(name).xpos[2] - scene.geom(name).size[0]
        assert bottom == pytest.approx(lowest[f"{name}_geom"], abs=1e-9)
    assert data.sensor("self_collision").data[0] == 0


def test_links_meet_each_other_and_the_floor_but_soles_only_the_floor(
    scene: mujoco.MjModel,
) -> None:
    data = standing(scene)
    for side, sign in (("left", -1), ("right", 1)):  # legs crossed
        data.qpos[scene.joint(f"{side}_hip_roll_joint").qposadr[0]] = 0.35 * sign
    mujoco.mj_forward(scene, data)
    pairs = {pair for pair in contacts(scene, data) if "floor" not in pair}
    assert pairs and not any("contact" in name for pair in pairs for name in pair)
    assert data.sensor("self_collision").data[0] == len(
        [c for c in data.contact if scene.geom("floor").id not in c.geom]
    )
    data = standing(scene)
    data.qpos[2], data.qpos[3:7] = 0.05, [np.sqrt(0.5), 0, np.sqrt(0.5), 0]  # on its face
    mujoco.mj_forward(scene, data)
    on_the_floor = {name for pair in contacts(scene, data) for name in pair if "floor" in pair}
    assert {"head_collision", "torso_collision", "left_shin_collision"} <= on_the_floor
    assert not {"left_foot_collision", "right_foot_collision"} & on_the_floor


def test_arena_holds_tumbling(scene: mujoco.MjModel) -> None:
    rng = np.random.default_rng(0)
    low, high = scene.jnt_range[1:].T
    peak = 0
    for _ in range(12):
        data = standing(scene)
        quat = rng.normal(size=4)
        data.qpos[2], data.qpos[3:7] = 0.4, quat / np.linalg.norm(quat)
        data.qpos[7:] = rng.uniform(low, high)
        data.ctrl[:] = rng.uniform(low, high)
        mujoco.mj_step(scene, data, 80)
        assert not any(warning.number for warning in data.warning)
        peak = max(peak, data.maxuse_arena)
    assert peak < scene.narena / 3

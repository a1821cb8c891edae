"""The Go2 file says what Unitree published, and what the task needs."""

import json
import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest

REPO = Path(__file__).resolve().parents[2]
XML = REPO / "assets" / "robots" / "go2" / "go2.xml"
CHECKER = REPO / "tests" / "data" / "robots" / "check_robot.py"
FACTS_FILE = REPO / "tests" / "data" / "robots" / "go2_facts.json"
FACTS = json.loads(FACTS_FILE.read_text())
FACTS_GEOMS = {g["name"]: g for g in FACTS["collision_geoms"] if g["body"] != "world"}
LEGS = ("FL", "FR", "RL", "RR")
JOINTS = [f"{leg}_{part}_joint" for leg in LEGS for part in ("hip", "thigh", "calf")]


def run_checker(xml: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECKER), str(xml), str(FACTS_FILE)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def on_floor(*, discardvisual: bool = False) -> mujoco.MjModel:
    spec = mujoco.MjSpec.from_file(str(XML))
    spec.compiler.discardvisual = discardvisual
    spec.worldbody.add_geom(
        name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05], contype=1, conaffinity=1
    )
    return spec.compile()


def at_home(model: mujoco.MjModel) -> mujoco.MjData:
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_forward(model, data)
    return data


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(XML))


@pytest.fixture(scope="module")
def scene() -> mujoco.MjModel:
    return on_floor()


def collision_ids(model: mujoco.MjModel) -> np.ndarray:
    return np.flatnonzero((model.geom_contype != 0) | (model.geom_conaffinity != 0))


# --- figures ---------------------------------------------------------------------------------


def test_checker_agrees_with_the_published_figures() -> None:
    result = run_checker(XML)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "OK"


def test_checker_notices_one_percent_of_one_link(tmp_path: Path) -> None:
    """Proof that the test above can fail."""
    text = XML.read_text()
    assert text.count('mass="6.921"') == 1
    mutant = tmp_path / "go2.xml"
    mutant.write_text(text.replace('mass="6.921"', f'mass="{6.921 * 1.01:.6f}"'))
    result = run_checker(mutant)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "MISMATCH"


def test_bodies_carry_the_published_inertials(model: mujoco.MjModel) -> None:
    assert model.nbody == FACTS["nbody_including_world"]
    for want in FACTS["bodies"]:
        body = model.body(want["name"])
        assert model.body(body.parentid[0]).name == want["parent"]
        assert body.mass[0] == pytest.approx(want["mass"], rel=1e-12)
        np.testing.assert_allclose(body.ipos, want["inertial_pos"], atol=1e-12)
        np.testing.assert_allclose(body.inertia, want["diaginertia"], rtol=1e-9)
        assert abs(np.dot(body.iquat, want["inertial_quat_wxyz"])) == pytest.approx(1, abs=1e-9)


def test_joints_are_in_natural_order_with_their_ranges(model: mujoco.MjModel) -> None:
    assert FACTS["joint_order_natural"] == JOINTS
    assert [model.joint(i).name for i in range(model.njnt)] == ["root", *JOINTS]
    assert model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
    for want in FACTS["joints"][1:]:
        joint = model.joint(want["name"])
        assert (joint.qposadr[0], joint.dofadr[0]) == (want["qposadr"], want["dofadr"])
        assert model.body(joint.bodyid[0]).name == want["body"]
        assert model.jnt_limited[joint.id]
        np.testing.assert_array_equal(joint.range, want["range"])
        np.testing.assert_array_equal(joint.axis, want["axis"])


def test_joint_losses_are_those_of_the_task(model: mujoco.MjModel) -> None:
    assert np.all(model.dof_armature[6:] == 0.01)
    assert np.all(model.dof_frictionloss[6:] == 0.2)
    assert np.all(model.dof_damping == 0), "the damping belongs to the actuator alone"
    for field in (model.dof_armature, model.dof_frictionloss):
        assert np.all(field[:6] == 0), "the floating base has neither"


def test_collision_geoms_are_the_published_ones(model: mujoco.MjModel) -> None:
    names = {model.geom(i).name for i in collision_ids(model)}
    assert names == set(FACTS_GEOMS)
    for name, want in FACTS_GEOMS.items():
        geom = model.geom(name)
        kind = f"mjGEOM_{want['type'].upper()}"
        assert geom.type[0] == getattr(mujoco.mjtGeom, kind), name
        assert model.body(geom.bodyid[0]).name == want["body"]
        np.testing.assert_array_equal(geom.size, want["size"], err_msg=name)
        np.testing.assert_array_equal(geom.pos, want["pos"], err_msg=name)
        np.testing.assert_allclose(geom.quat, want["quat_wxyz"], atol=1e-9, err_msg=name)
        assert geom.margin[0] == want["margin"]
        assert (geom.contype[0], geom.conaffinity[0]) == (want["contype"], want["conaffinity"])


# --- actuators -------------------------------------------------------------------------------


def test_actuators_are_in_the_order_of_the_joints(model: mujoco.MjModel) -> None:
    driven = [model.joint(i).name for i in model.actuator_trnid[:, 0]]
    assert driven == JOINTS
    names = [model.actuator(i).name for i in range(model.nu)]
    assert [f"{name}_joint" for name in names] == JOINTS
    assert set(names) == {a["name"] for a in FACTS["actuators"]}


def test_gains_and_effort(model: mujoco.MjModel) -> None:
    assert np.all(model.actuator_gainprm[:, 0] == 35)
    np.testing.assert_array_equal(model.actuator_biasprm[:, :3], np.tile([0, -35, -0.5], (12, 1)))
    assert np.all(model.actuator_forcelimited)
    assert not np.any(model.actuator_ctrllimited)
    for want in FACTS["actuators"]:
        np.testing.assert_array_equal(model.actuator(want["name"]).forcerange, want["forcerange"])
    effort = model.actuator_forcerange[:, 1].reshape(4, 3)
    np.testing.assert_array_equal(effort, np.tile([23.7, 23.7, 45.43], (4, 1)))


# --- geoms, names, sensors -------------------------------------------------------------------


def test_feet(model: mujoco.MjModel) -> None:
    for leg in LEGS:
        foot = model.geom(leg)
        assert foot.type[0] == mujoco.mjtGeom.mjGEOM_SPHERE
        assert foot.size[0] == FACTS["foot"]["radius"]
        assert (foot.condim[0], foot.priority[0]) == (3, 1)
        np.testing.assert_array_equal(foot.friction, [0.6, 0.005, 0.0001])
        np.testing.assert_array_equal(model.site(f"{leg}_foot").pos, foot.pos)
        assert model.site(f"{leg}_foot").bodyid[0] == foot.bodyid[0]


def test_no_mesh_and_nothing_unnamed(model: mujoco.MjModel) -> None:
    assert model.nmesh == model.nhfield == model.ntex == model.nskin == 0
    for kind, count in (
        ("body", model.nbody),
        ("joint", model.njnt),
        ("actuator", model.nu),
        ("site", model.nsite),
        ("sensor", model.nsensor),
    ):
        assert all(getattr(model, kind)(i).name for i in range(count)), kind
    assert all(model.geom(i).name for i in collision_ids(model))


def test_visual_geoms_are_few_and_only_for_the_eye(model: mujoco.MjModel) -> None:
    collides = np.zeros(model.ngeom, bool)
    collides[collision_ids(model)] = True
    np.testing.assert_array_equal(model.geom_group, np.where(collides, 3, 2))
    assert 0 < np.count_nonzero(~collides) <= 60


def test_visual_geoms_add_no_mass() -> None:
    """Heavy visual geoms would not change the mass: it comes from the inertials alone."""
    spec = mujoco.MjSpec.from_file(str(XML))
    for geom in spec.geoms:
        assert geom.contype or geom.mass == 0
        geom.mass = 100
    heavy = spec.compile()
    assert heavy.body_subtreemass[1] == pytest.approx(FACTS["check_values"]["total_mass"])


def test_discarding_visuals_keeps_the_motion_bit_for_bit(scene: mujoco.MjModel) -> None:
    bare = on_floor(discardvisual=True)
    assert bare.ngeom == len(FACTS_GEOMS) + 1
    noise = np.random.default_rng(0).normal(scale=0.8, size=(100, 12))
    ends = []
    for m in (scene, bare):
        data = at_home(m)
        for row in noise:
            data.ctrl[:] = m.key("home").ctrl + row
            mujoco.mj_step(m, data, 4)
        ends.append(np.concatenate([data.qpos, data.qvel, data.sensordata]))
    np.testing.assert_array_equal(ends[0], ends[1])


def test_sensors_stop_at_the_velocity_stage(model: mujoco.MjModel) -> None:
    names = [model.sensor(i).name for i in range(model.nsensor)]
    feet = [f"{leg}_foot_{what}" for what in ("pos", "vel") for leg in LEGS]
    assert names == ["imu_quat", "imu_gyro", "imu_linvel", *feet]
    assert model.sensor_needstage.max() == mujoco.mjtStage.mjSTAGE_VEL
    np.testing.assert_array_equal(model.site("imu").pos, FACTS["sites"][0]["pos"])


def test_sensors_read_the_right_quantities(model: mujoco.MjModel) -> None:
    data = at_home(model)
    data.qpos[3:7] = [np.sqrt(0.5), 0, 0, np.sqrt(0.5)]  # yaw 90 degrees: x of the body is world y
    data.qvel[:6] = [0, 1, 0, 0.1, 0.2, 0.3]  # linear: world, angular: body
    mujoco.mj_forward(model, data)
    omega, imu = np.array([0.1, 0.2, 0.3]), model.site("imu").pos
    np.testing.assert_allclose(data.sensor("imu_quat").data, data.qpos[3:7])
    np.testing.assert_allclose(data.sensor("imu_gyro").data, omega)
    forward = np.array([1, 0, 0])
    np.testing.assert_allclose(data.sensor("imu_linvel").data, forward + np.cross(omega, imu))
    turn = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]])
    for leg in LEGS:
        at = data.geom(leg).xpos
        np.testing.assert_allclose(data.sensor(f"{leg}_foot_pos").data, at)
        want = turn @ forward + np.cross(turn @ omega, at - data.body("base").xpos)
        np.testing.assert_allclose(data.sensor(f"{leg}_foot_vel").data, want, atol=1e-12)


def test_options_are_those_of_the_task(model: mujoco.MjModel) -> None:
    opt = model.opt
    assert (opt.timestep, opt.impratio) == (0.005, 1)
    assert opt.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    assert opt.solver == mujoco.mjtSolver.mjSOL_NEWTON
    assert opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    assert (opt.iterations, opt.ls_iterations) == (10, 20)
    assert model.narena == 2 * 2**20


# --- contact ---------------------------------------------------------------------------------


def test_every_collision_geom_meets_the_floor_and_none_its_robot(scene: mujoco.MjModel) -> None:
    """Sunk into the floor in a tangled pose, each collision geom has a contact, all with it."""
    data = at_home(scene)
    data.qpos[2] = -0.5
    data.qpos[7:] = np.tile([0, 2.0, -2.7], 4)
    mujoco.mj_forward(scene, data)
    pairs = {tuple(sorted(scene.geom(g).name for g in c.geom)) for c in data.contact}
    assert pairs == {tuple(sorted(("floor", name))) for name in FACTS_GEOMS}


def test_arena_holds_the_worst_pile_of_contacts(scene: mujoco.MjModel) -> None:
    """Everything below the floor at once; then tumbling from random poses."""
    rng = np.random.default_rng(0)
    low, high = scene.jnt_range[1:].T
    data = at_home(scene)
    data.qpos[2] = -0.5
    mujoco.mj_step(scene, data, 3)
    peak = data.maxuse_arena
    for _ in range(20):
        data = at_home(scene)
        quat = rng.normal(size=4)
        data.qpos[2], data.qpos[3:7] = 0.2, quat / np.linalg.norm(quat)
        data.qpos[7:] = rng.uniform(low, high)
        data.ctrl[:] = rng.uniform(low, high)
        mujoco.mj_step(scene, data, 100)
        assert not any(warning.number for warning in data.warning)
        peak = max(peak, data.maxuse_arena)
    assert peak < scene.narena / 4


# --- keyframe --------------------------------------------------------------------------------


def test_home_stands_on_its_front_feet(scene: mujoco.MjModel) -> None:
    home = scene.key("home")
    pose = [0, 0.8, -1.5] * 2 + [0, 1.0, -1.5] * 2
    np.testing.assert_array_equal(home.qpos, [0, 0, 0.3346, 1, 0, 0, 0, *pose])
    np.testing.assert_array_equal(home.ctrl, pose)
    assert np.all(home.qvel == 0)
    data = at_home(scene)
    bottom = [data.geom(leg).xpos[2] - scene.geom(leg).size[0] for leg in LEGS]
    assert min(bottom) == pytest.approx(0, abs=1e-3)
    assert bottom == pytest.approx([0, 0, 0.00963, 0.00963], abs=1e-4)


def test_home_settles_and_keeps_standing(scene: mujoco.MjModel) -> None:
    data = at_home(scene)
    mujoco.mj_step(scene, data, round(2 / scene.opt.timestep))
    assert data.qpos[2] == pytest.approx(0.302, abs=4e-3)
    assert data.body("base").xmat[8] > 0.999
    assert np.abs(data.qvel).max() < 0.05
    assert {scene.geom(c.geom[1]).name for c in data.contact} == set(LEGS)
    sag = np.abs(data.qpos[7:] - scene.key("home").ctrl)
    assert sag.max() == pytest.approx(0.18, abs=0.02)

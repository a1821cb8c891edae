"""Reads: where they lie in the engine, and derived values against another way to compute them."""

import copy
import math
import pickle

import mujoco
import pytest
import torch
from helpers.probe import CPU, WALKER_XML, tiny_index

from unilab_gym import math as ugm
from unilab_gym.errors import ConfigError
from unilab_gym.model_index import FieldSlice, GeomInfo, Stage
from unilab_gym.runtime.reads import (
    Action,
    ActuatorForce,
    AngVelErrorSq,
    BodyPos,
    BodyQuat,
    Command,
    GeomContact,
    GeomHeight,
    GeomPos,
    GeomUp,
    JointAcc,
    JointPos,
    JointPosRel,
    JointVel,
    LinVelErrorSq,
    ProjectedGravity,
    RootAngVelB,
    RootLinVelB,
    RootLinVelW,
    RootPos,
    RootPose,
    RootQuat,
    Sensor,
    Sensors,
    SitePos,
)
from unilab_gym.scene import index_model


def random_quats(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    quats = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return quats / quats.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize(
    ("read", "field", "columns", "shape", "stage"),
    [
        (JointPos(("knee", "hip")), "qpos", (1, 0), (2,), Stage.NONE),
        (JointVel(("toe",)), "qvel", (2,), (1,), Stage.NONE),
        (BodyPos(("shin",)), "xpos", (6, 7, 8), (1, 3), Stage.POS),
        (BodyQuat(("thigh",)), "xquat", (4, 5, 6, 7), (1, 4), Stage.POS),
        (GeomPos(("brick",)), "geom_xpos", (3, 4, 5), (1, 3), Stage.POS),
        (GeomUp(("brick",)), "geom_xmat", (15, 16, 17), (1, 3), Stage.POS),
        (SitePos(("tip",)), "site_xpos", (0, 1, 2), (1, 3), Stage.POS),
        (Sensor("force"), "sensordata", (3, 4, 5), (3,), Stage.ACC),
        (Sensors(("force", "gyro")), "sensordata", (3, 4, 5, 0, 1, 2), (2, 3), Stage.ACC),
        (ActuatorForce(), "actuator_force", (0, 1, 2), (3,), Stage.ACC),
        (JointAcc(("hip",)), "qacc", (0,), (1,), Stage.ACC),
    ],
)
def test_where_engine_reads_lie(read, field, columns, shape, stage):
    assert read.resolve(tiny_index()) == FieldSlice(field, columns, shape, stage)


@pytest.mark.parametrize(
    ("read", "columns"),
    [
        (RootPos(), (0, 1, 2)),
        (RootQuat(), (3, 4, 5, 6)),
        (RootPose(), (0, 1, 2, 3, 4, 5, 6)),
        (RootLinVelW(), (0, 1, 2)),
        (RootAngVelB(), (3, 4, 5)),
    ],
)
def test_root_reads_need_a_floating_base(read, columns):
    assert read.resolve(tiny_index(floating=True)).columns == columns
    with pytest.raises(ConfigError, match=f"{type(read).__name__} needs a floating base"):
        read.resolve(tiny_index())


def test_sensors_of_one_block_share_a_width():
    with pytest.raises(ConfigError, match=r"differ in width: \[1, 3\]"):
        Sensors(("gyro", "angle")).resolve(tiny_index())


def test_no_pattern_at_all_is_refused():
    with pytest.raises(ConfigError, match="no joint pattern was given; available: hip, knee, toe"):
        JointPos(()).resolve(tiny_index())


def test_reads_equal_the_engines_own_numbers():
    """Every field of the walker in a random state, against MuJoCo's named access."""
    model = mujoco.MjModel.from_xml_string(WALKER_XML)
    index = index_model(model)
    data = mujoco.MjData(model)
    data.qpos[:] = index.default_qpos
    data.qpos[3:7] = random_quats(1)[0].numpy()
    data.qvel[:] = [0.1, -0.2, 0.3, 0.4, -0.5, 0.6, 0.7, -0.8]
    data.ctrl[:] = [0.5, -0.5]
    mujoco.mj_forward(model, data)

    def value(read):
        item = read.resolve(index)
        flat = getattr(data, item.field).reshape(-1)
        return [flat[column] for column in item.columns]

    assert value(RootPos()) == list(data.body("base").xpos)
    assert value(RootQuat()) == pytest.approx(list(data.body("base").xquat))
    assert value(JointPos(("right_hip",))) == list(data.joint("right_hip").qpos)
    assert value(JointVel(("left_hip",))) == list(data.joint("left_hip").qvel)
    assert value(BodyPos(("right",))) == list(data.body("right").xpos)
    assert value(GeomPos(("left_foot",))) == list(data.geom("left_foot").xpos)
    assert value(GeomUp(("trunk",))) == list(data.geom("trunk").xmat[6:])
    assert value(SitePos(("right_tip",))) == list(data.site("right_tip").xpos)
    assert value(Sensor("right_vel")) == list(data.sensor("right_vel").data)
    assert value(ActuatorForce()) == list(data.actuator_force)
    assert value(JointAcc(("left_hip",))) == list(data.joint("left_hip").qacc)


def test_body_frame_velocity_and_gravity_equal_rotation_matrices():
    quats = random_quats(64)
    vectors = torch.randn(64, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gravity = ProjectedGravity().build(tiny_index(floating=True), CPU)(quats.float())
    velocity = RootLinVelB().build(tiny_index(floating=True), CPU)(quats, vectors)
    for row in range(64):
        flat = torch.empty(9, dtype=torch.float64)
        mujoco.mju_quat2Mat(flat.numpy(), quats[row].numpy())
        matrix = flat.reshape(3, 3)
        torch.testing.assert_close(velocity[row], matrix.T @ vectors[row])
        down = matrix.T @ torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64)
        torch.testing.assert_close(gravity[row].double(), down, atol=1e-6, rtol=0)


def surface_points(kind, size, count=10000):
    """Points of a geom's surface in its own frame: every extreme one is nearly among them."""
    a, b, c = size
    ball = torch.randn(count, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    ball /= ball.norm(dim=-1, keepdim=True)
    top = torch.tensor([0.0, 0.0, b], dtype=torch.float64)
    if kind == "sphere":
        return ball * a
    if kind == "capsule":
        return torch.cat((ball * a + top, ball * a - top))
    if kind == "cylinder":
        rim = ball * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
        rim *= a / rim.norm(dim=-1, keepdim=True)
        return torch.cat((rim + top, rim - top))
    if kind == "box":
        return torch.sign(ball) * torch.tensor([a, b, c], dtype=torch.float64)
    return ball * torch.tensor([a, b, c], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["sphere", "capsule", "cylinder", "box", "ellipsoid"])
def test_geom_height_equals_the_lowest_of_many_surface_points(kind):
    size = (0.1, 0.25, 0.4)
    geoms = {
        "g": GeomInfo("g", 0, "b", kind, size, (1.0, 0.0, 0.0)),
        "brick": GeomInfo("brick", 1, "b", "box", (0.1, 0.1, 0.1), (1.0, 0.0, 0.0)),
    }
    index = tiny_index(geoms=geoms)
    read = GeomHeight(("g", "brick"))  # the box makes a sphere take the general form too
    assert read.requires(index) == (GeomPos(read.names), GeomUp(read.names))
    points = surface_points(kind, size)
    quats = random_quats(12, seed=3)
    up = torch.empty(12, 2, 3, dtype=torch.float64)
    lowest = torch.empty(12, dtype=torch.float64)
    for row in range(12):
        flat = torch.empty(9, dtype=torch.float64)
        mujoco.mju_quat2Mat(flat.numpy(), quats[row].numpy())
        matrix = flat.reshape(3, 3)
        up[row] = matrix[2]
        lowest[row] = (points @ matrix.T)[:, 2].min() + 1.5
    centre = torch.full((12, 2, 3), 1.5)
    height = read.build(index, CPU)(centre, up.float())[:, 0].double()
    # Sampled points lie inside or on the true extreme, never below it.
    assert (height <= lowest + 1e-6).all()
    torch.testing.assert_close(height, lowest, atol=2e-3, rtol=0)


def test_heights_worked_by_hand():
    index = tiny_index()
    pos = torch.tensor([[[0.0, 0.0, 0.5]]])
    upright, tipped = torch.tensor([[[0.0, 0.0, 1.0]]]), torch.tensor([[[1.0, 0.0, 0.0]]])
    ball = GeomHeight(("ball",))
    assert ball.requires(index) == (GeomPos(("ball",)),)
    assert ball.build(index, CPU)(pos).item() == pytest.approx(0.5 - 0.1)
    brick = GeomHeight(("brick",)).build(index, CPU)
    assert brick(pos, upright).item() == pytest.approx(0.5 - 0.3)
    assert brick(pos, tipped).item() == pytest.approx(0.5 - 0.1)
    edge = torch.tensor([[[math.sqrt(0.5), 0.0, math.sqrt(0.5)]]])
    assert brick(pos, edge).item() == pytest.approx(0.5 - math.sqrt(0.5) * (0.1 + 0.3))


def test_contact_is_a_height_below_the_margin():
    compute = GeomContact(("ball",), 0.005).build(tiny_index(), CPU)
    heights = torch.tensor([[0.004], [0.006], [-0.1]])
    assert compute(heights).tolist() == [[True], [False], [True]]


def test_a_mesh_has_no_height():
    with pytest.raises(ConfigError, match="geom 'shell' is a mesh: only primitives have a height"):
        GeomHeight(("shell",)).build(tiny_index(), CPU)


def test_tracking_errors_by_hand():
    index = tiny_index(floating=True)
    command, velocity = torch.tensor([[1.0, -1.0, 0.5]]), torch.tensor([[0.0, 1.0, 2.5]])
    assert LinVelErrorSq("c").build(index, CPU)(command, velocity).item() == 5.0  # 1 + 4
    assert AngVelErrorSq("c").build(index, CPU)(command, velocity).item() == 4.0
    kept = torch.tensor([[1.0, -1.0, 0.5]])
    assert torch.equal(command, kept)  # derived values do not write what they read


def test_joint_pos_rel_follows_the_order_of_the_patterns():
    read = JointPosRel(("toe", "hip"))
    compute = read.build(tiny_index(), CPU)
    torch.testing.assert_close(compute(torch.tensor([[1.0, 1.0]])), torch.tensor([[0.7, 0.9]]))


def test_gravity_does_not_depend_on_yaw():
    project = ugm.GravityProjector(CPU)
    tilted = torch.tensor([[math.cos(0.2), math.sin(0.2), 0.0, 0.0]]).repeat(5, 1)
    yaw = ugm.yaw_quat(torch.linspace(-3.0, 3.0, 5))
    w, z = yaw[:, 0], yaw[:, 3]
    a, b = tilted[:, 0], tilted[:, 1]
    turned = torch.stack((w * a, w * b, z * b, z * a), 1)  # yaw * tilt
    expected = project(tilted[:1]).clone()
    torch.testing.assert_close(project(turned), expected.expand(5, 3), atol=1e-6, rtol=0)


def test_equal_reads_are_one_object_however_they_are_written():
    assert Action() is Action(0) is Action(order=0) is copy.deepcopy(Action(0))
    read = GeomContact(("a", "b"), margin=0.01)
    assert read is GeomContact(names=("a", "b"), margin=0.01) is pickle.loads(pickle.dumps(read))
    assert Command("a") is not Command("b") and Action(1) is not Action(2)


def test_a_list_in_a_read_is_refused():
    with pytest.raises(ConfigError, match=r"JointPos.*write tuples"):
        JointPos(["a"])

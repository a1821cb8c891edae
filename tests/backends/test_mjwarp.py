"""MuJoCo-Warp backend: graphs, masked resets, reads, model fields, faults.

Kernels compile once per machine (about half a minute); one backend is shared by the module.
"""

import importlib
import itertools
import sys

import mujoco
import pytest
import torch

from unilab_gym.backends import create_backend
from unilab_gym.backends.base import (
    BackendSpec,
    FaultBit,
    FieldSlice,
    ReadPlan,
    RecomputeLevel,
    Stage,
    TensorIntervalPayload,
)
from unilab_gym.config import SceneCfg, SimCfg
from unilab_gym.errors import (
    BackendError,
    BackendUnavailableError,
    ConfigError,
    UnsupportedCapabilityError,
)
from unilab_gym.scene import build_scene

mjw = pytest.importorskip("mujoco_warp")
wp = pytest.importorskip("warp")

from unilab_gym.backends import _mjwarp_model, _mjwarp_reads, mjwarp  # noqa: E402

N = 5
DECIMATION = 3
DT = 0.005
LEG = """
  <body name="{name}_leg" pos="{x} 0 -.05">
    <joint name="{name}_hip" axis="0 1 0" range="-1.5 1.5" armature=".01" frictionloss=".1"/>
    <geom name="{name}_thigh" type="capsule" size=".02" fromto="0 0 0 0 0 -.15" mass=".5"/>
    <body name="{name}_shin" pos="0 0 -.15">
      <joint name="{name}_knee" axis="0 1 0" range="-2 2" armature=".01"/>
      <geom name="{name}_foot" type="sphere" size=".03" pos="0 0 -.15" mass=".2"/>
      <site name="{name}_foot" pos="0 0 -.15" size=".035"/>
    </body>
  </body>"""
MJCF = f"""
<mujoco model="walker">
  <compiler angle="radian"/>
  <default>
    <geom contype="1" conaffinity="2"/>
    <position kp="30" kv="1" forcerange="-20 20"/>
  </default>
  <worldbody>
    <body name="base" pos="0 0 .38">
      <freejoint name="root"/>
      <geom name="trunk" type="box" size=".15 .1 .05" mass="4"/>
      <site name="imu" pos=".05 0 .02"/>
      {LEG.format(name="front", x=0.1)}{LEG.format(name="rear", x=-0.1)}
    </body>
  </worldbody>
  <actuator>
    <position name="front_hip" joint="front_hip"/>
    <position name="front_knee" joint="front_knee"/>
    <position name="rear_hip" joint="rear_hip"/>
    <position name="rear_knee" joint="rear_knee"/>
  </actuator>
  <sensor>
    <accelerometer name="imu_acc" site="imu"/>
    <gyro name="imu_gyro" site="imu"/>
    <framequat name="imu_quat" objtype="site" objname="imu"/>
    <touch name="front_touch" site="front_foot"/>
    <velocimeter name="imu_linvel" site="imu"/>
    <framepos name="rear_pos" objtype="site" objname="rear_foot"/>
    <framelinvel name="rear_vel" objtype="site" objname="rear_foot"/>
    <subtreecom name="com" body="base"/>
    <subtreeangmom name="angmom" body="base"/>
    <jointpos name="knee_pos" joint="front_knee"/>
    <touch name="rear_touch" site="rear_foot"/>
    <actuatorfrc name="knee_force" actuator="front_knee"/>
    <actuatorpos name="knee_length" actuator="front_knee"/>
  </sensor>
  <keyframe>
    <key name="home" qpos="0 0 .365 1 0 0 0 .3 -.6 .3 -.6" ctrl=".3 -.6 .3 -.6"/>
  </keyframe>
</mujoco>"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    path = tmp_path_factory.mktemp("mjcf") / "walker.xml"
    path.write_text(MJCF)
    return build_scene(SceneCfg(robot=str(path)), SimCfg(), DT)


def make_spec(scene, **changes):
    values = {
        "model": scene.model,
        "index": scene.index,
        "num_envs": N,
        "device": torch.device("cpu"),
        "decimation": DECIMATION,
        "model_fields": ("geom_friction", "body_mass"),
    }
    return BackendSpec(**(values | changes))


def block(field, first, width, stage, shape=None):
    columns = tuple(range(first, first + width))
    return FieldSlice(field, columns, (width,) if shape is None else shape, stage)


def make_plan(index):
    """Views and gathered blocks of every stage; resets declare fewer reads."""

    def sensor(name):
        info = index.sensors[name]
        return block("sensordata", info.adr, info.dim, info.stage)

    def geoms(*names):
        columns = tuple(3 * index.geoms[n].index + i for n in names for i in range(3))
        return FieldSlice("geom_xpos", columns, (len(names), 3), Stage.POS)

    touch = tuple(index.sensors[n].adr for n in ("rear_touch", "front_touch"))
    shared = (
        block("qpos", 7, 4, Stage.NONE),
        FieldSlice("qvel", (9, 6, 8), (3,), Stage.NONE),
        block("xquat", 4, 4, Stage.POS),
        geoms("front_foot", "rear_foot"),
        geoms("rear_foot", "trunk", "front_foot"),
        *map(sensor, ("imu_quat", "imu_gyro", "imu_linvel", "rear_pos", "rear_vel", "com")),
        *map(sensor, ("imu_acc", "angmom", "knee_pos", "knee_force")),
        FieldSlice("sensordata", touch, (2,), Stage.ACC),
    )
    nbody = len(index.bodies)
    step_only = (
        block("cvel", 0, 6 * nbody, Stage.VEL, (nbody, 6)),
        block("subtree_com", 0, 3 * nbody, Stage.POS, (nbody, 3)),
        block("actuator_force", 0, index.nu, Stage.ACC),
        FieldSlice("qacc", (8, 2, 3), (3,), Stage.ACC),
    )
    return ReadPlan(step=shared + step_only, reset=shared)


def build(scene, *, uncaptured=False, plan=None, **changes):
    backend = mjwarp.MjWarpBackend(make_spec(scene, **changes), _uncaptured=uncaptured)
    reads = backend.compile_reads(make_plan(scene.index) if plan is None else plan)
    return backend, reads


@pytest.fixture(scope="module")
def shared(scene):
    backend, reads = build(scene)
    yield backend, reads
    backend.close()


@pytest.fixture
def fresh(shared):
    """The shared backend with nominal fields, every row at the default state."""
    backend, reads = shared
    every = torch.ones(N, dtype=torch.bool)
    fields = {
        name: backend.nominal(name).expand(N, *backend.nominal(name).shape)
        for name in backend.spec.model_fields
    }
    backend.set_model_fields(fields, every, RecomputeLevel.ALL)
    backend.reset(default_payload(backend), every)
    return backend, reads


def default_payload(backend):
    """A payload of its own for each caller: only the first one allocated is the graph's input."""
    backend.allocate_reset_payload()
    return backend.allocate_reset_payload()


def mask_of(*rows):
    mask = torch.zeros(N, dtype=torch.bool)
    mask[list(rows)] = True
    return mask


def controls(index, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(steps, N, index.nu, generator=generator)
    return torch.tensor(index.default_ctrl) + 0.6 * noise


def snapshot(backend, reads):
    tensors = {str(key): value.clone() for key, value in reads.items()}
    return tensors | {"state": backend.get_state(), "faults": backend.faults().clone()}


def assert_equal(left, right, rows=slice(None)):
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert torch.equal(value[rows], right[key][rows]), key


def run(backend, ctrl):
    for row in ctrl:
        backend.step(row, None)


# -- reads without an engine -------------------------------------------------------------------


def test_slices_become_the_columns_they_name():
    source = torch.arange(24.0).view(2, 12)  # value = 12 * row + column
    cases = {
        (3, 4, 5): (3,),
        (7,): (),
        (1, 3, 5): (3,),
        (0, 1, 2, 6, 7, 8): (2, 3),
        (0, 1, 4, 5, 8, 9): (3, 2),
        (2, 3, 4, 5, 6, 7, 8, 9): (2, 2, 2),
        (0, 6): (2, 1),
    }
    for columns, shape in cases.items():
        view = _mjwarp_reads.strided_view(source, FieldSlice("f", columns, shape, Stage.POS))
        assert view is not None and view.data_ptr() == source[:, columns[0]].data_ptr()
        assert torch.equal(view, source[:, list(columns)].view(2, *shape))
    for columns in ((0, 1, 3), (3, 2, 1), (2, 2)):
        item = FieldSlice("f", columns, (len(columns),), Stage.POS)
        assert _mjwarp_reads.strided_view(source, item) is None


def test_irregular_slices_of_a_field_share_one_launch():
    source = torch.arange(24.0).view(2, 12)
    items = tuple(FieldSlice("f", c, (3,), Stage.POS) for c in ((0, 1, 3), (9, 5, 4)))
    reads = _mjwarp_reads.compile_slices(ReadPlan(items, items), lambda _: source)
    (carrier,) = reads.step_carriers
    assert reads.reset_carriers == [carrier]
    carrier.fill()
    for item in items:
        assert torch.equal(reads.tensors[item], source[:, list(item.columns)])


def test_refresh_holds_no_more_launches_than_declared(scene):
    plan = make_plan(scene.index)
    by_field = {item.field: item for item in plan.step if item.field != "sensordata"}
    assert _mjwarp_reads.launches([by_field["qpos"], by_field["qvel"]]) == ()
    assert _mjwarp_reads.launches([by_field["qacc"]]) == ()
    assert _mjwarp_reads.launches([by_field["geom_xpos"]]) == ("kinematics",)
    assert _mjwarp_reads.launches([by_field["subtree_com"]]) == ("kinematics", "com_pos")
    every = ("kinematics", "com_pos", "com_vel", "sensor_pos", "sensor_vel")
    assert _mjwarp_reads.launches(plan.step) == every


def test_overflow_words_become_fault_bits():
    table, kinds = mjwarp._fault_table(), mjw.OverflowType
    assert table[0] == 0
    assert table[kinds.NEFC] == FaultBit.CONSTRAINT_OVERFLOW
    for kind in (kinds.BROADPHASE, kinds.NARROWPHASE, kinds.CCD):  # pools that rows share
        assert table[kind] == FaultBit.CONTACT_POOL_OVERFLOW
    assert table[kinds.LS_ITERATIONS] == FaultBit.SOLVER_ITERATIONS
    both = FaultBit.CONSTRAINT_OVERFLOW | FaultBit.SOLVER_ITERATIONS
    assert table[kinds.NJMAX_NNZ | kinds.ITERATIONS] == both
    assert len(table) == kinds.ALL + 1


def test_default_budgets_count_every_contact_with_the_ground(scene):
    model = scene.model
    floor = scene.index.geoms["floor"].index
    pairs = [(floor, i) for i in range(model.ngeom) if i != floor]
    # 4 (box) + 2 x 2 (capsules) + 2 (spheres) contacts of 4 rows; 2 friction losses, 4 limits.
    assert _mjwarp_model.default_budgets(model, pairs, ()) == (16, 48)


# -- the engine ----------------------------------------------------------------------------------


def test_starts_at_the_default_state(scene, fresh):
    backend, reads = fresh
    index = scene.index
    assert torch.equal(backend.views().qpos, torch.tensor(index.default_qpos).expand(N, -1))
    assert not backend.views().qvel.any()
    assert torch.equal(backend.get_state(), default_payload(backend).state)
    base = default_payload(backend)
    assert torch.equal(base.qpos, backend.views().qpos)
    quat = next(item for item in reads if item.field == "xquat")
    assert torch.equal(reads[quat], torch.tensor([1.0, 0, 0, 0]).expand(N, 4))
    assert backend.capabilities.name == "mjwarp" and not backend.capabilities.bitwise_deterministic


def test_graphs_are_bit_equal_to_plain_launches(scene, fresh):
    """Also: a backend just built equals one that was stepped and reset."""
    backend, reads = fresh
    plain, plain_reads = build(scene, uncaptured=True)
    assert_equal(snapshot(backend, reads), snapshot(plain, plain_reads))
    ctrl = controls(scene.index, 5)
    payload = default_payload(backend)
    payload.qvel[:, 2] = -0.5
    for i, row in enumerate(ctrl):
        for one in (backend, plain):
            one.step(row, None)
            if i == 2:
                one.reset(payload, mask_of(1, 3))
        assert_equal(snapshot(backend, reads), snapshot(plain, plain_reads))
    plain.close()


def test_masked_reset_equals_a_fresh_environment(scene, fresh):
    backend, reads = fresh
    ctrl = controls(scene.index, 20)
    start = snapshot(backend, reads)
    run(backend, ctrl[10:])
    expected = snapshot(backend, reads)
    backend.reset(default_payload(backend), torch.ones(N, dtype=torch.bool))
    run(backend, ctrl[:10])
    backend.data.xfrc_applied.fill_(3.0)
    backend.step(ctrl[0], None)
    before = snapshot(backend, reads)
    mask = mask_of(0, 3)
    backend.reset(default_payload(backend), mask)
    after = snapshot(backend, reads)
    assert_equal(before, after, ~mask)
    declared = [str(item) for item in make_plan(scene.index).reset] + ["state"]
    assert_equal({k: after[k] for k in declared}, {k: start[k] for k in declared}, mask)
    run(backend, ctrl[10:])
    assert_equal(snapshot(backend, reads), expected, mask)


def test_reset_heals_a_row_of_nan(fresh, scene):
    backend, reads = fresh
    ctrl = controls(scene.index, 4)
    run(backend, ctrl[:2])
    expected = snapshot(backend, reads)
    backend.reset(default_payload(backend), torch.ones(N, dtype=torch.bool))
    delta = torch.zeros(N, scene.index.nv)
    delta[2] = torch.nan
    backend.step(ctrl[3], TensorIntervalPayload(delta))
    assert backend.views().qvel[2].isnan().any()
    assert backend.views().qvel[mask_of(0, 1, 3, 4)].isfinite().all()
    backend.reset(default_payload(backend), mask_of(2))
    run(backend, ctrl[:2])
    assert_equal(snapshot(backend, reads), expected, mask_of(2))


def test_acceleration_reads_are_zero_in_rows_just_reset(fresh, scene):
    backend, reads = fresh
    run(backend, controls(scene.index, 8))
    mask = mask_of(1, 4)
    items = [item for item in reads if item.stage == Stage.ACC]
    before = {item: reads[item].clone() for item in items}
    assert all(value.any() for value in before.values()), before
    backend.reset(default_payload(backend), mask)
    for item in items:
        assert (reads[item][mask] == 0).all()
        assert torch.equal(reads[item][~mask], before[item][~mask])


def test_empty_and_full_masks(fresh, scene):
    backend, reads = fresh
    start = snapshot(backend, reads)
    run(backend, controls(scene.index, 3))
    before = snapshot(backend, reads)
    backend.reset(default_payload(backend), mask_of())
    assert_equal(before, snapshot(backend, reads))
    backend.reset(default_payload(backend), mask_of(*range(N)))
    assert torch.equal(backend.get_state(), start["state"])


def test_own_payload_and_a_foreign_one_reset_alike(scene):
    backend = mjwarp.MjWarpBackend(make_spec(scene))
    own, foreign = backend.allocate_reset_payload(), backend.allocate_reset_payload()
    assert own.state.data_ptr() != foreign.state.data_ptr()
    states = []
    for payload in (own, foreign):
        payload.qpos[:, 2] = 0.7
        backend.reset(payload, mask_of(2))
        states.append(backend.get_state())
        backend.reset(backend.allocate_reset_payload(), mask_of(2))
    assert torch.equal(*states)
    assert states[0][:, 3].tolist() == torch.tensor([0.365, 0.365, 0.7, 0.365, 0.365]).tolist()
    backend.set_state(foreign.state, mask_of())
    assert torch.equal(own.state, foreign.state)  # never clobbered by other writes
    backend.close()


def test_velocity_delta_is_applied_once(scene, fresh):
    backend, _ = fresh
    payload = default_payload(backend)
    payload.qpos[:, 2] = 5.0  # free fall: nothing else acts on x
    every = torch.ones(N, dtype=torch.bool)
    backend.reset(payload, every)
    ctrl = torch.tensor(scene.index.default_ctrl).expand(N, -1)
    delta = torch.zeros(N, scene.index.nv)
    delta[1, 0] = 0.25
    backend.step(ctrl, TensorIntervalPayload(delta))
    assert torch.allclose(backend.views().qvel[:, 0], delta[:, 0], atol=1e-5)
    backend.step(ctrl, None)
    backend.step(ctrl, TensorIntervalPayload())
    assert torch.allclose(backend.views().qvel[:, 0], delta[:, 0], atol=1e-5)
    fall = -9.81 * DT * DECIMATION * 3
    assert torch.allclose(backend.views().qvel[:, 2], torch.tensor(fall), atol=1e-4)


def test_addresses_never_change(fresh, scene):
    backend, reads = fresh

    def addresses():
        views = backend.views()
        tensors = (*reads.values(), views.qpos, views.qvel, backend.faults())
        return [tensor.data_ptr() for tensor in tensors]

    before = addresses()
    for row in controls(scene.index, 20):
        backend.step(row, None)
        backend.reset(default_payload(backend), mask_of(1))
    assert addresses() == before


def test_reads_equal_a_full_forward_pass(fresh, scene):
    backend, reads = fresh
    run(backend, controls(scene.index, 4))
    before = {item: value.clone() for item, value in reads.items() if item.stage < Stage.ACC}
    with wp.ScopedDevice("cpu"):
        mjw.forward(backend.model, backend.data)
    for item, value in before.items():
        field = wp.to_torch(getattr(backend.data, item.field)).view(N, -1)
        assert torch.equal(value, field[:, list(item.columns)].view(value.shape)), item


def test_parity_with_mujoco_c(scene, fresh):
    """One control step from equal float32 states; also the read layout of every field."""
    backend, reads = fresh
    index, model = scene.index, scene.model
    ctrl = controls(index, 9)
    run(backend, ctrl[:8])
    state = backend.get_state()
    backend.step(ctrl[8], None)
    for row in range(N):
        data = mujoco.MjData(model)
        packed = state[row].double().numpy()
        mujoco.mj_setState(model, data, packed, mujoco.mjtState.mjSTATE_INTEGRATION)
        data.ctrl[:] = ctrl[8, row].numpy()
        for _ in range(DECIMATION):
            mujoco.mj_step(model, data)
        q, v = torch.from_numpy(data.qpos).float(), torch.from_numpy(data.qvel).float()
        assert (backend.views().qpos[row] - q).abs().max() <= 2e-6
        assert (backend.views().qvel[row] - v).abs().max() <= 2e-4
        last = torch.from_numpy(data.sensordata.copy()).float()
        mujoco.mj_forward(model, data)
        for item, value in reads.items():
            source = torch.from_numpy(getattr(data, item.field).reshape(-1).copy()).float()
            if item.stage == Stage.ACC:
                if item.field != "sensordata":
                    continue  # forward replaced the last substep's value
                source = last
            expected = source[list(item.columns)].view(item.shape)
            assert torch.allclose(value[row], expected, rtol=1e-3, atol=1e-3), item


def test_model_fields_written_after_the_capture_take_effect(fresh, scene):
    backend, reads = fresh
    ctrl = controls(scene.index, 6)
    run(backend, ctrl)
    expected = snapshot(backend, reads)
    invweight = wp.to_torch(backend.model.body_invweight0)
    nominal_weight = invweight.clone()
    backend.reset(default_payload(backend), torch.ones(N, dtype=torch.bool))
    mask = mask_of(1)
    mass = backend.get_model_field("body_mass") * 1.5
    friction = backend.get_model_field("geom_friction") * 0.05
    state = backend.get_state()
    backend.set_model_fields({"body_mass": mass}, mask, RecomputeLevel.ALL)
    backend.set_model_fields({"geom_friction": friction}, mask_of(3), RecomputeLevel.NONE)
    assert torch.equal(backend.get_state(), state)
    got = backend.get_model_field("body_mass")
    nominal = backend.nominal("body_mass")
    assert torch.equal(got[1], 1.5 * nominal) and torch.equal(got[0], nominal)
    assert torch.equal(backend.get_model_field("geom_friction")[3], friction[3])
    assert torch.equal(invweight[~mask], nominal_weight[~mask])
    assert (invweight[1, 1] < nominal_weight[1, 1]).all()
    backend.reset(default_payload(backend), mask_of())
    run(backend, ctrl)
    untouched = mask_of(0, 2, 4)
    assert_equal(snapshot(backend, reads), expected, untouched)
    moved = (backend.get_state() - expected["state"]).abs().amax(-1)
    assert (moved[[1, 3]] > 1e-3).all()


def test_recomputed_constants_agree_with_mujoco(scene):
    backend, _ = build(scene, plan=ReadPlan((), ()))
    mass = backend.get_model_field("body_mass") * 1.4
    before = wp.to_torch(backend.model.body_invweight0).clone()
    backend.set_model_fields({"body_mass": mass}, mask_of(2), RecomputeLevel.ALL)
    after = wp.to_torch(backend.model.body_invweight0)
    others = mask_of(0, 1, 3, 4)
    assert torch.equal(after[others], before[others])  # from the very first write on
    model = scene.model.__copy__()
    model.body_mass[:] *= 1.4
    mujoco.mj_setConst(model, mujoco.MjData(model))
    for name in ("body_subtreemass", "body_invweight0", "dof_invweight0", "actuator_acc0"):
        got = wp.to_torch(getattr(backend.model, name))[2].flatten()
        expected = torch.from_numpy(getattr(model, name).copy()).float().flatten()
        assert torch.allclose(got, expected, rtol=5e-6, atol=1e-7), name


def test_constraint_overflow_is_the_rows_own_fault(scene):
    backend, _ = build(scene, njmax=8, plan=ReadPlan((), ()))
    ctrl = torch.tensor(scene.index.default_ctrl).expand(N, -1)
    payload = backend.allocate_reset_payload()
    payload.qpos[:, 2] = 3.0
    payload.qpos[2, 2] = 0.05  # trunk and legs in the ground
    backend.reset(payload, torch.ones(N, dtype=torch.bool))
    backend.step(ctrl, None)
    overflow = (backend.faults() & FaultBit.CONSTRAINT_OVERFLOW) != 0
    assert overflow.tolist() == [False, False, True, False, False]
    payload.qpos[2, 2] = 3.0
    backend.reset(payload, mask_of(2))
    backend.step(ctrl, None)
    assert not backend.faults().any()  # the bits do not stick
    backend.close()


def test_the_contact_pool_is_everybodys_fault(scene, fresh):
    backend, _ = build(scene, nconmax=1, plan=ReadPlan((), ()))
    payload = backend.allocate_reset_payload()
    payload.qpos[:, 2] = 0.05
    backend.reset(payload, torch.ones(N, dtype=torch.bool))
    backend.step(torch.tensor(scene.index.default_ctrl).expand(N, -1), None)
    assert ((backend.faults() & FaultBit.CONTACT_POOL_OVERFLOW) != 0).all()
    assert not (backend.faults() & FaultBit.CONSTRAINT_OVERFLOW).any()
    backend.close()
    healthy, _ = fresh
    healthy.reset(payload, torch.ones(N, dtype=torch.bool))
    healthy.step(torch.tensor(scene.index.default_ctrl).expand(N, -1), None)
    budgets = FaultBit.CONTACT_POOL_OVERFLOW | FaultBit.CONSTRAINT_OVERFLOW
    assert not (healthy.faults() & budgets).any()  # the default budgets hold


def test_state_round_trip(fresh, scene):
    backend, _ = fresh
    ctrl = controls(scene.index, 6)
    run(backend, ctrl[:3])
    state = backend.get_state()
    run(backend, ctrl[3:])
    expected = backend.get_state()
    mask = mask_of(0, 4)
    receipt = backend.set_state(state, mask)
    assert receipt.operation == "reset"
    assert torch.equal(backend.get_state()[mask], state[mask])
    assert torch.equal(backend.get_state()[~mask], expected[~mask])
    run(backend, ctrl[3:])
    assert torch.equal(backend.get_state()[mask], expected[mask])
    qpos, qvel = backend.render_state(4)
    assert qpos == backend.views().qpos[4].tolist() and len(qvel) == scene.index.nv


def test_compiling_reads_keeps_the_state(scene):
    backend = create_backend("mjwarp", make_spec(scene, model_fields=()))
    ctrl = controls(scene.index, 2)
    run(backend, ctrl)  # an empty plan is compiled at the first use
    state = backend.get_state()
    reads = backend.compile_reads(make_plan(scene.index))
    assert torch.equal(backend.get_state(), state)
    com = next(item for item in reads if item.field == "subtree_com")
    assert reads[com][:, 1, 2].gt(0.1).all()  # current before the first step
    backend.close()


def test_receipts_grow_and_name_their_producer(fresh, scene):
    backend, _ = fresh
    ctrl = torch.tensor(scene.index.default_ctrl).expand(N, -1)
    receipts = [backend.step(ctrl, None), backend.reset(default_payload(backend), mask_of(1))]
    receipts.append(backend.step(ctrl, None))
    assert [r.operation for r in receipts] == ["step", "reset", "step"]
    assert all(a.sequence < b.sequence for a, b in itertools.pairwise(receipts))
    assert {r.producer for r in receipts} == {backend.producer}
    receipts[-1].wait()


def test_hot_path_holds_few_torch_operations(fresh, scene):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if not func.is_view:
                self.names.append(func._schema.name.removeprefix("aten::"))
            return func(*args, **(kwargs or {}))

    backend, _ = fresh
    ctrl = torch.tensor(scene.index.default_ctrl).expand(N, -1).contiguous()
    delta = TensorIntervalPayload(torch.zeros(N, scene.index.nv))
    payload = type(default_payload(backend))(backend._payload, backend._payload, backend._payload)
    mask = mask_of(1)
    with Names() as step:
        backend.step(ctrl, delta)
    # Faults, and one gather each for geom_xpos, qvel, qacc and touch, which no view can hold.
    assert sorted(step.names) == ["add_", "copy_"] + ["index_select"] * 5
    with Names() as reset:
        backend.reset(payload, mask)
    # The mask; acceleration reads: sensordata, actuator_force, gathered qacc and touch.
    assert sorted(reset.names) == ["copy_"] + ["index_select"] * 2 + ["masked_fill_"] * 4


def test_refuses_what_it_cannot_refresh(scene, fresh):
    backend, _ = fresh
    info = scene.index.sensors["knee_length"]
    item = block("sensordata", info.adr, info.dim, info.stage)
    with pytest.raises(UnsupportedCapabilityError, match=r"'knee_length' \(ACTUATORPOS\)"):
        backend.compile_reads(ReadPlan((item,), ()))
    with pytest.raises(ConfigError, match=r"'xposs'; did you mean 'xpos'"):
        backend.compile_reads(ReadPlan((block("xposs", 0, 3, Stage.POS),), ()))
    with pytest.raises(BackendError, match="columns"):
        backend.compile_reads(ReadPlan((block("qpos", 10, 3, Stage.NONE),), ()))
    with pytest.raises(ConfigError, match="'body_ipos'"):
        backend.get_model_field("body_ipos")


def test_an_absent_engine_is_told_by_its_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    monkeypatch.delitem(sys.modules, "unilab_gym.backends.mjwarp")
    with pytest.raises(BackendUnavailableError, match="pip install mujoco-warp warp-lang"):
        importlib.import_module("unilab_gym.backends.mjwarp")


def test_says_once_that_the_cpu_is_slow(scene, caplog):
    with caplog.at_level("INFO", logger="unilab_gym"):
        backend = mjwarp.MjWarpBackend(make_spec(scene))
    assert len(caplog.records) == 1 and "slow" in caplog.text
    backend.close()


def test_building_is_silent_and_leaves_warps_log_level(scene, monkeypatch, capfd):
    monkeypatch.setattr(wp.config, "log_level", wp.LOG_INFO)
    backend, _ = build(scene, plan=ReadPlan((), ()))
    backend.close()
    assert wp.config.log_level == wp.LOG_INFO
    assert capfd.readouterr().out == ""


def test_close_twice_then_nothing_works(scene):
    backend = mjwarp.MjWarpBackend(make_spec(scene))
    qpos = backend.views().qpos
    backend.close()
    backend.close()
    assert qpos[0, 2] == torch.tensor(0.365)  # memory that a tensor holds outlives the engine
    ctrl = torch.zeros(N, scene.index.nu)
    for call in (
        lambda: backend.step(ctrl, None),
        lambda: backend.set_state(torch.zeros(N, scene.index.nstate), mask_of()),
        lambda: backend.get_state(),
        lambda: backend.views(),
        lambda: backend.compile_reads(ReadPlan((), ())),
        lambda: backend.render_state(0),
    ):
        with pytest.raises(BackendError, match="closed"):
            call()


# -- what only a GPU can show --------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu(scene):
    backend, reads = build(scene, device=torch.device("cuda", 0))
    yield backend, reads
    backend.close()


def restart(backend):
    every = torch.ones(N, dtype=torch.bool, device=backend.device)
    backend.reset(default_payload(backend), every)


@pytest.mark.cuda
def test_cuda_hot_path_never_waits(scene, gpu):
    backend, _ = gpu
    restart(backend)
    ctrl = controls(scene.index, 10).cuda()
    payload, mask = default_payload(backend), mask_of(1, 2).cuda()
    delta = TensorIntervalPayload(torch.zeros(N, scene.index.nv, device="cuda"))
    backend.step(ctrl[0], delta)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for row in ctrl:
            backend.step(row, delta)
            backend.reset(payload, mask)
            backend.set_model_fields({}, mask, RecomputeLevel.ALL)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert backend.views().qpos.isfinite().all()


@pytest.mark.cuda
def test_cuda_agrees_with_the_cpu_device(scene, fresh, gpu):
    (cpu, cpu_reads), (backend, reads) = fresh, gpu
    restart(backend)
    ctrl = controls(scene.index, 2)
    for row in ctrl:
        cpu.step(row, None)
        backend.step(row.cuda(), None)
    assert (backend.views().qpos.cpu() - cpu.views().qpos).abs().max() <= 1e-5
    assert (backend.views().qvel.cpu() - cpu.views().qvel).abs().max() <= 1e-3
    for item, value in reads.items():
        assert torch.allclose(value.cpu(), cpu_reads[item], rtol=1e-2, atol=5e-2), item
    assert not (backend.faults() & FaultBit.CONTACT_POOL_OVERFLOW).any()


@pytest.mark.cuda
def test_cuda_reset_leaves_other_rows_alone(scene, gpu):
    backend, reads = gpu
    restart(backend)
    start = snapshot(backend, reads)
    run(backend, controls(scene.index, 10).cuda())
    before = snapshot(backend, reads)
    mask = mask_of(0, 3).cuda()
    backend.reset(default_payload(backend), mask)
    after = snapshot(backend, reads)
    assert_equal(before, after, ~mask)
    declared = [str(item) for item in make_plan(scene.index).reset] + ["state"]
    assert_equal({k: after[k] for k in declared}, {k: start[k] for k in declared}, mask)


@pytest.mark.cuda
def test_cuda_orders_work_across_streams(scene, gpu):
    """Steps on alternating side streams, the last state read on a third after `wait`."""
    backend, _ = gpu
    ctrl = controls(scene.index, 8).cuda()
    restart(backend)
    run(backend, ctrl)
    torch.cuda.synchronize()
    expected = backend.views().qpos.clone()
    restart(backend)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    receipt = None
    for i, row in enumerate(ctrl):
        with torch.cuda.stream(streams[i % 2]):
            receipt = backend.step(row, None)
    assert receipt.event is not None
    with torch.cuda.stream(torch.cuda.Stream()):
        receipt.wait()
        got = backend.views().qpos.clone()
    torch.cuda.synchronize()
    assert (got - expected).abs().max() <= 1e-4
    assert len(backend._runner._streams) >= 2


@pytest.mark.cuda
def test_cuda_refuses_launches_without_a_graph(scene):
    with pytest.raises(BackendError, match="CPU device only"):
        mjwarp.MjWarpBackend(make_spec(scene, device=torch.device("cuda", 0)), _uncaptured=True)

"""MuJoCo C backend: what only this engine has to show; tests/testing runs the conformance suite."""

import gc
import logging
import os
import pathlib

import mujoco
import numpy as np
import pytest
import torch
from helpers.walker import (
    DECIMATION,
    DT,
    MJCF,
    N,
    assert_equal,
    block,
    controls,
    default_payload,
    make_plan,
    make_spec,
    mask_of,
    run,
    snapshot,
)
from mujoco.batch import Batch

from unilab_gym.backends import create_backend
from unilab_gym.backends.base import (
    FaultBit,
    FieldSlice,
    ReadPlan,
    RecomputeLevel,
    Stage,
    TensorIntervalPayload,
)
from unilab_gym.backends.mujoco import _SHORT, MujocoBackend, _Reader
from unilab_gym.config import SceneCfg, SimCfg
from unilab_gym.errors import BudgetOverflowWarning, ConfigError
from unilab_gym.scene import build_scene

INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
NONE, VEL = mujoco.mjtStage.mjSTAGE_NONE, mujoco.mjtStage.mjSTAGE_VEL


def build(scene, **changes):
    backend = MujocoBackend(make_spec(scene, **changes))
    return backend, backend.compile_reads(make_plan(scene.index))


# -- one row against plain MuJoCo, the batch against a persistent one ------------------------------


def test_a_reset_row_equals_plain_mujoco_bitwise(scene, c_engine):
    """20 steps after a masked reset of a batch that has run: float64, bit for bit."""
    backend, _ = c_engine
    ctrl = controls(scene.index, 30)
    run(backend, ctrl[:10])
    payload = default_payload(backend)
    payload.qpos[:, 2] += 0.05
    payload.qvel[:, 0] = 0.3
    backend.reset(payload, mask_of(1, 3))
    got = []
    for step in ctrl[10:]:
        backend.step(step, None)
        got.append(backend.get_state().numpy())
    for row in (1, 3):
        data = mujoco.MjData(scene.model)
        start = payload.state[row].double().numpy()
        mujoco.mj_setState(scene.model, data, start, INTEGRATION)
        packed = np.zeros(scene.index.nstate)
        for step, states in zip(ctrl[10:], got, strict=True):
            data.ctrl[:] = step[row].numpy()
            for _ in range(DECIMATION):
                mujoco.mj_step(scene.model, data)
            mujoco.mj_getState(scene.model, data, packed, INTEGRATION)
            assert (states[row] == packed).all()


def test_shared_batch_equals_a_persistent_one_bitwise(scene):
    """With random partial resets: reads of rows just reset too, whose ACC columns are 0."""
    n, steps = 24, 40
    backend, reads = build(scene, num_envs=n, num_threads=2, model_fields=())
    reference = Batch(scene.model, n, nthread=2, persistent=True)
    payload = backend.allocate_reset_payload()
    backend.reset(payload, torch.ones(n, dtype=torch.bool))
    reference.state[:] = payload.state.double().numpy()
    bound = {item: reference.bind(item.field) for item in reads}
    plan = make_plan(scene.index)
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(rng.normal(size=(steps, n, scene.index.nu))).float()
    resets = 0
    for step in range(steps):
        ctrl = torch.tensor(scene.index.default_ctrl) + 0.6 * noise[step]
        delta = torch.zeros(n, scene.index.nv)
        delta[:, 1] = noise[step, :, 0] * 0.1
        backend.step(ctrl, TensorIntervalPayload(delta))
        reference.bind("ctrl")[:] = ctrl.numpy()
        reference.bind("qvel")[:] += delta.numpy()
        reference.step(nstep=DECIMATION, stage=VEL)
        assert_same(reads, bound, plan.step)
        mask = torch.from_numpy(rng.random(n) < 0.2)
        payload.qpos[:, 2] = 0.365 + 0.1 * noise[step, :, 1].abs()
        backend.reset(payload, mask)
        ids = np.flatnonzero(mask.numpy())
        reference.reset(ids, stage=NONE)
        reference.state[ids] = payload.state.double().numpy()[ids]
        reference.forward(ids, stage=VEL)
        assert (backend.get_state().numpy() == reference.state).all()
        assert_same(reads, bound, plan.reset)
        for item in plan.reset:
            if item.stage == Stage.ACC:
                assert not reads[item][mask].any()
        resets += len(ids)
    assert resets > 100
    touch = next(item for item in plan.reset if item.stage == Stage.ACC and item.shape == (2,))
    assert reads[touch].any()  # contact forces were there to be mixed up
    backend.close()


def assert_same(reads, bound, items):
    for item in items:
        columns = bound[item].reshape(len(bound[item]), -1)[:, list(item.columns)]
        expected = torch.from_numpy(columns).float().view(-1, *item.shape)
        assert torch.equal(reads[item], expected), item


def test_threads_do_not_change_a_bit(scene):
    ctrl = controls(scene.index, 40)
    snapshots = []
    for threads in (1, 2):
        backend, reads = build(scene, num_threads=threads)
        for step, row in enumerate(ctrl):
            backend.step(row, None)
            backend.reset(default_payload(backend), mask_of(step % N))
        snapshots.append(snapshot(backend, reads))
        backend.close()
    assert_equal(*snapshots)


def test_thread_count_must_be_positive(scene):
    with pytest.raises(ConfigError, match="num_threads must be positive, got 0"):
        MujocoBackend(make_spec(scene, num_threads=0))


# -- reads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "shape"),
    [
        ((3, 4, 5), (3,)),
        ((7,), ()),
        ((1, 3, 5), (3,)),
        ((0, 1, 2, 6, 7, 8), (2, 3)),
        ((0, 1, 4, 5, 8, 9), (3, 2)),
        ((9, 6, 8), (3,)),
        ((0, 1, 3), (3,)),
        ((5, 4, 3), (3,)),
        ((2, 2), (2,)),
        ((6, 7, 0, 1), (2, 2)),
    ],
)
@pytest.mark.parametrize("matrix", [True, False])
def test_readers_copy_the_columns_they_name(columns, shape, matrix):
    source = np.arange(36.0).reshape(3, 12)  # value = 12 * row + column
    item = FieldSlice("f", columns, shape, Stage.POS)
    reader = _Reader(item, source if matrix else source.reshape(3, 4, 3), 3)
    expected = torch.from_numpy(source[:, list(columns)]).float().view(3, *shape)
    reader.copy_all()
    assert torch.equal(reader.tensor, expected)
    source += 100.0
    reader.copy_rows(np.array([1]))
    assert torch.equal(reader.tensor[1], expected[1] + 100.0)
    assert torch.equal(reader.tensor[[0, 2]], expected[[0, 2]])
    reader.clear_rows(np.array([0, 1]))
    assert not reader.tensor[:2].any() and torch.equal(reader.tensor[2], expected[2])


def test_long_reads_of_the_state_are_views_of_one_block(scene):
    """Short ones are columns of their own, filled with it."""
    backend = MujocoBackend(make_spec(scene))
    index = scene.index
    whole = FieldSlice("qpos", tuple(range(index.nq)), (index.nq,), Stage.NONE)
    joints = FieldSlice("qpos", tuple(range(7, index.nq)), (index.nq - 7,), Stage.NONE)
    turning = FieldSlice("qvel", (3, 4, 5), (3,), Stage.NONE)
    plan = (whole, joints, turning)
    reads = backend.compile_reads(ReadPlan(plan, plan))
    views = backend.views()
    assert torch.equal(views.packed, torch.cat((views.qpos, views.qvel), 1))
    assert reads[whole].data_ptr() == views.qpos.data_ptr()
    assert reads[joints].stride() == reads[turning].stride() == (1, N)
    for row in (None, *controls(index, 3)):
        if row is not None:
            backend.step(row, None)
        assert torch.equal(reads[joints], views.qpos[:, 7:])
        assert torch.equal(reads[turning], views.qvel[:, 3:6])
    before = reads[turning].clone()
    backend.reset(default_payload(backend), mask_of(1))
    assert torch.equal(reads[turning], views.qvel[:, 3:6])
    assert not reads[turning][1].any() and torch.equal(reads[turning][0], before[0])
    backend.close()


# -- model fields ----------------------------------------------------------------------------------


def test_a_nominal_value_keeps_its_float64_bits(scene, c_engine):
    """mass x [1, 1] is bitwise "off": float32(nominal) is not written back."""
    backend, reads = c_engine
    ctrl = controls(scene.index, 20)
    plain, plain_reads = build(scene, model_fields=())
    plain.reset(plain.allocate_reset_payload(), torch.ones(N, dtype=torch.bool))
    mass = backend.get_model_field("body_mass")
    assert (scene.model.body_mass != mass[0].double().numpy()).any()  # it could be rounded
    fields = {"body_mass": mass, "geom_friction": backend.get_model_field("geom_friction")}
    backend.set_model_fields(fields, mask_of(0, 2, 4), RecomputeLevel.ALL)
    for name in fields:
        nominal = getattr(scene.model, name)
        assert (backend.batch.expand(name) == nominal).all(), name
    run(backend, ctrl)
    run(plain, ctrl)
    assert_equal(snapshot(backend, reads), snapshot(plain, plain_reads))
    plain.close()


def test_derived_constants_follow_in_masked_rows_only(scene):
    backend, _ = build(scene)
    mass = backend.get_model_field("body_mass") * 1.4
    backend.set_model_fields({"body_mass": mass}, mask_of(0), RecomputeLevel.NONE)
    backend.set_model_fields({"body_mass": mass}, mask_of(2), RecomputeLevel.ALL)
    model = scene.model.__copy__()
    model.body_mass[:] = mass[2].double().numpy()
    mujoco.mj_setConst(model, mujoco.MjData(model))
    for name in ("body_subtreemass", "body_invweight0", "dof_invweight0", "actuator_acc0"):
        values = backend.batch.expand(name)
        assert (values[2] == getattr(model, name)).all(), name
        assert (values[[0, 1, 3, 4]] == getattr(scene.model, name)).all(), name
        assert (values[2] != values[0]).any(), name
    backend.close()


def test_without_recomputing_the_constants_stay(scene):
    backend, _ = build(scene)
    before = scene.model.body_invweight0
    friction = backend.get_model_field("geom_friction") * 0.5
    backend.set_model_fields({"geom_friction": friction}, mask_of(2), RecomputeLevel.NONE)
    assert (backend.batch.expand("body_invweight0") == before).all()
    assert torch.equal(backend.get_model_field("geom_friction")[2], friction[2])
    backend.close()


# -- faults ----------------------------------------------------------------------------------------


def _bits(faults):
    return [FaultBit(word) for word in faults.tolist()]


@pytest.mark.parametrize(
    ("where", "value", "bit"),
    [
        ("qvel", float("nan"), FaultBit.ENGINE_BAD_STATE),
        ("qvel", 1e12, FaultBit.ENGINE_BAD_STATE),
        ("ctrl", float("nan"), FaultBit.ENGINE_BAD_CTRL),
        ("ctrl", float("inf"), FaultBit.ENGINE_BAD_CTRL),
    ],
)
def test_warnings_become_bits_and_nothing_is_printed(scene, c_engine, capfd, where, value, bit):
    backend, reads = c_engine
    ctrl = controls(scene.index, 3)
    run(backend, ctrl)
    expected = snapshot(backend, reads)
    backend.reset(default_payload(backend), torch.ones(N, dtype=torch.bool))
    run(backend, ctrl[:1])
    bad, delta = ctrl[1].clone(), torch.zeros(N, scene.index.nv)
    (bad if where == "ctrl" else delta)[3, 2] = value
    backend.step(bad, TensorIntervalPayload(delta))
    assert _bits(backend.faults()) == [0, 0, 0, bit, 0]
    backend.step(ctrl[2], None)
    assert not backend.faults().any()  # the bits do not stick
    assert_equal(snapshot(backend, reads), expected, ~mask_of(3))
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert not pathlib.Path("MUJOCO_LOG.TXT").exists()


def test_the_users_warning_handler_is_kept(scene, c_engine):
    backend, _ = c_engine
    seen = []
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(seen.append)
    try:
        backend.step(torch.full((N, scene.index.nu), torch.nan), None)
        assert backend.faults().all() and not seen
        data = mujoco.MjData(scene.model)
        data.ctrl[0] = np.nan
        mujoco.mj_step(scene.model, data)
        assert len(seen) == 1  # outside the backend it is the user's again
    finally:
        mujoco.set_mju_user_warning(before)


@pytest.fixture(scope="module")
def small_arenas(tmp_path_factory):
    """Backends whose row 2 lies deep in the ground, by arena size; the others fly."""
    built = {}

    def get(memory):
        if memory not in built:
            path = tmp_path_factory.mktemp("arena") / "walker.xml"
            size = f'<compiler angle="radian"/><size memory="{memory}"/>'
            path.write_text(MJCF.replace('<compiler angle="radian"/>', size))
            scene = build_scene(SceneCfg(robot=str(path)), SimCfg(), DT)
            built[memory] = create_backend("mujoco", make_spec(scene, model_fields=()))
            built[memory].compile_reads(make_plan(scene.index))
        return built[memory]

    yield get
    for backend in built.values():
        backend.close()


def _step_deep(backend):
    payload = backend.allocate_reset_payload()
    payload.qpos[:, 2] = 3.0
    payload.qpos[2, 2] = 0.05
    backend.reset(payload, torch.ones(N, dtype=torch.bool))
    start = backend.get_state()
    backend.step(torch.tensor(backend.spec.index.default_ctrl).expand(N, -1), None)
    return start


@pytest.mark.filterwarnings("ignore:MuJoCo's arena")
def test_exhausted_arenas_are_the_rows_own_fault(small_arenas, capfd):
    """An engine error keeps the row's state; a reset in a full arena does not raise either."""
    found = set()
    for memory in range(8000, 18001, 1000):
        backend = small_arenas(memory)
        start = _step_deep(backend)
        bits = _bits(backend.faults())
        found.add(bits[2])
        assert bits[:2] + bits[3:] == [0] * 4, memory
        kept = (backend.get_state() == start).all(-1)
        assert kept.tolist() == mask_of(2).tolist() or bits[2] != FaultBit.ENGINE_ERROR
        assert backend.views().qpos[[0, 1, 3, 4], 2].lt(3.0).all()  # the others went on
        assert backend.views().qpos.isfinite().all()
    assert {FaultBit.CONSTRAINT_OVERFLOW, FaultBit.ENGINE_ERROR} <= found
    assert capfd.readouterr() == ("", "")


def test_a_row_recovers_from_an_engine_error(small_arenas):
    """It warns once, naming what to enlarge."""
    backend = small_arenas(16000)
    backend._arena_told = False
    message = r"arena of 16000 bytes was exhausted .* \(row 2 first\).*<size memory="
    with pytest.warns(BudgetOverflowWarning, match=message):
        _step_deep(backend)
    _step_deep(backend)  # again: no second warning
    assert _bits(backend.faults())[2] == FaultBit.ENGINE_ERROR
    payload = backend.allocate_reset_payload()
    payload.qpos[:, 2] = 3.0
    backend.reset(payload, mask_of(2))
    ctrl = torch.tensor(backend.spec.index.default_ctrl).expand(N, -1)
    backend.step(ctrl, None)
    assert not backend.faults().any()
    assert backend.views().qpos[2, 2] < 3.0


# -- resources -------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_worker_threads_end_with_close(scene):
    def threads():
        return len(os.listdir("/proc/self/task"))

    gc.collect()
    before = threads()
    backend, reads = build(scene, num_threads=3)
    backend.step(torch.zeros(N, scene.index.nu), None)
    assert threads() > before
    kept = (backend.views(), reads, backend.get_state())
    backend.close()
    assert threads() == before, kept


def test_foreign_tensors_are_not_kept_for_ever(scene, c_engine):
    backend, _ = c_engine
    for row in controls(scene.index, 100):
        backend.step(row.clone(), None)
        backend.reset(default_payload(backend), mask_of(1))
    assert len(backend._bound) <= 32


def test_building_is_silent(scene, capfd, caplog):
    with caplog.at_level(logging.INFO):
        backend, _ = build(scene)
        backend.close()
    assert capfd.readouterr() == ("", "") and not caplog.records


def test_an_empty_plan_costs_no_stage(scene):
    backend = MujocoBackend(make_spec(scene))
    assert backend.compile_reads(ReadPlan((), ())) == {}
    assert backend._step_stage == backend._reset_stage == NONE
    state_only = make_plan(scene.index).step[:2]
    backend.compile_reads(ReadPlan(state_only, state_only))
    assert backend._step_stage == backend._reset_stage == NONE
    backend.compile_reads(make_plan(scene.index))
    assert backend._step_stage == backend._reset_stage == VEL
    backend.close()


def test_refreshed_reads_equal_a_full_forward_pass_bitwise(scene, c_engine):
    """Below acceleration: after a step, after a masked reset, after writing packed rows."""
    backend, reads = c_engine
    ctrl = controls(scene.index, 12)

    def compare(rows, when):
        state = backend.get_state().numpy()
        for row in rows:
            data = mujoco.MjData(scene.model)
            mujoco.mj_setState(scene.model, data, state[row], INTEGRATION)
            mujoco.mj_forward(scene.model, data)
            for item, value in reads.items():
                if item.stage < Stage.ACC:
                    flat = torch.from_numpy(getattr(data, item.field).reshape(-1)).float()
                    assert torch.equal(value[row].flatten(), flat[list(item.columns)]), (when, item)

    run(backend, ctrl)
    compare(range(N), "step")
    declared = set(make_plan(scene.index).reset)
    reads = {item: value for item, value in reads.items() if item in declared}
    payload = default_payload(backend)
    payload.qvel[:, 3:6] = 0.7
    backend.reset(payload, mask_of(1, 3))
    compare(range(N), "reset")
    state = backend.get_state()
    state[:, scene.index.qpos_offset + 2] += 0.2
    backend.set_state(state, mask_of(0, 4))
    compare((0, 1, 3, 4), "set_state")


def _kinematic_plan(index):
    def geoms(*names):
        columns = tuple(3 * index.geoms[n].index + i for n in names for i in range(3))
        return FieldSlice("geom_xpos", columns, (len(names), 3), Stage.POS)

    shared = (
        FieldSlice("qvel", (9, 6, 8), (3,), Stage.NONE),
        block("xquat", 4, 4, Stage.POS),
        block("xmat", 9, 9, Stage.POS, (3, 3)),
        geoms("front_foot", "rear_foot"),
        geoms("rear_foot", "trunk", "front_foot"),
        block("sensordata", index.sensors["imu_acc"].adr, 3, Stage.ACC),
    )
    return ReadPlan(step=shared, reset=shared)


def test_a_few_rows_are_refreshed_as_the_batch_would_bitwise(scene, monkeypatch):
    """Without waking the batch's threads; poses, states and all later steps are the same."""
    seen = []
    for limit in (24, 0):
        monkeypatch.setattr("unilab_gym.backends.mujoco._FEW", limit)
        backend = MujocoBackend(make_spec(scene))
        reads = backend.compile_reads(_kinematic_plan(scene.index))
        ctrl = controls(scene.index, 30)
        run(backend, ctrl[:10])
        payload = default_payload(backend)
        payload.qpos[:, 3:7] = torch.tensor([0.9, 0.1, -0.3, 0.2])  # not of length 1
        payload.qpos[:, 7:] += torch.linspace(-0.4, 0.4, N).unsqueeze(1)
        backend.reset(payload, mask_of(1, 3))
        states = [snapshot(backend, reads)]
        run(backend, ctrl[10:])
        seen.append([*states, snapshot(backend, reads)])
        backend.close()
    for few, many in zip(*seen, strict=True):
        assert_equal(few, many)
    assert not seen[0][0][str(_kinematic_plan(scene.index).reset[-1])][[1, 3]].any()


def test_what_kinematics_cannot_refresh_goes_through_the_batch(scene):
    backend, _ = build(scene)
    assert backend._row_copies is None  # sensors, velocities
    backend.compile_reads(_kinematic_plan(scene.index))
    assert backend._row_copies is not None
    com = block("subtree_com", 0, 3, Stage.POS)
    backend.compile_reads(ReadPlan(step=(com,), reset=(com,)))
    assert backend._row_copies is None
    backend.close()


def test_a_backend_that_nobody_reads_can_be_reset(scene):
    backend = MujocoBackend(make_spec(scene))
    payload = default_payload(backend)
    payload.qvel[:, 0] = 2.0
    backend.reset(payload, mask_of(0, 3))
    assert backend.views().qvel[:, 0].nonzero().flatten().tolist() == [0, 3]
    backend.close()


def test_state_reads_run_no_forward_pass_after_a_reset(scene, monkeypatch):
    """A plan of qpos and qvel costs a copy; any other its cheapest stage, of masked rows only."""
    calls = []

    class Spy:
        def __init__(self, batch):
            self._batch = batch

        def __getattr__(self, name):
            return getattr(self._batch, name)

        def forward(self, ids, stage):
            calls.append((list(ids), stage))
            return self._batch.forward(ids, stage=stage)

    backend = MujocoBackend(make_spec(scene, model_fields=()))
    monkeypatch.setattr(backend, "_batch", Spy(backend._batch))
    plan = make_plan(scene.index)
    state_only = tuple(item for item in plan.reset if item.field in ("qpos", "qvel"))
    position = tuple(item for item in plan.reset if item.field == "xquat")
    for items, rows, expected in (
        (state_only, 0, []),
        (position, 24, []),  # two rows: in this thread
        (position, 1, [([0, 3], mujoco.mjtStage.mjSTAGE_POS)]),
        (plan.reset, 24, [([0, 3], VEL)]),
    ):
        monkeypatch.setattr("unilab_gym.backends.mujoco._FEW", rows)
        calls.clear()
        backend.compile_reads(ReadPlan(items, items))
        backend.reset(default_payload(backend), mask_of(0, 3))
        assert calls == expected
    backend.reset(default_payload(backend), mask_of())
    assert calls == expected  # an empty mask costs nothing
    backend.close()


@pytest.mark.parametrize("width", range(1, _SHORT + 1))
@pytest.mark.parametrize("reduce", [torch.sum, torch.mean], ids=lambda f: f.__name__)
def test_sums_over_short_columns_are_the_same_bits_in_any_number_of_rows(width, reduce):
    """Why only short dimensions lie as columns: longer ones are added in another order there."""
    generator = torch.Generator().manual_seed(width)
    columns = torch.randn(width, 131, generator=generator) * torch.logspace(-3, 3, 131)
    expected = reduce(columns.t().contiguous(), -1)
    for n in (1, 2, 3, 5, 8, 31, 33, 64, 131):
        assert torch.equal(reduce(columns[:, :n].contiguous().t(), -1), expected[:n]), n

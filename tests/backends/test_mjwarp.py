"""MuJoCo-Warp backend: what only this engine has to show; tests/testing runs the suite."""

import importlib
import re
import sys

import mujoco
import pytest
import torch
from helpers.walker import (
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

from unilab_gym.backends import create_backend
from unilab_gym.backends.base import (
    FaultBit,
    FieldSlice,
    ReadPlan,
    RecomputeLevel,
    Stage,
    TensorIntervalPayload,
)
from unilab_gym.errors import (
    BackendUnavailableError,
    BudgetOverflowWarning,
    UnsupportedCapabilityError,
)

mjw = pytest.importorskip("mujoco_warp")
wp = pytest.importorskip("warp")

from unilab_gym.backends import _mjwarp_model, _mjwarp_reads, mjwarp  # noqa: E402


def build(scene, *, uncaptured=False, plan=None, **changes):
    backend = mjwarp.MjWarpBackend(make_spec(scene, **changes), _uncaptured=uncaptured)
    reads = backend.compile_reads(make_plan(scene.index) if plan is None else plan)
    return backend, reads


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


def test_graphs_are_bit_equal_to_plain_launches(scene, warp_engine):
    """Also: a backend just built equals one that was stepped and reset."""
    backend, reads = warp_engine
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


def test_reads_equal_a_full_forward_pass(scene, warp_engine):
    backend, reads = warp_engine
    run(backend, controls(scene.index, 4))
    before = {item: value.clone() for item, value in reads.items() if item.stage < Stage.ACC}
    with wp.ScopedDevice("cpu"):
        mjw.forward(backend.model, backend.data)
    for item, value in before.items():
        field = wp.to_torch(getattr(backend.data, item.field)).view(N, -1)
        assert torch.equal(value, field[:, list(item.columns)].view(value.shape)), item


def test_masked_reset_clears_applied_forces(scene, warp_engine):
    backend, reads = warp_engine
    ctrl = controls(scene.index, 12)
    run(backend, ctrl)
    expected = snapshot(backend, reads)
    backend.reset(default_payload(backend), torch.ones(N, dtype=torch.bool))
    backend.data.xfrc_applied.fill_(3.0)
    backend.step(ctrl[0], None)
    mask = mask_of(0, 3)
    backend.reset(default_payload(backend), mask)
    run(backend, ctrl)
    assert_equal(snapshot(backend, reads), expected, mask)
    assert not torch.equal(backend.get_state()[1], expected["state"][1])
    backend.data.xfrc_applied.fill_(0.0)


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
    with pytest.warns(BudgetOverflowWarning) as told:
        backend.step(ctrl, None)
    needed, enough = map(
        int, re.findall(r"needed (\d+) .* sim.njmax=(\d+) is enough", str(told[0].message))[0]
    )
    assert len(told) == 1 and 8 < needed <= enough
    overflow = (backend.faults() & FaultBit.CONSTRAINT_OVERFLOW) != 0
    assert overflow.tolist() == [False, False, True, False, False]
    payload.qpos[2, 2] = 3.0
    backend.reset(payload, mask_of(2))
    backend.step(ctrl, None)
    assert not backend.faults().any()  # the bits do not stick
    backend.close()


def test_the_contact_pool_is_everybodys_fault(scene, warp_engine):
    backend, _ = build(scene, nconmax=1, plan=ReadPlan((), ()))
    payload = backend.allocate_reset_payload()
    payload.qpos[:, 2] = 0.05
    backend.reset(payload, torch.ones(N, dtype=torch.bool))
    ctrl = torch.tensor(scene.index.default_ctrl).expand(N, -1)
    with pytest.warns(BudgetOverflowWarning, match="sim.nconmax=1 is too small: ") as told:
        backend.step(ctrl, None)
    backend.step(ctrl, None)  # the second time it is only counted
    assert len(told) == 1
    assert ((backend.faults() & FaultBit.CONTACT_POOL_OVERFLOW) != 0).all()
    assert not (backend.faults() & FaultBit.CONSTRAINT_OVERFLOW).any()
    backend.close()
    healthy, _ = warp_engine
    healthy.reset(payload, torch.ones(N, dtype=torch.bool))
    healthy.step(torch.tensor(scene.index.default_ctrl).expand(N, -1), None)
    budgets = FaultBit.CONTACT_POOL_OVERFLOW | FaultBit.CONSTRAINT_OVERFLOW
    assert not (healthy.faults() & budgets).any()  # the default budgets hold


def test_the_deterministic_switch_changes_nothing_on_the_cpu(scene, warp_engine):
    """E55: contacts are not lost: the touch sensors feel the same forces."""
    backend, reads = warp_engine
    switched, switched_reads = build(scene, deterministic=True)
    assert switched.model.opt.deterministic
    ctrl = controls(scene.index, 12)
    for one in (backend, switched):
        run(one, ctrl)
    assert_equal(snapshot(backend, reads), snapshot(switched, switched_reads))
    touch = next(item for item in reads if item.stage == Stage.ACC and item.shape == (2,))
    assert reads[touch].any(1).sum() >= 3
    switched.close()


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


def test_hot_path_holds_few_torch_operations(scene, warp_engine):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if not func.is_view:
                self.names.append(func._schema.name.removeprefix("aten::"))
            return func(*args, **(kwargs or {}))

    backend, _ = warp_engine
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


def test_refuses_what_it_cannot_refresh(scene, warp_engine):
    backend, _ = warp_engine
    info = scene.index.sensors["knee_length"]
    item = block("sensordata", info.adr, info.dim, info.stage)
    with pytest.raises(UnsupportedCapabilityError, match=r"'knee_length' \(ACTUATORPOS\)"):
        backend.compile_reads(ReadPlan((item,), ()))


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

"""What every backend must do alike, on the same small robot: the contract of `backends.base`.

Both engines are held to bitwise equality with themselves; against each other to rounding.
"""

import itertools

import mujoco
import pytest
import torch
from helpers.walker import (
    DECIMATION,
    DT,
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
    INTERVAL_PARTS,
    MODEL_FIELDS,
    FaultBit,
    FieldSlice,
    ReadPlan,
    RecomputeLevel,
    Stage,
    StepReceipt,
    TensorIntervalPayload,
)
from unilab_gym.errors import (
    BackendError,
    ConfigError,
    ReceiptError,
    UnilabGymError,
    UnsupportedCapabilityError,
)
from unilab_gym.runtime.receipts import ReceiptLedger

EVERY = torch.ones(N, dtype=torch.bool)


def test_starts_at_the_default_state(scene, engine):
    backend, reads = engine
    index = scene.index
    views = backend.views()
    assert torch.equal(views.qpos, torch.tensor(index.default_qpos).expand(N, -1))
    assert views.qvel.shape == (N, index.nv) and not views.qvel.any()
    payload = default_payload(backend)
    assert torch.equal(backend.get_state().float(), payload.state)
    assert torch.equal(payload.qpos, views.qpos) and torch.equal(payload.qvel, views.qvel)
    quat = next(item for item in reads if item.field == "xquat")
    assert torch.equal(reads[quat], torch.tensor([1.0, 0, 0, 0]).expand(N, 4))
    for item, value in reads.items():
        assert (value.dtype, value.shape) == (torch.float32, (N, *item.shape)), item
    assert backend.capabilities.model_fields == MODEL_FIELDS
    assert backend.capabilities.interval == INTERVAL_PARTS
    assert backend.num_envs == N and backend.device == torch.device("cpu")


def test_reads_are_the_named_columns_of_a_full_forward_pass(scene, engine):
    """Against MuJoCo C, one row at a time, from the same packed state."""
    backend, reads = engine
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
        last = {
            name: torch.from_numpy(getattr(data, name).copy()).float()
            for name in ("sensordata", "actuator_force", "qacc")
        }
        mujoco.mj_forward(model, data)
        for item, value in reads.items():
            source = torch.from_numpy(getattr(data, item.field).reshape(-1).copy()).float()
            if item.stage == Stage.ACC:  # forward replaced the last substep's value
                source = last[item.field]
            expected = source[list(item.columns)].view(item.shape)
            assert torch.allclose(value[row], expected, rtol=2e-3, atol=2e-3), item


def test_masked_reset_equals_a_fresh_environment(scene, engine):
    backend, reads = engine
    ctrl = controls(scene.index, 30)
    start = snapshot(backend, reads)
    run(backend, ctrl[10:])
    expected = snapshot(backend, reads)
    backend.reset(default_payload(backend), EVERY)
    run(backend, ctrl[:10])
    before = snapshot(backend, reads)
    mask = mask_of(0, 3)
    backend.reset(default_payload(backend), mask)
    after = snapshot(backend, reads)
    assert_equal(before, after, ~mask)
    declared = [str(item) for item in make_plan(scene.index).reset] + ["state"]
    assert_equal({k: after[k] for k in declared}, {k: start[k] for k in declared}, mask)
    run(backend, ctrl[10:])
    assert_equal(snapshot(backend, reads), expected, mask)


def test_a_reset_writes_the_payloads_rows(scene, engine):
    backend, reads = engine
    payload = default_payload(backend)
    payload.qpos[:, 2] = 0.4 + 0.1 * torch.arange(N)  # the value encodes the row
    payload.qvel[:, 0] = torch.arange(N)
    mask = mask_of(1, 4)
    backend.reset(payload, mask)
    expected = torch.where(mask, payload.qpos[:, 2], torch.tensor(scene.index.default_qpos[2]))
    assert torch.equal(backend.views().qpos[:, 2], expected)
    assert backend.views().qvel[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0, 4.0]
    com = scene.index.sensors["com"]
    item = block("sensordata", com.adr, 3, com.stage)
    lift = reads[item][:, 2] - reads[item][0, 2]
    assert torch.allclose(lift, expected - expected[0], atol=1e-6)


def test_empty_and_full_masks(scene, engine):
    backend, reads = engine
    start = snapshot(backend, reads)
    run(backend, controls(scene.index, 3))
    before = snapshot(backend, reads)
    backend.reset(default_payload(backend), mask_of())
    backend.set_state(torch.zeros_like(before["state"]), mask_of())
    backend.set_model_fields(
        {"body_mass": torch.zeros(N, scene.model.nbody)}, mask_of(), RecomputeLevel.ALL
    )
    assert_equal(before, snapshot(backend, reads))
    backend.reset(default_payload(backend), EVERY)
    assert torch.equal(backend.get_state(), start["state"])


def test_acceleration_reads_are_zero_in_rows_just_reset(scene, engine):
    backend, reads = engine
    run(backend, controls(scene.index, 8))
    mask = mask_of(1, 4)
    items = [item for item in make_plan(scene.index).reset if item.stage == Stage.ACC]
    assert len(items) == 3  # accelerometer, actuator force, the two touch sensors
    before = {item: reads[item].clone() for item in items}
    assert all(value.any() for value in before.values()), before
    backend.reset(default_payload(backend), mask)
    for item in items:
        assert (reads[item][mask] == 0).all()
        assert torch.equal(reads[item][~mask], before[item][~mask])


def test_velocity_delta_is_applied_once(scene, engine):
    backend, _ = engine
    payload = default_payload(backend)
    payload.qpos[:, 2] = 5.0  # free fall: nothing else acts on x
    backend.reset(payload, EVERY)
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


def test_a_bad_row_stays_alone_and_a_reset_heals_it(scene, engine):
    """It is seen by the fault word or by its state; every other row keeps its bits."""
    backend, reads = engine
    ctrl = controls(scene.index, 4)
    run(backend, ctrl[:2])
    two_steps = snapshot(backend, reads)
    run(backend, ctrl[2:])
    expected = snapshot(backend, reads)
    backend.reset(default_payload(backend), EVERY)
    run(backend, ctrl[:2])
    delta = torch.zeros(N, scene.index.nv)
    delta[2] = torch.nan
    backend.step(ctrl[2], TensorIntervalPayload(delta))
    finite = backend.views().qvel.isfinite().all(-1)
    bad = (backend.faults() != 0) | ~finite
    assert bad.tolist() == mask_of(2).tolist()
    backend.step(ctrl[3], None)
    assert_equal(snapshot(backend, reads), expected, ~mask_of(2))
    backend.reset(default_payload(backend), mask_of(2))
    run(backend, ctrl[:2])
    assert_equal(snapshot(backend, reads), two_steps, mask_of(2))
    assert not backend.faults().any()


def test_addresses_never_change(scene, engine):
    backend, reads = engine

    def addresses():
        views = backend.views()
        tensors = (*reads.values(), views.qpos, views.qvel, backend.faults())
        return [tensor.data_ptr() for tensor in tensors]

    before = addresses()
    for row in controls(scene.index, 20):
        backend.step(row, None)
        backend.reset(default_payload(backend), mask_of(1))
    assert addresses() == before


def test_inputs_are_neither_kept_nor_changed(scene, engine):
    backend, _ = engine
    ctrl, payload = controls(scene.index, 1)[0], default_payload(backend)
    delta, mask = torch.full((N, scene.index.nv), 0.01), mask_of(1, 2)
    given = (ctrl, payload.state, delta, mask)
    copies = [tensor.clone() for tensor in given]
    backend.step(ctrl, TensorIntervalPayload(delta))
    backend.reset(payload, mask)
    backend.step(ctrl, None)
    for tensor, copy in zip(given, copies, strict=True):
        assert torch.equal(tensor, copy)
    state = backend.get_state()
    ctrl.fill_(torch.nan)
    payload.state.fill_(torch.nan)
    assert torch.equal(backend.get_state(), state)


def test_model_fields_start_nominal_and_change_masked_rows_only(scene, engine):
    backend, reads = engine
    ctrl = controls(scene.index, 6)
    for name in backend.spec.model_fields:
        nominal = backend.nominal(name)
        assert torch.equal(backend.get_model_field(name), nominal.expand(N, *nominal.shape))
    run(backend, ctrl)
    expected = snapshot(backend, reads)
    backend.reset(default_payload(backend), EVERY)
    mass = backend.get_model_field("body_mass") * 1.5
    friction = backend.get_model_field("geom_friction") * 0.05
    state = backend.get_state()
    backend.set_model_fields({"body_mass": mass}, mask_of(1), RecomputeLevel.ALL)
    backend.set_model_fields({"geom_friction": friction}, mask_of(3), RecomputeLevel.NONE)
    assert torch.equal(backend.get_state(), state)
    got, nominal = backend.get_model_field("body_mass"), backend.nominal("body_mass")
    assert torch.equal(got[1], 1.5 * nominal) and torch.equal(got[0], nominal)
    assert torch.equal(backend.get_model_field("geom_friction")[3], friction[3])
    got.fill_(7.0)  # a copy
    assert torch.equal(backend.get_model_field("body_mass")[0], nominal)
    run(backend, ctrl)
    assert_equal(snapshot(backend, reads), expected, mask_of(0, 2, 4))
    moved = (backend.get_state() - expected["state"]).abs().amax(-1)
    assert (moved[[1, 3]] > 1e-3).all()


def test_undeclared_model_fields_are_refused_by_name(scene, engine):
    backend, _ = engine
    values = {"body_ipos": torch.zeros(N, scene.model.nbody, 3)}
    for mask in (mask_of(1), mask_of()):
        with pytest.raises(ConfigError, match=r"'body_ipos'.*available: geom_friction, body_mass"):
            backend.set_model_fields(values, mask, RecomputeLevel.ALL)
    with pytest.raises(ConfigError, match="'body_ipos'"):
        backend.get_model_field("body_ipos")


def test_what_it_cannot_honour_is_refused_when_it_is_built(scene, engine):
    name = engine[0].capabilities.name
    with pytest.raises(UnsupportedCapabilityError, match=rf"{name}.*'geom_solref'"):
        create_backend(name, make_spec(scene, model_fields=("geom_solref",)))
    with pytest.raises(UnsupportedCapabilityError, match=rf"{name}.*'mps'"):
        create_backend(name, make_spec(scene, device=torch.device("mps")))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (block("xposs", 0, 3, Stage.POS), "'xposs'; did you mean 'xpos'"),
        (block("qpos", 10, 3, Stage.NONE), "columns"),
        (block("xpos", 16, 3, Stage.POS), "columns"),
        (FieldSlice("sensordata", (-1,), (1,), Stage.ACC), "columns"),
    ],
)
def test_reads_that_do_not_exist_are_refused(scene, engine, item, message):
    name = engine[0].capabilities.name
    backend = create_backend(name, make_spec(scene, model_fields=()))
    with pytest.raises(UnilabGymError, match=message):
        backend.compile_reads(ReadPlan((item,), ()))
    backend.close()


def test_state_round_trip(scene, engine):
    backend, _ = engine
    ctrl = controls(scene.index, 6)
    run(backend, ctrl[:3])
    state = backend.get_state()
    kept = state.clone()
    run(backend, ctrl[3:])
    assert torch.equal(state, kept)  # a copy
    expected = backend.get_state()
    mask = mask_of(0, 4)
    assert backend.set_state(state, mask).operation == "reset"
    assert torch.equal(backend.get_state()[mask], state[mask])
    assert torch.equal(backend.get_state()[~mask], expected[~mask])
    run(backend, ctrl[3:])
    assert torch.equal(backend.get_state()[mask], expected[mask])
    qpos, qvel = backend.render_state(4)
    assert torch.equal(torch.tensor(qpos), backend.views().qpos[4])
    assert torch.equal(torch.tensor(qvel), backend.views().qvel[4])


def test_acceleration_reads_can_be_put_back(scene, engine):
    backend, reads = engine
    run(backend, controls(scene.index, 8))
    plan = make_plan(scene.index)
    items = [i for i in dict.fromkeys((*plan.step, *plan.reset)) if i.stage == Stage.ACC]
    values = backend.get_acceleration()
    width = sum(len(item.columns) for item in items)
    assert values.shape == (N, width) and values.any(1).all()
    assert torch.equal(values, torch.cat([reads[item].reshape(N, -1) for item in items], 1))
    kept = values.clone()
    mask = mask_of(0, 3)
    backend.set_acceleration(torch.zeros_like(values), EVERY)
    assert torch.equal(values, kept) and not backend.get_acceleration().any()
    backend.set_acceleration(values, mask)
    back = backend.get_acceleration()
    assert torch.equal(back[mask], values[mask]) and not back[~mask].any()
    assert torch.equal(back, torch.cat([reads[item].reshape(N, -1) for item in items], 1))


def test_receipts_grow_and_are_accepted_once(scene, engine):
    backend, _ = engine
    ctrl = torch.tensor(scene.index.default_ctrl).expand(N, -1)
    receipts = [backend.step(ctrl, None), backend.reset(default_payload(backend), mask_of(1))]
    receipts.append(backend.step(ctrl, None))
    assert [r.operation for r in receipts] == ["step", "reset", "step"]
    assert all(a.sequence < b.sequence for a, b in itertools.pairwise(receipts))
    assert {r.producer for r in receipts} == {backend.producer}
    ledger = ReceiptLedger(backend.producer)
    ledger.accept(receipts[0])
    ledger.accept(receipts[2])
    with pytest.raises(ReceiptError, match=rf"repeated receipt {receipts[2].sequence} \(step\)"):
        ledger.accept(receipts[2])
    with pytest.raises(ReceiptError, match=rf"stale receipt {receipts[1].sequence} \(reset\)"):
        ledger.accept(receipts[1])
    foreign = StepReceipt(receipts[2].sequence + 1, backend.producer + 1, "step")
    with pytest.raises(ReceiptError, match=f"expected producer {backend.producer}"):
        ledger.accept(foreign)


def test_two_backends_alive_equal_solo_runs(scene, engine):
    backend, reads = engine
    ctrl = controls(scene.index, 8)
    run(backend, ctrl)
    expected = snapshot(backend, reads)
    backend.reset(default_payload(backend), EVERY)
    name = backend.capabilities.name
    other = create_backend(name, make_spec(scene))
    other_reads = other.compile_reads(make_plan(scene.index))
    assert other.producer != backend.producer
    for row in ctrl:
        backend.step(row, None)
        other.step(row, None)
        other.reset(default_payload(other), mask_of(3))
    other.close()
    assert_equal(snapshot(backend, reads), expected)
    assert any(value.any() for value in other_reads.values())  # tensors outlive their engine
    run(backend, ctrl[:1])
    assert not backend.faults().any()


def test_close_twice_then_nothing_works(scene, engine):
    backend = create_backend(engine[0].capabilities.name, make_spec(scene))
    qpos, payload = backend.views().qpos, backend.allocate_reset_payload()
    backend.close()
    backend.close()
    assert qpos[0, 2] == torch.tensor(0.365)  # memory that a tensor holds outlives the engine
    ctrl = torch.zeros(N, scene.index.nu)
    for call in (
        lambda: backend.step(ctrl, None),
        lambda: backend.reset(payload, mask_of(1)),
        lambda: backend.set_state(torch.zeros(N, scene.index.nstate), mask_of()),
        lambda: backend.set_model_fields({}, mask_of(), RecomputeLevel.NONE),
        lambda: backend.get_model_field("body_mass"),
        lambda: backend.get_state(),
        lambda: backend.compile_reads(ReadPlan((), ())),
        lambda: backend.render_state(0),
    ):
        with pytest.raises(BackendError, match="closed"):
            call()


def test_faults_are_words_that_do_not_stick(scene, engine):
    backend, _ = engine
    faults = backend.faults()
    assert (faults.dtype, faults.shape) == (torch.int32, (N,))
    healthy = torch.tensor(scene.index.default_ctrl).expand(N, -1)
    backend.step(healthy, None)
    assert not faults.any()
    assert backend.faults() is faults or backend.faults().data_ptr() == faults.data_ptr()
    assert max(FaultBit) < 2**31

"""One conformance suite that every backend must pass: the contract of `backends.base`, as checks.

    from unilab_gym.testing import check_backend
    check_backend(lambda spec: MyBackend(spec))

Each check is a method of `BackendConformance`, told by its name and docstring. The suite brings
its own small robot, so a backend needs nothing but a factory. What a backend declares that it
cannot do (`Capabilities`) is not asked of it; that it is then refused is asked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from unilab_gym.backends.base import (
    Backend,
    BackendSpec,
    FieldSlice,
    ReadPlan,
    RecomputeLevel,
    Stage,
    StepReceipt,
    TensorIntervalPayload,
)
from unilab_gym.engine import mujoco
from unilab_gym.errors import (
    BackendError,
    ConfigError,
    ReceiptError,
    UnilabGymError,
    UnsupportedCapabilityError,
)
from unilab_gym.runtime.receipts import ReceiptLedger
from unilab_gym.testing.conformance_bench import (
    DECIMATION,
    DT,
    ROWS,
    ConformanceBench,
    ConformanceError,
    block,
    refused,
    require,
)

__all__ = ["CONFORMANCE_CHECKS", "BackendConformance", "ConformanceError", "check_backend"]


class BackendConformance(ConformanceBench):
    """The checks; see `ConformanceBench` for the arguments."""

    # -- checks ----------------------------------------------------------------------------

    def check_build(self) -> None:
        """Starts at the default state, on the asked device, with the declared shapes."""
        backend, reads = self.fresh()
        views, index = backend.views(), self.index
        default = torch.tensor(index.default_qpos, device=self.device).expand(ROWS, -1)
        require(torch.equal(views.qpos, default), "qpos is not the keyframe")
        require(views.qvel.shape == (ROWS, index.nv), f"qvel is {tuple(views.qvel.shape)}")
        require(not views.qvel.any(), "qvel is not 0")
        require(backend.num_envs == ROWS, "num_envs is not the spec's")
        require(backend.device.type == self.device.type, "another device")
        payload = self.payload(backend)
        require(torch.equal(payload.qpos, views.qpos), "the payload is not the default state")
        require(torch.equal(backend.get_state().float(), payload.state), "packed rows differ")
        for item, value in reads.items():
            expected = (torch.float32, (ROWS, *item.shape))
            require((value.dtype, tuple(value.shape)) == expected, f"{item}: {value.shape}")
        faults = backend.faults()
        require((faults.dtype, faults.shape) == (torch.int32, (ROWS,)), f"faults: {faults}")
        quat = reads[block("xquat", 4, 4, Stage.POS)].cpu()
        require(torch.equal(quat, torch.tensor([1.0, 0, 0, 0]).expand(ROWS, 4)), "not wxyz")

    def check_views(self) -> None:
        """Addresses of views, reads and faults never change."""
        backend, reads = self.fresh()

        def addresses() -> list[int]:
            views = backend.views()
            tensors = (*reads.values(), views.qpos, views.qvel, backend.faults())
            return [tensor.data_ptr() for tensor in tensors]

        before = addresses()
        for ctrl in self.controls(8):
            backend.step(ctrl, None)
            backend.reset(self.payload(backend), self.mask(1))
        require(addresses() == before, "a tensor moved")

    def check_step(self) -> None:
        """Steps as MuJoCo C does from the same packed rows: 2e-6 rad or m, 2e-4 rad/s or m/s.

        Acceleration-stage reads are those of the last substep, within 0.2 %.
        """
        backend, reads = self.fresh()
        ctrl = self.controls(9, seed=0)
        self.run(backend, ctrl[:8])
        state = backend.get_state()
        backend.step(ctrl[8], None)
        views = backend.views()
        for row in range(ROWS):
            data = self._reference(state[row])
            data.ctrl[:] = ctrl[8, row].tolist()
            for _ in range(DECIMATION):
                mujoco.mj_step(self.scene.model, data)
            q, v = (torch.tensor(x.tolist(), device=self.device) for x in (data.qpos, data.qvel))
            error = float((views.qpos[row] - q).abs().max())
            require(error <= 2e-6, f"row {row}: qpos is {error:g} away from MuJoCo")
            error = float((views.qvel[row] - v).abs().max())
            require(error <= 2e-4, f"row {row}: qvel is {error:g} away from MuJoCo")
            for item, value in reads.items():
                if item.stage == Stage.ACC:
                    wanted = self._columns(data, item)
                    close = torch.allclose(value[row].cpu(), wanted, rtol=2e-3, atol=2e-3)
                    require(close, f"row {row}: {item} is {value[row]}, in MuJoCo {wanted}")

    def _columns(self, data: Any, item: FieldSlice) -> Tensor:
        flat = torch.tensor(getattr(data, item.field).reshape(-1).tolist())
        return flat[list(item.columns)].view(item.shape)

    def _reference(self, packed: Tensor) -> Any:
        data = mujoco.MjData(self.scene.model)
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        mujoco.mj_setState(self.scene.model, data, packed.double().tolist(), kind)
        return data

    def check_reads(self) -> None:
        """Below acceleration, reads are a full forward pass of the present state, in columns.

        After a step and after a masked reset; to rounding, because MuJoCo C is the reference.
        """
        backend, reads = self.fresh()
        ctrl = self.controls(6)
        self.run(backend, ctrl)
        self._compare_reads(backend, reads, "after a step")
        declared = {item: reads[item] for item in self.plan().reset}
        payload = self.payload(backend)
        payload.qpos[:, 2] += 0.1
        payload.qvel[:, 3:6] = 0.5
        backend.reset(payload, self.mask(0, 3))
        self._compare_reads(backend, declared, "after a reset")

    def _compare_reads(
        self, backend: Backend, reads: Mapping[FieldSlice, Tensor], when: str
    ) -> None:
        state = backend.get_state()
        for row in range(ROWS):
            data = self._reference(state[row])
            mujoco.mj_forward(self.scene.model, data)
            for item, value in reads.items():
                if item.stage == Stage.ACC:
                    continue
                expected = self._columns(data, item)
                error = float((value[row].cpu() - expected).abs().max())
                require(error <= 2e-5, f"{when}: {item} is {error:g} from a forward pass")

    def check_masked_reset(self) -> None:
        """A reset row equals a fresh one from then on; every other row keeps its bits."""
        backend, reads = self.fresh()
        ctrl, every = self.controls(20), self.mask(all_rows=True)
        start = self.snapshot(backend, reads)
        self.run(backend, ctrl[8:])
        expected = self.snapshot(backend, reads)
        backend.reset(self.payload(backend), every)
        self.run(backend, ctrl[:8])
        before = self.snapshot(backend, reads)
        mask = self.mask(0, 3)
        backend.reset(self.payload(backend), mask)
        after = self.snapshot(backend, reads)
        for key, value in before.items():
            require(torch.equal(value[~mask], after[key][~mask]), f"another row's {key} changed")
        declared = ["state", *(str(item) for item in self.plan().reset)]
        self.same({key: after[key] for key in declared}, start, mask, "after the reset")
        self.run(backend, ctrl[8:])
        self.same(self.snapshot(backend, reads), expected, mask, "after the next steps")

    def check_reset_payload(self) -> None:
        """A reset writes the payload's rows; an empty mask writes nothing, a full one all."""
        backend, _ = self.fresh()
        payload = self.payload(backend)
        rows = torch.arange(ROWS, device=self.device)
        payload.qpos[:, 2] = 0.4 + 0.1 * rows  # the value encodes the row
        payload.qvel[:, 0] = rows.float()
        before = backend.get_state()
        backend.reset(payload, self.mask())
        backend.set_state(torch.zeros_like(before), self.mask())
        nothing = {"body_mass": torch.zeros_like(backend.get_model_field("body_mass"))}
        backend.set_model_fields(nothing, self.mask(), RecomputeLevel.ALL)
        require(torch.equal(backend.get_state(), before), "an empty mask wrote")
        mass = backend.get_model_field("body_mass")
        require(torch.equal(mass, self.nominal(backend, "body_mass")), "an empty mask: mass")
        mask = self.mask(1, 4)
        backend.reset(payload, mask)
        speed = torch.where(mask, rows.float(), 0.0)
        require(torch.equal(backend.views().qvel[:, 0], speed), "velocities of other rows")
        backend.reset(payload, self.mask(all_rows=True))
        require(torch.equal(backend.get_state().float(), payload.state), "a full mask")

    def check_acceleration_reads(self) -> None:
        """Acceleration-stage reads are the last substep's, and 0 in rows just reset."""
        backend, reads = self.fresh()
        self.run(backend, self.controls(8))
        items = [item for item in self.plan().reset if item.stage == Stage.ACC]
        before = {item: reads[item].clone() for item in items}
        require(any(value.any() for value in before.values()), "no foot felt its load")
        mask = self.mask(1, 4)
        backend.reset(self.payload(backend), mask)
        for item in items:
            require(not reads[item][mask].any(), f"{item} of reset rows is not 0")
            require(torch.equal(reads[item][~mask], before[item][~mask]), f"{item} of others")

    def check_acceleration_state(self) -> None:
        """Acceleration-stage reads can be taken, as a copy, and put back in masked rows."""
        backend, reads = self.fresh()
        self.run(backend, self.controls(8))
        items = [item for item in self.plan().step if item.stage == Stage.ACC]

        def now() -> Tensor:
            return torch.cat([reads[item].reshape(ROWS, -1) for item in items], 1)

        values = backend.get_acceleration()
        require(torch.equal(values, now()), "not the reads' columns")
        kept, mask = values.clone(), self.mask(0, 3)
        backend.set_acceleration(torch.zeros_like(values), self.mask(all_rows=True))
        require(torch.equal(values, kept), "not a copy")
        require(not now().any(), "all rows were to be 0")
        backend.set_acceleration(values, mask)
        require(torch.equal(now()[mask], values[mask]), "masked rows were not written")
        require(not now()[~mask].any(), "another row was written")

    def check_interval_velocity(self) -> None:
        """`qvel_delta` is added once, before the first substep."""
        backend, _ = self.fresh()
        delta = torch.zeros(ROWS, self.index.nv, device=self.device)
        delta[1, 0] = 0.25
        part = TensorIntervalPayload(qvel_delta=delta)
        if self._lacks(backend, "qvel_delta"):
            return
        self._fly(backend)
        ctrl = self.controls(1)[0] * 0.0
        for interval in (part, None, TensorIntervalPayload()):
            backend.step(ctrl, interval)
            speed = backend.views().qvel[:, 0]
            # The legs swing against the base; together they keep the momentum.
            require(speed[1] > 0.1, "the push was not felt")
            require(speed[0].abs() < 0.1, "another row was pushed")

    def check_interval_wrench(self) -> None:
        """`body_wrench` acts for every substep while it is handed over, in its row alone."""
        backend, _ = self.fresh()
        if self._lacks(backend, "body_wrench"):
            return
        base = self.index.bodies["base"]
        wrench = torch.zeros(ROWS, 6, device=self.device)
        wrench[2, 2] = 30.0  # upwards, through the centre of mass of the whole robot
        payload = TensorIntervalPayload(body_wrench=wrench, wrench_bodies=(base,))
        self._fly(backend)
        ctrl = torch.tensor(self.index.default_ctrl, device=self.device).repeat(ROWS, 1)
        gained: list[Tensor] = []
        for held in (True, True, False):
            wrench.mul_(float(held))
            backend.step(ctrl, payload)
            speed = backend.views().qvel[:, 2]
            gained.append(speed - speed[0])  # row 0 falls freely
        mass = float(self.scene.model.body_mass.sum())
        gain = 30.0 / mass * DT * DECIMATION
        for steps, (speed, wanted) in enumerate(zip(gained, (1.0, 2.0, 2.0), strict=True), 1):
            error = abs(float(speed[2]) - wanted * gain)
            require(
                error < 0.1 * gain,
                f"{speed[2]:g} m/s gained after step {steps}, not {wanted * gain:g}",
            )
            require(float(speed[[1, 3, 4]].abs().max()) < 1e-5, "another row was pushed")

    def _lacks(self, backend: Backend, part: str) -> bool:
        return part not in backend.capabilities.interval

    def _fly(self, backend: Backend) -> None:
        payload = self.payload(backend)
        payload.qpos[:, 2] = 5.0
        backend.reset(payload, self.mask(all_rows=True))

    def check_model_fields(self) -> None:
        """Fields start nominal; a write changes masked rows alone, keeps the state, is felt."""
        backend, reads = self.fresh()
        ctrl = self.controls(6)
        self.run(backend, ctrl)
        expected = self.snapshot(backend, reads)
        backend.reset(self.payload(backend), self.mask(all_rows=True))
        mass = backend.get_model_field("body_mass")
        require(torch.equal(mass, self.nominal(backend, "body_mass")), "not nominal at first")
        friction = backend.get_model_field("geom_friction") * 0.05
        state = backend.get_state()
        backend.set_model_fields({"body_mass": mass * 1.5}, self.mask(1), RecomputeLevel.ALL)
        backend.set_model_fields({"geom_friction": friction}, self.mask(3), RecomputeLevel.NONE)
        require(torch.equal(backend.get_state(), state), "the write changed the state")
        got = backend.get_model_field("body_mass").fill_(7.0)
        require(not torch.equal(backend.get_model_field("body_mass"), got), "not a copy")
        got = backend.read_back("body_mass", "base")
        base = mass[:, self.index.bodies["base"]]
        factor = torch.ones_like(got)
        factor[1] = 1.5
        require(torch.allclose(got, base * factor), "read-back by name")
        self.run(backend, ctrl)
        after = self.snapshot(backend, reads)
        self.same(after, expected, self.mask(0, 2, 4), "rows that were not written")
        moved = (after["state"] - expected["state"]).abs().amax(-1)
        require(bool((moved[[1, 3]] > 1e-3).all()), "the write had no effect")

    def check_faults(self) -> None:
        """A bad row is seen, stays alone and is healed by a reset; bits do not stick."""
        backend, reads = self.fresh()
        if not backend.capabilities.fault_containment:
            return  # refused by `Capabilities.check_runtime` where rows are to be quarantined
        ctrl, bad_row = self.controls(4), self.mask(2)
        self.run(backend, ctrl[:2])
        two_steps = self.snapshot(backend, reads)
        self.run(backend, ctrl[2:])
        expected = self.snapshot(backend, reads)
        for poison in (torch.nan, torch.inf, 1e30):
            backend.reset(self.payload(backend), self.mask(all_rows=True))
            self.run(backend, ctrl[:2])
            state = backend.get_state()
            state[2, self.index.qvel_offset + 2] = poison
            backend.set_state(state, bad_row)
            backend.step(ctrl[2], None)
            qvel = backend.views().qvel
            bad = (backend.faults() != 0) | ~(qvel.abs() < 1e9).all(-1)
            require(bad[2], f"{poison} went unnoticed")
            backend.step(ctrl[3], None)
            self.same(self.snapshot(backend, reads), expected, ~bad_row, f"neighbours of {poison}")
            backend.reset(self.payload(backend), bad_row)
            self.run(backend, ctrl[:2])
            self.same(self.snapshot(backend, reads), two_steps, bad_row, f"healed from {poison}")
            require(not backend.faults().any(), "a fault bit sticks")

    def check_receipts(self) -> None:
        """Receipts grow, carry the producer, and a ledger takes each once and in order."""
        backend, _ = self.fresh()
        ctrl = self.controls(1)[0]
        receipts = [backend.step(ctrl, None)]
        receipts.append(backend.reset(self.payload(backend), self.mask(1)))
        receipts.append(backend.step(ctrl, None))
        require([r.operation for r in receipts] == ["step", "reset", "step"], "operations")
        pairs = itertools.pairwise(receipts)
        require(all(a.sequence < b.sequence for a, b in pairs), "numbers do not grow")
        require({r.producer for r in receipts} == {backend.producer}, "another producer")
        ledger = ReceiptLedger(backend.producer)
        for receipt in (receipts[0], receipts[2]):
            ledger.accept(receipt)
        foreign = StepReceipt(receipts[2].sequence + 1, backend.producer + 1, "step")
        for what, receipt in (("repeated", receipts[2]), ("stale", receipts[1])):
            refused(ReceiptError, f"a {what} receipt", lambda r=receipt: ledger.accept(r))
        refused(ReceiptError, "a foreign receipt", lambda: ledger.accept(foreign))

    def check_snapshot(self) -> None:
        """Packed rows come back and go on as before, in the masked rows alone."""
        backend, _ = self.fresh()
        ctrl, mask = self.controls(6), self.mask(0, 4)
        self.run(backend, ctrl[:3])
        state = backend.get_state()
        kept = state.clone()
        self.run(backend, ctrl[3:])
        require(torch.equal(state, kept), "get_state is not a copy")
        expected = backend.get_state()
        backend.set_state(state, mask)
        now = backend.get_state()
        require(torch.equal(now[mask], state[mask]), "masked rows were not written")
        require(torch.equal(now[~mask], expected[~mask]), "another row changed")
        self.run(backend, ctrl[3:])
        self.same({"state": backend.get_state()}, {"state": expected}, mask, "going on")
        qpos, qvel = backend.render_state(4)
        views = backend.views()
        given = torch.tensor([*qpos, *qvel])
        shown = torch.cat((views.qpos[4], views.qvel[4])).cpu()
        require(torch.equal(given, shown), "render_state shows another row")

    def check_inputs(self) -> None:
        """What is handed over is neither changed nor kept."""
        backend, _ = self.fresh()
        ctrl, payload, mask = self.controls(1)[0], self.payload(backend), self.mask(1, 2)
        delta = torch.full((ROWS, self.index.nv), 0.01, device=self.device)
        given = (ctrl, payload.state, mask, delta)
        copies = [tensor.clone() for tensor in given]
        push = None if self._lacks(backend, "qvel_delta") else TensorIntervalPayload(delta)
        backend.step(ctrl, push)
        backend.reset(payload, mask)
        for tensor, copy in zip(given, copies, strict=True):
            require(torch.equal(tensor, copy), "an input was changed")
        state = backend.get_state()
        ctrl.fill_(torch.nan)
        payload.state.fill_(torch.nan)
        require(torch.equal(backend.get_state(), state), "an input was kept")

    def check_refusals(self) -> None:
        """What it cannot do is refused when it is built or asked, by name."""
        backend, _ = self.fresh()
        name, every = backend.capabilities.name, self.mask(all_rows=True)
        for changes in ({"model_fields": ("geom_solref",)}, {"device": torch.device("meta")}):
            spec = self.spec(**changes)
            told = refused(UnsupportedCapabilityError, str(changes), lambda s=spec: self.create(s))
            require(name in told, f"the refusal does not name the backend: {told}")
        values = {"body_ipos": self.nominal(backend, "body_ipos")}
        for mask in (every, self.mask()):
            told = refused(
                ConfigError,
                "an undeclared model field",
                lambda m=mask: backend.set_model_fields(values, m, RecomputeLevel.ALL),
            )
            require("body_ipos" in told and "geom_friction" in told, told)
        told = refused(
            ConfigError, "an undeclared field", lambda: backend.get_model_field("body_ipos")
        )
        require("body_ipos" in told, told)
        other = self.create(self.spec(model_fields=()))
        for item in (
            FieldSlice("xposs", (0, 1, 2), (3,), Stage.POS),
            FieldSlice("qpos", (10, 11, 12), (3,), Stage.NONE),
            FieldSlice("xpos", (16, 17, 18), (3,), Stage.POS),
            FieldSlice("sensordata", (-1,), (1,), Stage.ACC),
        ):
            plan = ReadPlan((item,), ())
            refused(UnilabGymError, f"the read {item}", lambda p=plan: other.compile_reads(p))
        other.close()

    def check_two_at_once(self) -> None:
        """Another backend of the same kind beside it changes nothing."""
        backend, reads = self.fresh()
        ctrl = self.controls(6)
        self.run(backend, ctrl)
        expected = self.snapshot(backend, reads)
        backend.reset(self.payload(backend), self.mask(all_rows=True))
        other = self.create(self.spec())
        other.compile_reads(self.plan())
        require(other.producer != backend.producer, "two backends share a number")
        for row in ctrl:
            backend.step(row, None)
            other.step(row * 0.5, None)
            other.reset(self.payload(other), self.mask(3))
        other.close()
        everything = self.mask(all_rows=True)
        self.same(self.snapshot(backend, reads), expected, everything, "beside another one")

    def check_close(self) -> None:
        """Closes twice; every operation afterwards says that it is closed."""
        backend = self.create(self.spec(model_fields=()))
        payload, qpos = backend.allocate_reset_payload(), backend.views().qpos
        state = backend.get_state()
        backend.close()
        backend.close()
        height = torch.tensor(self.index.default_qpos[2])
        require(torch.equal(qpos[0, 2].cpu(), height), "memory that a tensor holds is gone")
        ctrl = self.controls(1)[0]
        for what, call in {
            "step": lambda: backend.step(ctrl, None),
            "reset": lambda: backend.reset(payload, self.mask(1)),
            "set_state": lambda: backend.set_state(state, self.mask()),
            "set_model_fields": lambda: backend.set_model_fields(
                {}, self.mask(), RecomputeLevel.NONE
            ),
            "get_model_field": lambda: backend.get_model_field("body_mass"),
            "compile_reads": lambda: backend.compile_reads(ReadPlan((), ())),
            "get_state": backend.get_state,
            "render_state": lambda: backend.render_state(0),
        }.items():
            told = refused(BackendError, f"{what} after close", call)
            require("closed" in told, told)


CONFORMANCE_CHECKS: tuple[str, ...] = tuple(
    name for name in vars(BackendConformance) if name.startswith("check_")
)
"""Names of the checks, in order."""


def check_backend(
    create: Callable[[BackendSpec], Backend],
    *,
    device: str | torch.device = "cpu",
    tolerance: float = 0.0,
    skip: Iterable[str] = (),
) -> tuple[str, ...]:
    """Runs every check on backends that a factory builds.

    Args:
        create: Builds the backend from a spec.
        device: Torch device of the specs.
        tolerance: See `BackendConformance`.
        skip: Names of checks to leave out.

    Returns:
        The names of the checks that passed.

    Raises:
        ConformanceError: At the first check that fails, by name.
    """
    suite = BackendConformance(create, device=device, tolerance=tolerance)
    left_out = set(skip)
    passed: list[str] = []
    try:
        for name in CONFORMANCE_CHECKS:
            if name in left_out:
                continue
            try:
                getattr(suite, name)()
            except ConformanceError as error:
                raise ConformanceError(f"{name}: {error}") from error
            passed.append(name)
    finally:
        suite.close()
    return tuple(passed)

# pyright: basic
"""MuJoCo-Warp: N environments in one batch on a GPU, or on Warp's CPU device for tests.

Every operation of a step is one captured graph and a handful of torch operations, all issued on
the caller's current stream; nothing waits for the device. The torch tensors handed out are the
engine's own memory wherever a view can describe the columns.

Contacts of all environments share one pool: if it runs out, the engine drops contacts of any
row, so that overflow is counted and never blamed on a row. Constraint rows are per environment.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unilab_gym.backends._mjwarp_model import GRAVITY, MASS_FIELDS, batch_sizes, default_budgets
from unilab_gym.backends._mjwarp_reads import (
    Reads,
    check_slices,
    compile_slices,
    is_acceleration,
    launches,
)
from unilab_gym.backends.base import (
    Backend,
    BackendSpec,
    FaultBit,
    FieldSlice,
    ReadPlan,
    RecomputeLevel,
    StateViews,
    StepReceipt,
    TensorIntervalPayload,
    TensorResetRandomizationPayload,
)
from unilab_gym.backends.budgets import BudgetWatch
from unilab_gym.backends.capabilities import CAPABILITIES
from unilab_gym.engine import mujoco
from unilab_gym.errors import (
    BackendError,
    BackendUnavailableError,
    ConfigError,
    UnsupportedCapabilityError,
    near,
)

try:
    import mujoco_warp as mjw
    import warp as wp

    from unilab_gym.backends._mjwarp_graphs import GraphRunner, quiet
except ImportError as missing:
    raise BackendUnavailableError(
        f"backend 'mjwarp' needs MuJoCo-Warp ({missing}): pip install mujoco-warp warp-lang"
    ) from missing

_INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)
_KIND = mjw.OverflowType
_OVERFLOW_BITS = {
    FaultBit.CONTACT_POOL_OVERFLOW: _KIND.BROADPHASE | _KIND.NARROWPHASE | _KIND.CCD,
    FaultBit.SOLVER_ITERATIONS: _KIND.ITERATIONS | _KIND.LS_ITERATIONS,
}
"""Pools that rows share, and the solver; whatever else overflows is a row's own budget."""


@wp.kernel
def _note_demand(
    nacon: wp.array[wp.int32],
    ncollision: wp.array[wp.int32],
    nefc: wp.array[wp.int32],
    demand: wp.array[wp.int32],
) -> None:
    """Keeps the largest demand of contacts, pairs and constraint rows."""
    world = wp.tid()
    if world == 0:
        wp.atomic_max(demand, 0, nacon[0])  # pyright: ignore[reportArgumentType]
        wp.atomic_max(demand, 1, ncollision[0])  # pyright: ignore[reportArgumentType]
    wp.atomic_max(demand, 2, nefc[world])  # pyright: ignore[reportArgumentType]


@wp.kernel
def _clear_jacobian(
    mask: wp.array[wp.bool], columns: int, jacobian: wp.array3d[wp.float32]
) -> None:
    """Zeroes the constraint Jacobian of masked worlds."""
    world, row = wp.tid()  # pyright: ignore
    if mask[world]:
        for column in range(columns):
            jacobian[world, row, column] = 0.0  # pyright: ignore[reportIndexIssue]


class MjWarpBackend(Backend):
    """N environments of one model on MuJoCo-Warp; see the module docstring.

    `compile_reads` compiles the engine's kernels (tens of seconds the first time a machine sees
    a model, seconds after) and captures the graphs. `deterministic=True` asks the engine for
    order-free reductions; on CUDA the order of contacts still depends on scheduling in
    mujoco_warp 4.0, so results are not promised to be bitwise equal.
    """

    capabilities = CAPABILITIES["mjwarp"]

    def __init__(self, spec: BackendSpec, *, _uncaptured: bool = False) -> None:
        """Puts the model on the device, every environment at the default state.

        Raises:
            BackendUnavailableError: If the device is cuda and Warp finds no CUDA device.
            UnsupportedCapabilityError: If the model has native delay buffers.
            BackendError: If `_uncaptured` is asked for on CUDA, or the engine's layout is not
                the one this file was written for.
        """
        super().__init__(spec)
        self._closed = False
        self._prepare_device()
        if spec.model.nhistory:
            raise UnsupportedCapabilityError(
                "backend 'mjwarp' runs no native actuator or sensor delay buffers"
            )
        self._runner = GraphRunner(self.device, captured=not _uncaptured)
        with self._runner.scope():
            self._build_engine()
        self._bind_state()
        self._bind_model_fields()
        self._allocate_carriers()
        self._reads = Reads()
        self._graphs: dict[str, Callable[[], None]] = {}

    # -- build -----------------------------------------------------------------------------

    def _prepare_device(self) -> None:
        with quiet():
            wp.init()
        if self.device.type == "cpu":
            logging.getLogger("unilab_gym").warning(
                "backend 'mjwarp' runs on the CPU: right but slow; backend 'mujoco' is the fast one"
            )
            return
        if not (torch.cuda.is_available() and wp.is_cuda_available()):
            raise BackendUnavailableError(
                f"backend 'mjwarp' on {self.device}: no usable NVIDIA GPU and driver here"
            )
        if self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())

    def _build_engine(self) -> None:
        spec, n = self.spec, self.num_envs
        self._m: Any = mjw.put_model(
            spec.model, batch_sizes=batch_sizes(spec.model_fields, spec.model, n)
        )
        options = self._m.opt
        if GRAVITY in spec.model_fields:  # `put_model` takes no batch size for options
            rows = np.tile(np.asarray(spec.model.opt.gravity, dtype=np.float32), (n, 1))
            options.gravity = wp.array(rows, dtype=wp.vec3)
        # `put_model` clamps it at 1e-6: 0.2 % fewer iterations, worst rows 5 times as far from C.
        options.tolerance.fill_(float(spec.model.opt.tolerance))
        options.warn_overflow = 0  # the bits are kept, nothing is printed
        options.deterministic = bool(spec.deterministic)
        if self.device.type == "cuda":
            # Without conditional nodes (CUDA < 12.4) all solver iterations always run.
            options.graph_conditional = wp.is_conditional_graph_supported()
        pairs = [(int(a), int(b)) for a, b in self._m.nxn_geom_pair_filtered.numpy()]
        nconmax, njmax = default_budgets(spec.model, pairs, spec.model_fields)
        self._d: Any = mjw.make_data(
            spec.model,
            nworld=n,
            nconmax=nconmax if spec.nconmax is None else spec.nconmax,
            njmax=njmax if spec.njmax is None else spec.njmax,
        )

        # Only growing: [contacts, pairs] of all environments, constraint rows of the neediest.
        self._demand: Any = wp.zeros(3, dtype=wp.int32)
        demand = _tensor(self._demand)
        arrived = demand
        if demand.is_cuda:
            arrived = torch.zeros(3, dtype=torch.int32, device="cpu", pin_memory=True)
        self._budgets = BudgetWatch(
            demand,
            arrived,
            arrived.numpy().tolist,
            n,
            nconmax=int(self._d.naconmax) // n,
            njmax=int(self._d.njmax),
            enough=(nconmax, njmax),
        )

    def _field(self, name: str) -> Tensor:
        """A data field as `[N, width]`, sharing the engine's memory."""
        array = _tensor(getattr(self._d, name))
        flat = array.flatten(1)
        expected = self.spec.index.field_widths.get(name, flat.shape[1])
        if flat.dtype != torch.float32 or flat.shape[1] != expected:
            raise BackendError(
                f"mujoco_warp holds {name!r} as {tuple(array.shape)} {array.dtype}; "
                f"expected {expected} float32 columns"
            )
        return flat

    def _bind_state(self) -> None:
        self._qpos, self._qvel = self._field("qpos"), self._field("qvel")
        self._ctrl = self._field("ctrl")
        self._xfrc = self._field("xfrc_applied").unflatten(1, (-1, 6))  # [N, nbody, 6]
        self._wrench_ids: dict[tuple[int, ...], Tensor] = {}
        self._overflow = _tensor(self._d.overflow)  # [N] int32
        self._faults = torch.zeros(self.num_envs, dtype=torch.int32, device=self.device)
        self._fault_table = torch.tensor(_fault_table(), dtype=torch.int32, device=self.device)

    def _bind_model_fields(self) -> None:
        self._fields: dict[str, Tensor] = {}
        for name in self.spec.model_fields:
            values = _tensor(operator.attrgetter(name)(self._m))
            expected = (self.num_envs, *np.shape(operator.attrgetter(name)(self.spec.model)))
            if tuple(values.shape) != expected:
                raise BackendError(
                    f"mujoco_warp holds model field {name!r} as {tuple(values.shape)}, "
                    f"MuJoCo's layout is {expected}"
                )
            self._fields[name] = values
        self._derives = any(name in MASS_FIELDS for name in self._fields)

    def _allocate_carriers(self) -> None:
        """Graph inputs and outputs, whose addresses the captured graphs hold."""
        n, index = self.num_envs, self.spec.index
        self._default_rows = torch.tensor(
            _default_row(self.spec), dtype=torch.float32, device=self.device
        ).repeat(n, 1)  # [N, nstate]
        self._payload = self._default_rows.clone()  # handed out: filled in place by the runtime
        self._payload_taken = False
        self._rows = self._default_rows.clone()  # rows from anywhere else
        self._packed = torch.zeros_like(self._rows)
        self._mask = torch.ones(n, dtype=torch.bool, device=self.device)
        self._mask_column = self._mask.unsqueeze(1)
        self._all = torch.ones(n, dtype=torch.bool, device=self.device)
        self._wp: dict[str, Any] = {
            name: wp.from_torch(getattr(self, f"_{name}"))
            for name in ("payload", "rows", "packed", "mask", "all")
        }
        self._qpos.copy_(self._rows[:, index.qpos_offset : index.qpos_offset + index.nq])
        self._ctrl.copy_(torch.tensor(index.default_ctrl, dtype=torch.float32, device=self.device))

    def compile_reads(self, plan: ReadPlan) -> Mapping[FieldSlice, Tensor]:
        """Compiles kernels and captures the graphs; the state stays as it was."""
        self._check_open()
        self.capabilities.check_reads(plan, self.spec.index)
        check_slices(plan, self.spec.model)
        self._reads = compile_slices(plan, self._field)
        ordered = dict.fromkeys((*plan.step, *plan.reset))
        self._keep_acceleration({item: self._reads.tensors[item] for item in ordered})
        everything = (*plan.step, *plan.reset)
        self._acc_sensors = any(
            item.field == "sensordata" and is_acceleration(item) for item in everything
        )
        # A reset may refresh no field that the step left stale: other rows would change under it.
        step_refresh, reset_refresh = launches(everything), launches(plan.reset)
        capture = self._runner.capture
        graphs = {"get_state": capture("get_state", self._pack)}
        graphs["get_state"]()
        saved = self._packed.clone()
        graphs["step"] = capture("step", lambda: self._substeps(step_refresh))
        for source in ("payload", "rows"):
            graphs[source] = capture("reset", lambda s=source: self._unpack(s, reset_refresh))
        if self._derives:
            # Run here once for all rows: constants that Warp computes differ in the last bits
            # from the compiled ones, so that a later partial write would change other rows.
            graphs["set_const"] = capture("set_const", lambda: mjw.set_const(self._m, self._d))
        self._graphs = graphs
        self._restore(saved, step_refresh)
        return self._reads.tensors

    def _restore(self, rows: Tensor, refresh: tuple[str, ...]) -> None:
        """Undoes the warm-up: state back, what a step left behind cleared, reads current."""
        self._write(rows, self._all)
        with self._runner.scope():
            self._d.overflow.zero_()
            self._demand.zero_()
            self._refresh(refresh)
        self._faults.zero_()
        for carrier in self._reads.step_carriers:
            if not carrier.acceleration:
                carrier.fill()
        self._runner.synchronize()

    # -- work inside graphs: Warp launches only ----------------------------------------------

    def _substeps(self, refresh: tuple[str, ...]) -> None:
        m, d = self._m, self._d
        flags = m.opt.disableflags
        no_sensors = flags | int(mjw.DisableBit.SENSOR)
        d.overflow.zero_()  # the bits are sticky
        try:
            # Only the last substep's acceleration sensors can be read; the refresh computes the
            # others. State and final sensordata are bit-equal to running them all.
            for substep in range(self.spec.decimation):
                last = substep == self.spec.decimation - 1
                m.opt.disableflags = flags if last and self._acc_sensors else no_sensors
                mjw.step(m, d)
                wp.launch(
                    _note_demand,
                    dim=self.num_envs,
                    inputs=[d.nacon, d.ncollision, d.nefc],
                    outputs=[self._demand],
                )
        finally:
            m.opt.disableflags = flags
        self._refresh(refresh)

    def _refresh(self, names: tuple[str, ...]) -> None:
        for name in names:
            getattr(mjw, name)(self._m, self._d)

    def _pack(self) -> None:
        mjw.get_state(self._m, self._d, self._wp["packed"], _INTEGRATION, self._wp["all"])

    def _unpack(self, source: str, refresh: tuple[str, ...]) -> None:
        # Never mjw.reset_data: in 4.0 it disturbs the contacts of other worlds.
        mjw.set_state(self._m, self._d, self._wp[source], _INTEGRATION, self._wp["mask"])
        if not self._m.is_sparse:
            # mujoco_warp 4.0 multiplies rows beyond `nefc` by 0: NaN that a bad state left there
            # would make every later step of the world NaN.
            jacobian = self._d.efc.J
            wp.launch(
                _clear_jacobian,
                dim=jacobian.shape[:2],
                inputs=[self._wp["mask"], jacobian.shape[2]],
                outputs=[jacobian],
            )
        self._refresh(refresh)

    # -- operations --------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The `mujoco_warp.Model`."""
        self._check_open()
        return self._m

    @property
    def data(self) -> Any:
        """The `mujoco_warp.Data`; a captured graph ignores arrays put in place of its own."""
        self._check_open()
        return self._d

    def views(self) -> StateViews:
        """Views of the engine's own positions and velocities."""
        self._check_open()
        return StateViews(qpos=self._qpos, qvel=self._qvel)

    def allocate_reset_payload(self) -> TensorResetRandomizationPayload:
        """Default rows; the first payload is the graph's own input and is reset without a copy."""
        self._check_open()
        state = self._default_rows.clone() if self._payload_taken else self._payload
        self._payload_taken = True
        index = self.spec.index
        q, v = index.qpos_offset, index.qvel_offset
        return TensorResetRandomizationPayload(
            state=state, qpos=state[:, q : q + index.nq], qvel=state[:, v : v + index.nv]
        )

    def step(self, ctrl: Tensor, interval: TensorIntervalPayload | None) -> StepReceipt:
        """One graph for all substeps and the refresh; see the base class."""
        self._ready()
        self._runner.begin()
        self._ctrl.copy_(ctrl)
        if interval is not None:
            self._apply(interval)
        self._graphs["step"]()
        torch.index_select(self._fault_table, 0, self._overflow, out=self._faults)
        for carrier in self._reads.step_carriers:
            carrier.fill()
        receipt = self._receipt("step", self._runner.record())
        self._budgets.poll()
        return receipt

    def _apply(self, interval: TensorIntervalPayload) -> None:
        if interval.qvel_delta is not None:
            self._qvel.add_(interval.qvel_delta)
        if interval.body_wrench is not None:
            bodies = interval.wrench_bodies
            ids = self._wrench_ids.get(bodies)
            if ids is None:  # once for each set of bodies: a payload keeps its own
                ids = torch.tensor(bodies, dtype=torch.int64, device=self.device)
                self._wrench_ids[bodies] = ids
            self._xfrc.index_copy_(1, ids, interval.body_wrench.unflatten(1, (-1, 6)))

    def reset(self, payload: TensorResetRandomizationPayload, mask: Tensor) -> StepReceipt:
        """One graph for the masked write and the refresh; see the base class."""
        self._ready()
        self._write(payload.state, mask)
        return self._receipt("reset", self._runner.record())

    def _write(self, state: Tensor, mask: Tensor) -> None:
        self._runner.begin()
        self._mask.copy_(mask)
        source = "payload"
        if state.data_ptr() != self._payload.data_ptr():
            self._rows.copy_(state)
            source = "rows"
        for tensor in self._reads.cleared:
            tensor.masked_fill_(self._mask_column, 0.0)
        self._graphs[source]()
        for carrier in self._reads.reset_carriers:
            carrier.fill()

    def nominal(self, name: str) -> Tensor:
        """The compiled model's value; see the base class."""
        values = np.array(operator.attrgetter(name)(self.spec.model), dtype=np.float32)
        return torch.from_numpy(values).to(self.device)

    def _model_field(self, name: str) -> Tensor:
        if name not in self._fields:
            raise ConfigError(f"model field not declared: {near(name, self._fields)}")
        return self._fields[name]

    def set_model_fields(
        self, fields: Mapping[str, Tensor], mask: Tensor, level: RecomputeLevel
    ) -> None:
        """Writes in place, where the captured graphs read; see the base class.

        Constants are recomputed for all rows (the engine has no mask); rows whose inputs did not
        change keep their bits.
        """
        self._ready()
        self._runner.begin()
        for name, values in fields.items():
            target = self._model_field(name)
            rows = mask.view(-1, *(1,) * (target.ndim - 1))
            torch.where(rows, values, target, out=target)
        if level >= RecomputeLevel.ALL and self._derives:
            self._graphs["set_const"]()
        self._runner.record()

    def get_model_field(self, name: str) -> Tensor:
        """A copy of the per-environment values; see the base class."""
        self._check_open()
        return self._model_field(name).clone()

    def budget_use(self) -> tuple[Tensor, Tensor]:
        """Contacts and constraint rows of the last substep; waits for the device."""
        self._ready()
        self._runner.synchronize()
        pool = int(self._d.naconmax)
        made = min(int(self._d.nacon.numpy()[0]), pool)
        worlds = _tensor(self._d.contact.worldid)[:made].long()
        return torch.bincount(worlds, minlength=self.num_envs), _tensor(self._d.nefc).long()

    def faults(self) -> Tensor:
        """Budget overflows of the last step as fault bits; states are not checked here."""
        return self._faults

    def get_state(self) -> Tensor:
        """A float32 copy of the packed rows."""
        self._ready()
        self._runner.begin()
        self._graphs["get_state"]()
        state = self._packed.clone()
        self._runner.record()
        return state

    def set_state(self, state: Tensor, mask: Tensor) -> StepReceipt:
        """Writes packed rows; acceleration-stage reads of these rows become 0."""
        self._ready()
        self._write(state, mask)
        return self._receipt("reset", self._runner.record())

    def render_state(self, row: int) -> tuple[list[float], list[float]]:
        """Positions and velocities of one row; waits for the device."""
        self._check_open()
        self._runner.begin()
        return self._qpos[row].tolist(), self._qvel[row].tolist()

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("the backend is closed")

    def _ready(self) -> None:
        self._check_open()
        if not self._graphs:
            self.compile_reads(ReadPlan((), ()))

    def close(self) -> None:
        """Drops the graphs and the engine's memory, which tensors still held keep alive."""
        if self._closed:
            return
        self._closed = True
        self._runner.synchronize()
        self._graphs, self._reads, self._fields, self._acceleration = {}, Reads(), {}, []
        self._m = self._d = None


def _tensor(array: Any) -> Tensor:
    """The same memory as a tensor: Warp would copy a CPU array to torch's default device."""
    with torch.device("cpu"):
        return wp.to_torch(array)


def _default_row(spec: BackendSpec) -> list[float]:
    """The packed default state; both engines share the layout."""
    data = mujoco.MjData(spec.model)
    data.qpos[:] = spec.index.default_qpos
    data.ctrl[:] = spec.index.default_ctrl
    row = np.zeros(spec.index.nstate)
    mujoco.mj_getState(spec.model, data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
    return row.tolist()


def _fault_table() -> list[int]:
    """Overflow word -> fault word, for every word: one gather instead of masks and shifts."""
    known = sum(int(bits) for bits in _OVERFLOW_BITS.values())
    table: list[int] = []
    for word in range(int(_KIND.ALL) + 1):
        fault = int(FaultBit.CONSTRAINT_OVERFLOW) if word & ~known else 0
        for bit, bits in _OVERFLOW_BITS.items():
            fault |= int(bit) if word & int(bits) else 0
        table.append(fault)
    return table

"""MuJoCo C on the CPU through `mujoco.batch.Batch`: the embedded default.

The host boundary of the package: NumPy views are bound once, rows are copied between MuJoCo's
float64 rows and float32 torch tensors, and `flatnonzero(mask)` picks the rows of a reset. No
reward, observation or command arithmetic happens here.

The batch is shared (`persistent=False`: less memory, 2-6 % faster). A field that a call does not
compute is then another environment's leftover, so this file copies only what the call computed
and writes 0 to acceleration-stage reads of rows just reset.
"""

from __future__ import annotations

import contextlib
import operator
import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from unilab_gym.backends.base import (
    Backend,
    BackendSpec,
    FaultBit,
    FieldSlice,
    ReadPlan,
    RecomputeLevel,
    Stage,
    StateViews,
    StepReceipt,
    TensorIntervalPayload,
    TensorResetRandomizationPayload,
)
from unilab_gym.backends.capabilities import CAPABILITIES
from unilab_gym.engine import DATA_FIELDS, Batch, SimulationError, mujoco
from unilab_gym.errors import BackendError, BudgetOverflowWarning, ConfigError, near

_WARNING_BITS = (  # order of mjtWarning in 4.0
    FaultBit.ENGINE_BAD_STATE,  # INERTIA
    FaultBit.CONSTRAINT_OVERFLOW,  # CONTACTFULL
    FaultBit.CONSTRAINT_OVERFLOW,  # CNSTRFULL
    FaultBit.ENGINE_BAD_STATE,  # BADQPOS
    FaultBit.ENGINE_BAD_STATE,  # BADQVEL
    FaultBit.ENGINE_BAD_STATE,  # BADQACC
    FaultBit.ENGINE_BAD_CTRL,  # BADCTRL
)
_SHORT = 4
"""A dimension of so many entries is short; sums over it are the same bits in either layout."""
_FEW = 24
"""Rows that are reset one by one; more are faster together."""
_BOUND_TENSORS = 32
"""Tensors of callers whose views are kept; the runtime has half a dozen."""


def usable_cpus() -> int:
    """CPUs this process may run on (the scheduler's mask where there is one)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _ignore(message: str) -> None:
    """Takes a warning that the fault word tells of."""


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Warnings go to the fault word, not to stderr and MUJOCO_LOG.TXT.

    MuJoCo's warning handler is process-global, so it is saved and restored around each call.
    """
    saved: Callable[[str], None] | None = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(_ignore)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(saved)


class _Reader:
    """Copies one field slice from a bound MuJoCo array into a float32 tensor.

    The tensor's memory is `[*shape, N]` where every dimension is short (vectors, matrices,
    scalars): work on rows of three numbers takes several times as long as on N at a time.
    """

    def __init__(self, item: FieldSlice, source: Any, num_envs: int) -> None:
        self.acceleration = item.stage == Stage.ACC
        width = len(item.columns)
        if all(size <= _SHORT for size in item.shape):
            memory = torch.zeros((*item.shape, num_envs), dtype=torch.float32, device="cpu")
            self.tensor = memory.movedim(-1, 0)
            self._target: Any = memory.numpy().reshape(width, num_envs).T
        else:
            memory = torch.zeros((num_envs, *item.shape), dtype=torch.float32, device="cpu")
            self.tensor = memory
            self._target = memory.numpy().reshape(num_envs, width)
        flat = source.reshape(num_envs, -1) if source.ndim != 2 else source
        if flat.size and not np.shares_memory(flat, source):
            raise BackendError(f"field {item.field!r} cannot be viewed as rows")
        self.item = item
        self._source, self._columns = _slice_rows(item, flat)
        if self._columns is None:
            self._target = self._target.reshape(self._source.shape)

    def copy_all(self) -> None:
        source = self._source if self._columns is None else self._source[:, self._columns]
        np.copyto(self._target, source, casting="same_kind")

    def copy_rows(self, ids: Any) -> None:
        source = self._source[ids]
        self._target[ids] = source if self._columns is None else source[:, self._columns]

    def copy_row(self, row: int) -> None:
        source = self._source[row]
        self._target[row] = source if self._columns is None else source[self._columns]

    def clear_rows(self, ids: Any) -> None:
        self._target[ids] = 0.0

    def like(self, source: Any) -> Callable[[int], None]:
        """Copies the slice of one row `source` `[1, width]`, which keeps its memory, to a row."""
        view, columns = _slice_rows(self.item, source)
        target = self._target

        def copy(row: int) -> None:
            target[row] = view[0] if columns is None else view[0, columns]

        return copy


def _slice_rows(item: FieldSlice, flat: Any) -> tuple[Any, Any]:
    """A view `[N, blocks, inner]` of the slice, or the rows as they are and its columns."""
    columns = np.asarray(item.columns)
    inner = item.shape[-1] if len(item.shape) > 1 else 1
    blocks = columns.reshape(-1, inner)
    starts = blocks[:, 0]
    step = int(starts[1] - starts[0]) if len(starts) > 1 else inner
    regular = np.array_equal(
        blocks, starts[0] + step * np.arange(len(starts))[:, None] + np.arange(inner)
    )
    if regular:  # equally spaced blocks are a view, no index list
        row, col = flat.strides
        shape = (flat.shape[0], len(starts), inner)
        view = flat[:, int(starts[0]) :]
        return as_strided(view, shape, (row, step * col, col), writeable=False), None
    return flat, columns


class _Kinematics:
    """Refreshes single rows in the caller's own thread.

    A forward pass of the batch wakes its threads, which takes longer than the kinematics of a few
    rows. The same function of the engine, so the same bits.
    """

    FIELDS = ("xpos", "xquat", "xmat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat")
    """Results of `mj_kinematics` that depend on positions and on no randomized field."""

    @classmethod
    def serves(cls, model: Any, readers: Sequence[_Reader]) -> bool:
        """Whether it refreshes everything that these readers want."""
        known = (*cls.FIELDS, "qpos", "qvel")  # these need no pass
        return model.nmocap == 0 and {reader.item.field for reader in readers} <= set(known)

    def __init__(self, model: Any, qpos: Any, readers: Sequence[_Reader]) -> None:
        self._model, self._data = model, mujoco.MjData(model)
        self._rows_qpos = qpos
        self._qpos: Any = self._data.qpos
        self._copies: list[Callable[[int], None]] = []
        for reader in readers:
            if reader.item.field in self.FIELDS:
                source: Any = getattr(self._data, reader.item.field)
                self._copies.append(reader.like(source.reshape(1, -1)))

    def refresh(self, row: int) -> None:
        self._qpos[:] = self._rows_qpos[row]
        mujoco.mj_kinematics(self._model, self._data)
        for copy in self._copies:
            copy(row)


class MujocoBackend(Backend):
    """N environments in one `mujoco.batch.Batch` on all usable CPUs.

    Bitwise deterministic whatever the thread count.
    """

    capabilities = CAPABILITIES["mujoco"]

    def __init__(self, spec: BackendSpec) -> None:
        """Builds the batch at the default state.

        Raises:
            ConfigError: If `num_threads` is not positive.
        """
        super().__init__(spec)
        threads = usable_cpus() if spec.num_threads is None else spec.num_threads
        if threads <= 0:
            raise ConfigError(f"num_threads must be positive, got {threads}")
        n, index = spec.num_envs, spec.index
        self._batch: Any = Batch(spec.model, n, nthread=threads, persistent=False)
        self._rows: Any = self._batch.state  # [N, nstate] float64
        start, width = index.qpos_offset, index.nq + index.nv
        self._rows_q: Any = self._rows[:, start : start + width]
        self._rows_qpos: Any = self._rows[:, start : start + index.nq]
        self._q = torch.zeros((n, width), dtype=torch.float32, device="cpu")
        self._q_np = self._q.numpy()
        self._rows_qvel: Any = self._batch.bind("qvel")
        self._rows_ctrl: Any = self._batch.bind("ctrl")
        self._rows_xfrc: Any = self._batch.bind("xfrc_applied")  # [N, nbody, 6]
        self._default_row = self._pack_default()
        self._rows[:] = self._default_row
        np.copyto(self._q_np, self._rows_q, casting="same_kind")
        self._fields = {name: self._batch.expand(name) for name in spec.model_fields}
        self._warning: Any = self._batch.warning
        self._counts: Any = self._warning[:, :, 1]
        self._faults = torch.zeros(n, dtype=torch.int32, device="cpu")
        self._faults_np = self._faults.numpy()
        self._faulty = False
        self._arena_told = False
        self._plan = ReadPlan((), ())
        self._step_readers: list[_Reader] = []
        self._reset_readers: list[_Reader] = []
        self._cleared_readers: list[_Reader] = []
        self._row_copies: list[Callable[[int], None]] | None = None
        self._step_stage = self._reset_stage = mujoco.mjtStage.mjSTAGE_NONE
        self._bound: dict[int, tuple[Tensor, Any]] = {}
        self._closed = False

    def _pack_default(self) -> Any:
        index = self.spec.index
        data = mujoco.MjData(self.spec.model)
        data.qpos[:] = index.default_qpos
        data.ctrl[:] = index.default_ctrl
        row = np.zeros(index.nstate)
        mujoco.mj_getState(self.spec.model, data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
        return row

    @property
    def model(self) -> Any:
        """The shared `mujoco.MjModel`."""
        return self.spec.model

    @property
    def batch(self) -> Any:
        """The native `mujoco.batch.Batch`."""
        return self._batch

    def views(self) -> StateViews:
        """Float32 copies of the state at the last boundary."""
        nq = self.spec.index.nq
        return StateViews(qpos=self._q[:, :nq], qvel=self._q[:, nq:], packed=self._q)

    def _array(self, tensor: Tensor) -> Any:
        """A NumPy view of a caller's tensor, made once per tensor that comes again and again."""
        entry = self._bound.get(tensor.data_ptr())
        if entry is None or entry[0] is not tensor:
            if len(self._bound) >= _BOUND_TENSORS:  # somebody hands over a new tensor each time
                self._bound.clear()
            entry = (tensor, tensor.numpy())
            self._bound[tensor.data_ptr()] = entry
        return entry[1]

    def compile_reads(self, plan: ReadPlan) -> Mapping[FieldSlice, Tensor]:
        """Binds the fields; see the base class.

        Raises:
            ConfigError: If a field is unknown.
            BackendError: If a slice names columns that the field does not have.
        """
        self._check_open()
        self.capabilities.check_reads(plan, self.spec.index)
        for item in dict.fromkeys((*plan.step, *plan.reset)):
            self._check_slice(item)
        nq = self.spec.index.nq
        tensors: dict[FieldSlice, Tensor] = {}
        readers: dict[FieldSlice, _Reader] = {}
        for item in dict.fromkeys((*plan.step, *plan.reset)):
            if item.field in ("qpos", "qvel") and item.is_range and len(item.columns) > _SHORT:
                offset = item.columns[0] + (nq if item.field == "qvel" else 0)
                view = self._q[:, offset : offset + len(item.columns)]
                tensors[item] = view.unflatten(1, item.shape)
                continue
            source = self._batch.bind(item.field)
            readers[item] = _Reader(item, source, self.num_envs)
            if item.field in ("qpos", "qvel"):  # the default state, as in the block
                readers[item].copy_all()
            tensors[item] = readers[item].tensor
        self._plan = plan
        self._keep_acceleration(tensors)
        self._step_readers = [readers[item] for item in plan.step if item in readers]
        self._reset_readers = [readers[item] for item in plan.reset if item in readers]
        self._cleared_readers = [reader for reader in self._reset_readers if reader.acceleration]
        stages = (mujoco.mjtStage.mjSTAGE_NONE, mujoco.mjtStage.mjSTAGE_POS)
        stages = (*stages, mujoco.mjtStage.mjSTAGE_VEL, mujoco.mjtStage.mjSTAGE_VEL)
        # ACC reads hold the last substep's value: stage ACC would use a control never applied.
        self._step_stage = stages[plan.step_stage]
        self._reset_stage = stages[plan.reset_stage]
        self._row_copies = self._one_by_one(plan.reset_stage)
        return tensors

    def _one_by_one(self, stage: Stage) -> list[Callable[[int], None]] | None:
        """What refreshes a single row after a reset, or None where only the batch can."""
        readers = [reader for reader in self._reset_readers if not reader.acceleration]
        if stage == Stage.NONE:
            return [reader.copy_row for reader in readers]
        if stage == Stage.POS and _Kinematics.serves(self.spec.model, readers):
            own = [r.copy_row for r in readers if r.item.field not in _Kinematics.FIELDS]
            kinematics = _Kinematics(self.spec.model, self._rows_qpos, readers)
            return [*own, kinematics.refresh]
        return None

    def _check_slice(self, item: FieldSlice) -> None:
        if item.field not in DATA_FIELDS:
            raise ConfigError(
                f"backend 'mujoco' cannot read field {near(item.field, sorted(DATA_FIELDS))}"
            )
        width = self._batch.bind(item.field).reshape(self.num_envs, -1).shape[1]
        if not item.columns or min(item.columns) < 0 or max(item.columns) >= width:
            raise BackendError(f"columns {item.columns} of field {item.field!r}: it has {width}")

    def allocate_reset_payload(self) -> TensorResetRandomizationPayload:
        """Default rows in float32."""
        row = torch.from_numpy(self._default_row.astype(np.float32))
        state = row.repeat(self.num_envs, 1)
        index = self.spec.index
        q, v = index.qpos_offset, index.qvel_offset
        return TensorResetRandomizationPayload(
            state=state, qpos=state[:, q : q + index.nq], qvel=state[:, v : v + index.nv]
        )

    def step(self, ctrl: Tensor, interval: TensorIntervalPayload | None) -> StepReceipt:
        """One call of the batch for the whole decimation loop; see the base class."""
        self._check_open()
        np.copyto(self._rows_ctrl, self._array(ctrl))
        if interval is not None:
            self._apply(interval)
        failed: Any = None
        with _quiet():
            try:
                self._batch.step(nstep=self.spec.decimation, stage=self._step_stage)
            except SimulationError as error:
                failed = error.ids
        np.copyto(self._q_np, self._rows_q, casting="same_kind")
        for reader in self._step_readers:
            reader.copy_all()
        self._read_faults(failed)
        return self._receipt("step")

    def _apply(self, interval: TensorIntervalPayload) -> None:
        if interval.qvel_delta is not None:
            self._rows_qvel += self._array(interval.qvel_delta)
        if interval.body_wrench is not None:
            wrench = self._array(interval.body_wrench)
            bodies = list(interval.wrench_bodies)
            self._rows_xfrc[:, bodies] = wrench.reshape(self.num_envs, len(bodies), 6)

    def _read_faults(self, failed: Any) -> None:
        if self._faulty:
            self._faults_np[:] = 0
            self._faulty = False
        if self._counts.any():
            for column, bit in enumerate(_WARNING_BITS):
                self._faults_np[self._counts[:, column] > 0] |= int(bit)
            self._warning[:] = 0
            self._faulty = True
        if failed is not None:
            self._faults_np[np.asarray(failed)] |= int(FaultBit.ENGINE_ERROR)
            self._faulty = True
        if self._faulty and not self._arena_told:
            self._warn_arena()

    def _warn_arena(self) -> None:
        """Cold: says once which memory ran out."""
        full = int(FaultBit.CONSTRAINT_OVERFLOW | FaultBit.ENGINE_ERROR)
        rows = np.flatnonzero(self._faults_np & full)
        if rows.size:
            self._arena_told = True
            warnings.warn(
                f"MuJoCo's arena of {self.spec.model.narena} bytes was exhausted in {rows.size} "
                f"environment(s) (row {rows[0]} first): contacts or constraints were dropped. "
                "Leave <size memory=.../> out of the MJCF (MuJoCo's own size is enough) or "
                "enlarge it",
                BudgetOverflowWarning,
                stacklevel=4,
            )

    def reset(self, payload: TensorResetRandomizationPayload, mask: Tensor) -> StepReceipt:
        """Resets and refreshes the masked rows only; see the base class."""
        self._check_open()
        (ids,) = self._array(mask).nonzero()
        if ids.size:
            self._write_rows(ids, self._array(payload.state))
        return self._receipt("reset")

    def _write_rows(self, ids: Any, values: Any) -> None:
        """Writes these rows of `values` `[N, nstate]` and refreshes what a reset reads of them."""
        # No Batch.reset: a row of a shared batch is its state row, which is written whole, and its
        # outputs, which the forward pass and the zeros below replace. It would cost 0.3 us per
        # environment where 4 % of 1024 rows reset.
        if self._row_copies is not None and ids.size <= _FEW:
            for row in ids.tolist():
                self._rows[row] = values[row]
                self._q_np[row] = self._rows_q[row]
                for copy in self._row_copies:
                    copy(row)
        else:
            self._rows[ids] = values[ids]
            self._q_np[ids] = self._rows_q[ids]
            if self._reset_stage != mujoco.mjtStage.mjSTAGE_NONE:
                # A row that fails here fails again in its next step, which sets its fault bit.
                with _quiet(), contextlib.suppress(SimulationError):
                    self._batch.forward(ids, stage=self._reset_stage)
            for reader in self._reset_readers:
                if not reader.acceleration:
                    reader.copy_rows(ids)
        for reader in self._cleared_readers:
            reader.clear_rows(ids)

    def nominal(self, name: str) -> Tensor:
        """The compiled model's value; see the base class."""
        value = np.array(operator.attrgetter(name)(self.spec.model), dtype=np.float32)
        return torch.from_numpy(value)

    def _field(self, name: str) -> Any:
        if name not in self._fields:
            raise ConfigError(f"model field not declared: {near(name, self._fields)}")
        return self._fields[name]

    def set_model_fields(
        self, fields: Mapping[str, Tensor], mask: Tensor, level: RecomputeLevel
    ) -> None:
        """Writes masked rows; a value equal to the nominal one keeps the nominal float64 bits."""
        self._check_open()
        targets = {name: self._field(name) for name in fields}
        ids = np.flatnonzero(mask.numpy())
        if not ids.size:
            return
        for name, values in fields.items():
            nominal = operator.attrgetter(name)(self.spec.model)
            given = values.numpy()[ids]
            same = given == nominal.astype(np.float32)
            targets[name][ids] = np.where(same, nominal, given)
        if level >= RecomputeLevel.ALL:
            with _quiet():
                self._batch.set_const(ids)

    def get_model_field(self, name: str) -> Tensor:
        """Per-environment values, float32 copy."""
        self._check_open()
        return torch.from_numpy(self._field(name).astype(np.float32))

    def budget_use(self) -> tuple[Tensor, Tensor]:
        """Contacts and constraint rows of the last substep; see the base class."""
        self._check_open()
        contacts, constraints = (self._batch.bind(name).tolist() for name in ("ncon", "nefc"))
        return torch.tensor(contacts, device="cpu"), torch.tensor(constraints, device="cpu")

    def faults(self) -> Tensor:
        """Warnings and errors of the last step as fault bits, `int32 [N]`."""
        return self._faults

    def get_state(self) -> Tensor:
        """A float64 copy of the packed rows."""
        self._check_open()
        return torch.from_numpy(self._rows.copy())

    def set_state(self, state: Tensor, mask: Tensor) -> StepReceipt:
        """Writes packed rows; see the base class."""
        self._check_open()
        ids = np.flatnonzero(mask.numpy())
        if ids.size:
            self._write_rows(ids, state.numpy())
        return self._receipt("reset")

    def render_state(self, row: int) -> tuple[list[float], list[float]]:
        """Positions and velocities of one row in float64."""
        self._check_open()
        index = self.spec.index
        q, v = index.qpos_offset, index.qvel_offset
        values = self._rows[row]
        return values[q : q + index.nq].tolist(), values[v : v + index.nv].tolist()

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("the backend is closed")

    def close(self) -> None:
        """Drops the batch and every view of it: its worker threads end with the last one."""
        self._closed = True
        self._batch = self._rows = self._rows_q = self._rows_qvel = self._rows_ctrl = None
        self._rows_xfrc = self._rows_qpos = self._row_copies = None
        self._warning = self._counts = None
        self._fields = {}
        self._step_readers, self._reset_readers, self._cleared_readers = [], [], []
        self._acceleration = []
        self._bound = {}

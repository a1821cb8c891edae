"""The backend contract: what a physics engine offers to the runtime, in about a dozen operations.

A backend owns N copies of one compiled MJCF on one device. The runtime never sees an engine's
types: it hands over torch tensors and gets torch tensors that keep their address for life.

One control step, as the runtime drives it::

    receipt = backend.step(ctrl, interval)      # payload, decimation loop, refresh of phase "step"
    ...                                         # the runtime computes rewards, flags, commands
    receipt = backend.reset(payload, mask)      # masked rows only, refresh of phase "reset"

Reads are compiled once (`compile_reads`): each `FieldSlice` becomes one tensor that is valid
after every step for phase "step" slices, and after every reset for phase "reset" slices. Reads of
acceleration-stage fields hold the last substep's value, and 0 in rows just reset.
"""

from __future__ import annotations

import enum
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError, UnsupportedCapabilityError, near
from unilab_gym.model_index import FieldSlice, ModelIndex, Stage

__all__ = [
    "Backend",
    "BackendSpec",
    "Capabilities",
    "FaultBit",
    "FieldSlice",
    "ModelIndex",
    "ReadPlan",
    "RecomputeLevel",
    "Stage",
    "StateViews",
    "StepReceipt",
    "TensorIntervalPayload",
    "TensorResetRandomizationPayload",
]

FIELD_OBJECTS: Mapping[str, str] = {
    "geom_friction": "geom",
    "body_mass": "body",
    "body_inertia": "body",
    "body_ipos": "body",
    "dof_armature": "joint",
    "dof_damping": "joint",
    "dof_frictionloss": "joint",
    "actuator_gainprm": "actuator",
    "actuator_biasprm": "actuator",
    "actuator_forcerange": "actuator",
    "opt.gravity": "",
}
"""Model field -> what its rows belong to; gravity belongs to the whole model."""

MODEL_FIELDS = tuple(FIELD_OBJECTS)
"""Model fields that every shipped backend can hold per environment."""

INTERVAL_PARTS = ("qvel_delta", "body_wrench")
"""Parts of a `TensorIntervalPayload`."""


class FaultBit(enum.IntFlag):
    """Named bits of the fault word, `int32 [N]`; those that end an episode come first."""

    ACTION_NONFINITE = 1 << 0
    """The action held a NaN (taken as 0) or an infinity (taken as the bound)."""
    STATE_NONFINITE = 1 << 1
    """Positions or velocities are NaN or infinite after physics."""
    STATE_ABSURD = 1 << 2
    """Positions or velocities are finite but beyond any physical bound."""
    ENGINE_BAD_STATE = 1 << 3
    """The engine re-initialised the row by itself (MuJoCo's BADQPOS, BADQVEL, BADQACC)."""
    ENGINE_BAD_CTRL = 1 << 4
    """The engine zeroed the row's controls (MuJoCo's BADCTRL)."""
    ENGINE_ERROR = 1 << 5
    """The engine raised for this row (arena exhausted ...); the row kept its old state."""
    CONSTRAINT_OVERFLOW = 1 << 6
    """The row's own constraint budget overflowed (`SimCfg.njmax`)."""
    REWARD_NONFINITE = 1 << 7
    """The reward is NaN or infinite (also where the state is)."""
    CONTACT_POOL_OVERFLOW = 1 << 8
    """The contact pool that rows share overflowed (`SimCfg.nconmax`): counted, not quarantined."""
    SOLVER_ITERATIONS = 1 << 9
    """The solver ran out of iterations: a metric, never quarantined."""


QUARANTINE = (
    FaultBit.ACTION_NONFINITE
    | FaultBit.STATE_NONFINITE
    | FaultBit.STATE_ABSURD
    | FaultBit.ENGINE_BAD_STATE
    | FaultBit.ENGINE_BAD_CTRL
    | FaultBit.ENGINE_ERROR
    | FaultBit.CONSTRAINT_OVERFLOW
    | FaultBit.REWARD_NONFINITE
)
"""The bits that end a row's episode; the others are counted only."""


class RecomputeLevel(enum.IntEnum):
    """Which derived model constants follow a write of model fields."""

    NONE = 0
    """Friction, gains, damping, force limits: nothing is derived from them."""
    ALL = 1
    """Masses, inertias, centres of mass, armatures: `mj_setConst`."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend can honour; checked when an environment is built, never in a step."""

    name: str
    device_types: tuple[str, ...]
    """Torch device types it can run on."""
    model_fields: tuple[str, ...] = MODEL_FIELDS
    """Fields that can differ between environments."""
    interval: tuple[str, ...] = INTERVAL_PARTS
    """Parts of `TensorIntervalPayload` that it applies."""
    bitwise_deterministic: bool = False
    """Same seed and actions give the same bits, whatever the thread count."""
    fault_containment: bool = True
    """A bad row leaves every other row bit-identical."""
    quaternion_order: Literal["wxyz", "xyzw"] = "wxyz"
    """Order of the quaternions that it hands out; the runtime reads wxyz only."""
    sensor_types: tuple[str, ...] | None = None
    """Kinds of sensors that it evaluates (`SensorInfo.kind`); None: every kind."""
    fixed_options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    """Engine settings it does not choose freely: name in `SimCfg` -> values that it honours.

    A setting that an engine silently ignores belongs here, so that asking for it is refused."""

    def check_spec(self, spec: BackendSpec) -> None:
        """Refuses a device, a model field or a setting that the engine cannot honour.

        Raises:
            UnsupportedCapabilityError: Names the backend and what it cannot do.
        """
        if spec.device.type not in self.device_types:
            raise UnsupportedCapabilityError(
                f"backend {self.name!r} runs on {' or '.join(self.device_types)}, "
                f"not on {str(spec.device)!r}"
            )
        for name in spec.model_fields:
            if name not in self.model_fields:
                raise UnsupportedCapabilityError(
                    f"backend {self.name!r} cannot randomize model field "
                    + near(name, self.model_fields)
                )
        for name, honoured in self.fixed_options.items():
            value = spec.options.get(name)
            if value is not None and value not in honoured:
                raise UnsupportedCapabilityError(
                    f"backend {self.name!r} cannot honour sim.{name}={value!r}, it honours "
                    f"{', '.join(map(repr, honoured)) or 'no value'}"
                )

    def check_reads(self, plan: ReadPlan, index: ModelIndex) -> None:
        """Refuses reads of sensors that the engine does not evaluate.

        Raises:
            UnsupportedCapabilityError: Names the backend, the sensor and its kind.
        """
        if self.sensor_types is None:
            return
        columns = {
            column
            for item in (*plan.step, *plan.reset)
            if item.field == "sensordata"
            for column in item.columns
        }
        for sensor in index.sensors.values():
            read = columns.intersection(range(sensor.adr, sensor.adr + sensor.dim))
            if read and sensor.kind not in self.sensor_types:
                raise UnsupportedCapabilityError(
                    f"backend {self.name!r} cannot evaluate sensor {sensor.name!r}: kind "
                    + near(sensor.kind, self.sensor_types)
                )

    def check_runtime(self, on_fault: str) -> None:
        """Refuses an engine whose conventions the runtime cannot work with.

        Raises:
            UnsupportedCapabilityError: If its quaternions are not wxyz, or a bad row would harm
                others although bad rows are to be quarantined.
        """
        if self.quaternion_order != "wxyz":
            raise UnsupportedCapabilityError(
                f"backend {self.name!r} hands out {self.quaternion_order} quaternions; the runtime "
                "reads wxyz: convert them inside the backend"
            )
        if not self.fault_containment and on_fault == "quarantine":
            raise UnsupportedCapabilityError(
                f"backend {self.name!r} does not contain faults: one bad row harms the others, so "
                "on_fault='quarantine' cannot be honoured; use on_fault='raise'"
            )


@dataclass(frozen=True)
class ReadPlan:
    """Engine fields to refresh after a step (`step`) and after a reset (`reset`)."""

    step: tuple[FieldSlice, ...]
    reset: tuple[FieldSlice, ...]

    @property
    def step_stage(self) -> Stage:
        """The dearest stage that a phase "step" slice needs."""
        return max((item.stage for item in self.step), default=Stage.NONE)

    @property
    def reset_stage(self) -> Stage:
        """The dearest stage below acceleration that a phase "reset" slice needs."""
        stages = (item.stage for item in self.reset if item.stage < Stage.ACC)
        return max(stages, default=Stage.NONE)


@dataclass(frozen=True)
class BackendSpec:
    """Everything a backend needs to build itself."""

    model: Any
    """The compiled `mujoco.MjModel`, shared by both engines, never changed."""
    index: ModelIndex
    num_envs: int
    device: torch.device
    decimation: int
    """Physics substeps per control step."""
    model_fields: tuple[str, ...] = ()
    """MjModel fields that will be written per environment."""
    num_threads: int | None = None
    """CPU worker threads; None takes the CPUs this process may use."""
    nconmax: int | None = None
    """Contacts per environment in the shared pool (mjwarp)."""
    njmax: int | None = None
    """Constraint rows per environment (mjwarp)."""
    deterministic: bool = False
    """Ask the engine for repeatable results; see docs/determinism.md for what each gives."""
    cpu_ids: tuple[int, ...] | None = None
    """CPUs to confine the process to, see `backends.placement`."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The `SimCfg` settings that were asked for, for `Capabilities.fixed_options`."""

    def __post_init__(self) -> None:
        """Checks the counts.

        Raises:
            ConfigError: If a count is not positive or a model field is unknown.
        """
        if self.num_envs <= 0:
            raise ConfigError(f"num_envs must be positive, got {self.num_envs}")
        if self.decimation <= 0:
            raise ConfigError(f"decimation must be positive, got {self.decimation}")


@dataclass(frozen=True)
class StateViews:
    """Float32 views of the state at the last boundary; addresses never change.

    Views are read-only for the caller: writes reach the engine through payloads.
    """

    qpos: Tensor  # [N, nq]
    qvel: Tensor  # [N, nv]
    packed: Tensor | None = None  # [N, nq + nv], where the engine keeps both side by side


@dataclass
class TensorResetRandomizationPayload:
    """What a masked reset writes: one packed `mjSTATE_INTEGRATION` row per environment.

    The row layout is the same on both engines; `qpos` and `qvel` are views into `state`. The
    runtime allocates it once (`Backend.allocate_reset_payload`) and fills it at full width; rows
    outside the mask are ignored.
    """

    state: Tensor  # [N, nstate] float32
    qpos: Tensor  # [N, nq], view
    qvel: Tensor  # [N, nv], view


@dataclass
class TensorIntervalPayload:
    """What the next physics applies before its first substep; parts never used stay None."""

    qvel_delta: Tensor | None = None  # [N, nv], added to the velocities
    body_wrench: Tensor | None = None
    """`[N, 6 * len(wrench_bodies)]`: force (N) and torque (N m) at each body's centre of mass in
    the world frame, held for every substep; it replaces what these bodies carried before."""
    wrench_bodies: tuple[int, ...] = ()
    """Bodies of `body_wrench`, in the order of its blocks; the same in every step."""


_PRODUCERS = itertools.count(1)


@dataclass(frozen=True)
class StepReceipt:
    """Proof that an operation of one backend was issued, in order.

    Sequence numbers of one producer only grow. On CUDA the receipt carries an event; `wait`
    makes the caller's *current* stream wait for it, without blocking the host.
    """

    sequence: int
    producer: int
    operation: Literal["step", "reset", "refresh"]
    event: torch.cuda.Event | None = field(default=None, compare=False)

    def wait(self) -> None:
        """Orders the caller's current CUDA stream after the operation; nothing on the CPU."""
        if self.event is not None:
            self.event.wait(torch.cuda.current_stream(self.event.device))


class Backend(ABC):
    """N environments of one model on one engine. See the module docstring for the life cycle."""

    capabilities: Capabilities
    spec: BackendSpec
    device: torch.device
    num_envs: int

    def __init__(self, spec: BackendSpec) -> None:
        """Checks the spec against the capabilities and numbers this producer.

        Raises:
            UnsupportedCapabilityError: If the device or a model field is not supported.
        """
        self.capabilities.check_spec(spec)
        self.spec = spec
        self.device = spec.device
        self.num_envs = spec.num_envs
        self._producer = next(_PRODUCERS)
        self._sequence = 0
        self._acceleration: list[Tensor] = []

    def _receipt(
        self,
        operation: Literal["step", "reset", "refresh"],
        event: torch.cuda.Event | None = None,
    ) -> StepReceipt:
        self._sequence += 1
        return StepReceipt(self._sequence, self._producer, operation, event)

    @property
    def producer(self) -> int:
        """This backend's number in its receipts."""
        return self._producer

    @property
    @abstractmethod
    def model(self) -> Any:
        """The native model handle."""

    @abstractmethod
    def views(self) -> StateViews:
        """Positions and velocities of the last boundary, `[N, nq]` and `[N, nv]` float32."""

    @abstractmethod
    def compile_reads(self, plan: ReadPlan) -> Mapping[FieldSlice, Tensor]:
        """Prepares the refreshes and returns one stable float32 tensor per slice.

        Called once, before the first step. Each tensor has shape `[N, *slice.shape]`.
        """

    @abstractmethod
    def allocate_reset_payload(self) -> TensorResetRandomizationPayload:
        """A payload whose every row is the model's default state (home keyframe)."""

    @abstractmethod
    def step(self, ctrl: Tensor, interval: TensorIntervalPayload | None) -> StepReceipt:
        """Applies the payload, runs `decimation` substeps, refreshes phase "step" reads.

        Args:
            ctrl: Controls `[N, nu]` float32 on this device, held for all substeps.
            interval: What to apply before the first substep, or None.
        """

    @abstractmethod
    def reset(self, payload: TensorResetRandomizationPayload, mask: Tensor) -> StepReceipt:
        """Writes the payload's rows where `mask` `[N]` bool is true, refreshes "reset" reads.

        Rows outside the mask stay bit-identical, also in every refreshed tensor.
        """

    @abstractmethod
    def nominal(self, name: str) -> Tensor:
        """The immutable nominal value of a model field, float32, without the leading N."""

    @abstractmethod
    def set_model_fields(
        self, fields: Mapping[str, Tensor], mask: Tensor, level: RecomputeLevel
    ) -> None:
        """Writes per-environment model fields where the mask is true, then derived constants.

        Args:
            fields: MjModel field name -> values `[N, ...]` float32; declared in the spec.
            mask: `[N]` bool.
            level: Which derived constants to recompute.
        """

    @abstractmethod
    def get_model_field(self, name: str) -> Tensor:
        """A copy of a model field's values per environment, `[N, ...]` float32."""

    def read_back(self, name: str, of: str | None = None) -> Tensor:
        """What every environment really has: a randomized model field, by object name.

        Args:
            name: MjModel field, such as `body_mass`; declared in the spec.
            of: Name of the geom, body, joint or actuator; None for all of them, and for a field
                of the whole model such as `opt.gravity`.

        Returns:
            A copy, `[N, ...]` float32.

        Raises:
            ConfigError: If the field is not declared or nothing has that name.
        """
        values = self.get_model_field(name)
        return values if of is None else values[:, self.spec.index.field_row(name, of)]

    def budget_use(self) -> tuple[Tensor, Tensor]:
        """Contacts and constraint rows of each environment in the last substep, `[N]` int64.

        For sizing; it may wait for the device.

        Raises:
            UnsupportedCapabilityError: If the engine does not tell.
        """
        raise UnsupportedCapabilityError(
            f"backend {self.capabilities.name!r} does not count contacts and constraints"
        )

    @abstractmethod
    def faults(self) -> Tensor:
        """The engine's fault bits of the last step, `int32 [N]`, a stable tensor."""

    @abstractmethod
    def get_state(self) -> Tensor:
        """A copy of the packed `mjSTATE_INTEGRATION` rows, `[N, nstate]`, in engine precision."""

    @abstractmethod
    def set_state(self, state: Tensor, mask: Tensor) -> StepReceipt:
        """Writes packed rows where the mask is true and refreshes phase "reset" reads.

        Acceleration-stage reads of these rows become 0, as after a reset.

        Args:
            state: `[N, nstate]` float32 or float64 on this device; the layout is the same on
                every backend.
            mask: `[N]` bool.
        """

    def _keep_acceleration(self, tensors: Mapping[FieldSlice, Tensor]) -> None:
        """Notes the acceleration-stage reads of a compiled plan, in its order."""
        self._acceleration = [tensor for item, tensor in tensors.items() if item.stage == Stage.ACC]

    def get_acceleration(self) -> Tensor:
        """A copy of every acceleration-stage read, side by side in the plan's order `[N, W]`.

        The packed rows do not hold them: they are the last substep's values.
        """
        if not self._acceleration:
            return torch.zeros((self.num_envs, 0), dtype=torch.float32, device=self.device)
        return torch.cat([read.reshape(self.num_envs, -1) for read in self._acceleration], 1)

    def set_acceleration(self, values: Tensor, mask: Tensor) -> None:
        """Writes acceleration-stage reads `[N, W]` back where the mask is true."""
        start = 0
        for read in self._acceleration:
            width = math.prod(read.shape[1:])
            part = values[:, start : start + width].reshape(read.shape)
            rows = mask.view(-1, *(1,) * (read.dim() - 1))
            read.copy_(torch.where(rows, part, read))
            start += width

    @abstractmethod
    def render_state(self, row: int) -> tuple[list[float], list[float]]:
        """Positions and velocities of one row on the host, for a renderer."""

    @abstractmethod
    def close(self) -> None:
        """Frees engine resources; a second call does nothing."""

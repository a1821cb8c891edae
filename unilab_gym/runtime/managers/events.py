"""Event manager: owns everything that happens *to* the simulation.

Model events set model fields, always from the nominal value: at startup (the first reset, and
again for rows that a later seed touches), at each reset, or by countdown. Reset events write the
default state staged in the reset payload. Interval events fill the payload of the *next* physics.
What happens by countdown never writes engine state before that physics, and what is staged for a
row that resets is dropped.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unilab_gym.backends.base import (
    Backend,
    RecomputeLevel,
    TensorIntervalPayload,
    TensorResetRandomizationPayload,
)
from unilab_gym.config import EventTermCfg
from unilab_gym.errors import ConfigError, UnsupportedCapabilityError
from unilab_gym.runtime.command_term import StepTimer
from unilab_gym.runtime.event_term import EventTerm, IntervalEvent, ModelEvent, ResetEvent
from unilab_gym.runtime.term import BuildContext, full_params, told

_KINDS = {
    "startup": (ModelEvent,),
    "reset": (ResetEvent, ModelEvent),
    "interval": (IntervalEvent, ModelEvent),
}
_PHASES = {"startup": "startup", "reset": "reset", "interval": "step"}


def event_fields(terms: Mapping[str, EventTermCfg]) -> tuple[str, ...]:
    """Model fields that events will write, for the backend's build."""
    names: list[str] = []
    for name, cfg in terms.items():
        kinds = _KINDS[cfg.mode]
        fits = inspect.isclass(cfg.func) and issubclass(cfg.func, kinds)
        if not fits or cfg.mode not in cfg.func.modes:  # type: ignore[attr-defined]
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigError(
                f"events/{name}: mode {cfg.mode!r} takes a {wanted} class, got {cfg.func!r}"
            )
        names += getattr(cfg.func, "fields", ())
    return tuple(dict.fromkeys(names))


@dataclass
class _ModelEvents:
    """Model events that happen together and the full-width values they write."""

    events: list[ModelEvent] = field(default_factory=list[ModelEvent])
    fields: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for event in self.events for name in event.fields))

    @property
    def level(self) -> RecomputeLevel:
        return max((event.level for event in self.events), default=RecomputeLevel.NONE)

    def compute(self, base: Mapping[str, Tensor]) -> None:
        """Applies the events, in order, to copies of the base values."""
        for name, values in self.fields.items():
            values.copy_(base[name])
        for event in self.events:
            event.apply(self.fields)

    def write(self, backend: Backend, mask: Tensor) -> None:
        """Hands the masked rows to the backend."""
        backend.set_model_fields(self.fields, mask, self.level)
        for event in self.events:
            event.commit(mask)


@dataclass
class _Countdown:
    """Model events by countdown: `due` rows are staged until the next physics."""

    group: _ModelEvents
    timer: StepTimer
    due: Tensor  # [N] bool


class EventManager:
    """Runs the events of each mode."""

    def __init__(
        self, ctx: BuildContext, terms: Mapping[str, EventTermCfg], backend: Backend
    ) -> None:
        """Builds the events and the payloads.

        Raises:
            UnsupportedCapabilityError: If the backend cannot honour an event; names both.
            ConfigError: If an event does not fit its mode or its parameters, or two events
                would write the same thing at different times.
        """
        self._backend = backend
        self._taken: dict[tuple[str, int], str] = {}
        self._writers: dict[str, tuple[str, str]] = {}
        self._startup = _ModelEvents()
        self._model_reset = _ModelEvents()
        self._countdowns: list[_Countdown] = []
        self._reset: list[ResetEvent] = []
        self._interval: list[tuple[IntervalEvent, StepTimer]] = []
        event_fields(terms)
        for name, cfg in terms.items():
            self._add(ctx, name, cfg)
        self._allocate(ctx)

    # -- build -----------------------------------------------------------------------------

    def _add(self, ctx: BuildContext, name: str, cfg: EventTermCfg) -> None:
        ctx.phase = _PHASES[cfg.mode]
        with ctx.owned(f"events/{name}"):
            with told(f"events/{name}", cfg.params):
                event = cfg.func(ctx, **full_params(cfg.func, cfg.params))
            self._check_support(name, event)
            timer = None if cfg.interval_s is None else StepTimer(ctx, cfg.interval_s)
        if isinstance(event, ResetEvent):
            self._reset.append(event)
        elif isinstance(event, IntervalEvent):
            assert timer is not None
            self._check_parts(name, event)
            self._interval.append((event, timer))
        elif isinstance(event, ModelEvent):
            self._add_model_event(ctx, name, event, cfg.mode, timer)

    def _add_model_event(
        self, ctx: BuildContext, name: str, event: ModelEvent, mode: str, timer: StepTimer | None
    ) -> None:
        if mode == "startup":
            self._startup.events.append(event)
            return
        # Whoever writes a field after start-up writes its whole row from the nominal value, so
        # that two writers at different times would undo each other.
        for field_name in event.fields:
            other, other_mode = self._writers.setdefault(field_name, (name, mode))
            if other != name and (mode, other_mode) != ("reset", "reset"):
                raise ConfigError(
                    f"events/{name}: model field {field_name!r} is written by {other!r} "
                    f"(mode {other_mode!r}) too; after start-up one mode must own it"
                )
        if timer is None:
            self._model_reset.events.append(event)
        else:
            due = ctx.zeros(dtype=torch.bool, key=f"{name}/due")
            self._countdowns.append(_Countdown(_ModelEvents([event]), timer, due))

    def _check_support(self, name: str, event: EventTerm) -> None:
        capabilities = self._backend.capabilities
        parts = event.parts if isinstance(event, IntervalEvent) else ()
        for part in parts:
            if part not in capabilities.interval:
                raise UnsupportedCapabilityError(
                    f"events/{name}: backend {capabilities.name!r} cannot apply "
                    f"{part!r}, it applies {capabilities.interval}"
                )

    def _check_parts(self, name: str, event: IntervalEvent) -> None:
        columns = [("velocity column", dof) for dof in event.dofs]
        columns += [("body", body) for body in event.bodies]
        for what, number in columns:
            taken = self._taken.setdefault((what, number), name)
            if taken != name:
                raise ConfigError(f"events/{name}: {what} {number} is pushed by {taken!r} too")

    def _allocate(self, ctx: BuildContext) -> None:
        self.payload = self._backend.allocate_reset_payload()
        self.interval: TensorIntervalPayload | None = None
        parts = {part for event, _ in self._interval for part in event.parts}
        if parts:
            bodies = tuple(body for event, _ in self._interval for body in event.bodies)
            columns = ctx.carriers.columns
            self.interval = TensorIntervalPayload(
                qvel_delta=columns(ctx.index.nv, "qvel_delta") if "qvel_delta" in parts else None,
                body_wrench=columns(6 * len(bodies), "body_wrench") if bodies else None,
                wrench_bodies=bodies,
            )
        self._origin: dict[str, Tensor] = {}
        """What later events of a field start from: nominal, or as start-up left it."""
        self._base: dict[str, Tensor] = {}
        later = (self._model_reset, *(item.group for item in self._countdowns))
        for number, group in enumerate(later):
            for name in group.names:
                self._origin[name] = self._backend.nominal(name).unsqueeze(0)
                # What a countdown drew waits for the next physics: it is state.
                allocate = ctx.zeros if number else ctx.scratch
                group.fields[name] = allocate(*self._shape(name), key=f"later/{name}")
                if name in self._startup.names:
                    self._base[name] = ctx.zeros(*self._shape(name), key=f"base/{name}")
        self._nominal = {
            name: self._backend.nominal(name).unsqueeze(0) for name in self._startup.names
        }
        for name, values in self._base.items():
            values.copy_(self._origin[name])
        self._origin |= self._base

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._backend.nominal(name).shape)

    # -- operations ------------------------------------------------------------------------

    def startup(self, mask: Tensor) -> None:
        """Sets the model fields of the masked rows from their nominal values."""
        if not self._startup.events:
            return
        for name, value in self._nominal.items():  # rare: no memory is kept for it
            self._startup.fields[name] = value.repeat(mask.shape[0], *([1] * (value.dim() - 1)))
        self._startup.compute(self._nominal)
        self._startup.write(self._backend, mask)
        for name, values in self._base.items():
            rows = mask.view(-1, *(1,) * (values.dim() - 1))
            torch.where(rows, self._startup.fields[name], values, out=values)
        self._startup.fields.clear()

    def stage_reset(self) -> TensorResetRandomizationPayload:
        """Fills the reset payload at full width."""
        for event in self._reset:
            event.apply(self.payload)
        return self.payload

    def write_model(self, mask: Tensor) -> None:
        """Draws the model fields of rows that reset, before their state is written."""
        if self._model_reset.events:
            self._model_reset.compute(self._origin)
            self._model_reset.write(self._backend, mask)

    def update(self) -> None:
        """Counts the intervals down and stages what is due."""
        for item in self._countdowns:
            item.due.copy_(item.timer.advance())
            item.group.compute(self._origin)
        if self.interval is None:
            return
        for event, timer in self._interval:
            event.apply(self.interval, timer.advance())

    def commit(self) -> None:
        """Writes the model fields that were staged for the physics that comes now."""
        for item in self._countdowns:
            item.group.write(self._backend, item.due)
            item.due.fill_(False)

    def reset(self, mask: Tensor) -> None:
        """Masked rows restart their countdowns; what was staged is an episode carrier."""
        for item in self._countdowns:
            item.timer.reset(mask)
            item.due.masked_fill_(mask, False)
        for _, timer in self._interval:
            timer.reset(mask)

"""Event manager: owns everything that happens *to* the simulation.

Model events set model fields, always from the nominal value: at startup (the first reset, and
again for rows that a later seed touches), at each reset, or by countdown. Reset events write the
default state staged in the reset payload. Interval and step events fill the payload of the *next*
physics; they never write engine state, and what is staged for a row that resets is dropped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from unilab_gym.backends.base import (
    Backend,
    TensorIntervalPayload,
    TensorResetRandomizationPayload,
)
from unilab_gym.config import EventTermCfg, func_name
from unilab_gym.errors import ConfigError, UnsupportedCapabilityError
from unilab_gym.runtime.command_term import StepTimer
from unilab_gym.runtime.event_term import IntervalEvent, ModelEvent, ResetEvent
from unilab_gym.runtime.managers.model_events import ModelEvents
from unilab_gym.runtime.term import BuildContext, full_params, told

_KINDS = {
    "startup": (ModelEvent,),
    "reset": (ResetEvent, ModelEvent),
    "interval": (IntervalEvent, ModelEvent),
    "step": (IntervalEvent,),
}
_PHASES = {"startup": "startup", "reset": "reset", "interval": "step", "step": "step"}
_LONG_AGO = 1 << 40
"""Steps since an event that was never applied."""


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


class _Spaced:
    """A reset event with a least number of steps between two applications to one row."""

    def __init__(self, ctx: BuildContext, event: ResetEvent, steps: int) -> None:
        self.event = event
        self._steps = steps
        self.since = ctx.zeros(dtype=torch.int64, key="steps_since")
        """Control steps since it was applied `[N]`; carries over resets."""
        self.forget(torch.ones_like(self.since, dtype=torch.bool))
        self._due = ctx.scratch(dtype=torch.bool, key="spaced_due")

    def forget(self, mask: Tensor) -> None:
        """Masked rows count as never applied: their stream begins anew."""
        self.since.masked_fill_(mask, _LONG_AGO)

    def stage(self, payload: TensorResetRandomizationPayload) -> None:
        """Applies the event to the rows that are due; the others keep what is staged."""
        torch.ge(self.since, self._steps, out=self._due)
        before = payload.state.clone()
        self.event.apply(payload)
        torch.where(self._due.unsqueeze(1), payload.state, before, out=payload.state)

    def reset(self, mask: Tensor) -> None:
        """Masked rows have reset; those that were due count from here."""
        self.since.masked_fill_(mask & self._due, 0)


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
        self.models = ModelEvents(backend)
        self._reset: list[Callable[[TensorResetRandomizationPayload], None]] = []
        self._interval: list[tuple[IntervalEvent, StepTimer | None]] = []
        self._spaced: list[_Spaced] = []
        self._assigning: list[tuple[str, ResetEvent]] = []
        event_fields(terms)
        for name, cfg in terms.items():
            self._add(ctx, name, cfg)
        self.payload = backend.allocate_reset_payload()
        self._default = self.payload.state[:1].clone()
        self.restores = len(self._assigning) < len(self._reset)
        """Whether a reset starts from a fresh copy of the default state: some term may add."""
        self._always = ctx.tensor(True, torch.bool).expand(ctx.num_envs)
        self.interval = self._allocate_interval(ctx)
        self.models.allocate(ctx)

    # -- build -----------------------------------------------------------------------------

    def _add(self, ctx: BuildContext, name: str, cfg: EventTermCfg) -> None:
        ctx.phase = _PHASES[cfg.mode]
        timer = None
        with ctx.owned(f"events/{name}"):
            with told(f"events/{name}", cfg.params):
                event = cfg.func(ctx, **full_params(cfg.func, cfg.params))
            if isinstance(event, IntervalEvent):
                self._check_parts(name, event)
            if cfg.interval_s is not None:
                timer = StepTimer(ctx, cfg.interval_s, shared=cfg.global_interval)
        if isinstance(event, ResetEvent):
            self._add_reset(ctx, name, event, cfg.min_steps_between)
        elif isinstance(event, IntervalEvent):
            self._interval.append((event, timer))
        elif isinstance(event, ModelEvent):
            if cfg.min_steps_between:
                raise ConfigError(
                    f"events/{name}: min_steps_between spaces events that write the state of a "
                    "reset; a model term has none"
                )
            self.models.add(ctx, name, event, cfg.mode, timer)

    def _allocate_interval(self, ctx: BuildContext) -> TensorIntervalPayload | None:
        parts = {part for event, _ in self._interval for part in event.parts}
        if not parts:
            return None
        bodies = tuple(body for event, _ in self._interval for body in event.bodies)
        columns = ctx.carriers.columns
        return TensorIntervalPayload(
            qvel_delta=columns(ctx.index.nv, "qvel_delta") if "qvel_delta" in parts else None,
            body_wrench=columns(6 * len(bodies), "body_wrench") if bodies else None,
            wrench_bodies=bodies,
        )

    def _add_reset(self, ctx: BuildContext, name: str, event: ResetEvent, steps: int) -> None:
        if steps:
            with ctx.owned(f"events/{name}"):
                spaced = _Spaced(ctx, event, steps)
            self._spaced.append(spaced)
            self._reset.append(spaced.stage)
        else:
            self._reset.append(event.apply)
            if event.assigns:
                self._assigning.append((name, event))

    def _check_parts(self, name: str, event: IntervalEvent) -> None:
        for part in event.parts:
            if part not in self._backend.capabilities.interval:
                raise UnsupportedCapabilityError(
                    f"events/{name}: backend {self._backend.capabilities.name!r} cannot apply "
                    f"{part!r}, it applies {self._backend.capabilities.interval}"
                )
        columns = [("velocity column", dof) for dof in event.dofs]
        columns += [("body", body) for body in event.bodies]
        for what, number in columns:
            taken = self._taken.setdefault((what, number), name)
            if taken != name:
                raise ConfigError(f"events/{name}: {what} {number} is pushed by {taken!r} too")

    def check(self) -> None:
        """Applies every event that claims to assign, over two contents of the payload.

        Raises:
            ConfigError: If the result depends on what the payload held; names the event.
        """
        for name, event in self._assigning:
            default = self._default.expand_as(self.payload.state)
            results: list[Tensor] = []
            for offset in (0.0, 1.0):
                self.payload.state.copy_(default + offset)
                event.apply(self.payload)
                results.append(self.payload.state.clone())
            touched = ((results[0] != default) | (results[1] != default + 1.0)).any(0)
            if ((results[0] != results[1]).any(0) & touched).any():
                raise ConfigError(
                    f"events/{name}: {func_name(type(event))} says `assigns = True` but its result "
                    "depends on what the reset payload held: assign whole columns, or leave it out"
                )
        self.payload.state.copy_(self._default)

    def startup(self, mask: Tensor) -> None:
        """Sets the model fields of the masked rows from their nominal values."""
        for spaced in self._spaced:
            spaced.forget(mask)
        self.models.startup(mask)

    def stage_reset(self) -> TensorResetRandomizationPayload:
        """Fills the reset payload at full width."""
        if self.restores:
            self.payload.state.copy_(self._default)
        for apply in self._reset:
            apply(self.payload)
        return self.payload

    def update(self) -> None:
        """Counts the intervals down and stages what is due."""
        self.models.update()
        for spaced in self._spaced:
            spaced.since.add_(1)
        if self.interval is None:
            return
        for event, timer in self._interval:
            event.apply(self.interval, self._always if timer is None else timer.advance())

    def reset(self, mask: Tensor) -> None:
        """Masked rows restart their countdowns; what was staged is an episode carrier."""
        self.models.reset(mask)
        for spaced in self._spaced:
            spaced.reset(mask)
        for _, timer in self._interval:
            if timer is not None:
                timer.reset(mask)

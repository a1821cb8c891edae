"""Event manager: owns everything that happens *to* the simulation.

Startup events set model fields, always from the nominal value, once at the first reset and again
for rows that a later seed touches. Reset events write the default state staged in the reset
payload. Interval events fill the payload of the *next* physics; they never write engine state,
and what is staged for a row that resets is dropped.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from torch import Tensor

from unilab_gym.backends.base import (
    Backend,
    TensorIntervalPayload,
    TensorResetRandomizationPayload,
)
from unilab_gym.config import EventTermCfg
from unilab_gym.errors import ConfigError, UnsupportedCapabilityError
from unilab_gym.runtime.command_term import StepTimer
from unilab_gym.runtime.event_term import IntervalEvent, ResetEvent, StartupEvent
from unilab_gym.runtime.term import BuildContext, full_params, told

_KINDS = {"startup": StartupEvent, "reset": ResetEvent, "interval": IntervalEvent}


def event_fields(terms: Mapping[str, EventTermCfg]) -> tuple[str, ...]:
    """Model fields that startup events will write, for the backend's build."""
    names: list[str] = []
    for name, cfg in terms.items():
        kind = _KINDS[cfg.mode]
        if not (inspect.isclass(cfg.func) and issubclass(cfg.func, kind)):
            raise ConfigError(
                f"events/{name}: mode {cfg.mode!r} takes a {kind.__name__} class, got {cfg.func!r}"
            )
        names += getattr(cfg.func, "fields", ())
    return tuple(dict.fromkeys(names))


class EventManager:
    """Runs the events of each mode."""

    def __init__(
        self, ctx: BuildContext, terms: Mapping[str, EventTermCfg], backend: Backend
    ) -> None:
        """Builds the events and the payloads.

        Raises:
            UnsupportedCapabilityError: If the backend cannot honour an event; names both.
            ConfigError: If an event does not fit its mode or its parameters.
        """
        self._backend = backend
        self._taken: dict[int, str] = {}
        self._startup: list[StartupEvent] = []
        self._reset: list[ResetEvent] = []
        self._interval: list[tuple[IntervalEvent, StepTimer]] = []
        event_fields(terms)
        for name, cfg in terms.items():
            with ctx.owned(f"events/{name}"), told(f"events/{name}", cfg.params):
                event = cfg.func(ctx, **full_params(cfg.func, cfg.params))
            if isinstance(event, StartupEvent):
                self._startup.append(event)
            elif isinstance(event, ResetEvent):
                self._reset.append(event)
            else:
                self._check_parts(name, event)
                assert cfg.interval_s is not None
                with ctx.owned(f"events/{name}"):
                    self._interval.append((event, StepTimer(ctx, cfg.interval_s)))
        self.payload = backend.allocate_reset_payload()
        self.interval: TensorIntervalPayload | None = None
        if self._interval:
            delta = ctx.carriers.columns(ctx.index.nv, "qvel_delta")
            self.interval = TensorIntervalPayload(qvel_delta=delta)

    def _check_parts(self, name: str, event: IntervalEvent) -> None:
        for dof in event.dofs:
            if dof in self._taken:
                raise ConfigError(
                    f"events/{name}: velocity column {dof} is pushed by {self._taken[dof]!r} too"
                )
            self._taken[dof] = name
        for part in event.parts:
            if part not in self._backend.capabilities.interval:
                raise UnsupportedCapabilityError(
                    f"events/{name}: backend {self._backend.capabilities.name!r} cannot apply "
                    f"{part!r}, it applies {self._backend.capabilities.interval}"
                )

    def startup(self, mask: Tensor) -> None:
        """Sets the model fields of the masked rows from their nominal values."""
        if not self._startup:
            return
        names = dict.fromkeys(name for event in self._startup for name in event.fields)
        fields: dict[str, Tensor] = {}
        for name in names:
            nominal = self._backend.nominal(name)
            fields[name] = nominal.unsqueeze(0).repeat(mask.shape[0], *([1] * nominal.dim()))
        for event in self._startup:
            event.apply(fields)
        level = max(event.level for event in self._startup)
        self._backend.set_model_fields(fields, mask, level)

    def stage_reset(self) -> TensorResetRandomizationPayload:
        """Fills the reset payload at full width."""
        for event in self._reset:
            event.apply(self.payload)
        return self.payload

    def update(self) -> None:
        """Counts the intervals down and stages what is due."""
        if self.interval is None:
            return
        for event, timer in self._interval:
            event.apply(self.interval, timer.advance())

    def reset(self, mask: Tensor) -> None:
        """Masked rows restart their countdowns; what was staged is an episode carrier."""
        for _, timer in self._interval:
            timer.reset(mask)

"""Model events of every mode: who writes which model field, when, and from what.

Start-up events apply to nominal values, in config order. What comes later (resets, countdowns)
starts from there and writes whole rows, so that nothing drifts; after start-up one mode owns a
field. Countdowns stage their rows until the next physics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unilab_gym.backends.base import Backend, RecomputeLevel
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.command_term import StepTimer
from unilab_gym.runtime.event_term import ModelEvent
from unilab_gym.runtime.term import BuildContext


@dataclass
class _Group:
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

    group: _Group
    timer: StepTimer
    due: Tensor  # [N] bool


class ModelEvents:
    """The model events of one environment."""

    def __init__(self, backend: Backend) -> None:
        """Starts empty; `add` every event, then `allocate`."""
        self._backend = backend
        self._writers: dict[str, tuple[str, str]] = {}
        self._startup = _Group()
        self._reset = _Group()
        self._countdowns: list[_Countdown] = []
        self._nominal: dict[str, Tensor] = {}
        self._base: dict[str, Tensor] = {}
        self._origin: dict[str, Tensor] = {}
        """What later events of a field start from: nominal, or as start-up left it."""

    def add(
        self, ctx: BuildContext, name: str, event: ModelEvent, mode: str, timer: StepTimer | None
    ) -> None:
        """Takes an event in the order of the config.

        Raises:
            ConfigError: If another mode writes one of its fields after start-up.
        """
        if mode == "startup":
            self._startup.events.append(event)
            return
        # Whoever writes a field after start-up writes its whole row, so that two writers at
        # different times would undo each other.
        for field_name in event.fields:
            other, other_mode = self._writers.setdefault(field_name, (name, mode))
            if other != name and (mode, other_mode) != ("reset", "reset"):
                raise ConfigError(
                    f"events/{name}: model field {field_name!r} is written by {other!r} "
                    f"(mode {other_mode!r}) too; after start-up one mode must own it"
                )
        if timer is None:
            self._reset.events.append(event)
        else:
            due = ctx.zeros(dtype=torch.bool, key=f"{name}/due")
            self._countdowns.append(_Countdown(_Group([event]), timer, due))

    def allocate(self, ctx: BuildContext) -> None:
        """Allocates what is written later than start-up; what waits for a step is state."""
        later = (self._reset, *(item.group for item in self._countdowns))
        for number, group in enumerate(later):
            for name in group.names:
                self._origin[name] = self._backend.nominal(name).unsqueeze(0)
                shape = tuple(self._origin[name].shape[1:])
                allocate = ctx.zeros if number else ctx.scratch
                group.fields[name] = allocate(*shape, key=f"later/{name}")
                if name in self._startup.names:
                    self._base[name] = ctx.zeros(*shape, key=f"base/{name}")
                    self._base[name].copy_(self._origin[name])
        for name in self._startup.names:
            self._nominal[name] = self._backend.nominal(name).unsqueeze(0)
        self._origin |= self._base

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

    def write_reset(self, mask: Tensor) -> None:
        """Draws and writes the model fields of rows that reset."""
        if self._reset.events:
            self._reset.compute(self._origin)
            self._reset.write(self._backend, mask)

    def update(self) -> None:
        """Counts down and stages what is due."""
        for item in self._countdowns:
            item.due.copy_(item.timer.advance())
            item.group.compute(self._origin)

    def commit(self) -> None:
        """Writes what was staged for the physics that comes now."""
        for item in self._countdowns:
            item.group.write(self._backend, item.due)
            item.due.fill_(False)

    def reset(self, mask: Tensor) -> None:
        """Masked rows restart their countdowns; what was staged for them is dropped."""
        for item in self._countdowns:
            item.timer.reset(mask)
            item.due.masked_fill_(mask, False)

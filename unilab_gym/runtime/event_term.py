"""What events are written from, one base class per kind."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from unilab_gym.backends.base import (
    Capabilities,
    RecomputeLevel,
    TensorIntervalPayload,
    TensorResetRandomizationPayload,
)


class EventTerm:
    """Base of every event: in which modes it can run, and what it needs of a backend."""

    modes: tuple[str, ...] = ()
    """Modes of `EventTermCfg` that it fits."""

    @classmethod
    def missing(cls, capabilities: Capabilities) -> tuple[str, ...]:
        """What a backend would need for this event and cannot do; empty: supported."""
        return ()


class ModelEvent(EventTerm):
    """Sets model fields per environment, always from their nominal values."""

    modes = ("startup", "reset", "interval")
    fields: tuple[str, ...] = ()
    """MjModel fields that it writes."""
    level: RecomputeLevel = RecomputeLevel.NONE
    """Derived constants to recompute."""

    @classmethod
    def missing(cls, capabilities: Capabilities) -> tuple[str, ...]:
        """Fields that the backend cannot hold per environment."""
        return tuple(name for name in cls.fields if name not in capabilities.model_fields)

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Changes nominal values `[N, ...]` in place, at full width."""
        raise NotImplementedError(type(self).__name__)

    def commit(self, mask: Tensor) -> None:
        """The masked rows' fields were written: keep what belongs to them. Usually nothing."""


StartupEvent = ModelEvent
"""The older name of `ModelEvent`."""


class ResetEvent(EventTerm):
    """Changes the state that a reset writes.

    The payload holds the default state (home keyframe) when the first event of a reset writes it,
    so that an event may assign or add. That costs one copy of the payload in every step. Where
    every event of an environment assigns, the copy is left out.
    """

    modes = ("reset",)

    assigns: bool = False
    """Set it where `apply` overwrites the columns that it touches, in every row, with values that
    do not depend on what they held. It is checked when the environment is built."""

    def apply(self, payload: TensorResetRandomizationPayload) -> None:
        """Writes the payload at full width; rows that do not reset are ignored."""
        raise NotImplementedError(type(self).__name__)


class IntervalEvent(EventTerm):
    """Stages a disturbance for the next physics: modes "interval" and "step"."""

    modes = ("interval", "step")
    parts: tuple[str, ...] = ("qvel_delta",)
    """Parts of the interval payload that it writes."""

    dofs: tuple[int, ...] = ()
    """Columns of `qvel_delta` that it owns; two events of one environment cannot share one."""

    bodies: tuple[int, ...] = ()
    """Bodies whose block of `body_wrench` it owns; two events cannot share one."""

    @classmethod
    def missing(cls, capabilities: Capabilities) -> tuple[str, ...]:
        """Parts of the payload that the backend does not apply."""
        return tuple(part for part in cls.parts if part not in capabilities.interval)

    def columns(self, payload: TensorIntervalPayload) -> Tensor:
        """The block of `body_wrench` `[N, 6]` of this event's only body."""
        assert payload.body_wrench is not None
        start = 6 * payload.wrench_bodies.index(self.bodies[0])
        return payload.body_wrench[:, start : start + 6]

    def apply(self, payload: TensorIntervalPayload, due: Tensor) -> None:
        """Overwrites its columns: the disturbance where `due` `[N]` is true, else 0.

        Called at every boundary; in mode "step" every row is due.
        """
        raise NotImplementedError(type(self).__name__)

"""What events are written from, one base class per mode."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from unilab_gym.backends.base import (
    RecomputeLevel,
    TensorIntervalPayload,
    TensorResetRandomizationPayload,
)


class StartupEvent:
    """Sets model fields per environment."""

    fields: tuple[str, ...] = ()
    """MjModel fields that it writes."""
    level: RecomputeLevel = RecomputeLevel.NONE
    """Derived constants to recompute."""

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Changes nominal values `[N, ...]` in place, at full width."""
        raise NotImplementedError(type(self).__name__)


class ResetEvent:
    """Changes the state that a reset writes.

    The payload holds the default state (home keyframe) when the first event of a reset writes it,
    so that an event may assign or add. That costs one copy of the payload in every step. Where
    every event of an environment assigns, the copy is left out.
    """

    assigns: bool = False
    """Set it where `apply` overwrites the columns that it touches, in every row, with values that
    do not depend on what they held. It is checked when the environment is built."""

    def apply(self, payload: TensorResetRandomizationPayload) -> None:
        """Writes the payload at full width; rows that do not reset are ignored."""
        raise NotImplementedError(type(self).__name__)


class IntervalEvent:
    """Stages a disturbance for the next physics: modes "interval" and "step"."""

    parts: tuple[str, ...] = ("qvel_delta",)
    """Parts of the interval payload that it writes."""

    dofs: tuple[int, ...] = ()
    """Columns of `qvel_delta` that it owns; two events of one environment cannot share one."""

    def apply(self, payload: TensorIntervalPayload, due: Tensor) -> None:
        """Overwrites its columns: the disturbance where `due` `[N]` is true, else 0.

        Called at every boundary; in mode "step" every row is due.
        """
        raise NotImplementedError(type(self).__name__)

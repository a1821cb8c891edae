"""What command generators are written from: `CommandTerm` and the countdown `StepTimer`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unilab_gym.backends.base import TensorResetRandomizationPayload
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.frame import TermFrame
from unilab_gym.runtime.rows import Cut
from unilab_gym.runtime.term import BuildContext


class CommandTerm:
    """Base of command generators. Decorate subclasses with `@term(reads=...)`.

    A subclass allocates `self.value` (and entries of `self.parts`) in `__init__`, writes them in
    place, and implements `reset(mask, frame)` and `update(frame)`.
    """

    value: Tensor
    parts: dict[str, Tensor]
    component_names: tuple[str, ...] = ()
    """Names of the value's components, for the policy contract and logs."""
    assigns: bool = False
    """Set it where `stage_reset` overwrites what it touches, as `ResetEvent.assigns` has it."""
    log_names: tuple[str, ...] = ()
    """Names of figures for the log, which has them as `command/<command>/<name>`."""
    log_values: Tensor
    """The figures, as many as `log_names`; needed where there are names."""

    def __init__(self, ctx: BuildContext) -> None:
        """Keeps the sizes; parameters are the subclass's keyword-only arguments."""
        self.num_envs = ctx.num_envs
        self.device = ctx.device
        self.parts = {}

    def stage_reset(self, payload: TensorResetRandomizationPayload) -> None:
        """Writes the state that a reset will commit, at full width, after the reset events.

        For commands that decide where an episode starts; by default nothing. The payload starts
        from the default state, as for `ResetEvent`.
        """

    def reset(self, mask: Tensor, frame: TermFrame) -> None:
        """Draws a new command in the masked rows, as their episode begins."""
        raise NotImplementedError(type(self).__name__)

    def update(self, frame: TermFrame) -> None:
        """One control step has passed: count down, resample due rows."""
        raise NotImplementedError(type(self).__name__)


def _first_column(draw: Tensor) -> tuple[Tensor, ...]:
    return (draw[:, 0],)


class StepTimer:
    """Counts whole control steps down to the next event of each row.

    An event is due when nothing is left: a drawn period between two whole numbers counts as the
    higher one. Float32 subtracts 1 exactly here, so a period of 1.0 s at 0.02 s is 50 steps.
    """

    def __init__(
        self,
        ctx: BuildContext,
        seconds: tuple[float, float],
        key: str = "timer",
        shared: bool = False,
    ) -> None:
        """Allocates the countdown `[N]` and its random streams.

        Args:
            ctx: The build context.
            seconds: Range of the period, s; drawn anew for each.
            key: Tells several timers of one term apart.
            shared: One countdown `[1]` for all rows, which follows row 0's stream and restarts
                where all rows reset at once.

        Raises:
            ConfigError: If the range is not 0 < low <= high.
        """
        low, high = seconds
        if not 0 < low <= high:
            raise ConfigError(f"{ctx.owner}: a period must be 0 < low <= high, got {seconds}")
        first = max(1, round(low / ctx.control_dt))
        last = max(1, round(high / ctx.control_dt))
        self._fixed = ctx.tensor([float(first)]) if first == last else None
        self._shared = shared
        if shared:
            self.left = ctx.shared([0.0], key=f"{key}/left")
            self._due = ctx.shared([False], torch.bool, key=f"{key}/due")
        else:
            self.left = ctx.zeros(key=f"{key}/left")
            self._due = ctx.scratch(dtype=torch.bool, key=f"{key}/due")
        self._one, self._zero = ctx.tensor([[1.0], [0.0]])
        self._every_due = self._due.expand(ctx.num_envs)
        self._uniform: dict[str, Callable[[], Tensor]] = {}
        self._steps = {"step": Cut(_first_column), "reset": Cut(_first_column)}
        if self._fixed is None:  # in (first - 1, last], each whole number above it equally likely
            self._uniform = {
                phase: ctx.uniform(1, phase, first - 0.999, last, key) for phase in self._steps
            }

    def _restart(self, mask: Tensor, phase: str) -> None:
        if self._fixed is not None:
            torch.where(mask, self._fixed, self.left, out=self.left)
        else:
            (steps,) = self._steps[phase](self._uniform[phase]())
            if self._shared:
                steps = steps[:1]
            torch.where(mask, steps, self.left, out=self.left)

    def advance(self) -> Tensor:
        """One step passes: `[N]` bool, which rows are due; their countdown restarts."""
        self.left.sub_(self._one)
        torch.le(self.left, self._zero, out=self._due)
        self._restart(self._due, "step")
        return self._every_due

    def reset(self, mask: Tensor) -> None:
        """Masked rows restart their countdown."""
        self._restart(mask.all().unsqueeze(0) if self._shared else mask, "reset")

"""Curricula: stages by the number of steps, levels by performance.

A target is a parameter that its term offers: every reward weight, the ranges of
`UniformVelocityCommand` and its `standing_fraction`, the velocities of `ResetRootUniform`, the
range of `PushRoot`, the parameters that a term function declares `adjustable`. A name that nobody
offers is refused when the environment is built, with what is available.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError
from unilab_gym.runtime.curriculum_term import CurriculumTerm
from unilab_gym.runtime.reads import LogValue, StepCount
from unilab_gym.runtime.term import BuildContext, TermFrame, term

_RANGE = tuple[float, float]


class _Levels:
    """Values of one target by level, and the target that gets the current one."""

    def __init__(self, ctx: BuildContext, path: str, values: Sequence[float | _RANGE]) -> None:
        self._target = ctx.adjustables.target(path)
        ranged = self._target.dim() == 2
        for value in values:
            pair = isinstance(value, (tuple, list))
            if pair != ranged or (pair and not (len(value) == 2 and value[0] <= value[1])):
                wanted = "(low, high) pairs" if ranged else "numbers"
                raise ConfigError(f"{path} takes {wanted}, got {value!r}")
        # The config's own value is that of the level before the first.
        table = ctx.tensor([list(v) if isinstance(v, tuple) else [v] for v in values])
        own = self._target[:, 0] if ranged else self._target.view(1)
        self._table = torch.cat((own.unsqueeze(0), table))  # [levels + 1, 1 or 2]

    def write(self, level: Tensor, value: Tensor) -> None:
        """Sets target and logged value for a level `[1]` int64, -1 for the config's own."""
        chosen = self._table.index_select(0, level + 1)[0]
        value.copy_(chosen[-1])
        self._target.copy_(chosen.unsqueeze(1) if self._target.dim() == 2 else chosen[0])


class _Stages(CurriculumTerm):
    """Stages that begin at given control steps; before the first one the config's value holds."""

    def __init__(
        self, ctx: BuildContext, path: str, stages: Sequence[tuple[int, float | _RANGE]]
    ) -> None:
        super().__init__(ctx)
        steps = [step for step, _ in stages]
        if not steps or any(b <= a for a, b in zip([-1, *steps], steps, strict=False)):
            raise ConfigError(f"stages must be (step, value) with growing steps >= 0, got {stages}")
        self._steps = ctx.tensor(steps, torch.int64)
        self._levels = _Levels(ctx, path, [value for _, value in stages])

    def update(self, frame: TermFrame) -> None:
        """Four operations: which stage it is, and its value."""
        stage = (self._steps <= frame[StepCount()]).sum(0, keepdim=True)
        self._levels.write(stage - 1, self.value)


@term(reads=(StepCount(),))
class RewardWeightStages(_Stages):
    """Weights of a reward term by control step; logs the weight (per second)."""

    def __init__(
        self, ctx: BuildContext, *, reward: str, stages: Sequence[tuple[int, float]]
    ) -> None:
        """Takes the term's name and ((step, weight), ...)."""
        super().__init__(ctx, self.targets(reward=reward)[0], stages)

    @classmethod
    def targets(cls, *, reward: str, **_: Any) -> tuple[str, ...]:
        """The weight."""
        return (f"rewards/{reward}/weight",)


@term(reads=(StepCount(),))
class CommandRangeStages(_Stages):
    """Ranges of a command by control step, for draws from then on; logs the upper bound."""

    def __init__(
        self,
        ctx: BuildContext,
        *,
        command: str,
        parameter: str,
        stages: Sequence[tuple[int, _RANGE]],
    ) -> None:
        """Takes the command's name, its range parameter and ((step, (low, high)), ...)."""
        super().__init__(ctx, self.targets(command=command, parameter=parameter)[0], stages)

    @classmethod
    def targets(cls, *, command: str, parameter: str, **_: Any) -> tuple[str, ...]:
        """The range."""
        return (f"commands/{command}/{parameter}",)


@term(reads=(StepCount(),))
class EventRangeStages(_Stages):
    """Ranges of an event by control step, for draws from then on; logs the upper bound."""

    def __init__(
        self,
        ctx: BuildContext,
        *,
        event: str,
        parameter: str,
        stages: Sequence[tuple[int, _RANGE]],
    ) -> None:
        """Takes the event's name, its range parameter and ((step, (low, high)), ...)."""
        super().__init__(ctx, self.targets(event=event, parameter=parameter)[0], stages)

    @classmethod
    def targets(cls, *, event: str, parameter: str, **_: Any) -> tuple[str, ...]:
        """The range."""
        return (f"events/{event}/{parameter}",)


@term(reads=(StepCount(),))
class ParameterStages(_Stages):
    """Values of any adjustable parameter by control step; logs the value, or the upper bound.

    `path` is `<manager>/<term>/<parameter>`, as in `terminations/tilt/limit_deg`.
    """

    def __init__(
        self, ctx: BuildContext, *, path: str, stages: Sequence[tuple[int, float | _RANGE]]
    ) -> None:
        """Takes the path and ((step, value), ...)."""
        super().__init__(ctx, path, stages)

    @classmethod
    def targets(cls, *, path: str, **_: Any) -> tuple[str, ...]:
        """The parameter."""
        return (path,)


@term(reads=lambda p: (LogValue(p["key"]), LogValue("episode/ended")))
class PerformanceLevels(CurriculumTerm):
    """Levels of an adjustable parameter that follow a logged figure.

    The figure `key` (such as `reward/track_lin_vel` or `episode/length`) is averaged over at
    least `episodes` ended episodes; the level then rises by one where the mean is at least
    `raise_at`, falls by one where it is below `lower_below`, and a new average begins. It starts
    at level 0, the first of `values`. Logs the level, a whole number.
    """

    def __init__(
        self,
        ctx: BuildContext,
        *,
        path: str,
        key: str,
        values: Sequence[float | _RANGE],
        raise_at: float,
        lower_below: float = -float("inf"),
        episodes: int = 1,
    ) -> None:
        """Checks levels and thresholds.

        Raises:
            ConfigError: If there is no level, the thresholds overlap or `episodes` is not positive.
        """
        super().__init__(ctx)
        if not values or not lower_below <= raise_at or episodes < 1:
            raise ConfigError(
                "values must not be empty, lower_below not exceed raise_at, episodes be positive"
            )
        self._key = key
        self._bounds = raise_at, lower_below
        self._episodes, self._top = episodes, len(values) - 1
        self._levels = _Levels(ctx, path, values)
        self._level = ctx.shared([0], torch.int64, key="level")
        self._sum, self._count = ctx.shared(0.0, key="sum"), ctx.shared(0.0, key="count")
        self._written = ctx.shared(0.0, key="written")

    @classmethod
    def targets(cls, *, path: str, **_: Any) -> tuple[str, ...]:
        """The parameter."""
        return (path,)

    def update(self, frame: TermFrame) -> None:
        """Takes the episodes that ended in the last step into the average."""
        ended = frame[LogValue("episode/ended")]
        self._count.add_(ended)
        self._sum.add_(frame[LogValue(self._key)] * ended)
        full = self._count >= self._episodes
        mean = self._sum / self._count
        rise = ((mean >= self._bounds[0]) & full).long()
        fall = ((mean < self._bounds[1]) & full).long()
        self._level.add_(rise - fall).clamp_(0, self._top)
        self._sum.masked_fill_(full, 0.0)
        self._count.masked_fill_(full, 0.0)
        self._levels.write(self._level, self._written)
        self.value.copy_(self._level[0])

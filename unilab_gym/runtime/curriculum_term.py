"""What curricula are written from, and draws whose ranges a curriculum may move.

A curriculum changes nothing but tensors on the device: weights, ranges, thresholds that terms
offered while they were built (`BuildContext.adjusted`, `RangedDraw`). It decides on the device,
with `torch.where`; the host never learns the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unilab_gym.errors import ConfigError
from unilab_gym.runtime.frame import TermFrame
from unilab_gym.runtime.term import BuildContext

__all__ = ["CurriculumTerm", "Range", "RangedDraw"]


class CurriculumTerm:
    """Base of curricula. Decorate subclasses with `@term(reads=...)`.

    Only runtime reads are at hand: `StepCount`, `LogValue(key)`, `RewardSum(term)` and the like.
    What is carried from step to step is allocated by `ctx.shared(...)`, which checkpoints keep.
    """

    value: Tensor
    """What `curriculum/<term>` logs, 0-d float32; written in place."""

    def __init__(self, ctx: BuildContext) -> None:
        """Allocates the logged value; parameters are the subclass's keyword-only arguments."""
        self.value = ctx.shared(0.0, key="value")

    @classmethod
    def targets(cls, **params: Any) -> tuple[str, ...]:
        """Paths `<manager>/<term>/<parameter>` that it moves, from its parameters."""
        raise NotImplementedError(cls.__name__)

    def update(self, frame: TermFrame) -> None:
        """A control step begins: writes the targets. Also called once, before the first one."""
        raise NotImplementedError(type(self).__name__)


@dataclass(frozen=True)
class Range:
    """Bounds of neighbouring columns of a draw, named after the term's parameter."""

    name: str
    """Empty: cannot be moved."""
    low: float
    high: float
    width: int = 1
    scale: float = 1.0
    """What comes out is offset + scale x draw, scale > 0; the bounds are those of the draw."""
    offset: tuple[float, ...] = ()
    """One for each column; empty: 0."""

    def __post_init__(self) -> None:
        """Checks the order.

        Raises:
            ConfigError: If low exceeds high.
        """
        if not self.low <= self.high:
            raise ConfigError(f"{self.name}: low {self.low} exceeds high {self.high}")

    def folded(self, bound: float) -> list[float]:
        """What comes out for a bound, column by column."""
        return [start + self.scale * bound for start in self.offsets]

    @property
    def offsets(self) -> tuple[float, ...]:
        """The offset of each column."""
        return self.offset or (0.0,) * self.width


class RangedDraw:
    """Uniform draws `[N, W]` in named ranges, which a curriculum may move.

    Where none of the ranges is moved, scaling is part of the random block and costs nothing. Else
    the block holds numbers in [0, 1), and the bounds, `[2, W]` on the device, scale them: three
    operations a draw, five where a range has a scale or offset. The numbers underneath are the
    same.
    """

    def __init__(
        self, ctx: BuildContext, ranges: Sequence[Range], phases: tuple[str, ...], key: str = ""
    ) -> None:
        """Registers one stream per phase, keyed by the term being built."""
        lows = [item.low for item in ranges for _ in range(item.width)]
        highs = [item.high for item in ranges for _ in range(item.width)]
        low = [value for item in ranges for value in item.folded(item.low)]
        high = [value for item in ranges for value in item.folded(item.high)]
        self._ranges = list(zip(low, high, strict=True))
        paths = [f"{ctx.owner}/{item.name}" if item.name else "" for item in ranges]
        moved = [bool(path) and ctx.adjustables.offer(path) for path in paths]
        self.bounds: Tensor | None = None
        """Lower and upper bounds `[2, W]`; None where no curriculum moves them."""
        self._placed: tuple[Tensor, Tensor] | None = None
        if any(moved):
            self.bounds = ctx.shared([lows, highs], key=f"{key}/ranges" if key else "ranges")
            start = 0
            for item, path, moves in zip(ranges, paths, moved, strict=True):
                if moves:
                    columns = self.bounds[:, start : start + item.width]
                    ctx.adjustables.tensors[path] = columns
                start += item.width
            self._placed = self._affine(ctx, ranges)
            low, high = [0.0] * len(lows), [1.0] * len(highs)
        self._draws: dict[str, Callable[[], Tensor]] = {
            phase: ctx.uniform(len(lows), phase, low, high, key) for phase in phases
        }

    def limits(self, column: int) -> tuple[Any, Any]:
        """Lower and upper bound of one column: numbers, or 0-d tensors that a curriculum moves."""
        if self.bounds is None:
            return self._ranges[column]
        return self.bounds[0, column], self.bounds[1, column]

    def __call__(self, phase: str) -> Tensor:
        """The current draw of a phase, `[N, W]`."""
        draw = self._draws[phase]()
        if self.bounds is None:
            return draw
        low, high = self.bounds.unbind(0)
        draw = (draw * (high - low)).add_(low)
        return draw if self._placed is None else draw.mul_(self._placed[0]).add_(self._placed[1])

    @staticmethod
    def _affine(ctx: BuildContext, ranges: Sequence[Range]) -> tuple[Tensor, Tensor] | None:
        """Scales and offsets `[W]`; None where all are 1 and 0."""
        scales = [item.scale for item in ranges for _ in range(item.width)]
        offsets = [value for item in ranges for value in item.offsets]
        if set(scales) == {1.0} and set(offsets) == {0.0}:
            return None
        return ctx.tensor(scales), ctx.tensor(offsets)

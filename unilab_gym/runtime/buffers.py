"""Memory of past frames: stacks, drawn latencies, and the delay line that reads through them.

A frame is a row of D columns in blocks (the terms of a group). A stack keeps several frames of each
block side by side, block after block, oldest first::

    blocks a (1 column, 3 frames) and b (2 columns, 2 frames) after frames 5, 6, 7:
    a5 a6 a7 | b6 b6' b7 b7'

A push is one concatenation of what stays and what is new into scratch memory; the caller merges it
into the rows that move. There is no head that turns: an address never changes, all that lasts is a
tensor on the device, and a row that does not move keeps its bits.

A delay line is a stack of high + 1 frames per block and one gather. For a latency of 2 steps::

    step       0  1  2  3  4  5        a reset fills every frame with the first one
    in         A  B  C  D  E  F
    out        A  A  A  B  C  D

Where a latency is drawn anew within an episode the line reads elsewhere from then on: a frame is
shown twice where it grew, and left out where it shrank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab_gym.config import DelayCfg
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.term import BuildContext


@dataclass(frozen=True)
class Block:
    """Columns that keep the same number of frames."""

    width: int
    frames: int = 1


class FrameStack:
    """The last frames of every block, `[N, sum of width x frames]`.

    Args:
        ctx: The build context.
        blocks: What lies in a frame, in order.
        source: `[N, D]`, where each new frame is found: always the same tensor.
        key: Its name in a saved state.
        frames: The stack itself, where somebody owns it already.
        first: `[N, D]`, where the first frame of an episode is found; None takes the source.
        scratch: Memory for what a push or a fill makes of the stack; None takes its own.
    """

    def __init__(
        self,
        ctx: BuildContext,
        blocks: Sequence[Block],
        source: Tensor,
        key: str,
        frames: Tensor | None = None,
        first: Tensor | None = None,
        scratch: Tensor | None = None,
    ) -> None:
        """Allocates and cuts the views that every push concatenates."""
        width = sum(block.width * block.frames for block in blocks)
        self.frames = ctx.zeros(width, key=key) if frames is None else frames
        self._scratch = ctx.scratch(width, key=f"{key}/scratch") if scratch is None else scratch
        first = source if first is None else first
        self._push: list[Tensor] = []
        self._fill: list[Tensor] = []
        column = start = 0
        for block in blocks:
            columns = slice(column, column + block.width)
            end = start + block.width * block.frames
            if block.frames > 1:
                self._push.append(self.frames[:, start + block.width : end])
            self._push.append(source[:, columns])
            self._fill += [first[:, columns]] * block.frames
            column, start = columns.stop, end

    def pushed(self) -> Tensor:
        """What the stack becomes with the source's frame: scratch memory, to be merged."""
        return torch.cat(self._push, 1, out=self._scratch)

    def filled(self) -> Tensor:
        """What the stack becomes where every frame is the first one: scratch memory."""
        return torch.cat(self._fill, 1, out=self._scratch)


class Lags:
    """Drawn latencies, one column for each draw: `[N, K]` whole steps in float32.

    Columns are added while managers are built; those that share a name are one draw.
    """

    def __init__(self) -> None:
        """Starts without columns."""
        self._named: dict[str, tuple[int, DelayCfg, str]] = {}
        self._draws: dict[str, list[Callable[[], Tensor]]] = {"reset": [], "step": []}
        self._periods: list[float] = []  # steps from one draw to the next within an episode

    def column(self, ctx: BuildContext, name: str, cfg: DelayCfg, term: str) -> int:
        """The column of a draw.

        Args:
            ctx: The build context.
            name: Keys the draw.
            cfg: The latency.
            term: Who asks, for errors.

        Raises:
            ConfigError: If the name is taken by another latency.
        """
        known = self._named.get(name)
        if known is not None:
            if known[1] != cfg:
                raise ConfigError(
                    f"{term}: the shared delay {cfg.shared!r} is {cfg}, {known[2]} has {known[1]}"
                )
            return known[0]
        with ctx.owned(name):
            # floor of [low, high + 1), short of rounding up to high + 1
            bounds = (cfg.low, cfg.high + 0.999)
            for phase, draws in self._draws.items():
                draw = self._keep
                if phase == "reset" or cfg.redraw is not None:
                    draw = ctx.uniform(1, phase, *bounds, key="delay")
                draws.append(draw)
        self._periods.append(math.inf if cfg.redraw is None else cfg.redraw)
        self._named[name] = (len(self._periods) - 1, cfg, term)
        return len(self._periods) - 1

    def _keep(self) -> Tensor:
        return self._never_drawn

    def build(self, ctx: BuildContext, owner: str) -> None:
        """Allocates what lasts, saved under the owner; no column can be added afterwards."""
        count = len(self._periods)
        self._redrawn = any(period < math.inf for period in self._periods)
        if not count:
            return
        with ctx.owned(owner):
            self.steps = ctx.zeros(count, key="delay/steps")
            self._scratch = ctx.scratch(count, key="delay/drawn")
            self._never_drawn = ctx.scratch(1, key="delay/never")
            if self._redrawn:
                self._period = ctx.tensor(self._periods)
                self._left = ctx.zeros(count, key="delay/left")
                self._due = ctx.scratch(count, dtype=torch.bool, key="delay/due")

    def __len__(self) -> int:
        return len(self._periods)

    def _draw(self, phase: str, mask: Tensor) -> None:
        torch.cat([draw() for draw in self._draws[phase]], 1, out=self._scratch).floor_()
        torch.where(mask, self._scratch, self.steps, out=self.steps)

    def advance(self) -> bool:
        """One step passes; returns whether this configuration draws within an episode."""
        if not self._redrawn:
            return False
        self._left.sub_(1.0)
        torch.le(self._left, 0.0, out=self._due)
        torch.where(self._due, self._period, self._left, out=self._left)
        self._draw("step", self._due)
        return True

    def reset(self, mask: Tensor) -> bool:
        """Masked rows draw anew; returns whether this configuration draws at all."""
        if not self._periods:
            return False
        rows = mask.unsqueeze(1)
        if self._redrawn:
            torch.where(rows, self._period, self._left, out=self._left)
        self._draw("reset", rows)
        return True


class DelayLine:
    """Hands frames on some steps later, each block by its own latency.

    Args:
        ctx: The build context.
        widths: Columns of each block.
        delays: Latency of each block.
        lags: Drawn latencies, built.
        columns: Column of `lags` for each block; None where the latency is fixed.
        source: `[N, D]`, where each new frame is found: always the same tensor.
        out: `[N, D]`, where the delayed frame goes; None takes memory of its own.
    """

    def __init__(
        self,
        ctx: BuildContext,
        widths: Sequence[int],
        delays: Sequence[DelayCfg],
        lags: Lags,
        columns: Sequence[int | None],
        source: Tensor,
        out: Tensor | None = None,
    ) -> None:
        """Allocates the stack and the index that reads it."""
        blocks = [Block(w, cfg.high + 1) for w, cfg in zip(widths, delays, strict=True)]
        self._stack = FrameStack(ctx, blocks, source, "delay/frames")
        self.delayed = ctx.scratch(sum(widths), key="delay/delayed") if out is None else out
        """`[N, D]`, the frame that comes out: always the same tensor."""
        newest: list[int] = []
        steps: list[int] = []
        start = 0
        for block in blocks:
            start += block.width * block.frames
            newest += range(start - block.width, start)
            steps += [block.width] * block.width
        fixed = [cfg.low for cfg in delays]
        self._drawn = any(column is not None for column in columns)
        self._newest, self._strides = ctx.tensor(newest), ctx.tensor([-float(s) for s in steps])
        lag = [x for x, width in zip(fixed, widths, strict=True) for _ in range(width)]
        self._shape = (ctx.num_envs, len(newest))
        if self._drawn:
            self._index = ctx.zeros(len(newest), dtype=torch.int64, key="delay/index")
            self._scratch = ctx.scratch(len(newest), key="delay/position")
        else:
            where = [n - s * x for n, s, x in zip(newest, steps, lag, strict=True)]
            self._index = ctx.tensor([where], dtype=torch.int64)
        constants = ctx.tensor(fixed).view(-1, 1)
        self._lags = [
            (constants[i] if c is None else lags.steps[:, c : c + 1], width)
            for i, (c, width) in enumerate(zip(columns, widths, strict=True))
        ]

    def read_lags(self) -> None:
        """Latencies were drawn: turns them into columns of the stack."""
        if self._drawn:
            rows, _ = self._shape
            parts = [lag.expand(rows, width) for lag, width in self._lags]
            position = torch.cat(parts, 1, out=self._scratch)
            position.mul_(self._strides).add_(self._newest)
            self._index.copy_(position)

    def push(self, keep: Tensor | None = None) -> None:
        """Takes the source's frame in and lets the delayed one out.

        Args:
            keep: `[N, 1]` bool, rows whose stack stays as it is (what comes out for them means
                nothing); None moves every row.
        """
        pushed = self._stack.pushed()
        torch.gather(pushed, 1, self._index.expand(self._shape), out=self.delayed)
        if keep is None:
            self._stack.frames.copy_(pushed)
        else:
            torch.where(keep, self._stack.frames, pushed, out=self._stack.frames)

    def fill(self, mask: Tensor) -> None:
        """Masked rows `[N, 1]` forget: each of their frames is the source's."""
        torch.where(mask, self._stack.filled(), self._stack.frames, out=self._stack.frames)

    def clear(self, mask: Tensor) -> None:
        """Masked rows `[N, 1]` forget: each of their frames is 0."""
        self._stack.frames.masked_fill_(mask, 0.0)

"""Observation manager: owns the observation groups.

Each term is value -> noise and bias -> clip -> scale -> delay -> history. A term that several
groups use with the same function and parameters is computed once per boundary, and every group
sees the clean value. Per group there is one persistent buffer, the observation of the last
boundary: `[N, D]`, or `[N, H, D]` where its history is not flattened.

Boundaries: after physics every row takes one frame in. After a reset the masked rows forget, and
each of their frames is the first one of the new episode; other rows take nothing in.

A group's memory is three blocks of N rows::

    observation | frame | boundary's observation
    `- Frame A picks -'----->  ^
        ^  <----`---- Frame B picks ---'

At Frame A each row of the boundary's observation is picked out of the first two blocks: the new
frame, or in faulty rows the observation as it was. At Frame B each row of the observation is picked
out of the last two: the new frame where the row has reset. So the terminal observation is kept
without a copy of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab_gym.config import (
    DelayCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    delay_of,
    func_name,
    history_of,
    to_dict,
)
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.buffers import Block, DelayLine, FrameStack, Lags
from unilab_gym.runtime.managers._noise import Column, Corruption
from unilab_gym.runtime.rows import RowMask, copy_each
from unilab_gym.runtime.term import BoundTerm, BuildContext, bind_term, check_value, resets_of


@dataclass(frozen=True)
class ObservationTermInfo:
    """Where a term lies in its group."""

    name: str
    start: int
    """First column in the group's row; in `[N, H, D]` in each frame."""
    width: int
    """Columns of one frame."""
    cfg: ObservationTermCfg
    history: int = 0
    """Frames, oldest first; 0 is the value alone."""
    delay: DelayCfg = DelayCfg(steps=0)  # noqa: RUF009 (frozen)
    flat: bool = True
    """Whether the frames lie side by side."""

    @property
    def columns(self) -> slice:
        """Entries along the last dimension of the group's tensor."""
        frames = max(self.history, 1) if self.flat else 1
        return slice(self.start, self.start + self.width * frames)

    @property
    def newest(self) -> slice:
        """Those of the newest frame; in `[N, H, D]` those of each frame."""
        return slice(self.columns.stop - self.width, self.columns.stop)


class Concatenation:
    """Writes values side by side into a tensor `[N, D]`, on CUDA by one kernel."""

    def __init__(self, out: Tensor) -> None:
        """Keeps the tensor."""
        self._out = out

    def __call__(self, values: list[Tensor]) -> None:
        """Values are `[N]`, `[N, d]` or `[N, ..., d]`, floats or flags."""
        torch.cat([_columns(value) for value in values], 1, out=self._out)


class Copies:
    """The same on the CPU, where a concatenation of strided parts copies each by itself.

    With the views cut once that takes three quarters of the time.
    """

    def __init__(self, out: Tensor) -> None:
        """Keeps the tensor; the first values say how wide each is."""
        self._out = out
        self._places: list[Tensor] = []

    def __call__(self, values: list[Tensor]) -> None:
        """Values have the same shapes in every call."""
        if not self._places:
            column = 0
            for value in values:
                start, column = column, column + value[0].numel()
                part = self._out[:, start:column]
                self._places.append(part.view(value.shape))
        copy_each(self._places, values)


class _Memory:
    """Observations of one or several groups, side by side.

    Three blocks of N rows lie one behind the other: what is published, this boundary's frame, and
    the boundary before any reset. A row of the next block is picked out of two of them, whole.
    Rows begin at a cache line, and groups where vectors do: a third off every operation.
    """

    def __init__(self, ctx: BuildContext, width: int) -> None:
        n = ctx.num_envs
        memory = torch.zeros((3 * n, width), dtype=torch.float32, device=ctx.device)
        self.flat, self.frame, self.boundary = memory[:n], memory[n : 2 * n], memory[2 * n :]
        self._at_step, self._at_reset = memory[: 2 * n], memory[n:]

    def end_step(self, keep: RowMask) -> None:
        """The frame becomes the boundary's, except in the chosen rows: they keep what they show."""
        torch.index_select(self._at_step, 0, keep.index, out=self.boundary)

    def end_reset(self, rows: RowMask) -> None:
        """The chosen rows show the frame, the others the boundary."""
        torch.index_select(self._at_reset, 0, rows.index, out=self.flat)


class _Group:
    """One observation group."""

    def __init__(self, name: str, cfg: ObservationGroupCfg) -> None:
        self.name = name
        self.cfg = cfg
        self.terms: list[ObservationTermInfo] = []
        self.keys: list[int] = []
        """Numbers of the terms among the manager's."""
        self._lag_columns: list[int | None] = []
        self._moves: dict[str, list[tuple[Tensor, Tensor, Tensor | None]]] = {}

    def add(self, ctx: BuildContext, lags: Lags, name: str, key: int, width: int) -> None:
        """Appends a term and registers the draw of its delay."""
        term, group = self.cfg.terms[name], self.cfg
        history, start = history_of(group, term), 0
        for info in self.terms:
            start += info.width * (max(info.history, 1) if group.flatten else 1)
        delay = delay_of(group.delay if term.delay is None else term.delay)
        owner = f"observations/{self.name}"
        column = None
        if delay.low < delay.high:
            draw = owner if term.delay is None else f"{owner}/{name}"
            if delay.shared is not None:
                draw = f"observations/delay {delay.shared}"
            column = lags.column(ctx, draw, delay, f"{owner}/{name}")
        self.terms.append(
            ObservationTermInfo(name, start, width, term, history, delay, group.flatten)
        )
        self.keys.append(key)
        self._lag_columns.append(column)

    @property
    def clean(self) -> bool:
        """Whether its frame is the terms' values and nothing else."""
        return self._corruption is None and self._low is None and self._scale is None

    def starts_like(self, other: _Group) -> bool:
        """Whether its terms are the first ones of another group."""
        return self.keys == other.keys[: len(self.keys)]

    def bind(self, ctx: BuildContext) -> None:
        """Registers its draws."""
        with ctx.owned(f"observations/{self.name}"):
            self._corruption = self._corrupted(ctx)
            self._bind_clip_and_scale(ctx)

    def lay_out(self) -> int:
        """Settles the shape; returns the numbers per environment."""
        width = sum(term.width for term in self.terms)
        if self.cfg.flatten:
            self._parts = [Block(term.width, max(term.history, 1)) for term in self.terms]
        else:
            self._parts = [Block(width, self.terms[0].history)]
        total = sum(block.width * block.frames for block in self._parts)
        self.shape: tuple[int, ...] = (total,)
        if not self.cfg.flatten:
            self.shape = (self._parts[0].frames, width)
        return total

    def finish(
        self, ctx: BuildContext, lags: Lags, memory: _Memory, start: int, source: _Group | None
    ) -> None:
        """Allocates what the group needs; what no term asks for is not there.

        Args:
            ctx: The build context.
            lags: Drawn latencies, built.
            memory: Where its observations lie.
            start: Its first column there.
            source: A clean group whose frame starts with this one's values, or None.
        """
        with ctx.owned(f"observations/{self.name}"):
            self._place(ctx, memory, slice(start, start + math.prod(self.shape)))
            self._allocate(ctx, lags)
        width = sum(term.width for term in self.terms)
        self._source = None
        if source is not None:
            self._source = source.fresh[:, :width]

    def _allocate(self, ctx: BuildContext, lags: Lags) -> None:
        blocks, widths = self._parts, [term.width for term in self.terms]
        delayed = any(term.delay.high for term in self.terms)
        stacked = any(block.frames > 1 for block in blocks)
        # Where this boundary's values go: straight into the frame where nothing follows.
        apart = stacked or delayed
        self.fresh = ctx.scratch(sum(widths), key="fresh") if apart else self._frame
        self._gather = (Copies if self.fresh.is_cpu else Concatenation)(self.fresh)
        self._line = self._history = None
        if delayed:
            delays, out = [term.delay for term in self.terms], None if stacked else self._frame
            self._line = DelayLine(ctx, widths, delays, lags, self._lag_columns, self.fresh, out)
        if stacked:
            source = self.fresh if self._line is None else self._line.delayed
            self._history = FrameStack(
                ctx, blocks, source, "history", self._flat, first=self.fresh, scratch=self._frame
            )

    def _place(self, ctx: BuildContext, memory: _Memory, columns: slice) -> None:
        """Cuts the group's columns out of the memory."""
        n, name = ctx.num_envs, self.name
        self._flat, self._frame = memory.flat[:, columns], memory.frame[:, columns]
        boundary = memory.boundary[:, columns]
        ctx.state.add_rows(ctx.owner, "buffer", self._flat)
        ctx.state.add_rows("env", f"final_obs/{name}", boundary)
        ctx.state.add_scratch(ctx.owner, "frame", self._frame)
        self.buffer = self._flat.view(n, *self.shape)
        self.boundary = boundary.view(n, *self.shape)

    def _corrupted(self, ctx: BuildContext) -> Corruption | None:
        columns: dict[str, list[Column]] = {"noise": [], "bias": []}
        start = 0
        for term in self.terms:
            for kind, found in columns.items():
                cfg = getattr(term.cfg, kind)
                if cfg is not None and self.cfg.corrupt:
                    owner = f"observations/{self.name}/{term.name}"
                    found.append(Column(owner, start, term.width, cfg))
            start += term.width
        return Corruption(ctx, **columns) if any(columns.values()) else None

    def _bind_clip_and_scale(self, ctx: BuildContext) -> None:
        low: list[float] = []
        high: list[float] = []
        scale: list[float] = []
        for term in self.terms:
            bounds = term.cfg.clip or (-torch.inf, torch.inf)
            low += [bounds[0]] * term.width
            high += [bounds[1]] * term.width
            factors = term.cfg.scale
            if isinstance(factors, tuple):
                if len(factors) != term.width:
                    raise ConfigError(
                        f"observations/{self.name}/{term.name}: scale has {len(factors)} "
                        f"entries, the term has {term.width} columns"
                    )
                scale += list(factors)
            else:
                scale += [factors] * term.width
        self._low = ctx.tensor(low) if any(term.cfg.clip for term in self.terms) else None
        self._high = ctx.tensor(high)
        self._scale = ctx.tensor(scale) if any(factor != 1.0 for factor in scale) else None

    def _fresh(self, values: list[Tensor], phase: str) -> Tensor:
        """This boundary's frame `[N, D]`, always in the same memory."""
        fresh = self.fresh
        if self._source is not None:
            self._derive(phase)
        else:
            self._gather([values[key] for key in self.keys])
            if self._corruption is not None:
                self._corruption.add(fresh, phase)
        if self._low is not None:
            torch.clamp(fresh, self._low, self._high, out=fresh)
        if self._scale is not None:
            fresh.mul_(self._scale)
        return fresh

    def _derive(self, phase: str) -> None:
        """Takes the values from the source's frame, with the noise in the same operations."""
        assert self._source is not None
        moves = self._moves.get(phase)
        if moves is None:  # the views of all later steps; draws exist from the first one on
            runs = [] if self._corruption is None else self._corruption.noise(phase)
            moves = self._moves[phase] = _moves(self._source, self.fresh, runs)
        for target, value, noise in moves:
            if noise is None:
                target.copy_(value)
            else:
                torch.add(value, noise, out=target)
        if self._corruption is not None:
            self._corruption.add_bias(self.fresh)

    def observe(self, values: list[Tensor], keep: RowMask) -> None:
        """Makes this boundary's frame; the chosen rows take nothing in."""
        self._fresh(values, "step")
        if self._line is not None:
            self._line.push(keep.column)
        if self._history is not None:
            self._history.pushed()

    def observe_reset(self, values: list[Tensor], rows: RowMask) -> None:
        """Makes the frame after a reset; the chosen rows forget and start with it."""
        self._fresh(values, "reset")
        if self._line is not None:
            self._line.fill(rows.column)
        if self._history is not None:
            self._history.filled()
        elif self._line is not None:
            self._frame.copy_(self.fresh)

    def reset(self, mask: Tensor) -> None:
        """Masked rows draw what an episode keeps."""
        if self._corruption is not None:
            self._corruption.reset(mask)

    def read_lags(self) -> None:
        """Latencies were drawn."""
        if self._line is not None:
            self._line.read_lags()


class ObservationManager:
    """Computes every group at a boundary."""

    def __init__(self, ctx: BuildContext, groups: Mapping[str, ObservationGroupCfg]) -> None:
        """Binds the terms, each distinct one once.

        Raises:
            ConfigError: If a group is empty, a term does not bind, or a shared delay is said in
                two ways.
        """
        self._terms: list[BoundTerm] = []
        numbers: dict[str, int] = {}
        self._groups: dict[str, _Group] = {}
        self._memories: list[_Memory] = []
        self._lags = Lags()
        for group_name, cfg in groups.items():
            if not cfg.terms:
                raise ConfigError(f"observations/{group_name}: a group needs at least one term")
            group = _Group(group_name, cfg)
            for name, term_cfg in cfg.terms.items():
                key = f"{func_name(term_cfg.func)}({to_dict(term_cfg.params)})"
                if key not in numbers:
                    owner, phases = f"observations/{group_name}", ("step", "reset")
                    numbers[key] = len(self._terms)
                    self._terms.append(bind_term(ctx, owner, name, term_cfg, phases, updates=True))
                number = numbers[key]
                group.add(ctx, self._lags, name, number, self._terms[number].width)
            self._groups[group_name] = group
        self._lags.build(ctx, "observations")
        for group in self._groups.values():
            group.bind(ctx)
        self._order = self._finish(ctx)
        self._computes = [term.compute for term in self._terms]
        self._resets = resets_of(self._terms)
        self._updated = [term for term in self._terms if term.has_update]

    def _finish(self, ctx: BuildContext) -> list[_Group]:
        """Allocates every group; returns them with sources before those that follow them."""
        order = sorted(self._groups.values(), key=lambda g: (not g.clean, -len(g.keys)))
        sources: list[_Group] = []
        families: dict[str, list[_Group]] = {}
        for group in order:
            source = next((other for other in sources if group.starts_like(other)), None)
            families.setdefault((source or group).name, []).append(group)
            if group.clean and source is None:
                sources.append(group)
        # A source and those that follow it lie in one memory, whose rows are picked at once.
        for members in families.values():
            ends = itertools.accumulate(_rounded(group.lay_out(), 4) for group in members)
            starts = [0, *ends]
            memory = _Memory(ctx, _rounded(starts.pop(), 16))
            self._memories.append(memory)
            for group, start in zip(members, starts, strict=True):
                source = None if group is members[0] else members[0]
                group.finish(ctx, self._lags, memory, start, source)
        return order

    @property
    def widths(self) -> dict[str, int]:
        """Numbers per environment of each group."""
        return {name: group.buffer[0].numel() for name, group in self._groups.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one environment's observation: (D,), or (H, D) where not flattened."""
        return {name: group.shape for name, group in self._groups.items()}

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Observations of the last boundary, persistent `[N, *shape]` per group."""
        return {name: group.buffer for name, group in self._groups.items()}

    @property
    def boundaries(self) -> dict[str, Tensor]:
        """Observations after the last step's physics, before any reset: as `buffers`."""
        return {name: group.boundary for name, group in self._groups.items()}

    def layout(self, group: str) -> list[ObservationTermInfo]:
        """Terms of a group in order."""
        return list(self._groups[group].terms)

    def check(self) -> None:
        """Computes every term once to compare its width with its declaration."""
        rows = next(iter(self._groups.values())).buffer.shape[0]
        for term in self._terms:
            check_value(term, rows)

    def compute(self, keep: RowMask) -> None:
        """Observes a boundary, into `boundaries`; chosen rows hold their last observation."""
        for term in self._updated:
            term.update()
        if self._lags.advance():
            self._read_lags()
        values = [compute() for compute in self._computes]
        for group in self._order:
            group.observe(values, keep)
        for memory in self._memories:
            memory.end_step(keep)

    def compute_reset(self, rows: RowMask) -> None:
        """Observes the boundary after a reset in the chosen rows; `buffers` are complete then."""
        values = [compute() for compute in self._computes]
        for group in self._order:
            group.observe_reset(values, rows)
        for memory in self._memories:
            memory.end_reset(rows)

    def publish(self) -> None:
        """Shows the boundary's observations as they are, where no reset follows."""
        for memory in self._memories:
            memory.flat.copy_(memory.boundary)

    def recall(self) -> None:
        """Before a reset that does not follow a step: its other rows keep what they show."""
        for memory in self._memories:
            memory.boundary.copy_(memory.flat)

    def reset(self, mask: Tensor) -> None:
        """Resets terms with state, and draws what an episode keeps: bias and latencies."""
        for reset in self._resets:
            reset(mask)
        for group in self._groups.values():
            group.reset(mask)
        if self._lags.reset(mask):
            self._read_lags()

    def _read_lags(self) -> None:
        for group in self._groups.values():
            group.read_lags()


def _rounded(number: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-number // step) * step


def _columns(value: Tensor) -> Tensor:
    value = value.unsqueeze(1) if value.dim() == 1 else value.flatten(1)
    return value.to(torch.float32)  # of one dtype: else every part is copied by itself


def _moves(
    source: Tensor, target: Tensor, runs: Sequence[tuple[int, Tensor]]
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """(where to, value, noise or None) for runs of columns that cover `[N, D]`."""
    moves: list[tuple[Tensor, Tensor, Tensor | None]] = []
    column = 0
    for start, noise in runs:
        if start > column:
            moves.append((target[:, column:start], source[:, column:start], None))
        column = start + noise.shape[1]
        moves.append((target[:, start:column], source[:, start:column], noise))
    if column < target.shape[1]:
        moves.append((target[:, column:], source[:, column:], None))
    return moves

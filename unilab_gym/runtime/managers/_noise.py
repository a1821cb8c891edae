"""Noise and bias of one observation group.

Uniform numbers come scaled out of the step's random block. Normal ones are the quantile function
of a uniform in (-1, 1), z = sqrt(2) erfinv(u): one number of the block gives one, whatever its
neighbours are. Draws that lie side by side in group and block are added by one operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab_gym.config import GaussianNoiseCfg, UniformNoiseCfg
from unilab_gym.runtime.term import BuildContext

NoiseCfg = UniformNoiseCfg | GaussianNoiseCfg

_UNIT = 1.0 - 2.0**-24
"""The largest float32 below 1: at 1 the quantile is infinite. The tails end at 5.4 sigma."""


@dataclass(frozen=True)
class Column:
    """Columns of the group that one term's draw goes to."""

    owner: str
    start: int
    width: int
    cfg: NoiseCfg


class Draws:
    """The draws of one phase, in the order of the group's columns."""

    def __init__(
        self, ctx: BuildContext, columns: Sequence[Column], phase: str, key: str = ""
    ) -> None:
        """Registers the streams: normal ones in a row, so that one operation transforms them."""
        self._columns = list(columns)
        self._uniform: dict[int, Callable[[], Tensor]] = {}
        self._normal: dict[int, tuple[int, Callable[[], Tensor]]] = {}
        normal = [c for c in self._columns if isinstance(c.cfg, GaussianNoiseCfg)]
        factors: list[float] = []
        for column in normal:
            with ctx.owned(column.owner):
                draw = ctx.uniform(column.width, phase, -_UNIT, _UNIT, key)
            self._normal[column.start] = (len(factors), draw)
            assert isinstance(column.cfg, GaussianNoiseCfg)
            factors += [column.cfg.std * math.sqrt(2.0)] * column.width
            factors += [0.0] * (column.width % 2)  # as the block pads
        for column in self._columns:
            if isinstance(column.cfg, UniformNoiseCfg):
                with ctx.owned(column.owner):
                    draw = ctx.uniform(column.width, phase, column.cfg.low, column.cfg.high, key)
                self._uniform[column.start] = draw
        if normal:
            self._factors = ctx.tensor(factors)
            self._values = ctx.scratch(len(factors), key=f"{key or 'noise'}/{phase}")
        self._runs: list[tuple[int, Tensor]] | None = None
        self._source: Tensor | None = None

    def _bind(self) -> list[tuple[int, Tensor]]:
        """Views of every draw; the block exists from the first draw on."""
        parts = {start: draw() for start, draw in self._uniform.items()}
        widths = {column.start: column.width for column in self._columns}
        for start, (at, draw) in self._normal.items():
            if self._source is None:
                first = draw()
                self._source = first.as_strided(self._values.shape, first.stride())
            assert draw().storage_offset() == self._source.storage_offset() + at
            parts[start] = self._values[:, at : at + widths[start]]
        return [(column.start, parts[column.start]) for column in self._columns]

    def runs(self) -> list[tuple[int, Tensor]]:
        """(first column, values `[N, width]`) of this step, neighbours joined."""
        if self._runs is None:
            self._runs = merged(self._bind())
        if self._source is not None:
            torch.erfinv(self._source, out=self._values).mul_(self._factors)
        return self._runs


def merged(parts: Sequence[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
    """Joins columns that are neighbours both in the group and in memory."""
    runs: list[tuple[int, Tensor]] = []
    for start, part in parts:
        if runs:
            first, run = runs[-1]
            width = run.shape[1]
            beside = run.storage_offset() + width == part.storage_offset()
            same = run.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
            if first + width == start and beside and same:
                shape = (run.shape[0], width + part.shape[1])
                runs[-1] = (first, run.as_strided(shape, run.stride()))
                continue
        runs.append((start, part))
    return runs


class Corruption:
    """Adds noise and bias to the values of a group."""

    def __init__(self, ctx: BuildContext, noise: Sequence[Column], bias: Sequence[Column]) -> None:
        """Registers the streams and allocates the bias."""
        self._noise = {phase: Draws(ctx, noise, phase) for phase in ("step", "reset")}
        self._has_noise, self._has_bias = bool(noise), bool(bias)
        self._drawn = Draws(ctx, bias, "reset", "bias")
        width = sum(column.width for column in bias)
        parts: list[tuple[int, Tensor]] = []
        if bias:
            self.bias = ctx.zeros(width, key="bias")
            """`[N, columns with a bias]`, of the running episode."""
            self._scratch = ctx.scratch(width, key="bias/scratch")
        at = 0
        for column in bias:
            parts.append((column.start, self.bias[:, at : at + column.width]))
            at += column.width
        self._bias_runs = merged(parts)

    def add(self, values: Tensor, phase: str) -> None:
        """Adds this boundary's noise and the episode's bias to `[N, D]`, in place."""
        if self._has_noise:
            for start, noise in self._noise[phase].runs():
                values[:, start : start + noise.shape[1]].add_(noise)
        for start, bias in self._bias_runs:
            values[:, start : start + bias.shape[1]].add_(bias)

    def reset(self, mask: Tensor) -> None:
        """Masked rows draw the bias of their episode."""
        if self._has_bias:
            parts = [values for _, values in self._drawn.runs()]
            torch.cat(parts, 1, out=self._scratch)
            torch.where(mask.unsqueeze(1), self._scratch, self.bias, out=self.bias)

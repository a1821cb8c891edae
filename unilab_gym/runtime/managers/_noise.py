"""Noise and bias of one observation group.

Numbers come scaled out of the step's random block. Draws that lie side by side in group and memory
are added by one operation; the normal ones of all terms lie in one run, and so do the uniform ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab_gym.config import GaussianNoiseCfg, UniformNoiseCfg
from unilab_gym.runtime.rows import merged
from unilab_gym.runtime.term import BuildContext

NoiseCfg = UniformNoiseCfg | GaussianNoiseCfg


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
        """Registers the streams."""
        self._draws: list[tuple[int, Callable[[], Tensor]]] = []
        for column in columns:
            cfg, width = column.cfg, column.width
            with ctx.owned(column.owner):
                if isinstance(cfg, GaussianNoiseCfg):
                    draw = ctx.normal(width, phase, 0.0, cfg.std, key)
                else:
                    # A bias lasts for an episode; noise comes and goes.
                    coarse = not key
                    draw = ctx.uniform(width, phase, cfg.low, cfg.high, key, coarse=coarse)
            self._draws.append((column.start, draw))
        self._runs: list[tuple[int, Tensor]] | None = None

    def runs(self) -> list[tuple[int, Tensor]]:
        """(first column, values `[N, width]`) of this step, neighbours joined."""
        if self._runs is None:  # views of a block that exists from the first draw on
            self._runs = merged([(start, draw()) for start, draw in self._draws])
        return self._runs


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
        for start, noise in self.noise(phase):
            values[:, start : start + noise.shape[1]].add_(noise)
        self.add_bias(values)

    def noise(self, phase: str) -> list[tuple[int, Tensor]]:
        """(first column, noise `[N, width]`) of this boundary."""
        return self._noise[phase].runs() if self._has_noise else []

    def add_bias(self, values: Tensor) -> None:
        """Adds the episode's bias to `[N, D]`, in place."""
        for start, bias in self._bias_runs:
            values[:, start : start + bias.shape[1]].add_(bias)

    def reset(self, mask: Tensor) -> None:
        """Masked rows draw the bias of their episode."""
        if self._has_bias:
            parts = [values for _, values in self._drawn.runs()]
            torch.cat(parts, 1, out=self._scratch)
            torch.where(mask.unsqueeze(1), self._scratch, self.bias, out=self.bias)

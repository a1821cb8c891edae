"""Metrics manager: owns numbers that are logged per episode and never rewarded."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unilab_gym.config import MetricTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.term import BuildContext, bind_term, check_idle, check_value

_REDUCTIONS = ("mean", "sum", "max", "last")


class MetricsManager:
    """Reduces each metric over the running episode: mean, sum, max or last."""

    def __init__(
        self, ctx: BuildContext, terms: Mapping[str, MetricTermCfg], play: bool = False
    ) -> None:
        """Binds the terms, grouped by their reduction; `play_only` ones in play only.

        Raises:
            ConfigError: If a metric is not one number per environment.
        """
        wanted = {name: cfg for name, cfg in terms.items() if play or not cfg.play_only}
        for name, cfg in terms.items():
            if name not in wanted:
                check_idle(ctx, "metrics", name, cfg)
        ordered = sorted(wanted.items(), key=lambda item: _REDUCTIONS.index(item[1].reduce))
        self._terms = [bind_term(ctx, "metrics", name, cfg) for name, cfg in ordered]
        for term in self._terms:
            if not term.scalar:
                raise ConfigError(f"{term.name}: a metric is one number, width=()")
        self.names = tuple(name for name, _ in ordered)
        kinds = [cfg.reduce for _, cfg in ordered]
        self.reductions = {name: cfg.reduce for name, cfg in ordered}
        self._means = kinds.count("mean")
        self._adds = self._means + kinds.count("sum")
        self._maxes = self._adds + kinds.count("max")
        self.step_values = ctx.zeros(len(ordered), key="step_values")
        """Values of this step `[N, M]`."""
        self._kept = ctx.carriers.columns(len(ordered), "kept")
        self._first = ctx.zeros(1, dtype=torch.bool, key="first")  # a maximum starts anew

    def check(self) -> None:
        """Computes every term once to compare its shape with its declaration."""
        for term in self._terms:
            check_value(term, self.step_values.shape[0])

    def compute(self, bad: Tensor) -> None:
        """Takes one step into the reductions; a faulty row's value is 0."""
        if not self._terms:
            return
        torch.stack([term() for term in self._terms], 1, out=self.step_values)
        self.step_values.masked_fill_(bad.unsqueeze(1), 0.0)
        kept, values, width = self._kept, self.step_values, len(self.names)
        if self._adds:
            kept[:, : self._adds].add_(values[:, : self._adds])
        if self._maxes > self._adds:
            block, fresh = kept[:, self._adds : self._maxes], values[:, self._adds : self._maxes]
            torch.maximum(block.masked_fill(self._first, -torch.inf), fresh, out=block)
            self._first.fill_(False)
        if width > self._maxes:
            kept[:, self._maxes :].copy_(values[:, self._maxes :])

    def episode_values(self, length: Tensor) -> Tensor:
        """Reduced values `[N, M]`, given the steps of the running episode `[N]` float."""
        if not self._means:
            return self._kept
        divisor = length.unsqueeze(1)
        if self._means == len(self.names):
            return self._kept / divisor
        means = self._kept[:, : self._means] / divisor
        return torch.cat((means, self._kept[:, self._means :]), 1)

    def reset(self, mask: Tensor) -> None:
        """Masked rows start anew; the reduced values are episode carriers."""
        if self._maxes > self._adds:
            self._first.logical_or_(mask.unsqueeze(1))
        for term in self._terms:
            term.reset(mask)

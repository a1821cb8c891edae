"""Metrics manager: owns numbers that are logged per episode and never rewarded."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unilab_gym.config import MetricTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.rows import Cut, RowMask
from unilab_gym.runtime.term import BuildContext, bind_term, check_idle, check_value, resets_of

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
        self._computes = [term.compute for term in self._terms]
        self._resets = resets_of(self._terms)
        for term in self._terms:
            if not term.scalar:
                raise ConfigError(f"{term.name}: a metric is one number, width=()")
        self.names = tuple(name for name, _ in ordered)
        kinds = [cfg.reduce for _, cfg in ordered]
        self.commands = {
            name: str(cfg.params["command"]) for name, cfg in ordered if "command" in cfg.params
        }
        """Metrics that say how a command is followed, and which."""
        self.reductions = {name: cfg.reduce for name, cfg in ordered}
        self._means = kinds.count("mean")
        self._adds = self._means + kinds.count("sum")
        self._maxes = self._adds + kinds.count("max")
        # Column 0 counts the good steps: it is reduced like the metrics, at no operation.
        self._block = ctx.columns(1 + len(ordered), key="step_values")
        self._rows = self._block.t()
        self._words = self._rows.view(torch.int32)
        self._one = ctx.scratch(key="one").fill_(1.0)
        self.step_values = self._block[:, 1:]
        """Values of this step `[N, M]`; 0 in faulty rows, where they do not count."""
        self._reduced = Cut(lambda out: (out[: 1 + self._means], out[1 + self._means :]))
        self._kept = ctx.carriers.columns(1 + len(ordered), "kept")
        kept, means = self._kept.t(), 1 + self._means
        self._counted, self._averaged, self._other = kept[0], kept[:means], kept[means:]
        self._nothing = ctx.tensor(torch.nan)
        self._first = ctx.zeros(1, dtype=torch.bool, key="first")  # a maximum starts anew

    def check(self) -> None:
        """Computes every term once to compare its shape with its declaration."""
        for term in self._terms:
            check_value(term, self.step_values.shape[0])

    def compute(self, void: RowMask) -> None:
        """Takes one step into the reductions; the chosen rows are left out."""
        if not self._terms:
            return
        torch.stack([self._one, *[compute() for compute in self._computes]], out=self._rows)
        self._words.bitwise_and_(void.kept)
        kept, values, width = self._kept, self._block, self._block.shape[1]
        adds, maxes = 1 + self._adds, 1 + self._maxes
        if width == adds:
            kept.add_(values)
            return
        bad = void.column
        kept[:, :adds].add_(values[:, :adds])
        if maxes > adds:
            block = kept[:, adds:maxes]
            block.masked_fill_(self._first, -torch.inf)
            fresh = values[:, adds:maxes].masked_fill(bad, -torch.inf)
            torch.maximum(block, fresh, out=block)
            self._first.fill_(False)
        if width > maxes:
            block = kept[:, maxes:]
            torch.where(bad, block, values[:, maxes:], out=block)

    def episode_values(self, out: Tensor) -> None:
        """Whether there is a figure, then the reduced values, into `out` `[1 + M, N]`.

        The first row is 1, and NaN where there was no good step so far; the others are NaN there
        too.
        """
        averages, others = self._reduced(out)
        torch.div(self._averaged, self._counted, out=averages)
        if self._means < len(self.names):
            torch.where(self._counted > 0, self._other, self._nothing, out=others)

    def reset(self, mask: Tensor) -> None:
        """Masked rows start anew; the reduced values are episode carriers."""
        if self._maxes > self._adds:
            self._first.logical_or_(mask.unsqueeze(1))
        for reset in self._resets:
            reset(mask)

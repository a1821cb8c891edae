"""Termination manager: owns the end of an episode and which term caused it.

Failures terminate, time limits truncate. The returned flags are exclusive: where both happen in
one step the episode is terminated. `flags` keeps every term that fired.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unilab_gym.config import TerminationTermCfg, func_name
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.reads import EpisodeEnded, EpisodeFailed, Terminated
from unilab_gym.runtime.term import BuildContext, bind_term, check_value, resets_of


class TerminationManager:
    """Computes `terminated` and `truncated`."""

    def __init__(self, ctx: BuildContext, terms: Mapping[str, TerminationTermCfg]) -> None:
        """Binds the terms, failures first.

        Raises:
            ConfigError: If a term does not return one flag per environment, or a time limit is
                configured as a failure.
        """
        for name, cfg in terms.items():
            if getattr(cfg.func, "is_time_limit", False) and not cfg.time_out:
                raise ConfigError(
                    f"terminations/{name}: {func_name(cfg.func)} is a time limit, not a failure: "
                    "say time_out=True"
                )
        ordered = sorted(terms.items(), key=lambda item: item[1].time_out)  # stable
        self._terms = [bind_term(ctx, "terminations", name, cfg) for name, cfg in ordered]
        self._computes = [term.compute for term in self._terms]
        self._resets = resets_of(self._terms)
        for term in self._terms:
            if not term.scalar:
                raise ConfigError(f"{term.name}: a termination is one flag, width=()")
        self.names = tuple(name for name, _ in ordered)
        failures = sum(not cfg.time_out for _, cfg in ordered)
        self.flags = ctx.columns(len(ordered), torch.bool, key="flags")
        """Which terms fired in this step `[N, T]`; kept until the next step."""
        self._shown = ctx.columns(len(ordered), torch.bool, key="shown")
        """What terms read: the same, but false in new episodes."""
        self._read = False
        self._rows = self.flags.t()
        self._failures, self._limits = self._rows[:failures], self._rows[failures:]
        self._failure_rows, self._limit_rows = self._failures.unbind(0), self._limits.unbind(0)
        self.terminated = ctx.zeros(dtype=torch.bool, key="terminated")
        self.truncated = ctx.zeros(dtype=torch.bool, key="truncated")
        self.done = ctx.zeros(dtype=torch.bool, key="done")
        for column, name in enumerate(self.names):
            ctx.frame.provide(Terminated(name), self._shown[:, column])
        ctx.frame.provide(EpisodeFailed(), self.terminated)
        ctx.frame.provide(EpisodeEnded(), self.done)

    def use_reads(self, read: bool) -> None:
        """Whether any term reads `Terminated`; otherwise that copy of the flags is not kept."""
        self._read = read

    def check(self) -> None:
        """Computes every term once to compare shape and dtype with what is declared."""
        for term in self._terms:
            check_value(term, self.done.shape[0], torch.bool)

    def compute(self, keep: Tensor | None = None) -> None:
        """Evaluates every term at this boundary; rows in `keep` `[N]` hold their last flags."""
        if self._terms:
            before = None if keep is None else self.flags.clone()
            torch.stack([compute() for compute in self._computes], out=self._rows)
            if keep is not None and before is not None:
                torch.where(keep.unsqueeze(1), before, self.flags, out=self.flags)
        if self._read:
            self._shown.copy_(self.flags)
        _any_row(self._failures, self._failure_rows, self.terminated)
        _any_row(self._limits, self._limit_rows, self.truncated)

    def finish(self, bad: Tensor, ignore: Tensor | None = None) -> None:
        """Faulty rows terminate, rows in `ignore` do not end; the flags become exclusive."""
        torch.gt(self._rows, bad, out=self._rows)  # false where a row is bad
        if self._read:
            self._shown.copy_(self.flags)
        self.terminated.logical_or_(bad)
        if ignore is not None:
            self.terminated.masked_fill_(ignore, False)
            self.truncated.masked_fill_(ignore, False)
        torch.logical_or(self.terminated, self.truncated, out=self.done)
        torch.logical_xor(self.done, self.terminated, out=self.truncated)

    def reset(self, mask: Tensor) -> None:
        """Resets terms with state; nothing has ended the new episodes yet."""
        if self._read:
            self._shown.masked_fill_(mask.unsqueeze(1), False)
        for reset in self._resets:
            reset(mask)


def _any_row(rows: Tensor, pair: tuple[Tensor, ...], out: Tensor) -> None:
    """Whether any of `[T, N]` is true, `[N]`; the general reduction takes five times as long."""
    if len(pair) == 2:
        torch.logical_or(*pair, out=out)
    else:
        torch.any(rows, 0, out=out)

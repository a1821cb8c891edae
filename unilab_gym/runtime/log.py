"""The episode log: what ended in this step, as one packed `[N, L]` matrix and 0-d tensors.

`docs/logging.md` has every key with its unit and formula. Per row: `reward/<term>` is the sum of
weight x value x dt over the episode divided by its length in seconds; `episode/return`;
`episode/length` in steps; `termination/<term>` and `fault/<cause>` are 1 where that happened;
`metric/<term>` is the episode's reduced metric, NaN where a row was faulty from its first step on;
`command/<command>/<metric>` is the same of a metric with a parameter `command`, at no operation.
The log holds the mean over the rows that ended in this step and have a figure, or the previous
value where there is none, and `episode/ended`, their number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unilab_gym.runtime.faults import FaultBit, FaultMonitor
from unilab_gym.runtime.managers.metrics import MetricsManager
from unilab_gym.runtime.managers.rewards import RewardManager
from unilab_gym.runtime.managers.terminations import TerminationManager
from unilab_gym.runtime.reads import LogValue
from unilab_gym.runtime.rows import copy_each
from unilab_gym.runtime.term import BuildContext


class EpisodeLog:
    """Packs and reduces episode statistics; a dozen operations a step."""

    def __init__(
        self,
        ctx: BuildContext,
        rewards: RewardManager,
        terminations: TerminationManager,
        metrics: MetricsManager,
        faults: FaultMonitor,
    ) -> None:
        """Lays out the columns."""
        self._dt = ctx.tensor(ctx.control_dt)
        self._metrics = metrics
        self.names = (
            *(f"metric/{name}" for name in metrics.names),
            *(f"reward/{name}" for name in rewards.names),
            "episode/return",
            "episode/length",
            *(f"termination/{name}" for name in terminations.names),
            *(f"fault/{bit.name.lower()}" for bit in FaultBit if bit.name),
        )
        self.mask_names = tuple(f"_{name}" for name in self.names)
        own, self._sums = rewards.episode.t(), rewards.sums.t()
        flags = (terminations.flags, faults.flags, terminations.done.unsqueeze(1))
        self.returns, self.length = rewards.episode.unbind(1)
        """Return and steps of the running episode, each `[N]`."""
        # Columns: whether a row has metrics (none: left out), the named ones, whether it ended.
        first = 1 if metrics.names else 0
        count = len(self.names)
        packed = ctx.columns(first + count + 1, key="packed")
        self._all = packed.t()
        at = (first + len(metrics.names), len(rewards.names))
        self._metric_rows, rest = self._all[: at[0]], self._all[at[0] :]
        self._rate_rows, rest = rest[: at[1]], rest[at[1] :]
        # Copied as they are; as bytes flags become numbers six times as fast.
        self._sources = [own, *(flag.t().view(torch.uint8) for flag in flags)]
        self._copies: list[Tensor] = []
        for source in self._sources:
            self._copies.append(rest[: source.shape[0]])
            rest = rest[source.shape[0] :]
        self._words = self._all.view(torch.int32)
        self._chosen = ctx.scratch_columns(packed.shape[1], torch.int32, key="chosen").t()
        self._chosen_values = self._chosen.view(torch.float32)
        self.packed = packed[:, first:-1]
        """The named columns of this step's boundary, for every row `[N, L]`."""
        self.packed_rows = self.packed.t()
        self.masks = terminations.done.expand(count + 3, ctx.num_envs)
        """Which rows ended, once for every figure and three times more `[L + 3, N]`."""
        # A mean divides by the number of rows that have a figure: that column's total.
        counted = [0] * len(metrics.names) + [first + count] * (count - len(metrics.names))
        self._counted = ctx.tensor(counted, dtype=torch.int64)
        self._held = ctx.shared([0.0] * (count + 1), key="held")  # the last one: ended
        self._means, self._ended = self._held[:-1], self._held[-1]
        for number, name in enumerate((*self.names, "episode/ended")):
            ctx.frame.provide(LogValue(name), self._held[number])
        self._aliases = {
            f"command/{command}/{name}": self.names.index(f"metric/{name}")
            for name, command in metrics.commands.items()
        }
        for name, number in self._aliases.items():
            ctx.frame.provide(LogValue(name), self._held[number])
        self._totals, self._none = ctx.tensor([0.0] * packed.shape[1]), ctx.tensor([0.0])
        self._named_totals = self._totals[first : first + count]
        self._ended_total = self._totals[-1]
        self._no_bit, self._every_bit = ctx.tensor([[0], [-1]], dtype=torch.int32)

    def compute(self, done: Tensor) -> None:
        """Packs the boundary and reduces the rows that end in this step, `done` `[N]` bool."""
        if self._metrics.names:
            self._metrics.episode_values(self._metric_rows)
        seconds = torch.mul(self.length, self._dt)
        torch.div(self._sums, seconds, out=self._rate_rows)
        copy_each(self._copies, self._sources)
        # An AND with the bits of ended rows: a float times 0 would keep NaN.
        ended = torch.where(done, self._every_bit, self._no_bit)
        torch.bitwise_and(self._words, ended, out=self._chosen)
        torch.nansum(self._chosen_values, 1, out=self._totals)
        counts = self._totals.index_select(0, self._counted)
        mean = self._named_totals / counts  # NaN where there are none: the next line passes by
        torch.where(counts > self._none, mean, self._means, out=self._means)
        self._ended.copy_(self._ended_total)

    def values(self) -> dict[str, Tensor]:
        """A new dict of 0-d tensors that nothing will change."""
        names = (*self.names, "episode/ended")
        held = self._held.clone().unbind()
        followed = {name: held[number] for name, number in self._aliases.items()}
        return {**dict(zip(names, held, strict=True)), **followed}

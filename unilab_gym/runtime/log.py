"""The episode log: what ended in this step, as one packed `[N, L]` matrix and 0-d tensors.

Columns: `reward/<term>` is the sum of weight x value x dt over the episode divided by its length
in seconds; `episode/return`; `episode/length` in steps; `termination/<term>` and `fault/<cause>`
are 1 where that happened; `metric/<term>` is the episode's reduced metric. The log holds the mean
over the rows that ended in this step, or the previous value where none did, and
`episode/ended`, their number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unilab_gym.runtime.faults import FaultBit, FaultMonitor
from unilab_gym.runtime.managers.metrics import MetricsManager
from unilab_gym.runtime.managers.rewards import RewardManager
from unilab_gym.runtime.managers.terminations import TerminationManager
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
        self._dt = ctx.control_dt
        self._rewards, self._terminations = rewards, terminations
        self._metrics, self._faults = metrics, faults
        self.names = (
            *(f"reward/{name}" for name in rewards.names),
            "episode/return",
            "episode/length",
            *(f"termination/{name}" for name in terminations.names),
            *(f"fault/{bit.name.lower()}" for bit in FaultBit if bit.name),
            *(f"metric/{name}" for name in metrics.names),
        )
        own = ctx.carriers.columns(2, "episode")
        self.returns = own[:, 0]
        """Undiscounted return of the running episode `[N]`."""
        self.length = own[:, 1]
        """Steps since the reset `[N]`: unlike the time limit's counter nobody can set it."""
        self._own = own
        self._length_column = own[:, 1:]
        self.packed = ctx.zeros(len(self.names), key="packed")
        """The columns of this step's boundary, for every row."""
        self._held = ctx.shared([0.0] * (len(self.names) + 1), key="held")  # last one: ended
        self._means, self._ended = self._held[:-1], self._held[-1]
        self._zero = torch.zeros((), device=ctx.device)

    def compute(self, done: Tensor) -> None:
        """Packs the boundary and reduces the rows that end in this step, `done` `[N]` bool."""
        steps = self.length.add_(1.0)
        self.returns.add_(self._rewards.reward)
        parts = (
            self._rewards.sums / (self._length_column * self._dt),
            self._own,
            self._terminations.flags,
            self._faults.flags,
            self._metrics.episode_values(steps),
        )
        torch.cat(parts, 1, out=self.packed)
        total = torch.where(done.unsqueeze(1), self.packed, self._zero).sum(0)
        torch.sum(done, 0, dtype=torch.float32, out=self._ended)
        mean = total / self._ended  # NaN where none ended, which the next line does not pick
        torch.where(self._ended > 0, mean, self._means, out=self._means)

    def values(self) -> dict[str, Tensor]:
        """A new dict of 0-d tensors that nothing will change."""
        names = (*self.names, "episode/ended")
        return dict(zip(names, self._held.clone().unbind(), strict=True))

"""Reward manager: owns the `[N, T]` matrix of reward components.

Step reward = sum over terms of weight x value x control_dt. Components are kept as rates
(weight x value, per second). A term of weight 0 is not computed, unless a curriculum may change
its weight.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unilab_gym.config import RewardTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.reads import RewardSum
from unilab_gym.runtime.rows import PairSum, RowMask
from unilab_gym.runtime.term import BuildContext, bind_term, check_idle, check_value, resets_of


class RewardManager:
    """Computes the reward and its sums over the running episode."""

    def __init__(self, ctx: BuildContext, terms: Mapping[str, RewardTermCfg]) -> None:
        """Binds every term whose weight is not 0, or may become another.

        Raises:
            ConfigError: If a term does not return one scalar per environment.
        """
        self._dt = ctx.control_dt
        moved: dict[str, Tensor] = {}
        for name, cfg in terms.items():
            with ctx.owned(f"rewards/{name}"):
                weight = ctx.adjusted("weight", cfg.weight)
            if weight is not None:
                moved[name] = weight
        active = {name: cfg for name, cfg in terms.items() if cfg.weight != 0.0 or name in moved}
        for name, cfg in terms.items():
            if name not in active:
                check_idle(ctx, "rewards", name, cfg)
        self._terms = [bind_term(ctx, "rewards", name, cfg) for name, cfg in active.items()]
        self._computes = [term.compute for term in self._terms]
        self._resets = resets_of(self._terms)
        for term in self._terms:
            if not term.scalar:
                raise ConfigError(f"{term.name}: a reward is one number per environment, width=()")
        self.names = tuple(active)
        weights = [cfg.weight * self._dt for cfg in active.values()]
        self._weights = ctx.shared(weights, key="weights") if moved else ctx.tensor(weights)
        self._weight_column = self._weights.unsqueeze(1)
        # Where a curriculum moves a weight, its column is written anew in each step.
        columns = {name: self._weights[column] for column, name in enumerate(active)}
        self._moved = [(weight, columns[name]) for name, weight in moved.items()]
        self.values = ctx.columns(len(active), key="values")
        """Unweighted values of this step."""
        # weight x value x dt of every term, their sum, 1 step
        step = ctx.columns(len(active) + 2, key="step")
        self._step = step[:, : len(active)]
        # Terms are rows of the memory: they lie together.
        self._value_rows, self._step_rows = self.values.t(), self._step.t()
        self._words = step.t()[:-1].view(torch.int32)
        self._accrues = step
        self._accrued = ctx.carriers.columns(len(active) + 2, "sums")
        self.sums = self._accrued[:, : len(active)]
        """Sum of weight x value x dt over the running episode."""
        self.episode = self._accrued[:, len(active) :]
        """Undiscounted return and steps of the running episode `[N, 2]`; the time limit's counter
        can be set, this one cannot."""
        self.reward = step[:, -2]
        step[:, -1] = 1.0
        half = ctx.scratch_columns(len(active) // 2, key="half")
        self._sum = PairSum(self._step_rows, self.reward, half.t())
        for column, name in enumerate(self.names):
            ctx.frame.provide(RewardSum(name), self.sums[:, column])

    def check(self) -> None:
        """Computes every term once to compare its shape with its declaration."""
        for term in self._terms:
            check_value(term, self.reward.shape[0])

    @property
    def components(self) -> Tensor:
        """The weighted values of this step per second, weight x value, `[N, T]`."""
        return self._step / self._dt

    def compute(self) -> Tensor:
        """The step's reward `[N]`, before faulty rows are cleared."""
        if not self._terms:
            return self.reward
        torch.stack([compute() for compute in self._computes], out=self._value_rows)
        for weight, column in self._moved:
            torch.mul(weight, self._dt, out=column)
        torch.mul(self._value_rows, self._weight_column, out=self._step_rows)
        return self._sum()

    def finish(self, void: RowMask) -> None:
        """Clears the chosen rows and adds the step to the sums."""
        self._words.bitwise_and_(void.kept)
        self._accrued.add_(self._accrues)

    def reset(self, mask: Tensor) -> None:
        """Resets terms with state; the sums are episode carriers."""
        for reset in self._resets:
            reset(mask)

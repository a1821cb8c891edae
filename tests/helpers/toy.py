"""The toy task of N07: one hinge that is rewarded for acting little, and what a learner gains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from helpers.face import make_probe
from helpers.probe import obs_term, step_counter
from torch import Tensor

from unilab_gym.config import ObservationGroupCfg, RewardTermCfg
from unilab_gym.runtime.reads import Action
from unilab_gym.runtime.term import TermFrame, term

ROWS, HORIZON, STEPS = 64, 20, 1000
"""Environments, steps of each between two updates, steps of each in the whole training."""


@term(reads=(Action(),))
def mean_square_action(frame: TermFrame) -> Tensor:  # [N]
    """The mean square of the clamped action. Unitless."""
    return frame[Action()].square().mean(1)


class Toy:
    """`env` rewards a step with -mean(action^2); its episodes have ten steps.

    Args:
        folder: Where the model is written.
        kwargs: Options of `unilab_gym.make`.
    """

    def __init__(self, folder: Any, **kwargs: Any) -> None:
        reward = RewardTermCfg(func=mean_square_action, weight=-50.0)  # a step is 1/50 s
        seen = ObservationGroupCfg(terms={"k": obs_term(step_counter, scale=0.1)})
        changes = {
            "rewards": {"still": reward},
            "observations": {"policy": seen},
            "episode_length_s": 0.2,
        }
        self.env = make_probe(folder, ROWS, changes=changes, seed=1, **kwargs)
        self.costs: list[float] = []
        self._step, self.env.step = self.env.step, self._noted

    def _noted(self, action: Any) -> Any:
        result = self._step(action)
        self.costs.append(-float(result[1].mean()))
        return result

    def gain(self) -> float:
        """By how much the last tenth of the first `STEPS` steps costs less than their first."""
        assert len(self.costs) >= STEPS
        tenth = STEPS // 10
        first, last = sum(self.costs[:tenth]), sum(self.costs[STEPS - tenth : STEPS])
        return 1.0 - last / first


def check_toy(train: Callable[[Toy, float], None], folder: Any, **kwargs: Any) -> None:
    """Trains; the cost halves, and stays as it was where the learning rate is 0.

    Args:
        train: Takes `STEPS` steps of the toy with that learning rate; actions begin with a
            standard deviation of 1.
        folder: Where the model is written.
        kwargs: Options of `unilab_gym.make`.
    """
    gains: dict[float, float] = {}
    for rate in (0.0, 2e-3):
        torch.manual_seed(1)
        toy = Toy(folder, **kwargs)
        train(toy, rate)
        toy.env.close()
        gains[rate] = toy.gain()
        # E[clamp(a, -1, 1)^2] = 0.52 for a ~ N(0, 1); an untrained mean is not quite 0.
        assert 0.3 < toy.costs[0] < 0.8, toy.costs[0]
    assert abs(gains[0.0]) < 0.1 and gains[2e-3] >= 0.5, gains
    print(f"the cost fell by {gains[2e-3]:.1%}; untrained by {gains[0.0]:.1%}")

"""Evaluation: the one implementation that demo, replay, command line and tests share."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError, near
from unilab_gym.registration import Outcome

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from unilab_gym.vector_env import UnilabVectorEnv

Policy = Callable[[Tensor], Tensor]
FEW_EPISODES = 20
"""Below this one failed episode is allowed whatever the survival bar."""


@dataclass(frozen=True)
class EvalReport:
    """Figures of an evaluation, over the first full episode of each environment."""

    episodes: int
    survival: float
    """Share of episodes that reached the time limit."""
    survivors: int
    mean_length: float
    """Control steps."""
    mean_return: float
    """Undiscounted."""
    metrics: Mapping[str, float]
    """Metrics that reduce by mean or last: mean over all live steps. By sum: mean per episode.
    By max (events, 0 where nothing happens): `<name>_p10`, the 10th percentile of the steps at
    which something happened, and `<name>_count`."""
    faults: Mapping[str, int]
    """Causes of quarantined rows, those that occurred."""
    seconds: float
    """Wall-clock time."""
    steps: int
    """Live environment steps."""
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Every figure that an `Outcome` can name."""

    def shortfalls(self, outcome: Outcome) -> list[str]:
        """What misses the bar, in words; empty where the outcome is reached.

        Raises:
            ConfigError: If the outcome names a figure that the evaluation does not have.
        """
        missed: list[str] = []
        bars = ((outcome.at_most, "at most", 1), (outcome.at_least, "at least", -1))
        for limits, word, sign in bars:
            for name, limit in limits.items():
                if name not in self.figures:
                    raise ConfigError(
                        f"outcome names {name!r}; the evaluation has {sorted(self.figures)}"
                    )
                few = self.episodes < FEW_EPISODES and self.survivors >= self.episodes - 1
                if name == "survival" and few:
                    continue
                value = self.figures[name]
                if not sign * value <= sign * limit:  # NaN misses every bar
                    missed.append(f"{name} is {value:.3f}, the bar is {word} {limit:g}")
        return missed

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)


def evaluate(
    env: VectorEnv[Any, Any, Any],
    policy: Policy,
    episodes: int | None = None,
    seed: int = 1000,
    *,
    on_step: Callable[[UnilabVectorEnv], None] | None = None,
) -> EvalReport:
    """Plays the first full episode of each environment.

    Args:
        env: Made with `play=True` and as many environments as episodes; commands are sampled as
            in training unless held.
        policy: Mean actions `[N, A]` of observations `[N, D]`: of the policy group, or of the
            groups that its attribute `obs_groups` names, side by side.
        episodes: How many environments count; None takes all.
        seed: Fixes starts and commands, whatever ran before.
        on_step: Called after the reset and after each step, for example to record frames.

    Raises:
        ConfigError: If the environment is not a play variant, resets in another mode, or has too
            few environments.
    """
    from unilab_gym.vector_env import UnilabVectorEnv

    base = env.unwrapped
    if not isinstance(base, UnilabVectorEnv):
        raise ConfigError(f"evaluate takes a UnilabVectorEnv, got {type(base).__name__}")
    if base.autoreset_mode.name != "SAME_STEP":
        raise ConfigError(f"evaluate needs autoreset mode SameStep, got {base.autoreset_mode}")
    if not base.cfg.play:
        raise ConfigError("evaluate needs an environment made with play=True")
    count = base.num_envs if episodes is None else episodes
    if not 0 < count <= base.num_envs:
        raise ConfigError(f"{count} episodes need as many environments, there are {base.num_envs}")
    started = time.perf_counter()
    base.reset(seed=seed)
    if on_step is not None:
        on_step(base)
    tally = _Tally(base, count)
    faults_before = base.runtime.fault_totals()
    with torch.inference_mode():
        for _ in range(base.max_episode_steps):
            base.step(policy(policy_input(base, policy)))
            tally.add()
            if on_step is not None:
                on_step(base)
            if not bool(tally.alive.any()):
                break
    faults = {
        name: total - faults_before[name]
        for name, total in base.runtime.fault_totals().items()
        if total > faults_before[name]
    }
    return tally.report(faults, time.perf_counter() - started)


def policy_input(env: UnilabVectorEnv, policy: Policy) -> Tensor:
    """The observation `[N, D]` that a policy takes; see `evaluate`.

    Raises:
        ConfigError: If it asks for a group that the environment does not have.
    """
    names: tuple[str, ...] = getattr(policy, "obs_groups", ("policy",))
    groups = env.get_observations()
    for name in names:
        if name not in groups:
            raise ConfigError(f"the policy reads the observation group {near(name, groups)}")
    return groups[names[0]] if len(names) == 1 else torch.cat([groups[n] for n in names], 1)


class _Tally:
    """Sums over the live steps of the first episodes; steps after a row's end do not count."""

    def __init__(self, env: UnilabVectorEnv, count: int) -> None:
        self._env = env
        self._count = count
        self._manager = env.runtime.rt.metrics
        rows = torch.arange(env.num_envs, device=env.device)
        self.alive = rows < count
        self._reached = torch.zeros_like(self.alive)
        self._length = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)
        self._good = torch.zeros_like(self._length)
        """Live steps without a fault: those that metrics count."""
        self._returns = torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)
        width = len(self._manager.names)
        self._sums = torch.zeros(width, dtype=torch.float64, device=env.device)
        self._events: list[Tensor] = []

    def add(self) -> None:
        state = self._env.runtime.state
        alive = self.alive
        self._length += alive
        self._good += alive & ~self._env.runtime.rt.faults.bad
        self._returns += torch.where(alive, state.reward, 0.0)
        values = torch.where(alive.unsqueeze(1), self._manager.step_values, 0.0)
        self._sums += values.sum(0)
        self._events.append(values)
        self._reached |= alive & state.truncated
        self.alive = alive & ~(state.terminated | state.truncated)

    def report(self, faults: Mapping[str, int], seconds: float) -> EvalReport:
        steps, good = int(self._length.sum()), int(self._good.sum())
        metrics: dict[str, float] = {}
        events = torch.stack(self._events)  # [steps, N, M]
        kinds = self._manager.reductions
        for column, name in enumerate(self._manager.names):
            if kinds[name] == "max":
                happened = events[..., column]
                happened = happened[happened != 0.0]
                p10 = torch.quantile(happened.double(), 0.1) if happened.numel() else torch.nan
                metrics[f"{name}_p10"] = float(p10)
                metrics[f"{name}_count"] = float(happened.numel())
            else:
                divisor = self._count if kinds[name] == "sum" else max(1, good)
                metrics[name] = float(self._sums[column]) / divisor
        survivors = int(self._reached.sum())
        mean_length, mean_return = steps / self._count, float(self._returns.sum()) / self._count
        survival = survivors / self._count
        figures = {
            "survival": survival,
            "mean_length": mean_length,
            "mean_return": mean_return,
            **metrics,
        }
        return EvalReport(
            episodes=self._count,
            survival=survival,
            survivors=survivors,
            mean_length=mean_length,
            mean_return=mean_return,
            metrics=metrics,
            faults=dict(faults),
            seconds=seconds,
            steps=steps,
            figures=figures,
        )

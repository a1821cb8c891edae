"""Where two backends part: the same seed, the same actions, term by term.

    report = compare_backends(home.env, other.env, policy, backends=("mujoco", "mjwarp"))
    print(report)
    assert report.ok

Both environments start in the same state (same seed, `play=True`) and get the same actions: those
that the policy gives for the home side's observations. So nothing is fed back through the policy,
and what differs is the engines' arithmetic, or a configuration that is not the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError
from unilab_gym.evaluation import Policy, policy_input

if TYPE_CHECKING:
    from unilab_gym.config import EnvCfg
    from unilab_gym.vector_env import UnilabVectorEnv

TOLERANCES: Mapping[str, float] = {"observation": 1e-2, "reward": 1e-2, "state": 1e-2}
"""Largest |difference| / max(1, |home value|) of each kind.

MuJoCo C computes in float64, MJWarp in float32. Measured on Go2 over 64 environments: below 5e-4
for 100 steps; later rounding moves a touch-down into another physics step now and then (one of 64
within 200 steps), and the joint velocities of that environment jump."""


@dataclass(frozen=True)
class TermDifference:
    """How far one quantity is apart."""

    kind: str
    """observation, reward or state."""
    name: str
    """`group/term`, the reward's name, `qpos` or `qvel`."""
    largest: float
    """Largest |difference| / max(1, |home value|) over all steps, environments and columns."""
    step: int
    """Control step at which it is largest; 0 is the reset."""
    column: int
    """Column of the term at which it is largest."""
    first_step: int | None
    """First step beyond the tolerance; None where there is none."""
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether it stays within its tolerance; NaN does not."""
        return self.largest <= self.tolerance


@dataclass(frozen=True)
class ComparisonReport:
    """What a comparison found."""

    home: str
    """Backend whose observations the policy saw."""
    other: str
    terms: tuple[TermDifference, ...]
    steps: int
    num_envs: int
    ended_apart: int
    """Steps at which an episode ended on one side alone."""

    @property
    def ok(self) -> bool:
        """Whether every term stays within its tolerance and episodes end together."""
        return all(term.ok for term in self.terms) and not self.ended_apart

    @property
    def beyond(self) -> list[TermDifference]:
        """Terms beyond their tolerance, the first to part first."""
        apart = [term for term in self.terms if not term.ok]
        return sorted(apart, key=lambda term: term.first_step or 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "home": self.home,
            "other": self.other,
            "steps": self.steps,
            "num_envs": self.num_envs,
            "ok": self.ok,
            "ended_apart": self.ended_apart,
            "terms": [{**vars(term), "ok": term.ok} for term in self.terms],
        }


def compare_backends(
    home: EnvCfg,
    other: EnvCfg,
    policy: Policy | Callable[[UnilabVectorEnv], Policy],
    *,
    backends: tuple[str, str] = ("mujoco", "mjwarp"),
    device: tuple[str | None, str | None] = (None, None),
    num_envs: int = 4,
    steps: int = 100,
    seed: int = 1000,
    tolerances: Mapping[str, float] = TOLERANCES,
    on_step: Callable[[], None] | None = None,
    needs_env: bool = False,
) -> ComparisonReport:
    """Steps two environments with the same actions.

    Args:
        home: Configuration of the side whose observations the policy sees.
        other: Configuration of the other side; its terms must have the same names and widths.
        policy: Mean actions of observations, see `unilab_gym.evaluate`; with `needs_env` a
            function that makes it from the home environment.
        backends: Their backends.
        device: Their devices; None takes what the backend takes.
        num_envs: Environments on each side.
        steps: Control steps.
        seed: Fixes starts and commands on both sides.
        tolerances: Bound of each kind, see `TOLERANCES`.
        on_step: Called after each step.
        needs_env: See `policy`.

    Raises:
        ConfigError: If a number cannot be, or the two sides do not have the same terms.
    """
    from unilab_gym.factory import make

    if steps <= 0 or num_envs <= 0:
        raise ConfigError(f"steps and num_envs must be positive, got {steps} and {num_envs}")
    envs: list[UnilabVectorEnv] = []
    try:
        for cfg, backend, where in zip((home, other), backends, device, strict=True):
            envs.append(make(cfg, num_envs, backend=backend, device=where, play=True))
        left, right = envs
        chosen: Any = policy(left) if needs_env else policy  # pyright: ignore[reportArgumentType]
        tallies = _tallies(left, right, tolerances)
        for env in envs:
            env.reset(seed=seed)
        _observe(tallies, left, right, 0)
        ended_apart = 0
        for step in range(1, steps + 1):
            with torch.inference_mode():
                action = chosen(policy_input(left, chosen))
            for env in envs:
                env.step(action.to(env.device))
            _observe(tallies, left, right, step)
            apart = (
                left.runtime.rt.terminations.done.cpu() ^ right.runtime.rt.terminations.done.cpu()
            )
            ended_apart += int(apart.any())
            if on_step is not None:
                on_step()
    finally:
        for env in envs:
            env.close()
    found = tuple(tally.result() for tally in tallies.values())
    return ComparisonReport(backends[0], backends[1], found, steps, num_envs, ended_apart)


class _Tally:
    """The largest difference of one quantity so far."""

    def __init__(self, kind: str, name: str, tolerance: float) -> None:
        self._kind, self._name, self._tolerance = kind, name, tolerance
        self._largest, self._step, self._column = 0.0, 0, 0
        self._first: int | None = None

    def add(self, home: Tensor, other: Tensor, step: int) -> None:
        """Compares two blocks `[N, d]`; equal infinities agree, NaN never does."""
        home, other = home.double().cpu(), other.double().cpu()
        error = (home - other).abs() / home.abs().clamp(min=1.0)
        error = torch.where(home == other, 0.0, error).nan_to_num(math.inf)
        worst = error.amax(0)
        value = float(worst.max())
        if value > self._largest:
            self._largest, self._step, self._column = value, step, int(worst.argmax())
        if self._first is None and not value <= self._tolerance:
            self._first = step

    def result(self) -> TermDifference:
        return TermDifference(
            self._kind,
            self._name,
            self._largest,
            self._step,
            self._column,
            self._first,
            self._tolerance,
        )


def _tallies(
    left: UnilabVectorEnv, right: UnilabVectorEnv, tolerances: Mapping[str, float]
) -> dict[tuple[str, str], _Tally]:
    names = [(kind, name) for kind, name, _ in _blocks(left, 0)]
    there = [(kind, name) for kind, name, _ in _blocks(right, 0)]
    if names != there:
        odd = sorted({f"{k} {n}" for k, n in set(names) ^ set(there)})
        raise ConfigError(f"the two sides have other terms, or another order: {', '.join(odd)}")
    return {key: _Tally(*key, tolerances[key[0]]) for key in names}


def _observe(
    tallies: Mapping[tuple[str, str], _Tally],
    left: UnilabVectorEnv,
    right: UnilabVectorEnv,
    step: int,
) -> None:
    for (kind, name, home), (_, _, other) in zip(
        _blocks(left, step), _blocks(right, step), strict=True
    ):
        if home.shape != other.shape:
            raise ConfigError(f"{kind} {name}: {list(home.shape)} and {list(other.shape)} differ")
        tallies[kind, name].add(home, other, step)


def _blocks(env: UnilabVectorEnv, step: int) -> Iterator[tuple[str, str, Tensor]]:
    """Kind, name and value `[N, d]` of everything that is compared."""
    runtime = env.runtime
    for group, buffer in runtime.rt.observations.buffers.items():
        for term in runtime.rt.observations.layout(group):
            yield "observation", f"{group}/{term.name}", buffer[..., term.columns].flatten(1)
    components = runtime.rt.rewards.components
    for column, name in enumerate(runtime.rt.rewards.names):
        yield "reward", name, components[:, column : column + 1] * (1.0 if step else 0.0)
    yield "state", "qpos", runtime.rt.views.qpos
    yield "state", "qvel", runtime.rt.views.qvel

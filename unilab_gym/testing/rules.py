"""What `check_vector_env` is made of: rules, violations, and an environment that is played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from unilab_gym.errors import UnilabGymError

_LONGEST = 400
"""Characters of what was seen: a batched space would fill pages."""


class RuleViolation(UnilabGymError, AssertionError):
    """One rule that does not hold: its name and text, what was seen, what was expected."""

    def __init__(self, rule: Rule, seen: str, expected: str) -> None:
        """Words the violation."""
        super().__init__(f"{rule.name}: {rule.text}\n  seen: {seen}\n  expected: {expected}")
        self.rule = rule
        self.seen = seen
        self.expected = expected


@dataclass(frozen=True)
class Rule:
    """One sentence that holds for every vector environment of this package."""

    name: str
    text: str
    check: Callable[[Subject], None]
    """Raises `Wrong` where the rule does not hold."""
    basic: bool = False
    """Whether the later rules make no sense without it."""


class Wrong(Exception):
    """What was seen and what was expected, before the rule's name is known."""

    def __init__(self, seen: Any, expected: str) -> None:
        """Holds both."""
        super().__init__(str(seen), expected)
        self.seen = str(seen)[:_LONGEST]
        self.expected = expected[:_LONGEST]


def rule(
    into: list[Rule], name: str, text: str, basic: bool = False
) -> Callable[[Callable[[Subject], None]], None]:
    """Adds the decorated check to a list of rules."""

    def add(check: Callable[[Subject], None]) -> None:
        into.append(Rule(name, text, check, basic))

    return add


def demand(holds: Any, seen: Any, expected: str) -> None:
    """Raises `Wrong` unless the condition holds."""
    if not bool(holds):
        raise Wrong(seen, expected)


def demand_tuple(value: Any, count: int, what: str) -> tuple[Any, ...]:
    """Raises `Wrong` unless the value is a tuple of so many entries; returns it."""
    items = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else ()
    if len(items) != count or not isinstance(value, tuple):
        kind = type(cast("Any", value)).__name__
        raise Wrong(f"{what}: {kind} of {len(items)}", f"a tuple of {count}")
    return items


def demand_error(
    call: Callable[[], Any], kinds: tuple[type[BaseException], ...], what: str
) -> BaseException:
    """Raises `Wrong` unless the call raises one of these errors."""
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        call()
    except kinds as error:
        return error
    except Exception as error:
        raise Wrong(f"{what}: {type(error).__name__}: {error}", names) from error
    raise Wrong(f"{what}: no error", names)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every array of a nested result with its path, in order."""
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from leaves(item, f"{path}/{key}")
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(cast("list[Any]", value)):
            yield from leaves(item, f"{path}[{number}]")
    else:
        yield path, value


def tensor(value: Any) -> Tensor:
    """A tensor of a tensor or an array, sharing its memory."""
    return torch.as_tensor(value)


def snapshot(value: Any) -> dict[str, Tensor]:
    """Copies of every leaf, by path."""
    return {path: tensor(leaf).detach().clone() for path, leaf in leaves(value)}


def difference(left: Any, right: Any, *, rows: Tensor | None = None, close: bool = False) -> str:
    """The first path at which two results differ, or "".

    Args:
        left: A nested result or its `snapshot`.
        right: Another.
        rows: `[N]` bool: which rows count.
        close: Whether rounding is allowed: 1e-3, absolute and relative.
    """
    one, two = dict(leaves(left)), dict(leaves(right))
    if list(one) != list(two):
        return f"keys {list(one)} against {list(two)}"
    for path, value in one.items():
        a, b = tensor(value), tensor(two[path])
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{path}: {a.dtype} {tuple(a.shape)} against {b.dtype} {tuple(b.shape)}"
        if rows is not None and a.dim():
            a, b = a[rows.to(a.device)], b[rows.to(b.device)]
        fits = torch.equal(a, b)
        if close and not fits:
            fits = torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-3, equal_nan=True)
        if not fits:
            worst = (a.double() - b.double()).abs().max().item() if a.numel() else 0.0
            return f"{path} differs by up to {worst:g}"
    return ""


@dataclass
class Step:
    """One step: what was given and what came back."""

    action: Tensor
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any
    idle: Tensor
    """Rows whose step is the dummy one of NEXT_STEP."""

    @property
    def done(self) -> Tensor:
        """Rows that ended `[N]` bool."""
        return tensor(self.terminated) | tensor(self.truncated)

    @property
    def outputs(self) -> tuple[Any, ...]:
        """What the environment returned."""
        return self.obs, self.reward, self.terminated, self.truncated, self.info


class Subject:
    """An environment under check, and ways to play it."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int, fresh: bool) -> None:
        """Asks nothing of the environment yet."""
        self.env: Any = env
        self.base: Any = env.unwrapped
        self.seed = seed
        self.fresh = fresh

    @property
    def n(self) -> int:
        """Number of environments."""
        return self.env.num_envs

    @property
    def mode(self) -> AutoresetMode:
        """The autoreset mode."""
        return self.env.metadata["autoreset_mode"]

    @property
    def boxes(self) -> dict[str, Any]:
        """Spaces of the observation groups by name; a single Box goes by ""."""
        space = self.env.single_observation_space
        return dict(space.spaces) if hasattr(space, "spaces") else {"": space}

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return torch.device(getattr(self.base, "device", "cpu"))

    @property
    def limit(self) -> int | None:
        """Time limit in steps, where the environment tells and lets its counters be set."""
        settable = hasattr(self.base, "episode_length_buf")
        return getattr(self.base, "max_episode_steps", None) if settable else None

    def actions(self, steps: int, seed: int = 0) -> Tensor:
        """Actions `[steps, N, A]` float32, from a third of the box, by a generator of their own."""
        space = self.env.single_action_space
        low, high = tensor(space.low), tensor(space.high)
        generator = torch.Generator().manual_seed(self.seed + seed)
        drawn = torch.rand((steps, self.n, *low.shape), generator=generator)
        return ((low + high) / 2 + (high - low) * (drawn - 0.5) / 3).to(self.device)

    def mask(self, *rows: int) -> Tensor:
        """A mask `[N]` that is true in those rows."""
        chosen = torch.zeros(self.n, dtype=torch.bool, device=self.device)
        chosen[list(rows)] = True
        return chosen

    def restart(self, mask: Tensor) -> Any:
        """Begins new episodes in the masked rows; returns the whole batch's observations."""
        return self.env.reset(options={"reset_mask": mask})[0]

    def stagger(self) -> None:
        """Lets row i reach its time limit in step 2 + i % 3."""
        if self.limit is not None:
            rows = torch.arange(self.n, device=self.device)
            self.base.episode_length_buf = (self.limit - 2 - rows % 3).clamp(min=0)

    def play(
        self,
        steps: int,
        *,
        seed: int | None = None,
        ends: bool = False,
        given: Callable[[Tensor], Any] = lambda action: action,
        after: Callable[[Step], None] = lambda step: None,
    ) -> list[Step]:
        """A reset and some steps; in DISABLED rows that end are reset at once.

        Args:
            steps: How many.
            seed: Seed of the reset; None takes the check's.
            ends: Whether time limits are brought near.
            given: How the action is handed over.
            after: Called with each step as it is made.
        """
        self.env.reset(seed=self.seed if seed is None else seed)
        if ends:
            self.stagger()
        idle = self.mask()
        made: list[Step] = []
        for action in self.actions(steps):
            obs, reward, terminated, truncated, info = self.env.step(given(action))
            step = Step(action, obs, reward, terminated, truncated, info, idle)
            made.append(step)
            after(step)
            done = step.done
            if self.mode is AutoresetMode.DISABLED and bool(done.any()):
                self.restart(done)
            following = self.mode is AutoresetMode.NEXT_STEP
            idle = done.to(self.device).clone() if following else self.mask()
        return made

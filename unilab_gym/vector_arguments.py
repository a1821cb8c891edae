"""What `UnilabVectorEnv` is given: checks of its arguments, in words that say what was expected."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from unilab_gym.config import EnvCfg
from unilab_gym.errors import ConfigError, near, one_bool
from unilab_gym.runtime.rng import seed_keys

OUTPUTS = ("torch", "numpy")
RENDER_MODES = ("rgb_array",)


def is_integer(value: Any) -> bool:
    """Whether it is a whole number, of Python or NumPy, and no bool."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral)


def check_count(what: str, value: Any) -> int:
    """A positive integer.

    Raises:
        ConfigError: If it is something else.
    """
    if not is_integer(value) or value <= 0:
        raise ConfigError(f"{what} must be a positive integer, got {value!r}")
    return int(value)


def check_surface(
    *,
    num_envs: Any,
    max_episode_steps: Any,
    seed: Any,
    output: Any,
    render_mode: Any,
    validate: Any,
    **flags: Any,
) -> None:
    """The arguments that stand for themselves; `flags` are True or False.

    Raises:
        ConfigError: Names the argument, what was given and what is available.
    """
    check_count("num_envs", num_envs)
    if max_episode_steps is not None:
        check_count("max_episode_steps", max_episode_steps)
    if seed is not None and not is_integer(seed):
        raise ConfigError(f"seed must be an integer or None, got {seed!r}")
    if output not in OUTPUTS:
        raise ConfigError(f"output {near(str(output), OUTPUTS)}")
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise ConfigError(f"render_mode {near(str(render_mode), RENDER_MODES)}")
    if validate not in (True, False, None) or is_integer(validate):
        raise ConfigError(f"validate must be True, False or None, got {validate!r}")
    for name, value in flags.items():
        one_bool(name, value)


def process_rank(given: Any) -> int:
    """Number of this process among several; None takes the environment variable RANK, else 0.

    Raises:
        ConfigError: If it is no integer of 0 or more.
    """
    where: str = "rank"
    value: Any = given
    if given is None:
        where, text = "environment variable RANK", os.environ.get("RANK", "0")
        value = int(text) if text.isdecimal() else text
    if not is_integer(value) or value < 0:
        raise ConfigError(f"{where} must be an integer of 0 or more, got {value!r}")
    return int(value)


def observation_groups(cfg: EnvCfg, obs: Any) -> tuple[str, ...]:
    """Which groups `obs` asks for, in order.

    Raises:
        ConfigError: If it names no group.
    """
    available = tuple(cfg.observations)
    if obs == "policy":
        return ("policy",)
    if obs == "dict":
        return ("policy", *(name for name in available if name != "policy"))
    if isinstance(obs, str) or not isinstance(obs, Sequence) or not obs:
        raise ConfigError(
            f"obs {near(str(cast('Any', obs)), ('policy', 'dict'))}, or a tuple of group names"
        )
    names = tuple(str(name) for name in cast("Sequence[Any]", obs))
    for name in names:
        if name not in available:
            raise ConfigError(f"observation group {near(name, available)}")
    if len(set(names)) != len(names):
        raise ConfigError(f"obs names a group twice: {names}")
    return names


def render_rows(given: Sequence[int] | None, num_envs: int) -> tuple[int, ...]:
    """Which environments `render` draws; None draws all.

    Raises:
        ConfigError: If a row does not exist.
    """
    rows = tuple(range(num_envs)) if given is None else tuple(int(row) for row in given)
    for row in rows:
        if not 0 <= row < num_envs:
            raise ConfigError(f"render_env_ids: row {row} is not in 0..{num_envs - 1}")
    return rows


def reset_keys(seed: Any, num_envs: int, rank: int) -> list[int | None] | None:
    """Stream keys of `reset(seed=...)`; see `unilab_gym.runtime.rng.seed_keys`.

    An integer counts on from rank x N; the entries of a list are taken as they are.

    Raises:
        ConfigError: If it is no integer, no list of N integers or None, and not None.
    """
    if seed is None:
        return None
    if is_integer(seed):
        return list(seed_keys(int(seed), num_envs, rank))
    if not isinstance(seed, (list, tuple)):
        raise ConfigError(f"seed must be None, an integer or a list of them, got {seed!r}")
    seeds = cast("Sequence[Any]", seed)
    if len(seeds) != num_envs:
        raise ConfigError(f"{num_envs} seeds are needed, got {len(seeds)}")
    if not all(one is None or is_integer(one) for one in seeds):
        raise ConfigError(f"seeds must be integers or None, got {seed!r}")
    return [None if one is None else seed_keys(int(one), 1)[0] for one in seeds]


def check_options(options: Any, known: tuple[str, ...]) -> Mapping[str, Any]:
    """The options of a reset, unchanged; an empty mapping for None.

    Raises:
        ConfigError: If it is no mapping or holds an unknown key.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"options must be a dict, got {options!r}")
    given = cast("Mapping[str, Any]", options)
    for key in given:
        if key not in known:
            raise ConfigError(f"reset option {near(str(key), known)}")
    return given


def check_mask(what: str, mask: Tensor, num_envs: int) -> None:
    """A mask of rows: dense, bool, `[N]`, on a device that holds data.

    Raises:
        TypeError: If it is not bool.
        ConfigError: If its shape or its memory does not fit.
    """
    if mask.dtype is not torch.bool:
        raise TypeError(f"{what} must be bool, got {mask.dtype}")
    if mask.shape != (num_envs,):
        raise ConfigError(f"{what} must have shape ({num_envs},), got {tuple(mask.shape)}")
    if mask.layout is not torch.strided or mask.is_meta:
        raise ConfigError(
            f"{what} must be dense and hold data, got {mask.layout} on device {mask.device}"
        )


def is_integral(tensor: Tensor) -> bool:
    """Whether a tensor holds whole numbers; bool does not count."""
    kind = tensor.dtype
    return not (kind.is_floating_point or kind.is_complex or str(kind) == "torch.bool")

"""How an environment is made: from a config, or from a registered id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from unilab_gym.backends import refuse_idle, resolve_backend
from unilab_gym.config import EnvCfg, apply_overrides
from unilab_gym.errors import ConfigError, one_bool
from unilab_gym.registration import load_task, owner_config
from unilab_gym.vector_arguments import check_count
from unilab_gym.vector_env import UnilabVectorEnv

__all__ = ["make", "make_vector_env"]


def make(
    cfg: EnvCfg,
    num_envs: int = 1,
    *,
    device: str | torch.device | None = None,
    backend: str = "auto",
    play: bool = False,
    overrides: Mapping[str, Any] | None = None,
    **surface: Any,
) -> UnilabVectorEnv:
    """Builds a vector environment from a config, without registration.

    Args:
        cfg: The environment; it is not changed.
        num_envs: Number of environments.
        device: None takes CUDA if there is a GPU, else the CPU.
        backend: "auto", "mujoco" or "mjwarp".
        play: Without noise, randomization and pushes.
        overrides: `{dotted path: value}` on the config. A setting that only the other engine reads
            is refused here; a config may hold those of both.
        **surface: Keyword arguments of `UnilabVectorEnv`.

    Raises:
        ConfigError: A ValueError that says what was given, expected and is available.
        TypeError: On an unknown keyword.
    """
    if not isinstance(cast("Any", cfg), EnvCfg):
        raise ConfigError(f"make takes an EnvCfg, got {cfg!r}; for an id use gymnasium.make_vec")
    check_count("num_envs", num_envs)
    one_bool("play", play)
    name, resolved = resolve_backend(backend, device)
    if overrides is not None:
        if not isinstance(cast("Any", overrides), Mapping):
            raise ConfigError(f"overrides must be {{dotted path: value}}, got {overrides!r}")
        cfg = apply_overrides(cfg, overrides)
        refuse_idle(overrides, name)
    if play:
        cfg = cfg.for_play()
    return UnilabVectorEnv(cfg, num_envs, backend=name, device=resolved, **surface)


def make_vector_env(task: str, num_envs: int = 1, **kwargs: Any) -> UnilabVectorEnv:
    """Entry point of `gymnasium.make_vec`: the config of a registered task.

    Raises:
        ConfigError: If the task does not run on the asked backend.
        TypeError: On an unknown keyword.
    """
    backend, device = kwargs.pop("backend", "auto"), kwargs.pop("device", None)
    name, resolved = resolve_backend(backend, device)
    own = {key: kwargs.pop(key) for key in load_task(task).task_kwargs if key in kwargs}
    cfg = owner_config(task, name, **own).env
    return make(cfg, num_envs, backend=name, device=resolved, **kwargs)

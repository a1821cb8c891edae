"""What every adapter asks of the environment that it is given."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv

from unilab_gym.errors import ConfigError
from unilab_gym.vector_env import UnilabVectorEnv


def base_env(
    env: VectorEnv[Any, Any, Any], adapter: str, library: str, mode: AutoresetMode
) -> UnilabVectorEnv:
    """The environment below its wrappers.

    Args:
        env: What the user handed over.
        adapter: The adapter's name, for errors.
        library: The library's name, for errors.
        mode: The autoreset mode that the library can work with.

    Raises:
        ConfigError: If the environment is not ours or resets in another mode.
    """
    base = env.unwrapped
    if not isinstance(base, UnilabVectorEnv):
        raise ConfigError(f"{adapter} takes a UnilabVectorEnv, got {type(base).__name__}")
    given = base.metadata["autoreset_mode"]
    if given is not mode:
        raise ConfigError(f"{library} needs autoreset mode {mode.value}, got {given}")
    return base

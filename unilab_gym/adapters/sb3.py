# pyright: basic
# pyright: reportMissingImports=false
"""Stable-Baselines3 2 (and SBX): its NumPy `VecEnv` over a vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from unilab_gym.adapters.base_env import base_env
from unilab_gym.errors import ConfigError


def _host(tensor: Any) -> np.ndarray:
    return tensor.cpu().numpy() if isinstance(tensor, Tensor) else np.asarray(tensor)


class Sb3VecEnv(VecEnv):
    """What Stable-Baselines3's algorithms take; one transfer to the host for each array.

    Finished rows carry `terminal_observation`, `TimeLimit.truncated` and `episode` in their info;
    the infos of the other rows are empty, because filling them would take longer than the step.

    Args:
        env: An environment in mode SAME_STEP; wrappers are looked through.
    """

    def __init__(self, env: VectorEnv) -> None:
        """Checks the mode.

        Raises:
            ConfigError: If the environment is not ours, resets in another mode, or returns
                several observation groups.
        """
        base = base_env(env, "Sb3VecEnv", "Stable-Baselines3", AutoresetMode.SAME_STEP)
        if base.single_observation_space.shape is None:
            raise ConfigError("Sb3VecEnv takes one group: make the environment with obs='policy'")
        self.env = base
        self._actions: Any = None
        super().__init__(base.num_envs, base.single_observation_space, base.single_action_space)

    def reset(self) -> np.ndarray:
        """New episodes; a seed given with `seed()` is used once."""
        seeds = None if all(seed is None for seed in self._seeds) else self._seeds
        obs, _ = self.env.reset(seed=seeds)
        self._reset_seeds()
        return _host(obs)

    def step_async(self, actions: np.ndarray) -> None:
        """Keeps the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Steps; `dones` covers failures and time limits."""
        obs, reward, terminated, truncated, info = self.env.step(self._actions)
        terminated, truncated = _host(terminated), _host(truncated)
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        rows = np.flatnonzero(done)
        if rows.size:
            final = _host(info["final_obs"])
            returns, lengths = (_host(info["final_info"]["episode"][key]) for key in ("r", "l"))
            for row in rows:
                infos[row] = {
                    "terminal_observation": final[row],
                    "TimeLimit.truncated": bool(truncated[row]),
                    "episode": {"r": float(returns[row]), "l": int(lengths[row])},
                }
        return _host(obs), _host(reward), done, infos

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute, once for each index."""
        return [getattr(self.env, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets an attribute, which all environments share."""
        self.env.set_attr(attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kw: Any) -> list[Any]:
        """Calls a method once; its result, once for each index."""
        result = getattr(self.env, method_name)(*args, **kw)
        return [result for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Whether rows are wrapped; statistics are in the infos already, as with `Monitor`."""
        return [wrapper_class.__name__ == "Monitor" for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """One frame for each environment."""
        return self.env.render() or []

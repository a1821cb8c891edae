# pyright: basic
# pyright: reportMissingImports=false
"""Tianshou 2: its `BaseVectorEnv` over a vector environment, without workers.

Tianshou leaves out rows that have collected their episodes: those keep their state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from tianshou.env import BaseVectorEnv
from torch import Tensor

from unilab_gym.adapters.base_env import base_env
from unilab_gym.errors import ConfigError


def _host(tensor: Any) -> np.ndarray:
    return tensor.cpu().numpy() if isinstance(tensor, Tensor) else np.asarray(tensor)


def _infos(rows: Any) -> np.ndarray:
    return np.array([{"env_id": int(row)} for row in rows])


class TianshouVectorEnv(BaseVectorEnv):
    """What Tianshou's collectors take: NumPy, one transfer for each array.

    Args:
        env: An environment in mode DISABLED; wrappers are looked through.
    """

    def __init__(self, env: VectorEnv) -> None:
        """Checks the mode; without `super().__init__()`, which starts a worker a row.

        Raises:
            ConfigError: If the environment is not ours, resets by itself, or returns several
                observation groups.
        """
        base = base_env(env, "TianshouVectorEnv", "Tianshou", AutoresetMode.DISABLED)
        if base.single_observation_space.shape is None:
            raise ConfigError("TianshouVectorEnv takes one group: make the env with obs='policy'")
        self.env, self.env_num = base, base.num_envs
        self.is_async, self.waiting_id, self.is_closed = False, [], False

    def _mask(self, rows: Any) -> Tensor:
        mask = torch.zeros(self.env_num, dtype=torch.bool, device=self.env.device)
        mask[torch.as_tensor(rows, device=mask.device)] = True
        return mask

    def reset(self, env_id: Any = None, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
        """New episodes in some rows; their observations, in the order asked for."""
        self._assert_is_not_closed()
        rows = self._wrap_id(env_id)
        options = dict(kwargs.get("options") or {})
        options |= {} if env_id is None else {"reset_mask": self._mask(rows)}
        obs = self.env.reset(seed=kwargs.get("seed"), options=options)[0]
        return _host(obs)[rows], _infos(rows)

    def step(self, action: Any, id: Any = None) -> tuple[np.ndarray, ...]:
        """Steps some rows; results in the order asked for, infos as dicts with `env_id`."""
        self._assert_is_not_closed()
        rows = self._wrap_id(id)
        others = ~self._mask(rows)
        kept = self.env.get_state(others) if len(rows) < self.env_num else None
        if kept is not None:  # ended ones would refuse the step
            self.env.reset(options={"reset_mask": others})
        given = _host(action)
        actions = np.zeros((self.env_num, *given.shape[1:]), np.float32)
        actions[rows] = given
        results = [_host(item)[rows] for item in self.env.step(actions)[:4]]
        if kept is not None:
            self.env.set_state(kept, others)
        return (*results, _infos(rows))

    def seed(self, seed: Any = None) -> list[Any]:
        """Restarts every row with a seed of its own: an int s means s, s + 1, ..."""
        first = [seed + row for row in range(self.env_num)] if isinstance(seed, int) else seed
        self.env.reset(seed=first)
        return [None] * self.env_num if first is None else list(first)

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:
        """An attribute, once for each index; spaces are those of one environment."""
        name = f"single_{key}" if key in ("observation_space", "action_space") else key
        return [getattr(self.env, name) for _ in self._wrap_id(id)]

    def set_env_attr(self, key: str, value: Any, id: Any = None) -> None:
        """Sets an attribute, which all environments share."""
        self.env.set_attr(key, value)

    def close(self) -> None:
        """Closes the environment."""
        self.is_closed = True
        self.env.close()

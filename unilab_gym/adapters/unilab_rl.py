# pyright: basic
"""unilab-rl 1.4 (`uni_rl`): the environment protocol that its runners read, and the factory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import gymnasium
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from unilab_gym.adapters.base_env import base_env
from unilab_gym.errors import ConfigError

_NAMES = {"policy": "obs", "critic": "critic"}


def _named(groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {_NAMES[name]: value for name, value in groups.items() if name in _NAMES}


@dataclass
class UniRlState:
    """What a step gives; `final_observation` holds every row, the ended ones' last observation."""

    obs: dict[str, Tensor]
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    info: dict[str, Any]
    final_observation: dict[str, Tensor] | None


class UniRlEnv:
    """What unilab-rl's collectors take; nothing leaves the device.

    Args:
        env: An environment in mode SAME_STEP, made with `obs="dict"`; wrappers are looked through.
    """

    produces_completion_receipts = False  # a step is done when it returns

    def __init__(self, env: VectorEnv) -> None:
        """Checks the mode.

        Raises:
            ConfigError: If the environment is not ours, resets in another mode or returns one
                group alone: a critic needs the last observation of its own.
        """
        base = base_env(env, "UniRlEnv", "unilab-rl", AutoresetMode.SAME_STEP)
        if base.single_observation_space.shape is not None:
            raise ConfigError("UniRlEnv takes all groups: make the environment with obs='dict'")
        self.env, self.num_envs, self.device, self.cfg = base, base.num_envs, base.device, base.cfg
        self.observation_space = cast("Any", base.single_observation_space)["policy"]
        self.action_space = base.single_action_space
        groups = _named(base.get_observations())
        self.obs_groups_spec = {name: value.shape[1] for name, value in groups.items()}
        self.state: UniRlState | None = None

    def init_state(self) -> UniRlState:
        """New episodes everywhere."""
        obs, _ = self.reset(None)
        none = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self.state = UniRlState(obs, none.float(), none, none.clone(), {}, None)
        return self.state

    def reset(self, env_indices: Tensor | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """New episodes in these rows, or everywhere; the observations of these rows."""
        if env_indices is None:
            return _named(self.env.reset()[0]), {}
        mask = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        mask[env_indices] = True
        obs = _named(self.env.reset(options={"reset_mask": mask})[0])
        return {name: value[env_indices] for name, value in obs.items()}, {}

    def step(self, actions: Tensor) -> UniRlState:
        """Steps; ended rows show their new episode."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        final = _named(info["final_obs"])
        self.state = UniRlState(_named(obs), reward, terminated, truncated, {}, final)
        return self.state

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


def _make(task: str, kwargs: dict[str, Any], num_envs: int, overrides: Any = None) -> UniRlEnv:
    made = {"obs": "dict", "overrides": dict(overrides or {})} | kwargs
    return UniRlEnv(gymnasium.make_vec(task, num_envs=num_envs, **made))


def factory(task: str, **kwargs: Any) -> partial[UniRlEnv]:
    """The `env_factory` of a runner, for a spawned process: an id, arguments of `make_vec`."""
    return partial(_make, task, kwargs)

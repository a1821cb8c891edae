# pyright: basic
"""rsl_rl 5: its `VecEnv` over a vector environment; `rsl_rl_config` has its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gymnasium.spaces import Dict
from gymnasium.vector import AutoresetMode, VectorEnv
from rsl_rl.env import VecEnv
from tensordict import TensorDict
from torch import Tensor

from unilab_gym.adapters.base_env import base_env
from unilab_gym.errors import ConfigError


class RslRlVecEnv(VecEnv):
    """What rsl_rl's runners take.

    Time limits reach rsl_rl as `extras["time_outs"]`: it bootstraps with the state before the step,
    and with `bootstrap_with` from the observation that the episode ended on.

    Args:
        env: An environment in mode SAME_STEP; wrappers are looked through.
        learner_device: Where the learner keeps its tensors; None takes the environment's device.
    """

    def __init__(self, env: VectorEnv, learner_device: str | torch.device | None = None) -> None:
        """Checks the mode and the observation groups.

        Raises:
            ConfigError: If the environment is not ours or resets in another mode (rsl_rl would
                train on dummy transitions), or an observation group is `[N, H, D]`.
        """
        base = base_env(env, "RslRlVecEnv", "rsl_rl", AutoresetMode.SAME_STEP)
        for name, group in base.cfg.observations.items():
            if not group.flatten:
                raise ConfigError(
                    f"rsl_rl's networks take one vector, observation group {name!r} holds frames: "
                    "say flatten=True in its ObservationGroupCfg"
                )
        self.env = base
        self.num_envs = base.num_envs
        self.num_actions = base.runtime.action_size
        self.max_episode_length = base.max_episode_length
        self.device = torch.device(learner_device or base.device)
        self.cfg = base.cfg
        self.stepping = False
        """Whether a step has begun and not ended: true after an interrupt within one."""
        self._value: tuple[Callable[[TensorDict], Tensor], float] | None = None

    def bootstrap_with(self, critic: Callable[[TensorDict], Tensor], gamma: float) -> None:
        """Adds gamma V(final_obs) to rewards at time limits, in place of rsl_rl's gamma V(s_t).

        `Train/mean_reward` then holds what was added; `episode/return` does not.

        Args:
            critic: Values `[N, 1]` of observation groups (`runner.alg.critic`).
            gamma: Discount (`runner.alg.gamma`).

        Raises:
            ConfigError: If the environment does not return every group (`obs="dict"`).
        """
        if not isinstance(self.env.single_observation_space, Dict):
            raise ConfigError('bootstrap_with needs every group of final_obs: make it obs="dict"')
        self._value = critic, gamma

    @property
    def episode_length_buf(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Steps of the running episodes `[N]`; assigning staggers their ends."""
        return self.env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.env.episode_length_buf = value

    def get_observations(self) -> TensorDict:
        """Every observation group of the last boundary."""
        return self._groups(self.env.get_observations())

    def _groups(self, groups: dict[str, Tensor]) -> TensorDict:
        return TensorDict(groups, batch_size=[self.num_envs]).to(self.device)

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Steps; `dones` covers failures and time limits."""
        self.stepping = True
        _, reward, terminated, truncated, info = self.env.step(actions)
        self.stepping = False
        extras = {"time_outs": truncated.to(self.device), "log": self.env.extras["log"]}
        if self._value is not None:
            critic, gamma = self._value
            values = critic(self._groups(info["final_obs"])).squeeze(1)
            reward = reward + gamma * truncated * values.to(reward.device)
            del extras["time_outs"]
        reward, done = reward.to(self.device), (terminated | truncated).to(self.device)
        return self.get_observations(), reward, done, extras

# pyright: basic
# pyright: reportMissingImports=false
"""RL-Games 1.6: its `IVecEnv` over a vector environment; nothing leaves the device."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv
from rl_games.common import env_configurations, vecenv
from rl_games.common.ivecenv import IVecEnv
from torch import Tensor

from unilab_gym.adapters.base_env import base_env
from unilab_gym.errors import ConfigError


class RlGamesVecEnv(IVecEnv):
    """What RL-Games' agents take.

    Time limits reach RL-Games as `infos["time_outs"]`; it then bootstraps with the value of the
    state before the step. The log (`episode/return`, ...) stands beside it: `IsaacAlgoObserver`
    writes it to TensorBoard. Where the task has a "critic" group, observations are
    `{"obs", "states"}` and the `central_value_config` of RL-Games can use it.

    Args:
        env: An environment in mode SAME_STEP; wrappers are looked through.
    """

    def __init__(self, env: VectorEnv) -> None:
        """Checks the mode.

        Raises:
            ConfigError: If the environment is not ours, resets in another mode, returns NumPy or
                several observation groups.
        """
        base = base_env(env, "RlGamesVecEnv", "RL-Games", AutoresetMode.SAME_STEP)
        if base.single_observation_space.shape is None:
            raise ConfigError("RlGamesVecEnv takes one group: make the environment, obs='policy'")
        self.env = base
        self._privileged = "critic" in base.get_observations()

    def reset(self) -> Any:
        """New episodes; their observations."""
        return self._seen(self.env.reset()[0])

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, dict[str, Tensor]]:
        """Steps; `dones` covers failures and time limits."""
        obs, reward, terminated, truncated, _ = self.env.step(actions)
        infos = {**self.env.extras["log"], "time_outs": truncated}
        return self._seen(obs), reward, terminated | truncated, infos

    def get_env_info(self) -> dict[str, Any]:
        """Spaces of one environment."""
        info = {
            "observation_space": self.env.single_observation_space,
            "action_space": self.env.single_action_space,
        }
        return info | ({"state_space": self.env.state_space} if self._privileged else {})

    def _seen(self, obs: Tensor) -> Any:
        return {"obs": obs, "states": self.env.state()} if self._privileged else obs


def register(task: str, name: str = "unilab_gym") -> str:
    """Makes `env_name: name` of an RL-Games configuration mean a registered id.

    Args:
        task: The id; `env_config` of the configuration holds further arguments of `make_vec`
            (RL-Games adds its own seed), `num_actors` is `num_envs`.
        name: What the configuration calls it.

    Returns:
        `name`.
    """

    def make(config_name: str, num_actors: int, **kwargs: Any) -> RlGamesVecEnv:
        return RlGamesVecEnv(gymnasium.make_vec(task, num_envs=num_actors, **kwargs))

    vecenv.register(name, make)
    env_configurations.register(name, {"vecenv_type": name, "env_creator": None})
    return name

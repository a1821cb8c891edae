# pyright: basic
"""rsl_rl 5: its `VecEnv` over a vector environment, and its configuration from an `AlgoCfg`."""

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
from unilab_gym.config import AlgoCfg, NetworkCfg
from unilab_gym.errors import ConfigError, near

_ALGORITHM_KEYS = (
    "num_learning_epochs",
    "num_mini_batches",
    "clip_param",
    "gamma",
    "lam",
    "value_loss_coef",
    "entropy_coef",
    "learning_rate",
    "max_grad_norm",
    "schedule",
    "desired_kl",
    "use_clipped_value_loss",
    "normalize_advantage_per_mini_batch",
)
_RUNNER_KEYS = ("num_steps_per_env", "init_std")


class RslRlVecEnv(VecEnv):
    """What rsl_rl's runners take.

    Time limits reach rsl_rl as `extras["time_outs"]`; it then bootstraps with the value of the
    state before the step. `bootstrap_with` takes the observation that the episode ended on instead.

    Args:
        env: An environment in mode SAME_STEP; wrappers are looked through.
        learner_device: Where the learner keeps its tensors; None takes the environment's device.

    Attributes:
        stepping: Whether a step has begun and not ended: true after an interrupt within one.
    """

    def __init__(self, env: VectorEnv, learner_device: str | torch.device | None = None) -> None:
        """Checks the mode and the observation groups.

        Raises:
            ConfigError: If the environment is not ours or resets in another mode: rsl_rl would
                silently train on dummy transitions. Or if an observation group is `[N, H, D]`: its
                networks take one vector.
        """
        base = base_env(env, "RslRlVecEnv", "rsl_rl", AutoresetMode.SAME_STEP)
        for name, group in base.cfg.observations.items():
            if not group.flatten:
                raise ConfigError(
                    f"rsl_rl's networks take one vector, and observation group {name!r} is laid "
                    "out frame by frame: say flatten=True in its ObservationGroupCfg"
                )
        self.env = base
        self.num_envs = base.num_envs
        self.num_actions = base.runtime.action_size
        self.max_episode_length = base.max_episode_length
        self.device = torch.device(learner_device or base.device)
        self.cfg = base.cfg
        self.stepping = False
        self._value: tuple[Callable[[TensorDict], Tensor], float] | None = None

    def bootstrap_with(self, critic: Callable[[TensorDict], Tensor], gamma: float) -> None:
        """Adds gamma V(final_obs) to rewards at time limits, in place of rsl_rl's gamma V(s_t).

        The critic runs once more in each step, and rsl_rl's own curve `Train/mean_reward` holds
        what was added; `episode/return` does not.

        Args:
            critic: Values `[N, 1]` of observation groups: `runner.alg.critic`.
            gamma: Discount: `runner.alg.gamma`.

        Raises:
            ConfigError: If the environment does not return every group (`obs="dict"`).
        """
        if not isinstance(self.env.single_observation_space, Dict):
            raise ConfigError('bootstrap_with needs every group of final_obs: make it obs="dict"')
        self._value = (critic, gamma)

    @property
    def episode_length_buf(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Steps of the running episodes `[N]`; assigning staggers their ends."""
        return self.env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.env.episode_length_buf = value

    def get_observations(self) -> TensorDict:
        """Every observation group of the last boundary."""
        groups = self.env.get_observations()
        return TensorDict(groups, batch_size=[self.num_envs]).to(self.device)

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Steps; `dones` covers failures and time limits."""
        self.stepping = True
        _, reward, terminated, truncated, info = self.env.step(actions)
        self.stepping = False
        extras = {"time_outs": truncated.to(self.device), "log": self.env.extras["log"]}
        if self._value is not None:
            critic, gamma = self._value
            final = TensorDict(info["final_obs"], batch_size=[self.num_envs]).to(self.device)
            values = critic(final).squeeze(1).to(reward.device)
            reward = reward + gamma * truncated * values
            del extras["time_outs"]
        done = (terminated | truncated).to(self.device)
        return self.get_observations(), reward.to(self.device), done, extras


def _network(cfg: NetworkCfg) -> dict[str, Any]:
    return {
        "class_name": "MLPModel",
        "hidden_dims": list(cfg.hidden_dims),
        "activation": cfg.activation,
        "obs_normalization": cfg.obs_normalization,
    }


def rsl_rl_config(algo: AlgoCfg, *, save_interval: int = 50) -> dict[str, Any]:
    """The dictionary that `OnPolicyRunner` takes.

    Args:
        algo: Settings whose `hyper` uses rsl_rl's names; `num_steps_per_env` and `init_std`
            belong to the runner, the others to PPO.
        save_interval: Iterations between two checkpoints.

    Raises:
        ConfigError: On settings of another library, a hyperparameter that nothing would read, or
            an actor or critic without observation groups.
    """
    if algo.library != "rsl_rl":
        raise ConfigError(f"algo.library is {algo.library!r}; rsl_rl reads settings of 'rsl_rl'")
    for role in ("actor", "critic"):
        if role not in algo.obs_groups:
            raise ConfigError(f"algo.obs_groups has no {near(role, algo.obs_groups)}")
    for key in algo.hyper:
        if key not in (*_ALGORITHM_KEYS, *_RUNNER_KEYS):
            raise ConfigError(f"algo.hyper {near(key, (*_ALGORITHM_KEYS, *_RUNNER_KEYS))}")
    actor = _network(algo.actor)
    actor["distribution_cfg"] = {
        "class_name": "GaussianDistribution",
        "init_std": algo.hyper.get("init_std", 1.0),
    }
    return {
        "num_steps_per_env": algo.hyper.get("num_steps_per_env", 24),
        "save_interval": save_interval,
        "obs_groups": {name: list(groups) for name, groups in algo.obs_groups.items()},
        "actor": actor,
        "critic": _network(algo.critic),
        "algorithm": {
            "class_name": "PPO",
            **{key: algo.hyper[key] for key in _ALGORITHM_KEYS if key in algo.hyper},
        },
        "logger": "tensorboard",
        "multi_gpu": None,
    }

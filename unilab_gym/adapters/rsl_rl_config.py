"""rsl_rl 5: the configuration of its runner from an `AlgoCfg`."""

from __future__ import annotations

from typing import Any

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

"""The learner that our robots start from."""

from __future__ import annotations

from unilab_gym.config import AlgoCfg, NetworkCfg


def ppo() -> AlgoCfg:
    """PPO of rsl_rl; the critic sees its own group.

    Found by training Go2 on a CPU and taken over for G1.
    """
    network = NetworkCfg(hidden_dims=(256, 128, 64), activation="elu", obs_normalization=True)
    return AlgoCfg(
        library="rsl_rl",
        obs_groups={"actor": ("policy",), "critic": ("critic",)},
        actor=network,
        critic=network,
        hyper={
            "num_steps_per_env": 24,
            "num_learning_epochs": 5,
            "num_mini_batches": 4,
            "init_std": 1.0,
            "entropy_coef": 0.005,
            "learning_rate": 1.0e-3,
            "schedule": "adaptive",
            "desired_kl": 0.02,
            "clip_param": 0.2,
            "gamma": 0.99,
            "lam": 0.95,
            "value_loss_coef": 1.0,
            "max_grad_norm": 1.0,
        },
    )

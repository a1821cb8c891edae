"""Trains with RL-Games 1.6 (PPO) through `unilab_gym.adapters.rl_games.RlGamesVecEnv`.

    pip install rl-games
    python examples/train_rl_games.py

Tensors stay on the environment's device. RL-Games clamps actions to [-1, 1] and stretches them to
the action box; the exported actor does the same. At time limits it bootstraps with the value of the
state before the step (`value_bootstrap`).
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
import tyro
from rl_games.torch_runner import Runner
from torch import Tensor, nn

import unilab_gym
from unilab_gym.adapters.rl_games import register
from unilab_gym.config import AlgoCfg, NetworkCfg
from unilab_gym.contract import ExperimentTracker, new_run_dir
from unilab_gym.contract import resolve as resolve_contract
from unilab_gym.export.onnx import export_policy, load_policy
from unilab_gym.registration import owner_config


@dataclasses.dataclass
class Args:
    """Train with RL-Games."""

    task: str = "UniLab/CartPole-v0"
    backend: str = "mujoco"
    device: str = "cpu"
    num_envs: int = 64
    iterations: int = 60
    seed: int = 1
    run_root: Path = Path("runs")


def make_params(args: Args, folder: Path) -> dict[str, Any]:
    """RL-Games' configuration, which is mostly a YAML file elsewhere."""
    continuous = {
        "mu_activation": "None",
        "sigma_activation": "None",
        "mu_init": {"name": "default", "scale": 0.02},
        "sigma_init": {"name": "const_initializer", "val": -1.0},  # of actions in [-1, 1]
        "fixed_sigma": True,
    }
    network = {
        "name": "actor_critic",
        "separate": True,
        "space": {"continuous": continuous},
        "mlp": {"units": [64, 64], "activation": "elu", "initializer": {"name": "default"}},
    }
    config = {
        "name": "rl_games",
        "env_name": register(f"unilab_gym:{args.task}"),
        "env_config": {"backend": args.backend, "device": args.device},
        "device": args.device,
        "train_dir": str(folder),
        "full_experiment_name": "rl_games",
        "print_stats": False,
        "torch_compile": False,
        "reward_shaper": {"scale_value": 1.0},
        "num_actors": args.num_envs,
        "horizon_length": 32,
        "minibatch_size": 8 * args.num_envs,
        "mini_epochs": 5,
        "max_epochs": args.iterations,
        "save_best_after": args.iterations,
        "gamma": 0.98,
        "tau": 0.95,
        "learning_rate": 1e-3,
        "lr_schedule": "identity",
        "e_clip": 0.2,
        "clip_value": True,
        "entropy_coef": 0.0,
        "critic_coef": 1.0,
        "bounds_loss_coef": 1e-4,
        "truncate_grads": True,
        "grad_norm": 1.0,
        "normalize_input": False,
        "normalize_value": True,
        "normalize_advantage": True,
        "value_bootstrap": True,
    }
    return {
        "seed": args.seed,
        "torch_threads": torch.get_num_threads(),
        "algo": {"name": "a2c_continuous"},
        "model": {"name": "continuous_a2c_logstd"},
        "network": network,
        "config": config,
    }


class MeanAction(nn.Module):
    """Mean action as RL-Games plays it: clamped to [-1, 1], stretched to the box."""

    def __init__(self, agent: Any) -> None:
        super().__init__()
        network = agent.model.a2c_network
        self.net = nn.Sequential(network.actor_mlp, network.mu)
        self.register_buffer("high", agent.actions_high)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).clamp(-1.0, 1.0) * self.high


def mean_return(args: Args, policy: Any) -> float:
    """Undiscounted return of 32 episodes without exploration."""
    env = gym.make_vec(f"unilab_gym:{args.task}", num_envs=32, backend=args.backend, play=True)
    report = unilab_gym.evaluate(env, policy)
    env.close()
    return report.mean_return


def train(args: Args) -> tuple[Path, float, float]:
    """Returns the run folder and the mean return before and after."""
    network = NetworkCfg(hidden_dims=(64, 64), activation="elu", obs_normalization=False)
    owner = owner_config(args.task, args.backend)
    training = dataclasses.replace(
        owner.training, num_envs=args.num_envs, iterations=args.iterations, seed=args.seed
    )
    algo = AlgoCfg(library="rl_games", actor=network, critic=network)
    owner = dataclasses.replace(owner, algo=algo, training=training)
    folder = new_run_dir(args.run_root, args.task, args.seed)
    tracker = ExperimentTracker(folder, owner)

    runner = Runner()
    runner.load({"params": make_params(args, folder)})
    agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
    before = mean_return(args, MeanAction(agent))
    started = time.perf_counter()
    agent.train()
    tracker.iteration(agent.frame, time.perf_counter() - started)
    base = agent.vec_env.env
    report = export_policy(
        MeanAction(agent).cpu(),
        resolve_contract(owner),
        folder / "policy.onnx",
        observations=base.get_observations()["policy"].cpu(),
    )
    after = mean_return(args, load_policy(report.path))
    tracker.finish({"mean_return": after})
    base.close()
    print(f"mean return {before:.2f} -> {after:.2f}; verified policy: {report.path}")
    return folder, before, after


if __name__ == "__main__":
    train(tyro.cli(Args))

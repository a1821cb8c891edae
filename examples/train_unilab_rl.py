"""Trains with unilab-rl 1.4 (APPO) through `unilab_gym.adapters.unilab_rl`.

    pip install unilab-rl
    python examples/train_unilab_rl.py

APPO collects in a process of its own, which builds the environment: the learner gets a factory.
unilab-rl's off-policy runners (SAC, FlashSAC) refuse a learner on the CPU.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import tyro
from torch import Tensor
from uni_rl.algos.appo.runner import APPORunner

import unilab_gym
from unilab_gym.adapters.unilab_rl import factory
from unilab_gym.config import AlgoCfg, NetworkCfg
from unilab_gym.contract import ExperimentTracker, new_run_dir
from unilab_gym.contract import resolve as resolve_contract
from unilab_gym.export.actors import rsl_rl_actor
from unilab_gym.export.onnx import export_policy, load_policy
from unilab_gym.registration import owner_config


@dataclasses.dataclass
class Args:
    """Train with unilab-rl's APPO."""

    task: str = "UniLab/CartPole-v0"
    backend: str = "mujoco"
    device: str = "cpu"
    num_envs: int = 64
    iterations: int = 50
    num_steps: int = 256
    """Steps per environment and rollout; see the page: unilab-rl 1.4.15 loses what follows them."""
    seed: int = 1
    run_root: Path = Path("runs")


def make_config() -> dict[str, Any]:
    """What the learner and the collector build their networks from: rsl_rl's models."""
    network = {
        "class_name": "rsl_rl.models.MLPModel",
        "hidden_dims": [64, 64],
        "activation": "elu",
    }
    normal = {"class_name": "GaussianDistribution", "init_std": 0.4, "std_type": "scalar"}
    return {
        "actor": {**network, "distribution_cfg": normal},
        "critic": dict(network),
        "algorithm": {
            "num_learning_epochs": 5,
            "num_mini_batches": 8,
            "gamma": 0.98,
            "lam": 0.95,
            "entropy_coef": 0.0,
            "learning_rate": 1e-3,
            "enable_compile": False,
        },
    }


def mean_return(args: Args, policy: Any) -> float:
    """Undiscounted return of 32 episodes without exploration."""
    env = gym.make_vec(f"unilab_gym:{args.task}", num_envs=32, backend=args.backend, play=True)
    report = unilab_gym.evaluate(env, policy)
    env.close()
    return report.mean_return


class Runner(APPORunner):
    """Keeps the learner that `learn` builds: the policy is exported from it."""

    def _build_learner(self) -> Any:
        self.learner = super()._build_learner()
        return self.learner


def first_observations(args: Args) -> Tensor:
    """Some observations to compare the exported policy on."""
    env = gym.make_vec(f"unilab_gym:{args.task}", num_envs=64, backend=args.backend, seed=args.seed)
    obs, _ = env.reset()
    env.close()
    return obs


def train(args: Args) -> tuple[Path, float, float]:
    """Returns the run folder and the mean return before and after."""
    network = NetworkCfg(hidden_dims=(64, 64), activation="elu", obs_normalization=False)
    owner = owner_config(args.task, args.backend)
    training = dataclasses.replace(
        owner.training, num_envs=args.num_envs, iterations=args.iterations, seed=args.seed
    )
    algo = AlgoCfg(library="unilab-rl", actor=network, critic=network)
    owner = dataclasses.replace(owner, algo=algo, training=training)
    folder = new_run_dir(args.run_root, args.task, args.seed)
    tracker = ExperimentTracker(folder, owner)
    runner = Runner(
        env_name=args.task,
        env_cfg_overrides={},
        rl_cfg=make_config(),
        env_factory=factory(
            f"unilab_gym:{args.task}", backend=args.backend, device=args.device, seed=args.seed
        ),
        device=args.device,
        sim_backend=args.backend,
        num_envs=args.num_envs,
        steps_per_env=args.num_steps,
        replay_queue_size=1,
        seed=args.seed,
        log_interval=10,
    )
    before = mean_return(args, rsl_rl_actor(runner._build_learner().actor))
    started = time.perf_counter()
    try:
        runner.learn(args.iterations, save_interval=args.iterations, log_dir=str(folder))
    finally:
        runner.close()
    steps = runner.last_run_summary["total_env_steps"]
    tracker.iteration(steps, time.perf_counter() - started)
    report = export_policy(
        rsl_rl_actor(runner.learner.actor),
        resolve_contract(owner),
        folder / "policy.onnx",
        observations=first_observations(args),
    )
    after = mean_return(args, load_policy(report.path))
    tracker.finish({"mean_return": after})
    print(f"mean return {before:.2f} -> {after:.2f}; verified policy: {report.path}")
    return folder, before, after


if __name__ == "__main__":  # the collector's process imports this file again
    train(tyro.cli(Args))

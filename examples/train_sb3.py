"""Trains with Stable-Baselines3 2 (PPO or SAC) through `unilab_gym.adapters.sb3.Sb3VecEnv`.

    pip install stable-baselines3
    python examples/train_sb3.py --algorithm ppo
    python examples/train_sb3.py --algorithm sac

SB3 works in NumPy on the host: fine beside the `mujoco` backend, slow beside a GPU. It bootstraps
at time limits from `terminal_observation`, which the adapter fills.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import tyro
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.vec_env import VecEnvWrapper
from torch import nn

import unilab_gym
from unilab_gym.adapters.sb3 import Sb3VecEnv
from unilab_gym.config import AlgoCfg, NetworkCfg
from unilab_gym.contract import ExperimentTracker, new_run_dir
from unilab_gym.contract import resolve as resolve_contract
from unilab_gym.export.actors import sb3_actor
from unilab_gym.export.onnx import export_policy, load_policy
from unilab_gym.registration import owner_config


@dataclasses.dataclass
class Args:
    """Train with Stable-Baselines3."""

    algorithm: Literal["ppo", "sac"] = "ppo"
    task: str = "UniLab/CartPole-v0"
    backend: str = "mujoco"
    num_envs: int = 64
    timesteps: int | None = None
    """Steps of all environments together; by default 122,880 for PPO and 80,000 for SAC."""
    seed: int = 1
    run_root: Path = Path("runs")


class PerSecond(VecEnvWrapper):
    """Rewards in units per second: those of a step (0.02 of it) drown in SAC's entropy bonus."""

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        obs, reward, done, infos = self.venv.step_wait()
        return obs, reward / self.venv.env.step_dt, done, infos


def make_model(args: Args, env: Sb3VecEnv) -> Any:
    net = {"activation_fn": nn.ELU, "net_arch": [64, 64]}
    common = {"gamma": 0.98, "learning_rate": 1e-3, "seed": args.seed, "device": "cpu"}
    if args.algorithm == "ppo":
        rollout = 32 * args.num_envs
        return PPO(
            "MlpPolicy",
            env,
            n_steps=32,
            batch_size=rollout // 4,
            n_epochs=5,
            policy_kwargs={**net, "log_std_init": -0.5},
            **common,
        )
    # With 64 environments there are few updates a step: tau follows them, or Q never gets there.
    return SAC(
        "MlpPolicy",
        PerSecond(env),
        buffer_size=100_000,
        batch_size=256,
        learning_starts=20 * args.num_envs,
        train_freq=1,
        gradient_steps=2,
        ent_coef="auto_0.1",
        tau=0.1,
        policy_kwargs=net,
        **common,
    )


def mean_return(args: Args, policy: Any) -> float:
    """Undiscounted return of 32 episodes without exploration."""
    env = gym.make_vec(f"unilab_gym:{args.task}", num_envs=32, backend=args.backend, play=True)
    report = unilab_gym.evaluate(env, policy)
    env.close()
    return report.mean_return


def train(args: Args) -> tuple[Path, float, float]:
    """Returns the run folder and the mean return before and after."""
    timesteps = args.timesteps or {"ppo": 122_880, "sac": 80_000}[args.algorithm]
    network = NetworkCfg(hidden_dims=(64, 64), activation="elu", obs_normalization=False)
    owner = owner_config(args.task, args.backend)
    training = dataclasses.replace(owner.training, num_envs=args.num_envs, seed=args.seed)
    algo = AlgoCfg(library="stable-baselines3", actor=network, critic=network)
    owner = dataclasses.replace(owner, algo=algo, training=training)
    folder = new_run_dir(args.run_root, args.task, args.seed)
    tracker = ExperimentTracker(folder, owner)
    base = gym.make_vec(
        f"unilab_gym:{args.task}", num_envs=args.num_envs, backend=args.backend, seed=args.seed
    )
    env = Sb3VecEnv(base)
    model = make_model(args, env)
    before = mean_return(args, sb3_actor(model))
    started = time.perf_counter()
    model.learn(timesteps, log_interval=None)
    tracker.iteration(model.num_timesteps, time.perf_counter() - started)
    model.save(folder / "sb3_model.zip")
    report = export_policy(
        sb3_actor(model),
        resolve_contract(owner),
        folder / "policy.onnx",
        observations=base.unwrapped.get_observations()["policy"],
    )
    after = mean_return(args, load_policy(report.path))
    tracker.finish({"mean_return": after})
    env.close()
    print(f"mean return {before:.2f} -> {after:.2f}; verified policy: {report.path}")
    return folder, before, after


if __name__ == "__main__":
    train(tyro.cli(Args))

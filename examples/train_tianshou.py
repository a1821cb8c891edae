"""Trains with Tianshou 2 (PPO) through `unilab_gym.adapters.tianshou.TianshouVectorEnv`.

    pip install tianshou
    python examples/train_tianshou.py

Tianshou works in NumPy on the host. The environment runs in mode DISABLED: Tianshou restarts rows
itself, and the next observation that it stores is the true one. It clips actions to [-1, 1] and
stretches them to the action box; the exported actor does the same.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
import tyro
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from torch import Tensor, nn
from torch.distributions import Independent, Normal

import unilab_gym
from unilab_gym.adapters.tianshou import TianshouVectorEnv
from unilab_gym.config import AlgoCfg, NetworkCfg
from unilab_gym.contract import ExperimentTracker, new_run_dir
from unilab_gym.contract import resolve as resolve_contract
from unilab_gym.export.onnx import export_policy, load_policy
from unilab_gym.registration import owner_config


@dataclasses.dataclass
class Args:
    """Train with Tianshou."""

    task: str = "UniLab/CartPole-v0"
    backend: str = "mujoco"
    num_envs: int = 64
    iterations: int = 60
    num_steps: int = 32
    """Steps per environment and iteration."""
    seed: int = 1
    run_root: Path = Path("runs")


def features(env: TianshouVectorEnv) -> Net:
    shape = env.observation_space[0].shape
    return Net(state_shape=shape, hidden_sizes=[64, 64], activation=nn.ELU)


def make_policy(env: TianshouVectorEnv) -> ProbabilisticActorPolicy:
    """A Gaussian with a learnt standard deviation, of actions in [-1, 1]."""
    space = env.action_space[0]
    actor = ContinuousActorProbabilistic(
        preprocess_net=features(env), action_shape=space.shape, unbounded=True
    )
    nn.init.constant_(actor.sigma_param, -0.5)
    with torch.no_grad():
        actor.mu.model[-1].weight.mul_(0.1)
    return ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda given: Independent(Normal(*given), 1),
        action_space=space,
        action_scaling=True,
        action_bound_method="clip",
    )


class MeanAction(nn.Module):
    """What is deployed: the clipped mean, in the units of the environment."""

    def __init__(self, policy: ProbabilisticActorPolicy) -> None:
        super().__init__()
        actor = copy.deepcopy(policy.actor)
        self.chain = nn.Sequential(*actor.preprocess.model.model, *actor.mu.model)
        self.register_buffer("low", torch.as_tensor(policy.action_space.low))
        self.register_buffer("high", torch.as_tensor(policy.action_space.high))

    def forward(self, obs: Tensor) -> Tensor:
        unit = self.chain(obs).clamp(-1.0, 1.0)
        return self.low + 0.5 * (unit + 1.0) * (self.high - self.low)


def mean_return(args: Args, policy: Any) -> float:
    """Undiscounted return of 32 episodes without exploration."""
    env = gym.make_vec(f"unilab_gym:{args.task}", num_envs=32, backend=args.backend, play=True)
    report = unilab_gym.evaluate(env, policy)
    env.close()
    return report.mean_return


def train(args: Args) -> tuple[Path, float, float]:
    """Returns the run folder and the mean return before and after."""
    torch.manual_seed(args.seed)
    network = NetworkCfg(hidden_dims=(64, 64), activation="elu", obs_normalization=False)
    owner = owner_config(args.task, args.backend)
    training = dataclasses.replace(
        owner.training, num_envs=args.num_envs, iterations=args.iterations, seed=args.seed
    )
    algo = AlgoCfg(library="tianshou", actor=network, critic=network)
    owner = dataclasses.replace(owner, algo=algo, training=training)
    folder = new_run_dir(args.run_root, args.task, args.seed)
    tracker = ExperimentTracker(folder, owner)
    base = gym.make_vec(
        f"unilab_gym:{args.task}",
        num_envs=args.num_envs,
        backend=args.backend,
        seed=args.seed,
        autoreset_mode="Disabled",
    )
    env = TianshouVectorEnv(base)
    policy = make_policy(env)
    algorithm = PPO(
        policy=policy,
        critic=ContinuousCritic(preprocess_net=features(env)),
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.98,
        ent_coef=0.0,
        max_grad_norm=1.0,
    )
    before = mean_return(args, MeanAction(policy))
    frames = args.num_envs * args.num_steps
    collector = Collector(algorithm, env, VectorReplayBuffer(frames, args.num_envs))
    started = time.perf_counter()
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=frames * args.iterations,
            collection_step_num_env_steps=frames,
            batch_size=frames // 4,
            update_step_num_repetitions=5,
            show_progress=False,
            verbose=False,
        )
    )
    tracker.iteration(collector.collect_step, time.perf_counter() - started)
    report = export_policy(
        MeanAction(policy),
        resolve_contract(owner),
        folder / "policy.onnx",
        observations=base.unwrapped.get_observations()["policy"],
    )
    after = mean_return(args, load_policy(report.path))
    tracker.finish({"mean_return": after})
    collector.close()
    print(f"mean return {before:.2f} -> {after:.2f}; verified policy: {report.path}")
    return folder, before, after


if __name__ == "__main__":
    train(tyro.cli(Args))

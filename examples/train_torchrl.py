"""Trains with TorchRL's PPO through `unilab_gym.adapters.torchrl.TorchRlEnv`.

    pip install torchrl
    python examples/train_torchrl.py

The environment runs in mode Disabled: a step returns the true next observation, so that TorchRL's
`GAE` bootstraps at time limits by itself, and TorchRL restarts finished rows with a reset mask.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
import tyro
from tensordict import TensorDictBase
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import unilab_gym
from unilab_gym.adapters.torchrl import TorchRlEnv
from unilab_gym.config import AlgoCfg, NetworkCfg
from unilab_gym.contract import ExperimentTracker, new_run_dir
from unilab_gym.contract import resolve as resolve_contract
from unilab_gym.export.onnx import export_policy, load_policy
from unilab_gym.registration import owner_config


@dataclasses.dataclass
class Args:
    """Train with TorchRL."""

    task: str = "UniLab/CartPole-v0"
    backend: str = "mujoco"
    num_envs: int = 64
    iterations: int = 60
    seed: int = 1
    run_root: Path = Path("runs")
    num_steps: int = 32
    """Steps per environment and iteration."""
    epochs: int = 5
    minibatches: int = 4


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, outputs)
    )


class MeanAction(nn.Module):
    """What is deployed: the first half of the policy network's output."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).chunk(2, dim=-1)[0]


def make_policy(env: TorchRlEnv) -> tuple[nn.Module, Any]:
    """The network and TorchRL's actor around it."""
    net = mlp(env.observation_spec["observation"].shape[-1], 2 * env.action_spec.shape[-1])
    with torch.no_grad():  # actions start near 0 with a standard deviation of about 0.6
        net[-1].weight.mul_(0.1)
    split = nn.Sequential(net, NormalParamExtractor(scale_mapping="biased_softplus_0.6"))
    actor = ProbabilisticActor(
        TensorDictModule(split, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        out_keys=["action"],
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    return net, actor


class Learner:
    """PPO's losses with a critic of their own, and the optimizer of both."""

    def __init__(
        self, env: TorchRlEnv, actor: Any, rate: float = 1e-3, gamma: float = 0.98
    ) -> None:
        critic = ValueOperator(mlp(env.observation_spec["observation"].shape[-1], 1))
        self.gae = GAE(gamma=gamma, lmbda=0.95, value_network=critic, average_gae=True)
        self.loss = ClipPPOLoss(
            actor, critic, clip_epsilon=0.2, entropy_coeff=0.0, critic_coeff=0.5
        )
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=rate)

    def update(self, args: Args, batch: TensorDictBase) -> None:
        """Learns from a rollout `[num_envs, num_steps]`."""
        for _ in range(args.epochs):
            with torch.no_grad():
                self.gae(batch)
            flat = batch.reshape(-1)
            for rows in torch.randperm(len(flat)).chunk(args.minibatches):
                losses = self.loss(flat[rows])
                total = sum(losses[key] for key in ("loss_objective", "loss_critic"))
                self.optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(self.loss.parameters(), 1.0)
                self.optimizer.step()


def make_collector(args: Args, env: TorchRlEnv, actor: Any) -> Collector:
    """Gives the rollouts of a whole training."""
    frames = args.num_envs * args.num_steps
    return Collector(
        env,
        actor,
        frames_per_batch=frames,
        total_frames=frames * args.iterations,
        auto_register_policy_transforms=False,  # nothing recurrent here
    )


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
    algo = AlgoCfg(library="torchrl", actor=network, critic=network)
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
    env = TorchRlEnv(base)
    net, actor = make_policy(env)
    learner = Learner(env, actor)
    before = mean_return(args, MeanAction(net))
    frames = args.num_envs * args.num_steps
    collector = make_collector(args, env, actor)
    started = time.perf_counter()
    for iteration, batch in enumerate(collector):
        learner.update(args, batch)
        now = time.perf_counter()
        tracker.iteration(frames, now - started)
        started = now
        if iteration % 10 == 9:
            log = base.unwrapped.extras["log"]
            print(
                f"iteration {iteration + 1:4d}/{args.iterations}"
                f"  return {float(log['episode/return']):8.2f}",
                flush=True,
            )
    # The collector has closed the environment by now.
    report = export_policy(
        MeanAction(net),
        resolve_contract(owner),
        folder / "policy.onnx",
        observations=batch["observation"].flatten(0, 1),
    )
    after = mean_return(args, load_policy(report.path))
    tracker.finish({"mean_return": after})
    print(f"mean return {before:.2f} -> {after:.2f}; verified policy: {report.path}")
    return folder, before, after


if __name__ == "__main__":
    train(tyro.cli(Args))

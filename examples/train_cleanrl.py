"""PPO in one file of plain torch, in the manner of CleanRL: nothing between you and the loop.

    python examples/train_cleanrl.py
    python examples/train_cleanrl.py --task UniLab/Go2JoystickFlat-v0 --num-envs 512 --iterations 60

Tensors never leave the environment's device. An episode that is cut off by the time limit goes on
in theory: its last reward is topped up with gamma x the value of `final_obs`, the observation it
ended on. The run folder gets run_config.json, run_summary.json and a verified policy.onnx.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import gymnasium as gym
import torch
import tyro
from torch import Tensor, nn

import unilab_gym
from unilab_gym.config import AlgoCfg, NetworkCfg
from unilab_gym.contract import ExperimentTracker, new_run_dir
from unilab_gym.contract import resolve as resolve_contract
from unilab_gym.export.onnx import export_policy, load_policy
from unilab_gym.registration import owner_config


@dataclasses.dataclass
class Args:
    """Train with a PPO of one file."""

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
    learning_rate: float = 1e-3
    gamma: float = 0.98
    lam: float = 0.95
    clip: float = 0.2
    entropy: float = 0.0
    init_std: float = 0.6


class Normalizer(nn.Module):
    """Running mean and variance of observations; part of the actor, hence of the ONNX."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.register_buffer("count", torch.tensor(1e-4))

    def update(self, batch: Tensor) -> None:
        n, mean, var = batch.shape[0], batch.mean(0), batch.var(0, correction=0)
        total, delta = self.count + n, mean - self.mean
        m2 = self.var * self.count + var * n + delta.square() * self.count * n / total
        self.mean += delta * n / total
        self.var.copy_(m2 / total)
        self.count.copy_(total)

    def forward(self, obs: Tensor) -> Tensor:
        return (obs - self.mean) / (self.var + 1e-8).sqrt()


def mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, outputs)]
    for layer, g in zip(layers[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, g)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Agent(nn.Module):
    """Gaussian policy and value of one observation."""

    def __init__(self, obs: int, actions: int, init_std: float) -> None:
        super().__init__()
        self.normalizer = Normalizer(obs)
        self.mean, self.critic = mlp(obs, actions, 0.01), mlp(obs, 1, 1.0)
        self.log_std = nn.Parameter(torch.full((actions,), init_std).log())

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(self.normalizer(obs)).squeeze(-1)

    def policy(self, obs: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(self.mean(self.normalizer(obs)), self.log_std.exp())

    def actor(self) -> nn.Module:
        """What is deployed: observation to mean action."""
        return nn.Sequential(self.normalizer, self.mean)


def collect(env, agent: Agent, obs: Tensor, args: Args) -> tuple[dict[str, Tensor], Tensor]:
    """One rollout: tensors `[steps, N, ...]`, and the observation that comes next."""
    rows: dict[str, list[Tensor]] = {
        key: [] for key in ("obs", "action", "logp", "value", "reward", "done")
    }
    for _ in range(args.num_steps):
        with torch.no_grad():
            policy = agent.policy(obs)
            action = policy.sample()
            fresh, reward, terminated, truncated, info = env.step(action)
            # The one line that time limits need: the episode would have gone on.
            reward = reward + args.gamma * truncated * agent.value(info["final_obs"])
            step = (obs, action, policy.log_prob(action).sum(-1), agent.value(obs), reward)
        for key, value in zip(rows, (*step, terminated | truncated), strict=True):
            rows[key].append(value)
        obs = fresh
    return {key: torch.stack(values) for key, values in rows.items()}, obs


def advantages(batch: dict[str, Tensor], last_value: Tensor, args: Args) -> Tensor:
    """Generalized advantage estimation (Schulman et al. 2016), `[steps, N]`."""
    result, running = torch.zeros_like(batch["reward"]), torch.zeros_like(last_value)
    following = last_value
    for t in reversed(range(args.num_steps)):
        alive = (~batch["done"][t]).float()
        delta = batch["reward"][t] + args.gamma * following * alive - batch["value"][t]
        running = delta + args.gamma * args.lam * alive * running
        result[t], following = running, batch["value"][t]
    return result


def update(agent: Agent, optimizer, batch: dict[str, Tensor], advantage: Tensor, args: Args):
    """Clipped PPO over minibatches (Schulman et al. 2017)."""
    flat = {key: value.flatten(0, 1) for key, value in batch.items()}
    advantage, target = advantage.flatten(), (advantage + batch["value"]).flatten()
    for _ in range(args.epochs):
        for rows in torch.randperm(len(target), device=target.device).chunk(args.minibatches):
            policy = agent.policy(flat["obs"][rows])
            logp = policy.log_prob(flat["action"][rows]).sum(-1)
            ratio = (logp - flat["logp"][rows]).exp()
            a = advantage[rows]
            a = (a - a.mean()) / (a.std() + 1e-8)
            surrogate = torch.min(ratio * a, ratio.clamp(1 - args.clip, 1 + args.clip) * a)
            value_loss = (agent.value(flat["obs"][rows]) - target[rows]).square().mean()
            entropy = policy.entropy().sum(-1).mean()
            loss = -surrogate.mean() + 0.5 * value_loss - args.entropy * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
            optimizer.step()


def mean_return(args: Args, policy) -> float:
    """Undiscounted return of 32 episodes without exploration."""
    env = gym.make_vec(f"unilab_gym:{args.task}", num_envs=32, backend=args.backend, play=True)
    report = unilab_gym.evaluate(env, policy)
    env.close()
    return report.mean_return


def train(args: Args) -> tuple[Path, float, float]:
    """Returns the run folder and the mean return before and after."""
    torch.manual_seed(args.seed)
    network = NetworkCfg(hidden_dims=(64, 64), activation="elu", obs_normalization=True)
    owner = owner_config(args.task, args.backend)
    algo = AlgoCfg(library="cleanrl", actor=network, critic=network)
    training = dataclasses.replace(
        owner.training, num_envs=args.num_envs, iterations=args.iterations, seed=args.seed
    )
    owner = dataclasses.replace(owner, algo=algo, training=training)
    folder = new_run_dir(args.run_root, args.task, args.seed)
    tracker = ExperimentTracker(folder, owner)
    env = gym.make_vec(
        f"unilab_gym:{args.task}", num_envs=args.num_envs, backend=args.backend, seed=args.seed
    )
    obs, _ = env.reset()
    agent = Agent(obs.shape[1], env.single_action_space.shape[0], args.init_std).to(obs.device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    before = mean_return(args, agent.actor())
    # Staggered starts: otherwise the time limit ends every episode in the same step.
    env.unwrapped.episode_length_buf = torch.randint(
        0, env.unwrapped.max_episode_length, (args.num_envs,), device=obs.device
    )
    for iteration in range(args.iterations):
        start = time.perf_counter()
        batch, obs = collect(env, agent, obs, args)
        with torch.no_grad():
            advantage = advantages(batch, agent.value(obs), args)
        update(agent, optimizer, batch, advantage, args)
        agent.normalizer.update(batch["obs"].flatten(0, 1))
        seconds = time.perf_counter() - start
        tracker.iteration(args.num_envs * args.num_steps, seconds)
        if iteration % 10 == 9 or iteration + 1 == args.iterations:
            log = env.unwrapped.extras["log"]
            print(
                f"iteration {iteration + 1:4d}/{args.iterations}"
                f"  {args.num_envs * args.num_steps / seconds:8,.0f} steps/s"
                f"  return {float(log['episode/return']):8.2f}",
                flush=True,
            )
    report = export_policy(
        agent.actor(), resolve_contract(owner), folder / "policy.onnx", observations=obs
    )
    after = mean_return(args, load_policy(report.path))
    tracker.finish({"mean_return": after})
    env.close()
    print(f"mean return {before:.2f} -> {after:.2f}; verified policy: {report.path}")
    return folder, before, after


if __name__ == "__main__":
    train(tyro.cli(Args))

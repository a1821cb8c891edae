"""Trains with skrl 2 (PPO or SAC): the environment goes in as it is, `wrap_env(env)`.

    pip install skrl
    python examples/train_skrl.py --algorithm ppo
    python examples/train_skrl.py --algorithm sac

In mode SAME_STEP the next observation is the new episode's where one ended. Both agents below take
`final_obs` in its place: PPO to bootstrap at time limits (`time_limit_bootstrap`), SAC to store it.
On a GPU, `make_vec(..., obs="dict")` and `wrap_env(env, "isaaclab-single-agent")` keep every
tensor on the device; the plain wrapper copies actions to the host.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import torch
import tyro
from gymnasium.vector import AutoresetMode
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import Tensor, nn

import unilab_gym
from unilab_gym.config import AlgoCfg, NetworkCfg
from unilab_gym.contract import ExperimentTracker, new_run_dir
from unilab_gym.contract import resolve as resolve_contract
from unilab_gym.export.actors import skrl_actor
from unilab_gym.export.onnx import export_policy, load_policy
from unilab_gym.registration import owner_config


@dataclasses.dataclass
class Args:
    """Train with skrl."""

    algorithm: Literal["ppo", "sac"] = "ppo"
    task: str = "UniLab/CartPole-v0"
    backend: str = "mujoco"
    num_envs: int = 64
    timesteps: int | None = None
    """Steps of the vector environment; by default 1920 for PPO and 1500 for SAC."""
    seed: int = 1
    run_root: Path = Path("runs")


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, outputs)
    )


class Policy(GaussianMixin, Model):
    """A Gaussian with a learnt standard deviation; the environment clamps to the action box."""

    def __init__(self, env: Any) -> None:
        Model.__init__(
            self,
            observation_space=env.observation_space,
            action_space=env.action_space,
            device=env.device,
        )
        GaussianMixin.__init__(self, clip_actions=False)
        self.net = mlp(self.num_observations, self.num_actions)
        self.log_std = nn.Parameter(torch.full((self.num_actions,), 0.6).log())

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class SquashedPolicy(Model):
    """tanh of a Gaussian, times the action box: beyond it a clamped action has no gradient."""

    def __init__(self, env: Any) -> None:
        super().__init__(
            observation_space=env.observation_space,
            action_space=env.action_space,
            device=env.device,
        )
        self.net = mlp(self.num_observations, 2 * self.num_actions)
        self.register_buffer("high", torch.as_tensor(env.action_space.high))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        mean, log_std = self.net(inputs["observations"]).chunk(2, dim=-1)
        return torch.tanh(mean) * self.high, {"mean": mean, "log_std": log_std.clamp(-5.0, 1.0)}

    def act(self, inputs: dict[str, Any], *, role: str = "") -> tuple[Tensor, dict[str, Any]]:
        mean_actions, outputs = self.compute(inputs, role)
        normal = torch.distributions.Normal(outputs["mean"], outputs["log_std"].exp())
        raw = normal.rsample()
        unit = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(1.0 - unit.square() + 1e-6)
        outputs |= {"log_prob": log_prob.sum(-1, keepdim=True), "mean_actions": mean_actions}
        return unit * self.high, outputs


class Value(DeterministicMixin, Model):
    """V(s), or with `action` Q(s, a)."""

    def __init__(self, env: Any, action: bool) -> None:
        Model.__init__(
            self,
            observation_space=env.observation_space,
            action_space=env.action_space,
            device=env.device,
        )
        DeterministicMixin.__init__(self)
        self.action = action
        self.net = mlp(self.num_observations + action * self.num_actions, 1)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        seen = inputs["observations"]
        if self.action:
            seen = torch.cat((seen, inputs["taken_actions"]), dim=1)
        return self.net(seen), {}


class TrueNext:
    """Records the observation an episode ended on, not the one the next begins with."""

    def record_transition(self, *, next_observations: Tensor, infos: Any, **rest: Any) -> None:
        super().record_transition(next_observations=infos["final_obs"], infos=infos, **rest)


class TrueNextPPO(TrueNext, PPO):
    """PPO whose values beyond a time limit are those of the state it was reached in."""


class TrueNextSAC(TrueNext, SAC):
    """SAC whose transitions end where they ended."""


def make_agent(args: Args, env: Any) -> Any:
    """The agent and what it learns from."""
    quiet = {"directory": "", "write_interval": 0, "checkpoint_interval": 0}
    spaces = {
        "observation_space": env.observation_space,
        "action_space": env.action_space,
        "device": env.device,
    }
    if args.algorithm == "ppo":
        models = {"policy": Policy(env), "value": Value(env, action=False)}
        cfg = PPO_CFG(
            rollouts=32,
            learning_epochs=5,
            mini_batches=4,
            discount_factor=0.98,
            value_loss_scale=0.5,
            time_limit_bootstrap=True,
        )
        memory = RandomMemory(memory_size=32, num_envs=env.num_envs, device=env.device)
        kind = TrueNextPPO
    else:
        models = {"policy": SquashedPolicy(env)}
        for name in ("critic_1", "critic_2", "target_critic_1", "target_critic_2"):
            models[name] = Value(env, action=True)
        cfg = SAC_CFG(
            batch_size=256,
            discount_factor=0.98,
            polyak=0.1,  # few updates a step of 64 environments: Q has to follow them
            learning_rate=1e-3,
            initial_entropy_value=0.1,
            # Per second: those of a step (0.02 of it) drown in the entropy bonus.
            rewards_shaper=lambda rewards, *_: rewards / env.unwrapped.step_dt,
            random_timesteps=50,
            learning_starts=50,
            gradient_steps=2,
        )
        memory = RandomMemory(memory_size=2000, num_envs=env.num_envs, device=env.device)
        kind = TrueNextSAC
    for name, value in quiet.items():
        setattr(cfg.experiment, name, value)
    return kind(models=models, memory=memory, cfg=cfg, **spaces)


def mean_return(args: Args, policy: Any) -> float:
    """Undiscounted return of 32 episodes without exploration."""
    env = gym.make_vec(f"unilab_gym:{args.task}", num_envs=32, backend=args.backend, play=True)
    report = unilab_gym.evaluate(env, policy)
    env.close()
    return report.mean_return


def train(args: Args) -> tuple[Path, float, float]:
    """Returns the run folder and the mean return before and after."""
    set_seed(args.seed)
    timesteps = args.timesteps or {"ppo": 1920, "sac": 1500}[args.algorithm]
    network = NetworkCfg(hidden_dims=(64, 64), activation="elu", obs_normalization=False)
    owner = owner_config(args.task, args.backend)
    training = dataclasses.replace(owner.training, num_envs=args.num_envs, seed=args.seed)
    algo = AlgoCfg(library="skrl", actor=network, critic=network)
    owner = dataclasses.replace(owner, algo=algo, training=training)
    folder = new_run_dir(args.run_root, args.task, args.seed)
    tracker = ExperimentTracker(folder, owner)

    base = gym.make_vec(
        f"unilab_gym:{args.task}", num_envs=args.num_envs, backend=args.backend, seed=args.seed
    )
    assert base.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    # skrl 2.1 copies tensors with torch.tensor(...), about which torch warns.
    warnings.filterwarnings("ignore", "To copy construct from a tensor", UserWarning)
    env = wrap_env(base, verbose=False)
    agent = make_agent(args, env)
    before = mean_return(args, skrl_actor(agent))
    cfg = {"timesteps": timesteps, "headless": True, "disable_progressbar": True}
    cfg["close_environment_at_exit"] = False
    trainer = SequentialTrainer(cfg=cfg, env=env, agents=agent)
    started = time.perf_counter()
    trainer.train()
    tracker.iteration(timesteps * args.num_envs, time.perf_counter() - started)
    report = export_policy(
        skrl_actor(agent),
        resolve_contract(owner),
        folder / "policy.onnx",
        observations=base.unwrapped.get_observations()["policy"],
    )
    after = mean_return(args, load_policy(report.path))
    tracker.finish({"mean_return": after})
    base.close()
    print(f"mean return {before:.2f} -> {after:.2f}; verified policy: {report.path}")
    return folder, before, after


if __name__ == "__main__":
    train(tyro.cli(Args))

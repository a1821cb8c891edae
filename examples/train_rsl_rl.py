"""Trains a task with rsl_rl's PPO and ends with a verified ONNX policy.

    python examples/train_rsl_rl.py                                   # Go2, backend by machine
    python examples/train_rsl_rl.py --backend mujoco --iterations 240 --seed 1
    python examples/train_rsl_rl.py --resume latest --iterations 400  # goes on up to 400

A run folder `runs/<task>/<date>_<seed>/` holds run_config.json (configuration and policy
contract), model_*.pt (checkpoints), events* (TensorBoard), policy.onnx and run_summary.json.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # rsl_rl imports GitPython
# Torch's worker threads sleep while they wait: spinning beside another busy process made an update
# take 8 s instead of 0.6 s. Read when torch is loaded, hence before the imports.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import gymnasium as gym
import torch
import tyro
from rsl_rl.runners import OnPolicyRunner

from unilab_gym.adapters.rsl_rl import RslRlVecEnv, rsl_rl_config
from unilab_gym.backends import resolve_backend
from unilab_gym.config import OwnerCfg
from unilab_gym.contract import (
    ExperimentTracker,
    find_run,
    new_run_dir,
    policy_load_dim_guard,
    run_record,
)
from unilab_gym.contract import resolve as resolve_contract
from unilab_gym.errors import ConfigError, RunFolderError, UnilabGymError
from unilab_gym.export.onnx import export_policy, rsl_rl_actor
from unilab_gym.registration import owner_config


@dataclasses.dataclass
class Args:
    """Train a policy with rsl_rl's PPO."""

    task: str = "UniLab/Go2JoystickFlat-v0"
    """Registered id."""
    backend: str = "auto"
    """auto, mujoco or mjwarp."""
    device: str | None = None
    """cpu, cuda, cuda:1 ...; by default what the backend takes."""
    num_envs: int | None = None
    """Parallel environments; by default the task's."""
    iterations: int | None = None
    """Iterations in all, a resumed run's earlier ones included; by default the task's."""
    seed: int | None = None
    """Seed of environments and learner; by default the task's."""
    run_root: Path = Path("runs")
    """Folder of all runs."""
    resume: str | None = None
    """Go on with a run: "latest", its folder or one of its checkpoints; settings are the run's."""
    save_interval: int = 40
    """Iterations between two checkpoints."""


class Progress:
    """One line per report: speed, return, tracking error, time left."""

    def __init__(self, tracker: ExperimentTracker, first: int, total: int, steps: int) -> None:
        self.tracker, self.first, self.total, self.steps = tracker, first, total, steps
        self.log: dict[str, float] = {}
        self.started = self.shown = time.perf_counter()

    def report(self, iteration: int, log: dict[str, float], seconds: float) -> None:
        self.tracker.iteration(self.steps, seconds)
        if log:
            self.log = log
        now, done = time.perf_counter(), iteration + 1 - self.first
        last = iteration + 1 == self.total
        if now - self.shown < 5.0 and not last and done > 1:
            return
        self.shown = now
        left = (now - self.started) / done * (self.total - iteration - 1)
        figures = "".join(
            f"  {name.split('/')[-1].replace('_error', '')} err {value:.3f}"
            for name, value in self.log.items()
            if name.startswith("metric/") and name.endswith("_error")
        )
        print(
            f"iteration {iteration + 1:4d}/{self.total}"
            f"  {(iteration + 1) * self.steps / 1e6:6.2f} M steps"
            f"  {self.steps / seconds:7,.0f} steps/s"
            f"  return {self.log.get('episode/return', float('nan')):7.2f}"
            f"  length {self.log.get('episode/length', float('nan')):5.0f}{figures}"
            f"  left {int(left // 60)}:{int(left % 60):02d}",
            flush=True,
        )


def episode_means(records: list[dict[str, Any]]) -> dict[str, float]:
    """Means over the episodes that ended in one iteration, weighted by their number."""
    ended = torch.stack([record["episode/ended"].double() for record in records])
    if not ended.sum() > 0:
        return {}
    return {
        name: float((torch.stack([r[name].double() for r in records]) * ended).sum() / ended.sum())
        for name in records[0]
        if name != "episode/ended"
    }


def make_runner(env: RslRlVecEnv, owner: OwnerCfg, folder: Path, args: Args) -> OnPolicyRunner:
    """rsl_rl's runner; what it prints while it is built is dropped."""
    config = rsl_rl_config(owner.algo, save_interval=args.save_interval)
    with contextlib.redirect_stdout(io.StringIO()):
        runner = OnPolicyRunner(env, config, log_dir=str(folder), device=str(env.device))
    runner.logger.git_status_repos = []  # run_config.json records the commit
    return runner


def show_progress(runner: OnPolicyRunner, progress: Progress) -> None:
    """Puts our line in the place of the runner's page; TensorBoard scalars stay."""
    write = runner.logger.log

    def log(**kwargs: Any) -> None:
        means = episode_means(runner.logger.ep_extras)
        with contextlib.redirect_stdout(io.StringIO()):
            write(**kwargs)
        progress.report(kwargs["it"], means, kwargs["collect_time"] + kwargs["learn_time"])

    runner.logger.log = log


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint's tensors and numbers; nothing else is unpickled."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise RunFolderError(f"{path} is not a readable checkpoint: {error}") from error


def newest_checkpoint(run: str, folder: Path) -> Path:
    """The checkpoint that was named, or the last one of the folder."""
    if Path(run).suffix == ".pt":
        return Path(run)
    found = sorted(folder.glob("model_*.pt"), key=lambda path: int(path.stem.split("_")[1]))
    if not found:
        raise RunFolderError(f"{folder} holds no checkpoint model_*.pt to resume from")
    return found[-1]


def resolve(args: Args, folder: Path | None) -> OwnerCfg:
    """The configuration: the task's, or that of the run to resume, with the arguments applied."""
    task, backend, recorded = args.task, args.backend, {}
    if folder is not None:
        record = run_record(folder)
        task, recorded = record["task"], record["training"]
        if backend == "auto":
            backend = str(recorded.get("sim_backend", "auto"))
    backend, _ = resolve_backend(backend, args.device)
    owner = owner_config(task, backend)
    chosen: dict[str, int] = {}
    for name in ("num_envs", "iterations", "seed"):
        given, default = getattr(args, name), getattr(owner.training, name)
        chosen[name] = given if given is not None else recorded.get(name, default)
        if name != "seed" and chosen[name] <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be positive, got {chosen[name]}")
    training = dataclasses.replace(owner.training, sim_backend=backend, **chosen)
    return dataclasses.replace(owner, training=training)


def train(args: Args) -> Path:
    """Trains and exports; returns the run folder."""
    folder = None if args.resume is None else find_run(args.resume, args.run_root)
    owner = resolve(args, folder)
    if args.save_interval <= 0:
        raise ConfigError(f"--save-interval must be positive, got {args.save_interval}")
    settings = owner.training
    checkpoint = None if folder is None else newest_checkpoint(str(args.resume), folder)
    state = read_checkpoint(checkpoint) if checkpoint is not None else {"iter": -1}
    first = int(state["iter"]) + 1
    if first >= settings.iterations:
        raise ConfigError(f"the run has {first} iterations; give --iterations above that")
    if folder is None:
        folder = new_run_dir(args.run_root, owner.task, settings.seed)
    # The record is written, and a resumed run's contract checked, before the environment exists.
    tracker = ExperimentTracker(folder, owner, device=args.device)
    print(f"run folder: {folder}")
    torch.manual_seed(settings.seed)
    env = gym.make_vec(
        f"unilab_gym:{owner.task}",
        num_envs=settings.num_envs,
        backend=settings.sim_backend,
        device=args.device,
        seed=settings.seed + first,  # a resumed run sees new episodes
    )
    env.reset()
    adapter = RslRlVecEnv(env)
    runner = make_runner(adapter, owner, folder, args)
    if checkpoint is not None:
        with policy_load_dim_guard(checkpoint):
            runner.alg.load(state, None, True)
        print(f"resumed from {checkpoint.name}: iteration {first} of {settings.iterations}")
    runner.current_learning_iteration = first
    steps = settings.num_envs * runner.cfg["num_steps_per_env"]
    progress = Progress(tracker, first, settings.iterations, steps)
    show_progress(runner, progress)
    print(f"{settings.num_envs} environments on {settings.sim_backend} ({env.unwrapped.device})")
    try:
        runner.learn(settings.iterations - first, init_at_random_ep_len=True)
    except KeyboardInterrupt:
        runner.save(str(folder / f"model_{runner.current_learning_iteration}.pt"))
        print(f"\ninterrupted: checkpoint saved, go on with --resume {folder}")
        raise
    observations = adapter.get_observations()["policy"]
    report = export_policy(
        rsl_rl_actor(runner),
        resolve_contract(owner),
        folder / "policy.onnx",
        observations=observations,
        run_path=folder.name,
    )
    tracker.finish(progress.log)
    env.close()
    print(f"verified policy: {report.path}  (largest difference {report.max_error:.1e})")
    print(f"replay it: {sys.executable} {Path(__file__).with_name('replay.py')} --run {folder}")
    return folder


def main() -> int:
    """Command line; errors of ours are one line and exit code 2."""
    try:
        train(tyro.cli(Args))
    except UnilabGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

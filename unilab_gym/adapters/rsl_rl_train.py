# pyright: basic
"""PPO training with rsl_rl: from a task's id to a run folder with a verified ONNX policy.

    train(TrainSettings(task="UniLab/Go2JoystickFlat-v0", backend="mujoco", iterations=240))

`unilab-gym train` and `examples/train_rsl_rl.py` call it. Under `torchrun` each process has
environments of its own and all learn one policy, see `docs/libraries/rsl_rl.md`. Torch's worker
threads had better sleep while they wait, see `OMP_WAIT_POLICY` there: it is read when torch is
loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from rsl_rl.runners import OnPolicyRunner
from torch import nn

from unilab_gym.adapters.env_checkpoint import keep_env, restored_env
from unilab_gym.adapters.processes import Processes
from unilab_gym.adapters.rsl_rl import RslRlVecEnv
from unilab_gym.adapters.rsl_rl_config import rsl_rl_config
from unilab_gym.adapters.settings import TrainSettings
from unilab_gym.backends import resolve_backend
from unilab_gym.backends.mujoco import usable_cpus
from unilab_gym.config import OwnerCfg
from unilab_gym.contract import (
    ExperimentTracker,
    find_run,
    new_run_dir,
    policy_load_dim_guard,
    run_record,
    unless_it_fails,
)
from unilab_gym.contract import resolve as resolve_contract
from unilab_gym.errors import ConfigError, RunFolderError
from unilab_gym.export import (
    ExportReport,
    export_motions,
    export_policy,
    rsl_rl_actor,
)
from unilab_gym.export.onnx import replacing
from unilab_gym.registration import owner_config, parse_task_args


class Progress:
    """One line per report: speed, return, tracking error, time left."""

    def __init__(self, tracker: ExperimentTracker, first: int, total: int, steps: int) -> None:
        self.tracker, self.first, self.total, self.steps = tracker, first, total, steps
        self.log: dict[str, float] = {}
        self.started = self.shown = time.perf_counter()

    def report(self, iteration: int, log: dict[str, float], seconds: float) -> None:
        """Counts an iteration; prints at the first, the last, and every 5 s."""
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


class ParallelRunner(OnPolicyRunner):
    """rsl_rl's runner, whose processes may also work on CPUs: gloo there, NCCL on GPUs."""

    def _configure_multi_gpu(self) -> None:
        processes = Processes.from_environment()
        if processes.world_size == 1 or torch.device(self.device).type == "cuda":
            return super()._configure_multi_gpu()
        # rsl_rl 5.5 knows NCCL only; what it does with a process group works on any.
        self.is_distributed = True
        self.gpu_world_size = processes.world_size
        self.gpu_global_rank, self.gpu_local_rank = processes.rank, processes.local_rank
        self.cfg["multi_gpu"] = {
            "global_rank": processes.rank,
            "local_rank": processes.local_rank,
            "world_size": processes.world_size,
        }
        torch.distributed.init_process_group("gloo")
        return None


def make_runner(
    env: RslRlVecEnv, owner: OwnerCfg, folder: Path | None = None, save_interval: int = 40
) -> ParallelRunner:
    """rsl_rl's runner; what it prints while it is built is dropped.

    Args:
        env: The adapted environment.
        owner: Whose learner settings it takes.
        folder: Where checkpoints and TensorBoard events go; None writes nothing.
        save_interval: Iterations between two checkpoints.
    """
    config = rsl_rl_config(owner.algo, save_interval=save_interval)
    place = None if folder is None else str(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        runner = ParallelRunner(env, config, log_dir=place, device=str(env.device))
    runner.logger.git_status_repos = []  # run_config.json records the commit
    return runner


def _show_progress(runner: OnPolicyRunner, progress: Progress) -> None:
    """Puts our line in the place of the runner's page; TensorBoard scalars stay."""
    write = runner.logger.log

    def log(**kwargs: Any) -> None:
        means = episode_means(runner.logger.ep_extras)
        with contextlib.redirect_stdout(io.StringIO()):
            write(**kwargs)
        progress.report(kwargs["it"], means, kwargs["collect_time"] + kwargs["learn_time"])

    runner.logger.log = log  # pyright: ignore[reportAttributeAccessIssue]


def _keep_environment(runner: OnPolicyRunner, adapter: RslRlVecEnv) -> None:
    """Saves the environment whenever the learner is saved; a file is whole or it is not there."""
    write = runner.save

    def save(path: str, infos: dict[str, Any] | None = None) -> None:
        try:
            with replacing(Path(path)) as temporary:
                write(str(temporary), infos)
            keep_env(Path(path), adapter.env, between_steps=not adapter.stepping)
        except (OSError, RuntimeError) as error:  # torch says RuntimeError where the disk is full
            raise RunFolderError(f"cannot write checkpoint {path}: {error}") from error

    runner.save = save  # pyright: ignore[reportAttributeAccessIssue]


# --- checkpoints ----------------------------------------------------------------------------------


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint's tensors and numbers; nothing else is unpickled.

    Raises:
        RunFolderError: If it is no checkpoint of rsl_rl, or holds anything that would have to be
            executed to be loaded.
    """
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # unpickling fails in every way there is
        first = str(error).strip().partition("\n")[0]
        raise RunFolderError(
            f"{path} is not a readable checkpoint (only tensors, numbers and text are loaded): "
            f"{first}"
        ) from error
    if not isinstance(state, dict) or "actor_state_dict" not in state or "iter" not in state:
        raise RunFolderError(f"{path} is no checkpoint of rsl_rl: it has no actor_state_dict, iter")
    return state


def newest_checkpoint(run: str | Path, folder: Path) -> Path:
    """The checkpoint that was named, or the last one of the folder.

    Raises:
        RunFolderError: If the folder holds none.
    """
    if Path(run).suffix == ".pt":
        return Path(run)
    found = sorted(
        (path for path in folder.glob("model_*.pt") if path.stem.split("_")[1].isdigit()),
        key=lambda path: int(path.stem.split("_")[1]),
    )
    if not found:
        raise RunFolderError(f"{folder} holds no checkpoint model_*.pt")
    return found[-1]


def restored_actor(checkpoint: Path, owner: OwnerCfg, env: gym.vector.VectorEnv) -> nn.Module:
    """The deterministic actor of a checkpoint, its normalizer inside, in eval mode.

    Args:
        checkpoint: `model_*.pt` of rsl_rl.
        owner: The configuration that the guard has passed.
        env: An environment of it, already reset: the network's sizes come from there.

    Raises:
        RunFolderError: If the file is no checkpoint.
        CrossBackendIncompatibleError: If its weights do not fit.
    """
    state = read_checkpoint(checkpoint)
    runner = make_runner(RslRlVecEnv(env), owner)
    with policy_load_dim_guard(checkpoint, contract=resolve_contract(owner)):
        runner.alg.load(state, {"actor": True}, True)
    return rsl_rl_actor(runner)


# --- training -------------------------------------------------------------------------------------


def run_settings(settings: TrainSettings, folder: Path | None) -> OwnerCfg:
    """The configuration: the task's, or that of the run to resume, with the settings applied.

    Raises:
        ConfigError: If an id, a backend or a number cannot be.
    """
    task, backend, recorded = settings.task, settings.backend, {}
    own = parse_task_args(settings.task_args)
    if folder is not None:
        record = run_record(folder)
        task, recorded = record["task"], record["training"]
        own = record["task_kwargs"]
        if backend == "auto":
            backend = str(recorded.get("sim_backend", "auto"))
    backend, _ = resolve_backend(backend, settings.device)
    owner = owner_config(task, backend, **own)
    chosen: dict[str, int] = {}
    for name in ("num_envs", "iterations", "seed"):
        given, default = getattr(settings, name), getattr(owner.training, name)
        chosen[name] = given if given is not None else recorded.get(name, default)
        if name != "seed" and chosen[name] <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be positive, got {chosen[name]}")
    if settings.save_interval <= 0:
        raise ConfigError(f"--save-interval must be positive, got {settings.save_interval}")
    training = dataclasses.replace(owner.training, sim_backend=backend, **chosen)
    return dataclasses.replace(owner, training=training)


def train(settings: TrainSettings) -> Path | None:
    """Trains and exports; under `torchrun` with `num_envs` environments in each process.

    Returns:
        The run folder; None in processes other than the first, which write nothing.

    Raises:
        ConfigError: If a setting cannot be.
        RunFolderError: If a run to resume is not there, or a folder cannot be written.
        CrossBackendIncompatibleError: If a run to resume has another contract.
        ExportMismatchError: If the exported policy is not the trained one.
    """
    processes = Processes.from_environment()
    found = None if settings.resume is None else find_run(settings.resume, settings.run_root)
    owner = run_settings(settings, found)
    _, device = resolve_backend(owner.training.sim_backend, settings.device)
    device = processes.device(settings.device, device)
    checkpoint, state, first = None, None, 0
    if found is not None:
        checkpoint = newest_checkpoint(str(settings.resume), found)
        state = read_checkpoint(checkpoint)
        first = int(state["iter"]) + 1
    if first >= owner.training.iterations:
        raise ConfigError(f"the run has {first} iterations; give --iterations above that")
    folder = None
    if processes.first:
        folder = found or new_run_dir(settings.run_root, owner.task, owner.training.seed)
    with unless_it_fails(None if found else folder):
        # The record is written, and a resumed run's contract checked, before the environment is.
        tracker = _tracker(folder or settings.run_root, owner, device, processes)
        adapter = _make_env(owner, device, first, processes)
        runner = make_runner(adapter, owner, folder, settings.save_interval)
    processes.say(f"run folder: {folder}")
    if processes.world_size == 1:
        _keep_environment(runner, adapter)
    goes_on = False
    if state is not None and checkpoint is not None:
        with policy_load_dim_guard(checkpoint, contract=resolve_contract(owner)):
            runner.alg.load(state, None, True)
        at = f"iteration {first} of {owner.training.iterations}"
        processes.say(f"resumed from {checkpoint.name}: {at}")
        if processes.world_size == 1:
            kept = restored_env(checkpoint, adapter.env)
            goes_on = kept.episodes
            print(kept.text)
        else:
            processes.say("new episodes: environments of several processes are not kept")
    log = _learn(runner, owner, tracker, first, folder, stagger=not goes_on)
    if folder is not None:
        reports = _export(runner, adapter, owner, folder)
        tracker.finish(log)
        for report in reports:
            tracker.record_file(report.path)
            print(f"verified policy: {report.path}  (largest difference {report.max_error:.1e})")
        print(f"replay it: unilab-gym play --run {folder}")
    adapter.env.close()
    if runner.is_distributed:
        torch.distributed.destroy_process_group()
    return folder


def _tracker(
    folder: Path, owner: OwnerCfg, device: torch.device, processes: Processes
) -> ExperimentTracker:
    world = processes.world_size
    facts = {"processes": {"world_size": world}} if world > 1 else None
    return ExperimentTracker(folder, owner, processes.rank, device=str(device), facts=facts)


def _make_env(
    owner: OwnerCfg, device: torch.device, first: int, processes: Processes
) -> RslRlVecEnv:
    settings, sharing = owner.training, processes.local_world_size
    torch.manual_seed(settings.seed + processes.rank)  # exploration; rank 0's networks go to all
    overrides = {}
    if sharing > 1 and settings.sim_backend == "mujoco" and owner.env.sim.num_threads is None:
        overrides["sim.num_threads"] = max(1, usable_cpus() // sharing)
    env = gym.make_vec(
        f"unilab_gym:{owner.task}",
        num_envs=settings.num_envs,
        backend=settings.sim_backend,
        device=device,
        seed=settings.seed + first,  # other episodes where a resumed run's are not restored
        rank=processes.rank,
        overrides=overrides or None,
        **owner.task_kwargs,
    )
    env.reset()
    number = f"{processes.world_size} x " if processes.world_size > 1 else ""
    adapter = RslRlVecEnv(env)
    place = f"{settings.sim_backend} ({adapter.device})"
    processes.say(f"{number}{settings.num_envs} environments on {place}")
    return adapter


def _learn(
    runner: ParallelRunner,
    owner: OwnerCfg,
    tracker: ExperimentTracker,
    first: int,
    folder: Path | None,
    *,
    stagger: bool,
) -> dict[str, float]:
    """Trains to the last iteration; `stagger` spreads the ends of the first episodes."""
    settings = owner.training
    runner.current_learning_iteration = first
    steps = settings.num_envs * runner.cfg["num_steps_per_env"] * runner.gpu_world_size
    progress = Progress(tracker, first, settings.iterations, steps)
    if folder is not None:
        _show_progress(runner, progress)
    try:
        runner.learn(settings.iterations - first, init_at_random_ep_len=stagger)
    except KeyboardInterrupt:
        if folder is not None:
            runner.save(str(folder / f"model_{runner.current_learning_iteration}.pt"))
            print(f"\ninterrupted: checkpoint saved, go on with --resume {folder}")
        raise
    return progress.log


def _export(
    runner: OnPolicyRunner, adapter: RslRlVecEnv, owner: OwnerCfg, folder: Path
) -> list[ExportReport]:
    """The policy, and after it the variants that hold a reference motion."""
    groups = adapter.get_observations()
    actor, contract = rsl_rl_actor(runner), resolve_contract(owner)
    recorded = torch.cat([groups[name] for name in owner.algo.obs_groups["actor"]], 1)
    path, run = folder / "policy.onnx", folder.name
    return [
        export_policy(actor, contract, path, observations=recorded, run_path=run),
        *export_motions(actor, contract, adapter.env, folder, observations=recorded, run_path=run),
    ]

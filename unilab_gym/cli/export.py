"""`export`: a checkpoint as a verified ONNX file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab_gym.cli import print_json
from unilab_gym.cli.arguments import Export
from unilab_gym.cli.policies import ONNX, CheckpointPolicy, PolicySource, guarded, load
from unilab_gym.cli.text import Progress
from unilab_gym.config import OwnerCfg
from unilab_gym.contract import find_run, record_file, resolve, run_record
from unilab_gym.contract.snapshot import RUN_CONFIG, build_snapshot, command_ranges
from unilab_gym.errors import ConfigError
from unilab_gym.evaluation import policy_input
from unilab_gym.factory import make
from unilab_gym.vector_env import UnilabVectorEnv

if TYPE_CHECKING:
    from unilab_gym.export import ExportReport

_ENVS = 16
DEPLOY = "deploy.yaml"


def export(args: Export) -> None:
    """Loads, records observations, writes, proves.

    Raises:
        ConfigError: If the run is an ONNX file already, or a number cannot be.
        CrossBackendIncompatibleError: If the checkpoint does not fit the task as it is now.
        ExportMismatchError: If the file computes something else.
    """
    if args.observations <= 0:
        raise ConfigError(f"--observations must be positive, got {args.observations}")
    source = _checkpoint(args)
    target = guarded(source, "mujoco")
    path = source.folder / ONNX if args.out is None else args.out
    env = make(target.env, _ENVS, backend="mujoco")  # with training's noise and randomization
    try:
        policy = load(source, target, env)
        recorded = _recorded(env, policy, args.observations)
        assert isinstance(policy, CheckpointPolicy)
        report, tracking = _write(args, policy, target, env, recorded, path, source.folder.name)
    finally:
        env.close()
    if path.parent.resolve() == source.folder.resolve() and (path.parent / RUN_CONFIG).is_file():
        for written in (report, *tracking):
            record_file(written.path)
    deploy = str(path.with_name(DEPLOY)) if args.deploy_yaml else None
    if args.json:
        print_json(
            {**_facts(report), "deploy_yaml": deploy, "tracking": list(map(_facts, tracking))}
        )
        return
    for written in (report, *tracking):
        print(
            f"{written.path}: {written.recorded} recorded and {written.drawn} drawn observations, "
            f"largest difference {written.max_error:.1e} x max(1, |action|)"
        )
    if deploy:
        print(f"{deploy}: for Unitree's C++ runtime")


def _facts(report: ExportReport) -> dict[str, Any]:
    return {**dataclasses.asdict(report), "path": str(report.path)}


def _checkpoint(args: Export) -> PolicySource:
    from unilab_gym.adapters.rsl_rl_train import newest_checkpoint

    folder = find_run(args.run, args.run_root)
    if Path(args.run).suffix.lower() == ".onnx":
        raise ConfigError(f"{args.run} is an ONNX file already: give its run folder or checkpoint")
    record = run_record(folder)
    return PolicySource(
        newest_checkpoint(args.run, folder),
        "checkpoint",
        record["task"],
        str(record["training"].get("sim_backend", "")),
        task_kwargs=record["task_kwargs"],
    )


def _recorded(env: UnilabVectorEnv, policy: Any, count: int) -> Tensor:
    """Observations `[count, D]` of a rollout with the policy's mean actions."""
    steps = -(-count // env.num_envs)
    progress = Progress("recording observations", steps, env.num_envs)
    env.reset(seed=0)
    rows: list[Tensor] = []
    for _ in range(steps):
        obs = policy_input(env, policy)
        rows.append(obs)
        env.step(policy(obs))
        progress.advance()
    return torch.cat(rows)[:count]


def _write(
    args: Export,
    policy: CheckpointPolicy,
    target: OwnerCfg,
    env: UnilabVectorEnv,
    obs: Tensor,
    path: Path,
    run: str,
) -> tuple[ExportReport, list[ExportReport]]:
    """The policy; beside it, for a tracking task, the variants that hold a reference motion."""
    from unilab_gym.export import DeploySettings, export_motions, export_policy

    deploy = None
    if args.deploy_yaml:
        record = build_snapshot(target)
        per_command = command_ranges(record["declared"], record["resolved"]).values()
        ranges = {part: pair for command in per_command for part, pair in command.items()}
        deploy = DeploySettings(path.with_name(DEPLOY), args.sdk_joints, ranges)
    contract = resolve(target)
    report = export_policy(
        policy.actor,
        contract,
        path,
        observations=obs,
        static_batch=args.static_batch,
        run_path=run,
        deploy=deploy,
    )
    tracking = export_motions(
        policy.actor, contract, env, path.parent, observations=obs, run_path=run
    )
    return report, tracking

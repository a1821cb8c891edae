"""`export`: a checkpoint as a verified ONNX file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

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

_ENVS = 16


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
    env = make(target.env, _ENVS, backend="mujoco")  # with training's noise and randomization
    try:
        policy = load(source, target, env)
        recorded = _recorded(env, policy, args.observations)
    finally:
        env.close()
    assert isinstance(policy, CheckpointPolicy)
    path = source.folder / ONNX if args.out is None else args.out
    report = _write(args, policy, target, recorded, path, source.folder.name)
    if path.parent.resolve() == source.folder.resolve() and (path.parent / RUN_CONFIG).is_file():
        record_file(path)
    if args.json:
        print_json({**report, "path": str(path)})
        return
    print(f"{path}: {report['recorded']} recorded and {report['drawn']} drawn observations, ")
    print(f"largest difference {report['max_error']:.1e} x max(1, |action|)")
    if report["deploy_yaml"]:
        print(f"{report['deploy_yaml']}: for Unitree's C++ runtime")


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
    args: Export, policy: CheckpointPolicy, target: OwnerCfg, obs: Tensor, path: Path, run: str
) -> dict[str, Any]:
    from unilab_gym.export import DeploySettings, export_policy

    deploy = None
    if args.deploy_yaml:
        record = build_snapshot(target)
        per_command = command_ranges(record["declared"], record["resolved"]).values()
        ranges = {part: pair for command in per_command for part, pair in command.items()}
        deploy = DeploySettings(path.with_name("deploy.yaml"), args.sdk_joints, ranges)
    report = export_policy(
        policy.actor,
        resolve(target),
        path,
        observations=obs,
        static_batch=args.static_batch,
        run_path=run,
        deploy=deploy,
    )
    return {
        **dataclasses.asdict(report),
        "deploy_yaml": None if deploy is None else str(deploy.path),
    }

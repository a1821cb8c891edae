"""`size-buffers` and `bench`."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

from unilab_gym.cli import FAILED, OK, USAGE, print_json
from unilab_gym.cli.arguments import Bench, SizeBuffers
from unilab_gym.cli.text import Progress
from unilab_gym.errors import ConfigError, UnilabGymError, near

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
"""Where a checkout has them."""

_ALL = "smoke"


def size_buffers(args: SizeBuffers) -> None:
    """Counts contacts and constraint rows of a task."""
    from unilab_gym.backends import sizing
    from unilab_gym.registration import owner_config, parse_task_args

    own = parse_task_args(args.task_args)
    task = owner_config(args.task, args.backend, **own).task  # refuses what cannot be
    progress = Progress("counting contacts", args.steps, args.num_envs)
    sizes = sizing.size_buffers(
        task,
        backend=args.backend,
        num_envs=args.num_envs,
        steps=args.steps,
        seed=args.seed,
        on_step=progress.advance,
        **own,
    )
    if args.json:
        print_json(dataclasses.asdict(sizes))
    else:
        print(sizes)


def bench(args: Bench) -> int:
    """Runs `benchmarks/run.py` in a process of its own, on the package beside it.

    Returns:
        Its exit code.

    Raises:
        UnilabGymError: If this is no checkout.
        ConfigError: If there is no such benchmark.
    """
    runner = BENCHMARKS / "run.py"
    if not runner.is_file():
        raise UnilabGymError(
            "benchmarks belong to a checkout, not to an installed package "
            f"({BENCHMARKS} has no run.py): clone the repository and pip install -e ."
        )
    known = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path != runner)
    if args.name not in (*known, _ALL):
        raise ConfigError(f"benchmark {near(args.name, (*known, _ALL))}")
    command = [sys.executable, str(runner), args.name]
    for option in ("tiny", "save"):
        command += [f"--{option}"] if getattr(args, option) else []
    for option in ("task", "device", "minutes"):
        value = getattr(args, option)
        command += [] if value is None else [f"--{option}", str(value)]
    code = subprocess.run(command, check=False).returncode
    return code if code in (OK, FAILED, USAGE) else FAILED

"""The record of a run: where it lies, what it ran, how it went.

    run_dir = new_run_dir("runs", owner.task, seed=1)
    tracker = ExperimentTracker(run_dir, owner, device="cuda:0")  # run_config.json
    tracker.iteration(env_steps=512 * 24, seconds=0.9)
    tracker.finish({"episode/return": 21.4})                       # run_summary.json

Rank 0 writes; the other ranks and a configuration with `training.play_only` write nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

from unilab_gym.config import OwnerCfg
from unilab_gym.contract.guard import resolve_sim2sim_config
from unilab_gym.contract.plain import file_digest, plain, read_json, refuse, write_json
from unilab_gym.contract.snapshot import (
    RUN_CONFIG,
    build_snapshot,
    recorded_files,
    run_config_path,
)
from unilab_gym.errors import CrossBackendIncompatibleError, RunFolderError

RUN_SUMMARY = "run_summary.json"

_PACKAGES = (
    "unilab-gym",
    "torch",
    "mujoco",
    "mujoco-warp",
    "warp-lang",
    "gymnasium",
    "numpy",
    "rsl-rl-lib",
)
_TAIL = 0.2
"""Share of the iterations, counted from the end, that the tail throughput covers."""


class ExperimentTracker:
    """Writes `run_config.json` when made and `run_summary.json` at the end."""

    def __init__(
        self,
        run_dir: str | Path,
        owner_cfg: OwnerCfg,
        rank: int = 0,
        *,
        device: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Records the configuration and its contract.

        A folder that holds a record already is a run to resume: its contract must fit, and its
        facts are kept under `run.resumed_from`.

        Args:
            run_dir: The run folder; made if it is not there.
            owner_cfg: What is run.
            rank: The process's rank in a distributed run.
            device: The learner's or environment's device, for the record.
            facts: Further facts for `run`; plain JSON types.

        Raises:
            RunFolderError: If the folder cannot be written.
            ConfigError: If a value of the configuration has no strict JSON form.
            CrossBackendIncompatibleError: If the folder's record is damaged or another contract's.
        """
        self.run_dir = Path(run_dir)
        self.writes = rank == 0 and not owner_cfg.training.play_only
        self._iterations: list[tuple[int, float]] = []
        self._device = device
        if not self.writes:
            return
        record = {
            "run": {
                **run_facts(owner_cfg, device),
                **(facts or {}),
                **_resumed(self.run_dir / RUN_CONFIG, owner_cfg),
            },
            "config": plain(owner_cfg),
            "contract_snapshot": build_snapshot(owner_cfg),
        }
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"cannot make the run folder {self.run_dir}: {error}") from error
        write_json(self.run_dir / RUN_CONFIG, record)

    def iteration(self, env_steps: int, seconds: float) -> None:
        """Counts one training iteration.

        Args:
            env_steps: Environment steps it collected, all environments together.
            seconds: Wall-clock time it took, learning included.
        """
        self._iterations.append((env_steps, seconds))

    def record_file(self, path: str | Path) -> None:
        """Notes the digest of a file in the run record: one put in its place is then refused.

        Args:
            path: A file in the run folder.

        Raises:
            RunFolderError: If the file is not there, or the record cannot be written.
        """
        if self.writes:
            record_file(path)

    def summary(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What `finish` writes."""
        tail = self._iterations[-max(1, round(len(self._iterations) * _TAIL)) :]
        steps, seconds = _totals(self._iterations)
        tail_steps, tail_seconds = _totals(tail)
        return {
            "tail_env_steps_per_sec": tail_steps / tail_seconds if tail_seconds > 0 else None,
            "env_steps_per_sec": steps / seconds if seconds > 0 else None,
            "totals": {
                "env_steps": steps,
                "seconds": seconds,
                "iterations": len(self._iterations),
            },
            "metrics": {name: _metric(value) for name, value in metrics.items()},
            "hardware": hardware(self._device),
            "versions": versions(),
        }

    def finish(self, metrics: Mapping[str, Any]) -> Path | None:
        """Writes `run_summary.json`.

        Args:
            metrics: Final metrics: plain JSON types, or scalars with `.item()`. NaN becomes null:
                a diverged run keeps its summary.

        Returns:
            The file; None where this process writes nothing.

        Raises:
            ConfigError: If a metric has no plain form, with its path.
            RunFolderError: If the folder cannot be written.
        """
        if not self.writes:
            return None
        path = self.run_dir / RUN_SUMMARY
        write_json(path, self.summary(metrics))
        return path


def record_file(path: str | Path) -> None:
    """Notes the digest of a file in the run record beside it (`run.files`).

    Raises:
        RunFolderError: If the file is not there, or the record cannot be written.
        CrossBackendIncompatibleError: If the record is damaged.
    """
    file = Path(path)
    record = file.parent / RUN_CONFIG
    if not file.is_file():
        raise RunFolderError(f"there is no file {file} to record")
    data = read_json(record)
    files = {**recorded_files(data, record), file.name: file_digest(file)}
    run: Any = data.get("run")
    write_json(record, {**data, "run": {**(run if isinstance(run, dict) else {}), "files": files}})


def _metric(value: Any) -> Any:
    number = value.item() if hasattr(value, "item") else value
    return None if isinstance(number, float) and math.isnan(number) else number


def _totals(iterations: list[tuple[int, float]]) -> tuple[int, float]:
    return sum(item[0] for item in iterations), sum(item[1] for item in iterations)


def _resumed(path: Path, owner_cfg: OwnerCfg) -> dict[str, Any]:
    """The facts of the run that this one goes on with."""
    if not path.exists():
        return {}
    resolve_sim2sim_config(path, owner_cfg, strict=owner_cfg.training.sim2sim_strict)
    run: Any = read_json(path).get("run")
    files: Any = cast("dict[str, Any]", run).get("files") if isinstance(run, dict) else None
    return {"resumed_from": run, **({"files": files} if files else {})}


# --- folders --------------------------------------------------------------------------------------


def new_run_dir(root: str | Path, task: str, seed: int) -> Path:
    """Makes `root/<task>/<date>_<seed>/`; an existing folder is never used again.

    Args:
        root: Folder of all runs.
        task: The registered id; characters unfit for a folder become "_".
        seed: The run's seed.

    Raises:
        RunFolderError: If the folder cannot be made.
    """
    date = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    parent = Path(root) / task_folder(task)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            path = parent / (f"{date}_{seed}" + (f"-{number}" if number > 1 else ""))
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise RunFolderError(f"cannot make a run folder in {parent}: {error}") from error
    raise RunFolderError(f"{parent} holds a thousand runs of {date}")


@contextlib.contextmanager
def unless_it_fails(folder: Path | None) -> Generator[None]:
    """Removes a new run folder again where what runs inside fails before anything was trained.

    Args:
        folder: What `new_run_dir` made; it stays if it holds more than a run record. None does
            nothing.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if folder is not None and {path.name for path in folder.iterdir()} <= {RUN_CONFIG}:
                (folder / RUN_CONFIG).unlink(missing_ok=True)
                folder.rmdir()
                folder.parent.rmdir()  # an OSError where there are other runs
        raise


def task_folder(task: str) -> str:
    """A task id as a folder's name: `UniLab_Go2JoystickFlat-v0`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", task).strip(".") or "task"


def find_run(run: str | Path, root: str | Path = "runs", task: str | None = None) -> Path:
    """The folder of a run.

    Args:
        run: "latest", a run folder, a file inside one, or a folder's path below `root`.
        root: Folder of all runs.
        task: Only runs of this task (for "latest").

    Returns:
        A folder with a `run_config.json`.

    Raises:
        RunFolderError: If there is none; says where it looked and what is there.
    """
    if str(run) == "latest":
        pattern = f"{task_folder(task) if task else '*'}/*/{RUN_CONFIG}"
        records = sorted(
            Path(root).glob(pattern), key=lambda path: (path.parent.name[:19], path.stat().st_mtime)
        )
        if not records:
            wanted = f" of {task}" if task else ""
            raise RunFolderError(f"no run{wanted} in {root}: no {pattern}")
        return records[-1].parent
    for path in (Path(run).expanduser(), Path(root) / run):
        if path.exists():
            try:
                record = run_config_path(path)
            except CrossBackendIncompatibleError as error:
                raise RunFolderError(str(error)) from error
            if record.exists():
                return record.parent
            raise RunFolderError(f"{path} is no run folder: it has no {RUN_CONFIG}")
    names = [
        path.parent.relative_to(root).as_posix() for path in Path(root).glob(f"*/*/{RUN_CONFIG}")
    ]
    raise RunFolderError(
        f"no run {str(run)!r}; in {root}: {', '.join(sorted(names)[-8:]) or 'none'}"
    )


def run_record(folder: str | Path) -> dict[str, Any]:
    """What a run was: its task and its training settings, checked.

    Returns:
        `{"task": id, "training": {...}, "task_kwargs": {...}}` from the folder's
        `run_config.json`; the last is empty where the record is older than it.

    Raises:
        CrossBackendIncompatibleError: If the record is damaged or lacks them.
    """
    path = run_config_path(folder)
    record = read_json(path)
    facts, config = record.get("run"), record.get("config")
    task = cast("dict[str, Any]", facts).get("task") if isinstance(facts, dict) else None
    training = cast("dict[str, Any]", config).get("training") if isinstance(config, dict) else None
    if not isinstance(task, str):
        refuse("bad_type", f"{path}: run.task must name the task, got {task!r}")
    if not isinstance(training, dict):
        refuse("bad_type", f"{path}: config.training must hold the settings, got {training!r}")
    own = cast("dict[str, Any]", config).get("task_kwargs", {})
    if not isinstance(own, dict):
        refuse("bad_type", f"{path}: config.task_kwargs must hold arguments, got {own!r}")
    return {
        "task": task,
        "training": cast("dict[str, Any]", training),
        "task_kwargs": cast("dict[str, Any]", own),
    }


# --- facts ----------------------------------------------------------------------------------------


def run_facts(owner_cfg: OwnerCfg, device: str | None = None) -> dict[str, Any]:
    """Task, backend, seed, device, time, versions, hardware and the package's git state."""
    return {
        "task": owner_cfg.task,
        "backend": owner_cfg.training.sim_backend,
        "seeds": {"training": owner_cfg.training.seed},
        "device": device,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "hardware": hardware(device),
        "git": git_state(),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that decide a run; None where not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def hardware(device: str | None = None) -> dict[str, Any]:
    """Machine, processors and, where the device is one, the GPU's name."""
    gpu = None
    torch = sys.modules.get("torch")
    if device is not None and device.startswith("cuda") and torch is not None:
        gpu = torch.cuda.get_device_name(device)
    return {
        "platform": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "gpu": gpu,
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.processor()


def git_state() -> dict[str, Any] | None:
    """Commit of the package's checkout and whether it has changes; None outside a checkout."""
    folder = Path(__file__).resolve().parent.parent
    try:
        commit, status = (
            subprocess.run(
                ["git", "-C", str(folder), *command],
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            ).stdout.strip()
            for command in (
                ["log", "-1", "--format=%H", "--", "."],
                ["status", "--porcelain", "--", "."],
            )
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(status)} if commit else None

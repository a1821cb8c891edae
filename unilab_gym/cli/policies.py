"""Where a policy comes from, the guard before anything is built, and the policy as a function.

source = find_policy("latest")            # or None: the one that ships with the package
target = guarded(source, "mjwarp")        # refuses before an environment exists
env = make(target.env, 64, backend=target.training.sim_backend, play=True)
policy = load(source, target, env)        # obs [N, D] -> raw actions [N, A]
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unilab_gym.adapters.settings import GO2
from unilab_gym.assets import asset_root
from unilab_gym.backends import resolve_backend
from unilab_gym.config import OwnerCfg
from unilab_gym.contract import find_run, replay_owner, resolve_sim2sim_config, run_record
from unilab_gym.contract.snapshot import RUN_CONFIG, load_source, run_config_path
from unilab_gym.errors import ConfigError, CrossBackendWarning, RunFolderError
from unilab_gym.evaluation import Policy

ONNX = "policy.onnx"


@dataclass(frozen=True)
class PolicySource:
    """A policy's file."""

    path: Path
    kind: Literal["onnx", "checkpoint"]
    task: str
    home: str
    """Backend it was trained on; "" where no record says so."""
    shipped: bool = False
    """Whether it is part of the package, whose folder nothing is written to."""
    task_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The task's own arguments that it was trained with."""

    @property
    def folder(self) -> Path:
        """Its run folder."""
        return self.path.parent


def find_policy(
    run: str | None, root: str | Path = "runs", task: str | None = None
) -> PolicySource:
    """The policy's file.

    Args:
        run: A run folder, an ONNX file, a checkpoint, "latest", or None for the policy that ships
            with the package.
        root: Folder of all runs.
        task: Whose shipped policy (None takes Go2's); or for "latest", only runs of that task.

    Raises:
        RunFolderError: If there is none.
        CrossBackendIncompatibleError: If its record is damaged.
    """
    if run is None:
        return _shipped(task or GO2)
    file = Path(run).expanduser()
    if file.suffix.lower() == ".onnx" and file.is_file():
        return _onnx(file)
    folder = find_run(run, root, task)
    if file.suffix == ".pt":
        path, kind = (file if file.is_file() else Path(root) / run), "checkpoint"
    elif (folder / ONNX).is_file():
        path, kind = folder / ONNX, "onnx"
    else:
        raise RunFolderError(
            f"{folder} holds no {ONNX}: training writes it at its end; unilab-gym export --run "
            f"{folder} makes one from the newest checkpoint"
        )
    return _recorded(path, kind)


def _recorded(
    path: Path, kind: Literal["onnx", "checkpoint"], shipped: bool = False
) -> PolicySource:
    record = run_record(path if kind == "checkpoint" else path.parent)
    home = str(record["training"].get("sim_backend", ""))
    own = record["task_kwargs"]
    return PolicySource(path, kind, record["task"], home, shipped, own)


def _onnx(path: Path) -> PolicySource:
    """An ONNX file: its task stands in the run record beside it, or in the file itself."""
    if (path.parent / RUN_CONFIG).is_file():
        return _recorded(path, "onnx")
    contract = load_source(path).resolved or {}
    return PolicySource(path, "onnx", str(contract["task"]), "")


def _shipped(task: str) -> PolicySource:
    task = task.removeprefix("unilab_gym:")
    folders = sorted((asset_root() / "policies").glob(f"*/{RUN_CONFIG}"))
    found = {run_record(path)["task"]: path.parent for path in folders}
    if task not in found:
        raise RunFolderError(
            f"no policy for {task} ships with the package (there is one for {', '.join(found)}); "
            "train one and give --run latest, or use --agent zero"
        )
    return _recorded(found[task] / ONNX, "onnx", shipped=True)


def guarded(
    source: PolicySource, backend: str = "auto", device: str | None = None, *, strict: bool = True
) -> OwnerCfg:
    """The configuration to replay under, after the guard has passed it.

    The run record and, for an ONNX file, the file itself are compared; both before an environment
    exists.

    Args:
        source: The policy.
        backend: "auto", "mujoco" or "mjwarp".
        device: What `auto` goes by.
        strict: Refuse deny-tier differences; False only warns.

    Raises:
        CrossBackendIncompatibleError: If the policy would mean something else.
        ConfigError: If the task or the backend is unknown.
    """
    name, _ = resolve_backend(backend, device)
    target, notice = replay_owner(source.task, name, strict=strict, task_kwargs=source.task_kwargs)
    if notice:
        warnings.warn(notice, CrossBackendWarning, stacklevel=2)
    if source.kind == "checkpoint" or (source.folder / RUN_CONFIG).is_file():
        resolve_sim2sim_config(run_config_path(source.path), target, strict=strict)
    if source.kind == "onnx":
        resolve_sim2sim_config(source.path, target, strict=strict)
    return target


def load(source: PolicySource, target: OwnerCfg, env: Any) -> Policy:
    """The policy as a function of observations.

    Args:
        source: The policy.
        target: What `guarded` gave.
        env: An environment of it; a checkpoint's network takes its sizes from there.

    Raises:
        CrossBackendIncompatibleError: If a file is damaged or its weights do not fit.
        RunFolderError: If a checkpoint would have to be executed to be loaded.
        ImportError: If a checkpoint needs rsl_rl, and it is not installed.
    """
    if source.kind == "onnx":
        from unilab_gym.export.onnx import load_policy

        return load_policy(source.path)
    try:
        from unilab_gym.adapters.rsl_rl_train import restored_actor
    except ImportError as error:
        raise ImportError(
            f'replaying a checkpoint needs rsl_rl ({error}): pip install "unilab_gym[examples]"; '
            "an ONNX file needs nothing"
        ) from error
    env.reset(seed=0)
    actor = restored_actor(source.path, target, env).to(env.device)
    return CheckpointPolicy(actor, target.algo.obs_groups["actor"])


class CheckpointPolicy:
    """A torch actor as a policy.

    Attributes:
        obs_groups: Observation groups that its input is made of, in order.
    """

    def __init__(self, actor: nn.Module, obs_groups: tuple[str, ...]) -> None:
        """Keeps the module."""
        self.obs_groups = obs_groups
        self.actor = actor

    def __call__(self, obs: Tensor) -> Tensor:
        """Mean actions `[N, A]` of observations `[N, D]`."""
        with torch.no_grad():
            return self.actor(obs)


class Agent:
    """Zero or uniformly random actions inside the action box, for looking at a task.

    Args:
        kind: "zero" or "random".
        env: The environment.
        seed: Of its own random stream.
    """

    obs_groups: tuple[str, ...] = ("policy",)

    def __init__(self, kind: str, env: Any, seed: int) -> None:
        """Reads the action box; where it is open, random actions lie in [-1, 1]."""
        if kind not in ("zero", "random"):
            raise ConfigError(f"agent must be zero or random, got {kind!r}")
        high = torch.as_tensor(env.single_action_space.high)
        self._box = torch.where(torch.isfinite(high), high, 1.0)
        self._random = kind == "random"
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, obs: Tensor) -> Tensor:
        """Actions `[N, A]` on the observations' device."""
        shape = (obs.shape[0], len(self._box))
        if not self._random:
            return torch.zeros(shape, device=obs.device)
        draw = torch.rand(shape, generator=self._generator) * 2.0 - 1.0
        return (draw * self._box).to(obs.device)

"""Ids: registered by string entry points, so that importing the package loads no engine."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import gymnasium

from unilab_gym.errors import ConfigError, near

if TYPE_CHECKING:
    from unilab_gym.config import OwnerCfg


@dataclass(frozen=True)
class Outcome:
    """What a trained policy must reach in `unilab_gym.evaluate`; names are the report's figures."""

    at_most: Mapping[str, float] = field(default_factory=dict[str, float])
    at_least: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Task:
    """A registered task: where its configuration comes from."""

    id: str
    backends: tuple[str, ...]
    owner: Callable[[str], OwnerCfg]
    """Returns the configuration for a backend's name."""
    summary: str = ""
    outcome: Outcome = field(default_factory=Outcome)
    """The bar for a trained policy."""


_MODULES = {
    "UniLab/Go2JoystickFlat-v0": "unilab_gym.tasks.go2_joystick_flat",
    "UniLab/G1WalkFlat-v0": "unilab_gym.tasks.g1_walk_flat",
}


def task_ids() -> tuple[str, ...]:
    """Every registered id."""
    return tuple(_MODULES)


def load_task(task_id: str) -> Task:
    """The task of an id; imports its module now.

    Raises:
        ConfigError: If the id is unknown.
    """
    name = task_id.removeprefix("unilab_gym:")
    if name not in _MODULES:
        raise ConfigError(f"task {near(task_id, _MODULES)}")
    return cast("Task", importlib.import_module(_MODULES[name]).TASK)


def owner_config(task_id: str, backend: str) -> OwnerCfg:
    """The configuration of a task for a backend.

    Raises:
        ConfigError: If the id is unknown, or the task does not run on that backend.
    """
    task = load_task(task_id)
    if backend not in task.backends:
        raise ConfigError(f"task {task.id!r} has no backend {near(backend, task.backends)}")
    return task.owner(backend)


def register() -> None:
    """Registers every id with Gymnasium; a second call changes nothing."""
    for task_id in _MODULES:
        if task_id in gymnasium.registry:
            continue
        gymnasium.register(
            id=task_id,
            vector_entry_point="unilab_gym.vector_env:make_vector_env",
            kwargs={"task": task_id},
        )

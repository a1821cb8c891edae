"""Which configuration a replay runs under: the task's for that backend, or a sibling's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from unilab_gym.config import OwnerCfg
from unilab_gym.errors import ConfigError, near
from unilab_gym.registration import load_task, owner_config

KNOWN_BACKENDS = ("mujoco", "mjwarp")
"""Backends that the package ships."""


def replay_owner(
    task_id: str,
    backend: str,
    *,
    strict: bool = True,
    task_kwargs: Mapping[str, Any] | None = None,
) -> tuple[OwnerCfg, str]:
    """The owner configuration to replay a policy of a task on a backend.

    A task without an owner for that backend lends a sibling's, with `training.sim_backend`
    overridden. Training never does that: `unilab_gym.registration.owner_config` refuses.

    Args:
        task_id: The registered id.
        backend: The backend to replay on.
        strict: For `training.sim2sim_strict`.
        task_kwargs: The task's own arguments, as the run's record has them.

    Returns:
        The configuration with `training.play_only`, and a notice to show where it is a sibling's
        (else "").

    Raises:
        ConfigError: If the id or the backend is unknown, or the task has no owner at all.
    """
    task = load_task(task_id)
    notice, source = "", backend
    if backend not in task.backends:
        if backend not in KNOWN_BACKENDS or not task.backends:
            available = task.backends
            raise ConfigError(f"task {task.id!r} has no backend {near(backend, available)}")
        source = task.backends[0]
        notice = (
            f"{task.id} has no configuration for {backend}: replaying with that of {source} and "
            f"training.sim_backend={backend}"
        )
    owner = owner_config(task.id, source, **(task_kwargs or {}))
    training = dataclasses.replace(
        owner.training, play_only=True, sim_backend=backend, sim2sim_strict=strict
    )
    return dataclasses.replace(owner, training=training), notice

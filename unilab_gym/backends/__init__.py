"""Physics engines behind one contract; see `unilab_gym.backends.base`."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any, cast

import torch

from unilab_gym.backends.base import Backend, BackendSpec
from unilab_gym.config import to_dict
from unilab_gym.errors import BackendUnavailableError, ConfigError, near

__all__ = ["BACKENDS", "ENGINE_SETTINGS", "create_backend", "refuse_idle", "resolve_backend"]

BACKENDS = ("mujoco", "mjwarp")
"""Names of the shipped backends."""

ENGINE_SETTINGS = {"njmax": "mjwarp", "nconmax": "mjwarp", "num_threads": "mujoco"}
"""Settings of `SimCfg` that one backend alone reads. A task's config serves both and may hold
them all; who overrides one by hand for the other backend is told."""


def refuse_idle(overrides: Mapping[str, Any], backend: str) -> None:
    """Refuses overrides that the backend would not read.

    Args:
        overrides: `{dotted path: value}` on an `EnvCfg`; None takes a setting back.
        backend: The backend's name.

    Raises:
        ConfigError: Names the setting and the backend that reads it.
    """
    for path, value in overrides.items():
        given = to_dict(value) if path == "sim" else {path.removeprefix("sim."): value}
        for name, reader in ENGINE_SETTINGS.items():
            if reader != backend and isinstance(given, dict) and given.get(name) is not None:
                raise ConfigError(
                    f"override 'sim.{name}' has no effect on backend {backend!r}: only {reader!r} "
                    "reads it"
                )


def resolve_backend(backend: str, device: str | torch.device | None) -> tuple[str, torch.device]:
    """Which engine and device an environment gets.

    `auto` is mjwarp where the device is None or cuda and a GPU is there, else mujoco. The device
    is the engine's: mujoco computes on the cpu, mjwarp on cuda (default with a GPU) or the cpu.

    Args:
        backend: "auto", "mujoco" or "mjwarp".
        device: A torch device, its name, or None.

    Returns:
        The backend's name and a device with its index (`cuda:0`, `cpu`).

    Raises:
        ConfigError: If the backend is unknown, the device is not valid or not visible, or mujoco
            is asked to run on cuda.
        BackendUnavailableError: If mjwarp is asked for and not installed.
    """
    if backend not in ("auto", *BACKENDS):
        raise ConfigError(f"backend {near(str(backend), ('auto', *BACKENDS))}")
    try:
        asked = None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device {device!r} is not a torch device: {error}") from None
    if asked is not None and asked.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {str(asked)!r}: the engines run on 'cpu' or 'cuda'")
    if backend == "auto":
        wants_gpu = asked is None or asked.type == "cuda"
        if asked is not None and wants_gpu:
            _visible(asked)  # before the choice: mujoco is not what was asked for
        backend = "mjwarp" if wants_gpu and torch.cuda.is_available() else "mujoco"
        if asked is None and backend == "mujoco":
            asked = torch.device("cpu")
    if backend == "mujoco":
        if asked is not None and asked.type == "cuda":
            raise ConfigError(
                f"backend 'mujoco' computes on the cpu, device {str(asked)!r} was given; "
                "use backend='mjwarp' for physics on a GPU"
            )
        return backend, torch.device("cpu")
    _require_mjwarp()
    if asked is None:
        asked = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return backend, _visible(asked)


def _require_mjwarp() -> None:
    missing = [name for name in ("mujoco_warp", "warp") if importlib.util.find_spec(name) is None]
    if missing:
        raise BackendUnavailableError(
            f"backend 'mjwarp' needs {' and '.join(missing)}, not installed here: "
            "pip install mujoco-warp warp-lang; backend 'mujoco' works without"
        )


def _visible(device: torch.device) -> torch.device:
    if device.type != "cuda":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = cast("int | None", device.index)  # None for plain "cuda", whatever the stubs say
    if index is None and count:
        index = torch.cuda.current_device()
    if index is None or index >= count:
        visible = ", ".join(f"cuda:{i}" for i in range(count)) or "no CUDA device"
        raise ConfigError(f"device {str(device)!r} is not visible; visible: {visible}")
    return torch.device("cuda", index)


def create_backend(name: str, spec: BackendSpec) -> Backend:
    """Builds a backend by name; imports its engine now.

    Raises:
        ConfigError: If the name is unknown.
        BackendUnavailableError: If the engine is not installed.
    """
    if spec.cpu_ids is not None:
        from unilab_gym.backends.placement import place

        place(spec.cpu_ids)
    if name == "mujoco":
        from unilab_gym.backends.mujoco import MujocoBackend

        return MujocoBackend(spec)
    if name == "mjwarp":
        _require_mjwarp()
        from unilab_gym.backends.mjwarp import MjWarpBackend

        return MjWarpBackend(spec)
    raise ConfigError(f"backend {near(name, BACKENDS)}")

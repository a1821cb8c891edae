# pyright: basic
"""The environment beside the learner's checkpoint: counters, curricula, samplers, streams.

    keep_env(checkpoint, env)              # env_state_80.pt beside model_80.pt
    found = restored_env(checkpoint, env)  # in another process, after env.reset()

Only the newest file of a folder is kept: it grows with the number of environments. It holds tensors
and text; nothing is unpickled that could run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unilab_gym.errors import ConfigError
from unilab_gym.export.onnx import replacing
from unilab_gym.vector_env import UnilabVectorEnv

SCHEMA = "unilab_gym.env_state/1"
_STEM = "env_state"


@dataclass(frozen=True)
class Restored:
    """What became of the environments."""

    episodes: bool
    """Whether running episodes go on; else new ones start."""
    text: str
    """One line that says so."""


def env_file(checkpoint: Path) -> Path:
    """Where the environment of `model_<iteration>.pt` lies."""
    return checkpoint.with_name(f"{_STEM}_{checkpoint.stem.rpartition('_')[2]}.pt")


def keep_env(checkpoint: Path, env: UnilabVectorEnv, *, between_steps: bool = True) -> Path:
    """Writes the whole state of an environment beside a checkpoint, in the place of earlier ones.

    Args:
        checkpoint: `model_<iteration>.pt`.
        env: The environment.
        between_steps: False says that a step was interrupted, so that its episodes are torn.

    Returns:
        The file.
    """
    path = env_file(checkpoint)
    state = {name: tensor.cpu() for name, tensor in env.state_dict().items()}
    with replacing(path) as temporary:
        torch.save({"schema": SCHEMA, "between_steps": between_steps, "state": state}, temporary)
    for other in path.parent.glob(f"{_STEM}_*.pt"):
        if other != path:
            other.unlink(missing_ok=True)
    return path


def restored_env(checkpoint: Path, env: UnilabVectorEnv) -> Restored:
    """Puts an environment back to where it was when the checkpoint was written.

    Args:
        checkpoint: `model_<iteration>.pt`.
        env: An environment of the same configuration, already reset. Where there is no file, or
            one that does not fit, it is left as it is.
    """
    path = env_file(checkpoint)
    fresh = "environments start anew, counters and curricula at their beginning: "
    if not path.is_file():
        return Restored(False, f"{fresh}no {path.name} beside {checkpoint.name}")
    try:
        state, between_steps = _read(path)
        env.load_state_dict(state)
    except ConfigError as error:
        return Restored(False, f"{fresh}{path.name} does not fit: {error}")
    if not between_steps:
        env.reset()
        return Restored(False, "counters and curricula go on; episodes were cut and start anew")
    return Restored(True, "environments go on where they were")


def _read(path: Path) -> tuple[dict[str, Any], bool]:
    """State and whether it was taken between two steps.

    Raises:
        ConfigError: If it is no such file.
    """
    try:
        data: Any = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # unpickling fails in every way there is
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(f"only tensors, numbers and text are loaded: {first}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ConfigError(f"it is not a file of schema {SCHEMA}")
    state = data.get("state")
    if not isinstance(state, dict) or not all(map(torch.is_tensor, state.values())):
        raise ConfigError("it holds no state")
    return {str(name): value for name, value in state.items()}, bool(data.get("between_steps"))

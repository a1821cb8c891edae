"""Gymnasium-compatible vectorized environments for robot learning.

Importing this module registers the ids and loads neither torch nor an engine::

    import gymnasium as gym, unilab_gym
    env = gym.make_vec("UniLab/Go2JoystickFlat-v0", num_envs=4096)
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from unilab_gym.registration import register, task_ids

if TYPE_CHECKING:
    from unilab_gym.evaluate import EvalReport, evaluate
    from unilab_gym.vector_env import UnilabVectorEnv, make

__version__ = "0.1.0"

__all__ = ["EvalReport", "UnilabVectorEnv", "__version__", "evaluate", "make", "task_ids"]

_LAZY = {
    "EvalReport": "unilab_gym.evaluate",
    "UnilabVectorEnv": "unilab_gym.vector_env",
    "evaluate": "unilab_gym.evaluate",
    "make": "unilab_gym.vector_env",
}

register()


class _Package(types.ModuleType):
    """Keeps `unilab_gym.evaluate` the function, although a submodule has the same name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "evaluate" and isinstance(value, types.ModuleType):
            value = value.evaluate  # the import system has just loaded the submodule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

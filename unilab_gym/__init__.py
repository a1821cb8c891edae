"""Gymnasium-compatible vectorized environments for robot learning.

Importing this module registers the ids and loads neither torch nor an engine::

    import gymnasium as gym, unilab_gym
    env = gym.make_vec("UniLab/Go2JoystickFlat-v0", num_envs=4096)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unilab_gym.registration import list_tasks, register, task_ids

if TYPE_CHECKING:
    from unilab_gym.evaluation import EvalReport, evaluate
    from unilab_gym.factory import make
    from unilab_gym.single_env import UnilabSingleEnv
    from unilab_gym.vector_env import UnilabVectorEnv

__version__ = "0.1.0"

__all__ = [
    "EvalReport",
    "UnilabSingleEnv",
    "UnilabVectorEnv",
    "__version__",
    "evaluate",
    "list_tasks",
    "make",
    "task_ids",
]

_LAZY = {
    "EvalReport": "unilab_gym.evaluation",
    "UnilabSingleEnv": "unilab_gym.single_env",
    "UnilabVectorEnv": "unilab_gym.vector_env",
    "evaluate": "unilab_gym.evaluation",
    "make": "unilab_gym.factory",
}

register()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

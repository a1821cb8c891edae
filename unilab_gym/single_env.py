"""`gymnasium.make(id)`: one environment with NumPy in and out, thin over the vector environment.

For debugging and for libraries that vectorize by themselves. Environment i of
`SyncVectorEnv([make] * N)` equals environment i of the vector environment bit for bit; N of them
cost about N times as much as one vector environment of N. In worker processes use the start
method "spawn": a child forked from a process that has used torch can wait for its locks for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import gymnasium
import numpy as np

from unilab_gym.config import EnvCfg
from unilab_gym.errors import ConfigError
from unilab_gym.factory import make, make_vector_env
from unilab_gym.vector_arguments import RENDER_MODES

_SET_HERE = ("num_envs", "output", "autoreset_mode", "render_env_ids", "copy", "rank", "validate")
"""Keywords of the vector environment that have one sensible value here."""


class UnilabSingleEnv(gymnasium.Env[Any, Any]):
    """One environment on the CPU.

    Args:
        task: A registered id (the entry point's argument) or an `EnvCfg`.
        backend: "mujoco" or "mjwarp", on the CPU.
        overrides: `{dotted path: value}` on the config.
        **surface: Keyword arguments of `unilab_gym.make` and `UnilabVectorEnv`, apart from
            `num_envs`, `output`, `autoreset_mode`, `render_env_ids`, `copy`, `rank`, `validate`.

    Attributes:
        vector_env: The vector environment of one row that does the work.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 50}  # noqa: RUF012

    def __init__(
        self,
        task: str | EnvCfg,
        *,
        backend: str = "mujoco",
        overrides: Mapping[str, Any] | None = None,
        **surface: Any,
    ) -> None:
        """Builds the vector environment of one row, with one physics thread.

        Raises:
            TypeError: On a keyword that is unknown or belongs to `make_vec`.
            ConfigError: As `UnilabVectorEnv`.
        """
        for name in _SET_HERE:
            if name in surface:
                raise TypeError(f"{name!r} is an argument of make_vec, not of a single environment")
        kwargs: dict[str, Any] = {
            "backend": backend,
            "device": "cpu",
            "overrides": {"sim.num_threads": 1, **(overrides or {})},
            "output": "numpy",
            "autoreset_mode": "Disabled",
            "rank": 0,
            **surface,
        }
        build = make if isinstance(task, EnvCfg) else make_vector_env
        self.vector_env = build(cast("Any", task), 1, **kwargs)
        self.observation_space = self.vector_env.single_observation_space
        self.action_space = self.vector_env.single_action_space
        self.render_mode = self.vector_env.render_mode
        rate = self.vector_env.metadata["render_fps"]
        self.metadata = {"render_modes": list(RENDER_MODES), "render_fps": rate}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; see `UnilabVectorEnv.reset`."""
        super().reset(seed=seed)
        obs, info = self.vector_env.reset(seed=seed, options=options)
        return _first(obs), _plain(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One control step.

        Args:
            action: `(A,)` numbers.

        Raises:
            ConfigError: If the action's shape or kind is wrong (a ValueError).
            ResetNeeded: Before the first reset, and after an episode has ended.
        """
        given = np.asarray(action)
        if given.shape != self.action_space.shape:
            raise ConfigError(
                f"action must have shape {self.action_space.shape}, got {given.shape}"
            )
        obs, reward, terminated, truncated, info = self.vector_env.step(given[None])
        ended = bool(terminated[0]), bool(truncated[0])
        return _first(obs), float(reward[0]), *ended, _plain(info)

    def render(self) -> Any:
        """A frame `(H, W, 3)` uint8; None without a render mode."""
        frames = self.vector_env.render()
        return None if frames is None else frames[0]

    def state(self) -> Any:
        """The privileged observation `[D]` of the last boundary."""
        return self.vector_env.state()[0]

    def close(self) -> None:
        """Frees renderer and engine; a second call does nothing."""
        self.vector_env.close()


def _first(obs: Any) -> Any:
    """Row 0 of an observation or of each group."""
    if isinstance(obs, dict):
        return {name: group[0] for name, group in cast("dict[str, Any]", obs).items()}
    return obs[0]


def _plain(info: dict[str, Any]) -> dict[str, Any]:
    """`{}`, or the log as numbers."""
    return {name: {key: float(v) for key, v in log.items()} for name, log in info.items()}


__all__ = ["UnilabSingleEnv"]

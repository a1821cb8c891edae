"""Settings of the learner and of the run; `unilab_gym.config` offers them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unilab_gym.errors import ConfigError, one_of
from unilab_gym.serialize import freeze


@dataclass(frozen=True, kw_only=True)
class NetworkCfg:
    """A multilayer perceptron."""

    hidden_dims: tuple[int, ...] = (256, 128, 64)
    activation: str = "elu"
    obs_normalization: bool = True
    """Whether a running mean and variance of the observations sits before the network."""


@dataclass(frozen=True, kw_only=True)
class AlgoCfg:
    """Settings of the learner, neutral to the library that reads them."""

    library: str = "rsl_rl"
    obs_groups: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"actor": ("policy",), "critic": ("policy",)}
    )
    """Which observation groups the actor and the critic get, in order."""
    actor: NetworkCfg = field(default_factory=NetworkCfg)
    critic: NetworkCfg = field(default_factory=NetworkCfg)
    hyper: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Hyperparameters under the library's own names."""

    def __post_init__(self) -> None:
        """Freezes the mappings."""
        object.__setattr__(self, "obs_groups", freeze(self.obs_groups))
        object.__setattr__(self, "hyper", freeze(self.hyper))


@dataclass(frozen=True, kw_only=True)
class TrainingCfg:
    """Settings of a run."""

    sim_backend: str = "mujoco"
    """mujoco or mjwarp; who builds the configuration of a registered task sets it."""
    play_only: bool = False
    """Whether nothing is trained under it: a replay."""
    play_steps: int = 500
    """Control steps of a recorded video."""
    num_envs: int = 512
    iterations: int = 240
    seed: int = 1
    sim2sim_strict: bool = True
    """Whether a replay is refused on deny-tier differences or only warned about."""

    def __post_init__(self) -> None:
        """Checks the counts.

        Raises:
            ConfigError: If one is not positive, or the backend is unknown.
        """
        one_of("sim_backend", self.sim_backend, ("mujoco", "mjwarp"))
        for name in ("play_steps", "num_envs", "iterations"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"training.{name} must be positive, got {getattr(self, name)!r}")

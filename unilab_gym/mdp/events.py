"""Events: the state of a reset. Randomization and disturbances are in `mdp.randomization`."""

from __future__ import annotations

import torch

from unilab_gym.backends.base import TensorResetRandomizationPayload
from unilab_gym.errors import ConfigError
from unilab_gym.mdp.distributions import Range, check_range
from unilab_gym.mdp.randomization import (
    ApplyBodyImpulse,
    ApplyBodyWrench,
    PushRoot,
    RandomizeBodyCom,
    RandomizeBodyInertia,
    RandomizeBodyMass,
    RandomizeEffortLimit,
    RandomizeEncoderBias,
    RandomizeFriction,
    RandomizeGains,
    RandomizeGravity,
    RandomizeJointArmature,
    RandomizeJointDamping,
    RandomizeJointFriction,
)
from unilab_gym.runtime.event_term import ResetEvent
from unilab_gym.runtime.term import BuildContext

__all__ = [
    "ApplyBodyImpulse",
    "ApplyBodyWrench",
    "PushRoot",
    "RandomizeBodyCom",
    "RandomizeBodyInertia",
    "RandomizeBodyMass",
    "RandomizeEffortLimit",
    "RandomizeEncoderBias",
    "RandomizeFriction",
    "RandomizeGains",
    "RandomizeGravity",
    "RandomizeJointArmature",
    "RandomizeJointDamping",
    "RandomizeJointFriction",
    "ResetRootUniform",
]


class ResetRootUniform(ResetEvent):
    """Default root pose moved by uniform draws: xy in m, yaw in rad, velocities in m/s, rad/s."""

    def __init__(
        self,
        ctx: BuildContext,
        *,
        xy: Range = (0.0, 0.0),
        yaw: Range = (0.0, 0.0),
        lin_vel: Range = (0.0, 0.0),
        ang_vel: Range = (0.0, 0.0),
    ) -> None:
        """Checks the ranges.

        Raises:
            ConfigError: If a range is not ordered or the robot has no floating base.
        """
        if not ctx.index.floating:
            raise ConfigError("ResetRootUniform needs a floating base")
        quat = tuple(ctx.index.default_qpos[3:7])
        if quat != (1.0, 0.0, 0.0, 0.0):
            raise ConfigError(f"the default orientation must be upright and level, got {quat}")
        x, y = ctx.index.default_qpos[:2]
        check_range("xy", xy)
        check_range("yaw", yaw)
        bounds = [(x + xy[0], x + xy[1]), (y + xy[0], y + xy[1]), (yaw[0] / 2, yaw[1] / 2)]
        bounds += [check_range("lin_vel", lin_vel)] * 3 + [check_range("ang_vel", ang_vel)] * 3
        low, high = zip(*bounds, strict=True)
        self._draw = ctx.uniform(9, "reset", low, high)

    def apply(self, payload: TensorResetRandomizationPayload) -> None:
        """Writes position, orientation and velocities of the root."""
        draw = self._draw()
        payload.qpos[:, :2].copy_(draw[:, :2])
        torch.cos(draw[:, 2], out=payload.qpos[:, 3])
        torch.sin(draw[:, 2], out=payload.qpos[:, 6])
        payload.qvel[:, :6].copy_(draw[:, 3:])

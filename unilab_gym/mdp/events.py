"""Events: the state of a reset. Randomization and disturbances are in `mdp.randomization`."""

from __future__ import annotations

import torch

from unilab_gym.backends.base import TensorResetRandomizationPayload
from unilab_gym.errors import ConfigError
from unilab_gym.mdp.distributions import Bounds, check_range
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
from unilab_gym.runtime.curriculum_term import Range, RangedDraw
from unilab_gym.runtime.event_term import ResetEvent
from unilab_gym.runtime.rows import Cut, copy_each
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
    """Default root pose moved by uniform draws: xy in m, yaw in rad, velocities in m/s, rad/s.

    A curriculum may move each of the four ranges; where none does, that costs nothing.
    """

    assigns = True

    def __init__(
        self,
        ctx: BuildContext,
        *,
        xy: Bounds = (0.0, 0.0),
        yaw: Bounds = (0.0, 0.0),
        lin_vel: Bounds = (0.0, 0.0),
        ang_vel: Bounds = (0.0, 0.0),
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
        ranges = [
            Range("xy", *check_range("xy", xy), 2, offset=(x, y)),
            Range("yaw", *check_range("yaw", yaw), scale=0.5),
            Range("lin_vel", *check_range("lin_vel", lin_vel), 3),
            Range("ang_vel", *check_range("ang_vel", ang_vel), 3),
        ]
        self._draw = RangedDraw(ctx, ranges, ("reset",))
        self._drawn = Cut(lambda draw: (draw[:, :2], draw[:, 2], draw[:, 3:]))
        self._qpos = Cut(lambda qpos: (qpos[:, :2], qpos[:, 3], qpos[:, 6]))
        self._qvel = Cut(lambda qvel: (qvel[:, :6],))

    def apply(self, payload: TensorResetRandomizationPayload) -> None:
        """Writes position, orientation and velocities of the root."""
        xy, half_yaw, velocities = self._drawn(self._draw("reset"))
        place, cos, sin = self._qpos(payload.qpos)
        copy_each((place, *self._qvel(payload.qvel)), (xy, velocities))
        torch.cos(half_yaw, out=cos)
        torch.sin(half_yaw, out=sin)

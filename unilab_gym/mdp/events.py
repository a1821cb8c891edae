"""Events: domain randomization at startup, the state of a reset, disturbances."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unilab_gym.backends.base import (
    RecomputeLevel,
    TensorIntervalPayload,
    TensorResetRandomizationPayload,
)
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.curriculum_term import Range, RangedDraw
from unilab_gym.runtime.event_term import IntervalEvent, ResetEvent, StartupEvent
from unilab_gym.runtime.term import BuildContext

_RANGE = tuple[float, float]


def _check(what: str, bounds: _RANGE) -> _RANGE:
    low, high = bounds
    if not low <= high:
        raise ConfigError(f"{what}: low {low} exceeds high {high}")
    return float(low), float(high)


def _one_body(ctx: BuildContext, pattern: str) -> int:
    names = ctx.index.match("body", pattern)
    if len(names) != 1:
        raise ConfigError(f"body {pattern!r} matches {len(names)}, one is needed: {names}")
    return ctx.index.bodies[names[0]]


class ResetRootUniform(ResetEvent):
    """Default root pose moved by uniform draws: xy in m, yaw in rad, velocities in m/s, rad/s."""

    assigns = True

    def __init__(
        self,
        ctx: BuildContext,
        *,
        xy: _RANGE = (0.0, 0.0),
        yaw: _RANGE = (0.0, 0.0),
        lin_vel: _RANGE = (0.0, 0.0),
        ang_vel: _RANGE = (0.0, 0.0),
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
        _check("xy", xy)
        _check("yaw", yaw)
        ranges = [
            Range("", x + xy[0], x + xy[1]),
            Range("", y + xy[0], y + xy[1]),
            Range("", yaw[0] / 2, yaw[1] / 2),
            Range("lin_vel", *_check("lin_vel", lin_vel), 3),
            Range("ang_vel", *_check("ang_vel", ang_vel), 3),
        ]
        self._draw = RangedDraw(ctx, ranges, ("reset",))

    def apply(self, payload: TensorResetRandomizationPayload) -> None:
        """Writes position, orientation and velocities of the root."""
        draw = self._draw("reset")
        payload.qpos[:, :2].copy_(draw[:, :2])
        torch.cos(draw[:, 2], out=payload.qpos[:, 3])
        torch.sin(draw[:, 2], out=payload.qpos[:, 6])
        payload.qvel[:, :6].copy_(draw[:, 3:])


class RandomizeFriction(StartupEvent):
    """Slide friction of geoms, one draw per environment for all of them. Unitless."""

    fields = ("geom_friction",)

    def __init__(self, ctx: BuildContext, *, geoms: tuple[str, ...], slide: _RANGE) -> None:
        """Resolves the geoms."""
        names = ctx.index.match("geom", geoms)
        self._ids = ctx.tensor([ctx.index.geoms[n].index for n in names], dtype=torch.int64)
        self._draw = ctx.uniform(1, "startup", *_check("slide", slide))

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Replaces the slide column."""
        fields["geom_friction"][:, self._ids, 0] = self._draw()


class RandomizeBodyMass(StartupEvent):
    """Adds mass (kg) to a body; its inertia scales with the mass."""

    fields = ("body_mass", "body_inertia")
    level = RecomputeLevel.ALL

    def __init__(self, ctx: BuildContext, *, body: str, add: _RANGE) -> None:
        """Resolves the body."""
        self._body = _one_body(ctx, body)
        self._draw = ctx.uniform(1, "startup", *_check("add", add))

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Adds to the nominal mass."""
        mass = fields["body_mass"][:, self._body]
        fresh = mass + self._draw()[:, 0]
        fields["body_inertia"][:, self._body] *= (fresh / mass).unsqueeze(1)
        fields["body_mass"][:, self._body] = fresh


class RandomizeBodyCom(StartupEvent):
    """Moves a body's centre of mass by uniform draws along each axis, m."""

    fields = ("body_ipos",)
    level = RecomputeLevel.ALL

    def __init__(self, ctx: BuildContext, *, body: str, add: _RANGE) -> None:
        """Resolves the body."""
        self._body = _one_body(ctx, body)
        self._draw = ctx.uniform(3, "startup", *_check("add", add))

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Adds to the nominal centre of mass."""
        fields["body_ipos"][:, self._body] += self._draw()


class RandomizeGains(StartupEvent):
    """Scales kp and kd of every position actuator, drawn for each actuator by itself."""

    fields = ("actuator_gainprm", "actuator_biasprm")

    def __init__(self, ctx: BuildContext, *, kp: _RANGE, kd: _RANGE) -> None:
        """Checks the ranges of the factors."""
        self._kp = ctx.uniform(ctx.index.nu, "startup", *_check("kp", kp), key="kp")
        self._kd = ctx.uniform(ctx.index.nu, "startup", *_check("kd", kd), key="kd")

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Scales the gain and both bias terms, so that the target stays the rest position."""
        kp, kd = self._kp(), self._kd()
        fields["actuator_gainprm"][:, :, 0] *= kp
        fields["actuator_biasprm"][:, :, 1] *= kp
        fields["actuator_biasprm"][:, :, 2] *= kd


class PushRoot(IntervalEvent):
    """Adds a velocity (m/s, world frame) to the root in x and y: a sudden shove."""

    dofs = (0, 1)

    def __init__(self, ctx: BuildContext, *, lin_vel_xy: _RANGE) -> None:
        """Checks the range.

        Raises:
            ConfigError: If the robot has no floating base.
        """
        if not ctx.index.floating:
            raise ConfigError("PushRoot needs a floating base")
        bounds = Range("lin_vel_xy", *_check("lin_vel_xy", lin_vel_xy), 2)
        self._draw = RangedDraw(ctx, [bounds], ("step",))

    def apply(self, payload: TensorIntervalPayload, due: Tensor) -> None:
        """Stages the shove where it is due."""
        assert payload.qvel_delta is not None
        torch.mul(self._draw("step"), due.unsqueeze(1), out=payload.qvel_delta[:, :2])

"""Disturbances by countdown: shoves, impulses and wrenches, staged for the next physics."""

from __future__ import annotations

import torch
from torch import Tensor

from unilab_gym.backends.base import TensorIntervalPayload
from unilab_gym.errors import ConfigError
from unilab_gym.mdp.distributions import Bounds, check_range, match_bodies
from unilab_gym.runtime.curriculum_term import Range, RangedDraw
from unilab_gym.runtime.event_term import IntervalEvent
from unilab_gym.runtime.rows import Cut
from unilab_gym.runtime.term import BuildContext


class PushRoot(IntervalEvent):
    """Adds a velocity to the root: a sudden shove.

    Linear in the world frame (m/s), angular in the body frame (rad/s); x and y always, the others
    where a range is given.
    """

    def __init__(
        self,
        ctx: BuildContext,
        *,
        lin_vel_xy: Bounds,
        lin_vel_z: Bounds | None = None,
        ang_vel: Bounds | None = None,
    ) -> None:
        """Checks the ranges.

        Raises:
            ConfigError: If the robot has no floating base.
        """
        if not ctx.index.floating:
            raise ConfigError("PushRoot needs a floating base")
        ranges = [Range("lin_vel_xy", *check_range("lin_vel_xy", lin_vel_xy), 2)]
        if lin_vel_z is not None or ang_vel is not None:
            ranges.append(Range("lin_vel_z", *check_range("lin_vel_z", lin_vel_z or (0.0, 0.0))))
        if ang_vel is not None:
            ranges.append(Range("ang_vel", *check_range("ang_vel", ang_vel), 3))
        self.dofs = tuple(range(sum(item.width for item in ranges)))
        self._target = Cut(lambda delta: (delta[:, : len(self.dofs)],))
        self._rows = Cut(lambda due: (due.unsqueeze(1),))
        self._draw = RangedDraw(ctx, ranges, ("step",))
        self._none = ctx.tensor(0.0)

    def apply(self, payload: TensorIntervalPayload, due: Tensor) -> None:
        """Stages the shove where it is due."""
        assert payload.qvel_delta is not None
        (target,), (due,) = self._target(payload.qvel_delta), self._rows(due)
        torch.where(due, self._draw("step"), self._none, out=target)


class ApplyBodyWrench(IntervalEvent):
    """A force (N) and a torque (N m) at a body's centre of mass, world frame, for a while.

    Each axis is drawn by itself when the event is due; the wrench is then held for `duration_s`.
    Between two wrenches nothing acts. A reset ends it.
    """

    parts = ("body_wrench",)

    def __init__(
        self,
        ctx: BuildContext,
        *,
        body: str,
        force: Bounds = (0.0, 0.0),
        torque: Bounds = (0.0, 0.0),
        duration_s: float,
    ) -> None:
        """Resolves the body.

        Raises:
            ConfigError: If the duration is shorter than a control step, or both ranges are 0.
        """
        if not duration_s >= ctx.control_dt * 0.999:
            raise ConfigError(f"duration_s must be {ctx.control_dt} s or more, got {duration_s}")
        bounds = [check_range("force", force)] * 3 + [check_range("torque", torque)] * 3
        if not any(value for pair in bounds for value in pair):
            raise ConfigError("force and torque are both 0: nothing would act")
        self.bodies = tuple(match_bodies(ctx, body))
        self._steps = float(round(duration_s / ctx.control_dt))
        low, high = zip(*bounds, strict=True)
        self._draw = ctx.uniform(6, "step", low, high)
        self._held = ctx.zeros(6, key="held")
        self._left = ctx.carriers.columns(1, "left")  # 0 in every new episode

    def apply(self, payload: TensorIntervalPayload, due: Tensor) -> None:
        """Stages the held wrench, or 0 where its time is over."""
        target = self.columns(payload)
        column = due.unsqueeze(1)
        self._left.masked_fill_(column, self._steps)
        torch.where(column, self._draw(), self._held, out=self._held)
        torch.mul(self._held, self._left > 0, out=target)
        self._left.sub_(1.0)


class ApplyBodyImpulse(ApplyBodyWrench):
    """An impulse (N s) at a body's centre of mass, world frame: a force for one control step."""

    def __init__(self, ctx: BuildContext, *, body: str, impulse: Bounds) -> None:
        """Turns the impulse into a force over one control step."""
        low, high = check_range("impulse", impulse)
        dt = ctx.control_dt
        super().__init__(ctx, body=body, force=(low / dt, high / dt), duration_s=dt)

"""Command generators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError
from unilab_gym.model_index import ModelIndex
from unilab_gym.runtime.command_term import CommandTerm, StepTimer
from unilab_gym.runtime.curriculum_term import Range, RangedDraw
from unilab_gym.runtime.reads import Command, EpisodeStep, RootQuat
from unilab_gym.runtime.rows import Cut
from unilab_gym.runtime.term import BuildContext, TermFrame, term

_RANGE = tuple[float, float]


def _velocity_reads(params: Mapping[str, Any]) -> tuple[RootQuat, ...]:
    return (RootQuat(),) if params["heading"] is not None else ()


@term(reads=_velocity_reads, width=3)
class UniformVelocityCommand(CommandTerm):
    """Planar velocity commands (v_x, v_y, yaw rate) in the base frame, drawn uniformly.

    `value` is `[N, 3]` in m/s, m/s, rad/s. A share of the draws is a standing command of zeros.

    With `heading`, a share of the other draws turns to a heading drawn from that range (world
    frame, rad): their yaw rate follows from the heading error d at every boundary,

        yaw rate = gain x 2 tan(d / 2), within `ang_vel_yaw`
                 = gain x 2 sin d / (1 + cos d)

    which is d to third order (1 % off at 0.34 rad) and keeps d's sign up to half a turn; sin d
    and cos d are the cross and dot product of the base's x axis, seen from above, with the
    target. So no atan2 runs over rows, whose last bit would depend on their number.

    A curriculum may move the three ranges and `standing_fraction`.
    """

    component_names = ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")

    def __init__(
        self,
        ctx: BuildContext,
        *,
        lin_vel_x: _RANGE,
        lin_vel_y: _RANGE,
        ang_vel_yaw: _RANGE,
        resampling_s: _RANGE,
        standing_fraction: float = 0.0,
        heading: _RANGE | None = None,
        heading_fraction: float = 1.0,
        heading_gain: float = 0.5,
    ) -> None:
        """Allocates the command.

        Args:
            ctx: The build context.
            lin_vel_x: Range of the forward velocity, m/s.
            lin_vel_y: Range of the velocity to the left, m/s.
            ang_vel_yaw: Range of the yaw rate, rad/s; with `heading` also its bounds.
            resampling_s: Range of the time between two draws, s.
            standing_fraction: Share of the draws that is zero.
            heading: Range of target headings, rad; None switches the heading mode off.
            heading_fraction: Share of the draws that are not standing which turn to a heading.
            heading_gain: Yaw rate per rad of heading error, 1/s.

        Raises:
            ConfigError: If a range is not ordered, a share not in [0, 1], or the gain not positive.
        """
        super().__init__(ctx)
        ranges = [
            Range("lin_vel_x", *lin_vel_x),
            Range("lin_vel_y", *lin_vel_y),
            Range("ang_vel_yaw", *ang_vel_yaw),
            Range("", 0.0, 1.0),
        ]
        shares = {"standing_fraction": standing_fraction, "heading_fraction": heading_fraction}
        for name, share in shares.items():
            if not 0.0 <= share <= 1.0:
                raise ConfigError(f"{name} must be in [0, 1], got {share}")
        moved = ctx.adjusted("standing_fraction", standing_fraction)
        self._standing = standing_fraction if moved is None else moved
        self._still = ctx.tensor(0.0)
        self._may_stand = moved is not None or standing_fraction > 0.0
        self._draw = RangedDraw(ctx, ranges, ("step", "reset"))
        self._cuts = {phase: Cut(_velocity_and_share) for phase in ("step", "reset")}
        self._timer = StepTimer(ctx, resampling_s)
        self.value = ctx.columns(3, key="value")
        self._columns = self.value.t()
        self._moving = ctx.scratch_columns(3, key="moving").t()
        self._heading = None
        if heading is not None:
            self._heading = _Heading(
                ctx, Range("heading", *heading), heading_fraction, heading_gain, self._draw
            )

    def _resample(self, mask: Tensor, phase: str) -> None:
        fresh, stay = self._cuts[phase](self._draw(phase))
        moves = None
        if self._may_stand:
            moves = stay >= self._standing
            fresh = torch.where(moves, fresh, self._still, out=self._moving)
        torch.where(mask, fresh, self._columns, out=self._columns)
        if self._heading is not None:
            self._heading.resample(mask, phase, moves)

    def reset(self, mask: Tensor, frame: TermFrame) -> None:
        """Draws a command for the new episode."""
        self._resample(mask, "reset")
        self._timer.reset(mask)
        if self._heading is not None:
            self._heading.steer(self.value[:, 2], frame[RootQuat()], mask)

    def update(self, frame: TermFrame) -> None:
        """Resamples the rows whose time is up and steers those that have a heading."""
        self._resample(self._timer.advance(), "step")
        if self._heading is not None:
            self._heading.steer(self.value[:, 2], frame[RootQuat()])


def _velocity_and_share(draw: Tensor) -> tuple[Tensor, ...]:  # [3, N] and [N]
    return draw.t()[:3], draw[:, 3]


class _Heading:
    """Target headings and the yaw rate towards them."""

    def __init__(
        self, ctx: BuildContext, bounds: Range, share: float, gain: float, draw: RangedDraw
    ) -> None:
        if not gain > 0:
            raise ConfigError(f"heading_gain must be positive, got {gain}")
        self._gain, self._share = 2.0 * gain, share
        columns = [bounds, Range("", 0.0, 1.0)]
        self._draw = RangedDraw(ctx, columns, ("step", "reset"), key="heading")
        self._bounds = draw.limits(2)
        self._target = ctx.zeros(2, key="heading")  # cos and sin of the heading
        self._turns = ctx.zeros(dtype=torch.bool, key="turns")

    def resample(self, mask: Tensor, phase: str, moves: Tensor | None) -> None:
        """Masked rows draw a target and whether they turn to it; standing ones never do."""
        draw = self._draw(phase)
        angle = draw[:, 0]
        fresh = torch.stack((angle.cos(), angle.sin()), 1)
        torch.where(mask.unsqueeze(1), fresh, self._target, out=self._target)
        turns = draw[:, 1] < self._share
        if moves is not None:
            turns = turns & moves
        torch.where(mask, turns, self._turns, out=self._turns)

    def steer(self, yaw_rate: Tensor, quat: Tensor, mask: Tensor | None = None) -> None:
        """Writes the yaw rates `[N]` of rows with a heading, from base orientations `[N, 4]`."""
        w, x, y, z = quat.unbind(1)
        ahead = 1.0 - 2.0 * (y * y + z * z)  # the base's x axis seen from above
        left = 2.0 * (x * y + w * z)
        cos, sin = self._target.unbind(1)
        cross, dot = ahead * sin - left * cos, ahead * cos + left * sin
        length = (ahead * ahead + left * left).sqrt_()
        wanted = (cross * self._gain) / (length + dot).clamp_(min=1e-6)
        torch.clamp(wanted, *self._bounds, out=wanted)
        rows = self._turns if mask is None else self._turns & mask
        torch.where(rows, wanted, yaw_rate, out=yaw_rate)


def _gait_reads(params: Mapping[str, Any]) -> tuple[Command | EpisodeStep, ...]:
    return (EpisodeStep(), Command(params["command"]))


class _GaitColumns:
    """A gait's outputs, a column of every environment in a row: `[4, N]`."""

    def __init__(self, value: Tensor, stance: Tensor) -> None:
        self.value, self.stance = value, stance
        self.sin, self.cos = value[0::2], value[1::2]


@term(reads=_gait_reads, width=4)
class TrotGait(CommandTerm):
    """A clock per environment for two diagonal pairs of legs.

    phase = phase_0 + frequency x time, phase_0 drawn at reset; the second pair runs half a
    period later. `value` `[N, 4]` is (sin, cos) of both pairs' phase, 0 while the command's norm
    is below `standing_norm`. Part "stance" `[N, 4]` bool, legs in the order FL FR RL RR, is true
    in the first `stance_share` of a leg's period and for every leg while standing.
    """

    component_names = ("sin_fl_rr", "cos_fl_rr", "sin_fr_rl", "cos_fr_rl")

    def __init__(
        self,
        ctx: BuildContext,
        *,
        command: str,
        frequency: float,
        stance_share: float,
        standing_norm: float,
    ) -> None:
        """Allocates the phase (unit: periods) and the outputs.

        Raises:
            ConfigError: If the frequency is not positive.
        """
        super().__init__(ctx)
        if not 0 < frequency < math.inf:
            raise ConfigError(f"frequency must be positive and finite, got {frequency}")
        self._command = command
        self._rate = ctx.tensor(frequency * ctx.control_dt)
        self._turn = ctx.tensor(2.0 * torch.pi)
        self._stance_share = ctx.tensor(stance_share)
        self._standing_sq = ctx.tensor(standing_norm**2)
        self._legs = ctx.tensor([[0.0], [0.5], [0.5], [0.0]])
        self._uniform = ctx.uniform(1, "reset")
        self._drawn = Cut(lambda draw: (draw.t(),))
        self.value = ctx.columns(4, key="value")
        stance = ctx.columns(4, torch.bool, key="stance")
        self.parts = {"stance": stance}
        # Everything is computed a column `[N]` at a time.
        self._phase_0 = ctx.columns(4, key="phase_0").t()  # of each leg, at the reset
        self._phase = ctx.scratch_columns(4, key="phase").t()
        self._pairs = self._phase[:2]  # FL stands for FL and RR, FR for FR and RL
        fresh = ctx.scratch_columns(4, key="fresh_value")
        fresh_stance = ctx.scratch_columns(4, torch.bool, key="fresh_stance")
        self._shown = _GaitColumns(self.value.t(), stance.t())
        self._fresh = _GaitColumns(fresh.t(), fresh_stance.t())

    @classmethod
    def describe(
        cls,
        index: ModelIndex,
        *,
        frequency: float,
        stance_share: float,
        standing_norm: float,
        **_: Any,
    ) -> dict[str, Any]:
        """What a deployment needs to build the same clock; part of the policy contract."""
        return {
            "frequency": frequency,
            "stance_share": stance_share,
            "standing_norm": standing_norm,
        }

    def _still(self, frame: TermFrame) -> Tensor:  # [N] bool
        return frame[Command(self._command)].square().sum(-1) < self._standing_sq

    def _write(self, still: Tensor, out: _GaitColumns) -> None:
        """Outputs of the legs' phases, in periods from 0 to 1."""
        torch.lt(self._phase, self._stance_share, out=out.stance)
        out.stance.logical_or_(still)
        angle = self._pairs * self._turn
        torch.sin(angle, out=out.sin)
        torch.cos(angle, out=out.cos)
        out.value.masked_fill_(still, 0.0)

    def reset(self, mask: Tensor, frame: TermFrame) -> None:
        """Draws a phase for the new episode; rows outside the mask keep what they show."""
        (drawn,) = self._drawn(self._uniform())
        torch.add(drawn, self._legs, out=self._phase).frac_()
        fresh, shown = self._fresh, self._shown
        self._write(self._still(frame), fresh)
        torch.where(mask, self._phase, self._phase_0, out=self._phase_0)
        torch.where(mask, fresh.value, shown.value, out=shown.value)
        torch.where(mask, fresh.stance, shown.stance, out=shown.stance)

    def update(self, frame: TermFrame) -> None:
        """Moves the clock to this boundary."""
        elapsed = frame[EpisodeStep()] * self._rate
        torch.add(elapsed, self._phase_0, out=self._phase).frac_()
        self._write(self._still(frame), self._shown)

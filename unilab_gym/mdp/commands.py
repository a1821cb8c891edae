"""Command generators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError
from unilab_gym.model_index import ModelIndex
from unilab_gym.runtime.command_term import CommandTerm, StepTimer
from unilab_gym.runtime.reads import Command, EpisodeStep
from unilab_gym.runtime.term import BuildContext, TermFrame, term

_RANGE = tuple[float, float]


@term(reads=(), width=3)
class UniformVelocityCommand(CommandTerm):
    """Planar velocity commands (v_x, v_y, yaw rate) in the base frame, drawn uniformly.

    `value` is `[N, 3]` in m/s, m/s, rad/s. A share of the draws is a standing command of zeros.
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
    ) -> None:
        """Allocates the command.

        Raises:
            ConfigError: If a range is not ordered or the fraction is not in [0, 1].
        """
        super().__init__(ctx)
        ranges = {"lin_vel_x": lin_vel_x, "lin_vel_y": lin_vel_y, "ang_vel_yaw": ang_vel_yaw}
        for name, (low, high) in ranges.items():
            if not low <= high:
                raise ConfigError(f"{name}: low {low} exceeds high {high}")
        if not 0.0 <= standing_fraction <= 1.0:
            raise ConfigError(f"standing_fraction must be in [0, 1], got {standing_fraction}")
        low = [bounds[0] for bounds in ranges.values()] + [0.0]
        high = [bounds[1] for bounds in ranges.values()] + [1.0]
        self._standing = standing_fraction
        self._draws = {phase: ctx.uniform(4, phase, low, high) for phase in ("step", "reset")}
        self._timer = StepTimer(ctx, resampling_s)
        self.value = ctx.zeros(3)

    def _resample(self, mask: Tensor, phase: str) -> None:
        draw = self._draws[phase]()
        fresh = draw[:, :3]
        if self._standing:
            fresh = fresh * (draw[:, 3:] >= self._standing)
        torch.where(mask.unsqueeze(1), fresh, self.value, out=self.value)

    def reset(self, mask: Tensor, frame: TermFrame) -> None:
        """Draws a command for the new episode."""
        self._resample(mask, "reset")
        self._timer.reset(mask)

    def update(self, frame: TermFrame) -> None:
        """Resamples the rows whose time is up."""
        self._resample(self._timer.advance(), "step")


def _gait_reads(params: Mapping[str, Any]) -> tuple[Command | EpisodeStep, ...]:
    return (EpisodeStep(), Command(params["command"]))


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
        """Allocates the phase (unit: periods) and the outputs."""
        super().__init__(ctx)
        self._command = command
        self._rate = frequency * ctx.control_dt
        self._stance_share = stance_share
        self._standing_sq = standing_norm**2
        self._legs = ctx.tensor([0.0, 0.5, 0.5, 0.0])
        self._phase_0 = ctx.zeros(4)  # of each leg, at the reset
        self._uniform = ctx.uniform(1, "reset")
        self.value = ctx.zeros(4)
        self._stance = ctx.zeros(4, dtype=torch.bool)
        self._fresh = torch.zeros_like(self.value), torch.zeros_like(self._stance)
        self.parts = {"stance": self._stance}

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

    def _still(self, frame: TermFrame) -> Tensor:  # [N, 1] bool
        return frame[Command(self._command)].square().sum(-1, keepdim=True) < self._standing_sq

    def _write(self, phase: Tensor, still: Tensor, value: Tensor, stance: Tensor) -> None:
        """Outputs of the legs' phases `[N, 4]`, in periods from 0 to 1."""
        torch.lt(phase, self._stance_share, out=stance)
        stance.logical_or_(still)
        angle = phase[:, :2] * (2.0 * torch.pi)  # FL stands for FL and RR, FR for FR and RL
        torch.sin(angle, out=value[:, 0::2])
        torch.cos(angle, out=value[:, 1::2])
        value.masked_fill_(still, 0.0)

    def reset(self, mask: Tensor, frame: TermFrame) -> None:
        """Draws a phase for the new episode; rows outside the mask keep what they show."""
        mask = mask.unsqueeze(1)
        phase = (self._uniform() + self._legs).frac_()
        self._write(phase, self._still(frame), *self._fresh)
        torch.where(mask, phase, self._phase_0, out=self._phase_0)
        for current, fresh in zip((self.value, self._stance), self._fresh, strict=True):
            torch.where(mask, fresh, current, out=current)

    def update(self, frame: TermFrame) -> None:
        """Moves the clock to this boundary."""
        elapsed = frame[EpisodeStep()].unsqueeze(1) * self._rate
        phase = (elapsed + self._phase_0).frac_()
        self._write(phase, self._still(frame), self.value, self._stance)

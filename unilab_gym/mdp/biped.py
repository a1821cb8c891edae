"""Terms of walking on two legs: gait clock, swing heights, air time, posture.

A foot is a group of contact geoms, the same number for each foot, listed foot by foot: `geoms` of
two feet with four spheres each are eight names, left foot first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError
from unilab_gym.model_index import ModelIndex
from unilab_gym.runtime.command_term import CommandTerm
from unilab_gym.runtime.reads import (
    Command,
    EpisodeStep,
    GeomContact,
    GeomHeight,
    JointPosRel,
    ProjectedGravity,
    Read,
    RootPos,
    Sensor,
)
from unilab_gym.runtime.term import BuildContext, Term, TermFrame, term


def _gait_reads(params: Mapping[str, Any]) -> tuple[Read, ...]:
    return (EpisodeStep(), Command(params["command"]))


@term(reads=_gait_reads, width=2)
class BipedGait(CommandTerm):
    """A clock per environment for two legs in turn.

    phase = phase_0 + frequency x time, phase_0 drawn at reset; the right leg runs half a period
    later. `value` `[N, 2]` is (sin, cos) of the left leg's phase. Part "phase" `[N, 2]` holds both
    legs' phases in periods, [0, 1); 0 is the middle of stance, 0.5 the top of the swing. While the
    command's norm is below `standing_norm` both legs stand: phase 0, value (0, 1).
    """

    component_names = ("sin_left", "cos_left")
    assigns = True

    def __init__(
        self, ctx: BuildContext, *, command: str, frequency: float, standing_norm: float
    ) -> None:
        """Allocates the phase and the outputs.

        Raises:
            ConfigError: If the frequency is not positive.
        """
        super().__init__(ctx)
        if not 0 < frequency < math.inf:
            raise ConfigError(f"frequency must be positive and finite, got {frequency}")
        self._command = command
        self._rate = ctx.tensor(frequency * ctx.control_dt)
        self._turn = ctx.tensor(2.0 * torch.pi)
        self._standing_sq = ctx.tensor(standing_norm**2)
        self._legs = ctx.tensor([[0.0], [0.5]])
        self._uniform = ctx.uniform(1, "reset")
        phase_0, self.value, phase = ctx.columns(2), ctx.columns(2), ctx.columns(2)
        self.parts = {"phase": phase}
        # Everything is computed a column `[N]` at a time.
        self._phase_0, self._phase = phase_0.t(), phase.t()
        self._sin, self._cos = self.value.unbind(1)

    @classmethod
    def describe(
        cls, index: ModelIndex, *, frequency: float, standing_norm: float, **_: Any
    ) -> dict[str, Any]:
        """What a deployment needs to build the same clock; part of the policy contract."""
        return {"frequency": frequency, "standing_norm": standing_norm}

    def _standing(self, frame: TermFrame) -> Tensor:  # [N] bool
        return frame[Command(self._command)].square().sum(-1) < self._standing_sq

    def _show(self) -> None:
        angle = self._phase[0] * self._turn
        torch.sin(angle, out=self._sin)
        torch.cos(angle, out=self._cos)

    def reset(self, mask: Tensor, frame: TermFrame) -> None:
        """Draws a phase for the new episode; other rows keep theirs."""
        drawn = (self._uniform().t() + self._legs).frac_()
        torch.where(mask, drawn, self._phase_0, out=self._phase_0)
        drawn.masked_fill_(self._standing(frame), 0.0)
        torch.where(mask, drawn, self._phase, out=self._phase)
        self._show()

    def update(self, frame: TermFrame) -> None:
        """Moves the clock to this boundary."""
        elapsed = frame[EpisodeStep()] * self._rate
        torch.frac(elapsed + self._phase_0, out=self._phase)
        self._phase.masked_fill_(self._standing(frame), 0.0)
        self._show()


# --- observations ---------------------------------------------------------------------------------


def _sensor_width(params: Mapping[str, Any], index: ModelIndex) -> int:
    return math.prod(Sensor(params["sensor"]).resolve(index).shape)


@term(reads=lambda p: (Sensor(p["sensor"]),), width=_sensor_width)
def sensor(frame: TermFrame, *, sensor: str) -> Tensor:  # [N, d]
    """A named sensor's value, in the sensor's unit."""
    return frame[Sensor(sensor)]


# --- rewards --------------------------------------------------------------------------------------


@term(reads=lambda p: (GeomHeight(p["geoms"]), Command(p["gait"], "phase")))
def feet_phase(
    frame: TermFrame, *, geoms: tuple[str, ...], gait: str, swing_height: float, sigma: float
) -> Tensor:  # [N]
    """exp(-sum over feet of (z - z*(phase))^2 / sigma), z the foot's lowest point, m.

    z* rises from 0 at phase 0 to `swing_height` at 0.5 and falls back, along the cubic Bezier
    curve with flat ends: h (1 - 3 u^2 + 2 u^3), u = |2 phase - 1|. Unitless, in (0, 1].

    Source: the foot height tracking of MuJoCo Playground's humanoid tasks (Zakka et al. 2025).
    """
    u = frame[Command(gait, "phase")].mul(2.0).sub_(1.0).abs_()  # [N, 2]
    wanted = u.mul(2.0 * swing_height).sub_(3.0 * swing_height).mul_(u).mul_(u).add_(swing_height)
    height = frame[GeomHeight(geoms)]
    lowest = height.view(-1, 2, height.shape[1] // 2).amin(-1)
    return lowest.sub_(wanted).square_().sum(-1).mul_(-1.0 / sigma).exp_()


@term(reads=lambda p: (GeomContact(p["geoms"], p["margin"]), Command(p["gait"], "phase")))
class FeetAirTime(Term):
    """How many feet have been in the air for more than `least_s` and less than `most_s`, 0 to 2.

    0 while standing is asked for (both phases 0).
    """

    def __init__(
        self,
        ctx: BuildContext,
        *,
        geoms: tuple[str, ...],
        margin: float,
        gait: str,
        least_s: float,
        most_s: float,
    ) -> None:
        """Allocates the air time of each foot, in control steps.

        Raises:
            ConfigError: If the times are not 0 <= least < most, or the geoms are not two feet.
        """
        super().__init__(ctx)
        if not 0 <= least_s < most_s:
            raise ConfigError(f"air time must be 0 <= least_s < most_s, got {least_s}, {most_s}")
        count = len(ctx.index.match("geom", geoms))
        self._spheres = count // 2
        if count % 2:
            raise ConfigError(f"geoms: {count} geoms are not two feet with as many each")
        self._contact = GeomContact(geoms, margin)
        self._phase = Command(gait, "phase")
        self._least, self._most = least_s / ctx.control_dt, most_s / ctx.control_dt
        self._air = ctx.zeros(2)

    def __call__(self, frame: TermFrame) -> Tensor:  # [N]
        """Advances the air time and counts the feet in the window."""
        contact = frame[self._contact].view(-1, 2, self._spheres).any(-1)
        self._air.add_(1.0).masked_fill_(contact, 0.0)
        inside = (self._air > self._least) & (self._air < self._most)
        walking = frame[self._phase].any(-1, keepdim=True)
        return (inside & walking).sum(-1, dtype=torch.float32)

    def reset(self, mask: Tensor) -> None:
        """Both feet count as landed."""
        self._air.masked_fill_(mask.unsqueeze(1), 0.0)


@term(reads=(ProjectedGravity(),))
def orientation_l2(frame: TermFrame) -> Tensor:  # [N]
    """g_x^2 + g_y^2 of the gravity projected into the base: sin^2 of the tilt."""
    return frame[ProjectedGravity()][:, :2].square().sum(-1)


@term(reads=(JointPosRel(),))
class WeightedPose(Term):
    """Sum over all joints of w (q - q_default)^2, rad^2; weights by patterns of joint names."""

    def __init__(self, ctx: BuildContext, *, weights: Mapping[str, float]) -> None:
        """Resolves the weights.

        Raises:
            ConfigError: If a pattern matches nothing or a joint gets no weight.
        """
        super().__init__(ctx)
        names = ctx.index.joint_names
        self._weights = ctx.tensor(ctx.index.per_joint("weights", weights, names))

    def __call__(self, frame: TermFrame) -> Tensor:  # [N]
        """Three operations."""
        return frame[JointPosRel()].square().mul_(self._weights).sum(-1)


# --- terminations ---------------------------------------------------------------------------------


@term(reads=(RootPos(),))
def root_below(frame: TermFrame, *, height: float) -> Tensor:  # [N] bool
    """True where the base frame's origin is lower than `height` m over flat ground."""
    return frame[RootPos()][:, 2] < height

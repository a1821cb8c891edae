"""Terms of motion tracking; `command` names a `motion.command.MotionCommand`.

Targets of bodies are aligned with the robot (see `mdp.tracking_reads`); the anchor's own errors
and the velocities are those of the world. Source of the formulas: BeyondMimic (Liao et al. 2025)
and the tracking tasks of mjlab and UniLab, which share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError
from unilab_gym.mdp.tracking_reads import (
    AnchorPosError,
    AnchorTwist,
    BodyAngleError,
    BodyComVel,
    BodyLinVelW,
    BodyMat,
    BodyPosError,
    BodyPosErrorSq,
)
from unilab_gym.runtime.reads import BodyPos, Command, JointPos, Read, Sensor
from unilab_gym.runtime.term import BuildContext, Term, TermFrame, term

_Params = Mapping[str, Any]


def _aligned(read: type[Any]) -> Any:
    def reads(params: _Params) -> tuple[Read, ...]:
        return (read(params["command"], params["anchor"], params["bodies"]),)

    return reads


# --- observations ---------------------------------------------------------------------------------


@term(
    reads=lambda p: (AnchorPosError(p["command"], p["anchor"]), BodyMat((p["anchor"],))),
    width=3,
)
def anchor_pos_b(frame: TermFrame, *, command: str, anchor: str) -> Tensor:  # [N, 3]
    """Position of the reference's anchor in the frame of the robot's anchor, m."""
    error = frame[AnchorPosError(command, anchor)]
    return (frame[BodyMat((anchor,))][:, 0] * error.unsqueeze(2)).sum(1)


@term(
    reads=lambda p: (Command(p["command"], "anchor_mat"), BodyMat((p["anchor"],))),
    width=6,
)
def anchor_ori_b(frame: TermFrame, *, command: str, anchor: str) -> Tensor:  # [N, 6]
    """First two columns, row by row, of the rotation from the reference's to the robot's anchor."""
    robot = frame[BodyMat((anchor,))].view(-1, 3, 3, 1)  # row k, column i
    reference = frame[Command(command, "anchor_mat")][..., :2].unsqueeze(2)  # k, 1, j
    return (robot * reference).sum(1).flatten(1)


@term(
    reads=lambda p: (BodyPos(p["bodies"]), BodyPos((p["anchor"],)), BodyMat((p["anchor"],))),
    width=lambda p, index: 3 * len(p["bodies"]),
)
def body_pos_b(frame: TermFrame, *, anchor: str, bodies: tuple[str, ...]) -> Tensor:  # [N, 3 B]
    """Positions of the robot's bodies in the frame of its anchor, m."""
    arm = frame[BodyPos(bodies)] - frame[BodyPos((anchor,))]
    return (frame[BodyMat((anchor,))] * arm.unsqueeze(-1)).sum(2).flatten(1)


@term(
    reads=lambda p: (BodyMat(p["bodies"]), BodyMat((p["anchor"],))),
    width=lambda p, index: 6 * len(p["bodies"]),
)
def body_ori_b(frame: TermFrame, *, anchor: str, bodies: tuple[str, ...]) -> Tensor:  # [N, 6 B]
    """First two columns, row by row, of the bodies' rotations in the frame of the anchor."""
    robot = frame[BodyMat((anchor,))].unsqueeze(-1)  # [N, 1, k, i, 1]
    columns = frame[BodyMat(bodies)][..., :2].unsqueeze(3)  # [N, B, k, 1, j]
    return (robot * columns).sum(2).flatten(1)


# --- rewards --------------------------------------------------------------------------------------


@term(reads=lambda p: (AnchorPosError(p["command"], p["anchor"]),))
def anchor_pos(frame: TermFrame, *, command: str, anchor: str, sigma: float) -> Tensor:  # [N]
    """exp(-|p_ref - p|^2 / sigma^2) of the anchor, world; sigma in m. Unitless, in (0, 1]."""
    error = frame[AnchorPosError(command, anchor)]
    return error.square().sum(-1).mul_(-1.0 / (sigma * sigma)).exp_()


@term(reads=lambda p: (AnchorTwist(p["command"], p["anchor"]),))
def anchor_ori(frame: TermFrame, *, command: str, anchor: str, sigma: float) -> Tensor:  # [N]
    """exp(-angle^2 / sigma^2) between the anchors, world; sigma in rad. Unitless, in (0, 1]."""
    cosine = frame[AnchorTwist(command, anchor)][:, 0].abs().clamp_max_(1.0)
    return cosine.acos_().square_().mul_(-4.0 / (sigma * sigma)).exp_()


@term(reads=_aligned(BodyPosErrorSq))
def body_pos(
    frame: TermFrame, *, command: str, anchor: str, bodies: tuple[str, ...], sigma: float
) -> Tensor:  # [N]
    """exp(-mean over bodies of |p - p_target|^2 / sigma^2), aligned; sigma in m."""
    squared = frame[BodyPosErrorSq(command, anchor, bodies)]
    return squared.sum(-1).mul_(-1.0 / (len(bodies) * sigma * sigma)).exp_()


@term(reads=_aligned(BodyAngleError))
def body_ori(
    frame: TermFrame, *, command: str, anchor: str, bodies: tuple[str, ...], sigma: float
) -> Tensor:  # [N]
    """exp(-mean over bodies of angle^2 / sigma^2), aligned; sigma in rad."""
    squared = frame[BodyAngleError(command, anchor, bodies)].square()
    return squared.sum(-1).mul_(-1.0 / (len(bodies) * sigma * sigma)).exp_()


@term(
    reads=lambda p: (Command(p["command"], "body_lin_vel"), BodyLinVelW(p["bodies"])),
)
def body_lin_vel(
    frame: TermFrame, *, command: str, bodies: tuple[str, ...], sigma: float
) -> Tensor:  # [N]
    """exp(-mean over bodies of |v_ref - v|^2 / sigma^2), origins, world; sigma in m/s."""
    error = frame[Command(command, "body_lin_vel")] - frame[BodyLinVelW(bodies)]
    return error.square_().sum((1, 2)).mul_(-1.0 / (len(bodies) * sigma * sigma)).exp_()


@term(
    reads=lambda p: (Command(p["command"], "body_ang_vel"), BodyComVel(p["bodies"])),
)
def body_ang_vel(
    frame: TermFrame, *, command: str, bodies: tuple[str, ...], sigma: float
) -> Tensor:  # [N]
    """exp(-mean over bodies of |w_ref - w|^2 / sigma^2), world; sigma in rad/s."""
    error = frame[Command(command, "body_ang_vel")] - frame[BodyComVel(bodies)][..., :3]
    return error.square_().sum((1, 2)).mul_(-1.0 / (len(bodies) * sigma * sigma)).exp_()


@term(reads=(JointPos(),))
class JointLimits(Term):
    """Sum over joints of how far they are beyond the inner `share` of their range, rad."""

    def __init__(self, ctx: BuildContext, *, share: float = 0.9) -> None:
        """Takes the ranges.

        Raises:
            ConfigError: If the share is not in (0, 1].
        """
        super().__init__(ctx)
        if not 0 < share <= 1:
            raise ConfigError(f"share must be in (0, 1], got {share}")
        joints = ctx.index.joints
        middle = ctx.tensor([(j.lower + j.upper) / 2 for j in joints])
        half = ctx.tensor([(j.upper - j.lower) / 2 for j in joints])
        free = half.isinf()
        self._low = (middle - share * half).masked_fill(free, -torch.inf)
        self._high = (middle + share * half).masked_fill(free, torch.inf)

    def __call__(self, frame: TermFrame) -> Tensor:  # [N]
        """Four operations."""
        pos = frame[JointPos()]
        return torch.clamp(pos, self._low, self._high).sub_(pos).abs_().sum(-1)


@term(reads=lambda p: (Sensor(p["sensor"]),))
def contact_count(frame: TermFrame, *, sensor: str) -> Tensor:  # [N]
    """How many contacts a contact sensor found in the last substep."""
    return frame[Sensor(sensor)][:, 0]


# --- terminations ---------------------------------------------------------------------------------


@term(reads=lambda p: (Command(p["command"], "at_end"),))
def clip_end(frame: TermFrame, *, command: str) -> Tensor:  # [N] bool
    """True where the target was the clip's last frame; use with `time_out=True`."""
    return frame[Command(command, "at_end")] > 0.5


@term(reads=lambda p: (AnchorPosError(p["command"], p["anchor"]),))
def anchor_height(frame: TermFrame, *, command: str, anchor: str, limit: float) -> Tensor:  # [N]
    """True where the anchors' heights differ by more than `limit` m."""
    return frame[AnchorPosError(command, anchor)][:, 2].abs() > limit


@term(
    reads=lambda p: (Command(p["command"], "anchor_mat"), BodyMat((p["anchor"],))),
)
def anchor_tilt(frame: TermFrame, *, command: str, anchor: str, limit: float) -> Tensor:  # [N]
    """True where gravity's z component in the anchors' frames differs by more than `limit`."""
    robot, reference = frame[BodyMat((anchor,))], frame[Command(command, "anchor_mat")]
    return (robot[:, 0, 2, 2] - reference[:, 2, 2]).abs_() > limit


@term(reads=_aligned(BodyPosError))
class BodyHeights(Term):
    """True where the height of any of the `checked` bodies is more than `limit` m off."""

    def __init__(
        self,
        ctx: BuildContext,
        *,
        command: str,
        anchor: str,
        bodies: tuple[str, ...],
        checked: tuple[str, ...],
        limit: float,
    ) -> None:
        """Resolves the bodies.

        Raises:
            ConfigError: If one of `checked` is not tracked.
        """
        super().__init__(ctx)
        absent = [name for name in checked if name not in bodies]
        if absent:
            raise ConfigError(f"checked bodies are not tracked: {', '.join(absent)}")
        self._read = BodyPosError(command, anchor, bodies)
        self._limits = ctx.tensor([limit if name in checked else torch.inf for name in bodies])

    def __call__(self, frame: TermFrame) -> Tensor:  # [N] bool
        """Three operations."""
        return (frame[self._read][..., 2].abs() > self._limits).any(-1)


# --- metrics --------------------------------------------------------------------------------------


@term(reads=_aligned(BodyPosErrorSq))
def body_pos_error(
    frame: TermFrame, *, command: str, anchor: str, bodies: tuple[str, ...]
) -> Tensor:  # [N]
    """Mean distance of bodies to their aligned targets, m."""
    return frame[BodyPosErrorSq(command, anchor, bodies)].sqrt().mean(-1)


@term(reads=_aligned(BodyAngleError))
def body_angle_error(
    frame: TermFrame, *, command: str, anchor: str, bodies: tuple[str, ...]
) -> Tensor:  # [N]
    """Mean angle between bodies and their aligned targets, rad."""
    return frame[BodyAngleError(command, anchor, bodies)].mean(-1)


@term(reads=lambda p: (AnchorPosError(p["command"], p["anchor"]),))
def anchor_pos_error(frame: TermFrame, *, command: str, anchor: str) -> Tensor:  # [N]
    """Distance of the anchors, world, m."""
    return frame[AnchorPosError(command, anchor)].square().sum(-1).sqrt_()

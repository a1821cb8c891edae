"""Reward terms: one number per environment, unweighted; the manager multiplies by weight x dt."""

from __future__ import annotations

import torch
from torch import Tensor

from unilab_gym.runtime.reads import (
    Action,
    AngVelErrorSq,
    Command,
    GeomContact,
    GeomHeight,
    JointPosRel,
    LinVelErrorSq,
    RootAngVelB,
    RootLinVelB,
    RootPos,
    Sensors,
)
from unilab_gym.runtime.term import TermFrame, term


@term(reads=lambda p: (LinVelErrorSq(p["command"]),), adjustable=("sigma",))
def track_lin_vel_xy(frame: TermFrame, *, command: str, sigma: float) -> Tensor:  # [N]
    """exp(-|v_xy - c_xy|^2 / sigma), base frame; sigma in m^2/s^2. Unitless, in (0, 1].

    Source: the tracking reward of Rudin et al., Learning to walk in minutes, CoRL 2021.
    """
    return frame[LinVelErrorSq(command)].mul(-1.0 / sigma).exp_()


@term(reads=lambda p: (AngVelErrorSq(p["command"]),), adjustable=("sigma",))
def track_ang_vel_z(frame: TermFrame, *, command: str, sigma: float) -> Tensor:  # [N]
    """exp(-(w_z - c_yaw)^2 / sigma), base frame; sigma in rad^2/s^2. Unitless, in (0, 1]."""
    return frame[AngVelErrorSq(command)].mul(-1.0 / sigma).exp_()


@term(reads=(RootLinVelB(),))
def lin_vel_z_l2(frame: TermFrame) -> Tensor:  # [N]
    """v_z^2 in the base frame, m^2/s^2."""
    return frame[RootLinVelB()][:, 2].square()


@term(reads=(RootAngVelB(),))
def ang_vel_xy_l2(frame: TermFrame) -> Tensor:  # [N]
    """w_x^2 + w_y^2 in the base frame, rad^2/s^2."""
    return frame[RootAngVelB()][:, :2].square().sum(-1)


@term(reads=(RootPos(),), adjustable=("target",))
def base_height_l2(frame: TermFrame, *, target: float) -> Tensor:  # [N]
    """(z - target)^2 of the base frame's origin over flat ground, m^2."""
    return (frame[RootPos()][:, 2] - target).square_()


@term(reads=(Action(0), Action(1)))
def action_rate_l2(frame: TermFrame) -> Tensor:  # [N]
    """Sum over joints of (a_t - a_{t-1})^2, of clamped actions. Unitless."""
    return (frame[Action(0)] - frame[Action(1)]).square_().sum(-1)


@term(reads=lambda p: (JointPosRel(p["joints"]),))
def joint_deviation_l1(frame: TermFrame, *, joints: tuple[str, ...] = (".*",)) -> Tensor:  # [N]
    """Sum over joints of |q - q_default|, rad."""
    return frame[JointPosRel(joints)].abs().sum(-1)


@term(
    reads=lambda p: (GeomContact(p["feet"], p["margin"]), Command(p["gait"], "stance")),
)
def gait_contact_match(
    frame: TermFrame, *, feet: tuple[str, ...], margin: float, gait: str
) -> Tensor:  # [N]
    """Share of feet whose contact equals what the gait wants (stance or swing), in [0, 1].

    Source: the phase reward of Siekmann et al., Sim-to-real learning of all common bipedal
    gaits via periodic reward composition, ICRA 2021, with a kinematic contact flag.
    """
    match = frame[GeomContact(feet, margin)] == frame[Command(gait, "stance")]
    return match.mean(-1, dtype=torch.float32)


@term(reads=lambda p: (GeomHeight(p["feet"]), Command(p["gait"], "stance")))
def swing_height(
    frame: TermFrame, *, feet: tuple[str, ...], gait: str, target: float, sigma: float
) -> Tensor:  # [N]
    """Mean over all feet of exp(-(z - target)^2 / sigma) where a foot swings, 0 where it stands.

    z is the height of the foot's lowest point, m; sigma in m^2. Unitless, in [0, 1].
    """
    score = (frame[GeomHeight(feet)] - target).square_().mul_(-1.0 / sigma).exp_()
    score.masked_fill_(frame[Command(gait, "stance")], 0.0)
    return score.mean(-1)


@term(reads=lambda p: (GeomContact(p["feet"], p["margin"]), Sensors(p["velocity_sensors"])))
def foot_slip(
    frame: TermFrame,
    *,
    feet: tuple[str, ...],
    margin: float,
    velocity_sensors: tuple[str, ...],
) -> Tensor:  # [N]
    """Sum over touching feet of v_x^2 + v_y^2, world frame, m^2/s^2."""
    speed = frame[Sensors(velocity_sensors)][..., :2].square().sum(-1)
    return speed.mul_(frame[GeomContact(feet, margin)]).sum(-1)

"""Observation terms: values before noise, clip and scale. Shapes: N envs, J joints, K geoms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from unilab_gym.model_index import ModelIndex
from unilab_gym.runtime.dynamics_reads import JointTorque
from unilab_gym.runtime.reads import (
    Action,
    Command,
    GeomContact,
    GeomHeight,
    JointAcc,
    JointBias,
    JointPosRel,
    JointVel,
    ProjectedGravity,
    RootAngVelB,
    RootLinVelB,
    RootPos,
)
from unilab_gym.runtime.term import TermFrame, term


def _joints(params: Mapping[str, Any], index: ModelIndex) -> int:
    return len(index.match("joint", params["joints"]))


def _geoms(params: Mapping[str, Any], index: ModelIndex) -> int:
    return len(index.match("geom", params["geoms"]))


@term(reads=(RootLinVelB(),), width=3)
def base_lin_vel(frame: TermFrame) -> Tensor:  # [N, 3]
    """Velocity of the base frame's origin in the base frame, m/s."""
    return frame[RootLinVelB()]


@term(reads=(RootAngVelB(),), width=3)
def base_ang_vel(frame: TermFrame) -> Tensor:  # [N, 3]
    """Angular velocity of the base in the base frame (an ideal gyro), rad/s."""
    return frame[RootAngVelB()]


@term(reads=(ProjectedGravity(),), width=3)
def projected_gravity(frame: TermFrame) -> Tensor:  # [N, 3]
    """Unit gravity in the base frame, R^T (0, 0, -1): independent of yaw."""
    return frame[ProjectedGravity()]


@term(reads=lambda p: (JointPosRel(p["joints"]),), width=_joints)
def joint_pos_rel(frame: TermFrame, *, joints: tuple[str, ...] = (".*",)) -> Tensor:  # [N, J]
    """Joint positions minus the default pose, rad."""
    return frame[JointPosRel(joints)]


@term(reads=(JointPosRel(), JointBias()), width=lambda _, index: len(index.joints))
def joint_pos_measured(frame: TermFrame) -> Tensor:  # [N, J]
    """What the encoders say: positions minus the default pose plus the encoder bias, rad.

    Needs the event `RandomizeEncoderBias`.
    """
    return frame[JointPosRel()] + frame[JointBias()]


@term(reads=lambda p: (JointVel(p["joints"]),), width=_joints)
def joint_vel(frame: TermFrame, *, joints: tuple[str, ...] = (".*",)) -> Tensor:  # [N, J]
    """Joint velocities, rad/s."""
    return frame[JointVel(joints)]


@term(reads=lambda p: (JointAcc(p["joints"]),), width=_joints)
def joint_acc(frame: TermFrame, *, joints: tuple[str, ...] = (".*",)) -> Tensor:  # [N, J]
    """Joint accelerations of the last substep, rad/s^2; 0 after a reset."""
    return frame[JointAcc(joints)]


@term(reads=lambda p: (JointTorque(p["joints"]),), width=_joints)
def joint_torque(frame: TermFrame, *, joints: tuple[str, ...] = (".*",)) -> Tensor:  # [N, J]
    """Torques of the joints' actuators in the last substep, N m; 0 after a reset."""
    return frame[JointTorque(joints)]


@term(reads=(RootPos(),), width=1)
def base_height(frame: TermFrame) -> Tensor:  # [N, 1]
    """Height of the base frame's origin over flat ground, m."""
    return frame[RootPos()][:, 2:]


@term(reads=(Action(0),), width=lambda p, index: p["width"] or index.nu)
def last_action(frame: TermFrame, *, width: int | None = None) -> Tensor:  # [N, A]
    """The action of the last step, clamped to the box; 0 after a reset. Unitless.

    `width` is A; None where actions drive every actuator.
    """
    return frame[Action(0)]


@term(
    reads=lambda p: (Command(p["command"]),),
    width=lambda p, index: p["width"],
)
def command(frame: TermFrame, *, command: str, width: int) -> Tensor:  # [N, width]
    """A command's value, in the command's units."""
    return frame[Command(command)]


@term(reads=lambda p: (GeomHeight(p["geoms"]),), width=_geoms)
def geom_height(frame: TermFrame, *, geoms: tuple[str, ...]) -> Tensor:  # [N, K]
    """Height of the lowest point of geoms over flat ground, m."""
    return frame[GeomHeight(geoms)]


@term(reads=lambda p: (GeomContact(p["geoms"], p["margin"]),), width=_geoms)
def geom_contact(frame: TermFrame, *, geoms: tuple[str, ...], margin: float) -> Tensor:  # [N, K]
    """1 where a geom's lowest point is below `margin` m over flat ground, else 0.

    The manager turns flags into numbers when it concatenates the group.
    """
    return frame[GeomContact(geoms, margin)]

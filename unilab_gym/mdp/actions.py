"""Action terms: what an action a means for the control of an actuator.

Each class turns its parameters into plain numbers; the action manager applies
`control = clip(base + offset + scale x a, target_clip)` with a from the box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from unilab_gym.errors import ConfigError
from unilab_gym.model_index import ModelIndex
from unilab_gym.runtime.term import ActionSpec


class JointAction:
    """Base of actions with one column for each joint, over that joint's actuator."""

    kind: ClassVar[str]
    """What the policy contract calls it."""
    actuator_kind: ClassVar[str]
    """Kind of actuator that takes such a control."""

    @classmethod
    def resolve(
        cls,
        index: ModelIndex,
        *,
        clipped: bool = True,
        joints: tuple[str, ...] = (".*",),
        scale: float | Mapping[str, float] = 1.0,
        offset: float | Mapping[str, float] | None = None,
        box: float = 1.0,
        target_clip: Mapping[str, tuple[float, float]] | None = None,
    ) -> ActionSpec:
        """Resolves the parameters to numbers.

        Args:
            index: The model's names.
            clipped: Whether actions are clamped to the box.
            joints: Patterns; the order of their matches is the order of the action's columns.
            scale: Control per unit of action: one number, or `{pattern: number}`.
            offset: Control at action 0, in the control's unit; None takes the class's own.
            box: Actions lie in [-box, box]; positive and finite.
            target_clip: Bounds on the control, `{pattern: (low, high)}`; joints without a pattern
                are not clipped.

        Raises:
            ConfigError: If a pattern matches none of the joints, two claim one joint with
                different values, or a joint has no actuator of the kind that is needed.
        """
        names = index.match("joint", joints)
        if not 0 < box < math.inf:
            raise ConfigError(f"box must be positive and finite, got {box}")
        if offset is None:
            offsets = cls.default_offset(index, names)
        else:
            offsets = index.per_joint("offset", offset, names)
        return ActionSpec(
            kind=cls.kind,
            joints=names,
            actuators=tuple(index.actuator_of(n, cls.actuator_kind).name for n in names),
            scale=index.per_joint("scale", scale, names),
            offset=offsets,
            box=float(box),
            target_clip=_target_clip(index, target_clip, names),
            clipped=clipped,
        )

    @classmethod
    def default_offset(cls, index: ModelIndex, joints: tuple[str, ...]) -> tuple[float, ...]:
        """Control of each joint at action 0 where the config says none: 0."""
        return (0.0,) * len(joints)


class JointPositionAction(JointAction):
    """Targets of position actuators, rad (or m): default + scale x action."""

    kind = "joint_position"
    actuator_kind = "position"

    @classmethod
    def default_offset(cls, index: ModelIndex, joints: tuple[str, ...]) -> tuple[float, ...]:
        """The default pose."""
        return tuple(index.joint(name).default for name in joints)


class RelativeJointPositionAction(JointAction):
    """Targets of position actuators, rad (or m): joint position now + scale x action.

    "Now" is the boundary at which the action is given; within the control step the target stays.
    """

    kind = "relative_joint_position"
    actuator_kind = "position"


class JointVelocityAction(JointAction):
    """Targets of velocity actuators, rad/s (or m/s): scale x action."""

    kind = "joint_velocity"
    actuator_kind = "velocity"


class JointEffortAction(JointAction):
    """Forces of motors, N m (or N): scale x action; the actuator's own limits still hold."""

    kind = "joint_effort"
    actuator_kind = "motor"


def _target_clip(
    index: ModelIndex,
    bounds: Mapping[str, tuple[float, float]] | None,
    names: tuple[str, ...],
) -> tuple[tuple[float, float], ...] | None:
    if not bounds:
        return None
    limits: list[dict[str, float]] = [{}, {}]
    for pattern, (low, high) in bounds.items():
        if not low <= high:
            raise ConfigError(f"target_clip {pattern!r}: low {low} exceeds high {high}")
        limits[0][pattern], limits[1][pattern] = low, high
    lows = index.per_joint("target_clip", limits[0], names, missing=-math.inf)
    highs = index.per_joint("target_clip", limits[1], names, missing=math.inf)
    return tuple(zip(lows, highs, strict=True))

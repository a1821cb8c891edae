"""Action terms."""

from __future__ import annotations

import math
from collections.abc import Mapping

from unilab_gym.errors import ConfigError
from unilab_gym.model_index import ModelIndex
from unilab_gym.runtime.term import ActionSpec


class JointPositionAction:
    """Targets of position actuators: target = default + scale x action."""

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
            scale: rad (or m) per unit of action: one number, or `{pattern: number}`.
            offset: Target at action 0; None takes the default pose.
            box: Actions lie in [-box, box]; positive and finite.
            target_clip: Bounds on targets, `{pattern: (low, high)}`; joints without a pattern
                are not clipped.

        Raises:
            ConfigError: If a pattern matches none of the joints, two claim one joint with
                different values, or a joint has no actuator.
        """
        names = index.match("joint", joints)
        if not 0 < box < math.inf:
            raise ConfigError(f"box must be positive and finite, got {box}")
        if offset is None:
            offsets = tuple(index.joint(name).default for name in names)
        else:
            offsets = index.per_joint("offset", offset, names)
        return ActionSpec(
            kind="joint_position",
            joints=names,
            actuators=tuple(index.actuator_of(name, "position").name for name in names),
            scale=index.per_joint("scale", scale, names),
            offset=offsets,
            box=float(box),
            target_clip=_target_clip(index, target_clip, names),
            clipped=clipped,
        )


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

"""`deploy.yaml`: what Unitree's C++ runtime (`unitree_rl_lab/deploy`) reads beside a policy.

    joint_ids_map          motor of each joint, in the policy's joint order
    step_dt                control step, s
    stiffness, damping     per motor, in the motors' order
    default_joint_pos      per joint, in the policy's order
    commands               base_velocity.ranges: lin_vel_x, lin_vel_y, ang_vel_z
    actions                JointPositionAction: scale, offset, clip of the joint target, joint_ids
    observations           per term, in order: params, clip, scale, history_length (frames in all)

That runtime clips joint targets where this package clamps the action first; with `clip` as
written here both give the same targets. Its `last_action` is the unclamped one: the observation
differs while an action saturates.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from unilab_gym.errors import ConfigError, near
from unilab_gym.export.metadata import policy_terms, resolved_of

_NAMES = {
    "base_ang_vel": "base_ang_vel",
    "projected_gravity": "projected_gravity",
    "joint_pos_rel": "joint_pos_rel",
    "joint_vel": "joint_vel_rel",
    "last_action": "last_action",
}
"""Our observation functions and the runtime's names for the same thing."""

_VELOCITY = ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")
_UNLIMITED = 1.0e6


@dataclass(frozen=True)
class DeploySettings:
    """What a deployment needs that no policy contract holds."""

    path: str | os.PathLike[str] = "deploy.yaml"
    """The file; its folder is made."""
    sdk_joints: Sequence[str] | None = None
    """Joint names in the order of the robot's motors; None takes the policy's order."""
    command_ranges: Mapping[str, tuple[float, float]] | None = None
    """Range of each component of a velocity command (`lin_vel_x`, `lin_vel_y`, `ang_vel_yaw`): what
    the stick covers. None takes the contract's, where the command says them."""


def deploy_document(contract: Any, settings: DeploySettings | None = None) -> dict[str, Any]:
    """The fields of `deploy.yaml`.

    Args:
        contract: The resolved contract, or a live environment.
        settings: Motor order and command ranges.

    Returns:
        Plain data. Observation terms that the runtime does not have keep our name: register one
        of that name there.

    Raises:
        ConfigError: If `sdk_joints` are not the policy's joints, command ranges are not known,
            a term is delayed, or an action is of another kind than joint_position.
    """
    settings = settings or DeploySettings()
    sdk_joints = settings.sdk_joints
    resolved = resolved_of(contract)
    actions, joints = resolved["actions"], resolved["joints"]
    names = cast("list[str]", actions["joints"])
    motors = list(names if sdk_joints is None else sdk_joints)
    if sorted(motors) != sorted(names):
        odd = next((name for name in motors if name not in names), None)
        told = f"{near(odd, names)}" if odd is not None else f"{len(motors)} of {len(names)} joints"
        raise ConfigError(f"sdk_joints must be the policy's joints in motor order: {told}")
    for term in actions["terms"]:
        if term["kind"] != "joint_position":
            raise ConfigError(
                f"action {term['name']!r} is of kind {term['kind']!r}; what is written for that "
                "runtime drives joint_position alone"
            )
    rows = {name: joints["names"].index(name) for name in names}
    return {
        "joint_ids_map": [motors.index(name) for name in names],
        "step_dt": resolved["control_dt"],
        "stiffness": [joints["kp"][rows[name]] for name in motors],
        "damping": [joints["kd"][rows[name]] for name in motors],
        "default_joint_pos": [joints["default"][rows[name]] for name in names],
        "commands": _commands(resolved, settings.command_ranges),
        "actions": {
            "JointPositionAction": {
                "clip": _clip(actions),
                "joint_names": names,
                "scale": actions["scale"],
                "offset": actions["offset"],
                "joint_ids": None,
            }
        },
        "observations": _observations(resolved),
    }


def write_deploy_yaml(contract: Any, settings: DeploySettings) -> Path:
    """Writes `deploy.yaml`; the policy beside it needs a fixed batch of 1.

    Args:
        contract: See `deploy_document`.
        settings: The file, motor order and command ranges.

    Returns:
        The file.

    Raises:
        ConfigError: See `deploy_document`.
    """
    target = Path(settings.path).expanduser()
    text = "\n".join(_yaml(deploy_document(contract, settings))) + "\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _commands(
    contract: Mapping[str, Any], given: Mapping[str, tuple[float, float]] | None
) -> dict[str, Any]:
    """Only a planar velocity has a place in that runtime; its stick covers these ranges."""
    for name, command in contract["commands"].items():
        if tuple(command["components"]) != _VELOCITY:
            continue
        ranges: Mapping[str, Any] = command.get("ranges", {}) if given is None else given
        lacking = [part for part in _VELOCITY if part not in ranges]
        if lacking:
            raise ConfigError(
                f"command {name!r}: the contract does not say the range of {', '.join(lacking)}; "
                "give command_ranges"
            )
        keys = zip(("lin_vel_x", "lin_vel_y", "ang_vel_z"), _VELOCITY, strict=True)
        return {"base_velocity": {"ranges": {t: [*map(float, ranges[o])] for t, o in keys}}}
    return {}


def _clip(actions: Mapping[str, Any]) -> list[list[float]] | None:
    """Bounds of the joint target: the action box through scale and offset, and the target clip."""
    bounds: list[list[float]] = []
    columns = (actions[key] for key in ("scale", "offset", "box", "target_clip"))
    for scale, offset, box, target in zip(*columns, strict=True):
        reach = _UNLIMITED if box is None else abs(scale) * box
        low, high = target or (None, None)
        low = -_UNLIMITED if low is None else low
        high = _UNLIMITED if high is None else high
        # clip(offset + clamp) = clamp into both: the target clip decides where they do not meet.
        bounds.append([min(max(offset - reach, low), high), max(min(offset + reach, high), low)])
    unlimited = all(low <= -_UNLIMITED and high >= _UNLIMITED for low, high in bounds)
    return None if unlimited else bounds


def _observations(contract: Mapping[str, Any]) -> dict[str, Any]:
    terms: dict[str, Any] = {}
    for term in policy_terms(contract):
        if term["delay"]:
            raise ConfigError(f"{term['name']}: that runtime has no observation delay")
        function = term["func"].rpartition(":")[2]
        name = str(_NAMES.get(function, term["name"]))
        command = contract["commands"].get(term["params"].get("command"))
        if command is not None and tuple(command["components"]) == _VELOCITY:
            name = "velocity_commands"
        if name in terms:
            raise ConfigError(f"two observation terms would be called {name!r} in that runtime")
        clip = term["clip"]
        if clip is not None:
            low, high = clip
            clip = [-_UNLIMITED if low is None else low, _UNLIMITED if high is None else high]
        terms[name] = {
            "params": {},
            "clip": clip,
            "scale": term["scale"],
            "history_length": max(term["history"], 1),
        }
    return terms


def _yaml(data: Mapping[str, Any], indent: str = "") -> list[str]:
    """Block mappings, flow lists; every float has a point, which YAML 1.1 asks for."""
    lines: list[str] = []
    for key, value in data.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{key}:", *_yaml(cast("dict[str, Any]", value), indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {_scalar(value)}")
    return lines


def _scalar(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_scalar, cast("list[Any]", value))) + "]"
    if isinstance(value, float):
        mantissa, e, exponent = repr(value).partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}{e}{exponent}"
    return json.dumps(value)

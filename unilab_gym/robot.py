"""What a scene changes of a robot's MJCF: actuators, sensors, default pose."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from unilab_gym.config import ActuatorCfg, SceneCfg, SensorCfg
from unilab_gym.engine import mujoco
from unilab_gym.errors import ConfigError, near
from unilab_gym.model_index import ModelIndex

_SCALAR_JOINTS = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
_OFF, _ON = mujoco.mjtLimited.mjLIMITED_FALSE, mujoco.mjtLimited.mjLIMITED_TRUE

_SITE = ("gyro", "accelerometer", "velocimeter", "magnetometer", "force", "torque", "touch")
_FRAME = tuple(
    f"frame{what}"
    for what in ("pos", "quat", "xaxis", "yaxis", "zaxis", "linvel", "angvel", "linacc", "angacc")
)
_BODY = ("subtreecom", "subtreelinvel", "subtreeangmom")
_JOINT = ("jointpos", "jointvel", "jointactuatorfrc")
SENSOR_KINDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_SITE, ("site", "body")),
    **dict.fromkeys(_FRAME, ("site", "body", "geom")),
    **dict.fromkeys(_BODY, ("body",)),
    **dict.fromkeys(_JOINT, ("joint",)),
}
"""Kinds of sensors that a config can add, and what each can be fixed to."""

_TYPES = {"jointactuatorfrc": "JOINTACTFRC"}
_OBJECTS = {
    "site": mujoco.mjtObj.mjOBJ_SITE,
    "body": mujoco.mjtObj.mjOBJ_XBODY,  # its frame; mjOBJ_BODY is its centre of mass
    "geom": mujoco.mjtObj.mjOBJ_GEOM,
    "joint": mujoco.mjtObj.mjOBJ_JOINT,
}


def adapt_robot(spec: Any, scene: SceneCfg) -> None:
    """Puts the scene's actuators and sensors into an `MjSpec`.

    Raises:
        ConfigError: If a pattern matches nothing, two entries claim one joint, a sensor's kind or
            what it is fixed to is unknown, or a name is taken.
    """
    claimed: dict[str, str] = {}
    joints = {joint.name: joint for joint in spec.joints if joint.type in _SCALAR_JOINTS}
    for label, cfg in scene.actuators.items():
        where = f"scene.actuators.{label}"
        for name in _matches(where, cfg.joints, joints):
            if name in claimed:
                raise ConfigError(f"{where}: joint {name!r} is claimed by {claimed[name]!r} too")
            claimed[name] = label
            _drive(spec, where, joints[name], cfg)
    for name, cfg in scene.sensors.items():
        _add_sensor(spec, name, cfg)


def _matches(where: str, patterns: tuple[str, ...], names: Iterable[str]) -> list[str]:
    found: list[str] = []
    if isinstance(patterns, str) or not patterns:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{where}: joints must be a tuple of patterns, got {patterns!r}")
    for pattern in patterns:
        try:
            hits = [name for name in names if re.fullmatch(pattern, name)]
        except re.error as error:
            raise ConfigError(f"{where}: pattern {pattern!r} is not valid: {error}") from None
        if not hits:
            raise ConfigError(f"{where}: no joint matches {near(pattern, names)}")
        found += [name for name in hits if name not in found]
    return found


def _drive(spec: Any, where: str, joint: Any, cfg: ActuatorCfg) -> None:
    """Gives a joint the actuator of the config: the MJCF's, changed in place, or a new one."""
    kind = mujoco.mjtTrn.mjTRN_JOINT
    own = [a for a in spec.actuators if a.trntype == kind and a.target == joint.name]
    if len(own) > 1:
        raise ConfigError(f"{where}: joint {joint.name!r} has {len(own)} actuators in the MJCF")
    if own:
        actuator = own[0]
        actuator.name = actuator.name or joint.name
    else:
        if spec.actuator(joint.name) is not None:
            raise ConfigError(f"{where}: the MJCF has an actuator {joint.name!r} of something else")
        actuator = spec.add_actuator(name=joint.name, trntype=kind, target=joint.name)
    actuator.gear = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    actuator.ctrllimited = actuator.actlimited = _OFF  # the action box limits
    actuator.armature, actuator.damping = 0.0, [0.0, 0.0, 0.0]
    actuator.delay, actuator.nsample = 0.0, 0
    if cfg.kind == "position":
        actuator.set_to_position(kp=cfg.kp, kv=cfg.kd or 0.0)
    else:
        actuator.set_to_motor()
    actuator.forcelimited = _OFF if cfg.effort is None else _ON
    if cfg.effort is not None:
        actuator.forcerange = [-cfg.effort, cfg.effort]
    if cfg.armature is not None:
        joint.armature = cfg.armature
    if cfg.damping is not None:
        joint.damping = [cfg.damping, 0.0, 0.0]
    if cfg.frictionloss is not None:
        joint.frictionloss = cfg.frictionloss


def _add_sensor(spec: Any, name: str, cfg: SensorCfg) -> None:
    where = f"scene.sensors.{name}"
    if cfg.kind not in SENSOR_KINDS:
        raise ConfigError(f"{where}: kind {near(cfg.kind, SENSOR_KINDS)}")
    if spec.sensor(name) is not None:
        raise ConfigError(f"{where}: the MJCF has a sensor of that name")
    what = next(option for option in _OBJECTS if getattr(cfg, option))
    target = getattr(cfg, what)
    if what not in SENSOR_KINDS[cfg.kind]:
        options = " or ".join(SENSOR_KINDS[cfg.kind])
        raise ConfigError(f"{where}: a {cfg.kind} is fixed to a {options}, not to a {what}")
    there = [item.name for item in getattr(spec, {"body": "bodies"}.get(what, f"{what}s"))]
    if target not in there:
        raise ConfigError(f"{where}: no {what} {near(target, there)}")
    if what == "body" and cfg.kind in _SITE:
        if spec.site(name) is not None:
            raise ConfigError(f"{where}: the MJCF has a site of that name")
        spec.body(target).add_site(name=name)
        what, target = "site", name
    spec.add_sensor(
        name=name,
        type=getattr(mujoco.mjtSensor, f"mjSENS_{_TYPES.get(cfg.kind, cfg.kind.upper())}"),
        objtype=mujoco.mjtObj.mjOBJ_BODY if cfg.kind in _BODY else _OBJECTS[what],
        objname=target,
    )


def with_default_pose(index: ModelIndex, scene: SceneCfg) -> ModelIndex:
    """Name tables whose default state is the scene's: positions, and controls that hold them.

    Raises:
        ConfigError: If a pattern matches nothing, two claim one joint with different values, a
            position lies outside the joint's range, or a fixed base is given a position.
    """
    qpos, ctrl = list(index.default_qpos), list(index.default_ctrl)
    if scene.root_pos is not None:
        if not index.floating:
            raise ConfigError("scene.root_pos needs a floating base; this robot is fixed")
        qpos[:3] = scene.root_pos
    placed: set[str] = set()
    if scene.joint_pos:
        wanted = index.per_joint("scene.joint_pos", scene.joint_pos, index.joint_names, missing=0.0)
        for joint, value in zip(index.joints, wanted, strict=True):
            if not any(re.fullmatch(pattern, joint.name) for pattern in scene.joint_pos):
                continue
            if not joint.lower <= value <= joint.upper:
                raise ConfigError(
                    f"scene.joint_pos: {value} of joint {joint.name!r} lies outside its range "
                    f"{joint.lower:g} .. {joint.upper:g}"
                )
            qpos[joint.qpos_adr] = value
            placed.add(joint.name)
    joints = tuple(
        dataclasses.replace(joint, default=float(qpos[joint.qpos_adr])) for joint in index.joints
    )
    defaults = {joint.name: joint.default for joint in joints}
    driven = [pattern for cfg in scene.actuators.values() for pattern in cfg.joints]
    for actuator in index.actuators:
        name = actuator.joint
        ours = name in placed or any(re.fullmatch(pattern, name) for pattern in driven)
        if ours or scene.keyframe is None:  # a keyframe's controls hold otherwise
            ctrl[actuator.index] = defaults[name] if actuator.kind == "position" else 0.0
    return dataclasses.replace(
        index,
        default_qpos=tuple(float(x) for x in qpos),
        default_ctrl=tuple(ctrl),
        joints=joints,
    )

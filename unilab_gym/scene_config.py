"""Configuration of what is simulated: the engine, the robot's actuators and sensors, the ground."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from unilab_gym.errors import ConfigError, one_of
from unilab_gym.serialize import freeze


@dataclass(frozen=True, kw_only=True)
class SimCfg:
    """Engine settings, the same on every backend.

    The last three belong to one backend each. A task serves both and may hold them all; given by
    hand as an override of `make` or `make_vec`, one that the backend does not read is refused.
    """

    integrator: Literal["euler", "implicitfast"] = "implicitfast"
    solver: Literal["newton", "cg"] = "newton"
    iterations: int = 10
    ls_iterations: int = 20
    cone: Literal["pyramidal", "elliptic"] = "pyramidal"
    impratio: float = 1.0
    gravity: tuple[float, float, float] = (0.0, 0.0, -9.81)
    """m/s^2."""
    njmax: int | None = None
    """Constraint rows per environment (mjwarp); None lets the engine guess."""
    nconmax: int | None = None
    """Contacts per environment in the shared pool (mjwarp); None lets the engine guess."""
    num_threads: int | None = None
    """Physics threads (mujoco); None takes the CPUs this process may use."""

    def __post_init__(self) -> None:
        """Checks counts and factors.

        Raises:
            ConfigError: If one is not positive, or a number is not finite.
        """
        for name in ("iterations", "ls_iterations", "impratio", "njmax", "nconmax", "num_threads"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"sim.{name} must be positive, got {value!r}")
        if not (math.isfinite(self.impratio) and all(math.isfinite(g) for g in self.gravity)):
            raise ConfigError(
                f"sim.impratio and sim.gravity must be finite, got {self.impratio}, {self.gravity}"
            )


@dataclass(frozen=True, kw_only=True)
class ActuatorCfg:
    """One actuator for each joint that a pattern matches, in the place of the MJCF's own.

    None keeps what the MJCF says of the joint. An actuator keeps the name that the MJCF gave it;
    where there was none it is called like its joint.
    """

    joints: tuple[str, ...]
    """Patterns; two entries of a scene may not claim one joint."""
    kind: Literal["position", "motor"] = "position"
    """position: force = kp * (ctrl - q) - kd * qdot; motor: force = ctrl."""
    kp: float | None = None
    """Stiffness in N m/rad (or N/m); needed by kind position, and only there."""
    kd: float | None = None
    """Damping in N m s/rad (or N s/m), kind position only; None is 0."""
    effort: float | None = None
    """Bound of the force in N m (or N); None does not limit it."""
    armature: float | None = None
    """Rotor inertia of the joint in kg m^2 (or kg)."""
    damping: float | None = None
    """Damping of the joint itself in N m s/rad (or N s/m); it adds to kd."""
    frictionloss: float | None = None
    """Dry friction of the joint in N m (or N)."""

    def __post_init__(self) -> None:
        """Freezes the patterns; checks that the gains belong to the kind.

        Raises:
            ConfigError: If a gain is missing or has no effect, or a number is out of range.
        """
        object.__setattr__(self, "joints", freeze(self.joints))
        one_of("kind", self.kind, ("position", "motor"))
        if self.kind == "position" and self.kp is None:
            raise ConfigError("an actuator of kind 'position' needs kp")
        if self.kind == "motor" and not (self.kp is None and self.kd is None):
            raise ConfigError("kp and kd have no effect on an actuator of kind 'motor'")
        for name in ("kp", "kd", "effort", "armature", "damping", "frictionloss"):
            value = getattr(self, name)
            least = "positive" if name in ("kp", "effort") else "not negative"
            good = value is None or (value > 0 if least == "positive" else value >= 0)
            if not (good and (value is None or math.isfinite(value))):
                raise ConfigError(f"actuator {name} must be {least} and finite, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class SensorCfg:
    """A sensor that is added to the MJCF; terms read it by its name in the scene."""

    kind: str
    """MJCF's word for it: gyro, accelerometer, velocimeter, force, torque, touch, framelinvel,
    frameangvel, framequat, jointpos ..."""
    site: str | None = None
    """What it is fixed to: one of site, body, geom, joint. A body stands for its frame; a sensor
    that MuJoCo fixes to a site gets one there."""
    body: str | None = None
    geom: str | None = None
    joint: str | None = None

    def __post_init__(self) -> None:
        """Checks that it is fixed to one thing.

        Raises:
            ConfigError: If it is fixed to none or to several.
        """
        given = [name for name in ("site", "body", "geom", "joint") if getattr(self, name)]
        if len(given) != 1:
            raise ConfigError(f"a sensor is fixed to one of site, body, geom, joint; got {given}")


@dataclass(frozen=True, kw_only=True)
class SceneCfg:
    """What is simulated: one robot on a ground, or a world of your own (`ground="none"`)."""

    robot: str
    """MJCF file: a path inside the packaged assets (`robots/go2/go2.xml`) or a path on disk. Meshes
    and included files are found as MuJoCo finds them, relative to the file."""
    actuators: Mapping[str, ActuatorCfg] = field(default_factory=dict[str, ActuatorCfg])
    """Actuators in the place of the MJCF's, by a name of your choice."""
    sensors: Mapping[str, SensorCfg] = field(default_factory=dict[str, SensorCfg])
    """Sensors beside the MJCF's, by name."""
    ground: Literal["flat", "none"] = "flat"
    ground_friction: float = 1.0
    """Slide friction of the ground geom; a geom with higher priority decides for both."""
    keyframe: str | None = "home"
    """Default state; None takes the model's qpos0."""
    joint_pos: Mapping[str, float] = field(default_factory=dict[str, float])
    """Default joint positions over those of the keyframe, `{pattern: rad or m}`."""
    root_pos: tuple[float, float, float] | None = None
    """Default position of a floating base in m; None takes the keyframe's."""

    def __post_init__(self) -> None:
        """Freezes mappings; checks robot and ground.

        Raises:
            ConfigError: If no MJCF is named, the ground is unknown, or its friction has no effect.
        """
        if not self.robot:
            raise ConfigError(
                "scene.robot must name an MJCF file, got '': an environment needs a joint to act "
                "on; any world with one will do (ground='none' adds nothing to it)"
            )
        one_of("ground", self.ground, ("flat", "none"))
        if self.ground == "none" and self.ground_friction != 1.0:
            raise ConfigError("ground_friction has no effect with ground='none'")
        for name in ("actuators", "sensors", "joint_pos"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        object.__setattr__(self, "root_pos", freeze(self.root_pos))

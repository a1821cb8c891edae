"""Name tables of a compiled model: plain Python, no engine, no torch.

`ModelIndex` is what configs, reads and the policy contract resolve names against. It is built by
`unilab_gym.scene` from an `MjModel`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from unilab_gym.errors import ConfigError, near


class Stage(enum.IntEnum):
    """The forward stage after which a field is current; same order as MuJoCo's mjtStage."""

    NONE = 0
    """State itself: qpos, qvel."""
    POS = 1
    """Kinematics, position sensors."""
    VEL = 2
    """Velocities, velocity sensors."""
    ACC = 3
    """Forces and accelerations: the last substep's value, 0 after a reset."""


@dataclass(frozen=True)
class FieldSlice:
    """Columns of one engine field, flattened to `[N, width]`, and the shape they form."""

    field: str
    """Engine field: qpos, qvel, xpos, xquat, geom_xpos, geom_xmat, site_xpos, sensordata ..."""
    columns: tuple[int, ...]
    """Column numbers in the flattened field, in the order of the result."""
    shape: tuple[int, ...]
    """Shape of one row of the result."""
    stage: Stage

    @property
    def is_range(self) -> bool:
        """Whether the columns are consecutive."""
        first = self.columns[0]
        return self.columns == tuple(range(first, first + len(self.columns)))


@dataclass(frozen=True)
class JointInfo:
    """One hinge or slide joint."""

    name: str
    qpos_adr: int
    dof_adr: int
    lower: float
    """Lower limit in rad or m; -inf when not limited."""
    upper: float
    default: float
    """Position in the home keyframe."""
    armature: float


@dataclass(frozen=True)
class ActuatorInfo:
    """The actuator of a joint: force = kp * (ctrl - q) - kd * qdot, within +-effort."""

    name: str
    index: int
    joint: str
    kp: float
    kd: float
    effort: float
    """Force limit in N m; inf when not limited."""
    kind: str = "position"
    """position, velocity (kp is 0), motor (force = ctrl, kp and kd are 0) or other."""


@dataclass(frozen=True)
class SensorInfo:
    """Where a named sensor lies in `sensordata`."""

    name: str
    adr: int
    dim: int
    stage: Stage
    kind: str = ""
    """MuJoCo's name of the type, lower case: gyro, framepos, touch ..."""


@dataclass(frozen=True)
class GeomInfo:
    """One geom: what a flat-ground gap needs."""

    name: str
    index: int
    body: str
    kind: str
    """plane, sphere, capsule, ellipsoid, cylinder, box, mesh."""
    size: tuple[float, float, float]
    friction: tuple[float, float, float]
    """Slide, spin and roll friction."""


@dataclass(frozen=True)
class ModelIndex:
    """Every name of a model and where it lies."""

    nq: int
    nv: int
    nu: int
    nstate: int
    """Width of a packed mjSTATE_INTEGRATION row."""
    qpos_offset: int
    """Column of qpos in that row."""
    qvel_offset: int
    floating: bool
    """Whether the first joint is free: qpos[:7], qvel[:6] are the root's."""
    root_body: str
    default_qpos: tuple[float, ...]
    default_ctrl: tuple[float, ...]
    joints: tuple[JointInfo, ...]
    """Scalar joints in natural order (the free joint is not among them)."""
    actuators: tuple[ActuatorInfo, ...]
    bodies: Mapping[str, int]
    geoms: Mapping[str, GeomInfo]
    sites: Mapping[str, int]
    sensors: Mapping[str, SensorInfo]
    sim_dt: float
    field_widths: Mapping[str, int] = field(default_factory=dict[str, int])
    """Engine field -> columns per environment."""
    source: str = ""
    """The robot's MJCF file; empty where the tables were not built from one."""

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Scalar joints in natural order."""
        return tuple(joint.name for joint in self.joints)

    def joint(self, name: str) -> JointInfo:
        """The joint of that name.

        Raises:
            ConfigError: If there is none.
        """
        for joint in self.joints:
            if joint.name == name:
                return joint
        raise ConfigError(f"no joint {near(name, self.joint_names)}")

    def field_row(self, field: str, name: str) -> int:
        """Row of a model field such as `body_mass` that belongs to a named object.

        Raises:
            ConfigError: If nothing of the field's kind has that name.
        """
        kind, _, _ = field.partition("_")
        kind = "joint" if kind == "dof" else kind
        rows: dict[str, dict[str, int]] = {
            "joint": {joint.name: joint.dof_adr for joint in self.joints},
            "body": dict(self.bodies),
            "geom": {geom.name: geom.index for geom in self.geoms.values()},
            "actuator": {actuator.name: actuator.index for actuator in self.actuators},
        }
        if kind not in rows:
            raise ConfigError(f"model field {field!r} has no rows by name, {name!r} was asked for")
        if name not in rows[kind]:
            raise ConfigError(f"model field {field!r}: no {kind} {near(name, rows[kind])}")
        return rows[kind][name]

    def actuator_of(self, joint: str, kind: str | None = None) -> ActuatorInfo:
        """The actuator that drives a joint.

        Args:
            joint: The joint's name.
            kind: Which kind it must be; None takes any.

        Raises:
            ConfigError: If none does, or it is of another kind.
        """
        found = [actuator for actuator in self.actuators if actuator.joint == joint]
        for actuator in found:
            if kind is None or actuator.kind == kind:
                return actuator
        if found:
            raise ConfigError(
                f"joint {joint!r} needs a {kind} actuator, it has the {found[0].kind} actuator "
                f"{found[0].name!r}: scene.actuators can replace it"
            )
        driven = (actuator.joint for actuator in self.actuators)
        raise ConfigError(f"no actuator drives joint {near(joint, driven)}")

    def names(self, kind: str) -> tuple[str, ...]:
        """All names of a kind: joint, body, geom, site, sensor or actuator."""
        tables: dict[str, Iterable[str]] = {
            "joint": self.joint_names,
            "body": self.bodies,
            "geom": self.geoms,
            "site": self.sites,
            "sensor": self.sensors,
            "actuator": (actuator.name for actuator in self.actuators),
        }
        if kind not in tables:
            raise ConfigError(f"unknown kind of name {near(kind, tables)}")
        return tuple(tables[kind])

    def match(
        self, kind: str, patterns: str | Iterable[str], *, keep_order: bool = True
    ) -> tuple[str, ...]:
        """Names of a kind that fully match regular expressions.

        Args:
            kind: joint, body, geom, site, sensor or actuator.
            patterns: One or more regular expressions; each must match something.
            keep_order: Follow the order of the patterns; else the model's order.

        Returns:
            The names, each once.

        Raises:
            ConfigError: If there is no pattern, or one is not valid or matches nothing.
        """
        names = self.names(kind)
        found: list[str] = []
        asked = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        if not asked:
            raise ConfigError(f"no {kind} pattern was given; available: {', '.join(names)}")
        for pattern in asked:
            found.extend(_hits(kind, pattern, names))
        unique = tuple(dict.fromkeys(found))
        return unique if keep_order else tuple(name for name in names if name in set(unique))

    def per_joint(
        self,
        what: str,
        value: float | Mapping[str, float],
        joints: tuple[str, ...],
        missing: float | None = None,
    ) -> tuple[float, ...]:
        """One number per joint from a scalar or from `{pattern: number}`.

        Raises:
            ConfigError: If a pattern is not valid or matches nothing, two patterns claim one
                joint with different values, or a joint gets none and `missing` is None.
        """
        if not isinstance(value, Mapping):
            return (float(value),) * len(joints)
        result: dict[str, float] = {}
        for pattern, number in value.items():
            try:
                hits = _hits("joint", pattern, joints)
            except ConfigError as error:
                raise ConfigError(f"{what}: {error}") from None
            for name in hits:
                if result.get(name, float(number)) != float(number):
                    raise ConfigError(
                        f"{what}: joint {name!r} is claimed with {result[name]} and {number}"
                    )
                result[name] = float(number)
        absent = [name for name in joints if name not in result]
        if absent and missing is None:
            raise ConfigError(f"{what}: no value for joints {absent}")
        result.update((name, float(missing or 0.0)) for name in absent)
        return tuple(result[name] for name in joints)


def _hits(kind: str, pattern: str, names: Iterable[str]) -> list[str]:
    try:
        hits = [name for name in names if re.fullmatch(pattern, name)]
    except re.error as error:
        raise ConfigError(f"{kind} pattern {pattern!r} is not valid: {error}") from None
    if not hits:
        raise ConfigError(f"no {kind} matches {near(pattern, names)}")
    return hits

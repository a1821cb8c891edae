"""Reads: hashable values that name what a term may ask the frame for.

Three kinds. *Engine* reads are columns of an engine field and are gathered by the backend;
*derived* reads are computed from engine reads, at most once per boundary, whoever asks; *runtime*
reads are tensors that managers own (commands, actions, counters).

Shapes use the package's letters: N envs, J joints, B bodies, K geoms or sites. Quaternions are
wxyz. `_w` is the world frame, `_b` the root body's. Memory layout is not promised: index, add and
`reshape` a read; `view(-1)` may raise. A read is overwritten at the next boundary and shared by
all who ask: never write to it, and copy what a term keeps for later into memory from `ctx.zeros`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab_gym import math as ugm
from unilab_gym.errors import ConfigError, near
from unilab_gym.model_index import FieldSlice, GeomInfo, ModelIndex, Stage
from unilab_gym.runtime.read_formulas import (
    Below,
    ComponentErrorSq,
    GravityOfRotation,
    InFrame,
    LowestPoint,
    Minus,
    PlanarErrorSq,
)

ALL = (".*",)


class _Interned(type):
    """Makes equal reads one object, so that looking one up compares and hashes no fields.

    A step looks up about a hundred reads; with the methods that dataclasses generate that would
    cost more than the arithmetic of most terms.
    """

    def __init__(cls, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        cls._by_arguments: dict[Any, Any] = {}
        cls._by_fields: dict[Any, Any] = {}

    if not TYPE_CHECKING:  # a type checker shall see the fields, not *args

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            key = (args, tuple(kwargs.items())) if kwargs else args
            try:
                return cls._by_arguments[key]
            except KeyError:
                pass
            except TypeError as error:
                raise ConfigError(f"{cls.__name__}{args}: write tuples, not lists") from error
            read = super().__call__(*args, **kwargs)
            fields = tuple(getattr(read, item.name) for item in dataclasses.fields(read))
            read = cls._by_fields.setdefault(fields, read)
            cls._by_arguments[key] = read
            return read


@dataclass(frozen=True, eq=False)
class Read(metaclass=_Interned):
    """Base of every read: equal reads are one object and share one tensor.

    Subclasses are decorated with `@dataclass(frozen=True, eq=False)`; fields are hashable.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles lead back to the one object."""
        names = (item.name for item in dataclasses.fields(self))
        return type(self), tuple(getattr(self, name) for name in names)


@dataclass(frozen=True, eq=False)
class EngineRead(Read):
    """Columns of one engine field."""

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """The columns, or a ConfigError that names what matches nothing."""
        raise NotImplementedError(type(self).__name__)


@dataclass(frozen=True, eq=False)
class RuntimeRead(Read):
    """A tensor that a manager owns."""


@dataclass(frozen=True, eq=False)
class DerivedRead(Read):
    """A value computed from other reads, at most once per boundary."""

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """The reads that `build`'s function takes, in order."""
        raise NotImplementedError(type(self).__name__)

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """A function of the required tensors; a `Formula` is bound to them once."""
        raise NotImplementedError(type(self).__name__)

    def at_stage(self, stage: Stage) -> DerivedRead:
        """The same value from what a refresh of `stage` computes anyway; by default this read."""
        return self


def blocks(starts: list[int], width: int) -> tuple[int, ...]:
    """Column numbers of blocks of `width` columns that begin at `starts`."""
    return tuple(start + k for start in starts for k in range(width))


def need_root(index: ModelIndex, read: Read) -> None:
    """Refuses a read of the root on a robot with a fixed base.

    Raises:
        ConfigError: Names the read.
    """
    if not index.floating:
        raise ConfigError(f"{type(read).__name__} needs a floating base; this robot is fixed")


# --- engine reads ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class JointPos(EngineRead):
    """Joint positions `[N, J]` in rad or m, in the order of the names' patterns."""

    names: tuple[str, ...] = ALL

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of qpos."""
        joints = [index.joint(name) for name in index.match("joint", self.names)]
        columns = tuple(joint.qpos_adr for joint in joints)
        return FieldSlice("qpos", columns, (len(columns),), Stage.NONE)


@dataclass(frozen=True, eq=False)
class JointVel(EngineRead):
    """Joint velocities `[N, J]` in rad/s or m/s."""

    names: tuple[str, ...] = ALL

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of qvel."""
        joints = [index.joint(name) for name in index.match("joint", self.names)]
        columns = tuple(joint.dof_adr for joint in joints)
        return FieldSlice("qvel", columns, (len(columns),), Stage.NONE)


@dataclass(frozen=True, eq=False)
class RootPos(EngineRead):
    """Root position in the world `[N, 3]`, m."""

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of qpos."""
        need_root(index, self)
        return FieldSlice("qpos", (0, 1, 2), (3,), Stage.NONE)


@dataclass(frozen=True, eq=False)
class RootQuat(EngineRead):
    """Root orientation `[N, 4]`, wxyz, body to world."""

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of qpos."""
        need_root(index, self)
        return FieldSlice("qpos", (3, 4, 5, 6), (4,), Stage.NONE)


@dataclass(frozen=True, eq=False)
class RootPose(EngineRead):
    """Root position and orientation `[N, 7]`."""

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of qpos."""
        need_root(index, self)
        return FieldSlice("qpos", tuple(range(7)), (7,), Stage.NONE)


@dataclass(frozen=True, eq=False)
class RootLinVelW(EngineRead):
    """Velocity of the root frame's origin in the world `[N, 3]`, m/s."""

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of qvel."""
        need_root(index, self)
        return FieldSlice("qvel", (0, 1, 2), (3,), Stage.NONE)


@dataclass(frozen=True, eq=False)
class RootAngVelB(EngineRead):
    """Angular velocity of the root in its own frame `[N, 3]`, rad/s."""

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of qvel."""
        need_root(index, self)
        return FieldSlice("qvel", (3, 4, 5), (3,), Stage.NONE)


@dataclass(frozen=True, eq=False)
class RootRot(EngineRead):
    """Rotation matrix of the root, body to world, `[N, 3, 3]`."""

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of xmat."""
        need_root(index, self)
        start = 9 * index.bodies[index.root_body]
        return FieldSlice("xmat", tuple(range(start, start + 9)), (3, 3), Stage.POS)


@dataclass(frozen=True, eq=False)
class BodyPos(EngineRead):
    """Origins of bodies in the world `[N, B, 3]`, m."""

    names: tuple[str, ...]

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of xpos."""
        starts = [3 * index.bodies[name] for name in index.match("body", self.names)]
        return FieldSlice("xpos", blocks(starts, 3), (len(starts), 3), Stage.POS)


@dataclass(frozen=True, eq=False)
class BodyQuat(EngineRead):
    """Orientations of bodies `[N, B, 4]`, wxyz."""

    names: tuple[str, ...]

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of xquat."""
        starts = [4 * index.bodies[name] for name in index.match("body", self.names)]
        return FieldSlice("xquat", blocks(starts, 4), (len(starts), 4), Stage.POS)


@dataclass(frozen=True, eq=False)
class GeomPos(EngineRead):
    """Centres of geoms in the world `[N, K, 3]`, m."""

    names: tuple[str, ...]

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of geom_xpos."""
        starts = [3 * index.geoms[name].index for name in index.match("geom", self.names)]
        return FieldSlice("geom_xpos", blocks(starts, 3), (len(starts), 3), Stage.POS)


@dataclass(frozen=True, eq=False)
class GeomUp(EngineRead):
    """The world's z axis seen from geoms `[N, K, 3]`: the third row of each rotation matrix."""

    names: tuple[str, ...]

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of geom_xmat."""
        starts = [9 * index.geoms[name].index + 6 for name in index.match("geom", self.names)]
        return FieldSlice("geom_xmat", blocks(starts, 3), (len(starts), 3), Stage.POS)


@dataclass(frozen=True, eq=False)
class SitePos(EngineRead):
    """Sites in the world `[N, K, 3]`, m."""

    names: tuple[str, ...]

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of site_xpos."""
        starts = [3 * index.sites[name] for name in index.match("site", self.names)]
        return FieldSlice("site_xpos", blocks(starts, 3), (len(starts), 3), Stage.POS)


@dataclass(frozen=True, eq=False)
class Sensor(EngineRead):
    """One named sensor `[N, d]`, in the sensor's unit."""

    name: str

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of sensordata."""
        if self.name not in index.sensors:
            raise ConfigError(f"no sensor {near(self.name, index.sensors)}")
        info = index.sensors[self.name]
        columns = tuple(range(info.adr, info.adr + info.dim))
        return FieldSlice("sensordata", columns, (info.dim,), info.stage)


@dataclass(frozen=True, eq=False)
class Sensors(EngineRead):
    """Several sensors of one width as one block `[N, K, d]`."""

    names: tuple[str, ...]

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of sensordata."""
        infos = [index.sensors[name] for name in index.match("sensor", self.names)]
        widths = {info.dim for info in infos}
        if len(widths) != 1:
            raise ConfigError(f"sensors {self.names} differ in width: {sorted(widths)}")
        width = widths.pop()
        columns = blocks([info.adr for info in infos], width)
        stage = max(info.stage for info in infos)
        return FieldSlice("sensordata", columns, (len(infos), width), stage)


@dataclass(frozen=True, eq=False)
class ActuatorForce(EngineRead):
    """Actuator forces of the last substep `[N, A]`, N m or N; 0 in rows just reset."""

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of actuator_force."""
        return FieldSlice("actuator_force", tuple(range(index.nu)), (index.nu,), Stage.ACC)


@dataclass(frozen=True, eq=False)
class JointAcc(EngineRead):
    """Joint accelerations of the last substep `[N, J]`, rad/s^2; 0 in rows just reset."""

    names: tuple[str, ...] = ALL

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of qacc."""
        joints = [index.joint(name) for name in index.match("joint", self.names)]
        columns = tuple(joint.dof_adr for joint in joints)
        return FieldSlice("qacc", columns, (len(columns),), Stage.ACC)


# --- derived reads -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ProjectedGravity(DerivedRead):
    """Unit gravity in the root frame `[N, 3]`: R^T (0, 0, -1), independent of yaw."""

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """The root's orientation."""
        return (RootQuat(),)

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """Six operations."""
        return ugm.GravityProjector(device)

    def at_stage(self, stage: Stage) -> DerivedRead:
        """Minus the third row of the root's rotation matrix, once there are matrices."""
        return _GravityFromRotation() if stage >= Stage.POS else self


@dataclass(frozen=True, eq=False)
class _GravityFromRotation(DerivedRead):
    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        return (RootRot(),)

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        return GravityOfRotation()


@dataclass(frozen=True, eq=False)
class RootLinVelB(DerivedRead):
    """Velocity of the root frame's origin in the root frame `[N, 3]`, m/s."""

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """Orientation and world velocity."""
        return (RootQuat(), RootLinVelW())

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """R^T v."""
        return ugm.quat_rotate_inverse

    def at_stage(self, stage: Stage) -> DerivedRead:
        """Three products with the root's rotation matrix, once there are matrices."""
        return _LinVelFromRotation() if stage >= Stage.POS else self


@dataclass(frozen=True, eq=False)
class _LinVelFromRotation(DerivedRead):
    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        return (RootRot(), RootLinVelW())

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        return InFrame()


@dataclass(frozen=True, eq=False)
class JointPosRel(DerivedRead):
    """Joint positions minus the default pose `[N, J]`, rad or m."""

    names: tuple[str, ...] = ALL

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """Joint positions."""
        return (JointPos(self.names),)

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """One subtraction."""
        names = index.match("joint", self.names)
        values = [index.joint(n).default for n in names]
        return Minus(torch.tensor(values, dtype=torch.float32, device=device))


@dataclass(frozen=True, eq=False)
class GeomHeight(DerivedRead):
    """Height of the lowest point of each geom over the ground plane z = 0, `[N, K]`, m.

    The support function in direction -z. A primitive is a Minkowski sum of balls, segments and
    discs, so its extent along u, the world's z axis in the geom's frame, is a sum: a ball gives
    its radius; segments along the axes give |u| . halves; a disc or an ellipsoid gives |S u| with
    its scales S on the diagonal. A capsule is ball and segment, a cylinder disc and segment, a
    box three segments.
    """

    names: tuple[str, ...]

    def _infos(self, index: ModelIndex) -> list[GeomInfo]:
        return [index.geoms[name] for name in index.match("geom", self.names)]

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """Centres, and orientations where a geom is not a sphere."""
        spheres = all(info.kind == "sphere" for info in self._infos(index))
        return (GeomPos(self.names),) if spheres else (GeomPos(self.names), GeomUp(self.names))

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """One subtraction for spheres, five operations for boxes, eight with discs."""
        parts = [_minkowski_parts(info) for info in self._infos(index)]
        radius = torch.tensor([part[0] for part in parts], dtype=torch.float32, device=device)
        halves = radius.new_tensor([part[1] for part in parts])
        discs = [number for number, part in enumerate(parts) if any(part[2])]
        first, last = (discs[0], discs[-1] + 1) if discs else (0, 0)
        scales = radius.new_tensor([part[2] for part in parts[first:last]]) if discs else None
        return LowestPoint(radius, halves, first, scales)


_AXES = tuple[float, float, float]


def _minkowski_parts(info: GeomInfo) -> tuple[float, _AXES, _AXES]:
    """Radius of the ball, halves of the segments, scales of the disc or ellipsoid."""
    a, b, c = info.size
    none = (0.0, 0.0, 0.0)
    table: dict[str, tuple[float, _AXES, _AXES]] = {
        "sphere": (a, none, none),
        "capsule": (a, (0.0, 0.0, b), none),
        "cylinder": (0.0, (0.0, 0.0, b), (a, a, 0.0)),
        "box": (0.0, (a, b, c), none),
        "ellipsoid": (0.0, none, (a, b, c)),
    }
    if info.kind not in table:
        raise ConfigError(f"geom {info.name!r} is a {info.kind}: only primitives have a height")
    return table[info.kind]


@dataclass(frozen=True, eq=False)
class GeomContact(DerivedRead):
    """Whether geoms touch flat ground, `[N, K]` bool: lowest point below `margin` m.

    Kinematic, so it is exact and fresh after a step and after a reset, unlike contact sensors.
    """

    names: tuple[str, ...]
    margin: float

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """The geoms' heights."""
        return (GeomHeight(self.names),)

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """One comparison."""
        return Below(torch.full((), self.margin, dtype=torch.float32, device=device))


# --- runtime reads -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Command(RuntimeRead):
    """A command's value `[N, d]`, or one of its named parts."""

    name: str
    part: str = ""


@dataclass(frozen=True, eq=False)
class Action(RuntimeRead):
    """The clamped action `[N, A]`: order 0 this step's, 1 and 2 the ones before."""

    order: int = 0


@dataclass(frozen=True, eq=False)
class EpisodeStep(RuntimeRead):
    """Control steps since the reset, `[N]` int64."""


@dataclass(frozen=True, eq=False)
class JointBias(RuntimeRead):
    """Encoder error of every joint `[N, J]` in natural order, rad (`RandomizeEncoderBias`)."""


@dataclass(frozen=True, eq=False)
class Terminated(RuntimeRead):
    """Whether a termination term fired in this step, `[N]` bool; false once a row has reset."""

    term: str


@dataclass(frozen=True, eq=False)
class EpisodeFailed(RuntimeRead):
    """Whether a failure (or a fault) ended the episode in this step, `[N]` bool."""


@dataclass(frozen=True, eq=False)
class EpisodeEnded(RuntimeRead):
    """Whether the episode ended in this step, by failure or limit, `[N]` bool."""


@dataclass(frozen=True, eq=False)
class RewardSum(RuntimeRead):
    """Sum of weight x value x dt of a reward term over the running episode, `[N]`."""

    term: str


@dataclass(frozen=True, eq=False)
class StepCount(RuntimeRead):
    """Control steps since construction, counting the running one, 0-d int64.

    Only where the config has a curriculum: otherwise nobody counts them.
    """


@dataclass(frozen=True, eq=False)
class LogValue(RuntimeRead):
    """A figure of the episode log by its key (`docs/logging.md`), 0-d float32."""

    key: str


@dataclass(frozen=True, eq=False)
class LinVelErrorSq(DerivedRead):
    """|c_xy - v_xy|^2 in the root frame, of a velocity command (x, y, yaw), `[N]`, m^2/s^2."""

    command: str

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """The command and the velocity."""
        return (Command(self.command), RootLinVelB())

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """Three operations."""
        return PlanarErrorSq()


@dataclass(frozen=True, eq=False)
class AngVelErrorSq(DerivedRead):
    """(c_yaw - w_z)^2 in the root frame, of a velocity command (x, y, yaw), `[N]`, rad^2/s^2."""

    command: str

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """The command and the angular velocity."""
        return (Command(self.command), RootAngVelB())

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """Two operations."""
        return ComponentErrorSq(2)

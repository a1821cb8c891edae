"""Reads of motion tracking: bodies' rotations and velocities, and errors to aligned targets.

Alignment: the reference is turned about the vertical and moved in the plane so that its anchor
meets the robot's; heights stay the reference's. With q the robot's anchor and r the reference's,
the turn is the twist about z of q r*, the unit (w, 0, 0, z) nearest to it. Turning robot and
reference together about z conjugates q r* by that turn, which leaves w and z as they are: so
aligned errors do not depend on where the robot stands nor where it looks. (The yaw angle of
q r*, an atan2, lacks this where the anchors lean.) It is computed once per boundary; a command's
parts hold each quaternion beside its product with k (`motion.command.turned_about_z`), so that
w and z are dot products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab_gym.model_index import FieldSlice, ModelIndex, Stage
from unilab_gym.runtime.reads import BodyPos, BodyQuat, Command, DerivedRead, EngineRead, Read

# --- of the robot ---------------------------------------------------------------------------------


def _columns(index: ModelIndex, names: tuple[str, ...], width: int) -> tuple[int, ...]:
    starts = [width * index.bodies[name] for name in index.match("body", names)]
    return tuple(start + k for start in starts for k in range(width))


@dataclass(frozen=True, eq=False)
class BodyMat(EngineRead):
    """Rotation matrices of bodies, body to world, `[N, B, 3, 3]`."""

    names: tuple[str, ...]

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of xmat."""
        columns = _columns(index, self.names, 9)
        return FieldSlice("xmat", columns, (len(columns) // 9, 3, 3), Stage.POS)


@dataclass(frozen=True, eq=False)
class BodyComVel(EngineRead):
    """MuJoCo's `cvel` of bodies `[N, B, 6]`: angular and linear velocity, world axes.

    The linear one is that of the body-fixed point at the robot's centre of mass.
    """

    names: tuple[str, ...]

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of cvel."""
        columns = _columns(index, self.names, 6)
        return FieldSlice("cvel", columns, (len(columns) // 6, 6), Stage.VEL)


@dataclass(frozen=True, eq=False)
class RobotCom(EngineRead):
    """The robot's centre of mass in the world `[N, 3]`, m."""

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of subtree_com."""
        start = 3 * index.bodies[index.root_body]
        return FieldSlice("subtree_com", (start, start + 1, start + 2), (3,), Stage.POS)


@dataclass(frozen=True, eq=False)
class BodyLinVelW(DerivedRead):
    """Velocities of bodies' origins in the world `[N, B, 3]`, m/s."""

    names: tuple[str, ...]

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """Spatial velocities and the lever arms."""
        return (BodyComVel(self.names), BodyPos(self.names), RobotCom())

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """Three operations: v + w x (p - c)."""

        def velocity(spatial: Tensor, pos: Tensor, com: Tensor) -> Tensor:
            arm = pos - com.unsqueeze(1)
            return torch.cross(spatial[..., :3], arm, dim=-1).add_(spatial[..., 3:])

        return velocity


# --- against a reference --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AnchorPosError(DerivedRead):
    """Reference anchor minus robot anchor, world, `[N, 3]`, m."""

    command: str
    anchor: str

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """Both positions."""
        return (Command(self.command, "anchor_pos"), BodyPos((self.anchor,)))

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """One subtraction."""

        def error(reference: Tensor, robot: Tensor) -> Tensor:
            return reference - robot[:, 0]

        return error


@dataclass(frozen=True, eq=False)
class AnchorTwist(DerivedRead):
    """(w, z) of q r* for the anchors, `[N, 2]`; |w| is the cosine of half their angle."""

    command: str
    anchor: str

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """Both orientations."""
        return (Command(self.command, "anchor_quats"), BodyQuat((self.anchor,)))

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """Two operations."""

        def twist(reference: Tensor, robot: Tensor) -> Tensor:
            return (reference * robot).sum(-1)

        return twist


@dataclass(frozen=True, eq=False)
class YawAlignment(DerivedRead):
    """The aligning turn as (w, z) of a unit quaternion `[N, 2]`.

    Where the anchors are half a turn about a horizontal axis apart there is none: it is (0, 0).
    """

    command: str
    anchor: str

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """The twist."""
        return (AnchorTwist(self.command, self.anchor),)

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """Five operations."""

        def unit(twist: Tensor) -> Tensor:
            norm = twist.square().sum(1, keepdim=True).sqrt_().clamp_min_(1e-6)
            return twist / norm

        return unit


class _Turn:
    """Rows (c, c, 1) and (s, s, 0) of the aligning turn `[N, 1, 2, 3]`, in one buffer."""

    def __init__(self) -> None:
        self._rows: Tensor | None = None

    def __call__(self, unit: Tensor) -> Tensor:
        if self._rows is None or self._rows.shape[0] != unit.shape[0]:
            self._rows = unit.new_zeros((unit.shape[0], 1, 2, 3))
            self._rows[:, 0, 0, 2] = 1.0
        rows = self._rows[:, 0]
        w, z = unit[:, :1].expand(-1, 2), unit[:, 1:].expand(-1, 2)
        squares = unit.square()
        first, second = squares[:, :1].expand(-1, 2), squares[:, 1:].expand(-1, 2)
        torch.sub(first, second, out=rows[:, 0, :2])
        torch.mul(w, z, out=rows[:, 1, :2])
        rows[:, 1, :2].mul_(2.0)
        return self._rows


@dataclass(frozen=True, eq=False)
class YawTurn(DerivedRead):
    """Cosine and sine of the aligning turn, laid out for `body_rel`, `[N, 1, 2, 3]`."""

    command: str
    anchor: str

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """The alignment."""
        return (YawAlignment(self.command, self.anchor),)

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """Four operations into one buffer, which the next boundary overwrites."""
        return _Turn()


@dataclass(frozen=True, eq=False)
class BodyPosError(DerivedRead):
    """Robot minus aligned reference, world axes, `[N, B, 3]`, m."""

    command: str
    anchor: str
    bodies: tuple[str, ...]

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """Targets, the turn, the robot."""
        return (
            Command(self.command, "body_rel"),
            YawTurn(self.command, self.anchor),
            BodyPos(self.bodies),
            BodyPos((self.anchor,)),
        )

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """Four operations."""

        def error(rel: Tensor, turn: Tensor, pos: Tensor, anchor: Tensor) -> Tensor:
            target = (rel * turn).sum(-2)
            target[..., :2].add_(anchor[..., :2])
            return pos - target

        return error


@dataclass(frozen=True, eq=False)
class BodyPosErrorSq(DerivedRead):
    """Squared distances of bodies to their aligned targets `[N, B]`, m^2."""

    command: str
    anchor: str
    bodies: tuple[str, ...]

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """The errors."""
        return (BodyPosError(self.command, self.anchor, self.bodies),)

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """Two operations."""

        def squared(error: Tensor) -> Tensor:
            return error.square().sum(-1)

        return squared


@dataclass(frozen=True, eq=False)
class BodyAngleError(DerivedRead):
    """Angles between bodies and their aligned targets `[N, B]`, rad in [0, pi].

    2 acos |q . (w r + z k r)|: the sign of a quaternion does not matter.
    """

    command: str
    anchor: str
    bodies: tuple[str, ...]

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """Targets, the alignment, the robot."""
        return (
            Command(self.command, "body_quats"),
            YawAlignment(self.command, self.anchor),
            BodyQuat(self.bodies),
        )

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """Eight operations."""

        def angle(reference: Tensor, unit: Tensor, robot: Tensor) -> Tensor:
            target = (reference * unit.view(-1, 1, 2, 1)).sum(2)
            cosine = target.mul_(robot).sum(-1).abs_().clamp_max_(1.0)
            return cosine.acos_().mul_(2.0)

        return angle

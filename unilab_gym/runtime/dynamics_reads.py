"""Reads of torques, accelerations and the velocities of bodies; see `runtime.reads`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab_gym.model_index import FieldSlice, ModelIndex, Stage
from unilab_gym.runtime.reads import (
    ALL,
    BodyPos,
    DerivedRead,
    EngineRead,
    Read,
    blocks,
    need_root,
)


@dataclass(frozen=True, eq=False)
class JointTorque(EngineRead):
    """Torques that actuators put on joints in the last substep `[N, J]`, N m or N.

    In the order of joints, unlike `ActuatorForce`; 0 in rows just reset.
    """

    names: tuple[str, ...] = ALL

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of qfrc_actuator."""
        joints = [index.joint(name) for name in index.match("joint", self.names)]
        columns = tuple(joint.dof_adr for joint in joints)
        return FieldSlice("qfrc_actuator", columns, (len(columns),), Stage.ACC)


@dataclass(frozen=True, eq=False)
class RootAcc(EngineRead):
    """Acceleration of the root in the last substep `[N, 6]`; 0 in rows just reset.

    Columns 0 to 2: linear, world frame, m/s^2; 3 to 5: angular, root frame, rad/s^2.
    """

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of qacc."""
        need_root(index, self)
        return FieldSlice("qacc", tuple(range(6)), (6,), Stage.ACC)


@dataclass(frozen=True, eq=False)
class BodyAngVelW(EngineRead):
    """Angular velocities of bodies in the world `[N, B, 3]`, rad/s."""

    names: tuple[str, ...]

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """The rotational half of cvel."""
        starts = [6 * index.bodies[name] for name in index.match("body", self.names)]
        return FieldSlice("cvel", blocks(starts, 3), (len(starts), 3), Stage.VEL)


@dataclass(frozen=True, eq=False)
class _BodyComVel(EngineRead):
    """Velocity of each body's motion at the tree's centre of mass, world frame `[N, B, 3]`."""

    names: tuple[str, ...]

    def resolve(self, index: ModelIndex) -> FieldSlice:
        starts = [6 * index.bodies[name] + 3 for name in index.match("body", self.names)]
        return FieldSlice("cvel", blocks(starts, 3), (len(starts), 3), Stage.VEL)


@dataclass(frozen=True, eq=False)
class RootTreeCom(EngineRead):
    """Centre of mass of the root body and all that hangs on it, world frame `[N, 3]`, m."""

    def resolve(self, index: ModelIndex) -> FieldSlice:
        """Columns of subtree_com."""
        start = 3 * index.bodies[index.root_body]
        return FieldSlice("subtree_com", tuple(range(start, start + 3)), (3,), Stage.POS)


@dataclass(frozen=True, eq=False)
class BodyLinVelW(DerivedRead):
    """Velocities of bodies' origins in the world `[N, B, 3]`, m/s.

    v + w x (p - c), with the engine's velocity v of the body's motion at the tree's centre of mass
    c. Bodies must belong to the tree of the root body.
    """

    names: tuple[str, ...]

    def requires(self, index: ModelIndex) -> tuple[Read, ...]:
        """Velocities, positions and the centre of mass."""
        names = self.names
        return _BodyComVel(names), BodyAngVelW(names), BodyPos(names), RootTreeCom()

    def build(self, index: ModelIndex, device: torch.device) -> Callable[..., Tensor]:
        """Three operations."""

        def velocity(at_com: Tensor, turning: Tensor, origin: Tensor, com: Tensor) -> Tensor:
            return torch.cross(turning, origin - com.unsqueeze(1), dim=-1).add_(at_com)

        return velocity

"""Domain randomization: model fields per environment, encoder bias, and disturbances.

Model terms run with mode "startup" (once per seed, the default choice), "reset" (each episode) or
"interval"; the mode decides which random stream they draw from. What is drawn is always applied to
the immutable nominal value, so nothing drifts, and ranges are checked when an environment is
built: one that could make a mass negative is refused.

Operations: `abs` sets the value, `add` adds to the nominal one, `scale` multiplies it.
Distributions of a pair (a, b): "uniform" in [a, b); "log_uniform", uniform in the logarithm,
0 < a; "gaussian" with mean a and standard deviation b, never beyond a +- 4 b.

Masses, inertias, centres of mass and armatures change constants that the engine derives from them
(`RecomputeLevel.ALL`). On `mujoco` only rows that reset pay for it; on `mjwarp` the engine has no
mask and recomputes every row, which is meant for start-up: per reset it costs about two substeps
of launches in every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from unilab_gym.backends.base import Capabilities, RecomputeLevel
from unilab_gym.errors import ConfigError
from unilab_gym.mdp.distributions import (
    Bounds,
    Change,
    Distribution,
    Operation,
    make_draw,
    match_bodies,
    one_operation,
    operate,
)
from unilab_gym.mdp.disturbances import ApplyBodyImpulse, ApplyBodyWrench, PushRoot
from unilab_gym.runtime.event_term import EventTerm, IntervalEvent, ModelEvent
from unilab_gym.runtime.reads import JointBias
from unilab_gym.runtime.term import BuildContext

__all__ = [
    "EVENTS",
    "ApplyBodyImpulse",
    "ApplyBodyWrench",
    "PushRoot",
    "RandomizeBodyCom",
    "RandomizeBodyInertia",
    "RandomizeBodyMass",
    "RandomizeEffortLimit",
    "RandomizeEncoderBias",
    "RandomizeFriction",
    "RandomizeGains",
    "RandomizeGravity",
    "RandomizeJointArmature",
    "RandomizeJointDamping",
    "RandomizeJointFriction",
    "randomization_facts",
    "randomization_table",
]

_TINY = 1e-9
"""Masses, inertias and stiffnesses must stay above it."""


# --- contacts, bodies -------------------------------------------------------------------------


class RandomizeFriction(ModelEvent):
    """Friction of geoms: slide (unitless), spin and roll (m).

    One draw per environment for all geoms, or one for each with `each=True`. Of two geoms in
    contact the one of higher priority decides, else the larger value of the two.
    """

    fields = ("geom_friction",)

    def __init__(
        self,
        ctx: BuildContext,
        *,
        geoms: tuple[str, ...],
        slide: Bounds | None = None,
        spin: Bounds | None = None,
        roll: Bounds | None = None,
        operation: Operation = "abs",
        distribution: Distribution = "uniform",
        each: bool = False,
    ) -> None:
        """Resolves the geoms.

        Raises:
            ConfigError: If no range is given, or one could make a friction negative.
        """
        infos = [ctx.index.geoms[name] for name in ctx.index.match("geom", geoms)]
        self._ids = ctx.tensor([info.index for info in infos], dtype=torch.int64)
        self._changes: list[tuple[int, Change]] = []
        for column, (what, bounds) in enumerate((("slide", slide), ("spin", spin), ("roll", roll))):
            if bounds is None:
                continue
            nominal = ctx.tensor([info.friction[column] for info in infos])
            change = Change(
                ctx,
                what,
                nominal,
                operation,
                bounds,
                distribution,
                width=None if each else 1,
                above=0.0,
                key="" if what == "slide" else what,
            )
            self._changes.append((column, change))
        if not self._changes:
            raise ConfigError("one of slide, spin, roll is needed, got none")

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Changes the chosen columns."""
        friction = fields["geom_friction"]
        for column, change in self._changes:
            values = friction[:, self._ids, column]
            friction[:, self._ids, column] = change(values)


class RandomizeBodyMass(ModelEvent):
    """Mass of a body in kg; its inertia scales with it, as at constant shape."""

    fields = ("body_mass", "body_inertia")
    level = RecomputeLevel.ALL

    def __init__(
        self,
        ctx: BuildContext,
        *,
        body: str | tuple[str, ...],
        add: Bounds | None = None,
        scale: Bounds | None = None,
        abs: Bounds | None = None,
        distribution: Distribution = "uniform",
    ) -> None:
        """Resolves the body; a tuple of patterns may match several, each drawn by itself.

        Raises:
            ConfigError: If not exactly one of add, scale and abs is given, or the range could
                make a mass not positive.
        """
        self._ids = ctx.tensor(match_bodies(ctx, body), dtype=torch.int64)
        operation, bounds = one_operation(add=add, scale=scale, abs=abs)
        nominal = ctx.nominal("body_mass")[self._ids]
        self._change = Change(ctx, operation, nominal, operation, bounds, distribution, above=_TINY)

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Changes mass and inertia."""
        mass = fields["body_mass"][:, self._ids]
        fresh = self._change(mass)
        fields["body_inertia"][:, self._ids] *= (fresh / mass).unsqueeze(2)
        fields["body_mass"][:, self._ids] = fresh


class RandomizeBodyCom(ModelEvent):
    """Centre of mass of a body in its own frame, m; each axis is drawn by itself."""

    fields = ("body_ipos",)
    level = RecomputeLevel.ALL

    def __init__(
        self,
        ctx: BuildContext,
        *,
        body: str | tuple[str, ...],
        add: Bounds,
        distribution: Distribution = "uniform",
    ) -> None:
        """Resolves the body."""
        ids = match_bodies(ctx, body)
        self._ids = ctx.tensor(ids, dtype=torch.int64)
        self._draw = make_draw(ctx, 3 * len(ids), "add", add, distribution)

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Adds to the nominal centre of mass."""
        fields["body_ipos"][:, self._ids] += self._draw().unflatten(1, (-1, 3))


class RandomizeBodyInertia(ModelEvent):
    """Factor on a body's three principal inertias: a scaled inertia is always a possible one."""

    fields = ("body_inertia",)
    level = RecomputeLevel.ALL

    def __init__(
        self,
        ctx: BuildContext,
        *,
        body: str | tuple[str, ...],
        scale: Bounds,
        distribution: Distribution = "uniform",
    ) -> None:
        """Resolves the body.

        Raises:
            ConfigError: If the factor could be 0 or negative.
        """
        ids = match_bodies(ctx, body)
        self._ids = ctx.tensor(ids, dtype=torch.int64)
        factors = torch.ones(len(ids), dtype=torch.float32, device=ctx.device)
        self._change = Change(ctx, "scale", factors, "scale", scale, distribution, above=_TINY)

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Scales the nominal inertia."""
        fields["body_inertia"][:, self._ids] *= self._change.draw().unsqueeze(2)


class RandomizeGravity(ModelEvent):
    """Gravity, m/s^2: `add` draws each axis by itself, `scale` one factor for the vector."""

    fields = ("opt.gravity",)

    def __init__(
        self,
        ctx: BuildContext,
        *,
        add: Bounds | None = None,
        scale: Bounds | None = None,
        distribution: Distribution = "uniform",
    ) -> None:
        """Checks the ranges.

        Raises:
            ConfigError: If not exactly one of add and scale is given.
        """
        self._operation, bounds = one_operation(add=add, scale=scale)
        width = 3 if self._operation == "add" else 1
        self._draw = make_draw(ctx, width, self._operation, bounds, distribution)

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Changes the nominal gravity."""
        gravity = fields["opt.gravity"]
        gravity.copy_(operate(self._operation, gravity, self._draw()))


# --- joints and actuators ---------------------------------------------------------------------


class _JointField(ModelEvent):
    """A non-negative number of each joint, every joint drawn by itself."""

    def __init__(
        self,
        ctx: BuildContext,
        *,
        joints: tuple[str, ...] = (".*",),
        add: Bounds | None = None,
        scale: Bounds | None = None,
        abs: Bounds | None = None,
        distribution: Distribution = "uniform",
    ) -> None:
        """Resolves the joints.

        Raises:
            ConfigError: If not exactly one of add, scale and abs is given, the range could make a
                value negative, or a factor would change nothing because the nominal value is 0.
        """
        names = ctx.index.match("joint", joints)
        self._ids = ctx.tensor([ctx.index.joint(n).dof_adr for n in names], dtype=torch.int64)
        operation, bounds = one_operation(add=add, scale=scale, abs=abs)
        nominal = ctx.nominal(self.fields[0])[self._ids]
        if operation == "scale" and not nominal.any():
            raise ConfigError(
                f"scale: {self.fields[0]} is 0 at every joint, a factor has no effect"
            )
        self._change = Change(ctx, operation, nominal, operation, bounds, distribution, above=0.0)

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Changes the nominal values."""
        values = fields[self.fields[0]]
        values[:, self._ids] = self._change(values[:, self._ids])


class RandomizeJointArmature(_JointField):
    """Rotor inertia reflected to the joints, kg m^2 (kg for a slide)."""

    fields = ("dof_armature",)
    level = RecomputeLevel.ALL


class RandomizeJointDamping(_JointField):
    """Viscous damping of the joints, N m s/rad."""

    fields = ("dof_damping",)


class RandomizeJointFriction(_JointField):
    """Dry friction of the joints (MuJoCo's frictionloss), N m."""

    fields = ("dof_frictionloss",)


def _actuators(ctx: BuildContext, joints: tuple[str, ...]) -> list[int]:
    return [ctx.index.actuator_of(name).index for name in ctx.index.match("joint", joints)]


class RandomizeGains(ModelEvent):
    """kp (N m/rad) and kd (N m s/rad) of position actuators, every actuator drawn by itself.

    The target stays the rest position.
    """

    fields = ("actuator_gainprm", "actuator_biasprm")

    def __init__(
        self,
        ctx: BuildContext,
        *,
        kp: Bounds = (1.0, 1.0),
        kd: Bounds = (1.0, 1.0),
        joints: tuple[str, ...] = (".*",),
        operation: Operation = "scale",
        distribution: Distribution = "uniform",
    ) -> None:
        """Resolves the joints' actuators.

        Raises:
            ConfigError: If a gain could become negative, or kp 0, or an actuator is no position
                servo.
        """
        ids = _actuators(ctx, joints)
        self._ids = ctx.tensor(ids, dtype=torch.int64)
        stiffness = ctx.nominal("actuator_gainprm")[self._ids, 0]
        bias = ctx.nominal("actuator_biasprm")[self._ids]
        if not torch.equal(bias[:, 1], -stiffness):
            raise ConfigError("RandomizeGains needs position actuators (bias = -kp q - kd qdot)")
        damping = -bias[:, 2]
        self._kp = Change(ctx, "kp", stiffness, operation, kp, distribution, above=_TINY, key="kp")
        self._kd = Change(ctx, "kd", damping, operation, kd, distribution, above=0.0, key="kd")

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Changes the gain and both bias terms."""
        gain, bias = fields["actuator_gainprm"], fields["actuator_biasprm"]
        kp = self._kp(gain[:, self._ids, 0])
        # An encoder bias that came before follows the stiffness.
        bias[:, self._ids, 0] *= kp / gain[:, self._ids, 0]
        gain[:, self._ids, 0] = kp
        bias[:, self._ids, 1] = -kp
        bias[:, self._ids, 2] = -self._kd(-bias[:, self._ids, 2])


class RandomizeEffortLimit(ModelEvent):
    """Force limit of the joints' actuators, N m; the same in both directions."""

    fields = ("actuator_forcerange",)

    def __init__(
        self,
        ctx: BuildContext,
        *,
        joints: tuple[str, ...] = (".*",),
        add: Bounds | None = None,
        scale: Bounds | None = None,
        abs: Bounds | None = None,
        distribution: Distribution = "uniform",
    ) -> None:
        """Resolves the joints' actuators.

        Raises:
            ConfigError: If an actuator has no limit, not exactly one of add, scale and abs is
                given, or the range could make a limit negative.
        """
        ids = _actuators(ctx, joints)
        self._ids = ctx.tensor(ids, dtype=torch.int64)
        unlimited = [a.name for a in ctx.index.actuators if a.index in ids and a.effort == math.inf]
        if unlimited:
            raise ConfigError(f"actuators without a force limit: {', '.join(unlimited)}")
        operation, bounds = one_operation(add=add, scale=scale, abs=abs)
        nominal = ctx.nominal("actuator_forcerange")[self._ids, 1]
        self._change = Change(ctx, operation, nominal, operation, bounds, distribution, above=0.0)

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Changes both ends."""
        limits = fields["actuator_forcerange"]
        effort = self._change(limits[:, self._ids, 1])
        limits[:, self._ids, 1] = effort
        limits[:, self._ids, 0] = -effort


class RandomizeEncoderBias(ModelEvent):
    """Constant error of the joint encoders, rad: q_measured = q + b.

    The motor controller follows the wrong encoder: force = kp (target - q - b) - kd qdot, which is
    a bias term of the actuator and costs a step nothing. The policy sees it through
    `observations.joint_pos_measured`. Name it after `RandomizeGains`, or before: both compose.
    """

    modes = ("startup", "reset")
    fields = ("actuator_biasprm", "actuator_gainprm")

    def __init__(
        self,
        ctx: BuildContext,
        *,
        joints: tuple[str, ...] = (".*",),
        add: Bounds,
        distribution: Distribution = "uniform",
    ) -> None:
        """Resolves the joints.

        Raises:
            ConfigError: If a joint has no actuator, or another event provides the bias.
        """
        names = ctx.index.match("joint", joints)
        self._ids = ctx.tensor(_actuators(ctx, joints), dtype=torch.int64)
        order = {name: column for column, name in enumerate(ctx.index.joint_names)}
        self._columns = ctx.tensor([order[name] for name in names], dtype=torch.int64)
        self._draw = make_draw(ctx, len(names), "add", add, distribution)
        self.bias = ctx.zeros(len(order), key="bias")
        """Present bias of every joint `[N, J]` in natural order, rad."""
        ctx.frame.provide(JointBias(), self.bias)

    def apply(self, fields: Mapping[str, Tensor]) -> None:
        """Adds -kp b to the actuators' constant term."""
        kp = fields["actuator_gainprm"][:, self._ids, 0]
        fields["actuator_biasprm"][:, self._ids, 0] -= kp * self._draw()

    def commit(self, mask: Tensor) -> None:
        """Keeps the draw of the masked rows, whose fields were written."""
        fresh = self.bias.index_copy(1, self._columns, self._draw())
        torch.where(mask.unsqueeze(1), fresh, self.bias, out=self.bias)


# --- the table --------------------------------------------------------------------------------

EVENTS: tuple[type[EventTerm], ...] = (
    RandomizeFriction,
    RandomizeBodyMass,
    RandomizeBodyCom,
    RandomizeBodyInertia,
    RandomizeJointArmature,
    RandomizeJointDamping,
    RandomizeJointFriction,
    RandomizeGains,
    RandomizeEffortLimit,
    RandomizeGravity,
    RandomizeEncoderBias,
    PushRoot,
    ApplyBodyImpulse,
    ApplyBodyWrench,
)
"""Every randomization and disturbance of the package."""


def randomization_facts(capabilities: Iterable[Capabilities]) -> list[dict[str, Any]]:
    """Which term runs on which backend, as plain data.

    Returns:
        For each term `term`, `modes`, `writes` (fields or staged parts), `recomputes` ("constants"
        or "") and `backends`: name -> "yes" or "refused".
    """
    backends, facts = list(capabilities), list[dict[str, Any]]()
    for event in EVENTS:
        level = ""
        if issubclass(event, ModelEvent):
            modes, writes = event.modes, event.fields
            level = "constants" if event.level >= RecomputeLevel.ALL else ""
        elif issubclass(event, IntervalEvent):
            modes, writes = ("interval",), event.parts
        else:
            raise TypeError(event)
        facts.append(
            {
                "term": event.__name__,
                "modes": list(modes),
                "writes": list(writes),
                "recomputes": level,
                "backends": {
                    backend.name: "yes" if event.missing(backend) == () else "refused"
                    for backend in backends
                },
            }
        )
    return facts


def randomization_table(capabilities: Iterable[Capabilities]) -> str:
    """Which term runs on which backend, as a Markdown table."""
    backends = list(capabilities)
    head = ["term", "modes", "writes", "recomputes", *(backend.name for backend in backends)]
    rows = [head, ["---"] * len(head)]
    for fact in randomization_facts(backends):
        lists = (", ".join(fact[key]) for key in ("modes", "writes"))
        rows.append([f"`{fact['term']}`", *lists, fact["recomputes"], *fact["backends"].values()])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"

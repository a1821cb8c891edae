"""Reward terms: one number per environment, unweighted; the manager multiplies by weight x dt.

Any of them serves as a metric too. N envs, J joints, K feet or geoms. Terms that read forces,
torques or accelerations see the last substep's value, and 0 in rows that have just reset. More
terms: `mdp.biped`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError
from unilab_gym.math import number
from unilab_gym.runtime.dynamics_reads import JointTorque, RootAcc
from unilab_gym.runtime.reads import (
    Action,
    AngVelErrorSq,
    Command,
    EpisodeStep,
    GeomContact,
    GeomHeight,
    JointAcc,
    JointPos,
    JointPosRel,
    JointVel,
    LinVelErrorSq,
    ProjectedGravity,
    Read,
    RootAngVelB,
    RootLinVelB,
    RootPos,
    Sensors,
    Terminated,
)
from unilab_gym.runtime.term import BuildContext, Term, TermFrame, term

# --- being alive ----------------------------------------------------------------------------------


@term(reads=(EpisodeStep(),))
def alive(frame: TermFrame) -> Tensor:  # [N]
    """1 in every step. Unitless."""
    return torch.ones_like(frame[EpisodeStep()], dtype=torch.float32)


@term(reads=lambda p: tuple(Terminated(name) for name in p["terms"]))
def terminated(frame: TermFrame, *, terms: tuple[str, ...]) -> Tensor:  # [N]
    """1 in the step in which any of the termination terms fired, else 0. Unitless.

    The step's reward is weight x dt: for a penalty of p use the weight -p / dt.
    """
    return torch.stack([frame[Terminated(name)] for name in terms], 1).any(1).float()


# --- velocity and posture of the base -------------------------------------------------------------


@term(reads=lambda p: (LinVelErrorSq(p["command"]),), adjustable=("sigma",))
def track_lin_vel_xy(frame: TermFrame, *, command: str, sigma: float) -> Tensor:  # [N]
    """exp(-|v_xy - c_xy|^2 / sigma), base frame; sigma in m^2/s^2. Unitless, in (0, 1].

    Source: the tracking reward of Rudin et al., Learning to walk in minutes, CoRL 2021.
    """
    error = frame[LinVelErrorSq(command)]
    return error.mul(number(-1.0 / sigma, error)).exp_()


@term(reads=lambda p: (AngVelErrorSq(p["command"]),), adjustable=("sigma",))
def track_ang_vel_z(frame: TermFrame, *, command: str, sigma: float) -> Tensor:  # [N]
    """exp(-(w_z - c_yaw)^2 / sigma), base frame; sigma in rad^2/s^2. Unitless, in (0, 1]."""
    error = frame[AngVelErrorSq(command)]
    return error.mul(number(-1.0 / sigma, error)).exp_()


@term(reads=(RootLinVelB(),))
def lin_vel_z_l2(frame: TermFrame) -> Tensor:  # [N]
    """v_z^2 in the base frame, m^2/s^2."""
    return frame[RootLinVelB()][:, 2].square()


@term(reads=(RootAngVelB(),))
def ang_vel_xy_l2(frame: TermFrame) -> Tensor:  # [N]
    """w_x^2 + w_y^2 in the base frame, rad^2/s^2."""
    return frame[RootAngVelB()][:, :2].square().sum(-1)


@term(reads=(RootPos(),), adjustable=("target",))
def base_height_l2(frame: TermFrame, *, target: float) -> Tensor:  # [N]
    """(z - target)^2 of the base frame's origin over flat ground, m^2."""
    height = frame[RootPos()][:, 2]
    return (height - number(target, height)).square_()


@term(reads=(ProjectedGravity(),), adjustable=("sigma",))
def upright(frame: TermFrame, *, sigma: float) -> Tensor:  # [N]
    """exp(-(g_x^2 + g_y^2) / sigma) of gravity projected into the base. Unitless, in (0, 1].

    g_x^2 + g_y^2 is sin^2 of the tilt, whatever the yaw; `mdp.biped.orientation_l2` is that
    number itself.
    """
    tilt = frame[ProjectedGravity()][:, :2].square().sum(-1)
    return tilt.mul_(number(-1.0 / sigma, tilt)).exp_()


@term(reads=(RootAcc(),))
def base_lin_acc_l2(frame: TermFrame) -> Tensor:  # [N]
    """|a|^2 of the base frame's origin, world frame, m^2/s^4."""
    return frame[RootAcc()][:, :3].square().sum(-1)


@term(reads=(RootAcc(),))
def base_ang_acc_l2(frame: TermFrame) -> Tensor:  # [N]
    """|angular acceleration|^2 of the base, base frame, rad^2/s^4."""
    return frame[RootAcc()][:, 3:].square().sum(-1)


# --- actions and joints ---------------------------------------------------------------------------


@term(reads=(Action(0), Action(1)))
def action_rate_l2(frame: TermFrame) -> Tensor:  # [N]
    """Sum over joints of (a_t - a_{t-1})^2, of clamped actions. Unitless."""
    return (frame[Action(0)] - frame[Action(1)]).square_().sum(-1)


@term(reads=(Action(0), Action(1), Action(2)))
def action_acc_l2(frame: TermFrame) -> Tensor:  # [N]
    """Sum over joints of (a_t - 2 a_{t-1} + a_{t-2})^2, of clamped actions. Unitless.

    Past actions are 0 after a reset.
    """
    newest, middle, oldest = (frame[Action(order)] for order in range(3))
    return (newest + oldest).sub_(middle).sub_(middle).square_().sum(-1)


@term(reads=lambda p: (JointVel(p["joints"]),))
def joint_vel_l2(frame: TermFrame, *, joints: tuple[str, ...] = (".*",)) -> Tensor:  # [N]
    """Sum over joints of qdot^2, rad^2/s^2."""
    return frame[JointVel(joints)].square().sum(-1)


@term(reads=lambda p: (JointAcc(p["joints"]),))
def joint_acc_l2(frame: TermFrame, *, joints: tuple[str, ...] = (".*",)) -> Tensor:  # [N]
    """Sum over joints of qddot^2, rad^2/s^4."""
    return frame[JointAcc(joints)].square().sum(-1)


@term(reads=lambda p: (JointTorque(p["joints"]),))
def joint_torque_l2(frame: TermFrame, *, joints: tuple[str, ...] = (".*",)) -> Tensor:  # [N]
    """Sum over joints of tau^2, the torque of the joint's actuator, N^2 m^2."""
    return frame[JointTorque(joints)].square().sum(-1)


@term(reads=lambda p: (JointTorque(p["joints"]), JointVel(p["joints"])))
def energy(frame: TermFrame, *, joints: tuple[str, ...] = (".*",)) -> Tensor:  # [N]
    """Mechanical power of the actuators, sum over joints of |tau qdot|, W.

    Braking counts like driving: nothing is fed back. Source: the energy term of Fu et al.,
    Minimizing energy consumption leads to the emergence of gaits in legged robots, CoRL 2021.
    """
    return (frame[JointTorque(joints)] * frame[JointVel(joints)]).abs_().sum(-1)


@term(reads=lambda p: (JointPos(p["joints"]),))
class JointLimits(Term):
    """Sum over joints of how far q is beyond its soft limits, rad; 0 inside.

    Soft limits keep `share` of the joint's range around its middle.
    """

    def __init__(
        self, ctx: BuildContext, *, joints: tuple[str, ...] = (".*",), share: float = 0.9
    ) -> None:
        """Takes the limits from the model.

        Raises:
            ConfigError: If the share is not in (0, 1] or a joint has no limits.
        """
        super().__init__(ctx)
        if not 0.0 < share <= 1.0:
            raise ConfigError(f"share must be in (0, 1], got {share}")
        infos = [ctx.index.joint(name) for name in ctx.index.match("joint", joints)]
        free = [info.name for info in infos if info.upper - info.lower == torch.inf]
        if free:
            raise ConfigError(f"joints without limits: {', '.join(free)}")
        self._read = JointPos(joints)
        self._middle = ctx.tensor([(info.lower + info.upper) / 2 for info in infos])
        self._half = ctx.tensor([share * (info.upper - info.lower) / 2 for info in infos])

    def __call__(self, frame: TermFrame) -> Tensor:  # [N]
        """|q - middle| - half of the soft range, where positive."""
        excess = (frame[self._read] - self._middle).abs_().sub_(self._half)
        return excess.clamp_(min=0.0).sum(-1)


@term(reads=lambda p: (JointPosRel(p["joints"]), Command(p["command"])))
def stand_still(
    frame: TermFrame, *, command: str, threshold: float, joints: tuple[str, ...] = (".*",)
) -> Tensor:  # [N]
    """Sum over joints of |q - q_default| where the command's norm is below `threshold`, rad."""
    still = frame[Command(command)].square().sum(-1) < threshold * threshold
    return frame[JointPosRel(joints)].abs().sum(-1).mul_(still)


@term(reads=lambda p: (JointPosRel(p["joints"]),))
def joint_deviation_l1(frame: TermFrame, *, joints: tuple[str, ...] = (".*",)) -> Tensor:  # [N]
    """Sum over joints of |q - q_default|, rad."""
    return frame[JointPosRel(joints)].abs().sum(-1)


# --- feet and contacts ----------------------------------------------------------------------------


@term(
    reads=lambda p: (GeomContact(p["feet"], p["margin"]), Command(p["gait"], "stance")),
)
def gait_contact_match(
    frame: TermFrame, *, feet: tuple[str, ...], margin: float, gait: str
) -> Tensor:  # [N]
    """Share of feet whose contact equals what the gait wants (stance or swing), in [0, 1].

    Source: the phase reward of Siekmann et al., Sim-to-real learning of all common bipedal
    gaits via periodic reward composition, ICRA 2021, with a kinematic contact flag.
    """
    match = frame[GeomContact(feet, margin)] == frame[Command(gait, "stance")]
    return _mean(match.view(torch.uint8))


def _mean(values: Tensor) -> Tensor:  # `mean` does the same in twice the time
    total = values.sum(-1, dtype=torch.float32)
    return total.div_(number(values.shape[-1], total))


@term(reads=lambda p: (GeomHeight(p["feet"]), Command(p["gait"], "stance")))
def swing_height(
    frame: TermFrame, *, feet: tuple[str, ...], gait: str, target: float, sigma: float
) -> Tensor:  # [N]
    """Mean over all feet of exp(-(z - target)^2 / sigma) where a foot swings, 0 where it stands.

    z is the height of the foot's lowest point, m; sigma in m^2. Unitless, in [0, 1].
    """
    height = frame[GeomHeight(feet)]
    score = (height - number(target, height)).square_()
    score.mul_(number(-1.0 / sigma, score)).exp_()
    score.masked_fill_(frame[Command(gait, "stance")], 0.0)
    return _mean(score)


@term(reads=lambda p: (GeomContact(p["feet"], p["margin"]), Sensors(p["velocity_sensors"])))
def foot_slip(
    frame: TermFrame,
    *,
    feet: tuple[str, ...],
    margin: float,
    velocity_sensors: tuple[str, ...],
) -> Tensor:  # [N]
    """Sum over touching feet of v_x^2 + v_y^2, world frame, m^2/s^2."""
    squares = frame[Sensors(velocity_sensors)].square()
    speed = squares[..., 0] + squares[..., 1]  # a sum over two entries is slow
    return speed.mul_(frame[GeomContact(feet, margin)]).sum(-1)


@term(reads=lambda p: (GeomHeight(p["feet"]), Sensors(p["velocity_sensors"])))
def feet_clearance(
    frame: TermFrame,
    *,
    feet: tuple[str, ...],
    velocity_sensors: tuple[str, ...],
    target: float,
) -> Tensor:  # [N]
    """Sum over feet of (z - target)^2 |v_xy|, world frame, m^3/s: fast feet shall be high.

    z is the height of the foot's lowest point, m. Source: the clearance term of Ji et al.,
    Concurrent training of a control policy and a state estimator, RA-L 2022.
    """
    speed = frame[Sensors(velocity_sensors)][..., :2].square().sum(-1).sqrt_()
    return (frame[GeomHeight(feet)] - target).square_().mul_(speed).sum(-1)


def _air_reads(params: Mapping[str, Any]) -> tuple[Read, ...]:
    return GeomContact(params["feet"], params["margin"]), Command(params["command"])


@term(reads=_air_reads)
class LandingAirTime(Term):
    """Sum over feet that land in this step of min(air time, `most_s`) - `least_s`, s.

    Short hops cost, long swings pay; 0 where the command's norm is below `threshold`. A foot that
    was never in the air since the reset does not land. Source: the air time reward of Rudin et
    al., Learning to walk in minutes, CoRL 2021.
    """

    def __init__(
        self,
        ctx: BuildContext,
        *,
        feet: tuple[str, ...],
        margin: float,
        command: str,
        least_s: float,
        most_s: float = float("inf"),
        threshold: float = 0.05,
    ) -> None:
        """Allocates the air time of each foot, in control steps.

        Raises:
            ConfigError: If the times are not 0 <= least < most.
        """
        super().__init__(ctx)
        if not 0 <= least_s < most_s:
            raise ConfigError(f"air time must be 0 <= least_s < most_s, got {least_s}, {most_s}")
        self._contact, self._command = GeomContact(feet, margin), Command(command)
        self._dt, self._threshold_sq = ctx.control_dt, threshold**2
        self._least, self._most = least_s, most_s
        self._air = ctx.zeros(len(ctx.index.match("geom", feet)), key="air")

    def __call__(self, frame: TermFrame) -> Tensor:  # [N]
        """Advances the air time and pays for the feet that land."""
        contact = frame[self._contact]
        landed = contact & (self._air > 0.0)
        time = (self._air * self._dt).clamp_(max=self._most).sub_(self._least)
        self._air.add_(1.0).masked_fill_(contact, 0.0)
        walking = frame[self._command].square().sum(-1) >= self._threshold_sq
        return time.mul_(landed).sum(-1).mul_(walking)

    def reset(self, mask: Tensor) -> None:
        """Every foot counts as landed."""
        self._air.masked_fill_(mask.unsqueeze(1), 0.0)


@term(reads=lambda p: (GeomContact(p["feet"], p["margin"]), Sensors(p["velocity_sensors"])))
class SoftLanding(Term):
    """Sum over feet that land in this step of their downward speed^2 one step before, m^2/s^2.

    The speed at the last boundary in the air: the impact itself has already stopped the foot.
    """

    def __init__(
        self,
        ctx: BuildContext,
        *,
        feet: tuple[str, ...],
        margin: float,
        velocity_sensors: tuple[str, ...],
    ) -> None:
        """Allocates the last downward speed of each foot; 0 while it touches."""
        super().__init__(ctx)
        self._contact, self._velocity = GeomContact(feet, margin), Sensors(velocity_sensors)
        self._down = ctx.zeros(len(ctx.index.match("geom", feet)), key="down")

    def __call__(self, frame: TermFrame) -> Tensor:  # [N]
        """Pays for the feet that land and notes the speed of those in the air."""
        contact = frame[self._contact]
        value = self._down.square().mul_(contact).sum(-1)
        torch.clamp(frame[self._velocity][..., 2].neg(), min=0.0, out=self._down)
        self._down.masked_fill_(contact, 0.0)
        return value

    def reset(self, mask: Tensor) -> None:
        """No foot is falling."""
        self._down.masked_fill_(mask.unsqueeze(1), 0.0)


@term(reads=lambda p: (GeomContact(p["geoms"], p["margin"]),))
def ground_contacts(frame: TermFrame, *, geoms: tuple[str, ...], margin: float) -> Tensor:  # [N]
    """How many of the geoms are below `margin` m over flat ground (kinematic). Unitless."""
    return frame[GeomContact(geoms, margin)].sum(-1, dtype=torch.float32)


@term(reads=lambda p: (Sensors(p["sensors"]),))
def self_collision(frame: TermFrame, *, sensors: tuple[str, ...]) -> Tensor:  # [N]
    """How many of the contact sensors found a contact. Unitless.

    `mujoco` looks at this boundary, `mjwarp` at the last substep, which is one physics step
    earlier; a row just reset shows none. A sensor counts once, however many contacts it found. The
    MJCF names what may not touch: `<contact name="arms" subtree1="left_arm" subtree2="torso"
    data="found"/>`.
    """
    return (frame[Sensors(sensors)][..., 0] > 0.0).sum(-1, dtype=torch.float32)

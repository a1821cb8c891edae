"""Reward terms in numbers: a frame is anything that gives tensors for reads."""

import math

import pytest
import torch
from helpers.probe import context

from unilab_gym.config import RewardTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import rewards
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
    RootAngVelB,
    RootLinVelB,
    RootPos,
    Sensors,
    Terminated,
)
from unilab_gym.runtime.term import bind_term, term_spec

FEET = ("a", "b")
VELOCITY = torch.tensor([[1.0, 2.0, -3.0], [0.0, 0.0, 0.0]])


def rows(*values):
    return torch.tensor(values, dtype=torch.float32)


@pytest.mark.parametrize(
    ("func", "frame", "params", "expected"),
    [
        (
            rewards.track_lin_vel_xy,
            {LinVelErrorSq("c"): rows(0.0, 0.5)},
            {"command": "c", "sigma": 0.25},
            [1.0, math.exp(-2.0)],
        ),
        (
            rewards.track_ang_vel_z,
            {AngVelErrorSq("c"): rows(0.0, 1.0)},
            {"command": "c", "sigma": 0.5},
            [1.0, math.exp(-2.0)],
        ),
        (rewards.lin_vel_z_l2, {RootLinVelB(): VELOCITY}, {}, [9.0, 0.0]),
        (rewards.ang_vel_xy_l2, {RootAngVelB(): VELOCITY}, {}, [5.0, 0.0]),
        (rewards.base_height_l2, {RootPos(): VELOCITY}, {"target": -1.0}, [4.0, 1.0]),
        (
            rewards.action_rate_l2,
            {Action(0): rows([1, 2], [0, 0]), Action(1): rows([0, 4], [0, 0])},
            {},
            [5.0, 0.0],
        ),
        (rewards.joint_deviation_l1, {JointPosRel(): rows([1, -2], [0, 0])}, {}, [3.0, 0.0]),
        (
            rewards.gait_contact_match,
            {
                GeomContact(FEET, 0.01): torch.tensor([[True, True], [False, True]]),
                Command("g", "stance"): torch.tensor([[True, False], [False, True]]),
            },
            {"feet": FEET, "margin": 0.01, "gait": "g"},
            [0.5, 1.0],
        ),
        (
            rewards.swing_height,
            {
                GeomHeight(FEET): rows([0.1, 0.3], [0.0, 0.1]),
                Command("g", "stance"): torch.tensor([[False, False], [True, False]]),
            },
            {"feet": FEET, "gait": "g", "target": 0.1, "sigma": 0.02},
            [(1.0 + math.exp(-2.0)) / 2, 0.5],
        ),
        (
            rewards.foot_slip,
            {
                GeomContact(FEET, 0.01): torch.tensor([[True, True], [False, True]]),
                Sensors(("u", "v")): torch.tensor(
                    [[[1.0, 2, 9], [3, 0, 9]], [[5, 5, 5], [0, 1, 0]]]
                ),
            },
            {"feet": FEET, "margin": 0.01, "velocity_sensors": ("u", "v")},
            [14.0, 1.0],
        ),
        (rewards.alive, {EpisodeStep(): torch.tensor([0, 7])}, {}, [1.0, 1.0]),
        (
            rewards.terminated,
            {
                Terminated("a"): torch.tensor([False, True]),
                Terminated("b"): torch.tensor([False, True]),
            },
            {"terms": ("a", "b")},
            [0.0, 1.0],
        ),
        (
            rewards.upright,
            {ProjectedGravity(): rows([0, 0, -1], [0.6, 0, -0.8])},
            {"sigma": 0.36},
            [1.0, math.exp(-1.0)],
        ),
        (
            rewards.base_lin_acc_l2,
            {RootAcc(): rows([1, 2, 3, 9, 9, 9], [0] * 6)},
            {},
            [14.0, 0.0],
        ),
        (
            rewards.base_ang_acc_l2,
            {RootAcc(): rows([9, 9, 9, 1, 0, 2], [0] * 6)},
            {},
            [5.0, 0.0],
        ),
        (
            rewards.action_acc_l2,
            {
                Action(0): rows([1, 0], [3, 3]),
                Action(1): rows([2, 0], [2, 2]),
                Action(2): rows([4, 1], [1, 1]),
            },
            {},
            [2.0, 0.0],  # (1 - 4 + 4)^2 + 1^2; equal differences have none
        ),
        (rewards.joint_vel_l2, {JointVel(): rows([1, -2], [0, 0])}, {}, [5.0, 0.0]),
        (rewards.joint_acc_l2, {JointAcc(): rows([3, -4], [0, 0])}, {}, [25.0, 0.0]),
        (rewards.joint_torque_l2, {JointTorque(): rows([3, -1], [0, 0])}, {}, [10.0, 0.0]),
        (
            rewards.energy,
            {JointTorque(): rows([3, -1], [2, 2]), JointVel(): rows([-2, 5], [0, 1])},
            {},
            [11.0, 2.0],
        ),
        (
            rewards.stand_still,
            {
                JointPosRel(): rows([0.5, -1], [0.5, -1]),
                Command("c"): rows([0.03, 0.04, 0], [0.3, 0, 0]),
            },
            {"command": "c", "threshold": 0.06},
            [1.5, 0.0],
        ),
        (
            rewards.feet_clearance,
            {
                GeomHeight(FEET): rows([0.1, 0.0], [0.05, 0.1]),
                Sensors(("u", "v")): torch.tensor(
                    [[[3.0, 4, 9], [0, 2, 0]], [[0, 4, 0], [7, 7, 7]]]
                ),
            },
            {"feet": FEET, "velocity_sensors": ("u", "v"), "target": 0.1},
            [0.01 * 2.0, 0.0025 * 4.0],
        ),
        (
            rewards.ground_contacts,
            {GeomContact(FEET, 0.01): torch.tensor([[True, True], [False, True]])},
            {"geoms": FEET, "margin": 0.01},
            [2.0, 1.0],
        ),
        (
            rewards.self_collision,
            {Sensors(("u", "v")): torch.tensor([[[3.0], [1.0]], [[0.0], [2.0]]])},
            {"sensors": ("u", "v")},
            [2.0, 1.0],
        ),
    ],
)
def test_by_hand(func, frame, params, expected):
    before = {read: value.clone() for read, value in frame.items()}
    value = func(frame, **params)
    torch.testing.assert_close(value, torch.tensor(expected))
    # A term reads what it declares and writes nothing of it: others share the tensors.
    declared = term_spec(func).reads({"joints": (".*",), **params})
    assert set(declared) == set(frame)
    assert all(torch.equal(frame[read], old) for read, old in before.items())


def test_tracking_falls_with_the_error_and_stays_in_its_range():
    error = torch.linspace(0.0, 50.0, 200)
    value = rewards.track_lin_vel_xy({LinVelErrorSq("c"): error}, command="c", sigma=0.5)
    assert (value[1:] <= value[:-1]).all()
    assert value[0] == 1.0
    assert (value >= 0.0).all()


def test_an_unknown_parameter_is_a_type_error_for_callers_and_a_config_error_when_bound():
    cfg = RewardTermCfg(func=rewards.base_height_l2, weight=1.0, params={"heigth": 0.3})
    with pytest.raises(ConfigError, match=r"rewards/h: .*base_height_l2 has no parameter 'heigth'"):
        bind_term(context(), "rewards", "h", cfg)


# --- terms with state -----------------------------------------------------------------------------


def test_joints_beyond_their_soft_limits():
    limits = rewards.JointLimits(context(), share=0.5)  # of [-1, 1]: soft limits at -0.5, 0.5
    value = limits({JointPos(): rows([0.5, -0.5, 0.0], [0.7, -0.9, 0.4], [2.0, 0.0, 0.0])})
    torch.testing.assert_close(value, torch.tensor([0.0, 0.6, 1.5]))
    with pytest.raises(ConfigError, match=r"share must be in \(0, 1\], got 1.5"):
        rewards.JointLimits(context(), share=1.5)


FEET_AND_MARGIN = {"feet": ("ball", "brick"), "margin": 0.01}


def walk(term, contacts, **reads):
    """Feeds one row of (left, right) contacts a step."""
    seen = []
    for step, feet in enumerate(contacts):
        frame = {GeomContact(("ball", "brick"), 0.01): torch.tensor([feet], dtype=torch.bool)}
        frame |= {read: values[step] for read, values in reads.get("more", {}).items()}
        seen.append(round(term(frame).item(), 5))
    return seen


def air_time(**params):
    params = {"least_s": 0.03, "most_s": 0.05, "command": "c", **params}
    return rewards.LandingAirTime(context(1), **FEET_AND_MARGIN, **params)


def test_the_air_time_is_paid_where_a_foot_lands():
    moving = {"more": {Command("c"): [rows([1, 0, 0])] * 9}}
    # Steps of 0.02 s. Left: 2 steps in the air; right: 5, of which 0.05 s count.
    left = (1, 0, 0, 1, 1, 1, 1, 1)
    right = (1, 1, 0, 0, 0, 0, 0, 1)
    paid = walk(air_time(), list(zip(left, right, strict=True)), **moving)
    assert paid == [0, 0, 0, 0.01, 0, 0, 0, 0.02]
    hop = walk(air_time(), [(0, 1), (1, 1)], **moving)
    assert hop == [0, -0.01]
    standing = {"more": {Command("c"): [rows([0, 0, 0])] * 2}}
    assert walk(air_time(), [(0, 1), (1, 1)], **standing) == [0, 0]


def test_a_reset_forgets_the_air_time():
    moving = {"more": {Command("c"): [rows([1, 0, 0])] * 3}}
    term = air_time()
    walk(term, [(0, 0)] * 3, **moving)
    term.reset(torch.tensor([True]))
    assert walk(term, [(1, 1)], **moving) == [0]
    with pytest.raises(ConfigError, match=r"0 <= least_s < most_s, got 0.1, 0.05"):
        air_time(least_s=0.1)


def test_a_landing_costs_the_speed_before_it():
    term = rewards.SoftLanding(context(1), **FEET_AND_MARGIN, velocity_sensors=("u", "v"))
    down = [(0.0, 0.0), (0.5, -2.0), (-1.5, -3.0), (0.0, -0.5), (0.0, 0.0)]  # v_z of both feet
    velocities = [torch.tensor([[[9.0, 9.0, left], [9.0, 9.0, right]]]) for left, right in down]
    contacts = [(1, 1), (0, 0), (0, 1), (1, 1), (1, 1)]
    more = {"more": {Sensors(("u", "v")): velocities}}
    assert walk(term, contacts, **more) == [0, 0, 4.0, 2.25, 0]
    walk(term, contacts[:2], **more)
    term.reset(torch.tensor([True]))
    assert walk(term, [(1, 1)], **more) == [0]

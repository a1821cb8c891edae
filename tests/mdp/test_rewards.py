"""Reward terms in numbers: a frame is anything that gives tensors for reads."""

import math

import pytest
import torch

from unilab_gym.mdp import rewards
from unilab_gym.runtime.reads import (
    Action,
    AngVelErrorSq,
    Command,
    GeomContact,
    GeomHeight,
    JointPosRel,
    LinVelErrorSq,
    RootAngVelB,
    RootLinVelB,
    RootPos,
    Sensors,
)
from unilab_gym.runtime.term import term_spec

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
    from helpers.probe import context

    from unilab_gym.config import RewardTermCfg
    from unilab_gym.errors import ConfigError
    from unilab_gym.runtime.term import bind_term

    cfg = RewardTermCfg(func=rewards.base_height_l2, weight=1.0, params={"heigth": 0.3})
    with pytest.raises(ConfigError, match=r"rewards/h: .*base_height_l2 has no parameter 'heigth'"):
        bind_term(context(), "rewards", "h", cfg)

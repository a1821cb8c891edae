"""Observation terms: what they read, how wide they are."""

import pytest
import torch
from helpers.probe import context, tiny_index

from unilab_gym.config import ObservationTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import observations
from unilab_gym.runtime.dynamics_reads import JointTorque
from unilab_gym.runtime.reads import (
    Action,
    Command,
    GeomContact,
    GeomHeight,
    JointAcc,
    JointPosRel,
    JointVel,
    ProjectedGravity,
    RootAngVelB,
    RootLinVelB,
    RootPos,
)
from unilab_gym.runtime.term import bind_term, term_spec, term_width

INDEX = tiny_index(floating=True)


@pytest.mark.parametrize(
    ("func", "params", "read", "width"),
    [
        (observations.base_lin_vel, {}, RootLinVelB(), 3),
        (observations.base_ang_vel, {}, RootAngVelB(), 3),
        (observations.projected_gravity, {}, ProjectedGravity(), 3),
        (observations.joint_pos_rel, {"joints": (".*",)}, JointPosRel(), 3),
        (observations.joint_vel, {"joints": ("hip", "toe")}, JointVel(("hip", "toe")), 2),
        (observations.joint_acc, {"joints": (".*",)}, JointAcc(), 3),
        (observations.joint_torque, {"joints": ("knee",)}, JointTorque(("knee",)), 1),
        (observations.last_action, {}, Action(0), 3),
        (observations.last_action, {"width": 2}, Action(0), 2),
        (observations.command, {"command": "c", "width": 4}, Command("c"), 4),
        (observations.geom_height, {"geoms": ("ball", "brick")}, GeomHeight(("ball", "brick")), 2),
    ],
)
def test_a_term_hands_over_its_one_read(func, params, read, width):
    value = torch.arange(2.0 * width).reshape(2, width)
    assert func({read: value}, **params) is value
    assert term_spec(func).reads({"joints": (".*",), "width": None, **params}) == (read,)
    assert term_width(func, params, INDEX) == width


def test_height_is_the_third_coordinate():
    frame = {RootPos(): torch.tensor([[1.0, 2.0, 0.3], [4.0, 5.0, 0.6]])}
    assert observations.base_height(frame).flatten().tolist() == pytest.approx([0.3, 0.6])
    assert term_width(observations.base_height, {}, INDEX) == 1


def test_contact_flags_become_numbers():
    params = {"geoms": ("ball",), "margin": 0.01}
    frame = {GeomContact(("ball",), 0.01): torch.tensor([[True], [False]])}
    assert observations.geom_contact(frame, **params).tolist() == [[1.0], [0.0]]
    assert term_width(observations.geom_contact, params, INDEX) == 1


def test_unknown_names_are_found_when_bound():
    cfg = ObservationTermCfg(func=observations.joint_vel, params={"joints": ("kne",)})
    with pytest.raises(ConfigError, match=r"policy/v: no joint matches 'kne'; did you mean 'knee'"):
        bind_term(context(), "policy", "v", cfg)

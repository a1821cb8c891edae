"""Termination terms in numbers."""

import math

import pytest
import torch
from helpers.probe import context

from unilab_gym.config import TerminationTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import terminations
from unilab_gym.runtime.reads import EpisodeStep, GeomContact, ProjectedGravity, Sensors
from unilab_gym.runtime.term import bind_term


def gravity(*degrees):
    angles = torch.tensor(degrees).deg2rad()
    return torch.stack((angles.sin(), torch.zeros_like(angles), -angles.cos()), 1)


def test_tilt_is_measured_from_upright():
    frame = {ProjectedGravity(): gravity(0.0, 59.9, 60.1, 120.0, 180.0)}
    flags = terminations.bad_orientation(frame, limit_deg=60.0)
    assert flags.tolist() == [False, False, True, True, True]
    assert terminations.bad_orientation(frame, limit_deg=150.0).tolist() == [False] * 4 + [True]


def test_a_row_that_is_not_a_number_is_left_to_the_fault_word():
    frame = {ProjectedGravity(): torch.full((1, 3), math.nan)}
    assert terminations.bad_orientation(frame, limit_deg=60.0).tolist() == [False]


def test_contact_of_any_geom():
    contact = torch.tensor([[False, False], [True, False], [True, True]])
    frame = {GeomContact(("a", "b"), 0.01): contact}
    flags = terminations.geom_contact(frame, geoms=("a", "b"), margin=0.01)
    assert flags.tolist() == [False, True, True]


def test_a_force_above_the_limit():
    force = torch.tensor([[[3.0, 4.0, 0.0], [0.0] * 3], [[0.0] * 3, [3.0, 4.0, 0.1]]])
    frame = {Sensors(("u", "v")): force}
    assert terminations.illegal_contact(frame, sensors=("u", "v"), limit=5.0).tolist() == [
        False,
        True,
    ]
    touch = {Sensors(("u",)): torch.tensor([[[4.0]], [[6.0]]])}
    assert terminations.illegal_contact(touch, sensors=("u",), limit=5.0).tolist() == [False, True]


def test_the_limit_is_reached_not_passed():
    time_out = terminations.TimeOut(context())  # 50 steps
    frame = {EpisodeStep(): torch.tensor([0, 49, 50, 51])}
    assert time_out(frame).tolist() == [False, False, True, True]


def test_an_unknown_geom():
    cfg = TerminationTermCfg(
        func=terminations.geom_contact, params={"geoms": ("bal",), "margin": 0.0}
    )
    with pytest.raises(ConfigError, match=r"terminations/t: no geom matches 'bal'; did you mean"):
        bind_term(context(), "terminations", "t", cfg)

"""Metrics in numbers."""

import math

import pytest
import torch
from helpers.probe import context

from unilab_gym.config import MetricTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import metrics
from unilab_gym.runtime.reads import AngVelErrorSq, GeomContact, GeomHeight, LinVelErrorSq
from unilab_gym.runtime.term import bind_term

FEET = ("ball", "brick")


def test_tracking_errors_are_distances():
    square = torch.tensor([0.0, 4.0, 0.25])
    assert metrics.lin_vel_error({LinVelErrorSq("c"): square}, command="c").tolist() == [0, 2, 0.5]
    assert metrics.ang_vel_error({AngVelErrorSq("c"): square}, command="c").tolist() == [0, 2, 0.5]
    assert square.tolist() == [0.0, 4.0, 0.25]


def swings(clearance, heights, margin=0.01):
    """Feeds one row of foot heights a step."""
    seen = []
    for step in heights:
        height = torch.tensor([step])
        frame = {GeomHeight(FEET): height, GeomContact(FEET, margin): height < margin}
        seen.append(round(clearance(frame).item(), 6))
    return seen


def clearance(min_air_s=0.06):
    return metrics.SwingClearance(context(1), feet=FEET, margin=0.01, min_air_s=min_air_s)


def test_the_peak_of_a_swing_is_reported_where_it_ends():
    up = [(0.02, 0.0), (0.05, 0.0), (0.03, 0.0), (0.0, 0.0), (0.0, 0.0)]
    assert swings(clearance(), up) == [0, 0, 0, 0.05, 0]


def test_a_short_hop_is_no_swing():
    assert swings(clearance(), [(0.05, 0.0), (0.05, 0.0), (0.0, 0.0)]) == [0, 0, 0]
    assert swings(clearance(0.04), [(0.05, 0.0), (0.05, 0.0), (0.0, 0.0)]) == [0, 0, 0.05]


def test_the_lowest_of_two_swings_that_end_together():
    both = [(0.02, 0.06), (0.04, 0.09), (0.03, 0.05), (0.0, 0.0)]
    assert swings(clearance(), both) == [0, 0, 0, 0.04]
    apart = [(0.02, 0.06), (0.04, 0.09), (0.03, 0.05), (0.0, 0.05), (0.0, 0.0)]
    assert swings(clearance(), apart) == [0, 0, 0, 0.04, 0.09]


def test_peaks_do_not_last_into_the_next_swing():
    two = [(0.09, 0.0)] * 3 + [(0.0, 0.0)] + [(0.03, 0.0)] * 3 + [(0.0, 0.0)]
    assert [value for value in swings(clearance(), two) if value] == [0.09, 0.03]


def test_a_reset_forgets_the_swing():
    term = clearance()
    swings(term, [(0.09, 0.0)] * 3)
    term.reset(torch.tensor([True]))
    assert swings(term, [(0.02, 0.0), (0.0, 0.0)]) == [0, 0]
    swings(term, [(math.nan, math.nan)])
    term.reset(torch.tensor([True]))
    assert swings(term, [(0.02, 0.0)] * 3 + [(0.0, 0.0)]) == [0, 0, 0, 0.02]


def test_an_unknown_foot():
    params = {"feet": ("bal",), "margin": 0.01}
    cfg = MetricTermCfg(func=metrics.SwingClearance, params=params)
    with pytest.raises(ConfigError, match=r"metrics/m: no geom matches 'bal'; did you mean 'ball'"):
        bind_term(context(), "metrics", "m", cfg)

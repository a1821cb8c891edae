"""Joint position targets resolve to numbers without an environment."""

import math

import pytest
from helpers.probe import tiny_index

from unilab_gym.errors import ConfigError
from unilab_gym.mdp.actions import JointPositionAction
from unilab_gym.runtime.term import ActionSpec


def test_defaults_drive_every_joint_around_its_default():
    assert JointPositionAction.resolve(tiny_index()) == ActionSpec(
        kind="joint_position",
        joints=("hip", "knee", "toe"),
        actuators=("hip_motor", "knee_motor", "toe_motor"),
        scale=(1.0, 1.0, 1.0),
        offset=(0.1, 0.2, 0.3),
        box=1.0,
        target_clip=None,
        clipped=True,
    )


def test_columns_follow_the_patterns():
    spec = JointPositionAction.resolve(
        tiny_index(),
        clipped=False,
        joints=("toe", "h.*"),
        scale={"hip": 2.0, "toe": 3.0},
        offset=0.5,
        box=4,
        target_clip={"hip": (-1, 1)},
    )
    assert (spec.joints, spec.actuators) == (("toe", "hip"), ("toe_motor", "hip_motor"))
    assert (spec.scale, spec.offset, spec.box) == ((3.0, 2.0), (0.5, 0.5), 4.0)
    assert spec.target_clip == ((-math.inf, math.inf), (-1.0, 1.0))
    assert not spec.clipped


def test_a_pattern_for_joints_that_the_action_does_not_drive():
    with pytest.raises(ConfigError, match=r"scale: no joint matches 'knee'; available: hip"):
        JointPositionAction.resolve(tiny_index(), joints=("hip",), scale={"hip": 1, "knee": 1})

"""Name tables: matching by pattern, and the words of what matches nothing."""

import pytest
from helpers.probe import tiny_index

from unilab_gym.errors import ConfigError
from unilab_gym.model_index import FieldSlice, Stage

INDEX = tiny_index()
JOINTS = ("hip", "knee", "toe")


def test_patterns_match_whole_names_in_their_own_order():
    assert INDEX.match("joint", ".*") == JOINTS
    assert INDEX.match("joint", ("toe", "(hip|toe)")) == ("toe", "hip")
    assert INDEX.match("joint", ("toe", "hip"), keep_order=False) == ("hip", "toe")
    assert INDEX.match("actuator", ".*_motor") == ("knee_motor", "hip_motor", "toe_motor")
    with pytest.raises(ConfigError, match=r"no joint matches 'hi'; did you mean 'hip'"):
        INDEX.match("joint", "hi")


@pytest.mark.parametrize("kind", ["joint", "body", "geom", "site", "sensor", "actuator"])
def test_every_kind_has_names_and_each_matches_itself(kind):
    names = INDEX.names(kind)
    assert names
    assert INDEX.match(kind, names) == names


def test_one_number_a_joint():
    assert INDEX.per_joint("x", 2, JOINTS) == (2.0, 2.0, 2.0)
    assert INDEX.per_joint("x", {".*e": 1, "hip": 3}, JOINTS) == (3.0, 1.0, 1.0)
    assert INDEX.per_joint("x", {"hip": 3, "h.*": 3.0}, JOINTS, missing=-1) == (3.0, -1.0, -1.0)
    assert INDEX.per_joint("x", {}, (), missing=0) == ()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: INDEX.match("joint", ("hip", "tow")),
            r"no joint matches 'tow'; did you mean 'toe'",
        ),
        (lambda: INDEX.match("joint", "("), r"joint pattern '\(' is not valid: "),
        (lambda: INDEX.match("joint", ()), r"no joint pattern was given; available: hip, knee"),
        (lambda: INDEX.names("joints"), r"unknown kind of name 'joints'; did you mean 'joint'"),
        (lambda: INDEX.joint("hup"), r"no joint 'hup'; did you mean 'hip'"),
        (lambda: INDEX.actuator_of("ankle"), r"no actuator drives joint 'ankle'"),
        (lambda: INDEX.per_joint("x", {"(": 1}, JOINTS), r"x: joint pattern '\(' is not valid"),
        (lambda: INDEX.per_joint("x", {"toes": 1}, JOINTS), r"x: no joint matches 'toes'"),
        (
            lambda: INDEX.per_joint("x", {"hip": 1}, JOINTS),
            r"x: no value for joints \['knee', 'toe'\]",
        ),
        (
            lambda: INDEX.per_joint("x", {"hip": 1, ".*": 2}, JOINTS),
            r"x: joint 'hip' is claimed with 1.0 and 2",
        ),
    ],
)
def test_what_matches_nothing_is_worded(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_consecutive_columns_are_a_range():
    assert FieldSlice("qpos", (2, 3, 4), (3,), Stage.NONE).is_range
    assert not FieldSlice("qpos", (2, 4), (2,), Stage.NONE).is_range
    assert not FieldSlice("qpos", (3, 2), (2,), Stage.NONE).is_range


def test_the_actuator_of_a_joint():
    assert INDEX.actuator_of("hip").name == "hip_motor"
    assert INDEX.actuator_of("hip").index == 1
    assert INDEX.joint("toe").default == 0.3

"""Terms of two legs in numbers: a frame is anything that gives tensors for reads."""

import math

import pytest
import torch
from helpers.probe import context, ready

from unilab_gym.errors import ConfigError
from unilab_gym.mdp import biped
from unilab_gym.runtime.reads import (
    Command,
    EpisodeStep,
    GeomContact,
    GeomHeight,
    JointPosRel,
    ProjectedGravity,
    RootPos,
)

GEOMS = ("brick", "ball")  # the tiny index has both: two feet of one geom each
AIR = {"geoms": GEOMS, "margin": 0.01, "gait": "gait", "least_s": 0.05, "most_s": 0.09}


def rows(*values):
    return torch.tensor(values, dtype=torch.float32)


def gait(num_envs=4, **params):
    ctx = context(num_envs)
    values = {"command": "twist", "frequency": 1.5, "standing_norm": 0.05} | params
    command = biped.BipedGait(ctx, **values)
    ready(ctx)
    frame = {Command("twist"): torch.ones(num_envs, 3), EpisodeStep(): torch.zeros(num_envs)}
    command.reset(torch.ones(num_envs, dtype=torch.bool), frame)
    return command, frame


def test_the_clock_turns_and_the_legs_alternate():
    command, frame = gait()
    start = command.parts["phase"].clone()
    frame[EpisodeStep()] = torch.full((4,), 7.0)
    command.update(frame)
    phase = command.parts["phase"]
    assert torch.allclose((phase - start) % 1.0, torch.tensor(7 * 0.02 * 1.5), atol=1e-5)
    assert torch.allclose((phase[:, 1] - phase[:, 0]) % 1.0, torch.tensor(0.5), atol=1e-5)
    angle = 2 * math.pi * phase[:, 0]
    assert torch.allclose(command.value, torch.stack((angle.sin(), angle.cos()), 1), atol=1e-5)
    frame[Command("twist")] = torch.zeros(4, 3)
    command.update(frame)
    assert torch.equal(command.value, rows([0.0, 1.0]).expand(4, 2))


def test_a_reset_leaves_the_other_rows_clocks_alone():
    command, frame = gait()
    frame[EpisodeStep()] = torch.full((4,), 7.0)
    command.update(frame)
    before = command.value.clone()
    frame[EpisodeStep()] = torch.tensor([0.0, 30.0, 30.0, 30.0])  # set from outside
    command.reset(torch.arange(4) == 0, frame)
    assert torch.equal(command.value[1:], before[1:])
    assert not torch.equal(command.value[0], before[0])


def test_feet_phase_rewards_the_bezier_height():
    phase = rows([0.0, 0.5], [0.25, 0.75], [0.0, 0.0])
    wanted = rows([0.0, 0.09], [0.045, 0.045], [0.0, 0.0])
    params = {"geoms": GEOMS, "gait": "gait", "swing_height": 0.09, "sigma": 0.008}
    frame = {Command("gait", "phase"): phase, GeomHeight(GEOMS): wanted}
    assert torch.allclose(biped.feet_phase(frame, **params), torch.ones(3))
    frame[GeomHeight(GEOMS)] = wanted + rows([0.02, 0.0])
    expected = math.exp(-(0.02**2) / 0.008)
    assert torch.allclose(biped.feet_phase(frame, **params), torch.tensor(expected))


def test_air_time_counts_feet_inside_the_window_only():
    ctx = context(2)
    term = biped.FeetAirTime(ctx, **AIR)  # 2.5 to 4.5 control steps: the third and the fourth
    air = torch.tensor([[False, True], [False, True]])
    frame = {GeomContact(GEOMS, 0.01): air, Command("gait", "phase"): rows([0.1, 0.6], [0, 0])}
    seen = [term(frame).tolist() for _ in range(6)]
    assert seen == [[0, 0], [0, 0], [1, 0], [1, 0], [0, 0], [0, 0]]  # row 1 is told to stand
    term.reset(torch.tensor([True, False]))
    assert [term(frame)[0].item() for _ in range(3)] == [0, 0, 1]
    frame[GeomContact(GEOMS, 0.01)] = torch.ones(2, 2, dtype=torch.bool)
    assert term(frame).tolist() == [0, 0]


def test_posture():
    tilted = {ProjectedGravity(): rows([0.6, 0.0, -0.8], [0.0, 0.0, -1.0])}
    assert torch.allclose(biped.orientation_l2(tilted), rows(0.36, 0.0))
    low = {RootPos(): rows([0.0, 0.0, 0.54], [0.0, 0.0, 0.56])}
    assert biped.root_below(low, height=0.55).tolist() == [True, False]
    ctx = context(1)
    names = ctx.index.joint_names
    pose = biped.WeightedPose(ctx, weights={name: float(i + 1) for i, name in enumerate(names)})
    value = pose({JointPosRel(): torch.full((1, len(names)), 2.0)})
    assert value.item() == pytest.approx(4.0 * sum(range(1, len(names) + 1)))


def test_wrong_parameters_are_named():
    with pytest.raises(ConfigError, match="frequency must be positive and finite, got 0"):
        gait(frequency=0)
    with pytest.raises(ConfigError, match=r"air time must be 0 <= least_s < most_s, got 0\.5, 0"):
        biped.FeetAirTime(context(1), **{**AIR, "least_s": 0.5})
    with pytest.raises(ConfigError, match="1 geoms are not two feet"):
        biped.FeetAirTime(context(1), **{**AIR, "geoms": ("brick",)})
    with pytest.raises(ConfigError, match="no value for joints"):
        biped.WeightedPose(context(1), weights={context(1).index.joint_names[0]: 1.0})

"""Command generators in numbers."""

import math

import pytest
import torch
from helpers.probe import context, ready

from unilab_gym.config import CommandTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp.commands import TrotGait, UniformVelocityCommand
from unilab_gym.runtime.managers.commands import CommandManager
from unilab_gym.runtime.reads import Command, EpisodeStep, RootQuat
from unilab_gym.runtime.term import term_spec

RANGES = {"lin_vel_x": (-0.5, 1.0), "lin_vel_y": (-0.2, 0.2), "ang_vel_yaw": (2.0, 3.0)}


def velocities(num_envs, **params):
    ctx = context(num_envs)
    command = UniformVelocityCommand(ctx, **{**RANGES, "resampling_s": (1.0, 1.0), **params})
    ready(ctx)
    command.reset(torch.ones(num_envs, dtype=torch.bool), None)
    return ctx, command


def test_draws_fill_their_ranges():
    _, command = velocities(2000)
    low, high = torch.tensor(list(RANGES.values())).T
    assert (command.value >= low).all()
    assert (command.value <= high).all()
    span = high - low
    assert (command.value.amin(0) < low + 0.01 * span).all()
    assert (command.value.amax(0) > high - 0.01 * span).all()
    middle = (low + high) / 2
    assert ((command.value.mean(0) - middle).abs() < 5 * span / math.sqrt(12 * 2000)).all()


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_commands_stands_still(share):
    _, command = velocities(4000, standing_fraction=share)
    still = (command.value == 0.0).all(1).float().mean().item()
    assert still == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / 4000))
    moving = command.value[(command.value != 0.0).any(1)]
    assert (moving[:, 2] >= 2.0).all()  # stands wholly or not at all


def test_a_reset_draws_for_masked_rows_only():
    ctx, command = velocities(4)
    before = command.value.clone()
    ctx.rng.start_episode(torch.ones(4, dtype=torch.bool))
    ctx.rng.draw()
    command.reset(torch.tensor([False, True, True, False]), None)
    assert torch.equal(command.value[::3], before[::3])
    assert (command.value[1:3] != before[1:3]).all()


def test_a_range_of_one_value():
    _, command = velocities(8, lin_vel_x=(0.5, 0.5), lin_vel_y=(0, 0))
    assert command.value[:, :2].tolist() == [[0.5, 0.0]] * 8


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"ang_vel_yaw": (1.0, -1.0)}, r"ang_vel_yaw: low 1.0 exceeds high -1.0"),
        ({"standing_fraction": 1.5}, r"standing_fraction must be in \[0, 1\], got 1.5"),
        ({"resampling_s": (0.0, 0.0)}, r"a period must be 0 < low <= high"),
    ],
)
def test_impossible_parameters(params, message):
    with pytest.raises(ConfigError, match=message):
        velocities(1, **params)


# --- the gait clock -------------------------------------------------------------------------------


def gait(steps, command=(1.0, 0.0, 0.0), phase_0=0.0):
    """The clock at a step of the episode, from a chosen phase."""
    rows = len(steps)
    ctx = context(rows)
    cfg = {"command": "c", "frequency": 2.0, "stance_share": 0.6, "standing_norm": 0.1}
    clock = TrotGait(ctx, **cfg)
    ready(ctx)
    frame = {EpisodeStep(): torch.tensor(steps), Command("c"): torch.tensor([command] * rows)}
    clock.reset(torch.ones(rows, dtype=torch.bool), frame)
    clock._phase_0.copy_(clock._legs + phase_0)
    clock.update(frame)
    return clock, frame


@pytest.mark.parametrize("frequency", [0.0, -1.0, math.inf])
def test_a_clock_needs_a_frequency(frequency):
    with pytest.raises(ConfigError, match="frequency must be positive and finite, got"):
        TrotGait(context(1), command="c", frequency=frequency, stance_share=0.6, standing_norm=0.1)


def test_two_pairs_half_a_period_apart_by_hand():
    # 2 Hz at 0.02 s: 25 steps a period.
    clock, _ = gait([0, 5, 25, 30])
    turn = 2 * math.pi * 0.2
    first = [0.0, 1.0, 0.0, -1.0]
    second = [math.sin(turn), math.cos(turn), -math.sin(turn), -math.cos(turn)]
    expected = torch.tensor([first, second, first, second])
    torch.testing.assert_close(clock.value, expected, atol=1e-5, rtol=0)


def test_legs_stand_in_the_first_share_of_their_period():
    # Phases of FL, RR: 0, 0.2, 0.64, 0.96; of FR, RL half a period later.
    clock, _ = gait([0, 5, 16, 24])
    assert clock.parts["stance"].tolist() == [
        [True, True, True, True],
        [True, False, False, True],
        [False, True, True, False],
        [False, True, True, False],
    ]


def test_every_leg_stands_while_the_command_is_small():
    clock, frame = gait([3, 9], command=(0.05, 0.05, 0.05))
    assert clock.parts["stance"].all()
    assert not clock.value.any()
    frame[Command("c")][1] = torch.tensor([0.2, 0.0, 0.0])
    clock.update(frame)
    assert clock.value.any(1).tolist() == [False, True]


def test_the_starting_phase_is_drawn_for_masked_rows_and_kept():
    ctx = context(200)
    clock = TrotGait(ctx, command="c", frequency=2.0, stance_share=0.6, standing_norm=0.0)
    ready(ctx)
    command = torch.ones(200, 3)
    frame = {EpisodeStep(): torch.zeros(200, dtype=torch.int64), Command("c"): command}
    clock.reset(torch.ones(200, dtype=torch.bool), frame)
    first = clock.value.clone()
    assert first[:, 0].unique().numel() > 190
    torch.testing.assert_close(first[:, :2].square().sum(1), torch.ones(200))
    torch.testing.assert_close(first[:, :2], -first[:, 2:], atol=1e-5, rtol=0)
    ctx.rng.start_episode(torch.ones(200, dtype=torch.bool))
    ctx.rng.draw()
    mask = torch.arange(200) % 2 == 0
    clock.reset(mask, frame)
    assert torch.equal(clock.value[~mask], first[~mask])
    assert (clock.value[mask] != first[mask]).any(1).all()


def test_a_reset_of_others_does_not_move_the_clock_of_a_row_whose_command_was_held():
    """The reward of the coming step judges the gait that the policy saw."""
    clock, frame = gait([3, 9, 4])
    before = clock.value.clone(), clock.parts["stance"].clone()
    frame[Command("c")].zero_()  # held at zero between two steps
    clock.reset(torch.tensor([True, False, False]), frame)
    assert torch.equal(clock.value[1:], before[0][1:])
    assert torch.equal(clock.parts["stance"][1:], before[1][1:])
    assert not clock.value[0].any()
    clock.update(frame)
    assert not clock.value.any()
    assert clock.parts["stance"].all()


def test_a_gait_of_a_command_that_is_not_there():
    ctx = context()
    params = {"command": "c", "frequency": 2.0, "stance_share": 0.6}
    with pytest.raises(ConfigError, match=r"commands/g: .*TrotGait needs the parameters standing_"):
        CommandManager(ctx, {"g": CommandTermCfg(func=TrotGait, params=params)})


# --- heading --------------------------------------------------------------------------------------


def yaw_quat(yaw, roll=0.0):
    """Roll about x, then yaw about z."""
    a, b = math.cos(yaw / 2), math.sin(yaw / 2)
    c, d = math.cos(roll / 2), math.sin(roll / 2)
    return [a * c, a * d, b * d, b * c]


def steered(yaws, heading=0.0, roll=0.0, **params):
    """Yaw rates of rows that face `yaws` and shall turn to `heading`."""
    rows = len(yaws)
    ctx, limits = context(rows), {"lin_vel_x": (0, 1), "lin_vel_y": (0, 0)}
    params = {"ang_vel_yaw": (-1.0, 1.0), "heading_gain": 0.5, **params}
    command = UniformVelocityCommand(
        ctx, **limits, resampling_s=(1.0, 1.0), heading=(heading, heading), **params
    )
    ready(ctx)
    frame = {RootQuat(): torch.tensor([yaw_quat(yaw, roll) for yaw in yaws])}
    command.reset(torch.ones(rows, dtype=torch.bool), frame)
    return ctx, command, frame


def test_the_yaw_rate_follows_the_heading_error_by_hand():
    _, command, _ = steered([0.0, -0.2, 0.2, -1.0], ang_vel_yaw=(-9, 9))
    by_hand = [0.0, math.tan(0.1), -math.tan(0.1), math.tan(0.5)]  # 0.5 x 2 tan(d / 2)
    torch.testing.assert_close(command.value[:, 2], torch.tensor(by_hand))
    assert abs(math.tan(0.1) - 0.5 * 0.2) < 0.01 * 0.1  # the error itself, to 1 %
    _, rolled, _ = steered([0.0, -0.2, 0.2, -1.0], roll=0.7, ang_vel_yaw=(-9, 9))
    torch.testing.assert_close(rolled.value[:, 2], torch.tensor(by_hand))  # yaw alone counts


def test_it_turns_the_short_way_and_stays_in_the_range():
    # Facing 3 rad and wanted at -3: the short way is 0.28 rad to the left.
    _, command, _ = steered([3.0, 0.0, 0.3], heading=-3.0)
    expected = torch.tensor([math.tan(math.pi - 3.0), -1.0, 1.0])
    torch.testing.assert_close(command.value[:, 2], expected)
    _, opposite, _ = steered([math.pi], ang_vel_yaw=(-0.5, 0.7))
    assert opposite.value[0, 2].abs() <= 0.7


def test_the_heading_is_followed_at_every_boundary_and_in_masked_rows_alone():
    _, command, frame = steered([0.2, 0.2])
    frame[RootQuat()][:] = torch.tensor(yaw_quat(0.1))
    before = command.value.clone()
    command.reset(torch.tensor([True, False]), frame)
    torch.testing.assert_close(command.value[:, 2], torch.tensor([-math.tan(0.05), before[1, 2]]))
    command.update(frame)
    torch.testing.assert_close(command.value[:, 2], torch.full((2,), -math.tan(0.05)))


def test_shares_of_standing_and_turning_rows():
    rows = 4000
    share = {"standing_fraction": 0.2, "heading_fraction": 0.5, "ang_vel_yaw": (0.5, 1.0)}
    _, command, frame = steered([0.0] * rows, heading=-1.0, **share)
    standing = (command.value == 0.0).all(1)
    turning = (command.value[:, 2] == 0.5) & ~standing  # the wish is to the right: lower bound
    assert standing.float().mean().item() == pytest.approx(0.2, abs=0.03)
    assert turning.float().mean().item() == pytest.approx(0.4, abs=0.04)
    command.update(frame)
    assert not command.value[standing].any()  # a standing row never turns


def test_without_heading_nothing_is_read_and_no_number_moves():
    assert term_spec(UniformVelocityCommand).reads({"heading": None}) == ()
    _, plain = velocities(50)
    _, command, _ = steered([0.0] * 50)  # the same stream, in the range (0, 1)
    torch.testing.assert_close(command.value[:, 0] * 1.5 - 0.5, plain.value[:, 0])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"heading_gain": 0.0}, r"heading_gain must be positive, got 0.0"),
        ({"heading_fraction": -0.1}, r"heading_fraction must be in \[0, 1\], got -0.1"),
        ({"heading": (1.0, 0.0)}, r"heading: low 1.0 exceeds high 0.0"),
    ],
)
def test_impossible_headings(params, message):
    with pytest.raises(ConfigError, match=message):
        velocities(1, **{"heading": (-1.0, 1.0), **params})

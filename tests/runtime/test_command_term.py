"""The countdown of whole control steps."""

import pytest
import torch
from helpers.probe import context, ready

from unilab_gym.errors import ConfigError
from unilab_gym.runtime.command_term import CommandTerm, StepTimer

ALL = torch.ones(4, dtype=torch.bool)


def timer(seconds, num_envs=4, control_dt=0.02):
    ctx = context(num_envs, control_dt=control_dt)
    made = StepTimer(ctx, seconds)
    ready(ctx)
    made.reset(torch.ones(num_envs, dtype=torch.bool))
    return ctx, made


def due_steps(ctx, made, steps):
    due = []
    for step in range(1, steps + 1):
        ctx.rng.advance()
        ctx.rng.draw()
        if made.advance()[0]:
            due.append(step)
    return due


@pytest.mark.parametrize(
    ("seconds", "dt", "period"),
    [(1.0, 0.02, 50), (0.28, 0.02, 14), (0.58, 0.02, 29), (1e-6, 0.02, 1)],
)
def test_a_fixed_period_is_exact(seconds, dt, period):
    ctx, made = timer((seconds, seconds), control_dt=dt)
    assert due_steps(ctx, made, 3 * period) == [period, 2 * period, 3 * period]


def test_a_fixed_period_takes_no_random_numbers():
    ctx, _ = timer((1.0, 1.001))  # both are 50 steps
    assert not ctx.rng._names


def test_periods_are_uniform_over_whole_steps():
    ctx, made = timer((0.04, 0.08), num_envs=3000)
    counts = torch.bincount(made.left.ceil().long(), minlength=5).tolist()
    assert counts[:2] == [0, 0]
    assert all(abs(count - 1000) < 130 for count in counts[2:])  # five standard deviations
    first = made.left.clone()
    ctx.rng.start_episode(torch.ones(3000, dtype=torch.bool))
    ctx.rng.draw()
    made.reset(torch.ones(3000, dtype=torch.bool))
    assert (made.left.ceil() != first.ceil()).float().mean() == pytest.approx(2 / 3, abs=0.05)


@pytest.mark.parametrize(("first", "last"), [(1, 2), (1, 3), (5, 7), (200, 500), (50, 30_000)])
def test_the_extreme_draws_are_the_first_and_the_last_whole_number(first, last):
    """No rounding of the block's scale makes a period one step shorter or longer."""
    ctx, made = timer((first * 0.02, last * 0.02))
    block = ctx.rng._block
    for number, steps in ((-(2**23), first), (2**23 - 1, last)):
        block.values.copy_(number * block._scale + block._middle)
        made.reset(ALL)
        assert made.left.ceil().tolist() == [steps] * 4
        passed = 1
        while steps < 600 and not made.advance()[0]:
            passed += 1
        assert steps >= 600 or passed == steps


def test_a_reset_restarts_masked_rows_only():
    ctx, made = timer((0.2, 0.2))
    due_steps(ctx, made, 4)
    made.reset(torch.tensor([True, False, False, True]))
    assert made.left.tolist() == [10.0, 6.0, 6.0, 10.0]
    made.reset(~ALL)
    assert made.left.tolist() == [10.0, 6.0, 6.0, 10.0]


def test_a_due_row_restarts_and_the_others_count_on():
    _, made = timer((0.1, 0.1))
    made.left.copy_(torch.tensor([1.0, 2.0, 3.0, 1.0]))
    assert made.advance().tolist() == [True, False, False, True]
    assert made.left.tolist() == [5.0, 1.0, 2.0, 5.0]


@pytest.mark.parametrize("seconds", [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_an_impossible_range(seconds):
    with pytest.raises(ConfigError, match=r"test/term: a period must be 0 < low <= high, got \("):
        StepTimer(context(), seconds)


def test_two_timers_of_one_term_need_keys():
    ctx = context()
    StepTimer(ctx, (1.0, 2.0))
    StepTimer(ctx, (1.0, 2.0), key="other")
    with pytest.raises(ConfigError, match="'test/term/timer/left' is registered twice"):
        StepTimer(ctx, (1.0, 2.0))


def test_a_generator_without_its_methods():
    bare = CommandTerm(context())
    with pytest.raises(NotImplementedError, match="CommandTerm"):
        bare.reset(ALL, None)
    with pytest.raises(NotImplementedError, match="CommandTerm"):
        bare.update(None)

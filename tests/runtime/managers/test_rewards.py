"""Rewards: weight x value x dt, sums over the episode, clean in faulty rows."""

import pytest
import torch
from helpers.probe import (
    CountCalls,
    build,
    context,
    counter,
    one,
    probe_cfg,
    row_at_step,
    started,
    zero_action,
)

from unilab_gym.config import ObservationGroupCfg, ObservationTermCfg, RewardTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.managers.rewards import RewardManager
from unilab_gym.runtime.reads import RewardSum
from unilab_gym.runtime.rows import RowMask
from unilab_gym.runtime.term import term


@term(reads=(RewardSum("one"),), width=1)
def sum_of_one(frame):
    return frame[RewardSum("one")].unsqueeze(1)


TWO = {
    "one": RewardTermCfg(func=one, weight=2.0),
    "k": RewardTermCfg(func=counter, weight=0.5),
}


def test_components_sums_and_reward_by_hand(tmp_path):
    env = started(probe_cfg(tmp_path, rewards=TWO))
    for k in (1, 2, 3):
        state = env.step(zero_action(env))
        rewards = env.rt.rewards
        assert rewards.names == ("one", "k")
        torch.testing.assert_close(rewards.values, torch.tensor([[1.0, k]]).expand(4, 2))
        torch.testing.assert_close(rewards.components, torch.tensor([[2.0, 0.5 * k]]).expand(4, 2))
        torch.testing.assert_close(state.reward, torch.full((4,), (2.0 + 0.5 * k) * 0.02))
    # Sum over three steps: 3 x 2 x 0.02 and (1 + 2 + 3) x 0.5 x 0.02.
    torch.testing.assert_close(rewards.sums, torch.tensor([[0.12, 0.06]]).expand(4, 2))
    env.close()


@pytest.mark.parametrize("dt", [0.02, 0.01])
def test_totals_per_second_do_not_depend_on_the_control_step(tmp_path, dt):
    """E44: the time-step factor belongs to the documented formula."""
    rewards = {"one": RewardTermCfg(func=one, weight=2.0)}
    env = started(probe_cfg(tmp_path, rewards=rewards, sim_dt=dt, ctrl_dt=dt))
    total = torch.zeros(4)
    for _ in range(round(1.0 / dt)):
        total += env.step(zero_action(env)).reward
    torch.testing.assert_close(total, torch.full((4,), 2.0))
    env.close()


def test_a_weight_of_zero_is_not_computed(tmp_path):
    rewards = {"live": RewardTermCfg(func=one, weight=1.0)}
    dead = rewards | {"dead": RewardTermCfg(func=CountCalls, weight=0.0)}
    before = CountCalls.calls
    env = started(probe_cfg(tmp_path, rewards=dead))
    env.step(zero_action(env))
    assert CountCalls.calls == before
    assert env.rt.rewards.names == ("live",)
    env.close()
    live = {"dead": RewardTermCfg(func=CountCalls, weight=1e-9)}
    env = started(probe_cfg(tmp_path, rewards=live))
    env.step(zero_action(env))
    assert CountCalls.calls > before
    env.close()


def test_a_non_finite_reward_is_a_fault_of_its_row_alone(tmp_path):
    bad = {"step": 2, "row": 1, "value": "nan"}
    rewards = TWO | {"bad": RewardTermCfg(func=row_at_step, weight=1.0, params=bad)}
    env, control = (
        started(probe_cfg(tmp_path, rewards=rewards)),
        started(probe_cfg(tmp_path, rewards=TWO)),
    )
    for k in (1, 2, 3):
        state, other = env.step(zero_action(env)), control.step(zero_action(control))
        expected = other.reward.clone()
        if k == 2:
            expected[1] = 0.0
            assert env.rt.rewards.components[1].tolist() == [0.0, 0.0, 0.0]
            assert state.terminated.tolist() == [False, True, False, False]
        if k == 3:
            expected[1] = (2.0 + 0.5) * 0.02  # the first step of a fresh episode
        torch.testing.assert_close(state.reward, expected)
        assert env.rt.rewards.sums.isfinite().all()
    env.close()
    control.close()


def test_sums_are_offered_to_terms(tmp_path):
    groups = {"policy": ObservationGroupCfg(terms={"s": ObservationTermCfg(func=sum_of_one)})}
    env = started(probe_cfg(tmp_path, observations=groups))
    for _ in range(3):
        state = env.step(zero_action(env))
    torch.testing.assert_close(state.obs["policy"], torch.full((4, 1), 0.06))
    env.close()


def test_a_reset_starts_masked_sums_anew():
    ctx = context(3)
    rewards = RewardManager(ctx, TWO)
    ctx.carriers.trim()
    rewards.sums.fill_(5.0)
    ctx.carriers.reset(RowMask(torch.tensor([True, False, True])))
    assert rewards.sums.tolist() == [[0.0, 0.0], [5.0, 5.0], [0.0, 0.0]]


def test_no_terms_give_a_reward_of_zero(tmp_path):
    env = started(probe_cfg(tmp_path, rewards={}))
    assert env.step(zero_action(env)).reward.tolist() == [0.0] * 4
    env.close()


def test_a_reward_sum_that_does_not_exist(tmp_path):
    groups = {"policy": ObservationGroupCfg(terms={"s": ObservationTermCfg(func=sum_of_one)})}
    rewards = {"ones": RewardTermCfg(func=one, weight=1.0)}
    with pytest.raises(ConfigError, match=r"RewardSum\(term='one'\)\"; did you mean .*'ones'"):
        build(probe_cfg(tmp_path, observations=groups, rewards=rewards))

"""The episode log by hand: rates, returns, causes, the mean over rows that ended, else held."""

import math

import pytest
import torch
from helpers.probe import (
    at_step,
    counter,
    one,
    probe_cfg,
    row_at_step,
    started,
    walker_cfg,
    zero_action,
)

from unilab_gym.config import MetricTermCfg, RewardTermCfg, TerminationTermCfg
from unilab_gym.mdp.terminations import TimeOut

REWARDS = {
    "one": RewardTermCfg(func=one, weight=2.0),
    "k": RewardTermCfg(func=counter, weight=0.5),
}
TERMS = {
    "time_out": TerminationTermCfg(func=TimeOut, time_out=True),
    "fall": TerminationTermCfg(func=at_step, params={"step": 3}),
}


def logging(tmp_path, num_envs=4, **changes):
    return started(probe_cfg(tmp_path, rewards=REWARDS, **changes), num_envs)


def log(env):
    return {name: value.item() for name, value in env.log().items()}


def test_an_episode_of_fifty_steps_by_hand(tmp_path):
    """E44: w v dt summed over the episode, divided by its length in seconds."""
    env = logging(tmp_path, metrics={"k": MetricTermCfg(func=counter)})
    for _ in range(50):
        env.step(zero_action(env))
    values = log(env)
    total_k = sum(range(1, 51))
    assert values["reward/one"] == pytest.approx(2.0)  # 50 x 2 x 0.02 / 1.0 s
    assert values["reward/k"] == pytest.approx(0.5 * total_k * 0.02)
    assert values["episode/return"] == pytest.approx(2.0 + 0.5 * total_k * 0.02)
    assert values["episode/length"] == 50.0
    assert values["episode/ended"] == 4
    assert values["termination/time_out"] == 1.0
    assert values["metric/k"] == pytest.approx(25.5)
    assert all(value == 0.0 for name, value in values.items() if name.startswith("fault/"))
    env.close()


def test_a_metric_of_a_command_says_how_it_is_followed(tmp_path):
    """`command/<command>/<metric>` is that metric, at no operation more; others have none."""
    from unilab_gym.mdp import metrics

    follow = MetricTermCfg(func=metrics.lin_vel_error, params={"command": "twist"})
    terms = {"err": follow, "k": MetricTermCfg(func=counter)}
    env = started(walker_cfg(tmp_path, metrics=terms, episode_length_s=0.1), 4)
    for _ in range(5):
        env.step(zero_action(env))
    values = log(env)
    env.close()
    assert values["episode/ended"] == 4 and values["metric/err"] > 0.0
    assert values["command/twist/err"] == values["metric/err"]
    assert [key for key in values if key.startswith("command/")] == ["command/twist/err"]


def test_the_mean_is_over_rows_that_ended_in_this_step(tmp_path):
    env = logging(tmp_path, terminations=TERMS, episode_length_s=0.2)
    env.rt.episode_step.copy_(torch.tensor([0, 1, 7, 8]))  # ends: fall, fall, limit, limit
    env.step(zero_action(env))  # 1 2 8 9
    assert log(env)["episode/ended"] == 0
    assert log(env)["episode/length"] == 0.0
    env.step(zero_action(env))  # 2 3 9 10: rows 1 and 3 end after 2 steps
    values = log(env)
    assert values["episode/ended"] == 2
    assert values["episode/length"] == 2.0  # steps really made, not the counter that was set
    assert (values["termination/fall"], values["termination/time_out"]) == (0.5, 0.5)
    # Row 1 saw k = 2, 3 and row 3 saw 9, 10; one second holds 1 / 0.04 such episodes.
    mean_k = ((2 + 3) + (9 + 10)) / 2
    assert values["reward/k"] == pytest.approx(0.5 * mean_k * 0.02 / 0.04)
    env.close()


def test_the_previous_value_is_held_until_a_row_ends(tmp_path):
    env = logging(tmp_path, num_envs=2, episode_length_s=0.06, terminations=TERMS)
    env.rt.episode_step.copy_(torch.tensor([0, 1]))
    history = []
    for _ in range(5):
        env.step(zero_action(env))
        history.append(log(env))
    assert [values["episode/ended"] for values in history] == [0, 1, 1, 0, 1]
    assert [values["episode/length"] for values in history] == [0.0, 2.0, 3.0, 3.0, 3.0]
    assert history[3] == {**history[2], "episode/ended": 0}
    env.close()


def test_the_dict_handed_out_is_never_changed_again(tmp_path):
    env = logging(tmp_path, num_envs=2, episode_length_s=0.04)
    env.step(zero_action(env))
    kept = env.log()
    before = {name: value.clone() for name, value in kept.items()}
    for _ in range(5):
        env.step(zero_action(env))
    assert all(torch.equal(kept[name], value) for name, value in before.items())
    assert env.log() is not env.log()
    assert all(value.shape == () for value in kept.values())
    env.close()


def test_a_faulty_row_is_logged_under_its_cause_alone(tmp_path):
    bad = {"step": 3, "row": 1, "value": "nan"}
    rewards = REWARDS | {"bad": RewardTermCfg(func=row_at_step, weight=1.0, params=bad)}
    env = started(probe_cfg(tmp_path, rewards=rewards, terminations=TERMS), 2)
    env.rt.episode_step.copy_(torch.tensor([10, 0]))
    for _ in range(3):
        env.step(zero_action(env))
    values = log(env)
    assert values["episode/ended"] == 1
    assert values["fault/reward_nonfinite"] == 1.0
    assert values["termination/fall"] == 0.0  # it fired in that step, on a faulty row
    # Two good steps: (2 + 0.5) + (2 + 1.0), the faulty one adds 0.
    assert values["episode/return"] == pytest.approx((2 + 0.5 + 2 + 1.0) * 0.02)
    assert all(math.isfinite(value) for value in values.values())
    env.close()


def test_the_packed_columns_are_those_of_every_row(tmp_path):
    env = logging(tmp_path, num_envs=3)
    env.step(zero_action(env))
    env.reset(mask=torch.tensor([False, True, False]))
    env.step(zero_action(env))
    packed = dict(zip(env.rt.log.names, env.rt.log.packed.unbind(1), strict=True))
    assert packed["episode/length"].tolist() == [2.0, 1.0, 2.0]
    torch.testing.assert_close(packed["episode/return"], torch.tensor([0.11, 0.05, 0.11]))
    assert len(env.rt.log.names) == len(set(env.rt.log.names)) == env.rt.log.packed.shape[1]
    env.close()


def test_every_key_by_hand_and_in_the_documentation(tmp_path):
    """N15: one episode of three steps, to 1e-5, and step reward = sum of its terms."""
    from pathlib import Path

    from unilab_gym.backends.base import FaultBit
    from unilab_gym.config import CurriculumTermCfg
    from unilab_gym.mdp import curriculums, rewards

    fade = {"reward": "one", "stages": ((2, 1.0), (3, 0.0))}
    env = logging(
        tmp_path,
        terminations=TERMS,
        curriculum={"fade": CurriculumTermCfg(func=curriculums.RewardWeightStages, params=fade)},
        metrics={
            "mean_k": MetricTermCfg(func=counter),
            "alive": MetricTermCfg(func=rewards.alive, reduce="sum"),
        },
    )
    paid = [(2.0, 0.5), (1.0, 1.0), (0.0, 1.5)]  # w v of "one" and "k" in steps 1 to 3
    for one_, k in paid:
        reward = env.step(zero_action(env)).reward
        torch.testing.assert_close(reward, torch.full((4,), (one_ + k) * 0.02))
    expected = {
        "reward/one": (2.0 + 1.0 + 0.0) * 0.02 / 0.06,
        "reward/k": (0.5 + 1.0 + 1.5) * 0.02 / 0.06,
        "episode/return": 6.0 * 0.02,
        "episode/length": 3.0,
        "episode/ended": 4.0,
        "termination/time_out": 0.0,
        "termination/fall": 1.0,
        "metric/mean_k": 2.0,
        "metric/alive": 3.0,
        "curriculum/fade": 0.0,
        **{f"fault/{bit.name.lower()}": 0.0 for bit in FaultBit},
    }
    assert log(env) == pytest.approx(expected, abs=1e-5)
    env.close()
    text = (Path(__file__).parents[2] / "docs" / "logging.md").read_text()
    documented = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    for key in expected:
        kind = key.split("/")[0]
        assert key in documented or any(name.startswith(f"{kind}/<") for name in documented)

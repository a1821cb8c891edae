"""Metrics: four reductions of an episode, play-only terms, faulty rows."""

import pytest
import torch
from helpers.probe import (
    CountCalls,
    context,
    counter,
    probe_cfg,
    row_at_step,
    started,
    zero_action,
)

from unilab_gym.config import MetricTermCfg, RewardTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.managers.metrics import MetricsManager
from unilab_gym.runtime.reads import EpisodeStep
from unilab_gym.runtime.term import term


@term(reads=(EpisodeStep(),))
def minus_step(frame):
    return -frame[EpisodeStep()].float()


def every(func=counter):
    kinds = ("last", "max", "mean", "sum")
    return {f"{kind}_k": MetricTermCfg(func=func, reduce=kind) for kind in kinds}


def logged(env, steps):
    for _ in range(steps):
        env.step(zero_action(env))
    return {name: value.item() for name, value in env.log().items() if name.startswith("metric/")}


@pytest.mark.parametrize(
    ("func", "mean", "total", "top", "last"),
    [(counter, 3.0, 15.0, 5.0, 5.0), (minus_step, -3.0, -15.0, -1.0, -5.0)],
)
def test_four_reductions_of_five_steps(tmp_path, func, mean, total, top, last):
    env = started(probe_cfg(tmp_path, metrics=every(func), episode_length_s=0.1))
    expected = {
        "metric/mean_k": mean,
        "metric/sum_k": total,
        "metric/max_k": top,
        "metric/last_k": last,
    }
    assert logged(env, 5) == expected
    assert list(env.rt.metrics.names) == ["mean_k", "sum_k", "max_k", "last_k"]
    assert logged(env, 5) == expected  # the second episode starts anew
    env.close()


@pytest.mark.parametrize("kind", ["mean", "sum", "max", "last"])
def test_each_reduction_alone(tmp_path, kind):
    metrics = {"k": MetricTermCfg(func=counter, reduce=kind)}
    env = started(probe_cfg(tmp_path, metrics=metrics, episode_length_s=0.06))
    assert logged(env, 3) == {"metric/k": {"mean": 2.0, "sum": 6.0, "max": 3.0, "last": 3.0}[kind]}
    env.close()


def test_rows_reset_on_their_own(tmp_path):
    env = started(probe_cfg(tmp_path, metrics=every(), terminations={}), 2)
    logged(env, 2)
    env.reset(mask=torch.tensor([True, False]))
    env.step(zero_action(env))
    values = torch.empty(1 + len(env.rt.metrics.names), env.num_envs)
    env.rt.metrics.episode_values(values)
    assert values.t().tolist() == [[1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 6.0, 3.0, 3.0]]
    env.close()


def test_play_only_terms_are_not_computed_in_training(tmp_path):
    metrics = {"calls": MetricTermCfg(func=CountCalls, play_only=True)}
    before = CountCalls.calls
    cfg = probe_cfg(tmp_path, metrics=metrics, episode_length_s=0.02)
    env = started(cfg)
    assert logged(env, 1) == {}
    assert CountCalls.calls == before
    env.close()
    env = started(cfg.for_play())
    assert logged(env, 1) == {"metric/calls": 1.0}
    env.close()


def faulty(tmp_path, rows):
    """Two rows whose episodes last 4 steps; the reward is infinite at (row, step) of `rows`."""
    rewards = {}
    for number, (row, step) in enumerate(rows):
        bad = {"step": step, "row": row, "value": "inf"}
        rewards[f"bad_{number}"] = RewardTermCfg(func=row_at_step, weight=1.0, params=bad)
    metrics = every(minus_step) | {"k": MetricTermCfg(func=counter)}
    return started(probe_cfg(tmp_path, metrics=metrics, rewards=rewards, episode_length_s=0.08), 2)


def test_a_faulty_step_is_no_part_of_an_episodes_metrics(tmp_path):
    env = faulty(tmp_path, [(0, 3)])
    values = logged(env, 3)  # row 0 ends with steps 1 and 2, the faulty third left out
    assert values == {
        "metric/mean_k": -1.5,
        "metric/k": 1.5,
        "metric/sum_k": -3.0,
        "metric/max_k": -1.0,
        "metric/last_k": -2.0,
    }
    assert env.rt.metrics.step_values[0].tolist() == [0.0] * 5
    env.close()


def test_a_row_without_a_good_step_is_no_part_of_the_mean(tmp_path):
    env = faulty(tmp_path, [(0, 1), (1, 1)])
    env.rt.episode_step.copy_(torch.tensor([0, 2]))
    assert set(logged(env, 1).values()) == {0.0}  # the first of all: held from before
    assert env.log()["episode/ended"] == 1
    env.rt.episode_step.copy_(torch.tensor([0, 3]))
    values = logged(env, 1)  # row 0 is faulty again, row 1 ends after steps 3 and 4
    assert env.log()["episode/ended"] == 2
    assert values["metric/k"] == 3.5
    assert values["metric/max_k"] == -3.0
    packed = dict(zip(env.rt.log.names, env.rt.log.packed.unbind(1), strict=True))
    assert packed["metric/k"].isnan().tolist() == [True, False]
    assert packed["metric/last_k"].isnan().tolist() == [True, False]
    assert packed["reward/bad_0"].tolist() == [0.0, 0.0]
    held = logged(env, 1)  # both rows faulty at once: nothing to average
    assert env.log()["episode/ended"] == 2
    assert held == values
    env.close()


def test_an_unknown_reduction():
    with pytest.raises(ConfigError, match=r"reduce: 'avg'; available: mean, sum, max, last"):
        MetricTermCfg(func=counter, reduce="avg")
    assert MetricsManager(context(), {}).names == ()

"""Metrics: four reductions of an episode, play-only terms, faulty rows."""

import math

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
    values = env.rt.metrics.episode_values(env.rt.log.length)
    assert values.tolist() == [[1.0, 1.0, 1.0, 1.0], [2.0, 6.0, 3.0, 3.0]]
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


def test_a_faulty_row_counts_as_zero(tmp_path):
    bad = {"step": 2, "row": 0, "value": math.inf}
    env = started(
        probe_cfg(
            tmp_path,
            metrics={"bad": MetricTermCfg(func=row_at_step, params=bad, reduce="sum")},
            rewards={"bad": RewardTermCfg(func=row_at_step, weight=1.0, params=bad)},
        )
    )
    assert logged(env, 2) == {"metric/bad": 0.0}
    assert env.step(zero_action(env)).reward.tolist() == [0.0] * 4
    env.close()


def test_an_unknown_reduction():
    with pytest.raises(ConfigError, match=r"reduce: 'avg'; available: mean, sum, max, last"):
        MetricTermCfg(func=counter, reduce="avg")
    assert MetricsManager(context(), {}).names == ()

"""The evaluation's figures by hand: first full episode of each environment, live steps only."""

import math

import pytest
import torch
from helpers.probe import CountCalls as Calls
from helpers.probe import at_step, counter, one, probe_cfg, row_at_step, walker_cfg

import unilab_gym
from unilab_gym.config import MetricTermCfg, RewardTermCfg, TerminationTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.evaluation import EvalReport, evaluate
from unilab_gym.mdp.terminations import TimeOut
from unilab_gym.registration import Outcome
from unilab_gym.runtime.reads import EpisodeStep
from unilab_gym.runtime.term import term

LIMIT = 5


@term(reads=(EpisodeStep(),))
def row_one_falls(frame):
    """Row 1 falls in step 3 of every episode."""
    steps = frame[EpisodeStep()]
    return (steps == 3) & (torch.arange(steps.shape[0]) == 1)


@term(reads=(EpisodeStep(),))
def spikes(frame):
    """Something happens in even steps: its size is the step."""
    steps = frame[EpisodeStep()].float()
    return torch.where(steps % 2 == 0, steps, 0.0)


TERMS = {
    "time_out": TerminationTermCfg(func=TimeOut, time_out=True),
    "fall": TerminationTermCfg(func=row_one_falls),
}
METRICS = {
    "mean_k": MetricTermCfg(func=counter),
    "last_k": MetricTermCfg(func=counter, reduce="last"),
    "sum_k": MetricTermCfg(func=counter, reduce="sum"),
    "spike": MetricTermCfg(func=spikes, reduce="max", play_only=True),
}


def environment(tmp_path, num_envs=3, play=True, **changes):
    settings = {
        "episode_length_s": LIMIT * 0.02,
        "rewards": {"one": RewardTermCfg(func=one, weight=50.0)},
        "terminations": TERMS,
        "metrics": METRICS,
        **changes,
    }
    cfg = probe_cfg(tmp_path, **settings)
    return unilab_gym.make(cfg, num_envs, backend="mujoco", play=play)


def idle(obs):
    return torch.zeros(obs.shape[0], 1)


def test_figures_by_hand(tmp_path):
    """Rows 0 and 2 live 5 steps, row 1 lives 3; the reward is 1 a step."""
    env = environment(tmp_path)
    report = evaluate(env, idle)
    assert (report.episodes, report.survivors, report.steps) == (3, 2, 13)
    assert report.survival == pytest.approx(2 / 3)
    assert report.mean_length == report.mean_return == pytest.approx(13 / 3)
    total = 2 * sum(range(1, 6)) + sum(range(1, 4))
    assert report.metrics["mean_k"] == pytest.approx(total / 13)
    assert report.metrics["last_k"] == pytest.approx(total / 13)
    assert report.metrics["sum_k"] == pytest.approx(total / 3)
    assert report.metrics["spike_count"] == 5.0  # 2, 4 / 2 / 2, 4
    assert report.metrics["spike_p10"] == pytest.approx(2.0)
    assert report.faults == {}
    assert report.figures["survival"] == report.survival
    assert set(report.figures) == {"survival", "mean_length", "mean_return", *report.metrics}
    assert report.to_dict()["survivors"] == 2
    env.close()


def test_only_the_first_episodes_of_the_asked_rows_count(tmp_path):
    env = environment(tmp_path)
    report = evaluate(env, idle, episodes=1)
    assert (report.episodes, report.survivors, report.steps) == (1, 1, 5)
    assert report.mean_return == pytest.approx(5.0)
    env.close()


def test_what_ran_before_does_not_matter(tmp_path):
    cfg = walker_cfg(tmp_path, episode_length_s=0.3)
    env = unilab_gym.make(cfg, 6, backend="mujoco", play=True)

    def policy(obs):
        return obs[:, :2].sin()

    figures = []
    for seed in (1000, 7, 1000):
        env.step(torch.ones(6, 2)) if figures else None
        figures.append(evaluate(env, policy, seed=seed).figures)
    assert figures[0] == figures[2]
    assert figures[0] != figures[1]
    env.close()


def test_faults_are_counted_once_and_end_the_episode(tmp_path):
    bad = {"step": 2, "row": 0, "value": "nan"}
    rewards = {"bad": RewardTermCfg(func=row_at_step, weight=1.0, params=bad)}
    env = environment(tmp_path, rewards=rewards)
    first = evaluate(env, idle, episodes=1)
    assert first.faults == {"reward_nonfinite": 1}
    assert (first.survivors, first.steps, first.mean_return) == (0, 2, 0.0)
    assert evaluate(env, idle, episodes=1).faults == first.faults  # not the totals of both
    env.close()


def test_the_hook_sees_the_reset_and_every_step_until_nobody_lives(tmp_path):
    env = environment(
        tmp_path, terminations={"fall": TerminationTermCfg(func=at_step, params={"step": 2})}
    )
    seen = []
    evaluate(env, idle, on_step=lambda base: seen.append(base.episode_length_buf.tolist()))
    assert seen == [[0, 0, 0], [1, 1, 1], [0, 0, 0]]
    env.close()


def test_the_policy_runs_without_gradients_and_gets_the_policy_group(tmp_path):
    env = environment(tmp_path)
    seen = []

    def policy(obs):
        seen.append((tuple(obs.shape), torch.is_grad_enabled(), obs[0, 0].item()))
        return idle(obs)

    evaluate(env, policy)
    assert seen == [((3, 1), False, float(step)) for step in range(5)]
    assert torch.is_grad_enabled()
    env.close()


def test_events_that_never_happen_have_no_percentile(tmp_path):
    metrics = {"spike": MetricTermCfg(func=row_at_step, reduce="max",
                                      params={"step": 99, "row": 0, "value": 1.0})}  # fmt: skip
    env = environment(tmp_path, metrics=metrics)
    report = evaluate(env, idle)
    assert math.isnan(report.metrics["spike_p10"])
    assert report.metrics["spike_count"] == 0.0
    assert report.shortfalls(Outcome(at_least={"spike_p10": 0.0})) == [
        "spike_p10 is nan, the bar is at least 0"
    ]
    env.close()


# --- the bar --------------------------------------------------------------------------------------


def report(episodes=64, survivors=60, **figures):
    survival = survivors / episodes
    return EvalReport(
        episodes=episodes,
        survival=survival,
        survivors=survivors,
        mean_length=1.0,
        mean_return=1.0,
        metrics={},
        faults={},
        seconds=1.0,
        steps=1,
        figures={"survival": survival, **figures},
    )


def test_a_bar_is_reached_at_its_value_and_missed_beyond():
    outcome = Outcome(at_most={"error": 0.15}, at_least={"survival": 0.9})
    assert report(error=0.15, survivors=58).shortfalls(outcome) == []
    assert report(error=0.16, survivors=57).shortfalls(outcome) == [
        "error is 0.160, the bar is at most 0.15",
        "survival is 0.891, the bar is at least 0.9",
    ]


@pytest.mark.parametrize(
    ("episodes", "survivors", "reached"),
    [(19, 18, True), (19, 17, False), (1, 0, True), (20, 19, False), (20, 20, True)],
)
def test_one_failure_is_allowed_under_twenty_episodes(episodes, survivors, reached):
    outcome = Outcome(at_least={"survival": 0.96})
    assert (report(episodes, survivors).shortfalls(outcome) == []) is reached


def test_an_outcome_that_names_no_figure():
    with pytest.raises(ConfigError, match=r"outcome names 'erorr'; .*\['error', 'survival'\]"):
        report(error=0.1).shortfalls(Outcome(at_most={"erorr": 1.0}))


# --- refused --------------------------------------------------------------------------------------


def test_what_cannot_be_evaluated(tmp_path):
    import gymnasium

    training = environment(tmp_path, play=False)
    with pytest.raises(ConfigError, match="needs an environment made with play=True"):
        evaluate(training, idle)
    training.close()
    waiting = unilab_gym.make(probe_cfg(tmp_path), 2, play=True, autoreset_mode="Disabled")
    with pytest.raises(ConfigError, match=r"needs autoreset mode SameStep, got .*DISABLED"):
        evaluate(waiting, idle)
    waiting.close()
    env = environment(tmp_path)
    for count in (0, 4):
        with pytest.raises(ConfigError, match=f"{count} episodes need as many environments, there"):
            evaluate(env, idle, episodes=count)
    env.close()
    foreign = gymnasium.make_vec("CartPole-v1", num_envs=1)
    with pytest.raises(ConfigError, match="evaluate takes a UnilabVectorEnv, got "):
        evaluate(foreign, idle)
    foreign.close()


def test_play_only_metrics_are_paid_for_in_play_only(tmp_path):
    calls = {"calls": MetricTermCfg(func=Calls, play_only=True)}
    before = Calls.calls
    environment(tmp_path, play=False, metrics=calls).close()
    assert Calls.calls == before
    env = environment(tmp_path, metrics=calls)
    assert evaluate(env, idle).metrics == {"calls": 1.0}
    env.close()

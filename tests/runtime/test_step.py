"""The ordered step and the masked reset: who moves when, and who does not."""

import dataclasses

import pytest
import torch
from helpers.memory import memory_cfg
from helpers.probe import (
    build,
    counter,
    obs_term,
    one,
    probe_cfg,
    random_actions,
    started,
    step_counter,
    twist_command,
    walker_cfg,
    zero_action,
)
from helpers.walk import carriers, rows_of, same_bits, snapshot

from unilab_gym.config import (
    CommandTermCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    RewardTermCfg,
    TerminationTermCfg,
)
from unilab_gym.mdp import metrics
from unilab_gym.mdp.commands import TrotGait
from unilab_gym.mdp.terminations import TimeOut
from unilab_gym.runtime import step as step_module
from unilab_gym.runtime.managers.actions import ActionManager
from unilab_gym.runtime.managers.commands import CommandManager
from unilab_gym.runtime.managers.events import EventManager
from unilab_gym.runtime.managers.metrics import MetricsManager
from unilab_gym.runtime.managers.observations import ObservationManager
from unilab_gym.runtime.managers.rewards import RewardManager
from unilab_gym.runtime.managers.terminations import TerminationManager
from unilab_gym.runtime.reads import EpisodeStep, RewardSum, Terminated
from unilab_gym.runtime.rng import seed_keys
from unilab_gym.runtime.term import Term, term


@term(reads=(Terminated("time_out"), EpisodeStep(), RewardSum("k")), width=3)
class Seen(Term):
    """What an observation sees of its own step."""

    def __call__(self, frame):
        columns = (frame[EpisodeStep()], frame[Terminated("time_out")], frame[RewardSum("k")])
        return torch.stack([column.float() for column in columns], 1)


def full_cfg(tmp_path, **changes):
    """The walker with every kind of term and memory at once."""
    cfg = memory_cfg(tmp_path)
    extra = {
        "clearance": MetricTermCfg(
            func=metrics.SwingClearance,
            params={"feet": (".*_foot",), "margin": 0.01, "min_air_s": 0.04},
            reduce="max",
        ),
        "mean": MetricTermCfg(func=counter),
        "last": MetricTermCfg(func=counter, reduce="last"),
    }
    gait = {"command": "twist", "frequency": 2.0, "stance_share": 0.6, "standing_norm": 0.3}
    commands = {**cfg.commands, "gait": CommandTermCfg(func=TrotGait, params=gait)}
    rewards = {**cfg.rewards, "k": _k()}
    terms = {"metrics": extra, "rewards": rewards, "commands": commands}
    return dataclasses.replace(cfg, **terms, **changes)


def _k():
    return RewardTermCfg(func=counter, weight=1.0)


# --- order ----------------------------------------------------------------------------------------


def test_the_order_is_the_contracts(tmp_path, monkeypatch):
    env = started(walker_cfg(tmp_path, episode_length_s=0.02), 2)
    calls = []

    def spy(owner, name, label):
        original = getattr(owner, name)

        def wrapped(self, *args, **kwargs):
            calls.append(label)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)

    spy(ActionManager, "process", "action")
    spy(type(env.backend), "step", "physics")
    spy(TerminationManager, "compute", "terminations")
    spy(RewardManager, "compute", "rewards")
    spy(TerminationManager, "finish", "flags")
    spy(MetricsManager, "compute", "metrics")
    spy(type(env.rt.log), "compute", "log")
    spy(CommandManager, "update", "commands")
    spy(EventManager, "update", "events")
    spy(ObservationManager, "compute", "observations")
    spy(EventManager, "stage_reset", "stage")
    spy(type(env.backend), "reset", "reset")
    spy(CommandManager, "reset", "reset commands")
    spy(ObservationManager, "reset", "reset observations")
    spy(ObservationManager, "compute_reset", "observe the reset")
    env.step(zero_action(env))
    assert calls == [
        "action", "physics", "terminations", "rewards", "flags", "metrics", "log", "commands",
        "events", "observations", "stage", "reset", "reset commands", "reset observations",
        "observe the reset",
    ]  # fmt: skip
    env.close()


def test_observations_see_the_counters_flags_and_sums_of_their_own_step(tmp_path):
    groups = {"policy": ObservationGroupCfg(terms={"seen": obs_term(Seen)})}
    cfg = probe_cfg(tmp_path, observations=groups, rewards={"k": _k()}, episode_length_s=0.06)
    env = started(cfg, 1)
    for step in (1, 2, 3):
        state = env.step(zero_action(env))
        expected = [step, float(step == 3), 0.02 * sum(range(1, step + 1))]
        assert state.final_obs["policy"][0].tolist() == pytest.approx(expected)
    # Frame B: counters and sums are those of the new episode.
    assert state.obs["policy"][0, [0, 2]].tolist() == [0.0, 0.0]
    env.close()


def test_final_obs_equals_obs_where_nothing_ended(tmp_path):
    env = started(walker_cfg(tmp_path, episode_length_s=0.4), 6)
    env.rt.episode_step.copy_(torch.arange(6) * 3)
    ended = 0
    for action in random_actions(env, 60):
        state = env.step(action)
        done = env.rt.terminations.done
        ended += int(done.sum())
        for name, obs in state.obs.items():
            assert same_bits(state.final_obs[name][~done], obs[~done])
            assert not (state.final_obs[name][done] == obs[done]).all(1).any()
        assert (env.rt.episode_step[done] == 0).all()
        assert (env.rt.episode_step[~done] > 0).all()  # nobody restarts without a flag
    assert ended > 10
    env.close()


# --- masked reset ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(6))
def test_rows_outside_the_mask_stay_bitwise_in_every_carrier(tmp_path, number):
    n = 7
    env = started(full_cfg(tmp_path, episode_length_s=0.5), n)
    generator = torch.Generator().manual_seed(number)
    for action in random_actions(env, 13 + number, seed=number):
        env.step(action)
    mask = torch.rand(n, generator=generator) < 0.5
    if number < 2:
        mask.fill_(bool(number))  # nobody, everybody
    before = rows_of(snapshot(env), n)
    names = sorted(before)
    assert len(names) > 45, names
    for needle in (
        "rng.keys",
        "rng.positions",
        "observations",
        "timer.left",
        "sums",
        "_peak",
        "_history",
        "frames",
        "steps",
        "bias",
        "delayed",
        "qvel_delta",
        "twist.value",
        "engine.state",
        "engine.body_mass",
    ):
        assert any(needle.split(".")[-1] in name for name in names), needle  # fmt: skip
    env.reset(mask=mask)
    after = rows_of(snapshot(env), n)
    changed = set()
    for name, old in before.items():
        if name not in after:
            assert "_cache" in name  # derived values are forgotten
            continue
        assert same_bits(old[~mask], after[name][~mask]), name
        if mask.any() and not same_bits(old[mask], after[name][mask]):
            changed.add(name.split(".")[-1])
    if mask.any():
        expected = {"positions", "buffer", "left", "sums", "value", "state"}
        assert expected | {"frames", "steps", "bias", "_index"} <= changed
    else:
        assert not changed
    env.close()


def test_the_automatic_reset_leaves_running_rows_as_no_reset_would(tmp_path):
    """Physics, timers and draws of a row do not depend on whether its neighbours restart."""
    cfg = memory_cfg(tmp_path, terminations={"time_out": _limit()}, episode_length_s=1.0)
    busy, calm = started(cfg, 5), started(cfg, 5)
    busy.rt.episode_step.copy_(torch.tensor([0, 40, 0, 45, 48]))
    running = torch.tensor([True, False, True, False, False])
    for action in random_actions(busy, 30):
        busy.step(action)
        calm.step(action)
        first, second = rows_of(snapshot(busy), 5), rows_of(snapshot(calm), 5)
        for name, value in first.items():
            if name in second and "_mixed" not in name:
                assert same_bits(value[running], second[name][running]), name
    assert busy.rt.log.length.tolist() == [30.0, 20.0, 30.0, 25.0, 28.0]
    busy.close()
    calm.close()


def _limit():
    return TerminationTermCfg(func=TimeOut, time_out=True)


def test_a_manual_reset_draws_what_the_automatic_one_would(tmp_path):
    cfg = memory_cfg(tmp_path, episode_length_s=0.2)
    auto, manual = started(cfg, 4), started(cfg, 4)
    for action in random_actions(auto, 10):
        auto.step(action)
        manual.step(action, autoreset=False)
    assert auto.rt.terminations.truncated.any()
    manual.reset(mask=manual.rt.terminations.done.clone())
    first, second = snapshot(auto), snapshot(manual)
    for name in first:
        if "_final" not in name and "_mask" not in name and name in second:
            assert same_bits(first[name], second[name]), name
    auto.close()
    manual.close()


def test_an_episode_does_not_depend_on_how_long_the_one_before_was(tmp_path):
    early, late = started(memory_cfg(tmp_path), 3), started(memory_cfg(tmp_path), 3)
    for action in random_actions(late, 20):
        late.step(action, autoreset=False)
    early.reset()
    late.reset()
    assert torch.equal(early.backend.get_state(), late.backend.get_state())
    assert torch.equal(early.state.obs["policy"], late.state.obs["policy"])
    for action in random_actions(late, 20, seed=1):
        assert torch.equal(early.step(action).obs["policy"], late.step(action).obs["policy"])
    early.close()
    late.close()


def test_rows_are_independent_of_how_many_there_are(tmp_path):
    few, many = started(walker_cfg(tmp_path), 2), started(walker_cfg(tmp_path), 5)
    few.reset(keys=seed_keys(11, 2))
    many.reset(keys=seed_keys(11, 5))
    actions = random_actions(many, 60)
    for action in actions:
        state, wide = few.step(action[:2].contiguous()), many.step(action)
        for name, obs in state.obs.items():
            assert same_bits(obs, wide.obs[name][:2]), name
        assert same_bits(state.reward, wide.reward[:2])
    few.close()
    many.close()


# --- carriers -------------------------------------------------------------------------------------


def test_carriers_keep_their_address_over_a_hundred_steps_with_resets(tmp_path):
    env = started(full_cfg(tmp_path, episode_length_s=0.2), 5)
    env.step(random_actions(env, 1)[0])
    before = {k: t.data_ptr() for k, t in carriers(env).items() if "_cache" not in k}
    assert len(before) > 60
    published = [*env.state.obs.values(), env.state.reward, env.state.terminated]
    resets = 0
    for step, action in enumerate(random_actions(env, 100)):
        state = env.step(action)
        resets += int(state.truncated.sum())
        if step == 50:
            env.reset(keys=seed_keys(3, 5), mask=torch.tensor([True, False, True, False, False]))
            env.reset()
        after = {k: t.data_ptr() for k, t in carriers(env).items() if "_cache" not in k}
        assert after == before
    assert resets > 10
    now = [*env.state.obs.values(), env.state.reward, env.state.terminated]
    assert all(a is b for a, b in zip(published, now, strict=True))
    env.close()


def test_no_carrier_is_on_another_device_or_of_a_wide_type(tmp_path):
    """E59: float32, bool, and integers only where something is counted."""
    env = started(full_cfg(tmp_path), 1)
    env.step(zero_action(env))
    kinds = {tensor.dtype for tensor in carriers(env).values()}
    assert kinds <= {torch.float32, torch.bool, torch.int64, torch.int32}
    assert {tensor.device for tensor in carriers(env).values()} == {env.device}
    state = env.state
    assert state.reward.dtype == torch.float32
    assert state.terminated.dtype == state.truncated.dtype == torch.bool
    assert state.reward.shape == state.terminated.shape == (1,)
    env.close()


def test_the_smallest_environment_runs(tmp_path):
    env = build(probe_cfg(tmp_path, rewards={}, terminations={}, commands={}), 1)
    env.reset()
    for step in range(1, 4):
        assert env.step(zero_action(env)).obs["policy"].tolist() == [[float(step)]]
    assert step_module.__doc__.startswith("One control step")
    env.close()


def test_terms_shared_between_managers_and_phases_stay_apart(tmp_path):
    """A noisy policy group, commands and events all draw in one block without collisions."""
    cfg = walker_cfg(tmp_path, commands={"twist": twist_command(), "other": twist_command()})
    env = started(cfg, 64)
    env.step(zero_action(env))
    streams = [s for part in env.rt.rng._block.streams for s in part if "timer" not in s.name]
    draws = torch.cat([stream.values for stream in streams], 1)
    columns = draws[:, draws.std(0) > 0]  # without the noise columns that are 0 wide
    unit = (columns - columns.mean(0)) / columns.std(0)
    correlation = (unit.T @ unit) / 63 - torch.eye(unit.shape[1])
    assert columns.shape[1] >= 24
    assert correlation.abs().max() < 0.62  # five standard deviations of 64 samples
    env.close()


def test_counters_of_one_hinge(tmp_path):
    groups = {"policy": ObservationGroupCfg(terms={"k": obs_term(step_counter)})}
    rewards = {"one": RewardTermCfg(func=one, weight=50.0)}
    env = started(probe_cfg(tmp_path, observations=groups, rewards=rewards), 3)
    env.step(zero_action(env))
    env.reset(mask=torch.tensor([False, True, False]))
    state = env.step(zero_action(env))
    assert state.obs["policy"].flatten().tolist() == [2.0, 1.0, 2.0]
    assert state.reward.tolist() == [1.0, 1.0, 1.0]
    env.close()

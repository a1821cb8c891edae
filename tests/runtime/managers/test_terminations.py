"""The end of an episode: exclusive flags, every cause kept, limits exact to the step."""

import pytest
import torch
from helpers.probe import at_step, build, probe_cfg, started, zero_action

from unilab_gym.config import ObservationGroupCfg, ObservationTermCfg, TerminationTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp.terminations import TimeOut
from unilab_gym.runtime.reads import EpisodeStep, Terminated
from unilab_gym.runtime.term import Term, term

TIME_OUT = TerminationTermCfg(func=TimeOut, time_out=True)


def fails_at(step):
    return TerminationTermCfg(func=at_step, params={"step": step})


@term(reads=(Terminated("fall"),), width=1)
def fell(frame):
    return frame[Terminated("fall")].unsqueeze(1)


@term(reads=(EpisodeStep(),))
class EveryThirdCall(Term):
    """True in every third step since the reset, from a counter of its own."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.count = ctx.zeros()

    def __call__(self, frame):
        return self.count.add_(1.0) == 3.0

    def reset(self, mask):
        self.count.masked_fill_(mask, 0.0)


@pytest.mark.parametrize(("seconds", "limit"), [(0.02, 1), (0.28, 14), (0.58, 29), (1.0, 50)])
def test_truncated_exactly_at_the_limit_of_every_episode(tmp_path, seconds, limit):
    """E32: 0.28 / 0.02 breaks ceil and 0.58 / 0.02 breaks int."""
    env = started(probe_cfg(tmp_path, episode_length_s=seconds), 2)
    assert env.max_episode_steps == limit
    for step in range(1, 2 * limit + 1):
        state = env.step(zero_action(env))
        ends = step % limit == 0
        assert state.truncated.tolist() == [ends, ends]
        assert not state.terminated.any()
        assert state.final_obs["policy"][0].item() == (step - 1) % limit + 1
        assert state.obs["policy"][0].item() == step % limit
    env.close()


def test_flags_are_exclusive_and_every_cause_is_kept(tmp_path):
    """E07: the time limit truncates, a failure terminates, both at once terminate."""
    terms = {"time_out": TIME_OUT, "fall": fails_at(5), "early": fails_at(3)}
    env = started(probe_cfg(tmp_path, terminations=terms, episode_length_s=0.1), 3)
    env.rt.episode_step.copy_(torch.tensor([0, 2, 4]))
    seen = []
    for _ in range(5):
        state = env.step(zero_action(env), autoreset=False)
        flags = env.rt.terminations
        assert not (state.terminated & state.truncated).any()
        assert torch.equal(flags.done, state.terminated | state.truncated)
        seen.append(
            [(bool(a), bool(b)) for a, b in zip(state.terminated, state.truncated, strict=True)]
        )
    assert flags.names == ("fall", "early", "time_out")  # failures first
    # Row 0 counts 1..5, row 1 counts 3..7, row 2 counts 5..9; the limit is 5.
    dead, limit, alive = (True, False), (False, True), (False, False)
    assert [rows[0] for rows in seen] == [alive, alive, dead, alive, dead]
    assert [rows[1] for rows in seen] == [dead, alive, dead, limit, limit]
    assert [rows[2] for rows in seen] == [dead, limit, limit, limit, limit]
    assert flags.flags[0].tolist() == [True, False, True]  # fall and time limit in one step
    env.close()


def test_a_term_written_with_default_fields_is_a_failure(tmp_path):
    env = started(probe_cfg(tmp_path, terminations={"fall": fails_at(3)}))
    for _ in range(3):
        state = env.step(zero_action(env))
    assert state.terminated.all()
    assert not state.truncated.any()
    env.close()


def test_a_time_limit_written_with_default_fields_is_refused(tmp_path):
    """E07: where `time_out` was forgotten it would be a failure."""
    limit = TerminationTermCfg(func=TimeOut)
    with pytest.raises(ConfigError, match=r"terminations/limit: .*TimeOut is a time limit.*=True"):
        build(probe_cfg(tmp_path, terminations={"limit": limit}))


def test_stateful_terms_count_from_their_own_reset(tmp_path):
    env = started(
        probe_cfg(tmp_path, terminations={"x": TerminationTermCfg(func=EveryThirdCall)}), 2
    )
    ends = []
    for step in range(1, 9):
        if step == 2:
            env.reset(mask=torch.tensor([False, True]))
        ends.append(env.step(zero_action(env)).terminated.tolist())
    assert [row[0] for row in ends] == [False, False, True, False, False, True, False, False]
    assert [row[1] for row in ends] == [False, False, False, True, False, False, True, False]
    env.close()


def test_flags_are_offered_to_terms(tmp_path):
    groups = {"policy": ObservationGroupCfg(terms={"f": ObservationTermCfg(func=fell)})}
    terms = {"fall": fails_at(2), "time_out": TIME_OUT}
    env = started(probe_cfg(tmp_path, terminations=terms, observations=groups))
    assert env.step(zero_action(env)).final_obs["policy"].tolist() == [[0.0]] * 4
    assert env.step(zero_action(env)).final_obs["policy"].tolist() == [[1.0]] * 4
    env.close()
    with pytest.raises(ConfigError, match=r"no manager provides \"Terminated\(term='fall'\)\""):
        build(probe_cfg(tmp_path, observations=groups))


def test_a_flag_is_false_in_the_observation_of_the_new_episode(tmp_path):
    groups = {"policy": ObservationGroupCfg(terms={"f": ObservationTermCfg(func=fell)})}
    terms = {"fall": fails_at(2), "time_out": TIME_OUT}
    env = started(probe_cfg(tmp_path, terminations=terms, observations=groups), 3)
    env.rt.episode_step.copy_(torch.tensor([1, 0, 0]))
    state = env.step(zero_action(env))
    assert state.final_obs["policy"].tolist() == [[1.0], [0.0], [0.0]]
    assert state.obs["policy"].tolist() == [[0.0], [0.0], [0.0]]
    assert env.rt.terminations.flags[:, 0].tolist() == [True, False, False]  # as the log saw it
    state = env.step(zero_action(env), autoreset=False)
    assert state.obs["policy"].tolist() == [[0.0], [1.0], [1.0]]
    assert env.reset(mask=torch.tensor([False, True, False])).obs["policy"].tolist() == [
        [0.0],
        [0.0],
        [1.0],
    ]
    env.close()


def test_without_terms_nothing_ends(tmp_path):
    env = started(probe_cfg(tmp_path, terminations={}, episode_length_s=0.04))
    for _ in range(4):
        state = env.step(zero_action(env))
        assert not state.terminated.any()
        assert not state.truncated.any()
    assert state.obs["policy"].flatten().tolist() == [4.0] * 4
    env.close()


def test_writing_the_counter_staggers_the_next_limits(tmp_path):
    env = started(probe_cfg(tmp_path, episode_length_s=0.2), 4)
    env.rt.episode_step.copy_(torch.tensor([0, 3, 7, 9]))
    first = torch.zeros(4)
    for step in range(1, 11):
        ended = env.step(zero_action(env)).truncated
        first = torch.where((first == 0) & ended, float(step), first)
    assert first.tolist() == [10.0, 7.0, 3.0, 1.0]
    env.close()

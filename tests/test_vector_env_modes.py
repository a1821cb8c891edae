"""The Gymnasium face: SAME_STEP, NEXT_STEP and DISABLED tell the same story in three ways."""

import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from helpers.face import (
    bits,
    frozen,
    leaves,
    make_probe,
    make_small,
    mask_of,
    same,
    small_actions,
)
from helpers.opcount import count_ops
from helpers.probe import obs_term

from unilab_gym.config import CommandTermCfg, ObservationGroupCfg, TerminationTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import observations, terminations
from unilab_gym.runtime.command_term import CommandTerm
from unilab_gym.runtime.reads import Action, Terminated
from unilab_gym.runtime.term import term
from unilab_gym.vector_modes import EndedRows, to_mode

N = 4
BACKENDS = {"mujoco": 60, "mjwarp": 20}
"""Steps that are compared."""
STAGGER = torch.tensor([44, 30, 48, 37])  # ends of a limit of 50 steps: 6, 20, 2, 13


def pair(folder, *modes, backend="mujoco", **kwargs):
    envs = [
        make_small(folder, N, backend=backend, autoreset_mode=mode, obs="dict", **kwargs)
        for mode in modes
    ]
    for env in envs:
        env.reset(seed=3)
        env.episode_length_buf = STAGGER
    return envs


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_mode_is_the_enum_or_its_value(mode, tmp_path):
    assert to_mode(mode) is to_mode(mode.value) is mode
    env = make_probe(tmp_path, 2, autoreset_mode=mode.value)
    assert env.autoreset_mode is env.metadata["autoreset_mode"] is mode
    assert env.get_attr("autoreset_mode") == (mode, mode)
    env.close()


def test_other_modes_are_refused():
    with pytest.raises(ConfigError, match=r"'Nextstep'; did you mean 'NextStep'.*Disabled"):
        to_mode("Nextstep")
    with pytest.raises(ConfigError, match=r"'None'.*NextStep, SameStep, Disabled"):
        to_mode(None)


# -- SAME_STEP is DISABLED and a reset of what ended -----------------------------------------------


memories = pytest.mark.parametrize("memory", [False, True], ids=["plain", "memory"])
"""With histories and latencies of observations and actions, and without."""


@memories
@pytest.mark.parametrize("backend", BACKENDS)
def test_same_step_is_disabled_and_a_masked_reset(tmp_path, backend, memory):
    """Bit for bit: terminal observations, first observations, rewards, flags, log, every group."""
    automatic, manual = pair(tmp_path, "SameStep", "Disabled", backend=backend, memory=memory)
    ended = 0
    for action in small_actions(BACKENDS[backend], N):
        obs, *flags, info = automatic.step(action)
        last, *others, empty = manual.step(action)
        assert empty == {}
        same(others, flags)
        same(last, info["final_obs"])
        same(manual.get_observations(), last)
        done = flags[1] | flags[2]
        assert torch.equal(done, info["_final_obs"])
        same(automatic.extras["log"], manual.extras["log"])
        same(manual.reset(options={"reset_mask": done})[0], obs)
        same(automatic.episode_length_buf, manual.episode_length_buf)
        ended += int(done.sum())
    assert ended >= (8 if backend == "mujoco" else 3)
    automatic.close(), manual.close()


# -- NEXT_STEP -------------------------------------------------------------------------------------


@memories
def test_next_step_shows_the_same_episodes_one_step_apart(tmp_path, memory):
    """Row by row: what SAME_STEP gives, with one dummy transition between two episodes."""
    reference, env = pair(tmp_path, "SameStep", "NextStep", memory=memory)
    table = small_actions(200, N, seed=1)
    story = [[] for _ in range(N)]  # of the reference: (obs, reward, terminated, truncated)
    for action in table[:60]:
        obs, *flags, info = reference.step(action)
        for row in range(N):
            last = {name: value[row] for name, value in info["final_obs"].items()}
            first = {name: value[row] for name, value in obs.items()}
            story[row].append((last, *(flag[row] for flag in flags), first))
    clock = [0] * N
    dummy = [False] * N
    compared = dummies = 0
    for _ in range(60):
        action = torch.stack([table[clock[row], row] for row in range(N)])
        action[torch.tensor(dummy)] = torch.nan  # ignored, also by the fault word
        obs, *flags, info = env.step(action)
        assert info == {}
        for row in range(N):
            got = {name: value[row] for name, value in obs.items()}
            values = [flag[row] for flag in flags]
            if dummy[row]:
                assert [value.item() for value in values] == [0.0, False, False]
                same(got, story[row][clock[row] - 1][4])
                dummy[row] = False
                dummies += 1
                continue
            last, *expected, _ = story[row][clock[row]]
            same(got, last), same(values, expected)
            dummy[row] = bool(values[1] | values[2])
            clock[row] += 1
            compared += 1
    assert dummies >= 4 and compared == 60 * N - dummies
    assert not any(env.runtime.fault_totals().values())
    reference.close(), env.close()


@memories
def test_the_physics_of_a_dummy_step_does_not_matter(tmp_path, memory):
    """Neither a wild state nor a wild action in a row that ended reaches anything."""
    env, wild = pair(tmp_path, "NextStep", "NextStep", memory=memory)
    broken = 0
    for action in small_actions(40, N, seed=2):
        ended = wild.runtime.pending.clone()
        if ended.any():
            state = wild.runtime.backend.get_state()
            index = wild.runtime.index
            state[:, index.qvel_offset : index.qvel_offset + index.nv] = 1e9
            wild.runtime.backend.set_state(state, ended)
            broken += int(ended.sum())
        noise = torch.where(ended.unsqueeze(1), torch.inf, action)
        same(wild.step(noise), env.step(action))
        same(wild.extras["log"], env.extras["log"])
    assert broken >= 4
    assert not any(wild.runtime.fault_totals().values())
    env.close(), wild.close()


def test_next_step_on_the_probe(tmp_path):
    """The counter 5 ends the episode; then 0 with reward 0; and the log counts each end once."""
    env = make_probe(tmp_path, N, autoreset_mode="NextStep", max_episode_steps=5)
    env.reset(seed=0)
    env.episode_length_buf = [0, 1, 2, 3]
    seen, ended = [], 0
    for _ in range(14):
        obs, reward, terminated, truncated, _ = env.step(torch.zeros(N, 1))
        dummy = obs[:, 0] == 0
        assert torch.equal(reward == 0, dummy) and not terminated.any()
        assert torch.equal(truncated, obs[:, 0] == 5)
        assert env.extras["log"]["episode/ended"] == truncated.sum()
        seen.append(obs[:, 0].tolist())
        ended += int(truncated.sum())
    assert [row[0] for row in seen] == [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert [row[3] for row in seen] == [4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    assert ended == 9
    env.close()


def test_a_reset_by_hand_takes_the_dummy_step_away(tmp_path):
    env = make_probe(tmp_path, N, autoreset_mode="NextStep", max_episode_steps=3)
    env.reset(seed=0)
    for _ in range(3):
        env.step(torch.zeros(N, 1))
    obs, _ = env.reset(options={"reset_mask": mask_of(1, 2)})
    assert obs[:, 0].tolist() == [3, 0, 0, 3]
    obs, reward, *_ = env.step(torch.zeros(N, 1))
    assert obs[:, 0].tolist() == [0, 1, 1, 0] and (reward > 0).tolist() == [
        False,
        True,
        True,
        False,
    ]
    for _ in range(2):
        env.step(torch.zeros(N, 1))
    env.reset()
    obs, reward, *_ = env.step(torch.zeros(N, 1))
    assert obs[:, 0].tolist() == [1] * N and (reward > 0).all()
    env.close()


# -- DISABLED --------------------------------------------------------------------------------------


def test_a_finished_row_is_not_stepped(tmp_path):
    env = make_probe(tmp_path, N, autoreset_mode="Disabled", max_episode_steps=5)
    control = make_probe(tmp_path, N, autoreset_mode="Disabled", max_episode_steps=50)
    env.reset(seed=0), control.reset(seed=0)
    env.episode_length_buf = [0, 3, 0, 3]
    zeros = torch.zeros(N, 1)
    for one in (env, control):
        one.step(zeros)
        obs, _, _, truncated, _ = one.step(zeros)
    assert obs[:, 0].tolist() == [2] * N and not truncated.any()
    before = frozen(env.get_observations())
    assert before["/policy"][:, 0].tolist() == [2, 5, 2, 5]
    with pytest.raises(ResetNeeded, match=r"row\(s\) 1, 3 ended and were not reset: call reset"):
        env.step(zeros)
    same(env.get_observations(), before)
    env.reset(options={"reset_mask": mask_of(1)})
    with pytest.raises(ResetNeeded, match=r"row\(s\) 3 ended"):
        env.step(zeros)
    obs, _ = env.reset(options={"reset_mask": mask_of(3)})
    assert obs[:, 0].tolist() == [2, 0, 2, 0]
    assert env.step(zeros)[0][:, 0].tolist() == [3, 1, 3, 1]
    assert control.step(zeros)[0][:, 0].tolist() == [3] * N
    env.close(), control.close()


def test_at_most_eight_rows_are_named():
    pending = torch.ones(11, dtype=torch.bool)
    with pytest.raises(ResetNeeded, match=r"row\(s\) 0, 1, 2, 3, 4, 5, 6, 7 and 3 more ended"):
        EndedRows(pending, validate=True).check()


def test_without_validation_the_error_comes_one_step_late(tmp_path):
    env = make_probe(tmp_path, N, autoreset_mode="Disabled", max_episode_steps=5, validate=False)
    zeros = torch.zeros(N, 1)
    env.reset(seed=0)
    env.episode_length_buf = [0, 0, 4, 0]
    env.step(zeros)
    env.step(zeros)  # row 2 had ended
    env.reset(options={"reset_mask": mask_of(2)})  # too late
    with pytest.raises(ResetNeeded, match=r"row\(s\) 2 were stepped after their episode had end"):
        env.step(zeros)
    obs, *_ = env.step(zeros)  # told once
    assert obs[:, 0].tolist() == [3, 3, 1, 3]
    env.step(zeros)
    assert env.validate is False and make_probe(tmp_path, 1).validate is True
    env.close()


class Event:
    """A CUDA event whose copy takes its time."""

    def __init__(self):
        self.done = False
        self.records = 0

    def query(self):
        return self.done

    def record(self, stream):
        self.records += 1


def test_a_copy_that_is_not_complete_is_not_waited_for(monkeypatch):
    """Rows that are stepped meanwhile are told as well, when it is."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    pending = mask_of(2)
    ended = EndedRows(pending, validate=False)
    ended._event = event = Event()
    ended.check()
    pending.copy_(mask_of(1))
    ended.check()
    ended.check()
    assert event.records == 1
    event.done = True
    with pytest.raises(ResetNeeded, match=r"row\(s\) 2 were"):
        ended.check()
    pending.zero_()
    for _ in range(3):
        ended.check()
    assert event.records == 4


def test_a_finished_row_waits_while_others_go_on(tmp_path):
    """Rows that are reset leave the others as in a run without that reset, for 100 steps."""
    env, control = pair(tmp_path, "Disabled", "Disabled", overrides={"episode_length_s": 100.0})
    env.reset(seed=5), control.reset(seed=5)
    alive = torch.ones(N, dtype=torch.bool)
    compared = 0
    for step, action in enumerate(small_actions(100, N, seed=4)):
        results = []
        for one in (env, control):
            obs, reward, terminated, truncated, _ = one.step(action * 0.1)
            results.append(frozen((obs, reward, terminated, truncated)))
            done = terminated | truncated
            if one is env and step % 10 == 5:
                done = done | mask_of(2)
            one.reset(options={"reset_mask": done})
        alive &= ~mask_of(2) if step >= 5 else True
        same(*results, rows=alive)
        compared += int(alive.sum())
    assert compared > 300
    env.close(), control.close()


# -- what ended an episode is known where the next one begins --------------------------------------


@term(reads=(Terminated("time_out"), Terminated("fall")))
class LastEnd(CommandTerm):
    """Why the last episode ended: 1 at the limit, 2 in a failure, 0 in the first episode."""

    component_names = ("cause",)

    def __init__(self, ctx):
        super().__init__(ctx)
        self.value = ctx.zeros(1)

    def reset(self, mask, frame):
        cause = frame[Terminated("time_out")] * 1.0 + frame[Terminated("fall")] * 2.0
        torch.where(mask.unsqueeze(1), cause.unsqueeze(1), self.value, out=self.value)

    def update(self, frame):
        pass


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_reset_knows_what_ended_the_episode(tmp_path, mode):
    """Also in NEXT_STEP, where physics has run once more in between."""
    sees = {"command": "last", "width": 1}
    changes = {
        "commands": {"last": CommandTermCfg(func=LastEnd)},
        "observations": {
            "policy": ObservationGroupCfg(
                terms={"last": obs_term(observations.command, params=sees)}
            )
        },
        "terminations": {
            "time_out": TerminationTermCfg(func=terminations.TimeOut, time_out=True),
            "fall": TerminationTermCfg(func=falls),
        },
    }
    env = make_probe(tmp_path, N, changes=changes, max_episode_steps=5, autoreset_mode=mode)
    obs, _ = env.reset(seed=0)
    assert obs[:, 0].tolist() == [0.0] * N
    action = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    for step in range(1, 13):
        obs, _, terminated, truncated, _ = env.step(action if step < 4 else torch.zeros(N, 1))
        if mode is AutoresetMode.DISABLED:
            obs, _ = env.reset(options={"reset_mask": terminated | truncated})
        if step == 4:  # rows 1 and 3 fell in every step so far
            assert obs[:, 0].tolist() == [0.0, 2.0, 0.0, 2.0]
    assert obs[:, 0].tolist() == [1.0] * N
    env.close()


@term(reads=(Action(0),))
def falls(frame):
    """True where the action says so."""
    return frame[Action(0)][:, 0] > 0.5


# -- what a step costs -----------------------------------------------------------------------------


def test_no_mode_waits_for_the_device(tmp_path):
    """And a mode that hands out less costs less: nobody pays for a mode that is not used."""
    counts = {}
    for mode in AutoresetMode:
        env = make_probe(tmp_path, N, autoreset_mode=mode, validate=False)
        env.reset(seed=0)
        action = torch.zeros(N, 1)
        env.step(action)
        report = count_ops(lambda env=env, action=action: env.step(action))
        if mode is not AutoresetMode.DISABLED:  # which looks at its pinned copy
            assert report["sync"] == 0
        assert report["upload"] == 0
        counts[mode] = report["nonview"]
        env.close()
    assert counts[AutoresetMode.NEXT_STEP] < counts[AutoresetMode.SAME_STEP] + 10
    assert counts[AutoresetMode.DISABLED] < counts[AutoresetMode.SAME_STEP]


def test_modes_give_their_rows_in_owned_memory(tmp_path):
    for mode in ("NextStep", "Disabled"):
        env = make_probe(tmp_path, 2, autoreset_mode=mode)
        env.reset(seed=0)
        results = [env.step(torch.zeros(2, 1)) for _ in range(3)]
        copies = [frozen(result) for result in results]
        env.step(torch.zeros(2, 1))
        for result, copy in zip(results, copies, strict=True):
            same(result, copy)
            for _, leaf in leaves(result):
                leaf.fill_(1)
        assert env.step(torch.zeros(2, 1))[0][:, 0].tolist() == [5, 5]
        assert torch.equal(bits(env.get_observations()["policy"]), bits(torch.full((2, 1), 5.0)))
        env.close()

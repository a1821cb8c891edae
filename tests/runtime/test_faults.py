"""Faults: one row's trouble ends that row's episode and nothing else."""

import math

import pytest
import torch
from helpers.probe import (
    CPU,
    build,
    obs_term,
    probe_cfg,
    random_actions,
    row_at_step,
    started,
    step_counter,
    walker_cfg,
    zero_action,
)

from unilab_gym.backends.base import FaultBit
from unilab_gym.config import ObservationGroupCfg, RewardTermCfg
from unilab_gym.errors import ConfigError, FaultError
from unilab_gym.mdp import observations
from unilab_gym.runtime.faults import ABSURD, QUARANTINE, FaultMonitor, fault_names

NAN, INF = math.nan, math.inf


def finished(action=0.0, engine=0, state=0.0, reward=0.0):
    """The word of one row among three; the others are healthy."""
    monitor = FaultMonitor(3, CPU)
    rows = torch.zeros(3, 2)
    rows[1, 1] = action
    monitor.begin(rows)
    states = torch.full((3, 4), -3.0)
    states[1, 2] = state
    rewards = torch.tensor([-1.0, reward, 5.0])
    monitor.finish(torch.tensor([0, engine, 0], dtype=torch.int32), states, rewards)
    assert monitor.word[[0, 2]].tolist() == [0, 0]
    assert monitor.bad[[0, 2]].tolist() == [False, False]
    return monitor


@pytest.mark.parametrize(
    ("given", "bits"),
    [
        ({}, FaultBit(0)),
        ({"action": 1e30}, FaultBit(0)),
        ({"action": NAN}, FaultBit.ACTION_NONFINITE),
        ({"action": -INF}, FaultBit.ACTION_NONFINITE),
        ({"state": 0.999 * ABSURD}, FaultBit(0)),
        ({"state": -1.001 * ABSURD}, FaultBit.STATE_ABSURD),
        ({"state": NAN}, FaultBit.STATE_NONFINITE),
        ({"state": -INF}, FaultBit.STATE_NONFINITE),
        ({"reward": 1e30}, FaultBit(0)),
        ({"reward": NAN}, FaultBit.REWARD_NONFINITE),
        ({"reward": -INF}, FaultBit.REWARD_NONFINITE),
        ({"engine": 1 << 3}, FaultBit.ENGINE_BAD_STATE),
        ({"engine": 1 << 9}, FaultBit.SOLVER_ITERATIONS),
        (
            {"action": NAN, "state": INF, "reward": NAN, "engine": 1 << 5},
            FaultBit.ACTION_NONFINITE
            | FaultBit.STATE_NONFINITE
            | FaultBit.REWARD_NONFINITE
            | FaultBit.ENGINE_ERROR,
        ),
    ],
)
def test_which_bits_are_set(given, bits):
    monitor = finished(**given)
    assert monitor.word[1].item() == int(bits)
    assert monitor.bad[1].item() == bool(bits & QUARANTINE)
    names = [bit.name.lower() for bit in FaultBit if bit & bits]
    assert fault_names(int(bits)) == tuple(names)
    columns = [
        bit.name.lower() for bit, seen in zip(FaultBit, monitor.flags[1], strict=True) if seen
    ]
    assert columns == names


def test_quarantined_bits_come_first():
    """`bad` looks at the first columns only."""
    inside = [bool(bit & QUARANTINE) for bit in FaultBit]
    assert inside == sorted(inside, reverse=True)
    assert inside == [True] * 8 + [False] * 2


def test_causes_are_counted_over_steps():
    monitor = FaultMonitor(2, CPU)
    for engine in ([8, 0], [8, 8], [0, 512]):
        monitor.begin(torch.zeros(2, 1))
        word = torch.tensor(engine, dtype=torch.int32)
        monitor.finish(word, torch.zeros(2, 1), torch.zeros(2))
    counts = dict(zip((bit.name for bit in FaultBit), monitor.total.tolist(), strict=True))
    assert counts.pop("ENGINE_BAD_STATE") == 3
    assert counts.pop("SOLVER_ITERATIONS") == 1
    assert not any(counts.values())


# --- through an engine ----------------------------------------------------------------------------


def inject(env, row, value, column):
    """Writes into the engine's own rows, behind the runtime's back."""
    env.backend.batch.state[row, env.index.qpos_offset + column] = value


def tensors(env):
    """What a learner and the next step see, row by row."""
    rt = env.rt
    return [
        *rt.observations.buffers.values(),
        rt.rewards.reward,
        rt.rewards.components,
        rt.rewards.sums,
        rt.terminations.terminated,
        rt.terminations.truncated,
        rt.episode_step,
        rt.actions.ctrl,
        *(command.value for command in rt.commands.terms.values()),
        rt.events.interval.qvel_delta,
        rt.log.returns,
        rt.rng.positions,
        env.backend.get_state(),
    ]


@pytest.mark.parametrize(
    ("value", "column", "cause"),
    [
        (NAN, 2, "engine_bad_state"),  # the engine starts the row anew and says so
        (INF, 0, "engine_bad_state"),
        (5.0 * ABSURD, 0, "state_absurd"),
        (NAN, 9, "engine_bad_state"),  # a velocity
    ],
)
def test_a_bad_state_ends_its_row_and_leaves_the_others_bit_identical(
    tmp_path, value, column, cause
):
    """E13."""
    bad, cfg = 5, walker_cfg(tmp_path, episode_length_s=20.0)
    env, control = started(cfg, 8), started(cfg, 8)
    others = torch.arange(8) != bad
    actions = random_actions(env, 40) * 0.2
    for step, action in enumerate(actions):
        before = {name: obs.clone() for name, obs in env.state.obs.items()}
        if step == 10:
            inject(env, bad, value, column)
        state = env.step(action)
        control.step(action)
        assert all(
            torch.equal(a[others], b[others])
            for a, b in zip(tensors(env), tensors(control), strict=True)
        )
        for obs in (*state.obs.values(), *state.final_obs.values(), state.reward):
            assert obs.isfinite().all()
        if step == 10:
            assert cause in fault_names(env.rt.faults.word[bad].item())
            assert env.rt.faults.bad.tolist() == [row == bad for row in range(8)]
            assert (state.terminated[bad].item(), state.truncated[bad].item()) == (True, False)
            assert state.reward[bad].item() == 0.0
            assert not env.rt.rewards.components[bad].any()
            for name, obs in state.final_obs.items():  # of the boundary before
                assert torch.equal(obs[bad], before[name][bad])
            assert env.rt.episode_step[bad].item() == 0
            assert env.log()[f"fault/{cause}"].item() == pytest.approx(
                1.0 / env.log()["episode/ended"].item()
            )
            assert env.fault_totals()[cause] == 1
        else:
            assert not env.rt.faults.word.any()
    assert env.rt.episode_step[bad].item() <= 29
    assert sum(env.fault_totals().values()) == 1
    env.close()
    control.close()


def test_a_thousand_steps_go_on_after_one_row_of_64_failed(tmp_path):
    """N01: that row ends in that step with its cause in the log; all that is returned is finite."""
    env = started(walker_cfg(tmp_path, episode_length_s=2.0), 64)
    for step, action in enumerate(random_actions(env, 1100)):
        if step == 100:
            inject(env, 41, NAN, 2)
        state = env.step(action)
        if step == 100:
            assert state.terminated[41] and not state.truncated[41]
            assert env.log()["fault/engine_bad_state"].item() > 0.0
        if step >= 100:
            returned = (*state.obs.values(), *state.final_obs.values(), state.reward)
            assert torch.cat([tensor.flatten() for tensor in returned]).isfinite().all(), step
    assert env.fault_totals()["engine_bad_state"] == 1
    env.close()


def test_the_faulty_row_starts_as_a_healthy_one_would(tmp_path):
    """Its next episode is that of a run in which the row ended for another reason."""
    cfg = walker_cfg(tmp_path, episode_length_s=0.2, terminations={"time_out": _time_out()})
    env, control = started(cfg, 4), started(cfg, 4)
    actions = random_actions(env, 19)
    for step, action in enumerate(actions):
        if step == 9:
            inject(env, 1, NAN, 2)  # in the very step in which the time limit ends every row
        env.step(action)
        control.step(action)
        if step == 9:
            assert env.state.terminated.tolist() == [False, True, False, False]
            assert env.state.truncated.tolist() == [True, False, True, True]
            assert control.state.truncated.all()
        if step >= 9:
            assert torch.equal(env.backend.get_state(), control.backend.get_state())
            assert torch.equal(env.state.obs["policy"], control.state.obs["policy"])
    env.close()
    control.close()


def _time_out():
    from unilab_gym.config import TerminationTermCfg
    from unilab_gym.mdp.terminations import TimeOut

    return TerminationTermCfg(func=TimeOut, time_out=True)


def test_every_row_at_once(tmp_path):
    env = started(walker_cfg(tmp_path), 3)
    env.step(zero_action(env))
    env.backend.batch.state[:, env.index.qpos_offset + 2] = NAN
    state = env.step(zero_action(env))
    assert state.terminated.all()
    assert not state.reward.any()
    for obs in state.obs.values():
        assert obs.isfinite().all()
    assert not env.step(zero_action(env)).terminated.any()
    env.close()


def test_a_fault_in_the_first_step_keeps_the_observation_of_the_reset(tmp_path):
    env = started(walker_cfg(tmp_path), 2)
    first = env.state.obs["policy"].clone()
    inject(env, 0, NAN, 2)
    state = env.step(zero_action(env))
    assert torch.equal(state.final_obs["policy"][0], first[0])
    assert not torch.equal(state.final_obs["policy"][1], first[1])
    env.close()


# --- raise ----------------------------------------------------------------------------------------


def test_raise_names_rows_and_causes(tmp_path):
    env = started(walker_cfg(tmp_path), 12, on_fault="raise")
    env.step(zero_action(env))
    action = zero_action(env)
    action[3, 0] = NAN
    inject(env, 5, NAN, 2)
    with pytest.raises(
        FaultError, match=r"2 faulty row\(s\): row 3: action_nonfinite; row 5: engine_bad_state$"
    ):
        env.step(action)
    with pytest.raises(FaultError, match=r"12 faulty row\(s\): row 0: .*row 7: .* and 4 more$"):
        env.step(zero_action(env) + NAN)
    env.reset()
    env.step(zero_action(env))  # a full reset puts everything right
    env.close()


def test_an_unknown_policy(tmp_path):
    with pytest.raises(ConfigError, match="on_fault 'rais'; did you mean 'raise'"):
        build(walker_cfg(tmp_path), on_fault="rais")


def test_a_reward_fault_alone_leaves_state_and_command_terms_as_they_were(tmp_path):
    """Quarantine of one row must not leak through terms that several groups share."""
    bad = {"step": 2, "row": 0, "value": "inf"}
    terms = {"k": obs_term(step_counter), "q": obs_term(observations.joint_pos_rel)}
    env = started(
        probe_cfg(
            tmp_path,
            observations={"policy": ObservationGroupCfg(terms=terms)},
            rewards={"bad": RewardTermCfg(func=row_at_step, weight=1.0, params=bad)},
        ),
        2,
    )
    env.step(zero_action(env))
    before = env.state.obs["policy"].clone()
    state = env.step(zero_action(env))
    assert state.final_obs["policy"][0].tolist() == before[0].tolist()
    assert state.final_obs["policy"][1, 0].item() == 2.0
    assert state.obs["policy"][:, 0].tolist() == [0.0, 2.0]
    env.close()

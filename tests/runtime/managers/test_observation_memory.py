"""Histories and latencies of observations: counters prove layout and lag."""

import dataclasses
import itertools

import pytest
import torch
from helpers.memory import memory_cfg
from helpers.probe import (
    build,
    obs_term,
    probe_cfg,
    random_actions,
    started,
    step_counter,
    walker_cfg,
    zero_action,
)
from helpers.walk import same_bits

import unilab_gym
from unilab_gym.config import (
    DelayCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    apply_overrides,
    from_dict,
    to_dict,
)
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import observations
from unilab_gym.runtime.reads import EpisodeStep
from unilab_gym.runtime.rng import seed_keys
from unilab_gym.runtime.term import Term, term


@term(reads=(EpisodeStep(),), width=1)
def hundreds(frame):
    """100 + the step."""
    return frame[EpisodeStep()].unsqueeze(1) + 100.0


@term(reads=(EpisodeStep(),), width=2)
def pair(frame):
    """(200 + the step, 300 + the step)."""
    return frame[EpisodeStep()].unsqueeze(1) + torch.tensor([200.0, 300.0])


@term(reads=(EpisodeStep(),))
class Advancing(Term):
    """Counts its steps by itself; times the boundary's counter shows which was seen."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.count = ctx.zeros()

    def __call__(self, frame):
        return self.count + 0.5 * (frame[EpisodeStep()] == 0)

    def update(self, frame):
        self.count.add_(1.0)

    def reset(self, mask):
        self.count.masked_fill_(mask, 0.0)


def env_of(tmp_path, num_envs=1, steps=0, episode_length_s=1.0, group=None, **terms):
    groups = {"policy": ObservationGroupCfg(terms=terms, **(group or {}))}
    cfg = probe_cfg(tmp_path, observations=groups, episode_length_s=episode_length_s)
    env = started(cfg, num_envs)
    for _ in range(steps):
        env.step(zero_action(env))
    return env


def observed(env, steps, row=0):
    states = [env.state.obs["policy"][row].tolist()]
    states += [env.step(zero_action(env)).obs["policy"][row].tolist() for _ in range(steps)]
    return states


# --- history --------------------------------------------------------------------------------------


def test_a_flat_history_is_term_major_and_oldest_first(tmp_path):
    """E40."""
    a, b = obs_term(step_counter, history=3), obs_term(hundreds, history=3)
    env = env_of(tmp_path, steps=3, a=a, b=b)
    assert env.state.obs["policy"].tolist() == [[1, 2, 3, 101, 102, 103]]
    assert env.rt.observations.widths == {"policy": 6}
    assert [(t.start, t.width, t.newest) for t in env.rt.observations.layout("policy")] == [
        (0, 1, slice(2, 3)),
        (3, 1, slice(5, 6)),
    ]
    env.close()


def test_terms_have_histories_of_their_own_or_the_groups(tmp_path):
    terms = {
        "k": obs_term(step_counter),
        "p": obs_term(pair, history=0),
        "h": obs_term(hundreds, history=1),
    }
    env = env_of(tmp_path, steps=2, group={"history": 2}, **terms)
    assert env.state.obs["policy"].tolist() == [[1, 2, 202, 302, 102]]
    env.close()


def test_an_unflattened_group_has_a_frame_axis_and_the_space_says_so(tmp_path):
    terms = {"k": obs_term(step_counter), "p": obs_term(pair)}
    group = ObservationGroupCfg(terms=terms, history=3, flatten=False)
    flat = dataclasses.replace(group, flatten=True)
    cfg = probe_cfg(tmp_path, observations={"policy": group, "flat": flat})
    env = unilab_gym.make(cfg, 2, backend="mujoco", obs="dict")
    obs, _ = env.reset(seed=0)
    for _ in range(3):
        obs, *_, info = env.step(torch.zeros(2, 1))
    assert obs["policy"][1].tolist() == [[1, 201, 301], [2, 202, 302], [3, 203, 303]]
    assert obs["flat"][1].tolist() == [1, 2, 3, 201, 301, 202, 302, 203, 303]
    spaces = env.single_observation_space
    assert (spaces["policy"].shape, spaces["flat"].shape) == ((3, 3), (9,))
    assert env.observation_space["policy"].shape == obs["policy"].shape == (2, 3, 3)
    assert env.state_space.shape == tuple(env.state().shape[1:]) == (3, 3)
    assert info["final_obs"]["policy"].shape == (2, 3, 3)
    assert env.runtime.rt.observations.widths == {"policy": 9, "flat": 9}
    env.close()


def test_a_reset_of_some_rows_gives_the_others_no_frame_twice(tmp_path):
    """E02."""
    terms = {
        "now": obs_term(step_counter, history=4),
        "late": obs_term(hundreds, history=4, delay=2),
    }
    env = env_of(tmp_path, num_envs=4, **terms)
    for _ in range(6):
        before = env.step(zero_action(env), autoreset=False).obs["policy"].clone()
    assert before[0].tolist() == [3, 4, 5, 6, 101, 102, 103, 104]
    others = torch.tensor([0, 1, 3])
    obs = env.reset(mask=torch.tensor([False, False, True, False])).obs["policy"]
    assert torch.equal(obs[others], before[others])
    assert obs[2].tolist() == [0] * 4 + [100] * 4
    obs = env.step(zero_action(env)).obs["policy"]
    for row in (0, 1, 3):
        assert obs[row].tolist() == [4, 5, 6, 7, 102, 103, 104, 105]
    assert obs[2].tolist() == [0, 0, 0, 1, 100, 100, 100, 100]
    env.close()


@pytest.mark.parametrize("how", ["automatic", "explicit", "partial"])
def test_a_history_starts_with_the_first_frame(tmp_path, how):
    """E19: gravity has length 1 in every frame, and no frame is from before the fall."""
    groups = {
        "policy": ObservationGroupCfg(
            terms={
                "gravity": obs_term(observations.projected_gravity),
                "q": obs_term(observations.joint_pos_rel),
            },
            history=5,
            flatten=False,
        )
    }
    env = started(walker_cfg(tmp_path, observations=groups, terminations={}), 4)
    for action in random_actions(env, 8):
        env.step(action)
    before = env.state.obs["policy"].clone()
    mask = torch.tensor([True, False, True, False])
    if how == "automatic":
        env.rt.actions.ctrl[mask] = 0.0
        nan = torch.zeros(4, 2)
        nan[mask] = torch.nan  # a fault ends these rows within the step
        obs = env.step(nan).obs["policy"]
        assert torch.equal(obs[~mask, :4], before[~mask, 1:])
        assert torch.equal(env.state.final_obs["policy"][mask], before[mask])
    elif how == "explicit":
        mask = torch.ones(4, dtype=torch.bool)
        obs = env.reset().obs["policy"]
    else:
        obs = env.reset(mask=mask).obs["policy"]
        assert torch.equal(obs[~mask], before[~mask])
    assert torch.equal(obs[mask], obs[mask, :1].expand_as(obs[mask]))
    torch.testing.assert_close(obs[..., :3].norm(dim=-1), torch.ones(4, 5))
    assert not (obs[mask][:, :, 3:] == before[mask][:, :, 3:]).any()
    env.close()


def test_the_terminal_observation_remembers_like_any(tmp_path):
    terms = {"k": obs_term(step_counter, history=3), "h": obs_term(hundreds, delay=1)}
    env = env_of(tmp_path, steps=4, episode_length_s=0.1, **terms)
    state = env.step(zero_action(env))
    assert state.truncated.tolist() == [True]
    assert state.final_obs["policy"].tolist() == [[3, 4, 5, 104]]
    assert state.obs["policy"].tolist() == [[0, 0, 0, 100]]
    env.close()


def test_quarantined_rows_keep_the_boundary_before(tmp_path):
    terms = {"k": obs_term(step_counter, history=3, delay=1)}
    env = env_of(tmp_path, num_envs=2, steps=5, **terms)
    before = env.state.obs["policy"].clone()
    assert before[0].tolist() == [2, 3, 4]
    state = env.step(torch.tensor([[torch.nan], [0.0]]))
    assert state.final_obs["policy"].tolist() == [[2, 3, 4], [3, 4, 5]]
    assert state.obs["policy"].tolist() == [[0, 0, 0], [3, 4, 5]]
    env.close()


def test_a_row_that_restarts_a_step_later_begins_with_its_first_frame(tmp_path):
    """Autoreset mode NEXT_STEP: the frame of the step that is thrown away is nowhere."""
    terms = {"k": obs_term(step_counter, history=3), "h": obs_term(hundreds, delay=1)}
    groups = {"policy": ObservationGroupCfg(terms=terms)}
    cfg = probe_cfg(tmp_path, observations=groups, episode_length_s=0.08)
    env = unilab_gym.make(cfg, 1, backend="mujoco", autoreset_mode="NextStep")
    seen = [env.reset(seed=0)[0].tolist()[0]]
    seen += [env.step(torch.zeros(1, 1))[0].tolist()[0] for _ in range(6)]
    assert seen == [
        [0, 0, 0, 100],
        [0, 0, 1, 100],
        [0, 1, 2, 101],
        [1, 2, 3, 102],
        [2, 3, 4, 103],
        [0, 0, 0, 100],
        [0, 0, 1, 100],
    ]
    env.close()


# --- latency --------------------------------------------------------------------------------------


def test_a_fixed_latency_in_control_steps(tmp_path):
    env = env_of(tmp_path, late=obs_term(step_counter, delay=2), now=obs_term(hundreds))
    assert observed(env, 4) == [[0, 100], [0, 101], [0, 102], [1, 103], [2, 104]]
    env.close()


def test_the_history_is_of_delayed_frames(tmp_path):
    env = env_of(tmp_path, steps=5, k=obs_term(step_counter, delay=1, history=3))
    assert env.state.obs["policy"].tolist() == [[2, 3, 4]]
    env.close()


def test_latencies_are_drawn_per_row_and_hold_for_the_episode(tmp_path):
    terms = {"k": obs_term(step_counter, delay=(0, 3)), "h": obs_term(hundreds, delay=(0, 3))}
    env = env_of(tmp_path, num_envs=200, steps=5, **terms)
    lag = 5 - env.state.obs["policy"] + torch.tensor([0.0, 100.0])
    assert lag.unique().tolist() == [0, 1, 2, 3]
    assert (lag[:, 0] != lag[:, 1]).any()  # drawn apart
    for step in range(6, 12):
        state = env.step(zero_action(env))
        assert torch.equal(step - state.obs["policy"] + torch.tensor([0.0, 100.0]), lag)
    env.reset()
    for _ in range(5):
        env.step(zero_action(env))
    again = 5 - env.state.obs["policy"] + torch.tensor([0.0, 100.0])
    assert (again != lag).any(0).all()
    env.close()


@pytest.mark.parametrize("how", ["the group's", "by name", "across groups"])
def test_terms_can_share_a_draw(tmp_path, how):
    bus = DelayCfg(steps=(0, 3), shared="bus")
    groups = {
        "the group's": {"policy": ObservationGroupCfg(terms=_two(None), delay=(0, 3))},
        "by name": {"policy": ObservationGroupCfg(terms=_two(bus))},
        "across groups": {
            "policy": ObservationGroupCfg(terms={"k": obs_term(step_counter, delay=bus)}),
            "critic": ObservationGroupCfg(terms={"h": obs_term(hundreds, delay=bus)}),
        },
    }[how]
    env = started(probe_cfg(tmp_path, observations=groups), 100)
    for _ in range(5):
        state = env.step(zero_action(env))
    seen = torch.cat([*state.obs.values()], 1)
    assert torch.equal(seen[:, 0] + 100.0, seen[:, 1])
    assert seen[:, 0].unique().tolist() == [2, 3, 4, 5]
    env.close()


def _two(delay):
    return {"k": obs_term(step_counter, delay=delay), "h": obs_term(hundreds, delay=delay)}


def test_a_latency_can_be_drawn_anew_within_the_episode(tmp_path):
    delay = DelayCfg(steps=(0, 5), redraw=4)
    env = env_of(tmp_path, num_envs=50, steps=6, k=obs_term(step_counter, delay=delay))
    lags = []
    for step in range(7, 20):
        state = env.step(zero_action(env))
        lags.append(step - state.obs["policy"].flatten())
    changed = [bool((a != b).any()) for a, b in itertools.pairwise(lags)]
    assert changed == [step % 4 == 0 for step in range(8, 20)]
    assert torch.stack(lags).unique().tolist() == [0, 1, 2, 3, 4, 5]
    env.close()


def test_a_row_does_not_depend_on_its_neighbours_resets(tmp_path):
    """Histories, lines and draws of a running row are those of a batch in which nobody resets."""
    cfg = memory_cfg(tmp_path, episode_length_s=1.0, terminations={})
    busy, calm = started(cfg, 5), started(cfg, 5)
    resets = torch.tensor([False, True, False, True, False])
    for step, action in enumerate(random_actions(busy, 24)):
        first, second = busy.step(action), calm.step(action)
        if step % 5 == 2:
            busy.reset(mask=resets)
        for name, obs in first.obs.items():
            assert same_bits(obs[~resets], second.obs[name][~resets]), (step, name)
    assert not torch.equal(busy.state.obs["policy"][resets], calm.state.obs["policy"][resets])
    busy.close()
    calm.close()


def test_rows_do_not_depend_on_how_many_there_are(tmp_path):
    few, many = started(memory_cfg(tmp_path), 2), started(memory_cfg(tmp_path), 7)
    few.reset(keys=seed_keys(11, 2))
    many.reset(keys=seed_keys(11, 7))
    for action in random_actions(many, 60):
        state, wide = few.step(action[:2].contiguous()), many.step(action)
        for name, obs in state.obs.items():
            assert same_bits(obs, wide.obs[name][:2]), name
    few.close()
    many.close()


# --- terms with state -----------------------------------------------------------------------------


def test_a_class_advances_once_a_step_and_not_at_the_reset(tmp_path):
    env = env_of(tmp_path, num_envs=2, a=obs_term(Advancing, history=2))
    env.step(zero_action(env))
    env.step(zero_action(env))
    assert env.state.obs["policy"].tolist() == [[1.0, 2.0]] * 2
    obs = env.reset(mask=torch.tensor([True, False])).obs["policy"]
    assert obs.tolist() == [[0.5, 0.5], [1.0, 2.0]]
    assert env.step(zero_action(env)).obs["policy"].tolist() == [[0.5, 1.0], [2.0, 3.0]]
    env.close()


def test_update_belongs_to_observations(tmp_path):
    rewards = {"a": RewardTermCfg(func=Advancing, weight=1.0)}
    with pytest.raises(ConfigError, match=r"rewards/a: .*Advancing advances in update\(\), which"):
        build(probe_cfg(tmp_path, rewards=rewards))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delay": -1}, r"delay must be whole control steps n >= 0 or \(low, high\), got -1"),
        ({"delay": (3, 1)}, r"got \(3, 1\)"),
        ({"delay": (0, 1, 2)}, r"got \(0, 1, 2\)"),
        ({"delay": 0.02}, r"got 0.02"),
        ({"delay": True}, r"got True"),
        ({"history": -1}, r"history must be a number of frames >= 0, got -1"),
        ({"history": 2.0}, r"history must be a number of frames >= 0, got 2.0"),
    ],
)
def test_what_is_no_delay_and_no_history(change, message):
    with pytest.raises(ConfigError, match=message):
        ObservationTermCfg(func=step_counter, **change)
    with pytest.raises(ConfigError, match=message):
        ObservationGroupCfg(terms={"k": obs_term(step_counter)}, **change)


@pytest.mark.parametrize("extra", [{"redraw": 3}, {"shared": "bus"}])
def test_a_fixed_latency_is_not_drawn(extra):
    with pytest.raises(ConfigError, match="nothing is drawn for 2 steps"):
        DelayCfg(steps=2, **extra)


def test_an_unflattened_group_needs_one_history():
    for terms in ({"k": obs_term(step_counter)}, {**_two(None), "p": obs_term(pair, history=3)}):
        with pytest.raises(ConfigError, match=r"flatten=False needs one history .* got \{'k': 0"):
            ObservationGroupCfg(terms=terms, flatten=False)


def test_a_shared_delay_is_said_in_one_way(tmp_path):
    terms = {
        "k": obs_term(step_counter, delay=DelayCfg(steps=(0, 2), shared="bus")),
        "h": obs_term(hundreds, delay=DelayCfg(steps=(0, 3), shared="bus")),
    }
    groups = {"policy": ObservationGroupCfg(terms=terms)}
    with pytest.raises(ConfigError, match=r"policy/h: the shared delay 'bus' is .*/policy/k has"):
        build(probe_cfg(tmp_path, observations=groups))


def test_configs_round_trip_and_take_overrides(tmp_path):
    cfg = memory_cfg(tmp_path)
    assert from_dict(type(cfg), to_dict(cfg)) == cfg
    path = "observations.policy.terms.gravity.delay"
    assert apply_overrides(cfg, {path: [0, 2]}).observations["policy"].terms["gravity"].delay == (
        0,
        2,
    )
    with pytest.raises(ConfigError, match=r"gravity.delay: unknown key 'redrw'; did you mean"):
        apply_overrides(cfg, {path: {"steps": [0, 2], "redrw": 3}})

"""What went wrong elsewhere, by its number in the list of cases, and what users need."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import VectorEnv
from helpers.face import (
    ENGINES,
    MODES,
    leaves,
    make_cartpole,
    make_go2,
    make_probe,
    make_small,
    mask_of,
    rollout,
    same,
    small_actions,
)
from helpers.probe import obs_term, step_counter

import unilab_gym
from unilab_gym.config import ActionTermCfg, ObservationGroupCfg
from unilab_gym.mdp import actions as action_terms

N = 4
ZEROS = torch.zeros(N, 1)


def staggered(folder, mode, limit=5):
    env = make_probe(folder, N, max_episode_steps=limit, autoreset_mode=mode)
    env.reset(seed=0)
    env.episode_length_buf = [0, 1, 2, 3]
    return env


# -- E02, E37, N06: resets of some -----------------------------------------------------------------


def test_e02_a_reset_of_one_row_observes_nobody_else_anew(tmp_path):
    """Rows that go on keep their observation, and their counter goes on by one."""
    env = make_probe(tmp_path, N, autoreset_mode="Disabled")
    env.reset(seed=0)
    for _ in range(6):
        last, *_ = env.step(ZEROS)
    obs, _ = env.reset(options={"reset_mask": mask_of(2)})
    same(obs, last, ~mask_of(2))
    assert obs[:, 0].tolist() == [6, 6, 0, 6]
    assert env.step(ZEROS)[0][:, 0].tolist() == [7, 7, 1, 7]
    env.close()


def test_e02_histories_and_delays_of_rows_that_go_on_do_not_move(tmp_path):
    """History 4, delay 2: no counter is seen twice, and the new episode knows nothing older."""
    term = obs_term(step_counter, history=4, delay=2)
    changes = {"observations": {"policy": ObservationGroupCfg(terms={"k": term})}}
    env = make_probe(tmp_path, N, changes=changes, autoreset_mode="Disabled")
    env.reset(seed=0)
    for _ in range(6):
        last, *_ = env.step(ZEROS)
    assert last.tolist() == [[1, 2, 3, 4]] * N  # the counter was 6, two steps late
    obs, _ = env.reset(options={"reset_mask": mask_of(2)})
    same(obs, last, ~mask_of(2))
    assert obs[2].tolist() == [0] * 4
    obs, *_ = env.step(ZEROS)
    assert obs.tolist() == [[2, 3, 4, 5], [2, 3, 4, 5], [0] * 4, [2, 3, 4, 5]]
    for _ in range(3):
        obs, *_ = env.step(ZEROS)
    assert obs.tolist() == [[5, 6, 7, 8], [5, 6, 7, 8], [0, 0, 1, 2], [5, 6, 7, 8]]
    env.close()


def test_e02_noise_is_not_drawn_again_for_rows_that_go_on(tmp_path):
    env = make_small(tmp_path, N, autoreset_mode="Disabled", obs="dict")
    env.reset(seed=0)
    for action in small_actions(3, N):
        last, *_ = env.step(action)
    for _ in range(3):
        obs, _ = env.reset(options={"reset_mask": mask_of(1)})
        same(obs, last, ~mask_of(1))
    assert not torch.equal(obs["policy"][1], last["policy"][1])
    env.close()


# -- E04, N02: how an episode ends -----------------------------------------------------------------


def test_e04_the_terminal_observation_in_every_mode(tmp_path):
    """T = 5, staggered: SAME_STEP shows 0 and final_obs 5, the others show 5."""
    for mode in MODES:
        env = staggered(tmp_path, mode)
        env.step(ZEROS)
        obs, _, terminated, truncated, info = env.step(ZEROS)
        assert truncated.tolist() == [False, False, False, True] and not terminated.any()
        assert obs[:, 0].tolist() == [2, 3, 4, 0 if mode == "SameStep" else 5]
        if mode == "SameStep":
            assert info["final_obs"][:, 0].tolist() == [2, 3, 4, 5]
            assert info["_final_obs"].tolist() == [False, False, False, True]
        if mode == "Disabled":
            env.reset(options={"reset_mask": truncated})
        obs, reward, *flags, _ = env.step(ZEROS)
        following = 0 if mode == "NextStep" else 1
        assert obs[:, 0].tolist() == [3, 4, 0 if mode == "SameStep" else 5, following]
        assert (reward > 0).tolist() == [True, True, True, mode != "NextStep"]
        assert flags[1].tolist() == [False, False, True, False]
        env.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("task_id", unilab_gym.task_ids())
def test_n02_time_limits_of_every_task(task_id, mode):
    """Truncated, not terminated, in the step of the limit; the observation where the mode says."""
    env, reference = (
        gymnasium.make_vec(task_id, 2, backend="mujoco", device="cpu", play=True, autoreset_mode=m)
        for m in (mode, "Disabled")
    )
    for one in (env, reference):
        one.reset(seed=0)
        one.episode_length_buf = [env.max_episode_steps - 2, 0]
    action = torch.zeros(2, env.single_action_space.shape[0])
    for step in (1, 2):
        obs, _, terminated, truncated, info = env.step(action)
        terminal, *_ = reference.step(action)
        assert truncated.tolist() == [step == 2, False] and not terminated.any()
        last = info["final_obs"] if mode == "SameStep" else obs
        assert torch.equal(last, terminal)
    assert torch.equal(obs[0], terminal[0]) == (mode != "SameStep")
    env.close(), reference.close()


@pytest.mark.parametrize("task_id", unilab_gym.task_ids())
def test_e07_no_episode_begins_anew_without_a_flag(task_id):
    """2,000 random steps: the counter goes back exactly where a flag was raised."""
    env = gymnasium.make_vec(task_id, 20, backend="mujoco", device="cpu", seed=1)
    env.reset()
    env.episode_length_buf = torch.arange(20) * (env.max_episode_steps // 21)
    generator = torch.Generator().manual_seed(0)
    bound = float(env.single_action_space.high[0])
    counter, ended = env.episode_length_buf, 0
    for _ in range(100):
        action = torch.rand(env.action_space.shape, generator=generator) * 2 * bound - bound
        _, _, terminated, truncated, _ = env.step(action)
        assert not (terminated & truncated).any()
        after = env.episode_length_buf
        assert torch.equal(after == 0, terminated | truncated)
        assert torch.equal(torch.where(after == 0, 0, counter + 1), after)
        counter = after
        ended += int((after == 0).sum())
    assert ended >= 5
    env.close()


# -- E23: seeds ------------------------------------------------------------------------------------


def test_e23_what_was_before_a_seed_does_not_matter(tmp_path):
    env = make_small(tmp_path, N)
    first, other, again = (rollout_of(env, seed) for seed in (42, 7, 42))
    for one, two in zip(first, again, strict=True):
        same(one, two)
    assert not torch.equal(first[0]["[0]"], other[0]["[0]"])
    env.reset(seed=1)
    obs, _ = env.reset()
    assert obs.shape[0] == N and obs.isfinite().all()
    env.close()


def rollout_of(env, seed):
    from helpers.face import play

    return play(env, small_actions(4, N), {"seed": seed})


# -- E32, E34: limits ------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "limit"), [(0.02, 1), (0.28, 14), (0.58, 29), (1.0, 50)])
def test_e32_limits_are_exact_in_every_episode(tmp_path, seconds, limit):
    env = make_probe(tmp_path, 2, changes={"episode_length_s": seconds})
    assert env.max_episode_steps == limit
    env.reset(seed=0)
    for step in range(1, 2 * limit + 1):
        *_, truncated, info = env.step(torch.zeros(2, 1))
        assert truncated.tolist() == [step % limit == 0] * 2
        if truncated.all():
            assert info["final_info"]["episode"]["l"].tolist() == [limit] * 2
            assert not env.episode_length_buf.any()
    env.reset()
    env.episode_length_buf = [0, limit - 1]
    assert env.step(torch.zeros(2, 1))[3].tolist() == [limit == 1, True]
    env.close()


def test_e34_keywords_arrive_once():
    env = make_cartpole(3, max_episode_steps=10, render_mode="rgb_array", render_env_ids=[2])
    assert env.render_mode == "rgb_array" and env.max_episode_steps == 10
    env.reset(seed=0)
    for step in range(1, 11):
        *_, truncated, _ = env.step(torch.zeros(3, 1))
        assert truncated.dtype == torch.bool and truncated.shape == (3,)
        assert truncated.any() == (step == 10)
    env.close()
    with pytest.raises(TypeError, match="'no_such_option'"):
        make_cartpole(3, no_such_option=True)
    with pytest.raises(ValueError, match="num_envs must be a positive integer, got 0"):
        make_cartpole(0)


# -- E46, E47, E59, N07: learners ------------------------------------------------------------------


def test_e46_a_thousand_observations_lie_in_their_space():
    env = make_cartpole(2, output="numpy")
    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    single = env.single_observation_space
    for _ in range(500):
        assert all(single.contains(row) for row in obs)
        obs, *_ = env.step(env.action_space.sample())
    assert isinstance(env, VectorEnv) and env.observation_space.contains(obs)
    env.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_e47_actions_are_clamped_to_a_box_that_learners_can_use(tmp_path, engine):
    """+10 in a box of 0.5 with scale s is default + 0.5 s, unclamped default + 10 s."""
    params = {"scale": 0.3, "box": 0.5}
    changes = {
        "actions": {"servo": ActionTermCfg(func=action_terms.JointPositionAction, params=params)}
    }
    for clip, target in ((True, 0.1 + 0.5 * 0.3), (False, 0.1 + 10 * 0.3)):
        env = make_probe(tmp_path, 2, changes=changes, backend=engine, clip_actions=clip)
        box = env.single_action_space
        assert (box.low, box.high) == (np.float32(-0.5), np.float32(0.5))
        samples = np.stack([box.sample() for _ in range(1000)])
        assert samples.dtype == np.float32 and (abs(samples) <= 0.5).all()
        env.reset(seed=0)
        env.step(torch.full((2, 1), 10.0))
        ctrl = env.runtime.rt.actions.ctrl
        torch.testing.assert_close(ctrl, torch.full((2, 1), target), atol=1e-6, rtol=0)
        env.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_envs", [1, 2, 1024])
def test_e59_kinds_do_not_depend_on_the_number_of_rows(num_envs, mode):
    env = make_cartpole(num_envs, autoreset_mode=mode, log_in_info=True, max_episode_steps=2)
    results = [env.reset(seed=0), *(env.step(torch.zeros(num_envs, 1)) for _ in range(2))]
    ended = torch.ones(num_envs, dtype=torch.bool)
    results += [env.reset(options={"reset_mask": ended}), env.step(torch.zeros(num_envs, 1))]
    for result in results:
        for path, leaf in leaves(result):
            assert leaf.device == env.device
            assert leaf.shape[:1] == ((num_envs,) if "/log/" not in path else ()), path
            number = torch.int64 if path.endswith("episode/l") else torch.float32
            flag = "/_" in path or path in ("[2]", "[3]")
            assert leaf.dtype == (torch.bool if flag else number), path
    obs, reward, terminated, *_ = results[-1]
    assert torch.nn.Linear(4, 1)(obs).shape == (num_envs, 1)
    assert torch.where(terminated, 0.0, reward).shape == (num_envs,)
    env.close()


# -- E58: closing ----------------------------------------------------------------------------------


def test_e58_five_environments_in_turn_equal_the_first():
    def story(make, engine):
        env = make(2, backend=engine)
        results = rollout(env, 2, reset_seed=1) if make is make_go2 else [env.reset(seed=1)]
        env.close()
        return results

    first = {}
    for number in range(5):
        make, engine = (make_go2, make_cartpole)[number % 2], ENGINES[number // 2 % 2]
        for key in ((make, "mujoco"), (make, engine)):
            results = story(*key)
            for one, two in zip(results, first.setdefault(key, results), strict=True):
                same(one, two)
    assert len(first) == 4


def test_e58_an_interrupt_in_a_step_leaves_an_environment_that_closes(monkeypatch):
    env = make_cartpole(2, overrides={"sim.num_threads": 2})
    env.reset(seed=0)
    threads = torch.get_num_threads()

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(env.runtime.backend, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        env.step(torch.zeros(2, 1))
    assert torch.get_num_threads() == threads and torch.is_grad_enabled()
    monkeypatch.undo()
    env.reset(seed=0)
    env.step(torch.zeros(2, 1))
    env.close()

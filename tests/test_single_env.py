"""`gymnasium.make(id)`: one environment in NumPy, and what Gymnasium makes of several."""

import pickle
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from helpers.face import CONFORM, GO2, make_cartpole, make_go2, make_small, small_actions
from helpers.probe import probe_cfg, walker_cfg

import unilab_gym
from unilab_gym.errors import ConfigError
from unilab_gym.registration import load_task
from unilab_gym.single_env import UnilabSingleEnv

RECOMMENDATIONS = (
    "A Box observation space minimum value is -infinity",
    "A Box observation space maximum value is infinity",
    "For Box action spaces, we recommend using a symmetric and normalized space",
)
"""Gymnasium's own MuJoCo environments earn the same three, and its tests ignore them: an
observation has no bound, and actions mean the same here as in `make_vec`."""


def checked(env, **kwargs):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env, **kwargs)
    texts = [str(warning.message) for warning in caught]
    return [text for text in texts if not any(known in text for known in RECOMMENDATIONS)]


# -- Gymnasium's checks ----------------------------------------------------------------------------


@pytest.mark.parametrize("task_id", unilab_gym.task_ids())
def test_check_env_of_every_task(task_id):
    """With the render mode and the remaking from the spec; it draws one frame."""
    env = gymnasium.make(task_id)
    assert type(env.unwrapped) is UnilabSingleEnv and env.spec.max_episode_steps is None
    assert checked(env.unwrapped) == []
    env.close()


def test_check_env_of_a_config(tmp_path):
    """Of its groups and its log too; it has no spec to be remade from."""
    env = UnilabSingleEnv(walker_cfg(tmp_path), obs="dict", log_in_info=True)
    assert checked(env, skip_render_check=True) == []
    assert list(env.observation_space.spaces) == ["policy", "critic"]
    env.close()


# -- itself ----------------------------------------------------------------------------------------


def test_an_episode(tmp_path):
    env = UnilabSingleEnv(probe_cfg(tmp_path), max_episode_steps=3, log_in_info=True)
    assert env.metadata["render_fps"] == 50 and env.render_mode is None and env.render() is None
    action = np.zeros(1, np.float32)
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(action)
    obs, info = env.reset(seed=0)
    assert obs.shape == (1,) and obs.dtype == np.float32 and obs[0] == 0
    assert list(info) == ["log"] and all(type(value) is float for value in info["log"].values())
    for step in range(1, 4):
        obs, reward, terminated, truncated, info = env.step(action)
        assert obs.tolist() == [step] and reward == pytest.approx(0.02)
        assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
        assert not terminated and truncated == (step == 3)
    assert info["log"]["episode/length"] == 3 and env.state().tolist() == [3]
    with pytest.raises(ResetNeeded, match=r"row\(s\) 0 ended"):
        env.step(action)
    assert env.reset()[0].tolist() == [0]
    for bad in (np.zeros((1, 1)), np.zeros(2), 0.0):
        with pytest.raises(ConfigError, match=r"action must have shape \(1,\), got"):
            env.step(bad)
    env.step([0.5]), env.step(torch.zeros(1))
    env.close(), env.close()
    with pytest.raises(ClosedEnvironmentError):
        env.step(action)


def test_what_belongs_to_make_vec(tmp_path):
    for keyword, value in (("num_envs", 2), ("autoreset_mode", "SameStep"), ("output", "torch")):
        with pytest.raises(TypeError, match=f"'{keyword}' is an argument of make_vec"):
            UnilabSingleEnv(probe_cfg(tmp_path), **{keyword: value})
    with pytest.raises(TypeError, match="'no_such_option'"):
        UnilabSingleEnv(probe_cfg(tmp_path), no_such_option=1)
    with pytest.raises(ValueError, match=r"use backend='mjwarp'"):
        UnilabSingleEnv(probe_cfg(tmp_path), device="cuda")
    with pytest.raises(ValueError, match="'reset_maks'; did you mean 'reset_mask'"):
        UnilabSingleEnv(probe_cfg(tmp_path)).reset(options={"reset_maks": [True]})


def test_keywords_reach_it():
    env = gymnasium.make(GO2, play=True, obs="dict", overrides={"episode_length_s": 0.1}, seed=3)
    base = env.unwrapped
    assert base.vector_env.cfg.play and base.vector_env.max_episode_steps == 5
    assert base.vector_env.cfg.sim.num_threads == 1
    env.reset()
    ends = [env.step(np.zeros(12, np.float32))[3] for _ in range(5)]
    assert ends == [False] * 4 + [True]
    again = gymnasium.make(env.spec)
    assert again.unwrapped.vector_env.cfg == base.vector_env.cfg
    env.close(), again.close()
    limited = gymnasium.make(GO2, max_episode_steps=2)  # Gymnasium's own wrapper
    limited.reset(seed=0)
    assert [limited.step(np.zeros(12, np.float32))[3] for _ in range(2)] == [False, True]
    limited.close()


def test_a_pickle_makes_it_anew(tmp_path):
    env = UnilabSingleEnv(walker_cfg(tmp_path), seed=4)
    first, _ = env.reset()
    again = pickle.loads(pickle.dumps(env))
    assert np.array_equal(again.reset()[0], first)
    env.close(), again.close()


# -- several ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_sync_equals_the_vector_environment(tmp_path, mode):
    """Bit for bit in every mode, through ends of episodes, with a reset of a row by hand."""
    cfg = walker_cfg(tmp_path, episode_length_s=0.3)
    native = make_small(
        tmp_path, 3, output="numpy", autoreset_mode=mode, overrides={"episode_length_s": 0.3}
    )
    sync = SyncVectorEnv([lambda: UnilabSingleEnv(cfg)] * 3, autoreset_mode=mode)
    assert sync.single_observation_space == native.single_observation_space
    assert sync.single_action_space == native.single_action_space
    assert sync.observation_space == native.observation_space
    assert np.array_equal(sync.reset(seed=5)[0], native.reset(seed=5)[0])
    ended = 0
    for step, action in enumerate(small_actions(50, 3).numpy()):
        got, want = sync.step(action), native.step(action)
        for one, two in zip(got[:4], want[:4], strict=True):
            assert np.array_equal(one, two)
        done = want[2] | want[3]
        if mode is AutoresetMode.SAME_STEP and done.any():
            rows = np.flatnonzero(done)
            last = np.stack([got[4]["final_obs"][row] for row in rows])
            assert np.array_equal(last, want[4]["final_obs"][rows])
        if (mode is AutoresetMode.DISABLED and done.any()) or step == 20:
            mask = done | np.array([False, step == 20, False])
            if mode is not AutoresetMode.NEXT_STEP:  # where Gymnasium would reset it once more
                pair = [env.reset(options={"reset_mask": mask.copy()})[0] for env in (sync, native)]
                assert np.array_equal(*pair)
        ended += int(done.sum())
    assert ended >= 8
    sync.close(), native.close()


def test_make_vec_makes_several_of_them():
    native = make_go2(2, output="numpy", autoreset_mode="NextStep")
    sync = gymnasium.make_vec(GO2, 2, vectorization_mode="sync")
    assert type(sync) is SyncVectorEnv and type(sync.envs[0].unwrapped) is UnilabSingleEnv
    assert np.array_equal(sync.reset(seed=1)[0], native.reset(seed=1)[0])
    for _ in range(3):
        action = native.action_space.sample()
        assert np.array_equal(sync.step(action)[0], native.step(action)[0])
    sync.close(), native.close()


@pytest.mark.slow
def test_async_with_spawned_workers():
    """By `make_vec`, whose workers know the task by its spec; bit for bit over two episodes."""
    native = make_cartpole(2, output="numpy", autoreset_mode="NextStep", max_episode_steps=3)
    workers = gymnasium.make_vec(
        CONFORM,
        2,
        vectorization_mode="async",
        vector_kwargs={"context": "spawn"},
        overrides={"episode_length_s": 0.06},
    )
    assert type(workers) is AsyncVectorEnv
    assert np.array_equal(workers.reset(seed=1)[0], native.reset(seed=1)[0])
    truncated = 0
    for _ in range(8):
        action = native.action_space.sample()
        got, want = workers.step(action), native.step(action)
        for one, two in zip(got[:4], want[:4], strict=True):
            assert np.array_equal(one, two)
        truncated += int(want[3].sum())
    assert truncated == 4
    workers.close(), native.close()


@pytest.mark.parametrize("task_id", unilab_gym.task_ids())
def test_it_is_the_first_row_of_the_vector_environment(task_id):
    backend = load_task(task_id).backends[0]
    single = gymnasium.make(task_id, backend=backend).unwrapped
    vector = gymnasium.make_vec(task_id, 2, backend=backend, device="cpu", output="numpy")
    first, rest = single.reset(seed=9)[0], vector.reset(seed=9)[0]
    assert np.array_equal(first, rest[0])
    rng = np.random.default_rng(0)
    for _ in range(3):
        action = rng.uniform(-0.1, 0.1, vector.action_space.shape).astype(np.float32)
        assert np.array_equal(single.step(action[0])[0], vector.step(action)[0][0])
    single.close(), vector.close()

"""Tianshou 2: the adapter and PPO."""

import gymnasium as gym
import numpy as np
import pytest
from common import ID, check_training, example, refuses
from helpers.face import make_probe
from tianshou.data import Collector, VectorReplayBuffer

from unilab_gym.adapters.tianshou import TianshouVectorEnv


def make(rows, **kwargs):
    mode = {"backend": "mujoco", "autoreset_mode": "Disabled"}
    return TianshouVectorEnv(gym.make_vec(ID, num_envs=rows, **mode, **kwargs))


def test_ppo_learns(tmp_path):
    check_training(example("train_tianshou"), tmp_path, "tianshou", 7.0)


def test_rows_that_are_not_stepped_keep_their_state():
    env, twin = make(3), make(3)
    env.reset(seed=5), twin.reset(seed=5)
    push = np.ones((3, 1), np.float32)
    for _ in range(6):
        obs, _, _, _, infos = env.step(push[:2], np.array([2, 0]))
        assert [info["env_id"] for info in infos] == [2, 0]
    for _ in range(6):
        whole, *_ = twin.step(push)
    np.testing.assert_array_equal(obs, whole[[2, 0]])
    twin.reset(seed=5)
    np.testing.assert_array_equal(env.step(push[:1], 1)[0], twin.step(push)[0][[1]])
    env.close(), twin.close()


def test_an_ended_row_waits_while_others_go_on():
    env = make(2, max_episode_steps=3, play=True)
    env.reset(seed=1)
    for _ in range(2):
        env.step(np.zeros((2, 1)))
    ended, *_ = env.step(np.zeros((1, 1)), 0)
    _, _, terminated, truncated, _ = env.step(np.zeros((1, 1)), 1)
    assert truncated.tolist() == [True] and terminated.tolist() == [False]
    np.testing.assert_array_equal(env.env.get_observations()["policy"][0].numpy(), ended[0])
    assert env.env.runtime.pending.tolist() == [True, True]
    begins, infos = env.reset([1])
    assert begins.shape == (1, 4) and infos[0]["env_id"] == 1
    assert env.env.runtime.pending.tolist() == [True, False]
    env.step(np.zeros((1, 1)), [1])
    with pytest.raises(gym.error.ResetNeeded, match="0"):
        env.step(np.zeros((2, 1)))
    env.close()


@pytest.mark.parametrize("amount", [{"n_step": 40}, {"n_episode": 7}])
def test_collectors_get_the_true_transitions(amount):
    module = example("train_tianshou")
    env = make(4, max_episode_steps=5, play=True)
    policy = module.make_policy(env)
    buffer = VectorReplayBuffer(200, 4)
    collector = Collector(policy, env, buffer)
    collector.reset(gym_reset_kwargs={"seed": 3})
    stats = collector.collect(**amount)
    assert (stats.n_collected_steps, stats.n_collected_episodes) == (
        (40, 8) if "n_step" in amount else (35, 7)
    )
    assert stats.lens.tolist() == [5] * stats.n_collected_episodes
    batch = buffer[buffer.sample_indices(0)]
    assert batch.truncated.sum() == stats.n_collected_episodes and not batch.terminated.any()
    for row in range(4):
        mine = batch[batch.info.env_id == row]
        inner = ~mine.truncated[:-1]
        np.testing.assert_array_equal(mine.obs_next[:-1][inner], mine.obs[1:][inner])
        assert (mine.obs_next[:-1][~inner] != mine.obs[1:][~inner]).any(-1).all()
    collector.close()


def test_n07_two_thousand_steps_of_the_probe(tmp_path):
    """Episodes of five steps: the counter goes to 5, and a restart shows 0."""
    cfg = {"episode_length_s": 0.1}
    env = TianshouVectorEnv(make_probe(tmp_path, 2, changes=cfg, autoreset_mode="Disabled"))
    env.reset()
    for step in range(2000):
        obs, _, terminated, truncated, _ = env.step(np.full((2, 1), 0.1))
        assert obs.tolist() == [[step % 5 + 1]] * 2 and not terminated.any()
        if truncated.any():
            assert step % 5 == 4 and env.reset([0, 1])[0].tolist() == [[0.0]] * 2
    env.close()


def test_seeds_and_spaces_are_one_environments():
    env = make(2)
    assert env.seed(4) == [4, 5] and len(env) == 2
    obs, _ = env.reset(seed=[4, 5])
    env.seed(4)
    np.testing.assert_array_equal(env.env.get_observations()["policy"].numpy(), obs)
    assert env.action_space == [env.env.single_action_space] * 2
    env.close()


def test_other_modes_and_groups_are_refused():
    refuses(TianshouVectorEnv, "Disabled", autoreset_mode="SameStep")
    refuses(TianshouVectorEnv, "one group", autoreset_mode="Disabled", obs="dict")

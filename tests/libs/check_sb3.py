"""Stable-Baselines3 2: the adapter, PPO and SAC."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from common import ID, check_training, example, refuses
from helpers.face import make_probe
from helpers.toy import HORIZON, ROWS, STEPS, check_toy
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.vec_env import VecNormalize

from unilab_gym.adapters.sb3 import Sb3VecEnv
from unilab_gym.export.actors import sb3_actor


def test_ppo_learns(tmp_path):
    module = example("train_sb3")
    check_training(module, tmp_path, "stable-baselines3", 7.0, algorithm="ppo", timesteps=100_000)


def test_sac_learns(tmp_path):
    module = example("train_sb3")
    check_training(module, tmp_path, "stable-baselines3", 4.0, algorithm="sac")  # 7.6 to 9.4


@pytest.mark.parametrize("kind", [PPO, SAC])
def test_the_extracted_actor_acts_as_predict_does(kind):
    env = Sb3VecEnv(gym.make_vec(ID, num_envs=2, backend="mujoco"))
    model = kind("MlpPolicy", env, seed=2, device="cpu")
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    wanted, _ = model.predict(obs, deterministic=True)
    with torch.no_grad():
        given = sb3_actor(model)(torch.from_numpy(obs))
    np.testing.assert_allclose(given.clamp(-1, 1).numpy(), wanted, atol=1e-6)
    env.close()


def test_finished_rows_carry_what_sb3_reads():
    base = gym.make_vec(ID, num_envs=3, backend="mujoco", max_episode_steps=4, play=True)
    env = Sb3VecEnv(base)
    env.seed(7)
    obs = env.reset()
    assert obs.dtype == np.float32 and obs.shape == (3, 4)
    twin = gym.make_vec(
        ID, num_envs=3, backend="mujoco", max_episode_steps=4, play=True,
        autoreset_mode="Disabled",
    )  # fmt: skip
    twin.reset(seed=7)
    for step in range(4):
        obs, reward, done, infos = env.step(np.zeros((3, 1), np.float32))
        true_next, *_ = twin.step(torch.zeros(3, 1))
        assert reward.dtype == np.float32 and done.tolist() == [step == 3] * 3
        if step < 3:
            assert infos == [{}, {}, {}]
    for row, info in enumerate(infos):
        assert info["TimeLimit.truncated"] is True and info["episode"]["l"] == 4
        np.testing.assert_array_equal(info["terminal_observation"], true_next[row].numpy())
        assert not np.array_equal(info["terminal_observation"], obs[row])
    env.close()
    twin.close()


def test_n07_two_thousand_steps_of_the_probe(tmp_path):
    """Episodes of five steps: the counter, what they ended on, their lengths."""
    env = Sb3VecEnv(make_probe(tmp_path, 2, changes={"episode_length_s": 0.1}))
    assert env.reset().tolist() == [[0.0]] * 2
    for step in range(1, 2001):
        obs, reward, done, infos = env.step(np.full((2, 1), 0.1, np.float32))
        assert obs.tolist() == [[step % 5]] * 2 and done.tolist() == [step % 5 == 0] * 2
        assert np.isfinite(reward).all()
        if step % 5 == 0:
            assert [info["terminal_observation"].tolist() for info in infos] == [[5.0]] * 2
            assert [info["episode"]["l"] for info in infos] == [5, 5]
    env.close()


def test_n07_ppo_halves_the_cost_of_the_toy(tmp_path):
    def train(toy, rate):
        size = {"n_steps": HORIZON, "batch_size": HORIZON * ROWS // 4, "n_epochs": 5}
        env = Sb3VecEnv(toy.env)
        model = PPO("MlpPolicy", env, rate, gamma=0.9, seed=1, device="cpu", **size)
        assert model.policy.log_std.exp().item() == 1.0
        model.learn(STEPS * ROWS, log_interval=None)

    check_toy(train, tmp_path)


def test_sb3_wrappers_apply():
    env = VecNormalize(Sb3VecEnv(gym.make_vec(ID, num_envs=2, backend="mujoco")))
    env.reset()
    for _ in range(60):
        obs, _, _, _ = env.step(np.ones((2, 1), np.float32))
    assert np.isfinite(obs).all()
    env.close()


def test_other_modes_and_groups_are_refused():
    refuses(Sb3VecEnv, "SameStep", autoreset_mode="NextStep")
    refuses(Sb3VecEnv, "one group", obs="dict")

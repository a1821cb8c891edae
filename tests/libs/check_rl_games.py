"""RL-Games 1.6: the adapter and PPO."""

import gymnasium as gym
import torch
from common import ID, check_training, example, refuses

from unilab_gym.adapters.rl_games import RlGamesVecEnv, register


def test_ppo_learns(tmp_path):
    check_training(example("train_rl_games"), tmp_path, "rl_games", 7.0)


def test_time_limits_and_failures_reach_it():
    make = {"num_envs": 3, "backend": "mujoco", "max_episode_steps": 4, "play": True, "seed": 7}
    env, twin = RlGamesVecEnv(gym.make_vec(ID, **make)), gym.make_vec(ID, **make)
    assert torch.equal(env.reset(), twin.reset()[0])
    for step in range(4):
        obs, reward, done, infos = env.step(torch.zeros(3, 1))
        seen, earned, *_ = twin.step(torch.zeros(3, 1))
        assert torch.equal(obs, seen) and torch.equal(reward, earned)
        assert done.tolist() == infos["time_outs"].tolist() == [step == 3] * 3
    assert float(infos["episode/length"]) == 4.0
    env.env.close()
    twin.close()


def test_a_failure_is_no_time_limit():
    env = RlGamesVecEnv(gym.make_vec(ID, num_envs=2, backend="mujoco", seed=1))
    env.reset()
    for _ in range(200):
        _, _, done, infos = env.step(torch.full((2, 1), 10.0))
        if done.any():
            break
    assert done.any() and not infos["time_outs"].any()
    env.env.close()


def test_the_critic_group_becomes_states():
    task = "unilab_gym:UniLab/Go2JoystickFlat-v0"
    env = RlGamesVecEnv(gym.make_vec(task, num_envs=2, backend="mujoco", seed=1))
    info, seen = env.get_env_info(), env.reset()
    assert seen["obs"].shape[1:] == info["observation_space"].shape
    assert seen["states"].shape[1:] == info["state_space"].shape
    env.env.close()


def test_a_registered_name_builds_it():
    from rl_games.common import vecenv

    env = vecenv.create_vec_env(register(ID, "cart"), 5, backend="mujoco", seed=3)
    assert env.reset().shape == (5, 4)
    env.env.close()


def test_other_modes_and_groups_are_refused():
    refuses(RlGamesVecEnv, "SameStep", autoreset_mode="NextStep")
    refuses(RlGamesVecEnv, "one group", obs="dict")

"""TorchRL: the adapter and PPO."""

import gymnasium as gym
import torch
from common import ID, check_training, example, refuses
from torchrl.envs.utils import check_env_specs

from unilab_gym.adapters.torchrl import TorchRlEnv


def make(**kwargs):
    return TorchRlEnv(
        gym.make_vec(ID, num_envs=4, backend="mujoco", autoreset_mode="Disabled", **kwargs)
    )


def test_ppo_learns(tmp_path):
    check_training(example("train_torchrl"), tmp_path, "torchrl", 7.0, iterations=50)


def test_specs_hold():
    env = make()
    check_env_specs(env)
    env.close()


def test_the_next_observation_is_the_true_one_and_rows_restart():
    env = make(max_episode_steps=5, play=True)
    env.set_seed(3)
    steps = env.rollout(12, break_when_any_done=False, auto_reset=True)
    done = steps["next", "done"].squeeze(-1)
    assert done[:, 4].all() and done[:, 9].all()
    ended, begins = steps["next", "observation"][:, 4], steps["observation"][:, 5]
    assert not torch.equal(ended, begins)  # the next episode's start is not the terminal state
    running = ~done[:, :-1]
    follows = steps["next", "observation"][:, :-1] == steps["observation"][:, 1:]
    assert follows.all(-1)[running].all()
    env.close()


def test_other_modes_are_refused():
    refuses(TorchRlEnv, "Disabled", autoreset_mode="SameStep")

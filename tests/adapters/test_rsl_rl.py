"""The rsl_rl adapter: what goes in and comes out, and what it refuses."""

import dataclasses

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AutoresetMode
from helpers.face import make_probe
from helpers.toy import HORIZON, STEPS, check_toy

import unilab_gym
from unilab_gym.adapters.rsl_rl import RslRlVecEnv
from unilab_gym.adapters.rsl_rl_config import rsl_rl_config
from unilab_gym.adapters.rsl_rl_train import make_runner
from unilab_gym.errors import ConfigError
from unilab_gym.registration import owner_config

TASK = "UniLab/Go2JoystickFlat-v0"


@pytest.fixture
def env():
    made = gym.make_vec(
        f"unilab_gym:{TASK}", num_envs=3, backend="mujoco", seed=0, max_episode_steps=2
    )
    made.reset()
    yield made
    made.close()


def test_steps_give_every_group_and_time_outs(env):
    adapter = RslRlVecEnv(env)
    assert (adapter.num_envs, adapter.num_actions, adapter.max_episode_length) == (3, 12, 2)
    obs = adapter.get_observations()
    assert {name: tuple(obs[name].shape) for name in obs.keys()} == {  # noqa: SIM118  (TensorDict)
        "policy": (3, 49),
        "critic": (3, 60),
    }
    for expected in (False, True):
        obs, reward, done, extras = adapter.step(torch.zeros(3, 12))
        assert reward.shape == (3,)
        assert done.tolist() == [expected] * 3
        assert extras["time_outs"].tolist() == [expected] * 3
    assert float(extras["log"]["episode/length"]) == 2.0
    torch.testing.assert_close(obs["policy"], env.unwrapped.get_observations()["policy"])


def test_n07_two_thousand_steps_of_the_probe(tmp_path):
    """Episodes of five steps: the counter and their time-outs."""
    made = make_probe(tmp_path, 2, changes={"episode_length_s": 0.1})
    made.reset()
    adapter = RslRlVecEnv(made)
    for step in range(1, 2001):
        obs, reward, done, extras = adapter.step(torch.full((2, 1), 0.1))
        assert obs["policy"].tolist() == [[step % 5]] * 2 and reward.isfinite().all()
        assert done.tolist() == extras["time_outs"].tolist() == [step % 5 == 0] * 2
    made.close()


def test_n07_ppo_halves_the_cost_of_the_toy(tmp_path):
    owner = owner_config("UniLab/CartPole-v0", "mujoco")

    def train(toy, rate):
        hyper = {"num_steps_per_env": HORIZON, "init_std": 1.0, "learning_rate": rate}
        hyper |= {"gamma": 0.9, "entropy_coef": 0.0, "schedule": "fixed"}
        hyper |= {"num_learning_epochs": 4, "num_mini_batches": 2}
        algo = dataclasses.replace(owner.algo, hyper=hyper)
        toy.env.reset()
        runner = make_runner(RslRlVecEnv(toy.env), dataclasses.replace(owner, algo=algo))
        runner.learn(STEPS // HORIZON)

    check_toy(train, tmp_path)


def test_time_limits_can_be_bootstrapped_with_what_the_episode_ended_on():
    env = gym.make_vec(
        f"unilab_gym:{TASK}", num_envs=3, backend="mujoco", seed=0, max_episode_steps=2, obs="dict"
    )
    env.reset()
    plain, adapter = RslRlVecEnv(env), RslRlVecEnv(env)
    state = env.unwrapped.get_state()
    adapter.bootstrap_with(lambda groups: groups["critic"][:, :1] + 5.0, gamma=0.5)
    steps = {}
    for name, one in (("plain", plain), ("adapter", adapter)):
        env.reset(options={"state": state})
        one.step(torch.zeros(3, 12))
        steps[name] = one.step(torch.zeros(3, 12))
    env.reset(options={"state": state})
    env.step(torch.zeros(3, 12))
    *_, info = env.step(torch.zeros(3, 12))
    value = info["final_obs"]["critic"][:, 0] + 5.0
    assert not torch.equal(value, steps["adapter"][0]["critic"][:, 0] + 5.0)  # the new episode's
    torch.testing.assert_close(steps["adapter"][1], steps["plain"][1] + 0.5 * value)
    assert "time_outs" in steps["plain"][3] and "time_outs" not in steps["adapter"][3]
    env.close()


def test_bootstrapping_needs_every_group(env):
    with pytest.raises(ConfigError, match='obs="dict"'):
        RslRlVecEnv(env).bootstrap_with(lambda groups: groups["critic"], 0.99)


def test_staggered_starts_move_the_time_limit(env):
    adapter = RslRlVecEnv(env)
    adapter.episode_length_buf = torch.tensor([1, 0, 1])
    assert adapter.episode_length_buf.tolist() == [1, 0, 1]
    assert adapter.step(torch.zeros(3, 12))[2].tolist() == [True, False, True]


def test_another_mode_or_another_env_is_refused(env):
    env.unwrapped.metadata["autoreset_mode"] = AutoresetMode.NEXT_STEP
    with pytest.raises(ConfigError, match="SameStep"):
        RslRlVecEnv(env)
    with pytest.raises(ConfigError, match="UnilabVectorEnv, got SyncVectorEnv"):
        RslRlVecEnv(gym.make_vec("CartPole-v1", num_envs=1, vectorization_mode="sync"))


def test_a_group_of_frames_is_refused_by_name():
    cfg = owner_config("UniLab/CartPole-v0", "mujoco").env
    for flatten in (True, False):
        group = dataclasses.replace(cfg.observations["policy"], history=3, flatten=flatten)
        one = dataclasses.replace(cfg, observations={**cfg.observations, "policy": group})
        made = unilab_gym.make(one, 2, backend="mujoco")
        made.reset(seed=0)
        if flatten:
            assert RslRlVecEnv(made).get_observations()["policy"].shape == (2, 12)
        else:
            with pytest.raises(ConfigError, match=r"group 'policy' holds frames.*flatten=True"):
                RslRlVecEnv(made)
        made.close()


def test_config_is_read_whole():
    algo = owner_config(TASK, "mujoco").algo
    config = rsl_rl_config(algo, save_interval=7)
    assert config["actor"]["distribution_cfg"]["init_std"] == 1.0
    assert config["algorithm"]["desired_kl"] == 0.02
    assert config["obs_groups"] == {"actor": ["policy"], "critic": ["critic"]}
    assert config["save_interval"] == 7
    typo = dataclasses.replace(algo, hyper={**algo.hyper, "gama": 0.9})
    with pytest.raises(ConfigError, match="'gama'; did you mean 'gamma'"):
        rsl_rl_config(typo)

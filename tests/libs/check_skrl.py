"""skrl 2: the environment as it is, PPO and SAC."""

import gymnasium as gym
import pytest
import torch
from common import ID, check_training, example
from helpers.face import make_probe
from helpers.toy import STEPS, check_toy
from skrl.envs.wrappers.torch import wrap_env
from skrl.trainers.torch import SequentialTrainer


def test_ppo_learns(tmp_path):
    check_training(example("train_skrl"), tmp_path, "skrl", 7.0, algorithm="ppo", timesteps=1600)


def test_sac_learns(tmp_path):
    """From 0.6 to between 3.4 and 9.4 with one seed: last bits of matrix products vary."""
    check_training(example("train_skrl"), tmp_path, "skrl", 2.5, algorithm="sac")


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_n07_two_thousand_steps_of_the_probe(tmp_path):
    """Episodes of five steps: the counter and what they ended on."""
    env = wrap_env(make_probe(tmp_path, 2, changes={"episode_length_s": 0.1}), verbose=False)
    assert env.reset()[0].tolist() == [[0.0]] * 2
    for step in range(1, 2001):
        obs, reward, terminated, truncated, info = env.step(torch.full((2, 1), 0.1))
        assert obs.tolist() == [[step % 5]] * 2 and not terminated.any()
        assert truncated.tolist() == [[step % 5 == 0]] * 2 and reward.isfinite().all()
        assert info["final_obs"].tolist() == [[(step - 1) % 5 + 1]] * 2
    env.close()


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_n07_ppo_halves_the_cost_of_the_toy(tmp_path):
    module = example("train_skrl")

    def train(toy, rate):
        env = wrap_env(toy.env, verbose=False)
        agent = module.make_agent(module.Args(algorithm="ppo"), env)
        agent.policy.log_std.data.zero_()  # a standard deviation of 1
        agent.optimizer.param_groups[0]["lr"] = rate
        agent.cfg.discount_factor = 0.9
        cfg = {"timesteps": STEPS, "headless": True, "disable_progressbar": True}
        cfg["close_environment_at_exit"] = False
        SequentialTrainer(cfg=cfg, env=env, agents=agent).train()

    check_toy(train, tmp_path)


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_ppo_bootstraps_with_what_the_episode_ended_on():
    module = example("train_skrl")
    base = gym.make_vec(ID, num_envs=3, backend="mujoco", seed=1, max_episode_steps=4)
    env = wrap_env(base, verbose=False)
    agent = module.make_agent(module.Args(algorithm="ppo"), env)
    agent.init()
    agent.enable_training_mode(True)
    obs, _ = env.reset()
    rest = {"states": None, "next_states": None, "timesteps": 4}
    for t in range(4):
        with torch.no_grad():
            actions, _ = agent.act(obs, None, timestep=t, timesteps=4)
        following, reward, terminated, truncated, info = env.step(actions)
        plain = reward.clone()
        agent.record_transition(
            observations=obs, actions=actions, rewards=reward, next_observations=following,
            terminated=terminated, truncated=truncated, infos=info, timestep=t, **rest,
        )  # fmt: skip
        obs = following
    assert truncated.all()
    with torch.no_grad():
        value, begins = agent.value.net(info["final_obs"]), agent.value.net(following)
    assert not torch.allclose(value, begins)
    stored = agent.memory.get_tensor_by_name("rewards")[3]
    torch.testing.assert_close(stored, plain + 0.98 * value)
    base.close()

"""TorchRL: the adapter and PPO."""

import gymnasium as gym
import torch
from common import ID, check_training, example, refuses
from helpers.face import make_probe
from helpers.toy import HORIZON, ROWS, STEPS, check_toy
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


def test_n07_two_thousand_steps_of_the_probe(tmp_path):
    """Episodes of five steps: the counter goes to 5, and the next episode begins at 0."""
    cfg = {"episode_length_s": 0.1}
    env = TorchRlEnv(make_probe(tmp_path, 2, changes=cfg, autoreset_mode="Disabled"))
    steps = env.rollout(2000, break_when_any_done=False, auto_reset=True)
    counter = torch.arange(2000) % 5
    assert torch.equal(steps["observation"], counter[None, :, None].float().expand(2, -1, 1))
    assert torch.equal(steps["next", "observation"], steps["observation"] + 1)
    assert torch.equal(steps["next", "truncated"].squeeze(-1), (counter == 4).expand(2, -1))
    assert steps["next", "reward"].isfinite().all() and not steps["next", "terminated"].any()
    env.close()


def test_n07_ppo_halves_the_cost_of_the_toy(tmp_path):
    module = example("train_torchrl")
    args = module.Args(num_envs=ROWS, num_steps=HORIZON, iterations=STEPS // HORIZON)

    def train(toy, rate):
        env = TorchRlEnv(toy.env)
        net, actor = module.make_policy(env)
        net[-1].bias.data[1] += 0.74  # from a standard deviation of 0.6 to 1
        learner = module.Learner(env, actor, rate, gamma=0.9)
        for batch in module.make_collector(args, env, actor):
            if not learner.optimizer.state:
                assert 0.9 < float(batch["scale"].mean()) < 1.1
            learner.update(args, batch)

    check_toy(train, tmp_path, autoreset_mode="Disabled")


def test_other_modes_are_refused():
    refuses(TorchRlEnv, "Disabled", autoreset_mode="SameStep")

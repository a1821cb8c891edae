"""skrl 2: the environment as it is, PPO and SAC."""

from common import check_training, example


def test_ppo_learns(tmp_path):
    check_training(example("train_skrl"), tmp_path, "skrl", 7.0, algorithm="ppo", timesteps=1600)


def test_sac_learns(tmp_path):
    check_training(example("train_skrl"), tmp_path, "skrl", 4.0, algorithm="sac", timesteps=1500)

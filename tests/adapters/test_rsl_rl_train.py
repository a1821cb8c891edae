"""Training from the command line: what is left where it cannot begin."""

import pytest

from unilab_gym.errors import ConfigError

rsl_rl_train = pytest.importorskip("unilab_gym.adapters.rsl_rl_train")


def test_a_training_that_cannot_be_built_leaves_no_run_folder(tmp_path, monkeypatch, capsys):
    def fails(*args):
        assert len(list(tmp_path.glob("*/*/run_config.json"))) == 1
        raise ConfigError("does not build")

    monkeypatch.setattr(rsl_rl_train, "_make_env", fails)
    settings = rsl_rl_train.TrainSettings(
        task="UniLab/CartPole-v0", backend="mujoco", num_envs=2, iterations=1, run_root=tmp_path
    )
    with pytest.raises(ConfigError, match="does not build"):
        rsl_rl_train.train(settings)
    assert list(tmp_path.iterdir()) == []
    assert "run folder" not in capsys.readouterr().out

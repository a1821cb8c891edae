"""What every library's check needs. Run by `make libs`, each file in its library's venv."""

import importlib.util
import json
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from unilab_gym.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
ID = "unilab_gym:UniLab/CartPole-v0"


def example(name):
    """The module of an example script."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # tyro and dataclasses look annotations up there
    spec.loader.exec_module(module)
    return module


def check_training(module, tmp_path, library, at_least, **settings):
    """Trains; the mean return (ten at most) rises to `at_least`, and the run is complete."""
    folder, before, after = module.train(module.Args(run_root=tmp_path, **settings))
    assert before < 2.0 < at_least < after, (before, after)
    record = json.loads((folder / "run_config.json").read_text())
    assert record["config"]["algo"]["library"] == library
    summary = json.loads((folder / "run_summary.json").read_text())
    assert summary["metrics"]["mean_return"] == after and summary["totals"]["env_steps"] > 10_000
    assert (folder / "policy.onnx").stat().st_size > 1000


def refuses(adapter, match, **kwargs):
    """An adapter says which mode it needs."""
    env = gym.make_vec(ID, num_envs=2, backend="mujoco", **kwargs)
    try:
        with pytest.raises(ConfigError, match=match):
            adapter(env)
    finally:
        env.close()

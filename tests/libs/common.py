"""What every library's check needs. Run by `make libs`, each file in its library's venv."""

import importlib.util
import json
import os
import sys
import time
from importlib import metadata
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


def record(library, algorithm, **found):
    """Puts a finding into the file that `make test-libs` names."""
    if "LIBRARIES_JSON" not in os.environ:
        return
    path = Path(os.environ["LIBRARIES_JSON"])
    rows = json.loads(path.read_text()) if path.exists() else []
    rows = [row for row in rows if (row["library"], row["algorithm"]) != (library, algorithm)]
    names = (library.replace("_", "-"), "torch", "gymnasium", "mujoco")
    versions = {name: metadata.version(name) for name in names}
    rows.append({"library": library, "algorithm": algorithm, "versions": versions, **found})
    rows.sort(key=lambda row: (row["library"], row["algorithm"]))
    path.write_text(json.dumps(rows, indent=2) + "\n")


def check_training(module, tmp_path, library, at_least, **settings):
    """Trains; the mean return (ten at most) rises to `at_least`, and the run is complete."""
    algorithm = settings.get("algorithm", getattr(module, "ALGORITHM", "ppo"))
    args = module.Args(run_root=tmp_path, **settings)
    started = time.perf_counter()
    folder, before, after = module.train(args)
    summary = json.loads((folder / "run_summary.json").read_text())
    record(
        library,
        algorithm,
        task=args.task,
        return_before=round(before, 3),
        return_after=round(after, 3),
        steps=summary["totals"]["env_steps"],
        seconds=round(time.perf_counter() - started, 1),
        status="learns" if after > at_least else f"reaches {after:.2f}, wanted {at_least}",
    )
    assert before < 2.0 < at_least < after, (before, after)
    run = json.loads((folder / "run_config.json").read_text())
    assert run["config"]["algo"]["library"] == library
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

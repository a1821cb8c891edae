"""The script without a library learns CartPole and leaves a whole run."""

import importlib.util
import json
import sys

import pytest
from helpers.face import ROOT


@pytest.mark.slow
def test_it_learns_and_leaves_a_run(tmp_path, monkeypatch):
    name = "train_cleanrl"
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses looks annotations up there
    spec.loader.exec_module(module)
    folder, before, after = module.train(module.Args(run_root=tmp_path, iterations=30))
    assert before < 2.0 and after > 6.0, (before, after)  # ten at most
    record = json.loads((folder / "run_config.json").read_text())
    assert record["config"]["algo"]["library"] == "cleanrl"
    summary = json.loads((folder / "run_summary.json").read_text())
    assert summary["totals"] == summary["totals"] | {"env_steps": 30 * 64 * 32, "iterations": 30}
    assert summary["metrics"]["mean_return"] == after
    assert (folder / "policy.onnx").stat().st_size > 1000

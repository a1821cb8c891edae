"""The benchmarks run and say what they promise; their seconds are nobody's business here."""

import importlib
import json
import math
import os
import subprocess
import sys

import pytest
import torch
from helpers.face import ROOT

RUN = ROOT / "benchmarks" / "run.py"


def lines(*arguments):
    command = [sys.executable, str(RUN), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_facts(line, name):
    assert line["name"] == name and isinstance(line["case"], dict)
    assert {"python", "torch", "mujoco", "mujoco-warp", "unilab-gym"} <= line["versions"].keys()
    assert line["versions"]["unilab-gym"] and line["hardware"]["usable_cpus"] >= 1
    assert {"system", "cpu", "gpus", "cuda"} <= line["hardware"].keys()
    assert str(ROOT) not in json.dumps(line)


def test_step_overhead_prints_its_numbers():
    (line,) = lines("step_overhead", "--tiny")
    check_facts(line, "step_overhead")
    for key in ("outside_us", "engine_us", "bare_us", "bare_share"):
        assert math.isfinite(line[key]) and line[key] > 0
    assert 0 < line["operations"] <= 210
    assert line["torch_threads"] == 1 and line["bar_us"] is None
    assert line["passed"] is True and line["waits"] == 0 and line["moved"] == []


def smoke(tmp_path, source):
    """The smoke run of one made-up benchmark: its exit status and what it says."""
    import shutil

    folder = tmp_path / "benchmarks"
    folder.mkdir()
    shutil.copy(RUN, folder)
    (folder / "made_up.py").write_text(source)
    command = [sys.executable, str(folder / "run.py"), "smoke"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    return done.returncode, done.stderr


def test_smoke_fails_for_verdicts_and_missing_keys(tmp_path):
    """Seconds have no verdict there: None is not a failure."""
    good = '{"key": 1, "passed": True}', '{"key": 2, "passed": None}'
    bad = '{"key": 3, "passed": False}', '{"passed": True}'
    head = 'KEYS = {"key"}\nTINY = CASES = [{}]\ndef run():\n'
    for number, (given, told) in enumerate(
        ((good, []), (bad, ['made_up: {"key": 3, "passed": false}', "a line lacks ['key']"]))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        status, output = smoke(folder, head + "".join(f"    yield {line}\n" for line in given))
        assert status == bool(told)
        assert output.count("failed: ") == len(told)
        assert all(text in output for text in told)


@pytest.mark.slow
def test_gpu_acceptance_runs_without_a_gpu():
    pytest.importorskip("mujoco_warp")
    found = {line["check"]: line for line in lines("gpu_acceptance", "--device", "cpu", "--tiny")}
    names = ["build", "tests", "no_waiting", "speed", "parity", "overflow", "memory"]
    assert list(found) == names
    for line in found.values():
        check_facts(line, "gpu_acceptance")
        assert "error" not in line and line["passed"] is not False, line
    assert found["no_waiting"]["waits"] == 0 and found["no_waiting"]["ended"] > 0
    assert found["parity"]["rows"] == 4 and found["overflow"]["faults"] == {}


def parity_rows(count=2000, **beyond):
    """Rows that agree, but for `name=(rows, times the tolerance)`."""
    rows = {
        name: torch.zeros(count, dtype=torch.bool) for name in ("ended", "unconverged", "onset")
    }
    rows["apart"] = torch.tensor([1e-6, 1e-4]).repeat(count, 1)
    rows["configured"] = rows["apart"].clone()
    for name, (number, times) in beyond.items():
        rows["configured"][:number] *= 2 * times
        if name != "configured":
            rows["apart"][:number] *= 2 * times
        if name in ("ended", "unconverged", "onset"):
            rows[name][:number] = True
    return rows


@pytest.mark.parametrize(
    ("beyond", "passed"),
    [
        ({}, True),
        ({"unexplained": (2, 2.4)}, True),  # one in a thousand
        ({"unexplained": (3, 1.01)}, False),
        ({"unexplained": (1, 2.6)}, False),
        ({"unconverged": (1, 0.5)}, False),  # enough iterations are enough
        ({"configured": (19, 1e3)}, True),
        ({"configured": (21, 1e3)}, False),
        ({"onset": (9, 1e3)}, True),
        ({"onset": (11, 1e3)}, False),
        ({"ended": (500, 1e3)}, True),
    ],
)
def test_parity_judges_every_row_that_is_not_explained(monkeypatch, beyond, passed):
    monkeypatch.syspath_prepend(str(RUN.parent))
    verdict = importlib.import_module("parity").verdict(parity_rows(**beyond), 7)
    assert verdict["passed"] is passed
    ended = beyond.get("ended", (0,))[0]
    assert verdict["all_live_rows"]["rows"] == 2000 - ended
    apart = {"unexplained", "onset"} & set(beyond)
    assert verdict["all_live_rows"]["beyond"] == sum(beyond[name][0] for name in apart)


def test_a_short_soak_passes():
    (line,) = lines("soak", "--tiny", "--minutes", "0.05")
    check_facts(line, "soak")
    assert line["passed"] is True, line
    assert line["case"] == {"minutes": 0.05, "num_envs": 8} and line["steps"] >= 20
    assert line["injected"] >= 1 and sum(line["causes"].values()) == line["injected"]
    assert line["rows_wrong"] == line["steps_not_finite"] == 0
    assert 0 < line["rss_mb"][0] <= line["rss_mb"][2]


def test_an_unknown_benchmark_is_refused_with_the_names():
    done = subprocess.run([sys.executable, str(RUN), "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "gpu_acceptance" in done.stderr and "step_overhead" in done.stderr

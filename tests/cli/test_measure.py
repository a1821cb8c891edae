"""The commands that measure: size-buffers, bench, randomization."""

import json
import shutil

import pytest
from helpers.face import ROOT

from unilab_gym.backends import sizing
from unilab_gym.backends.capabilities import CAPABILITIES
from unilab_gym.cli import main, measure
from unilab_gym.mdp import randomization

TASK = "UniLab/CartPole-v0"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["size-buffers", "UniLab/CartPol-v0"], TASK),
        (["size-buffers", TASK, "--steps", "0"], "steps must be positive"),
        (["size-buffers", TASK, "--num-envs", "-1"], "num_envs must be positive"),
        (["size-buffers", TASK, "--backend", "mujocoo"], "mujoco"),
        (["size-buffers", TASK, "--task-args", "x=1"], "x"),
        (["bench", "step_overhed"], "'step_overhead'"),
    ],
)
def test_wrong_usage_is_two(cli, arguments, words):
    assert words in cli(*arguments, code=2).err


def test_size_buffers_says_what_the_function_measured(cli):
    options = ("UniLab/Go2JoystickFlat-v0", "--num-envs", 4, "--steps", 5, "--seed", 1)
    data = cli("size-buffers", *options, "--json").data
    sizes = sizing.size_buffers(options[0], num_envs=4, steps=5, seed=1)
    assert data["constraints"] == {
        "p50": sizes.constraints.p50,
        "p99_9": sizes.constraints.p99_9,
        "max": sizes.constraints.max,
    }
    assert (data["nconmax"], data["njmax"]) == (sizes.nconmax, sizes.njmax)
    assert data["task"] == options[0] and data["overflowed"] is False
    assert cli("size-buffers", *options).out == f"{sizes}\n"


def test_size_buffers_counts_its_steps():
    seen = []
    sizing.size_buffers(TASK, num_envs=2, steps=3, on_step=lambda: seen.append(1))
    assert len(seen) == 3


def test_randomization_is_the_documented_table(cli):
    page = (ROOT / "docs" / "randomization.md").read_text(encoding="utf-8")
    assert cli("randomization", "--markdown").out.strip() in page
    data = cli("randomization", "--json").data
    assert [item["term"] for item in data] == [event.__name__ for event in randomization.EVENTS]
    assert all(item["backends"].keys() == CAPABILITIES.keys() for item in data)
    text = cli("randomization").out
    mass = next(line for line in text.splitlines() if line.startswith("RandomizeBodyMass"))
    assert mass.split()[1:4] == ["startup,", "reset,", "interval"]
    assert mass.split()[-3:] == ["constants", "yes", "yes"]


# --- bench ----------------------------------------------------------------------------------------

TOY = """
CASES = [{"size": 9}]
TINY = [{"size": 1}]
KEYS = {"passed"}


def run(size, device="none"):
    yield {"size": size, "device": device, "passed": size == 1}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkout's benchmarks: the real runner and one that fails unless it is tiny."""
    place = tmp_path / "benchmarks"
    place.mkdir()
    shutil.copy(ROOT / "benchmarks" / "run.py", place)
    (place / "toy.py").write_text(TOY)
    monkeypatch.setattr(measure, "BENCHMARKS", place)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return place


def test_bench_runs_one_with_its_options(folder, capfd):
    assert main(["bench", "toy", "--tiny", "--device", "cpu", "--save"]) == 0
    (line,) = [json.loads(text) for text in capfd.readouterr().out.splitlines()]
    assert (line["name"], line["size"], line["device"]) == ("toy", 1, "cpu")
    assert json.loads((folder / "results" / "toy.json").read_text()) == [line]


def test_a_failed_line_is_one(folder, capfd):
    assert main(["bench", "toy"]) == 1
    assert "failed: toy: " in capfd.readouterr().err


def test_without_a_checkout_bench_says_so(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "BENCHMARKS", tmp_path / "benchmarks")
    said = cli("bench", "step_overhead", code=1)
    assert said.err.startswith("error: benchmarks belong to a checkout")
    assert "pip install -e ." in said.err


def test_the_benchmarks_of_this_checkout_are_found():
    assert measure.BENCHMARKS == ROOT / "benchmarks"

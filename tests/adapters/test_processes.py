"""Several processes: which one this is, and a training that two of them share."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
import torch

from unilab_gym.adapters.processes import Processes
from unilab_gym.contract import run_record
from unilab_gym.errors import ConfigError

HERE = Path(__file__).parent
NUM_ENVS, ITERATIONS = 4, 3
TWO = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_a_process_alone_is_the_first():
    assert Processes.from_environment({}) == Processes() == Processes(0, 1, 0, 1)
    assert Processes.from_environment({"WORLD_SIZE": "1", "RANK": "7"}).first


def test_what_torchrun_says_is_read():
    found = Processes.from_environment(TWO)
    assert found == Processes(rank=3, world_size=4, local_rank=1, local_world_size=2)
    assert not found.first


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"RANK": "4"}, "RANK must be below 4, got 4"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK must be below 2, got 2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be an integer of 0 or more, got 'two'"),
        ({"LOCAL_RANK": ""}, "LOCAL_RANK must be an integer"),
    ],
)
def test_what_cannot_be_is_refused(change, match):
    with pytest.raises(ConfigError, match=match):
        Processes.from_environment(TWO | change)


def test_each_process_takes_its_own_gpu():
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    several = Processes.from_environment(TWO)
    assert several.device(None, cuda) == several.device("cuda", cuda) == torch.device("cuda", 1)
    assert several.device(None, cpu) == cpu
    assert Processes().device("cuda:2", torch.device("cuda", 2)) == torch.device("cuda", 2)
    with pytest.raises(ConfigError, match="'cuda:0' names one GPU for 4 processes"):
        several.device("cuda:0", cuda)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """What both processes of a training began and ended with, and its folder."""
    folder = tmp_path_factory.mktemp("shared")
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = [str(HERE / "one_of_several.py"), str(folder), str(NUM_ENVS), str(ITERATIONS)]
    done = subprocess.run(
        [sys.executable, *launch, *program],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return [torch.load(folder / f"rank_{rank}.pt") for rank in (0, 1)], folder, done.stdout


@pytest.mark.slow
def test_two_processes_learn_one_policy(shared):
    (first, second), _, _ = shared
    assert not torch.equal(first["first_weights"], second["first_weights"])  # each drew its own
    assert first["weights"].keys() == second["weights"].keys() >= {"critic.mlp.0.weight"}
    for name, tensor in first["weights"].items():
        assert torch.equal(tensor, second["weights"][name]), name
    assert not torch.equal(first["weights"]["actor.mlp.0.weight"], first["first_weights"])
    assert first["learning_rate"] == second["learning_rate"]


@pytest.mark.slow
def test_environments_count_on_over_the_processes(shared):
    (first, second), _, _ = shared
    env = gymnasium.make_vec(
        "unilab_gym:UniLab/CartPole-v0", num_envs=2 * NUM_ENVS, backend="mujoco", seed=5
    )
    obs, _ = env.reset()
    env.close()
    assert torch.equal(obs, torch.cat((first["first_obs"], second["first_obs"])))
    assert len(obs.unique(dim=0)) == 2 * NUM_ENVS


@pytest.mark.slow
def test_the_first_process_writes_one_run(shared):
    (first, second), folder, output = shared
    (record,) = folder.glob("runs/*/*/run_config.json")
    run = record.parent
    assert [path.name for path in run.parent.iterdir()] == [run.name]
    assert first["run"] == str(run) and second["run"] is None
    assert len(list(run.glob("events*"))) == 1
    assert {path.name for path in run.glob("model_*.pt")} == {"model_0.pt", "model_2.pt"}
    assert (run / "policy.onnx").stat().st_size > 1000
    assert json.loads(record.read_text())["run"]["processes"] == {"world_size": 2}
    assert run_record(run)["training"]["num_envs"] == NUM_ENVS
    summary = json.loads((run / "run_summary.json").read_text())
    assert summary["totals"]["env_steps"] == 2 * NUM_ENVS * 32 * ITERATIONS
    assert output.count("run folder:") == output.count("verified policy:") == 1

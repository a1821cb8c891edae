import dataclasses
import json
import os

import pytest
import torch
from contract.owners import make_owner, write_robot

from unilab_gym.config import OwnerCfg, apply_overrides, from_dict
from unilab_gym.contract import (
    CrossBackendIncompatibleError,
    ExperimentTracker,
    RunFolderError,
    build_snapshot,
    check_replay,
    find_run,
    new_run_dir,
    unless_it_fails,
)
from unilab_gym.contract import tracker as tracker_module
from unilab_gym.contract.plain import restored
from unilab_gym.errors import ConfigError


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    return make_owner(write_robot(tmp_path_factory.mktemp("robot")))


def test_the_record_holds_facts_config_and_contract(tmp_path, owner):
    ExperimentTracker(tmp_path / "run", owner, device="cpu", facts={"note": "x"})
    record = json.loads((tmp_path / "run" / "run_config.json").read_text())
    assert list(record) == ["run", "config", "contract_snapshot"]
    run = record["run"]
    assert (run["task"], run["backend"], run["seeds"]) == (owner.task, "mujoco", {"training": 1})
    assert (run["device"], run["note"]) == ("cpu", "x")
    assert run["versions"]["mujoco"] and run["hardware"]["cpu_count"]
    assert {"git", "started"} <= set(run)
    assert from_dict(OwnerCfg, restored(record["config"])) == owner
    assert record["contract_snapshot"] == build_snapshot(owner)
    assert check_replay(tmp_path / "run", owner).ok


def test_only_rank_zero_writes_and_play_never(tmp_path, owner):
    play = apply_overrides(owner, {"training.play_only": True})
    for tracker in (ExperimentTracker(tmp_path, owner, 1), ExperimentTracker(tmp_path, play)):
        assert tracker.finish({}) is None
    assert list(tmp_path.iterdir()) == []


def test_the_summary_has_totals_and_a_tail(tmp_path, owner):
    tracker = ExperimentTracker(tmp_path, owner)
    for seconds in (9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5):
        tracker.iteration(env_steps=100, seconds=seconds)
    path = tracker.finish({"episode/return": 2.5})
    summary = json.loads(path.read_text())
    assert summary["tail_env_steps_per_sec"] == 200.0
    assert summary["env_steps_per_sec"] == pytest.approx(1000 / 17)
    assert summary["totals"] == {"env_steps": 1000, "seconds": 17.0, "iterations": 10}
    assert summary["metrics"] == {"episode/return": 2.5}
    assert {"hardware", "versions"} <= set(summary)


def test_a_run_without_iterations_has_no_throughput(tmp_path, owner):
    summary = ExperimentTracker(tmp_path, owner).summary({})
    assert summary["tail_env_steps_per_sec"] is None
    assert summary["totals"]["env_steps"] == 0


def test_metrics_are_plain_and_a_diverged_run_keeps_its_summary(tmp_path, owner):
    tracker = ExperimentTracker(tmp_path, owner)
    with pytest.raises(ConfigError, match=r"metrics\.loss: object"):
        tracker.finish({"loss": object()})
    assert not (tmp_path / "run_summary.json").exists()
    path = tracker.finish({"loss": float("nan"), "return": torch.tensor(2.5)})
    assert json.loads(path.read_text())["metrics"] == {"loss": None, "return": 2.5}


def test_an_unwritable_folder_fails_before_training(tmp_path, owner):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="run folder"):
        ExperimentTracker(tmp_path / "file" / "run", owner)
    with pytest.raises(RunFolderError, match="run folder"):
        new_run_dir(tmp_path / "file", owner.task, 1)


def test_resuming_keeps_the_first_facts(tmp_path, owner):
    ExperimentTracker(tmp_path, owner, facts={"note": "first"})
    ExperimentTracker(tmp_path, owner, facts={"note": "second"})
    run = json.loads((tmp_path / "run_config.json").read_text())["run"]
    assert (run["note"], run["resumed_from"]["note"]) == ("second", "first")


def test_resuming_under_another_contract_is_refused(tmp_path, owner):
    ExperimentTracker(tmp_path, owner)
    before = (tmp_path / "run_config.json").read_bytes()
    other = apply_overrides(owner, {"env.ctrl_dt": 0.01})
    with pytest.raises(CrossBackendIncompatibleError, match=r"env\.ctrl_dt"):
        ExperimentTracker(tmp_path, other)
    assert (tmp_path / "run_config.json").read_bytes() == before


def test_run_folders_are_never_shared(tmp_path):
    first = new_run_dir(tmp_path, "UniLab/Go2JoystickFlat-v0", 3)
    second = new_run_dir(tmp_path, "UniLab/Go2JoystickFlat-v0", 3)
    assert first != second
    assert first.parent == second.parent == tmp_path / "UniLab_Go2JoystickFlat-v0"
    assert first.name.endswith("_3")
    assert new_run_dir(tmp_path, "../x y", 1).parent.parent == tmp_path


def test_a_run_that_never_began_leaves_nothing(tmp_path, owner):
    folder = new_run_dir(tmp_path, "task", 1)
    with pytest.raises(KeyboardInterrupt), unless_it_fails(folder):
        ExperimentTracker(folder, owner)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_holds_something_stays(tmp_path, owner):
    other, folder = new_run_dir(tmp_path, "task", 1), new_run_dir(tmp_path, "task", 1)
    with pytest.raises(ConfigError), unless_it_fails(folder):
        (folder / "model_0.pt").touch()
        raise ConfigError("late")
    with unless_it_fails(other):
        pass
    with pytest.raises(ConfigError), unless_it_fails(None):
        raise ConfigError("no folder")
    assert sorted(tmp_path.glob("task/*")) == sorted([other, folder])


def make_run(root, task, name, when):
    folder = root / task / name
    folder.mkdir(parents=True)
    (folder / "run_config.json").write_text("{}")
    os.utime(folder / "run_config.json", (when, when))
    return folder


def test_latest_goes_by_date_and_task(tmp_path):
    old = make_run(tmp_path, "UniLab_A", "2030-01-01_00-00-00_1", 500)
    new = make_run(tmp_path, "UniLab_B", "2030-01-02_00-00-00_1", 400)
    (tmp_path / "UniLab_B" / "2030-01-03_00-00-00_1").mkdir()  # no record
    assert find_run("latest", tmp_path) == new
    assert find_run("latest", tmp_path, task="UniLab/A") == old
    newer = make_run(tmp_path, "UniLab_A", "2030-01-02_00-00-00_9", 450)
    assert find_run("latest", tmp_path) == newer, "the same second: the later file"


def test_a_run_is_found_by_path_name_or_checkpoint(tmp_path):
    run = make_run(tmp_path, "T", "2030-01-01_00-00-00_1", 1)
    (run / "model.pt").write_bytes(b"")
    assert find_run(run, tmp_path) == run
    assert find_run(run / "model.pt", tmp_path) == run
    assert find_run("T/2030-01-01_00-00-00_1", tmp_path) == run


def test_a_run_that_is_not_there_names_what_is(tmp_path):
    with pytest.raises(RunFolderError, match="no run of UniLab/A"):
        find_run("latest", tmp_path, task="UniLab/A")
    make_run(tmp_path, "T", "2030-01-01_00-00-00_1", 1)
    with pytest.raises(RunFolderError, match=r"T/2030-01-01_00-00-00_1"):
        find_run("other", tmp_path)
    (tmp_path / "bare").mkdir()
    with pytest.raises(RunFolderError, match="no run_config"):
        find_run("bare", tmp_path)


def test_git_state_is_none_outside_a_checkout(monkeypatch, tmp_path):
    state = tracker_module.git_state()
    assert state is None or set(state) == {"commit", "dirty"}
    monkeypatch.setattr(tracker_module, "__file__", str(tmp_path / "a" / "b.py"))
    assert tracker_module.git_state() is None


def test_the_owner_is_not_changed(tmp_path, owner):
    before = dataclasses.replace(owner)
    ExperimentTracker(tmp_path, owner).finish({})
    assert owner == before

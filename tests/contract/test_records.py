"""A record that contradicts itself, a file that is not the run's, a backend without an owner."""

import dataclasses
import json

import onnx
import pytest
from contract.owners import make_owner, write_robot
from onnx import TensorProto, helper

from unilab_gym.contract import (
    REASONS,
    CrossBackendIncompatibleError,
    CrossBackendWarning,
    ExperimentTracker,
    RunFolderError,
    check_replay,
    record_file,
    replay_owner,
    resolve_sim2sim_config,
)
from unilab_gym.contract import owner as owner_module
from unilab_gym.contract.snapshot import ONNX_KEY
from unilab_gym.errors import ConfigError
from unilab_gym.registration import Task


@pytest.fixture
def owner(tmp_path):
    return make_owner(write_robot(tmp_path))


@pytest.fixture
def run_dir(tmp_path, owner):
    ExperimentTracker(tmp_path / "run", owner)
    return tmp_path / "run"


def edit(run_dir, change):
    path = run_dir / "run_config.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    return record


def refused(source, owner, strict=True):
    with pytest.raises(CrossBackendIncompatibleError) as caught:
        check_replay(source, owner, strict)
    assert caught.value.reason in REASONS
    return caught.value


def policy_file(folder, contract, name="policy.onnx"):
    node = helper.make_node("Identity", ["obs"], ["actions"])
    shape = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "policy",
        [shape("obs", TensorProto.FLOAT, [1, 2])],
        [shape("actions", TensorProto.FLOAT, [1, 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    model.metadata_props.add(key=ONNX_KEY, value=json.dumps(contract))
    onnx.save(model, str(folder / name))
    return folder / name


# --- config beside snapshot -----------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("place", ["config", "snapshot"])
def test_config_and_snapshot_of_one_record_must_agree(run_dir, owner, strict, place):
    def change(record):
        term = record["config"]["env"]["observations"]["policy"]["terms"]["gyro"]
        if place == "snapshot":
            declared = record["contract_snapshot"]["declared"]
            term = declared["env.observations"]["policy"]["terms"]["gyro"]
        term["scale"] = 0.5

    edit(run_dir, change)
    error = refused(run_dir, owner, strict)
    assert error.reason == "inconsistent"
    assert "env.observations.policy.terms.gyro.scale" in str(error)
    assert "0.25" in str(error) and "0.5" in str(error)


def test_an_edited_world_is_noticed(run_dir, owner):
    def lighter(record):
        record["config"]["env"]["sim"]["gravity"] = [0.0, 0.0, -3.0]

    edit(run_dir, lighter)
    error = refused(run_dir, owner)
    assert error.reason == "inconsistent"
    assert "-9.81" in str(error) and "-3.0" in str(error)


def test_a_record_of_before_worlds_takes_its_configurations(run_dir, owner):
    def older(record, gravity=-9.81):
        record["contract_snapshot"]["resolved"].pop("world", None)
        record["config"]["env"]["sim"]["gravity"] = [0.0, 0.0, gravity]

    edit(run_dir, older)
    report = check_replay(run_dir, owner)
    assert (report.denied, report.warned, report.unchecked) == ((), (), ())
    edit(run_dir, lambda record: older(record, -3.0))
    (item,) = check_replay(run_dir, owner).warned
    assert (item.path, item.source[2]) == ("resolved.world.gravity", -3.0)


def test_swapped_terms_in_one_of_the_two_are_noticed(run_dir, owner):
    def change(record):
        group = record["config"]["env"]["observations"]["policy"]
        group["terms"] = dict(reversed(group["terms"].items()))

    edit(run_dir, change)
    assert refused(run_dir, owner).reason == "inconsistent"


def test_a_section_that_the_config_lacks_is_noticed(run_dir, owner):
    edit(run_dir, lambda record: record["config"]["env"].pop("actions"))
    error = refused(run_dir, owner)
    assert (error.reason, "config lacks it" in str(error)) == ("inconsistent", True)


def test_a_record_without_config_is_compared_by_its_snapshot(run_dir, owner):
    edit(run_dir, lambda record: record.pop("config"))
    assert check_replay(run_dir, owner).ok


# --- digests --------------------------------------------------------------------------------------


@pytest.fixture
def exported(run_dir, owner):
    record = json.loads((run_dir / "run_config.json").read_text())
    path = policy_file(run_dir, record["contract_snapshot"]["resolved"])
    record_file(path)
    return path


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("source", ["folder", "file", "record"])
def test_another_file_in_the_place_of_the_exported_one_is_refused(exported, owner, strict, source):
    place = {"folder": exported.parent, "file": exported}.get(
        source, exported.parent / "run_config.json"
    )
    assert check_replay(place, owner).ok
    model = onnx.load(str(exported))  # another policy with the same contract
    model.metadata_props.add(key="run_path", value="elsewhere")
    onnx.save(model, str(exported))
    error = refused(place, owner, strict)
    assert error.reason == "swapped_file"
    assert "policy.onnx" in str(error) and "sha256:" in str(error)


def test_what_has_no_digest_or_no_record_is_reported(exported, owner, tmp_path):
    (exported.parent / "other.onnx").write_bytes(exported.read_bytes())
    report = check_replay(exported.parent / "other.onnx", owner)
    assert any("holds no digest of it" in text for text in report.unchecked)
    (tmp_path / "alone").mkdir()
    alone = tmp_path / "alone" / "policy.onnx"
    alone.write_bytes(exported.read_bytes())
    assert any(text.endswith("no run record beside it") for text in
               check_replay(alone, owner).unchecked)  # fmt: skip
    with pytest.warns(CrossBackendWarning, match="no run record beside it"):
        resolve_sim2sim_config(alone, owner)


def test_a_missing_file_is_no_difference_and_a_resumed_run_keeps_its_digests(exported, owner):
    before = json.loads((exported.parent / "run_config.json").read_text())["run"]["files"]
    exported.unlink()
    assert check_replay(exported.parent, owner).ok
    ExperimentTracker(exported.parent, owner)
    after = json.loads((exported.parent / "run_config.json").read_text())["run"]
    assert after["files"] == before
    assert after["resumed_from"]["files"] == before


@pytest.mark.parametrize(
    "files", [[], "policy.onnx", {"policy.onnx": 5}, {"../policy.onnx": "sha256:0"}]
)
def test_damaged_digests_are_refused(exported, owner, files):
    edit(exported.parent, lambda record: record["run"].update(files=files))
    assert refused(exported, owner).reason == "bad_type"


def test_recording_needs_the_file_and_its_record(run_dir, tmp_path, owner):
    with pytest.raises(RunFolderError, match="there is no file"):
        record_file(run_dir / "policy.onnx")
    (tmp_path / "lonely.onnx").write_bytes(b"x")
    with pytest.raises(CrossBackendIncompatibleError) as caught:
        record_file(tmp_path / "lonely.onnx")
    assert caught.value.reason == "missing"


def test_a_process_that_does_not_write_records_no_file(exported, owner):
    before = (exported.parent / "run_config.json").read_text()
    ExperimentTracker(exported.parent, owner, rank=1).record_file(exported)
    assert (exported.parent / "run_config.json").read_text() == before


# --- siblings -------------------------------------------------------------------------------------


@pytest.fixture
def tasks(monkeypatch, owner):
    """A task with one owner, and one with none."""

    def load(task_id):
        backends = () if task_id == "Test/None-v0" else ("mujoco",)
        return Task(id=owner.task, backends=backends, owner=lambda name: owner)

    monkeypatch.setattr(owner_module, "load_task", load)
    monkeypatch.setattr(owner_module, "owner_config", lambda task, backend: owner)


def test_an_owner_that_exists_is_used(tasks, owner):
    target, notice = replay_owner(owner.task, "mujoco")
    assert notice == ""
    assert target.training.play_only and target.training.sim_backend == "mujoco"
    assert target.env is owner.env and not owner.training.play_only


def test_a_missing_one_is_lent_by_a_sibling_that_says_so(tasks, owner):
    target, notice = replay_owner(owner.task, "mjwarp", strict=False)
    assert target.training.sim_backend == "mjwarp" and not target.training.sim2sim_strict
    assert "no configuration for mjwarp" in notice and "that of mujoco" in notice


def test_without_any_owner_the_error_names_the_backends(tasks, owner):
    with pytest.raises(ConfigError, match="no backend 'mjwarp'; available: nothing"):
        replay_owner("Test/None-v0", "mjwarp")
    with pytest.raises(ConfigError, match="no backend 'brax'; available: mujoco"):
        replay_owner(owner.task, "brax")


def test_a_lent_owner_is_guarded_like_any_other(tasks, run_dir, owner):
    target, _ = replay_owner(owner.task, "mjwarp")
    assert resolve_sim2sim_config(run_dir, target) is target
    env = dataclasses.replace(target.env, clip_actions=False)
    with pytest.raises(CrossBackendIncompatibleError, match=r"actions\.clipped"):
        resolve_sim2sim_config(run_dir, dataclasses.replace(target, env=env))


def test_training_never_takes_a_siblings_configuration(monkeypatch):
    from unilab_gym import registration

    task = registration.load_task("UniLab/CartPole-v0")
    lone = dataclasses.replace(task, backends=("mujoco",))
    monkeypatch.setattr(registration, "load_task", lambda name: lone)
    with pytest.raises(ConfigError, match="no backend 'mjwarp'; available: mujoco"):
        registration.owner_config(task.id, "mjwarp")

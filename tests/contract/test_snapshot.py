"""Writer and reader of the contract snapshot."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import onnx
import pytest
from contract.owners import changed, config, make_owner, without, write_robot

from unilab_gym.config import OwnerCfg, from_dict, to_dict
from unilab_gym.contract import (
    REASONS,
    CrossBackendIncompatibleError,
    RunFolderError,
    build_snapshot,
    check_replay,
    resolve,
    resolve_sim2sim_config,
)
from unilab_gym.contract import plain as plain_module
from unilab_gym.contract.plain import plain, read_json, restored, write_json
from unilab_gym.contract.snapshot import declared_of
from unilab_gym.contract.tiers import sections
from unilab_gym.errors import ConfigError


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    return make_owner(write_robot(tmp_path_factory.mktemp("robot")))


@pytest.fixture(scope="module")
def snapshot(owner):
    return build_snapshot(owner)


@pytest.fixture
def run_dir(tmp_path, owner, snapshot):
    folder = tmp_path / "run"
    folder.mkdir()
    record = {"run": {}, "config": to_dict(owner), "contract_snapshot": snapshot}
    write_json(folder / "run_config.json", record)
    return folder


# --- writer -------------------------------------------------------------------------------------


def test_every_present_path_is_recorded():
    declared = declared_of(config())
    assert set(declared) == set(sections())
    assert declared["env.observations"] == config()["env"]["observations"]
    assert declared["env.control_config.action_scale"] == 0.25


@pytest.mark.parametrize("path", ["env.ctrl_dt", "algo.actor.hidden_dims", "env.commands"])
def test_absent_stays_absent_and_none_is_a_value(path):
    assert path not in declared_of(without(path))
    assert declared_of(changed(path, None))[path] is None


def test_snapshot_is_strict_json(snapshot):
    text = json.dumps(snapshot, allow_nan=False)
    assert json.loads(text) == snapshot
    terms = snapshot["declared"]["env.observations"]["policy"]["terms"]
    assert terms["joint_pos"]["clip"] == [-5.0, "inf"]
    assert snapshot["declared"]["env.scene.robot"] == "biped.xml"


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {"b": object()}]}, r"^a\[1\]\.b: object"),
        ({"a": {"b": {1, 2}}}, r"^a\.b: set"),
        ({"a": float("nan")}, r"^a: NaN"),
        ({"a": {3: 4}}, r"^a: key 3"),
        ({"a": lambda: 0}, r"^a: "),
        ({"a": b"bytes"}, r"^a: bytes"),
    ],
)
def test_a_value_without_plain_form_names_its_path(tmp_path, value, where):
    with pytest.raises(ConfigError, match=where):
        plain(value)
    with pytest.raises(ConfigError, match=where):
        write_json(tmp_path / "x.json", value)
    assert list(tmp_path.iterdir()) == []


def test_an_owner_with_such_a_value_names_its_path(owner):
    terms = owner.env.rewards["alive"]
    bad = dataclasses.replace(terms, params={"x": object()})
    env = dataclasses.replace(owner.env, rewards={"alive": bad})
    with pytest.raises(ConfigError, match=r"env\.rewards\.alive\.params\.x"):
        build_snapshot(dataclasses.replace(owner, env=env))


def test_infinite_bounds_round_trip_to_the_same_owner(owner):
    record = json.loads(json.dumps(plain(owner), allow_nan=False))
    assert from_dict(OwnerCfg, restored(record)) == owner


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "run_config.json"
    write_json(path, {"a": 1})

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(plain_module.os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["run_config.json"]
    assert read_json(path) == {"a": 1}


def test_an_unwritable_folder_is_a_clear_error(tmp_path):
    with pytest.raises(RunFolderError, match="cannot write"):
        write_json(tmp_path / "absent" / "x.json", {})


# --- reader: damaged files ------------------------------------------------------------------------

VALID = '{"contract_snapshot": {}}'
FILES = {
    "empty": (b"", "empty"),
    "blank": (b" \n", "empty"),
    "truncated": (b'{"contract_snapshot": {"schema"', "invalid_json"),
    "trailing": (b"{} {}", "invalid_json"),
    "deep": (b"[" * 100_000, "invalid_json"),
    "bom": (b"\xef\xbb\xbf" + VALID.encode(), "encoding"),
    "utf16": (VALID.encode("utf-16"), "encoding"),
    "latin1": ('{"contract_snapshot": "é"}'.encode("latin-1"), "encoding"),
    "duplicate": (b'{"contract_snapshot": {"a": 1, "a": 1}}', "duplicate_key"),
    "nan": (b'{"contract_snapshot": NaN}', "not_finite"),
    "infinity": (b'{"contract_snapshot": [-Infinity]}', "not_finite"),
    "overflow": (b'{"contract_snapshot": 1e999}', "not_finite"),
    "list": (b"[]", "not_a_mapping"),
    "number": (b"3", "not_a_mapping"),
    "text": (b'"contract_snapshot"', "not_a_mapping"),
    "no snapshot": (b'{"run": {}, "config": {}}', "no_snapshot"),
    "null": (b'{"contract_snapshot": null}', "bad_type"),
    "list snapshot": (b'{"contract_snapshot": []}', "bad_type"),
    "text snapshot": (b'{"contract_snapshot": "x"}', "bad_type"),
    "empty snapshot": (b'{"contract_snapshot": {}}', "bad_type"),
}


def refused(source, target, *, strict=True):
    with pytest.raises(CrossBackendIncompatibleError) as caught:
        resolve_sim2sim_config(source, target, strict=strict)
    assert caught.value.reason in REASONS
    assert "What to do:" in str(caught.value)
    return caught.value


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("case", FILES)
def test_a_damaged_file_is_refused_whatever_strict_says(tmp_path, owner, case, strict):
    content, reason = FILES[case]
    path = tmp_path / "run_config.json"
    path.write_bytes(content)
    for source in (tmp_path, path, str(path)):
        assert refused(source, owner, strict=strict).reason == reason
    assert path.read_bytes() == content


def test_missing_folder_and_unreadable_are_told_apart(tmp_path, owner, monkeypatch):
    assert refused(tmp_path, owner).reason == "missing"
    assert refused(tmp_path / "nowhere", owner).reason == "missing"
    (tmp_path / "run_config.json").mkdir()
    assert refused(tmp_path, owner).reason == "not_a_file"

    def denied(_):
        raise PermissionError("no")

    other = tmp_path / "other"
    other.mkdir()
    (other / "run_config.json").write_text(VALID)
    monkeypatch.setattr(Path, "read_bytes", denied)
    assert refused(other, owner).reason == "unreadable"


# --- reader: wrong content beside valid keys -----------------------------------------------------


def _set(path, value):
    def edit(record):
        node = record
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = value

    return edit


SNAPSHOT = ("contract_snapshot",)
DECLARED = ("contract_snapshot", "declared")
RESOLVED = ("contract_snapshot", "resolved")
EDITS = {
    "schema newer": (_set((*SNAPSHOT, "schema"), "unilab_gym.contract/2"), "unknown_schema"),
    "schema other": (_set((*SNAPSHOT, "schema"), "other/1"), "unknown_schema"),
    "schema null": (_set((*SNAPSHOT, "schema"), None), "unknown_schema"),
    "schema number": (_set((*SNAPSHOT, "schema"), 1), "unknown_schema"),
    "schema absent": (lambda r: r["contract_snapshot"].pop("schema"), "unknown_schema"),
    "resolved newer": (_set((*RESOLVED, "schema"), "unilab_gym.contract/2"), "unknown_schema"),
    "resolved schema absent": (
        lambda r: r["contract_snapshot"]["resolved"].pop("schema"),
        "unknown_schema",
    ),
    "declared absent": (lambda r: r["contract_snapshot"].pop("declared"), "bad_type"),
    "declared null": (_set(DECLARED, None), "bad_type"),
    "declared list": (_set(DECLARED, []), "bad_type"),
    "declared empty": (_set(DECLARED, {}), "bad_type"),
    "resolved absent": (lambda r: r["contract_snapshot"].pop("resolved"), "bad_type"),
    "resolved null": (_set(RESOLVED, None), "bad_type"),
    "resolved text": (_set(RESOLVED, "x"), "bad_type"),
    "resolved empty": (_set(RESOLVED, {}), "bad_type"),
    "joints list": (_set((*RESOLVED, "joints"), []), "bad_type"),
    "joints null": (_set((*RESOLVED, "joints"), None), "bad_type"),
    "control_dt text": (_set((*RESOLVED, "control_dt"), "0.02"), "bad_type"),
    "control_dt bool": (_set((*RESOLVED, "control_dt"), True), "bad_type"),
    "extra key": (_set((*SNAPSHOT, "extra"), 1), "unknown_key"),
    "extra path": (_set((*DECLARED, "env.gravity"), 1), "unknown_key"),
    "extra contract key": (_set((*RESOLVED, "extra"), 1), "unknown_key"),
    "retired 1": (_set((*DECLARED, "env.sampling_mode"), "uniform"), "retired_key"),
    "retired 2": (_set((*DECLARED, "algo.policy.actor_hidden_dims"), [1]), "retired_key"),
    "retired 3": (_set((*DECLARED, "algo.policy.critic_hidden_dims"), [1]), "retired_key"),
    "retired 4": (_set((*DECLARED, "algo.empirical_normalization"), True), "retired_key"),
    "retired in config": (
        _set(("config", "algo", "empirical_normalization"), True),
        "retired_key",
    ),
    "config list": (_set(("config",), []), "bad_type"),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("case", EDITS)
def test_a_record_outside_the_schema_is_refused(run_dir, owner, case, strict):
    edit, reason = EDITS[case]
    path = run_dir / "run_config.json"
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))
    assert refused(run_dir, owner, strict=strict).reason == reason


def test_every_section_missing_on_either_side_is_a_difference(owner, snapshot):
    for path in snapshot["declared"]:
        fewer = json.loads(json.dumps(snapshot))
        del fewer["declared"][path]
        for sides in ((fewer, snapshot), (snapshot, fewer)):
            report = check_replay(*sides)
            assert [item.path for item in report.denied + report.warned] == [path]
            assert report.ok == (path in ("env.sim_dt", "env.rewards"))


# --- where a source may lie --------------------------------------------------------------------


def test_run_folder_record_and_checkpoint_are_one_source(run_dir, owner):
    checkpoint = run_dir / "checkpoints" / "model_10.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"weights")
    for source in (run_dir, str(run_dir), run_dir / "run_config.json", checkpoint):
        assert resolve_sim2sim_config(source, owner) is owner


def test_a_checkpoint_outside_a_run_is_refused(tmp_path, owner):
    checkpoint = tmp_path / "a" / "b" / "c" / "d" / "model.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"weights")
    assert refused(checkpoint, owner).reason == "missing"
    assert refused(tmp_path / "absent.pt", owner).reason == "missing"


def test_a_read_only_run_folder_is_enough(run_dir, owner):
    before = sorted((p.name, p.read_bytes()) for p in run_dir.iterdir())
    for path in (run_dir / "run_config.json", run_dir):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        assert resolve_sim2sim_config(run_dir, owner) is owner
    finally:
        run_dir.chmod(0o755)
    assert sorted((p.name, p.read_bytes()) for p in run_dir.iterdir()) == before


def onnx_file(path, metadata):
    tensor = onnx.helper.make_tensor_value_info("obs", onnx.TensorProto.FLOAT, [1, 2])
    out = onnx.helper.make_tensor_value_info("actions", onnx.TensorProto.FLOAT, [1, 2])
    node = onnx.helper.make_node("Identity", ["obs"], ["actions"])
    graph = onnx.helper.make_graph([node], "policy", [tensor], [out])
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.helper.set_model_props(model, metadata)
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("reader", ["onnx", "onnxruntime"])
def test_an_onnx_file_is_compared_without_the_network(tmp_path, owner, reader, monkeypatch):
    contract = json.dumps(resolve(owner))
    path = onnx_file(tmp_path / "policy.onnx", {"unilab_gym": contract, "joint_names": "a,b"})
    if reader == "onnxruntime":
        monkeypatch.setitem(sys.modules, "onnx", None)
    network = dataclasses.replace(owner.algo.actor, hidden_dims=(8,))
    target = dataclasses.replace(owner, algo=dataclasses.replace(owner.algo, actor=network))
    report = check_replay(path, target)
    assert report.ok and not report.warned
    assert "algo" in report.unchecked[0]
    slower = dataclasses.replace(owner, env=dataclasses.replace(owner.env, ctrl_dt=0.04))
    found = {item.path for item in check_replay(path, slower).denied}
    assert found == {"resolved.control_dt"}


def test_an_onnx_file_may_hold_a_whole_snapshot(tmp_path, owner, snapshot):
    contract = json.dumps(snapshot)
    path = onnx_file(tmp_path / "policy.onnx", {"unilab_gym": contract})
    slower = dataclasses.replace(owner, env=dataclasses.replace(owner.env, ctrl_dt=0.04))
    assert [item.path for item in check_replay(path, slower).denied] == ["env.ctrl_dt"]


def test_damaged_onnx_files(tmp_path, owner):
    absent = tmp_path / "absent.onnx"
    assert refused(absent, owner).reason == "missing"
    bare = onnx_file(tmp_path / "bare.onnx", {})
    assert refused(bare, owner).reason == "no_snapshot"
    cut = onnx_file(tmp_path / "cut.onnx", {"unilab_gym": '{"schema": '})
    assert refused(cut, owner).reason == "invalid_json"
    other = onnx_file(tmp_path / "other.onnx", {"unilab_gym": '{"joint_names": []}'})
    assert refused(other, owner).reason == "unknown_schema"
    noise = tmp_path / "noise.onnx"
    noise.write_bytes(os.urandom(64))
    assert refused(noise, owner).reason == "unreadable"


@pytest.mark.parametrize("mapping", [{}, {"training": {}}])
def test_a_mapping_without_configuration_is_refused(owner, mapping):
    assert refused(mapping, owner).reason == "no_snapshot"

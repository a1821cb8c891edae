"""The contract snapshot of a run: what is recorded at training and checked before a replay.

    {"schema": ..., "declared": {dotted path: value}, "resolved": {...}}

`declared` holds the configuration paths of `tiers.sections()` that the owner has, `resolved` is the
contract of `resolve`. A run record (`run_config.json`) holds `run`, `config` and
`contract_snapshot`; an ONNX file holds the resolved contract under the metadata key `unilab_gym`.
Reading fails closed: whatever is not plainly a snapshot of this version is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, cast

from unilab_gym.config import OwnerCfg, from_dict
from unilab_gym.contract.compare import differences, equal
from unilab_gym.contract.plain import (
    file_digest,
    parse_json,
    plain,
    read_json,
    refuse,
    restored,
)
from unilab_gym.contract.resolve import CONTRACT_KEYS, SCHEMA, resolve, world_of
from unilab_gym.contract.tiers import RETIRED, sections
from unilab_gym.errors import ConfigError

RUN_CONFIG = "run_config.json"
ONNX_KEY = "unilab_gym"

NO_RECORD = "no run record beside it"
NO_DIGEST = "the run record holds no digest of it"

_PARENTS = 3
"""How far above a checkpoint its run record may lie."""


@dataclass(frozen=True)
class Snapshot:
    """One side of a comparison."""

    where: str
    """What it was made from, for messages."""
    declared: Mapping[str, Any] | None
    """Configuration path -> value; None where only the resolved contract is known."""
    resolved: Mapping[str, Any] | None
    """The resolved contract; None where the configuration cannot be built."""
    frozen_algo: bool = False
    """Whether the learner's part is fixed in a file (ONNX) and not to be compared."""
    play_only: bool = False
    """Whether nothing is trained under it."""
    notes: tuple[str, ...] = ()
    """What could not be checked of its file."""


def command_ranges(
    declared: Mapping[str, Any] | None, resolved: Mapping[str, Any] | None
) -> dict[str, dict[str, tuple[float, float]]]:
    """What training draws commands from: generator -> component -> lowest and highest value.

    They are parameters of the configuration that bear a component's name; a curriculum may have
    moved them. The resolved contract leaves them out, since no input changes its meaning with
    them: without the declared layer (an ONNX file alone) the result is empty.

    Args:
        declared: A snapshot's declared layer.
        resolved: Its resolved contract.
    """
    configured = cast("Mapping[str, Any]", (declared or {}).get("env.commands") or {})
    known = cast("Mapping[str, Any]", (resolved or {}).get("commands") or {})
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name, command in known.items():
        given = cast("Any", configured.get(name) or {})
        params = cast("Mapping[str, Any]", given.get("params") or {})
        parts = cast("Sequence[str]", command.get("components", ()))
        found[name] = {part: _pair(params[part]) for part in parts if _is_pair(params.get(part))}
    return {name: ranges for name, ranges in found.items() if ranges}


def _is_pair(value: Any) -> bool:
    pair = list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else []
    return len(pair) == 2 and all(isinstance(bound, (int, float)) for bound in pair)


def _pair(value: Any) -> tuple[float, float]:
    return float(value[0]), float(value[1])


def build_snapshot(owner_cfg: OwnerCfg) -> dict[str, Any]:
    """The snapshot of an owner configuration.

    Raises:
        ConfigError: If a value has no strict JSON form (with its path) or the scene does not build.
    """
    return {
        "schema": SCHEMA,
        "declared": declared_of(plain(owner_cfg)),
        "resolved": resolve(owner_cfg),
    }


def declared_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded paths that a plain configuration has; None is a value, absent stays absent."""
    declared: dict[str, Any] = {}
    for path in sections():
        found, value = _lookup(config, path)
        if found:
            declared[path] = _robot_name(value) if path == "env.scene.robot" else value
    return declared


def _robot_name(value: Any) -> Any:
    """The file's name: where it lies on this machine is no part of a contract."""
    return PurePath(value.replace("\\", "/")).name if isinstance(value, str) else value


def _lookup(config: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    node: Any = config
    for part in path.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False, None
        node = cast("Mapping[str, Any]", node)[part]
    return True, node


# --- reading --------------------------------------------------------------------------------------


def run_config_path(source: str | Path) -> Path:
    """The run record of a run folder, of itself, or of a checkpoint inside a run folder.

    Raises:
        CrossBackendIncompatibleError: If there is none (reason "missing").
    """
    path = Path(source).expanduser()
    if path.name == RUN_CONFIG:
        return path
    if path.is_dir():
        return path / RUN_CONFIG
    if not path.exists():
        refuse("missing", f"there is no {path}")
    if path.suffix == ".json":
        return path
    for folder in path.resolve().parents[:_PARENTS]:
        if (folder / RUN_CONFIG).exists():
            return folder / RUN_CONFIG
    refuse("missing", f"{path} lies in no run folder: no {RUN_CONFIG} beside or above it")


def load_source(source: str | Path | Mapping[str, Any]) -> Snapshot:
    """The trained side, from a run folder, run record, checkpoint, ONNX file or mapping.

    Raises:
        CrossBackendIncompatibleError: On anything that is not plainly a snapshot.
    """
    if isinstance(source, Mapping):
        where = "the source configuration"
        try:
            return from_mapping(source, where)
        except ConfigError as error:
            refuse("bad_type", f"{where} has no strict JSON form: {error}")
    path = Path(source).expanduser()
    if path.suffix.lower() == ".onnx":
        document = parse_json(_onnx_document(path), f"the metadata of {path}")
        side = from_mapping(document, str(path), must_be_recorded=True)
        side = dataclasses.replace(side, frozen_algo=True, notes=_onnx_notes(path))
        if side.notes:
            return side
        return _with_world(side, read_json(path.parent / RUN_CONFIG).get("config"))
    record = run_config_path(path)
    data = read_json(record)
    if "contract_snapshot" not in data:
        refuse("no_snapshot", f"{record} holds no contract_snapshot")
    side = from_mapping(data, str(record))
    for name in recorded_files(data, record):
        if (record.parent / name).is_file():
            _same_file(record.parent / name, data, record)
    return side


def recorded_files(data: Mapping[str, Any], where: Path) -> dict[str, str]:
    """File name -> digest, as a run record has them under `run.files`.

    Raises:
        CrossBackendIncompatibleError: If they are not names and digests.
    """
    run = data.get("run")
    files: Any = cast("dict[str, Any]", run).get("files", {}) if isinstance(run, dict) else {}
    if not isinstance(files, dict):
        refuse("bad_type", f"{where}: run.files is {type(files).__name__}, not an object")
    for name, digest in cast("dict[str, Any]", files).items():
        if not isinstance(digest, str) or PurePath(name).name != name:
            refuse("bad_type", f"{where}: run.files[{name!r}] is {digest!r}, not a file's digest")
    return cast("dict[str, str]", files)


def _onnx_notes(path: Path) -> tuple[str, ...]:
    """Compares an ONNX file with the run record beside it; what could not be compared."""
    record = path.parent / RUN_CONFIG
    if not record.is_file():
        return (f"{path}: {NO_RECORD}",)
    return _same_file(path, read_json(record), record)


def _same_file(path: Path, data: Mapping[str, Any], record: Path) -> tuple[str, ...]:
    recorded = recorded_files(data, record).get(path.name)
    if recorded is None:
        return (f"{path}: {NO_DIGEST}",)
    found = file_digest(path)
    if found != recorded:
        refuse(
            "swapped_file",
            f"{path} is not the file of this run: {record} says {recorded}, it has {found}",
        )
    return ()


def load_target(target: OwnerCfg | Mapping[str, Any]) -> Snapshot:
    """The side to run on, from an owner configuration or a mapping.

    Raises:
        CrossBackendIncompatibleError: If it cannot be built (reason "invalid_target").
    """
    where = "the target configuration"
    try:
        if isinstance(target, OwnerCfg):
            snapshot = build_snapshot(target)
            play = target.training.play_only
            return Snapshot(where, snapshot["declared"], snapshot["resolved"], play_only=play)
        return from_mapping(target, where)
    except ConfigError as error:
        refuse("invalid_target", f"{where} does not build: {error}")


def from_mapping(
    data: Mapping[str, Any], where: str, *, must_be_recorded: bool = False
) -> Snapshot:
    """A side from a run record, a snapshot, a resolved contract, or a plain configuration.

    Args:
        data: The mapping; it is not changed.
        where: What it is, for messages.
        must_be_recorded: Refuse a plain configuration.

    Raises:
        CrossBackendIncompatibleError: On an integrity problem.
        ConfigError: If a value has no strict JSON form.
    """
    data = plain(data)
    if "contract_snapshot" in data:
        config = data.get("config")
        if config is not None and not isinstance(config, dict):
            refuse("bad_type", f"{where}: config is {type(config).__name__}, not an object")
        config = cast("dict[str, Any]", config or {})
        _no_retired(config, where)
        side = _checked_snapshot(data["contract_snapshot"], where)
        if config:
            _consistent(config, side, where)
        return _with_world(side, config)
    if "declared" in data:
        return _checked_snapshot(data, where)
    if "schema" in data or must_be_recorded:
        return Snapshot(where, None, _checked_contract(data, where))
    return _from_config(data, where)


def _from_config(config: Mapping[str, Any], where: str) -> Snapshot:
    """A plain configuration; its contract is known only where an owner can be built from it."""
    _no_retired(config, where)
    declared = declared_of(config)
    if not declared:
        refuse("no_snapshot", f"{where} holds no configuration that a contract could be read from")
    try:
        resolved = resolve(from_dict(OwnerCfg, restored(config)))
    except ConfigError:
        resolved = None
    play = _lookup(config, "training.play_only")[1] is True
    return Snapshot(where, declared, resolved, play_only=play)


def _checked_snapshot(data: Any, where: str) -> Snapshot:
    snapshot = _mapping(data, f"{where}: contract_snapshot")
    _known_schema(snapshot, f"{where}: contract_snapshot")
    for key in snapshot:
        if key not in ("schema", "declared", "resolved"):
            refuse("unknown_key", f"{where}: contract_snapshot.{key} is outside the schema")
    declared = _mapping(snapshot.get("declared"), f"{where}: contract_snapshot.declared")
    _no_retired(declared, where)
    for path in declared:
        if path not in sections():
            refuse("unknown_key", f"{where}: declared path {path!r} is outside the schema")
    return Snapshot(where, declared, _checked_contract(snapshot.get("resolved"), where))


def _consistent(config: Mapping[str, Any], side: Snapshot, where: str) -> None:
    """Refuses a record whose configuration is not the one that its snapshot was made from."""
    found = declared_of(config)
    for path, recorded in (side.declared or {}).items():
        if path not in found:
            refuse("inconsistent", f"{where}: contract_snapshot declares {path}, config lacks it")
        moved = next(differences(tuple(path.split(".")), recorded, found[path]), None)
        if moved is not None or not equal(recorded, found[path]):
            detail = moved or f"{path} differs"
            refuse(
                "inconsistent",
                f"{where}: config and contract_snapshot of one file disagree "
                f"(snapshot = source, config = target): {detail}",
            )

    world = world_of(config)
    recorded = (side.resolved or {}).get("world")
    if world is not None and recorded is not None and not equal(recorded, world):
        refuse(
            "inconsistent",
            f"{where}: config and contract_snapshot of one file disagree: the contract's world is "
            f"{recorded}, that of the configuration {world}",
        )


def _with_world(side: Snapshot, config: Any) -> Snapshot:
    """A record of before contracts had a `world` takes it from its own configuration."""
    if side.resolved is None or "world" in side.resolved or not isinstance(config, dict):
        return side
    world = world_of(cast("dict[str, Any]", config))
    if world is None:
        return side
    return dataclasses.replace(side, resolved={**side.resolved, "world": world})


def _checked_contract(data: Any, where: str) -> dict[str, Any]:
    contract = _mapping(data, f"{where}: the resolved contract")
    _known_schema(contract, f"{where}: the resolved contract")
    for key, value in contract.items():
        if key not in CONTRACT_KEYS:
            refuse("unknown_key", f"{where}: resolved.{key} is outside the schema")
        if not isinstance(value, CONTRACT_KEYS[key]) or isinstance(value, bool):
            refuse("bad_type", f"{where}: resolved.{key} cannot be a {type(value).__name__}")
    return contract


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        refuse("bad_type", f"{what} is {type(value).__name__}, not an object")
    if not value:
        refuse("bad_type", f"{what} is empty")
    return cast("dict[str, Any]", value)


def _known_schema(data: Mapping[str, Any], what: str) -> None:
    if data.get("schema") != SCHEMA:
        given = repr(data["schema"]) if "schema" in data else "none"
        refuse("unknown_schema", f"{what} has schema {given}; this version reads {SCHEMA!r}")


def _no_retired(config: Mapping[str, Any], where: str) -> None:
    for path, successor in RETIRED.items():
        if path in config or _lookup(config, path)[0]:
            refuse("retired_key", f"{where} holds the retired key {path}; now it is {successor}")


def _onnx_document(path: Path) -> str:
    """The JSON text in an ONNX file's metadata."""
    if path.is_dir():
        refuse("not_a_file", f"{path} is a folder, not a file")
    if not path.exists():
        refuse("missing", f"there is no {path}")
    try:
        metadata = _onnx_metadata(path)
    except ImportError:
        raise
    except Exception as error:  # onnx and onnxruntime each have their own classes
        refuse("unreadable", f"{path} is not an ONNX file that can be read: {error}")
    if ONNX_KEY not in metadata:
        refuse("no_snapshot", f"{path} has no metadata key {ONNX_KEY!r}")
    return metadata[ONNX_KEY]


def _onnx_metadata(path: Path) -> dict[str, str]:
    try:
        import onnx
    except ImportError:  # core installs have onnxruntime alone
        import onnxruntime

        session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return dict(session.get_modelmeta().custom_metadata_map)
    model = onnx.load(str(path), load_external_data=False)
    return {entry.key: entry.value for entry in model.metadata_props}

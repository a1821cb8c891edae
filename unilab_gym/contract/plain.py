"""Strict JSON: what a value looks like in a run record, and reading one back without guessing.

Infinite numbers, which JSON lacks, are the texts "inf" and "-inf"; NaN is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

from unilab_gym.config import func_name
from unilab_gym.errors import ConfigError, CrossBackendIncompatibleError, RunFolderError

ADVICE: Mapping[str, str] = {
    "missing": "give the run folder that training wrote, or a checkpoint inside it",
    "not_a_file": "restore the file from the training machine",
    "unreadable": "check the file's permissions",
    "empty": "restore the file from the training machine",
    "invalid_json": "the file is cut or damaged: restore it from the training machine",
    "encoding": "save the file as UTF-8 without a byte order mark",
    "duplicate_key": "the file was edited: restore it from the training machine",
    "not_finite": "the file was edited or written by another tool: restore it",
    "not_a_mapping": "restore the file from the training machine",
    "no_snapshot": "train or export again with this version, which writes the contract",
    "bad_type": "the contract was edited: restore the file from the training machine",
    "unknown_schema": "use the unilab_gym that wrote it, or train again with this one",
    "unknown_key": "use the unilab_gym that wrote it, or restore the file",
    "retired_key": "train again, or rename the key in both configurations",
    "inconsistent": "the file was edited: restore it from the training machine, or train again",
    "swapped_file": "restore the file that the run wrote, or export it again (unilab-gym export)",
    "invalid_target": "correct the target configuration",
    "incompatible": (
        "replay with the configuration the policy was trained under; to go on regardless, set "
        "training.sim2sim_strict=false (strict=False): the differences become warnings"
    ),
    "weight_shape": "load the checkpoint under the configuration that it was trained with",
}
"""Every reason of a refusal and what to do; the integrity reasons hold whatever `strict` says."""

REASONS = frozenset(ADVICE)
"""The closed set of `CrossBackendIncompatibleError.reason`."""


def refuse(reason: str, message: str, *, report: object = None) -> NoReturn:
    """Raises the guard's error with its reason and advice."""
    text = f"{message}\n[{reason}] What to do: {ADVICE[reason]}."
    raise CrossBackendIncompatibleError(text, reason=reason, report=report)


def plain(value: Any, path: str = "") -> Any:
    """A value in strict JSON types.

    Args:
        value: Dataclasses, mappings with text keys, lists, tuples, numbers, text, booleans,
            None and importable functions, at any depth.
        path: Dotted path of the value, for errors.

    Returns:
        A fresh value that shares nothing mutable with the given one.

    Raises:
        ConfigError: If something has no such form or is NaN; the message starts with its path.
    """
    where = path or "value"
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isnan(value):
            raise ConfigError(f"{where}: NaN cannot be recorded")
        return float(value) if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return plain(fields, path)
    if isinstance(value, Mapping):
        return _plain_mapping(cast("Mapping[Any, Any]", value), path)
    if isinstance(value, (list, tuple)):
        items = cast("Sequence[Any]", value)
        return [plain(item, f"{where}[{number}]") for number, item in enumerate(items)]
    if callable(value):
        try:
            return func_name(value)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    raise ConfigError(f"{where}: {type(value).__name__} {value!r} has no plain form")


def _plain_mapping(value: Mapping[Any, Any], path: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise ConfigError(f"{path or 'value'}: key {key!r} is not text")
        result[key] = plain(item, f"{path}.{key}".lstrip("."))
    return result


def restored(value: Any) -> Any:
    """The inverse of `plain` for infinite numbers: "inf" and "-inf" become numbers again."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {key: restored(item) for key, item in items}
    if isinstance(value, list):
        return [restored(item) for item in cast("list[Any]", value)]
    return float(value) if value in ("inf", "-inf") else value


def write_json(path: str | Path, data: Mapping[str, Any]) -> None:
    """Writes strict JSON so that a crash leaves the old file whole.

    Args:
        path: The file; its folder must exist.
        data: Anything that `plain` takes.

    Raises:
        ConfigError: If a value has no plain form; nothing is written.
        RunFolderError: If the folder cannot be written.
    """
    target = Path(path)
    text = json.dumps(plain(data), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise RunFolderError(f"cannot write {target}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """`"sha256:"` and the digest of a file's bytes."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object, failing closed on anything that is not plainly one.

    Raises:
        CrossBackendIncompatibleError: With the reason.
    """
    if path.is_dir():
        refuse("not_a_file", f"{path} is a folder, not a file")
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        refuse("missing", f"there is no {path}")
    except OSError as error:
        refuse("unreadable", f"{path} cannot be read: {error}")
    if raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        refuse("encoding", f"{path} starts with a byte order mark")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        refuse("encoding", f"{path} is not UTF-8: {error}")
    return parse_json(text, str(path))


def parse_json(text: str, where: str) -> dict[str, Any]:
    """Parses a JSON object strictly: no duplicate keys, no NaN or Infinity, nothing after it.

    Args:
        text: The document.
        where: Where it came from, for errors.

    Raises:
        CrossBackendIncompatibleError: With the reason.
    """
    if not text.strip():
        refuse("empty", f"{where} is empty")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            keys = [key for key, _ in pairs]
            double = next(key for key in keys if keys.count(key) > 1)
            refuse("duplicate_key", f"{where} holds the key {double!r} twice in one object")
        return result

    def finite(literal: str) -> float:
        value = float(literal)
        if not math.isfinite(value):
            refuse("not_finite", f"{where} holds {literal}, which is not a finite number")
        return value

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_float=finite, parse_constant=finite)
    except CrossBackendIncompatibleError:
        raise
    except (ValueError, RecursionError) as error:
        refuse("invalid_json", f"{where} is not complete JSON: {error}")
    if not isinstance(data, dict):
        refuse("not_a_mapping", f"{where} holds {type(data).__name__}, not an object")
    return cast("dict[str, Any]", data)

"""Plain data: exact round trip of config dataclasses through JSON types, and overrides by path.

Knows nothing of what the configs mean: it follows dataclass fields and their type hints.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from unilab_gym.errors import ConfigError, near

T = TypeVar("T")
TermFunc = Callable[..., Any]


def freeze(value: Any) -> Any:
    """Lists become tuples, at any depth, so that a config equals its JSON round trip."""
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item) for item in cast("list[Any]", value))
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): freeze(item) for key, item in items}
    return value


_FLOAT32_MAX = 3.4028234663852886e38
_BOUND = re.compile(
    r"(^|_)(clip|limits?|bounds?|threshold|min|max|minimum|maximum|least|most|below|above)(_|$)"
)
"""Words in a name with which an infinite number says that there is no bound."""


def nan_path(value: Any) -> str | None:
    """Where the first NaN of a config stands, as a dotted path; None where there is none."""
    return next((".".join(path) for path, one in _decimals(value, ()) if math.isnan(one)), None)


def infinite_path(value: Any) -> str | None:
    """Where the first number stands that float32 has no finite value for; None: nowhere.

    Infinite is allowed where the name of the field or parameter says that it is a bound
    (`clip`, `joint_limits`, `max_force`): it then means that there is none.
    """
    for path, one in _decimals(value, ()):
        if abs(one) > _FLOAT32_MAX and not _is_bound(path):
            return ".".join(path)
    return None


def _is_bound(path: tuple[str, ...]) -> bool:
    """Whether the field, or a parameter of a term, is named like a bound."""
    names = [part for part in path if not part.isdigit()]
    own = names[names.index("params") + 1 :] if "params" in names else names[-1:]
    return any(_BOUND.search(name) for name in own)


def _decimals(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every float of a config, and where it stands."""
    if isinstance(value, float):
        yield path, value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(item.name, getattr(value, item.name)) for item in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        items = [(str(key), item) for key, item in cast("Mapping[Any, Any]", value).items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(number), item) for number, item in enumerate(cast("list[Any]", value))]
    else:
        return
    for name, item in items:
        yield from _decimals(item, (*path, name))


def func_name(func: TermFunc) -> str:
    """`module:qualname` of a term.

    Raises:
        ConfigError: If the name would not lead back to it (a lambda, a local function).
    """
    module, qualname = getattr(func, "__module__", None), getattr(func, "__qualname__", "")
    if not module or not qualname or "<" in qualname:
        raise ConfigError(f"term {func!r} needs an importable name: define it at module level")
    return f"{module}:{qualname}"


def load_func(name: str) -> TermFunc:
    """The term that `func_name` named.

    Raises:
        ConfigError: If the module or the name is not there.
    """
    module_name, _, qualname = name.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:  # an empty or relative name
        raise ConfigError(f"term {name!r}: cannot import {module_name!r}: {error}") from error
    for part in qualname.split("."):
        if not hasattr(target, part):
            raise ConfigError(f"term {name!r}: {module_name} has no {near(part, dir(target))}")
        target = getattr(target, part)
    return cast("TermFunc", target)


def to_dict(value: Any) -> Any:
    """Plain JSON types: mappings, lists, numbers, text, booleans, None.

    Raises:
        ConfigError: If a value has no plain form; the message holds its path.
    """
    return _encode(value, "")


def _encode(value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: _encode(getattr(value, item.name), f"{path}.{item.name}".lstrip("."))
            for item in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _encode(item, f"{path}.{key}".lstrip(".")) for key, item in items}
    if isinstance(value, (list, tuple)):
        sequence = cast("list[Any]", value)
        return [_encode(item, f"{path}[{number}]") for number, item in enumerate(sequence)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if callable(value):
        return func_name(value)
    raise ConfigError(f"{path}: {type(value).__name__} {value!r} has no plain form")


def from_dict(cls: type[T], data: Mapping[str, Any]) -> T:
    """The inverse of `to_dict`.

    Raises:
        ConfigError: On an unknown or missing key or a value of the wrong kind, with its path.
    """
    return cast("T", _decode(cls, data, ""))


def _decode_dataclass(cls: Any, data: Any, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path or cls.__name__}: expected a mapping, got {data!r}")
    mapping = cast("Mapping[str, Any]", data)
    hints = typing.get_type_hints(cls)
    fields = {item.name: item for item in dataclasses.fields(cls)}
    for key in mapping:
        if key not in fields:
            where = f"{path}: " if path else ""
            raise ConfigError(f"{where}unknown key {near(key, fields)}")
    kwargs = {
        key: _decode(hints[key], value, f"{path}.{key}".lstrip("."))
        for key, value in mapping.items()
    }
    missing = [
        name
        for name, item in fields.items()
        if name not in kwargs
        and item.default is dataclasses.MISSING
        and item.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{path or cls.__name__}: missing {', '.join(missing)}")
    return cls(**kwargs)


def _decode(hint: Any, value: Any, path: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return freeze(value)
    if origin in (Union, types.UnionType):
        return _decode_union(hint, value, path)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, value, path)
    if origin is Literal:
        if value not in get_args(hint) or isinstance(value, bool):
            raise ConfigError(f"{path}: {near(str(value), map(str, get_args(hint)))}")
        return value
    if origin is tuple:
        return _decode_tuple(hint, value, path)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: expected a mapping, got {value!r}")
        items = cast("Mapping[str, Any]", value).items()
        return {key: _decode(get_args(hint)[1], item, f"{path}.{key}") for key, item in items}
    if origin is not None and isinstance(origin, type) and issubclass(origin, Callable):
        return load_func(value) if isinstance(value, str) else value
    return _decode_scalar(hint, value, path)


def _decode_union(hint: Any, value: Any, path: str) -> Any:
    options = get_args(hint)
    if value is None and types.NoneType in options:
        return None
    problems: list[str] = []
    for option in _best_first(options, value):
        try:
            return _decode(option, value, path)
        except ConfigError as error:
            problems.append(str(error))
    raise ConfigError(problems[0])


def _best_first(options: tuple[Any, ...], value: Any) -> list[Any]:
    """The options of a union, those first whose error would help: as a mapping, a config class."""

    def fit(option: Any) -> int:
        if not (isinstance(value, Mapping) and dataclasses.is_dataclass(option)):
            return 0
        names = {item.name for item in dataclasses.fields(option)}
        return 1 + len(names & cast("Mapping[str, Any]", value).keys())

    return sorted((item for item in options if item is not types.NoneType), key=fit, reverse=True)


def _decode_tuple(hint: Any, value: Any, path: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{path}: expected a list, got {value!r}")
    items = cast("list[Any]", value)
    args = get_args(hint)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], item, f"{path}[{i}]") for i, item in enumerate(items))
    if len(items) != len(args):
        raise ConfigError(f"{path}: expected {len(args)} entries, got {len(items)}")
    return tuple(
        _decode(a, item, f"{path}[{i}]")
        for i, (a, item) in enumerate(zip(args, items, strict=True))
    )


def _decode_scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is bool:
        good = isinstance(value, bool)
    elif hint is float:
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
    elif hint is int:
        good = isinstance(value, int) and not isinstance(value, bool)
    elif hint is str:
        good = isinstance(value, str)
    else:
        raise ConfigError(f"{path}: no rule to read a {hint}")
    if not good:
        raise ConfigError(f"{path}: expected {hint.__name__}, got {type(value).__name__} {value!r}")
    return value


def apply_overrides(cfg: T, overrides: Mapping[str, Any]) -> T:
    """A copy of a config with values replaced by dotted path.

    Args:
        cfg: Any config dataclass.
        overrides: For example `{"episode_length_s": 5.0, "rewards.alive.weight": 2.0}`.

    Raises:
        ConfigError: If a path leads nowhere (with near candidates) or a value does not fit.
    """
    data = to_dict(cfg)
    for path, value in overrides.items():
        if not isinstance(cast("Any", path), str):
            raise ConfigError(f"an override is named by a dotted path, got {path!r}")
        node: Any = data
        parts = path.split(".")
        for depth, part in enumerate(parts):
            where = ".".join(parts[:depth]) or type(cfg).__name__
            if not isinstance(node, dict) or (
                part not in node and not (depth == len(parts) - 1 and parts[-2:-1] == ["params"])
            ):
                options = cast("dict[str, Any]", node) if isinstance(node, dict) else ()
                raise ConfigError(f"override {path!r}: {where} has no {near(part, options)}")
            if depth == len(parts) - 1:
                node[part] = to_dict(value)
            else:
                node = cast("dict[str, Any]", node)[part]
    return from_dict(type(cfg), data)

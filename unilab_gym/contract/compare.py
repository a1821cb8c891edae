"""Equality of recorded values, and the list of where two of them differ.

Order matters for lists and for terms, not for plain keyword maps. 2 equals 2.0 and a tuple equals a
list; numbers agree within a relative tolerance; True is not 1 and text is never a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from unilab_gym.contract.tiers import (
    DEFAULT_TOLERANCE,
    ORDERED,
    TOLERANCES,
    Path,
    Tier,
    covers,
    parts,
    stricter,
    strictest,
)


class Absent:
    """The value of a field that one side does not have; None is a value."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


@dataclass(frozen=True)
class Difference:
    """One field that differs."""

    path: str
    """Dotted path; `resolved.` in front where the resolved contract differs."""
    source: Any
    """Value under which the policy was trained, or `ABSENT`."""
    target: Any
    """Value under which it would run, or `ABSENT`."""
    tier: Tier
    parts: Path = ()
    """Parts of the path."""

    @property
    def one_sided(self) -> bool:
        """Whether only one side has the field, so that nothing could be compared."""
        return self.source is ABSENT or self.target is ABSENT

    def __str__(self) -> str:
        source, target = self.source, self.target
        if _numbers(source) and _numbers(target) and len(source) == len(target) > 4:
            pairs = [
                f"[{i}] {_show(a)} -> {_show(b)}"
                for i, (a, b) in enumerate(zip(source, target, strict=True))
                if not equal(a, b)
            ]
            return f"{self.path}: source -> target {', '.join(pairs)}"
        return f"{self.path}: source {_show(source)}, target {_show(target)}"


def _show(value: Any) -> str:
    return repr(value) if value is ABSENT else json.dumps(value, ensure_ascii=False)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(
        item is None or _is_number(item) for item in cast("list[Any]", value)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def join(path: Path) -> str:
    """A path as text; a part that is no plain name is quoted."""
    text = ""
    for part in path:
        simple = part.replace("_", "").replace("-", "").isalnum()
        text += (f".{part}" if text else part) if simple else f"[{json.dumps(part)}]"
    return text


def equal(one: Any, other: Any, tolerance: float = DEFAULT_TOLERANCE) -> bool:
    """Whether two plain values say the same.

    Args:
        one: A value.
        other: Another.
        tolerance: Relative tolerance of numbers.
    """
    same_type = type(one) is type(other)
    if _is_number(one) and _is_number(other):
        return one == other or abs(one - other) <= tolerance * max(abs(one), abs(other))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        left, right = cast("Sequence[Any]", one), cast("Sequence[Any]", other)
        return len(left) == len(right) and all(
            equal(a, b, tolerance) for a, b in zip(left, right, strict=True)
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        a, b = cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", other)
        return a.keys() == b.keys() and all(equal(a[key], b[key], tolerance) for key in a)
    return same_type and bool(one == other)


def differences(path: Path, source: Any, target: Any) -> Iterator[Difference]:
    """Where two plain values differ and which tier says so; silent tiers are left out.

    Args:
        path: Where both values stand.
        source: The trained side, or `ABSENT`.
        target: The side to run on, or `ABSENT`.

    Yields:
        The deepest path of each difference; a subtree that one side lacks is one difference.
    """
    ordered = any(len(rule) == len(path) and covers(rule, path) for rule in map(parts, ORDERED))
    left, right = _children(source), _children(target)
    named = isinstance(source, list)
    if left is None or right is None or named != isinstance(target, list):
        if not equal(source, target, _tolerance(path)):
            tier = _subtree_tier(path, source, stricter(None, _subtree_tier(path, target, None)))
            if tier in ("deny", "warn"):
                yield Difference(join(path), source, target, tier, path)
        return
    moved = _order(left, right) != _order(right, left)
    if (ordered or named) and moved:
        tier = strictest(path)
        if tier in ("deny", "warn"):
            yield Difference(join(path), list(left), list(right), tier, path)
    shifted = named and list(left) != list(right)
    for key in dict.fromkeys([*left, *right]):
        a, b = left.get(key, ABSENT), right.get(key, ABSENT)
        if shifted and a is not ABSENT and b is not ABSENT:
            a, b = _without_start(a), _without_start(b)
        yield from differences((*path, key), a, b)


def _order(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [key for key in one if key in other]


def _without_start(term: dict[str, Any]) -> dict[str, Any]:
    """A term without its first column, which follows from the order of the terms."""
    return {key: value for key, value in term.items() if key != "start"}


def _tolerance(path: Path) -> float:
    return TOLERANCES.get(".".join(path), DEFAULT_TOLERANCE)


def _children(value: Any) -> dict[str, Any] | None:
    """The parts of a mapping, or of a list of terms by their names; None for a leaf."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if not isinstance(value, list) or not value:
        return None
    children: dict[str, Any] = {}
    for item in cast("list[Any]", value):
        entry = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        name = entry.get("name")
        if not isinstance(name, str) or name in children:
            return None
        children[name] = {key: part for key, part in entry.items() if key != "name"}
    return children


def _subtree_tier(path: Path, value: Any, tier: Tier | None) -> Tier | None:
    """The strictest tier among the leaves of a value, and a tier known already."""
    if value is ABSENT:
        return tier
    children = _children(value)
    if not children:
        return stricter(tier, strictest(path))
    for key, child in children.items():
        tier = _subtree_tier((*path, key), child, tier)
    return tier

"""The guard: may a policy trained under one configuration run under another?

    resolve_sim2sim_config("runs/UniLab_Go2.../2030-01-02_10-11-12_1", owner_cfg)

returns the owner configuration unchanged, or raises with every field that differs. Two layers are
compared: the declared configuration paths and the resolved contract, which also sees joint order,
default pose and gains behind an allow-listed scene. Tiers, and what they say about command ranges:
`unilab_gym.contract.tiers`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from unilab_gym.config import OwnerCfg
from unilab_gym.contract.compare import ABSENT, Difference, differences
from unilab_gym.contract.plain import REASONS, refuse
from unilab_gym.contract.snapshot import NO_RECORD, Snapshot, load_source, load_target
from unilab_gym.contract.tiers import (
    ALLOWLIST,
    DENYLIST,
    NOISE,
    WARNING_LIST,
    any_covers,
    declared_twins,
    parts,
)
from unilab_gym.errors import CrossBackendWarning

__all__ = [
    "ALLOWLIST",
    "DENYLIST",
    "REASONS",
    "WARNING_LIST",
    "ReplayReport",
    "check_replay",
    "resolve_sim2sim_config",
]

Target = TypeVar("Target", bound="OwnerCfg | Mapping[str, Any]")


@dataclass(frozen=True)
class ReplayReport:
    """What a comparison found."""

    denied: tuple[Difference, ...] = ()
    """Differences that stop the replay; empty with `strict=False`."""
    warned: tuple[Difference, ...] = ()
    """Differences to tell; with `strict=False` the deny tier is among them, first."""
    unchecked: tuple[str, ...] = ()
    """What could not be compared."""

    @property
    def ok(self) -> bool:
        """Whether nothing stops the replay."""
        return not self.denied

    def __str__(self) -> str:
        lines = [f"denied    {item}" for item in self.denied]
        lines += [f"warned    {item}" for item in self.warned]
        lines += [f"unchecked {item}" for item in self.unchecked]
        return "\n".join(lines) or "no difference"


def check_replay(
    source: str | Path | Mapping[str, Any],
    target: OwnerCfg | Mapping[str, Any],
    strict: bool = True,
) -> ReplayReport:
    """Compares a trained policy's contract with the configuration to run it under.

    Args:
        source: A run folder, its `run_config.json`, a checkpoint inside it, an exported ONNX file,
            or a mapping (run record, snapshot, resolved contract, plain configuration).
        target: An owner configuration, or a mapping of the same kinds.
        strict: Whether deny-tier differences are denied; else they are warned about.

    Returns:
        The report; differences never raise.

    Raises:
        CrossBackendIncompatibleError: If either side cannot be read for certain; see `REASONS`.
    """
    left, right = load_source(source), load_target(target)
    unchecked = _unchecked(left, right)
    found = _declared(left, right)
    found += _resolved(left, right, found)
    found = _noise_in_one_line(found, right.play_only)
    denied = tuple(item for item in found if item.tier == "deny")
    warned = tuple(item for item in found if item.tier == "warn")
    if strict:
        return ReplayReport(denied, warned, unchecked)
    unverified = tuple(
        f"{item.path}: only the {'target' if item.source is ABSENT else 'source'} has it"
        for item in denied
        if item.one_sided
    )
    return ReplayReport((), denied + warned, unverified + unchecked)


def resolve_sim2sim_config(
    source_run_dir: str | Path | Mapping[str, Any], target_cfg: Target, *, strict: bool = True
) -> Target:
    """Guards a replay: call it before the environment is created.

    Args:
        source_run_dir: Where the policy comes from; see `check_replay`.
        target_cfg: The configuration to run it under.
        strict: False turns deny-tier differences into warnings. Integrity checks stay.

    Returns:
        The target itself, unchanged.

    Raises:
        CrossBackendIncompatibleError: With every diverging field and both values.
    """
    report = check_replay(source_run_dir, target_cfg, strict)
    if report.denied:
        lines = "\n".join(f"  - {item}" for item in report.denied)
        refuse(
            "incompatible",
            f"the policy does not fit the target configuration; {len(report.denied)} field(s) "
            f"differ:\n{lines}",
            report=report,
        )
    for text in _warnings(report):
        warnings.warn(text, CrossBackendWarning, stacklevel=2)
    return target_cfg


def _warnings(report: ReplayReport) -> list[str]:
    """One text for what was denied but for `strict=False`, one per other subject."""
    severe = [item for item in report.warned if item.tier == "deny"]
    texts: list[str] = []
    if severe:
        lines = "\n".join(
            f"  - {item}{' (could not be verified)' if item.one_sided else ''}" for item in severe
        )
        texts.append(f"replaying although {len(severe)} field(s) differ:\n{lines}")
    subjects: dict[str, list[str]] = {}
    for item in report.warned:
        if item.tier == "warn":
            subject = ".".join(item.parts[:3]) if item.path.startswith("env.rewards") else item.path
            subjects.setdefault(subject, []).append(str(item))
    texts += [text for text in report.unchecked if text.endswith(NO_RECORD)]
    return texts + ["\n".join(lines) for lines in subjects.values()]


# --- the two layers -------------------------------------------------------------------------------


def _unchecked(left: Snapshot, right: Snapshot) -> tuple[str, ...]:
    texts = ["algo: the network is frozen in the file"] if left.frozen_algo else []
    texts += left.notes
    texts += [
        f"declared configuration: {side.where} holds the resolved contract only"
        for side in (left, right)
        if side.declared is None
    ]
    if left.resolved is None and right.resolved is None:
        texts.append("resolved contract: neither side can be built")
    texts += [
        f"world: {side.where} is of before gravity, ground and contact model were recorded"
        for side in (left, right)
        if side.resolved is not None and "world" not in side.resolved
    ]
    return tuple(texts)


def _declared(left: Snapshot, right: Snapshot) -> list[Difference]:
    if left.declared is None or right.declared is None:
        return []
    found: list[Difference] = []
    for section in dict.fromkeys([*left.declared, *right.declared]):
        path = parts(section)
        if left.frozen_algo and path[0] == "algo":
            continue
        source = left.declared.get(section, ABSENT)
        found += differences(path, source, right.declared.get(section, ABSENT))
    return found


def _resolved(left: Snapshot, right: Snapshot, known: list[Difference]) -> list[Difference]:
    """Differences of the resolved layer that the declared layer does not tell already."""
    source: Any = ABSENT if left.resolved is None else dict(left.resolved)
    target: Any = ABSENT if right.resolved is None else dict(right.resolved)
    if source is ABSENT or target is ABSENT:
        if source is target:
            return []
        shown = "a resolved contract"
        source, target = (v if v is ABSENT else shown for v in (source, target))
        return [Difference("resolved", source, target, "deny", ("resolved",))]
    skipped = ["network"] if left.frozen_algo else []
    if "world" not in source or "world" not in target:  # `_unchecked` says so
        skipped.append("world")
    for key in skipped:
        source.pop(key, None)
        target.pop(key, None)
    return [
        item
        for item in differences(("resolved",), source, target)
        if not any(_tells(other, item) for other in known)
    ]


def _tells(declared: Difference, resolved: Difference) -> bool:
    """Whether a declared difference says what a resolved one says, at least as strictly."""
    if declared.tier == "warn" and resolved.tier == "deny":
        return False
    path = declared.parts
    return any(
        path[: len(twin)] == twin or (declared.one_sided and twin[: len(path)] == path)
        for twin in declared_twins(resolved.parts)
    )


def _noise_in_one_line(found: list[Difference], play_only: bool) -> list[Difference]:
    noise = [item for item in found if any_covers(NOISE, item.parts)]
    rest = [item for item in found if item not in noise]
    if not noise or play_only:
        return rest
    if len(noise) == 1:
        return rest + noise
    source = {item.path: item.source for item in noise if item.source is not ABSENT}
    target = {item.path: item.target for item in noise if item.target is not ABSENT}
    return [*rest, Difference("observation noise", source, target, "warn", ("env", "observations"))]

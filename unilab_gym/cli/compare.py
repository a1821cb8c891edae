"""`compare`: the same seed and actions on two backends, term by term."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from unilab_gym.cli import FAILED, OK, print_json
from unilab_gym.cli.arguments import Compare
from unilab_gym.cli.policies import PolicySource, find_policy, guarded, load
from unilab_gym.cli.text import Progress, table
from unilab_gym.comparison import ComparisonReport, compare_backends
from unilab_gym.config import OwnerCfg, apply_overrides
from unilab_gym.contract import ReplayReport, build_snapshot, check_replay, replay_owner
from unilab_gym.contract.compare import Difference, equal
from unilab_gym.contract.owner import KNOWN_BACKENDS
from unilab_gym.errors import ConfigError
from unilab_gym.vector_env import UnilabVectorEnv


def compare(args: Compare) -> int:
    """Runs both sides; 1 where they part beyond a tolerance."""
    source = find_policy(args.run, args.run_root, args.task)
    home_name = source.home if source.home in KNOWN_BACKENDS else "mujoco"
    other_name = args.backend or next(name for name in KNOWN_BACKENDS if name != home_name)
    home = guarded(source, home_name)
    other = replay_owner(source.task, other_name, task_kwargs=source.task_kwargs)[0]
    if args.change:
        other = dataclasses.replace(other, env=apply_overrides(other.env, _changes(args.change)))
    recorded = build_snapshot(home)
    joints: list[str] = recorded["resolved"]["joints"]["names"]
    contract = _contract(check_replay(recorded, other), joints)
    progress = Progress("compare", args.steps, 2 * args.num_envs)

    def policy(env: UnilabVectorEnv) -> Any:
        return load(source, home, env)

    report = compare_backends(
        home.env,
        other.env,
        policy,
        backends=(home_name, other_name),
        num_envs=args.num_envs,
        steps=args.steps,
        seed=args.seed,
        on_step=progress.advance,
        needs_env=True,
    )
    same = not any(contract.values())
    if args.json:
        print_json({**_facts(source, other), **report.to_dict(), "contract": contract})
    else:
        print(_text(source, report, contract))
    return OK if report.ok and same else FAILED


def _changes(texts: Sequence[str]) -> dict[str, Any]:
    """PATH=VALUE; the value is a Python literal, or else text."""
    changes: dict[str, Any] = {}
    for text in texts:
        path, sign, value = text.partition("=")
        if not sign or not path:
            raise ConfigError(f"--set takes PATH=VALUE, got {text!r}")
        try:
            changes[path.removeprefix("env.")] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            changes[path.removeprefix("env.")] = value
    return changes


def _facts(source: PolicySource, other: OwnerCfg) -> dict[str, Any]:
    return {"policy": str(source.path), "task": other.task}


def _contract(report: ReplayReport, joints: Sequence[str]) -> dict[str, list[str]]:
    return {
        "denied": [_named(item, joints) for item in report.denied],
        "warned": [_named(item, joints) for item in report.warned],
    }


def _named(item: Difference, joints: Sequence[str]) -> str:
    """A difference; where it is a list with one entry per joint, by the joints' names."""
    source, target = item.source, item.target
    lists = isinstance(source, list) and isinstance(target, list)
    if item.parts[:2] != ("resolved", "joints") or not lists:
        return str(item)
    home, other = cast("list[Any]", source), cast("list[Any]", target)
    if not len(joints) == len(home) == len(other):
        return str(item)
    pairs = [
        f"{name} {a} -> {b}"
        for name, a, b in zip(joints, home, other, strict=True)
        if not equal(a, b)
    ]
    return f"{item.path}: {', '.join(pairs)}"


def _text(source: PolicySource, report: ComparisonReport, contract: dict[str, list[str]]) -> str:
    lines = [
        f"{source.path}: {report.steps} steps of {report.num_envs} environments, same seed, same "
        f"actions, {report.home} against {report.other}",
        "",
    ]
    rows = [
        (
            term.kind,
            term.name,
            f"{term.largest:.1e}",
            f"{term.tolerance:.0e}",
            term.step,
            term.column,
            "ok" if term.ok else f"beyond from step {term.first_step}",
        )
        for term in report.terms
    ]
    headers = ("kind", "term", "largest", "tolerance", "at step", "column", "verdict")
    lines += [table(headers, rows, ""), "", "largest: |difference| / max(1, |value|)"]
    differences = [f"  {text}" for texts in contract.values() for text in texts]
    if differences:
        lines += ["", "the configurations differ:", *differences]
    if report.ended_apart:
        lines.append(f"episodes ended on one side alone in {report.ended_apart} steps")
    if report.beyond:
        first = report.beyond[0]
        lines.append(f"they part first at {first.kind} {first.name}, step {first.first_step}")
    elif not differences:
        lines.append("the two backends agree within tolerance, and so do the contracts")
    else:
        lines.append("the trajectories agree within tolerance, the configurations do not")
    return "\n".join(lines)

"""`list`, `audit` and `randomization`."""

from __future__ import annotations

import warnings
from typing import Any

from unilab_gym.cli import FAILED, OK, print_json
from unilab_gym.cli.arguments import Audit, List, Randomization
from unilab_gym.cli.text import markdown_table, table
from unilab_gym.errors import ConfigError, PluginWarning

_HEADERS = ("id", "what", "policy observation", "actions", "backends")


def list_tasks(args: List) -> None:
    """Every registered task."""
    tasks = task_facts()
    if args.json:
        print_json(tasks)
        return
    rows = [
        (
            f"`{task['id']}`" if args.markdown else task["id"],
            task["summary"],
            task["observations"],
            task["actions"],
            ", ".join(task["backends"]),
        )
        for task in tasks
    ]
    print(markdown_table(_HEADERS, rows) if args.markdown else table(_HEADERS, rows, ""))


def task_facts() -> list[dict[str, Any]]:
    """Id, summary, widths of policy observation and action, backends."""
    from unilab_gym.contract import contract_hash, resolve
    from unilab_gym.registration import is_foreign, list_tasks, owner_config

    facts: list[dict[str, Any]] = []
    for task in list_tasks():
        try:
            contract = resolve(owner_config(task.id, task.backends[0]))
        except ConfigError as error:  # for example a mesh that is missing
            if not is_foreign(task.id):
                raise
            warnings.warn(f"task {task.id!r} does not build: {error}", PluginWarning, stacklevel=2)
            continue
        facts.append(
            {
                "id": task.id,
                "summary": task.summary,
                "observations": contract["observations"]["policy"]["width"],
                "actions": len(contract["actions"]["scale"]),
                "backends": list(task.backends),
                "contract_hash": contract_hash(contract),
            }
        )
    return facts


def audit(args: Audit) -> int:
    """The transfer matrix."""
    from unilab_gym.contract.audit import transfer_matrix

    cells = transfer_matrix(args.task or None)
    failed = any(cell.verdict in ("broken", "refused") for cell in cells)
    if args.json:
        print_json([cell.to_dict() for cell in cells])
        return FAILED if failed else OK
    rows = [
        (
            cell.task,
            cell.source,
            cell.target + (" (sibling's configuration)" if cell.fallback else ""),
            cell.verdict,
            "unknown" if cell.problem else "equal" if cell.same_contract else "differs",
        )
        for cell in cells
    ]
    print(table(("task", "trained on", "replayed on", "verdict", "contract"), rows, ""))
    for cell in cells:
        if cell.verdict != "ok":
            print(f"\n{cell.task}, {cell.source} -> {cell.target}:\n{cell.problem or cell.report}")
    return FAILED if failed else OK


def randomization(args: Randomization) -> None:
    """The table term x backend."""
    from unilab_gym.backends.capabilities import CAPABILITIES
    from unilab_gym.mdp.randomization import randomization_facts, randomization_table

    backends = list(CAPABILITIES.values())
    facts = randomization_facts(backends)
    if args.json:
        print_json(facts)
        return
    if args.markdown:
        print(randomization_table(backends), end="")
        return
    rows = [
        (
            fact["term"],
            ", ".join(fact["modes"]),
            ", ".join(fact["writes"]),
            fact["recomputes"],
            *fact["backends"].values(),
        )
        for fact in facts
    ]
    headers = ("term", "modes", "writes", "recomputes", *(item.name for item in backends))
    print(table(headers, rows, ""))

"""The transfer matrix: may a policy of each task move from each backend to each other one?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unilab_gym.contract.guard import ReplayReport, check_replay
from unilab_gym.contract.owner import KNOWN_BACKENDS, replay_owner
from unilab_gym.contract.resolve import contract_hash, resolve
from unilab_gym.contract.snapshot import build_snapshot
from unilab_gym.errors import ConfigError
from unilab_gym.registration import is_foreign, list_tasks, load_task, owner_config


@dataclass(frozen=True)
class Transfer:
    """One cell of the matrix: trained on `source`, replayed on `target`."""

    task: str
    source: str
    target: str
    fallback: bool = False
    """Whether the target backend has no owner of its own, so that a sibling's is used."""
    same_contract: bool = False
    """Whether the hashes of both contracts are equal."""
    report: ReplayReport = field(default_factory=ReplayReport)
    problem: str = ""
    """Why nothing could be compared: the task does not build."""

    @property
    def verdict(self) -> str:
        """One of broken, refused, warned, ok."""
        if self.problem:
            return "broken"
        return "refused" if self.report.denied else "warned" if self.report.warned else "ok"

    def to_dict(self) -> dict[str, object]:
        """Plain data."""
        return {
            "task": self.task,
            "source": self.source,
            "target": self.target,
            "fallback": self.fallback,
            "same_contract": self.same_contract,
            "verdict": self.verdict,
            "denied": [str(item) for item in self.report.denied],
            "warned": [str(item) for item in self.report.warned],
            "problem": self.problem,
        }


def transfer_matrix(tasks: Iterable[str] | None = None) -> list[Transfer]:
    """Checks every shipped task and backend pair; no environment is made.

    Args:
        tasks: Registered ids; None takes all.

    Returns:
        One entry per task, training backend and replay backend; of a task that does not build,
        for example because a mesh is missing, they say why.

    Raises:
        ConfigError: If an id is unknown.
    """
    cells: list[Transfer] = []
    found = list_tasks() if tasks is None else map(load_task, tasks)
    for task in found:
        for source in task.backends:
            for target in KNOWN_BACKENDS:
                try:
                    cells.append(_cell(task.id, source, target))
                except Exception as error:  # a stranger's task fails in any way there is
                    if not (isinstance(error, ConfigError) or is_foreign(task.id)):
                        raise
                    problem = f"{type(error).__name__}: {error}"
                    cells.append(Transfer(task.id, source, target, problem=problem))
    return cells


def _cell(task: str, source: str, target: str) -> Transfer:
    snapshot: Mapping[str, Any] = build_snapshot(owner_config(task, source))
    there, notice = replay_owner(task, target)
    return Transfer(
        task=task,
        source=source,
        target=target,
        fallback=bool(notice),
        same_contract=contract_hash(snapshot["resolved"]) == contract_hash(resolve(there)),
        report=check_replay(snapshot, there),
    )

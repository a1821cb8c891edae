"""The transfer matrix: may a policy of each task move from each backend to each other one?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unilab_gym.contract.guard import ReplayReport, check_replay
from unilab_gym.contract.owner import KNOWN_BACKENDS, replay_owner
from unilab_gym.contract.resolve import contract_hash, resolve
from unilab_gym.contract.snapshot import build_snapshot
from unilab_gym.registration import list_tasks, load_task, owner_config


@dataclass(frozen=True)
class Transfer:
    """One cell of the matrix: trained on `source`, replayed on `target`."""

    task: str
    source: str
    target: str
    fallback: bool
    """Whether the target backend has no owner of its own, so that a sibling's is used."""
    same_contract: bool
    """Whether the hashes of both contracts are equal."""
    report: ReplayReport

    @property
    def verdict(self) -> str:
        """One of refused, warned, ok."""
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
        }


def transfer_matrix(tasks: Iterable[str] | None = None) -> list[Transfer]:
    """Checks every shipped task and backend pair; no environment is made.

    Args:
        tasks: Registered ids; None takes all.

    Returns:
        One entry per task, training backend and replay backend.

    Raises:
        ConfigError: If an id is unknown or a scene does not compile.
    """
    cells: list[Transfer] = []
    found = list_tasks() if tasks is None else map(load_task, tasks)
    for task in found:
        for source in task.backends:
            snapshot = build_snapshot(owner_config(task.id, source))
            trained = contract_hash(snapshot["resolved"])
            for target in KNOWN_BACKENDS:
                there, notice = replay_owner(task.id, target)
                cells.append(
                    Transfer(
                        task=task.id,
                        source=source,
                        target=target,
                        fallback=bool(notice),
                        same_contract=trained == contract_hash(resolve(there)),
                        report=check_replay(snapshot, there),
                    )
                )
    return cells

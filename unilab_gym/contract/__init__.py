"""Policy contract, cross-backend guard, run record; importing it loads no torch and no engine."""

from unilab_gym.contract.audit import Transfer, transfer_matrix
from unilab_gym.contract.compare import ABSENT, Difference
from unilab_gym.contract.guard import (
    ALLOWLIST,
    DENYLIST,
    WARNING_LIST,
    ReplayReport,
    check_replay,
    resolve_sim2sim_config,
)
from unilab_gym.contract.load_guard import policy_load_dim_guard
from unilab_gym.contract.owner import replay_owner
from unilab_gym.contract.plain import REASONS
from unilab_gym.contract.resolve import SCHEMA, contract_hash, resolve, resolve_from
from unilab_gym.contract.snapshot import build_snapshot
from unilab_gym.contract.tracker import (
    ExperimentTracker,
    find_run,
    new_run_dir,
    record_file,
    run_record,
    unless_it_fails,
)
from unilab_gym.errors import CrossBackendIncompatibleError, CrossBackendWarning, RunFolderError

__all__ = [
    "ABSENT",
    "ALLOWLIST",
    "DENYLIST",
    "REASONS",
    "SCHEMA",
    "WARNING_LIST",
    "CrossBackendIncompatibleError",
    "CrossBackendWarning",
    "Difference",
    "ExperimentTracker",
    "ReplayReport",
    "RunFolderError",
    "Transfer",
    "build_snapshot",
    "check_replay",
    "contract_hash",
    "find_run",
    "new_run_dir",
    "policy_load_dim_guard",
    "record_file",
    "replay_owner",
    "resolve",
    "resolve_from",
    "resolve_sim2sim_config",
    "run_record",
    "transfer_matrix",
    "unless_it_fails",
]

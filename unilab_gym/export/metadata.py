"""What an exported file says of itself: the contract, and the keys that deployed stacks read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from unilab_gym.config import EnvCfg
from unilab_gym.contract.resolve import FRAMES, resolve_built
from unilab_gym.contract.snapshot import from_mapping
from unilab_gym.errors import ConfigError, near

_NEEDED = ("joints", "actions", "observations", "commands")


def resolved_of(contract: Any) -> dict[str, Any]:
    """The resolved contract in plain JSON types.

    Args:
        contract: A resolved contract, a contract snapshot, or a live environment.

    Raises:
        CrossBackendIncompatibleError: If it is a mapping, but no contract of this version.
        ConfigError: If it is neither, or lacks what an export needs.
    """
    if not isinstance(contract, Mapping):
        contract = _contract_of(contract)
    side = from_mapping(
        cast("Mapping[str, Any]", contract), "the given contract", must_be_recorded=True
    )
    resolved = dict(side.resolved or {})
    lacking = [key for key in _NEEDED if key not in resolved]
    if lacking:
        raise ConfigError(f"the given contract has no {', '.join(lacking)}")
    return resolved


def _contract_of(env: Any) -> dict[str, Any]:
    """The contract that a built environment has; wrappers are looked through."""
    env = getattr(env, "unwrapped", env)
    cfg, runtime = getattr(env, "cfg", None), getattr(env, "runtime", None)
    if not isinstance(cfg, EnvCfg) or runtime is None:
        raise ConfigError(
            f"contract must be a resolved contract or a live environment, got {type(env).__name__}"
        )
    task = str(getattr(getattr(env, "spec", None), "id", ""))
    return resolve_built(cfg, runtime.rt, task=task)


def policy_groups(contract: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The observation groups that the actor reads, in the order of its input.

    Raises:
        ConfigError: If the contract has no such group, or one is not flattened.
    """
    network = contract.get("network")
    names = network["obs_groups"]["actor"] if network else ["policy"]
    groups = contract["observations"]
    for name in names:
        if name not in groups:
            raise ConfigError(f"the contract has no observation group {near(name, groups)}")
        if groups[name]["layout"] == FRAMES:
            raise ConfigError(
                f"observation group {name!r} is laid out as {FRAMES}; an exported policy takes one "
                "vector: say flatten=True"
            )
    return {name: groups[name] for name in names}


def obs_width(contract: Mapping[str, Any]) -> int:
    """Columns of the actor's input."""
    return sum(group["width"] for group in policy_groups(contract).values())


def policy_terms(contract: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Terms of the actor's input in order; with several groups a term is called `group/term`."""
    groups = policy_groups(contract)
    return [
        {**term, "name": term["name"] if len(groups) == 1 else f"{name}/{term['name']}"}
        for name, group in groups.items()
        for term in group["terms"]
    ]


def layout(contract: Mapping[str, Any]) -> str:
    """Names and widths of the input's terms, for messages."""
    return ", ".join(
        f"{term['name']} {term['width']}" + (f" x {term['history']}" if term["history"] else "")
        for term in policy_terms(contract)
    )


def csv_metadata(contract: Mapping[str, Any]) -> dict[str, str]:
    """The keys that deployed stacks read: one entry per column of the action or per term.

    Entries are parted by ",", numbers inside one by ";"; a single number stands for every column.
    """
    terms = policy_terms(contract)
    actions, joints = contract["actions"], contract["joints"]
    rows = [joints["names"].index(name) for name in actions["joints"]]
    values: dict[str, list[Any]] = {
        "joint_names": actions["joints"],
        "joint_stiffness": [joints["kp"][row] for row in rows],
        "joint_damping": [joints["kd"][row] for row in rows],
        "default_joint_pos": [joints["default"][row] for row in rows],
        "action_scale": actions["scale"],
        "action_box": ["inf" if box is None else box for box in actions["box"]],
        "command_names": list(contract["commands"]),
        "observation_names": [term["name"] for term in terms],
        "observation_terms_scale": [
            term["scale"][0] if len(set(term["scale"])) == 1 else term["scale"] for term in terms
        ],
        "observation_terms_clip": [_clip(term["clip"]) for term in terms],
        # Frames in all, this one included; 0 says that there is no history.
        "observation_terms_history_length": [term["history"] for term in terms],
        "observation_terms_flatten_history_dim": [1] * len(terms),
    }
    return {key: ",".join(map(_entry, items)) for key, items in values.items()}


def _clip(bounds: Sequence[float | None] | None) -> list[float | str]:
    low, high = bounds or (None, None)
    return ["-inf" if low is None else low, "inf" if high is None else high]


def _entry(value: Any) -> str:
    if isinstance(value, list):
        return ";".join(map(_entry, cast("list[Any]", value)))
    return value if isinstance(value, str) else repr(value)

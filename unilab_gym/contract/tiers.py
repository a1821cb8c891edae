"""Which difference between two configurations stops a replay, which is told, which is silent.

A rule is a dotted path: of `to_dict(owner_cfg)`, or `resolved.` and a path of the resolved
contract. It covers its path and everything below it; `*` stands for one part or some of its text.
The deeper rule wins, then the one with fewer wildcards, then deny > warn > allow. What no rule
covers (solver iterations, number of environments, seed, the learner's hyperparameters,
terminations, events) is neither recorded nor compared.

Commands: no observation of this package is scaled by a command's range, so another range leaves the
meaning of every input as it was and is a warning ("commands unlike those of training"). What
decides meaning denies: the generator itself, parameters called limits (the historical form, which
did scale observations), the sampling mode of a motion, and everything that the command's class
says about itself in `describe`, except the `ranges` there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

Tier = Literal["deny", "warn", "allow"]
Path = tuple[str, ...]
"""Parts of a dotted path; a part may hold dots itself (a pattern of joint names)."""

DENYLIST: tuple[str, ...] = (
    "algo.obs_groups",
    "algo.actor.hidden_dims",
    "algo.actor.activation",
    "algo.actor.obs_normalization",
    "algo.critic.hidden_dims",
    "algo.critic.activation",
    "algo.critic.obs_normalization",
    "algo.obs_normalization",
    "env.observations",
    "env.actions",
    "env.ctrl_dt",
    "env.scene.robot",
    "env.commands.*.func",
    "env.commands.*limit*",
    "env.commands.*.*limit*",
    "env.commands.*.params.*limit*",
    "env.commands.*.params.sampling_mode",
    "env.control_config.action_scale",
    "resolved",
)
"""Another meaning of inputs or outputs: abort."""

WARNING_LIST: tuple[str, ...] = (
    "env.rewards",
    "reward",
    "env.commands",
    "env.actions.*.delay",
    "env.actions.*.params.delay",
    "env.control_config.simulate_action_latency",
    "env.sim_dt",
    "env.observations.*.corrupt",
    "env.observations.*.terms.*.noise",
    "env.observations.*.terms.*.bias",
    "resolved.observations.*.terms.*.noise",
    "resolved.observations.*.terms.*.bias",
    "resolved.actions.terms.*.delay",
    "resolved.commands.*.ranges",
    "resolved.joints.kp",
    "resolved.joints.kd",
    "resolved.joints.effort",
    "resolved.joints.armature",
    "resolved.sim_dt",
    "resolved.decimation",
    "resolved.world",
)
"""Another world or training: tell, go on."""

ALLOWLIST: tuple[str, ...] = (
    "training.sim_backend",
    "training.play_steps",
    "env.scene",
    "env.commands.*.play_params",
    "env.cpu_ids",
    "env.noise_config",
    "resolved.task",
)
"""Silent."""

NOISE: tuple[str, ...] = (
    "env.observations.*.corrupt",
    "env.observations.*.terms.*.noise",
    "env.observations.*.terms.*.bias",
    "resolved.observations.*.terms.*.noise",
    "resolved.observations.*.terms.*.bias",
)
"""Told in one line, and not at all to a target that only plays."""

ORDERED: tuple[str, ...] = ("env.actions", "env.observations.*.terms")
"""Mappings whose order is the order of columns."""

TOLERANCES: Mapping[str, float] = {
    "resolved.joints.kp": 1e-3,
    "resolved.joints.kd": 1e-3,
    "resolved.joints.effort": 1e-3,
    "resolved.joints.armature": 1e-3,
}
"""Relative tolerance of numbers, where it is not `DEFAULT_TOLERANCE`."""

DEFAULT_TOLERANCE = 1e-6

RETIRED: Mapping[str, str] = {
    "env.sampling_mode": "env.commands.motion.params.sampling_mode",
    "algo.policy.actor_hidden_dims": "algo.actor.hidden_dims",
    "algo.policy.critic_hidden_dims": "algo.critic.hidden_dims",
    "algo.empirical_normalization": "algo.actor.obs_normalization, algo.critic.obs_normalization",
}
"""Keys of the past and what took their place; their presence refuses a replay."""

_TWINS: Mapping[str, tuple[str, ...]] = {
    "resolved.control_dt": ("env.ctrl_dt",),
    "resolved.sim_dt": ("env.sim_dt",),
    "resolved.decimation": ("env.sim_dt", "env.ctrl_dt"),
    "resolved.observations": ("env.observations",),
    "resolved.actions.terms": ("env.actions",),
    "resolved.commands": ("env.commands",),
    "resolved.network": ("algo",),
}
_SEVERITY: Mapping[Tier, int] = {"allow": 0, "warn": 1, "deny": 2}


def parts(path: str) -> Path:
    """Parts of a dotted path without dots inside them."""
    return tuple(path.split("."))


def covers(rule: Path, path: Path) -> bool:
    """Whether a rule covers a path."""
    return len(path) >= len(rule) and all(map(fnmatchcase, path, rule))


def any_covers(rules: tuple[str, ...], path: Path) -> bool:
    """Whether one of the rules covers a path."""
    return any(covers(parts(rule), path) for rule in rules)


@functools.cache
def _rules() -> tuple[tuple[Path, Tier], ...]:
    lists: tuple[tuple[tuple[str, ...], Tier], ...] = (
        (DENYLIST, "deny"),
        (WARNING_LIST, "warn"),
        (ALLOWLIST, "allow"),
    )
    return tuple((parts(rule), tier) for rules, tier in lists for rule in rules)


def strictest(path: Path, rules: tuple[tuple[Path, Tier], ...] | None = None) -> Tier | None:
    """The tier of a path; None where no rule covers it.

    Args:
        path: Parts of the path.
        rules: Rules and their tiers; None takes the package's.
    """
    found: list[tuple[int, int, int, Tier]] = [
        (len(rule), -sum("*" in part for part in rule), _SEVERITY[tier], tier)
        for rule, tier in (_rules() if rules is None else rules)
        if covers(rule, path)
    ]
    return max(found)[3] if found else None


def stricter(one: Tier | None, other: Tier | None) -> Tier | None:
    """The stricter of two tiers."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda tier: _SEVERITY[tier])


@functools.cache
def sections() -> tuple[str, ...]:
    """The configuration paths that a snapshot records: deny and warn rules up to a wildcard."""
    roots: list[Path] = []
    for rule in map(parts, DENYLIST + WARNING_LIST):
        wild = next((i for i, part in enumerate(rule) if "*" in part), len(rule))
        if rule[0] != "resolved":
            roots.append(rule[:wild])
    outer = [a for a in roots if not any(b != a and a[: len(b)] == b for b in roots)]
    return tuple(dict.fromkeys(".".join(root) for root in outer))


def declared_twins(path: Path) -> tuple[Path, ...]:
    """Where the declared layer says what this path of the resolved layer says."""
    for prefix, twins in _TWINS.items():
        start = parts(prefix)
        if path[: len(start)] == start:
            return tuple(parts(twin) + path[len(start) :] for twin in twins)
    return ()

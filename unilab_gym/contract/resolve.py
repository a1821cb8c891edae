"""The resolved contract: what goes in and out of a policy, in numbers and names.

`resolve(owner_cfg)` compiles one `MjModel` and nothing else; a built environment calls
`resolve_from` with its own tables, so that both say the same. The result holds plain JSON types:

    schema, task
    robot         root_body, floating
    control_dt, sim_dt, decimation
    world         gravity, integrator, cone, impratio, ground, ground_friction: what moves the robot
                  else; records of older versions lack it
    joints        names, actuators, default, kp, kd, effort, armature: one entry per joint, in the
                  MJCF's natural order; null where no actuator drives it or nothing limits it
    actions       joints, actuators, scale, offset, box, target_clip, clipped: one entry per
                  column; terms: name, func, kind, start, width, delay
    observations  per group: width, layout, terms: name, func, params, start (first column), width
                  (of one frame), scale, clip, noise and bias (kind and parameters), history
                  (frames; 0: the value alone), delay
    commands      per generator: func, components (`component_names` of its class), and what the
                  class says in `describe(index, **params)`, where it has one
    conventions   what the numbers mean: `CONVENTIONS`
    network       obs_groups, action_width, actor and critic: obs_width, hidden_dims, activation,
                  obs_normalization; null where no learner is known

A delay is a whole number of control steps, or where it is drawn {steps: [low, high], redraw,
shared}. An unlimited bound is null. Decimals keep full precision.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from unilab_gym.config import (
    AlgoCfg,
    CommandTermCfg,
    Delay,
    EnvCfg,
    GaussianNoiseCfg,
    NetworkCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    OwnerCfg,
    UniformNoiseCfg,
    delay_of,
    func_name,
    history_of,
)
from unilab_gym.contract.plain import plain
from unilab_gym.errors import ConfigError, near
from unilab_gym.model_index import ModelIndex

if TYPE_CHECKING:
    from unilab_gym.runtime.step import Runtime
    from unilab_gym.runtime.term import ActionSpec

SCHEMA = "unilab_gym.contract/1"

CONTRACT_KEYS: Mapping[str, type | tuple[type, ...]] = {
    "schema": str,
    "task": str,
    "robot": dict,
    "control_dt": (int, float),
    "sim_dt": (int, float),
    "decimation": int,
    "world": dict,
    "joints": dict,
    "actions": dict,
    "observations": dict,
    "commands": dict,
    "conventions": dict,
    "network": (dict, type(None)),
}
"""Every key of the contract and the JSON type that it must have."""

CONVENTIONS: Mapping[str, str] = {
    "quaternion": "wxyz",
    "free_joint_velocity": "linear world, angular body",
    "projected_gravity": "R^T (0, 0, -1)",
    "joint_order": "mjcf",
    "observation": "scale * clip(value + noise)",
    "action": "target = clip(offset + scale * a, target_clip), a = clip(raw, -box, box)",
    "last_action": "a",
    "units": "m, s, rad, N",
}
"""Compared word for word with recorded contracts: another wording says another convention."""

LAYOUT = "term-major, oldest first"
"""How the frames of a group are laid out; back-filled with the first one after a reset."""

FRAMES = "[H, D], oldest first"
"""The same of a group that is not flattened."""

_COLUMNS = ("joints", "actuators", "scale", "offset", "box", "target_clip", "clipped")
_NOT_HASHED = ("task", "sim_dt", "decimation", "world")
_WORLD = {
    "gravity": "sim",
    "integrator": "sim",
    "cone": "sim",
    "impratio": "sim",
    "ground": "scene",
    "ground_friction": "scene",
}
"""What of a configuration is the world, and the part of `env` that says it."""


def resolve(owner_cfg: OwnerCfg) -> dict[str, Any]:
    """The contract of a task, without an environment.

    Args:
        owner_cfg: Task, environment and learner.

    Returns:
        Plain JSON types; the module's docstring lists them.

    Raises:
        ConfigError: If the scene does not compile or a name matches nothing.
    """
    from unilab_gym.scene import build_scene

    env = owner_cfg.env
    index = build_scene(env.scene, env.sim, env.sim_dt).index
    return resolve_from(env, index, task=owner_cfg.task, algo=owner_cfg.algo)


def resolve_built(env: EnvCfg, rt: Runtime, *, task: str = "") -> dict[str, Any]:
    """The contract that a built environment has; `network` is null.

    Args:
        env: Its configuration.
        rt: Its runtime.
        task: The registered id.
    """
    observations = rt.observations
    return resolve_from(
        env,
        rt.backend.spec.index,
        task=task,
        widths={
            group: {term.name: term.width for term in observations.layout(group)}
            for group in env.observations
        },
        actions=rt.actions.specs,
    )


def resolve_from(
    env: EnvCfg,
    index: ModelIndex,
    *,
    task: str = "",
    algo: AlgoCfg | None = None,
    widths: Mapping[str, Mapping[str, int]] | None = None,
    actions: Mapping[str, ActionSpec] | None = None,
) -> dict[str, Any]:
    """The contract from name tables that exist already: what a built environment calls.

    Args:
        env: The environment's configuration.
        index: Its name tables.
        task: The registered id.
        algo: The learner's settings; None leaves `network` null.
        widths: Columns per group and term as built; None asks the terms.
        actions: Action terms as built; None resolves them.

    Returns:
        Plain JSON types; the module's docstring lists them.

    Raises:
        ConfigError: If a name matches nothing or a term declares no width.
    """
    from unilab_gym.runtime.managers.actions import resolve_actions  # torch: not at import

    if actions is None:
        actions = resolve_actions(env.actions, index, env.clip_actions)
    groups = {
        name: _group(name, group, index, None if widths is None else widths[name])
        for name, group in env.observations.items()
    }
    action_part = _actions(env, actions)
    contract = {
        "schema": SCHEMA,
        "task": task,
        "robot": {"root_body": index.root_body, "floating": index.floating},
        "control_dt": float(env.ctrl_dt),
        "sim_dt": float(env.sim_dt),
        "decimation": env.decimation,
        "world": {name: getattr(getattr(env, part), name) for name, part in _WORLD.items()},
        "joints": _joints(index),
        "actions": action_part,
        "observations": groups,
        "commands": {name: _command(name, cfg, index) for name, cfg in env.commands.items()},
        "conventions": dict(CONVENTIONS),
        "network": None if algo is None else _network(algo, groups, len(action_part["scale"])),
    }
    return plain(contract)


def world_of(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The contract's `world` as a plain configuration says it; None where that is not whole."""
    env: Any = config.get("env")
    world: dict[str, Any] = {}
    for name, part in _WORLD.items():
        given: Any = cast("Mapping[str, Any]", env).get(part) if isinstance(env, Mapping) else None
        if not isinstance(given, Mapping) or name not in given:
            return None
        world[name] = given[name]
    return world


def contract_hash(contract: Mapping[str, Any]) -> str:
    """A digest of what defines robot and policy: equal digests mean that a replay is compatible.

    Left out: the task's id, and what another world or training
    may have of its own (physics step, gravity, ground, noise). Numbers
    count to nine digits, 2 and 2.0 are the same.

    Returns:
        `"sha256:"` and 64 hexadecimal digits.
    """
    part = {key: value for key, value in contract.items() if key not in _NOT_HASHED}
    text = json.dumps(_canonical(part), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {key: _canonical(item) for key, item in items if key not in ("noise", "bias")}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{float(value) + 0.0:.9g}"  # + 0.0: no minus sign on zero
    return value


def _bound(value: float | None) -> float | None:
    """None where nothing limits."""
    return None if value is None or math.isinf(value) else float(value)


# --- robot and actions --------------------------------------------------------------------------


def _joints(index: ModelIndex) -> dict[str, Any]:
    driven = {actuator.joint: actuator for actuator in index.actuators}
    actuators = [driven.get(joint.name) for joint in index.joints]
    return {
        "names": list(index.joint_names),
        "actuators": [None if a is None else a.name for a in actuators],
        "default": [joint.default for joint in index.joints],
        "kp": [None if a is None else a.kp for a in actuators],
        "kd": [None if a is None else a.kd for a in actuators],
        "effort": [None if a is None else _bound(a.effort) for a in actuators],
        "armature": [joint.armature for joint in index.joints],
    }


def _actions(env: EnvCfg, specs: Mapping[str, ActionSpec]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    terms: list[dict[str, Any]] = []
    for name, spec in specs.items():
        width = len(spec.scale)
        terms.append(
            {
                "name": name,
                "func": func_name(env.actions[name].func),
                "kind": spec.kind,
                "start": len(columns["scale"]),
                "width": width,
                "delay": _delay(env.actions[name].delay),
            }
        )
        clip = spec.target_clip
        columns["joints"] += spec.joints
        columns["actuators"] += spec.actuators
        columns["scale"] += map(float, spec.scale)
        columns["offset"] += map(float, spec.offset)
        columns["box"] += [_bound(spec.box) if spec.clipped else None] * width
        columns["target_clip"] += (
            [None] * width if clip is None else [[_bound(low), _bound(high)] for low, high in clip]
        )
        columns["clipped"] += [spec.clipped] * width
    return {**columns, "terms": terms}


# --- observations, commands, network ------------------------------------------------------------


def _group(
    group_name: str, group: ObservationGroupCfg, index: ModelIndex, widths: Mapping[str, int] | None
) -> dict[str, Any]:
    from unilab_gym.runtime.term import full_params, term_width

    terms: list[dict[str, Any]] = []
    start = 0
    for name, cfg in group.terms.items():
        where = f"observations.{group_name}.{name}"
        try:
            params = full_params(cfg.func, cfg.params)
            width = widths[name] if widths is not None else term_width(cfg.func, cfg.params, index)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        history = history_of(group, cfg)
        delay, draw = (group.delay, group_name) if cfg.delay is None else (cfg.delay, None)
        terms.append(
            {
                "name": name,
                "func": func_name(cfg.func),
                "params": params,
                "start": start,
                "width": width,
                "scale": _scale(where, cfg, width),
                "clip": None if cfg.clip is None else [_bound(bound) for bound in cfg.clip],
                "noise": _noise(cfg.noise) if group.corrupt else None,
                "bias": _noise(cfg.bias) if group.corrupt else None,
                "history": history,
                "delay": _delay(delay, draw),
            }
        )
        start += width * (max(history, 1) if group.flatten else 1)
    if group.flatten:
        return {"width": start, "layout": LAYOUT, "terms": terms}
    return {"width": start * terms[0]["history"], "layout": FRAMES, "terms": terms}


def _noise(cfg: UniformNoiseCfg | GaussianNoiseCfg | None) -> dict[str, Any] | None:
    if cfg is None:
        return None
    kind = "gaussian" if isinstance(cfg, GaussianNoiseCfg) else "uniform"
    return {"kind": kind, **plain(cfg)}


def _delay(given: Delay, draw: str | None = None) -> int | dict[str, Any]:
    """A latency, and by which name several terms share its draw."""
    delay = delay_of(given)
    if delay.low == delay.high:
        return delay.low
    shared = draw if delay.shared is None else delay.shared
    return {"steps": [delay.low, delay.high], "redraw": delay.redraw, "shared": shared}


def _scale(where: str, cfg: ObservationTermCfg, width: int) -> list[float]:
    if not isinstance(cfg.scale, tuple):
        return [float(cfg.scale)] * width
    if len(cfg.scale) != width:
        raise ConfigError(f"{where}: {len(cfg.scale)} scales for {width} columns")
    return [float(scale) for scale in cfg.scale]


def _command(name: str, cfg: CommandTermCfg, index: ModelIndex) -> dict[str, Any]:
    """A generator's function, the names of its components, and what its class says of itself."""
    result: dict[str, Any] = {
        "func": func_name(cfg.func),
        "components": getattr(cfg.func, "component_names", ()),
    }
    describe = cast("Callable[..., Mapping[str, Any]] | None", getattr(cfg.func, "describe", None))
    if describe is None:
        return result
    for key, value in describe(index, **cfg.params).items():
        if key in result:
            raise ConfigError(f"commands.{name}: describe() must not return the key {key!r}")
        result[key] = value
    return result


def _network(algo: AlgoCfg, groups: Mapping[str, Any], action_width: int) -> dict[str, Any]:
    for role, names in algo.obs_groups.items():
        for group in names:
            if group not in groups:
                raise ConfigError(f"algo.obs_groups.{role}: no group {near(group, groups)}")

    def layers(role: str, cfg: NetworkCfg) -> dict[str, Any]:
        names = algo.obs_groups.get(role, ())
        return {"obs_width": sum(groups[name]["width"] for name in names), **plain(cfg)}

    return {
        "obs_groups": algo.obs_groups,
        "action_width": action_width,
        "actor": layers("actor", algo.actor),
        "critic": layers("critic", algo.critic),
    }

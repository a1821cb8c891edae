"""`describe`: what goes in and out of a policy, and what the task does with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from unilab_gym.cli import print_json
from unilab_gym.cli.arguments import Describe
from unilab_gym.cli.text import number, numbers, table
from unilab_gym.errors import ConfigError

if TYPE_CHECKING:
    from unilab_gym.config import EnvCfg, TermCfg


_EVENT = ("mode", "interval_s", "global_interval", "min_steps_between", "in_play")


def describe(args: Describe) -> None:
    """A task, or the contract that a policy carries."""
    from unilab_gym.contract.plain import write_json

    data = facts(args.task, args.backend)
    if args.out is not None:
        write_json(args.out, data)
    if args.json:
        print_json(data)
    else:
        print(text(data))


def facts(task: str, backend: str) -> dict[str, Any]:
    """Everything that `describe` says, as plain data.

    Args:
        task: A registered id, or a path: run folder, checkpoint, ONNX file.
        backend: Whose configuration of the task.

    Returns:
        `contract` (the resolved contract, as in run_config.json and in an ONNX file),
        `contract_hash`, `command_ranges` (of training, where they are known) and, for a task,
        `summary`, `backend`, `timing`, `rewards`,
        `terminations`, `events`, `metrics`, `curriculum`, `recorders`, `read_plan`.

    Raises:
        ConfigError: If it is neither.
        CrossBackendIncompatibleError: If the file cannot be read for certain.
    """
    from unilab_gym.contract import contract_hash
    from unilab_gym.contract.snapshot import command_ranges, load_source
    from unilab_gym.registration import task_ids

    if task.removeprefix("unilab_gym:") in task_ids():
        return _task_facts(task, backend)
    if not Path(task).expanduser().exists():
        raise ConfigError(f"{task!r} is no task ({', '.join(task_ids())}) and no file")
    side = load_source(task)
    contract = dict(side.resolved or {})
    return {
        "source": task,
        "contract": contract,
        "contract_hash": contract_hash(contract),
        "command_ranges": command_ranges(side.declared, side.resolved),
    }


def _task_facts(task_id: str, backend: str) -> dict[str, Any]:
    from unilab_gym.contract import contract_hash
    from unilab_gym.contract.snapshot import build_snapshot, command_ranges
    from unilab_gym.factory import make
    from unilab_gym.registration import load_task, owner_config

    owner = owner_config(task_id, backend)
    record, env = build_snapshot(owner), owner.env
    contract = record["resolved"]
    # Declarations are the same on every backend; nothing is recorded.
    built = make(dataclasses.replace(env, recorders={}, fault_dump=None), 1, backend="mujoco")
    try:
        plan = str(built.runtime.read_plan)
    finally:
        built.close()
    return {
        "task": owner.task,
        "summary": load_task(task_id).summary,
        "backend": backend,
        "timing": {
            "control_dt": env.ctrl_dt,
            "control_hz": 1.0 / env.ctrl_dt,
            "sim_dt": env.sim_dt,
            "decimation": env.decimation,
            "episode_length_s": env.episode_length_s,
            "max_episode_steps": env.max_episode_steps,
        },
        "contract": contract,
        "contract_hash": contract_hash(contract),
        "command_ranges": command_ranges(record["declared"], contract),
        **_terms(env),
        "read_plan": plan.splitlines(),
    }


def _terms(env: EnvCfg) -> dict[str, Any]:
    """What the contract leaves out: rewards, terminations, events, curricula and so on."""
    kinds: tuple[tuple[str, Mapping[str, Any], tuple[str, ...]], ...] = (
        ("rewards", env.rewards, ("weight",)),
        ("terminations", env.terminations, ("time_out",)),
        ("events", env.events, _EVENT),
        ("metrics", env.metrics, ("reduce", "play_only")),
        ("curriculum", env.curriculum, ()),
        ("recorders", env.recorders, ()),
    )
    return {
        kind: [
            {"name": name, **{key: getattr(cfg, key) for key in keys}, **_func(cfg)}
            for name, cfg in terms.items()
        ]
        for kind, terms, keys in kinds
    }


def _func(cfg: TermCfg) -> dict[str, Any]:
    from unilab_gym.config import func_name
    from unilab_gym.contract.plain import plain

    return {"func": func_name(cfg.func), "params": plain(cfg.params)}


# --- as text --------------------------------------------------------------------------------------


def text(data: Mapping[str, Any]) -> str:
    """The same for people."""
    contract = cast("dict[str, Any]", data["contract"])
    title = data["task"] if "task" in data else data["source"]
    lines = [f"{title}" + (f" on {data['backend']}: {data['summary']}" if "task" in data else "")]
    lines.append(f"contract {contract['schema']} {data['contract_hash']}")
    lines += ["", *_timing(data, contract)]
    for name, group in contract["observations"].items():
        lines += ["", *_observations(name, group, contract)]
    lines += ["", *_actions(contract), "", *_commands(contract, data["command_ranges"])]
    for kind in ("rewards", "terminations", "events", "metrics", "curriculum", "recorders"):
        if data.get(kind):
            lines += ["", kind, _listing(data[kind])]
    if "read_plan" in data:
        lines += ["", "read plan", *(f"  {line}" for line in data["read_plan"])]
    lines += ["", "conventions", *(f"  {k}: {v}" for k, v in contract["conventions"].items())]
    return "\n".join(lines)


def _timing(data: Mapping[str, Any], contract: Mapping[str, Any]) -> list[str]:
    step, sim = contract["control_dt"], contract["sim_dt"]
    line = (
        f"  control step {number(step)} s ({number(1.0 / step)} Hz) = "
        f"{contract['decimation']} physics steps of {number(sim)} s"
    )
    if "timing" in data:
        timing = data["timing"]
        length, steps = number(timing["episode_length_s"]), timing["max_episode_steps"]
        line += f"; an episode is {length} s, {steps} control steps"
    return ["timing", line]


def _observations(name: str, group: Mapping[str, Any], contract: Mapping[str, Any]) -> list[str]:
    from unilab_gym.contract.resolve import FRAMES

    terms = cast("list[dict[str, Any]]", group["terms"])
    total = sum(term["width"] for term in terms) if group["layout"] == FRAMES else group["width"]
    ends = [*(term["start"] for term in terms[1:]), total]
    rows = [
        (
            f"{term['start']}:{end}",
            term["name"],
            numbers(term["scale"]),
            _bounds(term["clip"]),
            _noise(term["noise"]),
            term["history"],
            _plain(term["delay"]),
            term["func"].rpartition(":")[2] + _params(term["params"]),
        )
        for term, end in zip(terms, ends, strict=True)
    ]
    network = cast("dict[str, Any]", contract["network"] or {})
    roles = cast("dict[str, list[str]]", network.get("obs_groups", {}))
    readers = [role for role, groups in roles.items() if name in groups]
    for_whom = f", read by {' and '.join(readers)}" if readers else ""
    headers = ("columns", "term", "scale", "clip", "noise", "history", "delay", "function")
    return [
        f"observation group {name!r}: {group['width']} columns{for_whom}; "
        f"history {group['layout']}",
        table(headers, rows),
    ]


def _actions(contract: Mapping[str, Any]) -> list[str]:
    actions, joints = contract["actions"], contract["joints"]
    row_of = {name: row for row, name in enumerate(joints["names"])}
    rows: list[tuple[object, ...]] = []
    for i, joint in enumerate(actions["joints"]):
        row = row_of[joint]
        figures = (joints[key][row] for key in ("default", "kp", "kd", "effort", "armature"))
        rows.append(
            (
                i,
                joint,
                actions["actuators"][i],
                number(actions["scale"][i]),
                number(actions["offset"][i]),
                numbers([actions["box"][i]]),
                _bounds(actions["target_clip"][i]),
                *("none" if value is None else number(value) for value in figures),
            )
        )
    headers = ("column", "joint", "actuator", "scale", "offset", "box", "target clip", "default")
    return [
        f"actions: {len(rows)} columns; {contract['conventions']['action']}",
        table((*headers, "kp", "kd", "effort", "armature"), rows),
    ]


def _commands(contract: Mapping[str, Any], ranges: Mapping[str, Any]) -> list[str]:
    def component(name: str, part: str) -> str:
        bounds = ranges.get(name, {}).get(part)
        return part if bounds is None else f"{part} {_bounds(bounds)}"

    rows = [
        (
            name,
            ", ".join(component(name, part) for part in command["components"]),
            command["func"].rpartition(":")[2]
            + _params({k: v for k, v in command.items() if k not in ("func", "components")}),
        )
        for name, command in contract["commands"].items()
    ]
    if not rows:
        return ["commands: none"]
    return ["commands", table(("command", "components and their ranges", "generator"), rows)]


def _listing(terms: list[dict[str, Any]]) -> str:
    keys = [key for key in terms[0] if key not in ("func", "params")]
    rows = [
        (
            *(_plain(term[key]) for key in keys),
            term["func"].rpartition(":")[2] + _params(term["params"]),
        )
        for term in terms
    ]
    return table((*keys, "function"), rows)


def _bounds(bounds: Any) -> str:
    if bounds is None:
        return "none"
    low, high = bounds
    return f"[{'-inf' if low is None else number(low)}, {'inf' if high is None else number(high)}]"


def _noise(noise: Mapping[str, Any] | None) -> str:
    if noise is None:
        return "none"
    figures = {key: value for key, value in noise.items() if key != "kind"}
    if set(figures) == {"low", "high"}:
        return f"[{number(noise['low'])}, {number(noise['high'])}]"
    kind = f"{noise['kind']} " if "kind" in noise else ""
    return kind + ", ".join(f"{key} {_plain(value)}" for key, value in figures.items())


def _params(params: Mapping[str, Any]) -> str:
    if not params:
        return ""
    return "(" + ", ".join(f"{key}={_plain(value)}" for key, value in params.items()) + ")"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_plain, cast("list[Any]", value))) + "]"
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return "{" + ", ".join(f"{key}: {_plain(item)}" for key, item in items) + "}"
    return str(value)

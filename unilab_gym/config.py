"""Configuration: frozen dataclasses that round-trip exactly through plain JSON types.

A task module returns an `OwnerCfg`: the environment, the learner's settings and the run's.
Variants are made with `dataclasses.replace` or `apply_overrides`; building an environment never
changes a config. Terms are named by their function or class; `to_dict` stores `module:qualname`.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from unilab_gym.errors import ConfigError, near

T = TypeVar("T")
TermFunc = Callable[..., Any]


def _freeze(value: Any) -> Any:
    """Lists become tuples, at any depth, so that a config equals its JSON round trip."""
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(item) for item in cast("list[Any]", value))
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _freeze(item) for key, item in items}
    return value


def _one_of(what: str, value: str, options: tuple[str, ...]) -> None:
    if value not in options:
        raise ConfigError(f"{what}: {near(str(value), options)}")


@dataclass(frozen=True, kw_only=True)
class TermCfg:
    """A term: what computes it, and its parameters."""

    func: TermFunc
    """A function decorated with `@term`, or a term class."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the term; plain JSON types, lists are kept as tuples."""

    def __post_init__(self) -> None:
        """Freezes the parameters.

        Raises:
            ConfigError: If `func` is not callable.
        """
        if not callable(self.func):
            raise ConfigError(f"func must be a term function or class, got {self.func!r}")
        object.__setattr__(self, "params", _freeze(self.params))


@dataclass(frozen=True, kw_only=True)
class UniformNoiseCfg:
    """Uniform noise added to every component of a term."""

    low: float
    """Lower bound, in the term's unit before scaling."""
    high: float
    """Upper bound."""

    def __post_init__(self) -> None:
        """Checks the order of the bounds.

        Raises:
            ConfigError: If low exceeds high.
        """
        if not self.low <= self.high:
            raise ConfigError(f"noise: low {self.low} exceeds high {self.high}")


@dataclass(frozen=True, kw_only=True)
class ObservationTermCfg(TermCfg):
    """One block of an observation group: value -> noise -> clip -> scale."""

    noise: UniformNoiseCfg | None = None
    clip: tuple[float, float] | None = None
    """Bounds applied after the noise."""
    scale: float | tuple[float, ...] = 1.0
    """Factor applied last: one number, or one per component."""

    def __post_init__(self) -> None:
        """Freezes lists and checks the order of the bounds.

        Raises:
            ConfigError: If `clip` is not (low, high).
        """
        super().__post_init__()
        object.__setattr__(self, "clip", _freeze(self.clip))
        object.__setattr__(self, "scale", _freeze(self.scale))
        if self.clip is not None and not (len(self.clip) == 2 and self.clip[0] <= self.clip[1]):
            raise ConfigError(f"clip must be (low, high), got {self.clip}")


@dataclass(frozen=True, kw_only=True)
class ObservationGroupCfg:
    """Terms concatenated in order into one `[N, D]` tensor."""

    terms: Mapping[str, ObservationTermCfg]
    corrupt: bool = False
    """Whether the terms' noise is applied."""


@dataclass(frozen=True, kw_only=True)
class ActionTermCfg(TermCfg):
    """Part of the action vector; parts are concatenated in order."""


@dataclass(frozen=True, kw_only=True)
class RewardTermCfg(TermCfg):
    """Reward term: weight x value x control_dt is added each step."""

    weight: float
    """Weight per second; a term of weight 0 is not computed."""


@dataclass(frozen=True, kw_only=True)
class TerminationTermCfg(TermCfg):
    """Ends an episode where the term is true."""

    time_out: bool = False
    """Whether it truncates (a time limit) rather than terminates (a failure)."""


@dataclass(frozen=True, kw_only=True)
class CommandTermCfg(TermCfg):
    """A command generator; `func` is a `CommandTerm` class."""


@dataclass(frozen=True, kw_only=True)
class EventTermCfg(TermCfg):
    """Something that happens to the simulation; `func` is an `EventTerm` class."""

    mode: Literal["startup", "reset", "interval"]
    """startup: once, at the first reset; reset: at each reset; interval: every `interval_s`."""
    interval_s: tuple[float, float] | None = None
    """Range of the time between two events, drawn per environment (mode interval only)."""
    in_play: bool = False
    """Whether it also happens with `play=True`; randomization does not."""

    def __post_init__(self) -> None:
        """Checks that the interval belongs to the mode.

        Raises:
            ConfigError: If the mode is unknown, or an interval is missing, not asked for, or not
                ordered.
        """
        super().__post_init__()
        _one_of("mode", self.mode, ("startup", "reset", "interval"))
        object.__setattr__(self, "interval_s", _freeze(self.interval_s))
        if (self.mode == "interval") != (self.interval_s is not None):
            raise ConfigError(f"interval_s goes with mode 'interval' only, got {self.mode!r}")
        if self.interval_s is not None and not 0 < self.interval_s[0] <= self.interval_s[1]:
            raise ConfigError(f"interval_s must be 0 < low <= high, got {self.interval_s}")


@dataclass(frozen=True, kw_only=True)
class MetricTermCfg(TermCfg):
    """A number per environment that is logged, never rewarded."""

    reduce: Literal["mean", "sum", "max", "last"] = "mean"
    """How the steps of an episode become one number."""
    play_only: bool = False
    """Whether it is computed in play only: evaluation figures that training need not pay for."""

    def __post_init__(self) -> None:
        """Checks the reduction.

        Raises:
            ConfigError: If it is unknown.
        """
        super().__post_init__()
        _one_of("reduce", self.reduce, ("mean", "sum", "max", "last"))


@dataclass(frozen=True, kw_only=True)
class SimCfg:
    """Engine settings, the same on every backend."""

    integrator: Literal["euler", "implicitfast"] = "implicitfast"
    solver: Literal["newton", "cg"] = "newton"
    iterations: int = 10
    ls_iterations: int = 20
    cone: Literal["pyramidal", "elliptic"] = "pyramidal"
    impratio: float = 1.0
    gravity: tuple[float, float, float] = (0.0, 0.0, -9.81)
    """m/s^2."""
    njmax: int | None = None
    """Constraint rows per environment (mjwarp); None lets the engine guess."""
    nconmax: int | None = None
    """Contacts per environment in the shared pool (mjwarp); None lets the engine guess."""
    num_threads: int | None = None
    """Physics threads (mujoco); None takes the CPUs this process may use."""

    def __post_init__(self) -> None:
        """Checks counts and factors.

        Raises:
            ConfigError: If one is not positive.
        """
        for name in ("iterations", "ls_iterations", "impratio", "njmax", "nconmax", "num_threads"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"sim.{name} must be positive, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class SceneCfg:
    """What is simulated: one robot on a ground."""

    robot: str
    """MJCF file: a path inside the packaged assets (`robots/go2/go2.xml`) or a path on disk."""
    ground: Literal["flat", "none"] = "flat"
    ground_friction: float = 1.0
    """Slide friction of the ground geom; a geom with higher priority decides for both."""
    keyframe: str | None = "home"
    """Default state; None takes the model's qpos0."""

    def __post_init__(self) -> None:
        """Checks the ground.

        Raises:
            ConfigError: If it is unknown.
        """
        _one_of("ground", self.ground, ("flat", "none"))


@dataclass(frozen=True, kw_only=True)
class EnvCfg:
    """One environment: scene, timing and terms of every manager."""

    scene: SceneCfg
    sim: SimCfg = field(default_factory=SimCfg)
    sim_dt: float = 0.005
    """Physics step in s."""
    ctrl_dt: float = 0.02
    """Control step in s: a whole multiple of sim_dt."""
    episode_length_s: float = 20.0
    """Time limit in s; `max_episode_steps` is round(episode_length_s / ctrl_dt)."""
    actions: Mapping[str, ActionTermCfg]
    clip_actions: bool = True
    """Whether actions are clamped to the action box."""
    observations: Mapping[str, ObservationGroupCfg]
    """Groups by name; "policy" is required."""
    rewards: Mapping[str, RewardTermCfg] = field(default_factory=dict[str, RewardTermCfg])
    terminations: Mapping[str, TerminationTermCfg] = field(
        default_factory=dict[str, TerminationTermCfg]
    )
    commands: Mapping[str, CommandTermCfg] = field(default_factory=dict[str, CommandTermCfg])
    """Generated in this order; a later one may read an earlier one."""
    events: Mapping[str, EventTermCfg] = field(default_factory=dict[str, EventTermCfg])
    metrics: Mapping[str, MetricTermCfg] = field(default_factory=dict[str, MetricTermCfg])
    play: bool = False
    """Whether this is the play variant, see `for_play`."""

    def __post_init__(self) -> None:
        """Checks timing and groups.

        Raises:
            ConfigError: If sim_dt does not divide ctrl_dt, a time is not positive, there is no
                policy group, or an action is missing.
        """
        for name in ("sim_dt", "ctrl_dt", "episode_length_s"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be a positive time in s, got {value!r}")
        if abs(self.decimation * self.sim_dt - self.ctrl_dt) > 1e-9:
            raise ConfigError(
                f"ctrl_dt {self.ctrl_dt} is not a whole multiple of sim_dt {self.sim_dt}"
            )
        if "policy" not in self.observations:
            raise ConfigError(
                f"observations need a group 'policy', got {sorted(self.observations)}"
            )
        if "state" in self.observations:
            raise ConfigError("an observation group cannot be named 'state': TorchRL renames it")
        if not self.actions:
            raise ConfigError("actions: at least one action term is needed")

    @property
    def decimation(self) -> int:
        """Physics steps per control step."""
        return max(1, round(self.ctrl_dt / self.sim_dt))

    @property
    def max_episode_steps(self) -> int:
        """Time limit in control steps."""
        return max(1, round(self.episode_length_s / self.ctrl_dt))

    def for_play(self) -> EnvCfg:
        """The same environment without noise, randomization and pushes."""
        groups = {
            name: dataclasses.replace(group, corrupt=False)
            for name, group in self.observations.items()
        }
        events = {name: event for name, event in self.events.items() if event.in_play}
        return dataclasses.replace(self, observations=groups, events=events, play=True)


@dataclass(frozen=True, kw_only=True)
class NetworkCfg:
    """A multilayer perceptron."""

    hidden_dims: tuple[int, ...] = (256, 128, 64)
    activation: str = "elu"
    obs_normalization: bool = True
    """Whether a running mean and variance of the observations sits before the network."""


@dataclass(frozen=True, kw_only=True)
class AlgoCfg:
    """Settings of the learner, neutral to the library that reads them."""

    library: str = "rsl_rl"
    obs_groups: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"actor": ("policy",), "critic": ("policy",)}
    )
    """Which observation groups the actor and the critic get, in order."""
    actor: NetworkCfg = field(default_factory=NetworkCfg)
    critic: NetworkCfg = field(default_factory=NetworkCfg)
    hyper: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Hyperparameters under the library's own names."""

    def __post_init__(self) -> None:
        """Freezes the mappings."""
        object.__setattr__(self, "obs_groups", _freeze(self.obs_groups))
        object.__setattr__(self, "hyper", _freeze(self.hyper))


@dataclass(frozen=True, kw_only=True)
class TrainingCfg:
    """Settings of a run."""

    sim_backend: str = "mujoco"
    play_only: bool = False
    play_steps: int = 1000
    """Steps of a recorded rollout."""
    num_envs: int = 512
    iterations: int = 240
    seed: int = 1
    sim2sim_strict: bool = True
    """Whether a replay is refused on deny-tier differences (GUARD) or only warned about."""


@dataclass(frozen=True, kw_only=True)
class OwnerCfg:
    """What a task module returns for one backend."""

    task: str
    """The registered id."""
    env: EnvCfg
    algo: AlgoCfg = field(default_factory=AlgoCfg)
    training: TrainingCfg = field(default_factory=TrainingCfg)


# --- plain data -----------------------------------------------------------------------------


def func_name(func: TermFunc) -> str:
    """`module:qualname` of a term.

    Raises:
        ConfigError: If the name would not lead back to it (a lambda, a local function).
    """
    module, qualname = getattr(func, "__module__", None), getattr(func, "__qualname__", "")
    if not module or not qualname or "<" in qualname:
        raise ConfigError(f"term {func!r} needs an importable name: define it at module level")
    return f"{module}:{qualname}"


def load_func(name: str) -> TermFunc:
    """The term that `func_name` named.

    Raises:
        ConfigError: If the module or the name is not there.
    """
    module_name, _, qualname = name.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:  # an empty or relative name
        raise ConfigError(f"term {name!r}: cannot import {module_name!r}: {error}") from error
    for part in qualname.split("."):
        if not hasattr(target, part):
            raise ConfigError(f"term {name!r}: {module_name} has no {near(part, dir(target))}")
        target = getattr(target, part)
    return cast("TermFunc", target)


def to_dict(value: Any) -> Any:
    """Plain JSON types: mappings, lists, numbers, text, booleans, None.

    Raises:
        ConfigError: If a value has no plain form; the message holds its path.
    """
    return _encode(value, "")


def _encode(value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: _encode(getattr(value, item.name), f"{path}.{item.name}".lstrip("."))
            for item in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _encode(item, f"{path}.{key}".lstrip(".")) for key, item in items}
    if isinstance(value, (list, tuple)):
        sequence = cast("list[Any]", value)
        return [_encode(item, f"{path}[{number}]") for number, item in enumerate(sequence)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if callable(value):
        return func_name(value)
    raise ConfigError(f"{path}: {type(value).__name__} {value!r} has no plain form")


def from_dict(cls: type[T], data: Mapping[str, Any]) -> T:
    """The inverse of `to_dict`.

    Raises:
        ConfigError: On an unknown or missing key or a value of the wrong kind, with its path.
    """
    return cast("T", _decode(cls, data, ""))


def _decode_dataclass(cls: Any, data: Any, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path or cls.__name__}: expected a mapping, got {data!r}")
    mapping = cast("Mapping[str, Any]", data)
    hints = typing.get_type_hints(cls)
    fields = {item.name: item for item in dataclasses.fields(cls)}
    for key in mapping:
        if key not in fields:
            where = f"{path}: " if path else ""
            raise ConfigError(f"{where}unknown key {near(key, fields)}")
    kwargs = {
        key: _decode(hints[key], value, f"{path}.{key}".lstrip("."))
        for key, value in mapping.items()
    }
    missing = [
        name
        for name, item in fields.items()
        if name not in kwargs
        and item.default is dataclasses.MISSING
        and item.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{path or cls.__name__}: missing {', '.join(missing)}")
    return cls(**kwargs)


def _decode(hint: Any, value: Any, path: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return _freeze(value)
    if origin in (Union, types.UnionType):
        return _decode_union(hint, value, path)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, value, path)
    if origin is Literal:
        if value not in get_args(hint) or isinstance(value, bool):
            raise ConfigError(f"{path}: {near(str(value), map(str, get_args(hint)))}")
        return value
    if origin is tuple:
        return _decode_tuple(hint, value, path)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: expected a mapping, got {value!r}")
        items = cast("Mapping[str, Any]", value).items()
        return {key: _decode(get_args(hint)[1], item, f"{path}.{key}") for key, item in items}
    if origin is not None and isinstance(origin, type) and issubclass(origin, Callable):
        return load_func(value) if isinstance(value, str) else value
    return _decode_scalar(hint, value, path)


def _decode_union(hint: Any, value: Any, path: str) -> Any:
    options = get_args(hint)
    if value is None and types.NoneType in options:
        return None
    problems: list[str] = []
    for option in options:
        if option is types.NoneType:
            continue
        try:
            return _decode(option, value, path)
        except ConfigError as error:
            problems.append(str(error))
    raise ConfigError(problems[0])


def _decode_tuple(hint: Any, value: Any, path: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{path}: expected a list, got {value!r}")
    items = cast("list[Any]", value)
    args = get_args(hint)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], item, f"{path}[{i}]") for i, item in enumerate(items))
    if len(items) != len(args):
        raise ConfigError(f"{path}: expected {len(args)} entries, got {len(items)}")
    return tuple(
        _decode(a, item, f"{path}[{i}]")
        for i, (a, item) in enumerate(zip(args, items, strict=True))
    )


def _decode_scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is bool:
        good = isinstance(value, bool)
    elif hint is float:
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
    elif hint is int:
        good = isinstance(value, int) and not isinstance(value, bool)
    elif hint is str:
        good = isinstance(value, str)
    else:
        raise ConfigError(f"{path}: no rule to read a {hint}")
    if not good:
        raise ConfigError(f"{path}: expected {hint.__name__}, got {type(value).__name__} {value!r}")
    return value


def apply_overrides(cfg: T, overrides: Mapping[str, Any]) -> T:
    """A copy of a config with values replaced by dotted path.

    Args:
        cfg: Any config dataclass.
        overrides: For example `{"episode_length_s": 5.0, "rewards.alive.weight": 2.0}`.

    Raises:
        ConfigError: If a path leads nowhere (with near candidates) or a value does not fit.
    """
    data = to_dict(cfg)
    for path, value in overrides.items():
        node: Any = data
        parts = path.split(".")
        for depth, part in enumerate(parts):
            where = ".".join(parts[:depth]) or type(cfg).__name__
            if not isinstance(node, dict) or (
                part not in node and not (depth == len(parts) - 1 and parts[-2:-1] == ["params"])
            ):
                options = cast("dict[str, Any]", node) if isinstance(node, dict) else ()
                raise ConfigError(f"override {path!r}: {where} has no {near(part, options)}")
            if depth == len(parts) - 1:
                node[part] = to_dict(value)
            else:
                node = cast("dict[str, Any]", node)[part]
    return from_dict(type(cfg), data)

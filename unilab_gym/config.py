"""Configuration: frozen dataclasses that round-trip exactly through plain JSON types.

A task module returns an `OwnerCfg`: the environment, the learner's settings and the run's.
Variants are made with `dataclasses.replace` or `apply_overrides`; building an environment never
changes a config. Terms are named by their function or class; `to_dict` stores `module:qualname`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from unilab_gym.diagnosis import FaultDumpCfg
from unilab_gym.errors import ConfigError, one_bool, one_of
from unilab_gym.learner_config import AlgoCfg, NetworkCfg, TrainingCfg
from unilab_gym.scene_config import ActuatorCfg, SceneCfg, SensorCfg, SimCfg
from unilab_gym.serialize import (
    TermFunc,
    apply_overrides,
    freeze,
    from_dict,
    func_name,
    infinite_path,
    load_func,
    nan_path,
    to_dict,
)
from unilab_gym.signals import Delay, DelayCfg, GaussianNoiseCfg, UniformNoiseCfg, delay_of

__all__ = [
    "ActionTermCfg",
    "ActuatorCfg",
    "AlgoCfg",
    "CommandTermCfg",
    "CurriculumTermCfg",
    "Delay",
    "DelayCfg",
    "EnvCfg",
    "EventTermCfg",
    "FaultDumpCfg",
    "GaussianNoiseCfg",
    "MetricTermCfg",
    "NetworkCfg",
    "ObservationGroupCfg",
    "ObservationTermCfg",
    "OwnerCfg",
    "RecorderTermCfg",
    "RewardTermCfg",
    "SceneCfg",
    "SensorCfg",
    "SimCfg",
    "TermCfg",
    "TermFunc",
    "TerminationTermCfg",
    "TrainingCfg",
    "UniformNoiseCfg",
    "apply_overrides",
    "delay_of",
    "from_dict",
    "func_name",
    "history_of",
    "load_func",
    "to_dict",
]


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
        object.__setattr__(self, "params", freeze(self.params))


@dataclass(frozen=True, kw_only=True)
class ObservationTermCfg(TermCfg):
    """One block of an observation group: value -> noise -> clip -> scale -> delay -> history."""

    noise: UniformNoiseCfg | GaussianNoiseCfg | None = None
    """Drawn anew at each boundary."""
    bias: UniformNoiseCfg | GaussianNoiseCfg | None = None
    """Added like noise, but drawn once per episode, for each component by itself."""
    clip: tuple[float, float] | None = None
    """Bounds applied after the noise."""
    scale: float | tuple[float, ...] = 1.0
    """Factor applied last: one number, or one per component."""
    delay: int | tuple[int, int] | DelayCfg | None = None
    """Latency in control steps; None takes the group's, drawn together with it."""
    history: int | None = None
    """Frames, this one included, oldest first; 0 is the value alone. None takes the group's."""

    def __post_init__(self) -> None:
        """Freezes lists and checks the order of the bounds.

        Raises:
            ConfigError: If `clip` is not (low, high), `scale` is not finite, or a delay or a
                history is not valid.
        """
        super().__post_init__()
        for name in ("clip", "scale", "delay"):
            object.__setattr__(self, name, freeze(getattr(self, name)))
        if self.clip is not None and not (len(self.clip) == 2 and self.clip[0] <= self.clip[1]):
            raise ConfigError(f"clip must be (low, high), got {self.clip}")
        scale: Any = self.scale
        factors = cast("tuple[float, ...]", scale if isinstance(scale, tuple) else (scale,))
        if not all(math.isfinite(factor) for factor in factors):
            raise ConfigError(f"scale must be finite, got {scale}")
        if self.delay is not None:
            delay_of(self.delay)
        if self.history is not None:
            _check_history(self.history)


def _check_history(frames: int) -> None:
    if not isinstance(cast("Any", frames), int) or isinstance(frames, bool) or frames < 0:
        raise ConfigError(f"history must be a number of frames >= 0, got {frames!r}")


@dataclass(frozen=True, kw_only=True)
class ObservationGroupCfg:
    """Terms concatenated in order into one `[N, D]` tensor."""

    terms: Mapping[str, ObservationTermCfg]
    corrupt: bool = False
    """Whether the terms' noise and bias are applied."""
    delay: int | tuple[int, int] | DelayCfg = 0
    """Latency of the terms that say none, in control steps; they share one draw."""
    history: int = 0
    """Frames of the terms that say none."""
    flatten: bool = True
    """Whether frames lie side by side, term after term, oldest first: `[N, sum of H x d]`. Else
    the group is `[N, H, D]`, oldest first, and every term needs the same history."""

    def __post_init__(self) -> None:
        """Checks what the terms share.

        Raises:
            ConfigError: If delay or history is not valid, or the history of an unflattened group
                is not one number of at least 1.
        """
        object.__setattr__(self, "delay", freeze(self.delay))
        delay_of(self.delay)
        _check_history(self.history)
        frames = {name: history_of(self, term) for name, term in self.terms.items()}
        if not self.flatten and (0 in frames.values() or len(set(frames.values())) > 1):
            raise ConfigError(
                f"flatten=False needs one history of at least 1 frame for every term, got {frames}"
            )


def history_of(group: ObservationGroupCfg, term: ObservationTermCfg) -> int:
    """Frames of a term of a group; 0 where it has no history."""
    return group.history if term.history is None else term.history


@dataclass(frozen=True, kw_only=True)
class ActionTermCfg(TermCfg):
    """Part of the action vector; parts are concatenated in order."""

    delay: int | tuple[int, int] | DelayCfg = 0
    """Control steps between an action and its effect; what `last_action` shows is not delayed."""

    def __post_init__(self) -> None:
        """Checks the delay.

        Raises:
            ConfigError: If it is not valid.
        """
        super().__post_init__()
        object.__setattr__(self, "delay", freeze(self.delay))
        delay_of(self.delay)


@dataclass(frozen=True, kw_only=True)
class RewardTermCfg(TermCfg):
    """Reward term: weight x value x control_dt is added each step."""

    weight: float
    """Weight per second; a term of weight 0 is checked, but not computed."""

    def __post_init__(self) -> None:
        """Checks the weight.

        Raises:
            ConfigError: If it is not finite.
        """
        super().__post_init__()
        if not math.isfinite(self.weight):
            raise ConfigError(f"weight must be finite, got {self.weight!r}")


@dataclass(frozen=True, kw_only=True)
class TerminationTermCfg(TermCfg):
    """Ends an episode where the term is true."""

    time_out: bool = False
    """Whether it truncates (a time limit) rather than terminates (a failure)."""


@dataclass(frozen=True, kw_only=True)
class CommandTermCfg(TermCfg):
    """A command generator; `func` is a `CommandTerm` class."""

    play_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Parameters that replace those of `params` with `play=True`."""

    def __post_init__(self) -> None:
        """Freezes the parameters."""
        super().__post_init__()
        object.__setattr__(self, "play_params", freeze(self.play_params))

    def for_play(self) -> CommandTermCfg:
        """The same generator with its play parameters."""
        return dataclasses.replace(self, params={**self.params, **self.play_params})


@dataclass(frozen=True, kw_only=True)
class EventTermCfg(TermCfg):
    """Something that happens to the simulation; `func` is an `EventTerm` class."""

    mode: Literal["startup", "reset", "interval", "step"]
    """startup: once, at the first reset; reset: at each reset; interval: every `interval_s`;
    step: at every step."""
    interval_s: tuple[float, float] | None = None
    """Range of the time between two events, drawn anew for each (mode interval only)."""
    global_interval: bool = False
    """Whether one countdown serves all environments, which are then due together (mode interval
    only). It follows environment 0's stream and restarts where all rows reset at once; without
    it each environment has its own, which restarts when that environment resets."""
    min_steps_between: int = 0
    """Control steps that must have passed in an environment since its event was last applied; a
    reset that comes earlier leaves the default state (mode reset only). 0 applies it always."""
    in_play: bool = False
    """Whether it also happens with `play=True`; randomization does not."""

    def __post_init__(self) -> None:
        """Checks that the interval belongs to the mode.

        Raises:
            ConfigError: If the mode is unknown, an interval is missing, not asked for, or not
                ordered, or a setting of another mode is given.
        """
        super().__post_init__()
        one_of("mode", self.mode, ("startup", "reset", "interval", "step"))
        object.__setattr__(self, "interval_s", freeze(self.interval_s))
        if (self.mode == "interval") != (self.interval_s is not None):
            raise ConfigError(f"interval_s goes with mode 'interval' only, got {self.mode!r}")
        if self.interval_s is not None and not 0 < self.interval_s[0] <= self.interval_s[1]:
            raise ConfigError(f"interval_s must be 0 < low <= high, got {self.interval_s}")
        if self.global_interval and self.mode != "interval":
            raise ConfigError(f"global_interval goes with mode 'interval' only, got {self.mode!r}")
        if self.min_steps_between and self.mode != "reset":
            raise ConfigError(f"min_steps_between goes with mode 'reset' only, got {self.mode!r}")
        if self.min_steps_between < 0:
            raise ConfigError(f"min_steps_between must not be negative: {self.min_steps_between}")


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
        one_of("reduce", self.reduce, ("mean", "sum", "max", "last"))


@dataclass(frozen=True, kw_only=True)
class CurriculumTermCfg(TermCfg):
    """Something that moves weights, ranges or thresholds; `func` is a `CurriculumTerm` class."""


@dataclass(frozen=True, kw_only=True)
class RecorderTermCfg(TermCfg):
    """Something that keeps what happens; `func` is a `RecorderTerm` class."""


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
    curriculum: Mapping[str, CurriculumTermCfg] = field(
        default_factory=dict[str, CurriculumTermCfg]
    )
    """What moves parameters while training; each parameter by one curriculum."""
    recorders: Mapping[str, RecorderTermCfg] = field(default_factory=dict[str, RecorderTermCfg])
    """What keeps episodes; also in play."""
    fault_dump: FaultDumpCfg | None = None
    """Where to write the history of a row that fails; None records nothing and costs nothing."""
    play: bool = False
    """Whether this is the play variant, see `for_play`."""
    cpu_ids: tuple[int, ...] | None = None
    """CPUs that the process is confined to (Linux), before the physics pool starts; the first
    environment of a process decides. None: wherever the process may run."""

    def __post_init__(self) -> None:
        """Checks timing and groups.

        Raises:
            ConfigError: If sim_dt does not divide ctrl_dt, a time is not positive, there is no
                policy group, an action is missing, a number is NaN, or infinite where it
                bounds nothing, or `cpu_ids` are no CPU numbers.
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
        if (where := nan_path(self)) is not None:
            raise ConfigError(f"{where} is not a number (NaN)")
        if (where := infinite_path(self)) is not None:
            raise ConfigError(
                f"{where} is infinite in float32: only a bound may be, in a parameter called so "
                "(clip, limit, threshold, min, max ...)"
            )
        one_bool("clip_actions", self.clip_actions)
        one_bool("play", self.play)
        if self.cpu_ids is not None:
            ids = cast("tuple[Any, ...]", freeze(self.cpu_ids))
            object.__setattr__(self, "cpu_ids", ids)
            fit = all(isinstance(cpu, int) and cpu >= 0 for cpu in ids)
            if not (ids and fit and len(set(ids)) == len(ids)):
                raise ConfigError(f"cpu_ids must be different CPU numbers, got {ids}")

    @property
    def decimation(self) -> int:
        """Physics steps per control step."""
        return max(1, round(self.ctrl_dt / self.sim_dt))

    @property
    def max_episode_steps(self) -> int:
        """Time limit in control steps."""
        return max(1, round(self.episode_length_s / self.ctrl_dt))

    def for_play(self) -> EnvCfg:
        """The same environment without noise, randomization, pushes and curriculum.

        Parameters keep the values of the config: those from before a curriculum's first stage.
        """
        groups = {
            name: dataclasses.replace(group, corrupt=False)
            for name, group in self.observations.items()
        }
        commands = {name: command.for_play() for name, command in self.commands.items()}
        events = {name: event for name, event in self.events.items() if event.in_play}
        return dataclasses.replace(
            self,
            observations=groups,
            commands=commands,
            events=events,
            curriculum={},
            play=True,
        )


@dataclass(frozen=True, kw_only=True)
class OwnerCfg:
    """What a task module returns for one backend."""

    task: str
    """The registered id."""
    env: EnvCfg
    algo: AlgoCfg = field(default_factory=AlgoCfg)
    training: TrainingCfg = field(default_factory=TrainingCfg)
    task_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The task's own arguments that were given, as `make_vec` takes them (`motion=...`)."""

    def __post_init__(self) -> None:
        """Freezes the arguments."""
        object.__setattr__(self, "task_kwargs", freeze(self.task_kwargs))

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

from unilab_gym.errors import ConfigError, near
from unilab_gym.serialize import (
    TermFunc,
    apply_overrides,
    freeze,
    from_dict,
    func_name,
    load_func,
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
            ConfigError: If `clip` is not (low, high), or a delay or history is not valid.
        """
        super().__post_init__()
        for name in ("clip", "scale", "delay"):
            object.__setattr__(self, name, freeze(getattr(self, name)))
        if self.clip is not None and not (len(self.clip) == 2 and self.clip[0] <= self.clip[1]):
            raise ConfigError(f"clip must be (low, high), got {self.clip}")
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
        _one_of("mode", self.mode, ("startup", "reset", "interval", "step"))
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
        _one_of("reduce", self.reduce, ("mean", "sum", "max", "last"))


@dataclass(frozen=True, kw_only=True)
class CurriculumTermCfg(TermCfg):
    """Something that moves weights, ranges or thresholds; `func` is a `CurriculumTerm` class."""


@dataclass(frozen=True, kw_only=True)
class SimCfg:
    """Engine settings, the same on every backend.

    The last three belong to one backend each. A task serves both and may hold them all; given by
    hand as an override of `make` or `make_vec`, one that the backend does not read is refused.
    """

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
class ActuatorCfg:
    """One actuator for each joint that a pattern matches, in the place of the MJCF's own.

    None keeps what the MJCF says of the joint. An actuator keeps the name that the MJCF gave it;
    where there was none it is called like its joint.
    """

    joints: tuple[str, ...]
    """Patterns; two entries of a scene may not claim one joint."""
    kind: Literal["position", "motor"] = "position"
    """position: force = kp * (ctrl - q) - kd * qdot; motor: force = ctrl."""
    kp: float | None = None
    """Stiffness in N m/rad (or N/m); needed by kind position, and only there."""
    kd: float | None = None
    """Damping in N m s/rad (or N s/m), kind position only; None is 0."""
    effort: float | None = None
    """Bound of the force in N m (or N); None does not limit it."""
    armature: float | None = None
    """Rotor inertia of the joint in kg m^2 (or kg)."""
    damping: float | None = None
    """Damping of the joint itself in N m s/rad (or N s/m); it adds to kd."""
    frictionloss: float | None = None
    """Dry friction of the joint in N m (or N)."""

    def __post_init__(self) -> None:
        """Freezes the patterns; checks that the gains belong to the kind.

        Raises:
            ConfigError: If a gain is missing or has no effect, or a number is out of range.
        """
        object.__setattr__(self, "joints", freeze(self.joints))
        _one_of("kind", self.kind, ("position", "motor"))
        if self.kind == "position" and self.kp is None:
            raise ConfigError("an actuator of kind 'position' needs kp")
        if self.kind == "motor" and not (self.kp is None and self.kd is None):
            raise ConfigError("kp and kd have no effect on an actuator of kind 'motor'")
        for name in ("kp", "kd", "effort", "armature", "damping", "frictionloss"):
            value = getattr(self, name)
            least = "positive" if name in ("kp", "effort") else "not negative"
            good = value is None or (value > 0 if least == "positive" else value >= 0)
            if not (good and (value is None or math.isfinite(value))):
                raise ConfigError(f"actuator {name} must be {least} and finite, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class SensorCfg:
    """A sensor that is added to the MJCF; terms read it by its name in the scene."""

    kind: str
    """MJCF's word for it: gyro, accelerometer, velocimeter, force, torque, touch, framelinvel,
    frameangvel, framequat, jointpos ..."""
    site: str | None = None
    """What it is fixed to: one of site, body, geom, joint. A body stands for its frame; a sensor
    that MuJoCo fixes to a site gets one there."""
    body: str | None = None
    geom: str | None = None
    joint: str | None = None

    def __post_init__(self) -> None:
        """Checks that it is fixed to one thing.

        Raises:
            ConfigError: If it is fixed to none or to several.
        """
        given = [name for name in ("site", "body", "geom", "joint") if getattr(self, name)]
        if len(given) != 1:
            raise ConfigError(f"a sensor is fixed to one of site, body, geom, joint; got {given}")


@dataclass(frozen=True, kw_only=True)
class SceneCfg:
    """What is simulated: one robot on a ground, or a world of your own (`ground="none"`)."""

    robot: str
    """MJCF file: a path inside the packaged assets (`robots/go2/go2.xml`) or a path on disk. Meshes
    and included files are found as MuJoCo finds them, relative to the file."""
    actuators: Mapping[str, ActuatorCfg] = field(default_factory=dict[str, ActuatorCfg])
    """Actuators in the place of the MJCF's, by a name of your choice."""
    sensors: Mapping[str, SensorCfg] = field(default_factory=dict[str, SensorCfg])
    """Sensors beside the MJCF's, by name."""
    ground: Literal["flat", "none"] = "flat"
    ground_friction: float = 1.0
    """Slide friction of the ground geom; a geom with higher priority decides for both."""
    keyframe: str | None = "home"
    """Default state; None takes the model's qpos0."""
    joint_pos: Mapping[str, float] = field(default_factory=dict[str, float])
    """Default joint positions over those of the keyframe, `{pattern: rad or m}`."""
    root_pos: tuple[float, float, float] | None = None
    """Default position of a floating base in m; None takes the keyframe's."""

    def __post_init__(self) -> None:
        """Freezes mappings; checks the ground.

        Raises:
            ConfigError: If the ground is unknown, or its friction has no effect.
        """
        _one_of("ground", self.ground, ("flat", "none"))
        if self.ground == "none" and self.ground_friction != 1.0:
            raise ConfigError("ground_friction has no effect with ground='none'")
        for name in ("actuators", "sensors", "joint_pos"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        object.__setattr__(self, "root_pos", freeze(self.root_pos))


@dataclass(frozen=True, kw_only=True)
class FaultDumpCfg:
    """Files for bug reports: the last steps of a row that fails, which plain MuJoCo replays."""

    directory: str
    """Folder that the NPZ files go to; made when the first is written."""
    steps: int = 64
    """Control steps kept, each row's engine state included."""
    max_files: int = 8
    """After so many files no more are written: a diverging run fails without end."""

    def __post_init__(self) -> None:
        """Checks the counts.

        Raises:
            ConfigError: If one is not a positive integer, or the folder has no name.
        """
        for name in ("steps", "max_files"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ConfigError(f"fault_dump.{name} must be a positive integer, got {value!r}")
        if not self.directory:
            raise ConfigError("fault_dump.directory must name a folder, got ''")


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
                policy group, an action is missing, or `cpu_ids` are no CPU numbers.
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
        object.__setattr__(self, "obs_groups", freeze(self.obs_groups))
        object.__setattr__(self, "hyper", freeze(self.hyper))


@dataclass(frozen=True, kw_only=True)
class TrainingCfg:
    """Settings of a run."""

    sim_backend: str = "mujoco"
    """mujoco or mjwarp; who builds the configuration of a registered task sets it."""
    play_only: bool = False
    """Whether nothing is trained under it: a replay."""
    play_steps: int = 500
    """Control steps of a recorded video."""
    num_envs: int = 512
    iterations: int = 240
    seed: int = 1
    sim2sim_strict: bool = True
    """Whether a replay is refused on deny-tier differences or only warned about."""

    def __post_init__(self) -> None:
        """Checks the counts.

        Raises:
            ConfigError: If one is not positive, or the backend is unknown.
        """
        _one_of("sim_backend", self.sim_backend, ("mujoco", "mjwarp"))
        for name in ("play_steps", "num_envs", "iterations"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"training.{name} must be positive, got {getattr(self, name)!r}")


@dataclass(frozen=True, kw_only=True)
class OwnerCfg:
    """What a task module returns for one backend."""

    task: str
    """The registered id."""
    env: EnvCfg
    algo: AlgoCfg = field(default_factory=AlgoCfg)
    training: TrainingCfg = field(default_factory=TrainingCfg)

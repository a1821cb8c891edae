"""What every command takes; the docstrings are the help."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import tyro

from unilab_gym.adapters.settings import TrainSettings

DESCRIPTION = """Robot learning on MuJoCo C and MuJoCo-Warp: tasks, training, replay, export.

First steps:  unilab-gym list  |  unilab-gym describe UniLab/Go2JoystickFlat-v0
              unilab-gym play  |  unilab-gym train --iterations 100  |  unilab-gym play --run latest

Exit codes: 0 done, 1 refused or failed, 2 wrong usage."""

Positional = tyro.conf.Positional
Switch = tyro.conf.FlagCreatePairsOff


@dataclass(frozen=True)
class List:
    """Print every task: id, robot and summary, widths, backends."""

    json: Switch[bool] = False
    """One JSON document."""
    markdown: Switch[bool] = False
    """The table of README.md."""


@dataclass(frozen=True)
class Describe:
    """Print what goes in and out of a policy: which column is which joint, scales, gains, rewards.

    The JSON form holds the policy contract word for word as it is in run_config.json and in an
    exported ONNX file.
    """

    task: Positional[str]
    """A registered id; or a run folder, a checkpoint or an ONNX file, whose contract is printed."""
    backend: str = "mujoco"
    """mujoco or mjwarp."""
    json: Switch[bool] = False
    """One JSON document."""
    out: Path | None = None
    """Also write the JSON document to this file."""


@dataclass(frozen=True)
class Doctor:
    """Print versions, driver, CUDA, Warp and GL of this machine, and what works here.

    The exit code is 1 where the mujoco backend cannot step an environment.
    """

    json: Switch[bool] = False
    """One JSON document."""


@dataclass(frozen=True)
class Audit:
    """Check that a policy of every task may move between its backends: the transfer matrix.

    The exit code is 1 where the guard would refuse a replay, or a task does not build.
    """

    task: tuple[str, ...] = ()
    """Only these ids."""
    json: Switch[bool] = False
    """One JSON document."""


@dataclass(frozen=True)
class Play:
    """Replay a policy on either backend: guard, figures, video and plots.

    The policy's contract is compared with the target's before the environment exists: a replay
    that would mean something else is refused, field by field (--no-strict turns that into
    warnings). Files go to the run folder.
    """

    run: str | None = None
    """A run folder, an ONNX file, a checkpoint, or "latest"; by default the policy that ships
    with the package for --task."""
    agent: Literal["policy", "zero", "random"] = "policy"
    """What acts: the policy, zeros (the default pose), or uniform random actions."""
    task: str | None = None
    """Registered id; with a policy it is the policy's own task."""
    task_args: tuple[str, ...] = ()
    """The task's own arguments as name=value, where no policy plays: a policy has its own."""
    backend: str = "auto"
    """auto, mujoco or mjwarp."""
    device: str | None = None
    """cpu or cuda; by default what the backend takes."""
    episodes: int = 64
    """Episodes, each in its own environment."""
    steps: int | None = None
    """Time limit of an episode in control steps; by default the task's."""
    seed: int = 1000
    """Fixes starts and commands."""
    command: tuple[float, ...] | None = None
    """Hold this command instead of sampled ones; for a walking task m/s forward, m/s left,
    rad/s yaw: --command 1.0 0 0.5."""
    strict: bool = True
    """Refuse a policy whose contract does not hold; --no-strict only warns."""
    video: bool = True
    """Write an mp4 of the first environment."""
    grid: Switch[bool] = False
    """Film the first nine environments as a 3x3 grid instead."""
    video_s: float | None = None
    """Length of the video in s of simulated time, at real speed; by default the task's."""
    plots: bool = True
    """Write plots of commands, velocities and reward terms of the first environment."""
    out: Path | None = None
    """Where files go; by default the run folder, or RUN_ROOT/replay."""
    run_root: Path = Path("runs")
    """Folder of all runs."""
    require_outcome: Switch[bool] = False
    """Exit with 1 where the task's bar is missed, with 2 where it has none."""
    json: Switch[bool] = False
    """One JSON document with the figures."""


@dataclass(frozen=True)
class Export:
    """Write a checkpoint as a verified ONNX file that carries its contract.

    onnxruntime is compared with torch on observations recorded with the policy, on drawn ones and
    on extremes; where they differ nothing is written and the exit code is 1. A tracking run
    also gets tracking_<clip>.onnx for each of its clips, with the reference motion inside.
    """

    run: str = "latest"
    """A run folder (its newest checkpoint), a checkpoint, or "latest"."""
    out: Path | None = None
    """The file; by default policy.onnx in the run folder."""
    observations: int = 512
    """Recorded observations to compare on."""
    static_batch: Switch[bool] = False
    """Fix the batch to 1, for runtimes that take no variable dimension."""
    deploy_yaml: Switch[bool] = False
    """Also write deploy.yaml for Unitree's C++ runtime; fixes the batch to 1."""
    sdk_joints: tuple[str, ...] | None = None
    """For deploy.yaml: the joints in the order of the robot's motors; by default the policy's."""
    run_root: Path = Path("runs")
    """Folder of all runs."""
    json: Switch[bool] = False
    """One JSON document that says what was written and proved."""


@dataclass(frozen=True)
class Compare:
    """Run the same seed and the same actions on two backends and say where they part.

    Prints the largest difference of every observation term, reward term and state against its
    tolerance, and what the contracts say. The exit code is 1 where one is exceeded.
    """

    run: str | None = None
    """A run folder, an ONNX file, a checkpoint, or "latest"; by default the policy that ships
    with the package for --task."""
    task: str | None = None
    """Registered id, for the policy that ships with the package."""
    backend: str | None = None
    """The backend to compare with the policy's home; by default the other one."""
    steps: int = 100
    """Control steps. Over longer times rounding moves a touch-down into another physics step."""
    num_envs: int = 4
    """Environments."""
    seed: int = 1000
    """Fixes starts and commands."""
    change: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="PATH=VALUE")] = ()
    """Change the compared side: --set sim_dt=0.0025 scene.robot=my_go2.xml."""
    run_root: Path = Path("runs")
    """Folder of all runs."""
    json: Switch[bool] = False
    """One JSON document."""


@dataclass(frozen=True)
class Motion:
    """Check, convert, view or make reference motions.

    - motion check FILE              frames, joints, bodies, and any problem (exit code 1)
    - motion convert IN.csv OUT.npz  Unitree's LAFAN1 layout, without a header: x y z, quaternion
                                     xyzw, joints
    - motion view FILE [OUT.mp4]     a video at real speed
    - motion make NAME [OUT.npz]     one of our own: squat, weight_shift, arm_wave, step_in_place,
                                     slow_walk
    """

    action: Positional[Literal["check", "convert", "view", "make"]]
    """What to do."""
    file: Positional[str]
    """A packaged motion's name or an NPZ file; for convert a CSV file; for make a name."""
    out: Positional[Path | None] = None
    """Where the result goes; by default named after the motion, here."""
    robot: str = "g1"
    """g1, or an MJCF file."""
    fps: float | None = None
    """Frames per second: of the CSV (30), or of the video (the motion's)."""
    layout: str | None = None
    """For files without names: unilab31, mjlab30 or isaaclab30."""
    json: Switch[bool] = False
    """One JSON document."""


@dataclass(frozen=True)
class SizeBuffers:
    """Measure how many contacts and constraints a task needs: what nconmax and njmax should be.

    Runs uniformly random actions and counts, per environment and step; both engines make the same
    contacts to within a few, so mujoco, the quick one, sizes mjwarp.
    """

    task: Positional[str]
    """Registered id."""
    backend: str = "mujoco"
    """mujoco or mjwarp."""
    num_envs: int = 64
    """Environments."""
    steps: int = 500
    """Control steps; episodes that end start anew."""
    seed: int = 0
    """Fixes starts and actions."""
    task_args: tuple[str, ...] = ()
    """The task's own arguments as name=value."""
    json: Switch[bool] = False
    """One JSON document."""


@dataclass(frozen=True)
class Randomization:
    """Print which domain randomization runs on which backend: term, modes, fields, support.

    A term that a backend cannot do is refused, by name, when the environment is built.
    """

    json: Switch[bool] = False
    """One JSON document."""
    markdown: Switch[bool] = False
    """The table of docs/randomization.md."""


@dataclass(frozen=True)
class Bench:
    """Run one of the checkout's benchmarks; one JSON line for each figure it takes.

    They are no part of an installed package: work from a clone (pip install -e .). The exit code
    is 1 where a line says that it failed.
    """

    name: Positional[str]
    """step_overhead, scaling, parity, ...: a module in benchmarks/; or smoke, all of them tiny."""
    tiny: Switch[bool] = False
    """Small sizes: does it run at all."""
    task: str | None = None
    """Only this id, where the benchmark runs several."""
    device: str | None = None
    """Where the benchmark takes one: cuda or cpu."""
    minutes: float | None = None
    """Where the benchmark takes a time."""
    save: Switch[bool] = False
    """Also write benchmarks/results/NAME.json."""


COMMANDS: dict[str, tuple[type[Any], str]] = {
    "list": (List, "unilab_gym.cli.show:list_tasks"),
    "describe": (Describe, "unilab_gym.cli.describe:describe"),
    "doctor": (Doctor, "unilab_gym.cli.doctor:doctor"),
    "train": (TrainSettings, "unilab_gym.cli.train:train"),
    "play": (Play, "unilab_gym.cli.play:play"),
    "export": (Export, "unilab_gym.cli.export:export"),
    "compare": (Compare, "unilab_gym.cli.compare:compare"),
    "motion": (Motion, "unilab_gym.cli.motion:motion"),
    "audit": (Audit, "unilab_gym.cli.show:audit"),
    "size-buffers": (SizeBuffers, "unilab_gym.cli.measure:size_buffers"),
    "randomization": (Randomization, "unilab_gym.cli.show:randomization"),
    "bench": (Bench, "unilab_gym.cli.measure:bench"),
}
"""Name -> what it takes, and the function that it runs."""


def command_type(*, brief: bool = False) -> Any:
    """The union of all commands, as tyro takes it.

    Args:
        brief: Only the first paragraph of each help: for the list of commands.
    """
    kinds: list[Any] = []
    for name, (kind, _) in COMMANDS.items():
        text = inspect.getdoc(kind) or ""
        text = " ".join(text.partition("\n\n")[0].split()) if brief else text
        kinds.append(Annotated[kind, tyro.conf.subcommand(name, description=text)])
    return Union[tuple(kinds)]  # noqa: UP007  (made at run time)


def runner_of(command: Any) -> tuple[str, str]:
    """Module and name of the function that runs a parsed command."""
    target = next(target for kind, target in COMMANDS.values() if kind is type(command))
    module, _, name = target.partition(":")
    return module, name

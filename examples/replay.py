"""Replays a policy on either backend: guard, figures, video and plot.

    python examples/replay.py                                  # the policy shipped with the package
    python examples/replay.py --run latest --backend mjwarp --episodes 16
    python examples/replay.py --run runs/.../2026-01-01_12-00-00_1 --command 0.8 0 0.3

The policy's contract is compared with the target's before the environment exists; a replay that
would mean something else is refused, field by field (`--no-strict` turns that into warnings).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import tyro

from unilab_gym import evaluate
from unilab_gym.assets import asset_root
from unilab_gym.backends import resolve_backend
from unilab_gym.config import OwnerCfg
from unilab_gym.contract import check_replay, find_run, resolve_sim2sim_config, run_record
from unilab_gym.errors import BackendUnavailableError, ConfigError, RunFolderError, UnilabGymError
from unilab_gym.evaluation import EvalReport
from unilab_gym.export.onnx import load_policy
from unilab_gym.registration import load_task, owner_config
from unilab_gym.render.plot import plot_velocity_tracking
from unilab_gym.render.video import VideoRecorder

SHIPPED = "policies/go2"


@dataclasses.dataclass
class Args:
    """Replay a policy and say how well it does."""

    run: str | None = None
    """A run folder, "latest", or nothing for the policy shipped with the package."""
    backend: str = "auto"
    """auto, mujoco or mjwarp."""
    device: str | None = None
    """cpu or cuda; by default what the backend takes."""
    episodes: int = 64
    """Episodes, each in its own environment."""
    seed: int = 1000
    """Fixes starts and commands."""
    command: tuple[float, float, float] | None = None
    """Hold this command (m/s forward, m/s left, rad/s yaw) instead of sampled ones. Go2 was
    trained for -0.6..1.0, -0.4..0.4, -0.8..0.8."""
    strict: bool = True
    """Refuse a policy whose contract does not hold; --no-strict only warns."""
    video: bool = True
    """Write an mp4 of the first environment."""
    video_s: float = 10.0
    """Length of the video, s."""
    out: Path | None = None
    """Where files go; by default the run folder, or runs/replay for the shipped policy."""
    run_root: Path = Path("runs")
    """Folder of all runs."""
    require_outcome: bool = False
    """Exit with 3 where the task's bar is missed."""


class Trace:
    """Frames of one environment; and where its task commands velocities, those and the measured."""

    def __init__(self, recorder: VideoRecorder | None, frames: int) -> None:
        self.recorder, self.frames = recorder, frames
        self.ended = False
        self.steps = 0
        self.commanded: list[list[float]] = []
        self.measured: list[list[float]] = []
        self.video_problem = "" if recorder is not None else "switched off"

    def __call__(self, env: Any) -> None:
        self.ended |= self.steps > 0 and int(env.episode_length_buf[0]) == 0
        if self.ended:  # the first episode is the one that counts
            return
        self.steps += 1
        self.velocities(env)
        if self.recorder is not None and self.steps <= self.frames:
            try:
                self.recorder.capture()
            except BackendUnavailableError as error:  # no GL library: everything else goes on
                self.video_problem, self.recorder = str(error), None

    def velocities(self, env: Any) -> None:
        groups = env.get_observations()
        if "critic" not in groups:
            return
        layout = env.runtime.rt.observations.layout("critic")
        columns = {term.name: groups["critic"][0, term.start :][: term.width] for term in layout}
        if not columns.keys() >= {"base_lin_vel", "base_ang_vel", "command"}:
            return
        vx, vy, _ = columns["base_lin_vel"].tolist()
        self.measured.append([vx, vy, columns["base_ang_vel"][2].item()])
        self.commanded.append(columns["command"].tolist())


def find_policy(args: Args) -> tuple[Path, Path]:
    """The folder with the policy and its record, and the folder for what we write."""
    if args.run is None:
        return asset_root() / SHIPPED, args.out or args.run_root / "replay" / Path(SHIPPED).name
    folder = find_run(args.run, args.run_root)
    return folder, args.out or folder


def guarded_target(folder: Path, args: Args) -> tuple[OwnerCfg, Path]:
    """The task's configuration for the asked backend, after the guard has passed it."""
    policy = folder / "policy.onnx"
    if not policy.is_file():
        raise RunFolderError(f"{folder} holds no policy.onnx; training writes it at its end")
    backend, _ = resolve_backend(args.backend, args.device)
    task = run_record(folder)["task"]
    owner = owner_config(task, backend)
    training = dataclasses.replace(
        owner.training, play_only=True, sim_backend=backend, sim2sim_strict=args.strict
    )
    target = resolve_sim2sim_config(
        folder, dataclasses.replace(owner, training=training), strict=args.strict
    )
    report = check_replay(policy, target, strict=args.strict)  # the file itself, too
    if not report.ok:
        if args.strict:
            raise ConfigError(f"{policy.name} does not fit the record beside it:\n{report}")
        warnings.warn(f"{policy.name} does not fit the record beside it:\n{report}", stacklevel=2)
    return target, policy


def print_report(report: EvalReport, task: str, held: bool) -> bool:
    """Prints figures; returns whether the task's bar is reached (always true for held commands)."""
    print(f"{report.episodes} episodes, {report.survival:.0%} reached the time limit")
    print(f"  {'mean length':24s} {report.mean_length:.0f} steps")
    print(f"  {'mean return':24s} {report.mean_return:.2f}")
    for name, value in report.metrics.items():
        print(f"  {name:24s} {value:.4f}")
    for cause, count in report.faults.items():
        note = "not converged in a step, counted only" if cause == "solver_iterations" else ""
        print(f"  fault {cause}: {count} {note}".rstrip())
    if held:
        return True
    missed = report.shortfalls(load_task(task).outcome)
    print("outcome: " + ("reached" if not missed else "missed: " + "; ".join(missed)))
    return not missed


def without_nan(value: Any) -> Any:
    """JSON knows no NaN: a figure of something that never happened is null."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def warn_untrained(command: tuple[float, float, float], target: OwnerCfg) -> None:
    """Says where a held command lies outside what the policy was trained for."""
    params = target.env.commands["twist"].params
    names = ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")
    for name, value in zip(names, command, strict=True):
        low, high = params[name]
        if not low <= value <= high:
            print(f"note: {name} {value:g} lies outside the trained range {low:g} .. {high:g}")


def replay(args: Args) -> bool:
    """Runs the replay; returns whether the outcome was reached."""
    folder, out = find_policy(args)
    target, policy_file = guarded_target(folder, args)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot write to {out}: {error}") from error
    if not os.access(out, os.W_OK):
        raise RunFolderError(f"cannot write to {out}: it is read-only; choose another with --out")
    policy = load_policy(policy_file)
    backend = target.training.sim_backend
    print(f"policy {policy_file} on {backend}")
    env = gym.make_vec(
        f"unilab_gym:{target.task}",
        num_envs=args.episodes,
        backend=backend,
        device=args.device,
        play=True,
    )
    if args.command is not None:
        env.unwrapped.hold_command("twist", args.command)
        warn_untrained(args.command, target)
    held = "" if args.command is None else "_" + "_".join(f"{x:g}" for x in args.command)
    stem = out / f"replay_{backend}{held}"
    video, recorder = stem.with_suffix(".mp4"), None
    if args.video:
        recorder = VideoRecorder(env, video, supersample=1)
    trace = Trace(recorder, round(args.video_s / env.unwrapped.step_dt))
    report = evaluate(env, policy, args.episodes, args.seed, on_step=trace)
    reached = print_report(report, target.task, args.command is not None)

    print("files:")
    figures = stem.with_suffix(".json")
    settings = {
        "policy": policy_file.parent.name,
        "task": target.task,
        "backend": backend,
        "seed": args.seed,
        "command": args.command,
    }
    text = json.dumps(without_nan({**settings, **report.to_dict()}), indent=1, allow_nan=False)
    figures.write_text(text + "\n", encoding="utf-8")
    print(f"  figures  {figures}")
    times = [step * env.unwrapped.step_dt for step in range(len(trace.measured))]
    plot = stem.with_suffix(".png")
    try:
        if times:
            title = f"{target.task} on {backend}, environment 0"
            plot_velocity_tracking(plot, times, trace.commanded, trace.measured, title=title)
            print(f"  plot     {plot}")
    except ImportError as error:
        print(f"  no plot: {error}")
    if trace.recorder is not None:
        trace.recorder.close()
        print(f"  video    {video}")
    else:
        print(f"  no video: {trace.video_problem}")
    env.close()
    return reached


def main() -> int:
    """Command line; errors of ours are one message and exit code 2."""
    args = tyro.cli(Args)
    try:
        reached = replay(args)
    except UnilabGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 3 if args.require_outcome and not reached else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""`play`: a policy, zeros or random actions on a task; figures, video, plots."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from unilab_gym.adapters.settings import GO2
from unilab_gym.backends import resolve_backend
from unilab_gym.cli import FAILED, OK, print_json, without_nan
from unilab_gym.cli.arguments import Play
from unilab_gym.cli.policies import Agent, PolicySource, find_policy, guarded, load
from unilab_gym.cli.text import Progress
from unilab_gym.cli.trace import Trace, write_plots
from unilab_gym.config import OwnerCfg
from unilab_gym.contract import replay_owner
from unilab_gym.errors import ConfigError, RunFolderError
from unilab_gym.evaluation import EvalReport, evaluate
from unilab_gym.factory import make
from unilab_gym.registration import load_task, parse_task_args
from unilab_gym.render.video import VideoRecorder
from unilab_gym.vector_env import UnilabVectorEnv

GRID = 9


def play(args: Play) -> int:
    """Runs the replay.

    Returns:
        1 where `require_outcome` was asked for and the bar is missed.

    Raises:
        UnilabGymError: What was refused, and why.
    """
    source, target = _what(args)
    if args.require_outcome:
        _check_bar(args, target)
    out = _out_folder(args, source)
    backend = target.training.sim_backend
    env = make(
        target.env,
        args.episodes,
        backend=backend,
        device=args.device,
        play=True,
        max_episode_steps=args.steps,
    )
    try:
        policy = Agent(args.agent, env, args.seed) if source is None else load(source, target, env)
        held = _hold(env, target, args.command)
        label = args.agent if source is None else str(source.path)
        _say(args, f"{label} on {backend}, {target.task}")
        stem = out / f"{'replay' if source is not None else args.agent}_{backend}{held}"
        trace = _trace(args, target, env, stem)
        try:
            report = evaluate(env, policy, args.episodes, args.seed, on_step=trace)
        except BaseException:
            if trace.recorder is not None:
                trace.recorder.abort()
            raise
        files, notes = _files(args, trace, env, stem, target)
    finally:
        env.close()
    settings = {
        "policy": None if source is None else source.folder.name,
        "agent": args.agent,
        "task": target.task,
        "backend": backend,
        "seed": args.seed,
        "command": args.command,
    }
    asked = not _unjudged(args)
    bar = load_task(target.task).outcome
    judged = asked and bool(bar.at_most or bar.at_least)
    if asked and not judged:
        notes.append(f"outcome: not judged, {target.task} has no bar")
    missed = report.shortfalls(bar) if judged else []
    document = {**settings, **report.to_dict(), "missed": missed if judged else None}
    files["figures"] = stem.with_name(f"{stem.name}.json")
    text = json.dumps(without_nan(document), indent=1, allow_nan=False)
    files["figures"].write_text(text + "\n", encoding="utf-8")
    if args.json:
        print_json({**document, "files": {k: str(v) for k, v in files.items()}, "notes": notes})
    else:
        _print(report, missed if judged else None, files, notes)
    return FAILED if args.require_outcome and missed else OK


def _what(args: Play) -> tuple[PolicySource | None, OwnerCfg]:
    """The policy, if one plays, and the configuration that the guard has passed."""
    if args.episodes <= 0:
        raise ConfigError(f"--episodes must be positive, got {args.episodes}")
    if args.video_s is not None and args.video_s <= 0:
        raise ConfigError(f"--video-s must be positive, got {args.video_s:g}")
    if args.agent != "policy":
        if args.run is not None:
            raise ConfigError(f"--run goes with --agent policy, not with {args.agent}")
        name, _ = resolve_backend(args.backend, args.device)
        return None, replay_owner(
            args.task or GO2, name, task_kwargs=parse_task_args(args.task_args)
        )[0]
    source = find_policy(args.run, args.run_root, args.task)
    asked = (args.task or source.task).removeprefix("unilab_gym:")
    if asked != source.task:
        raise ConfigError(f"--task {asked}: the policy {source.path} was trained on {source.task}")
    return source, guarded(source, args.backend, args.device, strict=args.strict)


def _unjudged(args: Play) -> str:
    """The option with which a replay cannot be compared with the task's bar; "" where it can."""
    if args.agent != "policy":
        return f"--agent {args.agent}"
    return "--command" if args.command is not None else "--steps" if args.steps is not None else ""


def _check_bar(args: Play, target: OwnerCfg) -> None:
    """An outcome that is required can be missed."""
    option = _unjudged(args)
    if option:
        raise ConfigError(
            f"--require-outcome goes without {option}: the task's bar holds for a policy on whole "
            "episodes with sampled commands"
        )
    bar = load_task(target.task).outcome
    if not (bar.at_most or bar.at_least):
        raise ConfigError(
            f"--require-outcome: {target.task} has no bar; state one with Task(outcome=...)"
        )


def _out_folder(args: Play, source: PolicySource | None) -> Path:
    if args.out is not None:
        out = args.out
    elif source is None or source.shipped:
        out = args.run_root / "replay" / (args.agent if source is None else source.folder.name)
    else:
        out = source.folder
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot write to {out}: {error}") from error
    if not os.access(out, os.W_OK):
        raise RunFolderError(f"cannot write to {out}: it is read-only; choose another with --out")
    return out


def _hold(env: UnilabVectorEnv, target: OwnerCfg, command: Sequence[float] | None) -> str:
    """Pins the first command of that width; returns a suffix for file names."""
    if command is None:
        return ""
    terms = env.runtime.commands.terms
    widths = {name: term.value.shape[1] for name, term in terms.items()}
    name = next((name for name, width in widths.items() if width == len(command)), None)
    if name is None:
        known = ", ".join(f"{name} {width}" for name, width in widths.items()) or "no command"
        raise ConfigError(f"--command: {len(command)} values fit none; {target.task} has {known}")
    env.hold_command(name, list(command))
    params = target.env.commands[name].params
    for part, value in zip(terms[name].component_names, command, strict=False):
        low, high = params.get(part, (value, value))
        if not low <= value <= high:
            note = f"note: {part} {value:g} lies outside the trained range {low:g} .. {high:g}"
            print(note, file=sys.stderr)
    return "_" + "_".join(f"{value:g}" for value in command)


def _trace(args: Play, target: OwnerCfg, env: UnilabVectorEnv, stem: Path) -> Trace:
    recorder: VideoRecorder | None = None
    if args.video:
        rows = range(min(GRID, env.num_envs)) if args.grid else (0,)
        video = stem.with_name(f"{stem.name}{'_grid' if args.grid else ''}.mp4")
        recorder = VideoRecorder(env, video, rows, supersample=1)
    steps = env.max_episode_steps
    progress = Progress("play", steps, env.num_envs)
    frames = target.training.play_steps
    if args.video_s is not None:
        frames = round(args.video_s / env.step_dt)
    return Trace(recorder, frames, progress)


def _files(
    args: Play, trace: Trace, env: UnilabVectorEnv, stem: Path, target: OwnerCfg
) -> tuple[dict[str, Path], list[str]]:
    """Finishes video and plots; the files, and what there is none of and why."""
    files: dict[str, Path] = {}
    notes: list[str] = []
    if args.plots:
        title = f"{target.task} on {target.training.sim_backend}, environment 0"
        try:
            for number, path in enumerate(write_plots(trace, env, stem, title)):
                files["plot" if number == 0 else f"plot_{number + 1}"] = path
        except ImportError as error:
            notes.append(f"no plot: {error}")
    if trace.recorder is not None:
        trace.recorder.close()
        files["video"] = trace.recorder.path
    else:
        notes.append(f"no video: {trace.video_problem}")
    return files, notes


def _say(args: Play, text: str) -> None:
    if not args.json:
        print(text, flush=True)


def _print(
    report: EvalReport, missed: list[str] | None, files: dict[str, Path], notes: list[str]
) -> None:
    print(f"{report.episodes} episodes, {report.survival:.0%} reached the time limit")
    print(f"  {'mean length':24s} {report.mean_length:.0f} steps")
    print(f"  {'mean return':24s} {report.mean_return:.2f}")
    for name, value in report.metrics.items():
        print(f"  {name:24s} {value:.4f}")
    for cause, count in report.faults.items():
        note = "not converged in a step, counted only" if cause == "solver_iterations" else ""
        print(f"  fault {cause}: {count} {note}".rstrip())
    if missed is not None:
        print("outcome: " + ("reached" if not missed else "missed: " + "; ".join(missed)))
    print("files:")
    for name, path in files.items():
        print(f"  {name:8s} {path}")
    for note in notes:
        print(f"  {note}")

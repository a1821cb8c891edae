"""`motion`: check, convert, view and make reference motions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unilab_gym.cli import FAILED, OK, print_json
from unilab_gym.cli.arguments import Motion
from unilab_gym.errors import ConfigError, MotionError

if TYPE_CHECKING:
    from unilab_gym.motion.clip import MotionClip


def motion(args: Motion) -> int:
    """Does what the first argument says.

    Returns:
        1 where a checked file is refused.
    """
    actions = {"check": check, "convert": convert, "view": view, "make": make}
    return actions[args.action](args)


def check(args: Motion) -> int:
    """Prints what a file holds, and what is wrong with it."""
    try:
        facts = clip_facts(args.file, args.robot, args.layout)
    except MotionError as error:
        if args.json:
            print_json({"file": args.file, "ok": False, "problem": str(error)})
        else:
            print(f"refused: {error}")
        return FAILED
    _report(args, {**facts, "ok": True})
    return OK


def clip_facts(motion: str, robot: str = "g1", layout: str | None = None) -> dict[str, Any]:
    """What a motion file holds, after every check.

    Raises:
        MotionError: What is wrong, with file and key.
    """
    from unilab_gym.motion.clip import RobotKinematics, check_against, load_clip, motion_path

    path, kinematics = motion_path(motion), RobotKinematics(robot)
    clip = load_clip(path, robot=kinematics, layout=layout)
    distance, angle = check_against(path, clip, kinematics)
    return {**_facts(clip), "file": str(path), "off_m": distance, "off_rad": angle}


def _facts(clip: MotionClip) -> dict[str, Any]:
    return {
        "fps": clip.fps,
        "frames": clip.frames,
        "seconds": clip.duration,
        "joints": list(clip.joint_names),
        "bodies": list(clip.body_names),
        "source": clip.source,
        "license": clip.license,
    }


def convert(args: Motion) -> int:
    """CSV to NPZ."""
    from unilab_gym.motion.convert import convert_csv

    if args.out is None:
        raise ConfigError("motion convert takes two files: IN.csv OUT.npz")
    fps = 30.0 if args.fps is None else args.fps
    clip = convert_csv(args.file, _npz(args.out), robot=args.robot, fps=fps)
    _report(args, {**_facts(clip), "file": str(args.out)})
    return OK


def make(args: Motion) -> int:
    """One of our own motions to NPZ."""
    from unilab_gym.motion.make import write_motion

    out = _npz(args.out or Path(f"{args.file}.npz"))
    _report(args, {**_facts(write_motion(args.file, out)), "file": str(out)})
    return OK


def view(args: Motion) -> int:
    """A motion to mp4."""
    from unilab_gym.motion.clip import ROBOTS, RobotKinematics, load_clip, motion_path, resample

    path, kinematics = motion_path(args.file), RobotKinematics(args.robot)
    clip = load_clip(path, robot=kinematics, layout=args.layout)
    clip = resample(clip, clip.fps if args.fps is None else args.fps)
    out = args.out or Path(f"{path.stem}.mp4")
    write_view(clip, kinematics.root_body, ROBOTS.get(args.robot, args.robot), out)
    _report(args, {**_facts(clip), "file": str(out)})
    return OK


def write_view(clip: MotionClip, root: str, robot: str, out: Path) -> None:
    """Draws every frame of a clip, at real speed."""
    from unilab_gym.config import SceneCfg
    from unilab_gym.motion.clip import RobotKinematics, select_joints
    from unilab_gym.render.offscreen import OffscreenRenderer
    from unilab_gym.render.video import VideoWriter
    from unilab_gym.tasks.g1_walk_flat import env_cfg

    clip = select_joints(clip, RobotKinematics(robot).joint_names)
    cfg = dataclasses.replace(env_cfg(), scene=SceneCfg(robot=robot, keyframe=None))
    body = clip.body(root)
    still = [0.0] * (6 + clip.joint_pos.shape[1])
    with OffscreenRenderer(cfg) as renderer, VideoWriter(out, clip.fps) as video:
        for frame in range(clip.frames):
            qpos = [
                *clip.body_pos_w[frame, body].tolist(),
                *clip.body_quat_w[frame, body].tolist(),
                *clip.joint_pos[frame].tolist(),
            ]
            video.append(renderer.draw(qpos, still))


def _npz(path: Path) -> Path:
    if path.suffix != ".npz":
        raise ConfigError(f"a motion file ends in .npz, got {str(path)!r}")
    return path


def _report(args: Motion, facts: dict[str, Any]) -> None:
    if args.json:
        print_json(facts)
        return
    print(f"{facts['file']}")
    print(f"  {facts['frames']} frames at {facts['fps']:g} fps, {facts['seconds']:.2f} s")
    for kind in ("joints", "bodies"):
        names = facts[kind]
        print(f"  {len(names)} {kind}: {', '.join(names[:3])} ... {names[-1]}")
    for key in ("source", "license"):
        if facts[key]:
            print(f"  {key}: {facts[key]}")
    if "off_m" in facts:
        print(
            f"  forward kinematics of {args.robot}: bodies at most {1000 * facts['off_m']:.2g} mm "
            f"and {facts['off_rad']:.2g} rad off; ok"
        )

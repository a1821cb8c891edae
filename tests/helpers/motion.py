"""Motions of the G1 made by forward kinematics: small, exact, of any length and rate."""

import functools

import numpy as np

from unilab_gym.motion.clip import RobotKinematics, save_clip
from unilab_gym.motion.convert import clip_from_qpos


@functools.cache
def g1():
    return RobotKinematics("g1")


def swaying(frames, fps=50.0, seconds=None, yaw=0.0, spin=0.0):
    """qpos `[T, 36]`: standing, every joint swinging a little, the root drifting and turning."""
    robot = g1()
    times = np.arange(frames) / fps if seconds is None else np.linspace(0.0, seconds, frames)
    qpos = np.tile(robot.model.key("stand").qpos, (frames, 1))
    low, high = robot.limits
    room = np.minimum(high - qpos[0, 7:], qpos[0, 7:] - low)
    rates = 1.0 + 0.1 * np.arange(29)
    swing = np.sin(2 * np.pi * 0.3 * times[:, None] * rates + np.arange(29))
    qpos[:, 7:] += 0.2 * np.minimum(room, 0.5) * swing
    qpos[:, 0] += 0.3 * times
    qpos[:, 1] += 0.1 * np.sin(times)
    half = (yaw + spin * times) / 2
    qpos[:, 3], qpos[:, 6] = np.cos(half), np.sin(half)
    return qpos


def make_clip(frames=40, fps=50.0, name="sway", **kwargs):
    return clip_from_qpos(
        g1(), swaying(frames, fps, **kwargs), fps, name=name, source="tests", license="none"
    )


def write_clip(folder, frames=40, fps=50.0, name="sway", **kwargs):
    path = folder / f"{name}.npz"
    save_clip(path, make_clip(frames, fps, name, **kwargs))
    return path


def arrays(path):
    """The file's content, to be changed and written again."""
    with np.load(path) as data:
        return {key: data[key] for key in data.files}

"""Several clips as one packed table on the device, with bounds that no pair of frames crosses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unilab_gym import math as ugm
from unilab_gym.errors import MotionError, near
from unilab_gym.motion.clip import (
    MotionClip,
    RobotKinematics,
    load_clip,
    motion_path,
    resample,
    select_bodies,
    select_joints,
)


def load_motions(
    motions: str | Sequence[str],
    *,
    fps: float,
    robot: str = "",
    layout: str | None = None,
) -> list[MotionClip]:
    """Clips by packaged name or path, checked against the robot and brought to one rate.

    Args:
        motions: One or several.
        fps: The control rate.
        robot: MJCF that joints, limits and forward kinematics are compared with; empty compares
            nothing.
        layout: For files without names.

    Raises:
        MotionError: Names file and key.
    """
    names = (motions,) if isinstance(motions, str) else tuple(motions)
    if not names:
        raise MotionError("motion: at least one clip is needed")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MotionError(f"motion: given twice: {', '.join(twice)}")
    stems = [motion_path(name).stem for name in names]
    alike = sorted({stem for stem in stems if stems.count(stem) > 1})
    if alike:  # logs and exported files are named after it
        raise MotionError(f"motion: several files are called {', '.join(alike)}: rename one")
    kinematics = RobotKinematics(robot) if robot else None
    return [
        resample(load_clip(motion_path(name), robot=kinematics, layout=layout), fps)
        for name in names
    ]


class MotionLibrary:
    """Frames of C clips one after another: F rows; float32 on the device.

    Args:
        clips: All at one rate.
        joints: Order of the joint columns.
        bodies: Tracked bodies, in order.
        root: The body of the free joint.
        device: Where the tables live.

    Raises:
        MotionError: If a clip lacks a joint or body, or the rates differ.
    """

    def __init__(
        self,
        clips: Sequence[MotionClip],
        *,
        joints: Sequence[str],
        bodies: Sequence[str],
        root: str,
        device: torch.device,
    ) -> None:
        rates = {clip.fps for clip in clips}
        if len(rates) != 1:
            raise MotionError(f"clips of different rates in one table: {sorted(rates)}")
        self.names = tuple(clip.name for clip in clips)
        self.fps = rates.pop()
        self.lengths = tuple(clip.frames for clip in clips)
        self.device = device
        clips = [select_joints(clip, joints) for clip in clips]
        tracked = [select_bodies(clip, bodies) for clip in clips]
        roots = [select_bodies(clip, (root,)) for clip in clips]

        def packed(parts: Sequence[MotionClip], key: str) -> Tensor:
            return torch.cat([torch.tensor(getattr(p, key), device=device) for p in parts])

        self.joint_pos = packed(clips, "joint_pos")  # [F, J]
        self.joint_vel = packed(clips, "joint_vel")
        self.body_pos = packed(tracked, "body_pos_w")  # [F, B, 3]
        self.body_quat = packed(tracked, "body_quat_w")  # [F, B, 4]
        self.body_lin_vel = packed(tracked, "body_lin_vel_w")
        self.body_ang_vel = packed(tracked, "body_ang_vel_w")
        self.root_pos = packed(roots, "body_pos_w")[:, 0]  # [F, 3]
        self.root_quat = packed(roots, "body_quat_w")[:, 0]
        self.root_lin_vel_w = packed(roots, "body_lin_vel_w")[:, 0]
        spin = packed(roots, "body_ang_vel_w")[:, 0]
        self.root_ang_vel_b = ugm.quat_rotate_inverse(self.root_quat, spin)
        counts = torch.tensor(self.lengths, device=device)
        self.first = counts.cumsum(0) - counts  # [C]
        """First row of each clip."""
        self.last = self.first + counts - 1
        self.clip = torch.repeat_interleave(counts)  # [F]
        """Which clip a row belongs to."""
        rows = torch.arange(self.rows, device=device)
        self.following = torch.minimum(rows + 1, self.last[self.clip])
        """The next row of the same clip; the last one follows itself."""

    @property
    def rows(self) -> int:
        """F: frames of all clips."""
        return sum(self.lengths)

    def number(self, name: str) -> int:
        """The number of a clip.

        Raises:
            MotionError: If there is none of that name.
        """
        if name not in self.names:
            raise MotionError(f"no clip {near(name, self.names)}")
        return self.names.index(name)

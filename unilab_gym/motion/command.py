"""The command that follows reference motions.

Timeline: a row that is reset at frame k stands on k and is shown the target min(k + 1, L - 1) of
its clip of L frames; terminations and rewards of the next step compare with that target; then
`update` moves the target one frame on. A step whose target was L - 1 is the clip's end
(`unilab_gym.mdp.tracking.clip_end`, a truncation). The frame index never leaves the clip.

Everything a boundary needs of the reference is one row of a packed table, gathered once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unilab_gym.backends.base import TensorResetRandomizationPayload
from unilab_gym.errors import ConfigError, near
from unilab_gym.model_index import ModelIndex
from unilab_gym.motion.clip import load_clip, motion_path
from unilab_gym.motion.library import MotionLibrary, load_motions
from unilab_gym.motion.sampler import MotionSampler
from unilab_gym.runtime.command_term import CommandTerm
from unilab_gym.runtime.reads import EpisodeEnded, EpisodeFailed
from unilab_gym.runtime.term import BuildContext, TermFrame, term

_RANGE = tuple[float, float]
_NONE = (0.0, 0.0)


def turned_about_z(quat: Tensor) -> Tensor:
    """Products k q for quaternions q `[..., 4]`; k is half a turn about z."""
    w, x, y, z = quat.unbind(-1)
    return torch.stack((-z, -y, x, w), -1)


@term(
    reads=(EpisodeEnded(), EpisodeFailed()),
    width=lambda params, index: 2 * len(index.joints),
)
class MotionCommand(CommandTerm):
    """Reference motions of one robot.

    `value` `[N, 2 J]` is the target's joint positions and velocities (rad, rad/s). Parts, of the
    target frame, world axes: `anchor_pos` `[N, 3]`; `anchor_mat` `[N, 3, 3]`; `anchor_quats`
    `[N, 2, 4]`, the anchor's quaternion and its product with k (see `turned_about_z`);
    `body_quats` `[N, B, 2, 4]` likewise; `body_rel` `[N, B, 2, 3]`, rows (dx, dy, z) and
    (-dy, dx, 0) with d from the anchor, which an alignment by yaw combines; `body_lin_vel`,
    `body_ang_vel` `[N, B, 3]`; `at_end` `[N]`, 1 on a clip's last frame.

    Args:
        ctx: The build context.
        motion: Packaged names or paths of the clips.
        anchor: The body that alignment refers to.
        bodies: Tracked bodies.
        sampling_mode: See `unilab_gym.motion.sampler`.
        layout: For files without names.
        start_ratio: For sampling_mode "mixed".
        reset_xy: Offset of the root at a reset, m; likewise `reset_z`.
        reset_roll_pitch: Turn of the root about world x and y, rad; likewise `reset_yaw` about z.
            Drawn as a rotation vector's half (h): the quaternion (1, h), normalised.
        reset_lin_vel_xy: Added to the root's velocity, world frame, m/s; likewise `_z`.
        reset_ang_vel_roll_pitch: Added to its angular velocity, body frame, rad/s; likewise `_yaw`.
        reset_joint_pos: Added to every joint, rad, within its range.
    """

    assigns = True

    def __init__(
        self,
        ctx: BuildContext,
        *,
        motion: str | tuple[str, ...],
        anchor: str,
        bodies: tuple[str, ...],
        sampling_mode: str = "adaptive",
        layout: str | None = None,
        start_ratio: float = 0.2,
        reset_xy: _RANGE = _NONE,
        reset_z: _RANGE = _NONE,
        reset_roll_pitch: _RANGE = _NONE,
        reset_yaw: _RANGE = _NONE,
        reset_lin_vel_xy: _RANGE = _NONE,
        reset_lin_vel_z: _RANGE = _NONE,
        reset_ang_vel_roll_pitch: _RANGE = _NONE,
        reset_ang_vel_yaw: _RANGE = _NONE,
        reset_joint_pos: _RANGE = _NONE,
    ) -> None:
        super().__init__(ctx)
        index = ctx.index
        _check_bodies(index, anchor, bodies)
        rate = 1.0 / ctx.control_dt
        clips = load_motions(motion, fps=rate, robot=index.source, layout=layout)
        tracked = bodies if anchor in bodies else (*bodies, anchor)
        self.library = MotionLibrary(
            clips,
            joints=index.joint_names,
            bodies=tracked,
            root=index.root_body,
            device=ctx.device,
        )
        self.anchor = anchor
        """Name of the anchor body."""
        self.body_names = tracked
        """Tracked bodies in order; the anchor is one of them."""
        self.sampler = MotionSampler(ctx, self.library, sampling_mode, start_ratio=start_ratio)
        self._build_tables(ctx, tracked.index(anchor), len(bodies))
        self._build_reset(
            ctx,
            (reset_xy, reset_xy, reset_z),
            (reset_roll_pitch, reset_roll_pitch, reset_yaw),
            (reset_lin_vel_xy, reset_lin_vel_xy, reset_lin_vel_z),
            (reset_ang_vel_roll_pitch, reset_ang_vel_roll_pitch, reset_ang_vel_yaw),
            reset_joint_pos,
        )
        self._build_log(ctx)

    @classmethod
    def describe(
        cls,
        index: ModelIndex,
        *,
        motion: str | tuple[str, ...],
        anchor: str,
        bodies: tuple[str, ...],
        sampling_mode: str = "adaptive",
        layout: str | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """What identifies the reference in the policy contract."""
        from unilab_gym.motion.clip import RobotKinematics

        names = (motion,) if isinstance(motion, str) else motion
        robot = RobotKinematics(index.source) if layout is not None else None
        clips = [load_clip(motion_path(name), robot=robot, layout=layout) for name in names]
        return {
            "sampling_mode": sampling_mode,
            "anchor": anchor,
            "bodies": list(bodies),
            "clips": [clip.name for clip in clips],
            "frames": [clip.frames for clip in clips],
            "fps": [clip.fps for clip in clips],
        }

    # --- tables ------------------------------------------------------------------------------

    def _build_tables(self, ctx: BuildContext, anchor: int, tracked: int) -> None:
        """The table of targets `[F, D]`, the gathered rows `[N, D]` and their named parts."""
        lib = self.library
        pos, quat = lib.body_pos[:, :tracked], lib.body_quat[:, :tracked]
        rel = pos - lib.body_pos[:, anchor : anchor + 1]
        zero = torch.zeros_like(rel[..., 0])
        rows = (
            torch.stack((rel[..., 0], rel[..., 1], pos[..., 2]), -1),
            torch.stack((-rel[..., 1], rel[..., 0], zero), -1),
        )
        anchor_quat = lib.body_quat[:, anchor]
        at_end = (lib.following == torch.arange(lib.rows, device=ctx.device)).float()
        parts = {
            "joint_pos": lib.joint_pos,
            "joint_vel": lib.joint_vel,
            "anchor_pos": lib.body_pos[:, anchor],
            "anchor_quats": torch.stack((anchor_quat, turned_about_z(anchor_quat)), 1),
            "anchor_mat": _matrix(anchor_quat),
            "body_rel": torch.stack(rows, -2),
            "body_quats": torch.stack((quat, turned_about_z(quat)), -2),
            "body_lin_vel": lib.body_lin_vel[:, :tracked],
            "body_ang_vel": lib.body_ang_vel[:, :tracked],
            "at_end": at_end,
        }
        self._table = torch.cat([part.reshape(lib.rows, -1) for part in parts.values()], 1)
        self._now = ctx.zeros(self._table.shape[1])
        self._now.copy_(self._table[:1].expand_as(self._now))
        start = 0
        for name, part in parts.items():
            width = part[0].numel()
            view = self._now[:, start : start + width]
            self.parts[name] = view.view(self.num_envs, *part.shape[1:])
            start += width
        self.value = self._now[:, : 2 * lib.joint_pos.shape[1]]
        self.target = ctx.zeros(dtype=torch.int64)
        """Row of the target in the packed table `[N]`."""

    def _build_reset(
        self,
        ctx: BuildContext,
        pos: tuple[_RANGE, ...],
        turn: tuple[_RANGE, ...],
        lin_vel: tuple[_RANGE, ...],
        ang_vel: tuple[_RANGE, ...],
        joints: _RANGE,
    ) -> None:
        """The table of states `[F, 12 + nq + nv]` and the draws that move them."""
        lib, count = self.library, len(ctx.index.joints)
        bounds = [*pos, *((low / 2, high / 2) for low, high in turn), *lin_vel, *ang_vel]
        bounds += [joints] * count
        for low, high in bounds:
            if not low <= high:
                raise ConfigError(f"reset ranges must be (low, high), got {(low, high)}")
        low, high = zip(*bounds, strict=True)
        self._draw = ctx.uniform(len(bounds), "reset", low, high, key="state")
        w, x, y, z = lib.root_quat.unbind(-1)
        turns = (  # (0, e) q for the three axes e: what a small turn adds to q
            torch.stack((-x, w, -z, y), -1),
            torch.stack((-y, z, w, -x), -1),
            torch.stack((-z, -y, x, w), -1),
        )
        parts = (lib.root_pos, lib.root_quat, lib.joint_pos, lib.root_lin_vel_w)
        parts += (lib.root_ang_vel_b, lib.joint_vel, *turns)
        self._states = torch.cat(parts, 1)
        self._low = ctx.tensor([joint.lower for joint in ctx.index.joints])
        self._high = ctx.tensor([joint.upper for joint in ctx.index.joints])

    def _build_log(self, ctx: BuildContext) -> None:
        """Sampler figures, and the share of ended episodes that did not fail, clip by clip."""
        clips = self.library.names if len(self.library.names) > 1 else ()
        names = (*self.sampler.log_names, *(f"success/{name}" for name in clips))
        self.log_names = names
        self.log_values = ctx.shared([0.0] * len(names), key="figures")
        self._success = self.log_values[len(self.sampler.log_names) :]
        self._ended = ctx.shared([[0.0, 0.0]] * len(clips), key="ended")

    # --- steps -------------------------------------------------------------------------------

    @property
    def clip(self) -> Tensor:
        """Number of each row's clip `[N]`, in the order of `library.names`."""
        return self.library.clip.index_select(0, self.target)

    @property
    def frame(self) -> Tensor:
        """The target's frame within its clip `[N]`."""
        return self.target - self.library.first.index_select(0, self.clip)

    def reference(self, clip: str | None = None) -> dict[str, Tensor]:
        """A clip at the control rate, for an export: arrays `[T, ...]` by the motion file's keys.

        Joints are in natural order, bodies are `body_names`.

        Args:
            clip: Its name; None where there is only one.

        Raises:
            ConfigError: If there are several clips and none is named, or none of that name.
        """
        lib = self.library
        if clip is None and len(lib.names) > 1:
            raise ConfigError(f"several clips: name one of {', '.join(lib.names)}")
        number = 0 if clip is None else lib.number(clip)
        start = sum(lib.lengths[:number])
        rows = slice(start, start + lib.lengths[number])
        return {
            "joint_pos": lib.joint_pos[rows],
            "joint_vel": lib.joint_vel[rows],
            "body_pos_w": lib.body_pos[rows],
            "body_quat_w": lib.body_quat[rows],
            "body_lin_vel_w": lib.body_lin_vel[rows],
            "body_ang_vel_w": lib.body_ang_vel[rows],
        }

    def stage_reset(self, payload: TensorResetRandomizationPayload) -> None:
        """Draws start frames and writes their states, moved by the draws."""
        state, draw = self._states.index_select(0, self.sampler.draw()), self._draw()
        nq, nv = payload.qpos.shape[1], payload.qvel.shape[1]
        qpos, qvel = state[:, :nq], state[:, nq : nq + nv]
        torch.add(qpos[:, :3], draw[:, :3], out=payload.qpos[:, :3])
        turns = state[:, nq + nv :].view(-1, 3, 4)
        quat = (turns * draw[:, 3:6].unsqueeze(2)).sum(1).add_(qpos[:, 3:7])
        norm = quat.square().sum(1, keepdim=True).sqrt_()
        torch.div(quat, norm, out=payload.qpos[:, 3:7])
        joints = qpos[:, 7:] + draw[:, 12:]
        torch.clamp(joints, self._low, self._high, out=payload.qpos[:, 7:])
        torch.add(qvel[:, :6], draw[:, 6:12], out=payload.qvel[:, :6])
        payload.qvel[:, 6:].copy_(qvel[:, 6:])

    def reset(self, mask: Tensor, frame: TermFrame) -> None:
        """Masked rows take the frame after the one they were put on as their target."""
        shown = self.library.following.index_select(0, self.sampler.rows)
        torch.where(mask, shown, self.target, out=self.target)
        torch.index_select(self._table, 0, self.target, out=self._now)

    def update(self, frame: TermFrame) -> None:
        """The target moves one frame on and stays on the clip's last one."""
        self._count(frame)
        self.target.copy_(self.library.following.index_select(0, self.target))
        torch.index_select(self._table, 0, self.target, out=self._now)

    def _count(self, frame: TermFrame) -> None:
        failed = frame[EpisodeFailed()]
        self.sampler.update(self.target, failed)
        if self.sampler.log_names:
            self.log_values[: len(self.sampler.log_names)].copy_(self.sampler.log_values)
        if self._ended.shape[0]:
            ended = frame[EpisodeEnded()]
            flags = torch.stack((ended, ended ^ failed), 1).float()
            self._ended.zero_().index_add_(0, self.clip, flags)
            share = self._ended[:, 1] / self._ended[:, 0]
            torch.where(self._ended[:, 0] > 0, share, self._success, out=self._success)


def _check_bodies(index: ModelIndex, anchor: str, bodies: tuple[str, ...]) -> None:
    for name in (anchor, *bodies):
        if name not in index.bodies:
            raise ConfigError(f"no body {near(name, index.bodies)}")
    if len(set(bodies)) != len(bodies) or not bodies:
        raise ConfigError(f"bodies must be different names, at least one, got {bodies}")
    if not index.floating:
        raise ConfigError("MotionCommand needs a floating base")


def _matrix(quat: Tensor) -> Tensor:
    """Rotation matrices `[..., 3, 3]` of unit quaternions."""
    w, x, y, z = quat.unbind(-1)
    rows: Mapping[int, tuple[Tensor, ...]] = {
        0: (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        1: (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        2: (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    }
    return torch.stack([torch.stack(row, -1) for row in rows.values()], -2)

"""To motion clips: from Unitree's LAFAN1 CSV, from `qpos` rows, from targets of feet and balance.

A CSV has no header and, for the G1, 36 columns: x y z, quaternion **xyzw**, 29 joints in natural
order. The free joint's angular velocity in `qvel` is in the body frame; body velocities in a
clip are in the world frame.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unilab_gym.engine import mujoco
from unilab_gym.errors import MotionError, MotionWarning
from unilab_gym.motion.clip import (
    ARRAYS,
    MotionClip,
    RobotKinematics,
    beyond_limits,
    save_clip,
)

Array = np.ndarray[Any, np.dtype[Any]]


def read_csv(path: str | Path, robot: RobotKinematics) -> Array:
    """The `qpos` rows `[T, nq]` of a CSV file, quaternions turned to wxyz.

    Raises:
        MotionError: If it does not hold numbers in the robot's number of columns, or a quaternion
            is not unit.
    """
    path = Path(path)
    if not path.is_file():
        raise MotionError(f"{path}: no such file")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*input contained no data")
            rows = np.loadtxt(path, delimiter=",", ndmin=2)
    except ValueError as error:
        raise MotionError(f"{path}: rows must be numbers without a header ({error})") from error
    nq = int(robot.model.nq)
    if not rows.size:
        raise MotionError(f"{path}: the file is empty; one row of {nq} numbers a frame is expected")
    if rows.shape[1] != nq:
        raise MotionError(
            f"{path}: {rows.shape[1]} columns, {robot.name} needs {nq}: x y z, quaternion xyzw, "
            f"{nq - 7} joints"
        )
    bad = ~np.isfinite(rows).all(1)
    if bad.any():
        raise MotionError(f"{path}: row {int(bad.argmax()) + 1}: not finite")
    norm = np.linalg.norm(rows[:, 3:7], axis=1)
    off = np.abs(norm - 1.0) > 0.01
    if off.any():
        row = int(off.argmax())
        raise MotionError(f"{path}: row {row + 1}: quaternion has norm {norm[row]:.3g}, not 1")
    rows[:, 3:7] = np.roll(rows[:, 3:7], 1, axis=1) / norm[:, None]
    return rows


def velocities(robot: RobotKinematics, qpos: Array, fps: float) -> Array:
    """Velocities `[T, nv]` by central differences on the manifold, one-sided at both ends.

    `mj_differentiatePos` gives the free joint's angular velocity in its body frame, as `qvel`
    has it. Taken over both neighbours it belongs to the middle frame.
    """
    frames = len(qpos)
    qvel = np.zeros((frames, robot.model.nv))
    for frame in range(frames):
        before, after = max(frame - 1, 0), min(frame + 1, frames - 1)
        mujoco.mj_differentiatePos(
            robot.model, qvel[frame], (after - before) / fps, qpos[before], qpos[after]
        )
    return qvel


def clip_from_qpos(
    robot: RobotKinematics,
    qpos: Array | Sequence[Array],
    fps: float,
    *,
    name: str,
    source: str,
    license: str,
) -> MotionClip:
    """A clip of every body of the robot from a sequence of positions.

    Args:
        robot: Whose positions they are.
        qpos: `[T, nq]`, quaternion wxyz.
        fps: Frames per second.
        name: Of the clip.
        source: Where it comes from.
        license: Under which terms.

    Raises:
        MotionError: If there are fewer than 2 frames or the rate is not positive.
    """
    qpos = np.asarray(qpos)
    if len(qpos) < 2:
        raise MotionError(f"{name}: {len(qpos)} frame(s), a motion needs at least 2")
    if not (np.isfinite(fps) and fps > 0):
        raise MotionError(f"{name}: fps must be positive, got {fps}")
    model, data = robot.model, robot.data
    qvel = velocities(robot, qpos, fps)
    frames, bodies = len(qpos), model.nbody - 1
    arrays = {
        "body_pos_w": np.empty((frames, bodies, 3), dtype=np.float32),
        "body_quat_w": np.empty((frames, bodies, 4), dtype=np.float32),
        "body_lin_vel_w": np.empty((frames, bodies, 3), dtype=np.float32),
        "body_ang_vel_w": np.empty((frames, bodies, 3), dtype=np.float32),
    }
    for frame in range(frames):
        data.qpos[:], data.qvel[:] = qpos[frame], qvel[frame]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_comVel(model, data)
        arrays["body_pos_w"][frame] = data.xpos[1:]
        arrays["body_quat_w"][frame] = data.xquat[1:]
        spin = data.cvel[1:, :3]
        arm = data.xpos[1:] - data.subtree_com[model.body_rootid[1:]]
        arrays["body_ang_vel_w"][frame] = spin
        arrays["body_lin_vel_w"][frame] = data.cvel[1:, 3:] + np.cross(spin, arm)
    return MotionClip(
        name=name,
        fps=float(fps),
        joint_names=robot.joint_names,
        body_names=robot.body_names,
        joint_pos=qpos[:, 7:].astype(np.float32),
        joint_vel=qvel[:, 6:].astype(np.float32),
        source=source,
        license=license,
        **arrays,
    )


def rounded(clip: MotionClip, grid: float) -> MotionClip:
    """The clip with every value on a grid, which compresses better; quaternions stay unit to it."""
    arrays: dict[str, Any] = {}
    for key in ARRAYS:
        arrays[key] = (np.round(getattr(clip, key) / grid) * grid).astype(np.float32)
    return dataclasses.replace(clip, **arrays)


def convert_csv(
    csv: str | Path, npz: str | Path, *, robot: str = "g1", fps: float = 30.0, license: str = ""
) -> MotionClip:
    """Reads a CSV, writes an NPZ of the same rate, and returns the clip.

    Warns of joints beyond their range, by name: `motion check` and a task refuse such a file.

    Raises:
        MotionError: As `read_csv` and `clip_from_qpos`.
    """
    kinematics = RobotKinematics(robot)
    rows = read_csv(csv, kinematics)
    clip = clip_from_qpos(
        kinematics, rows, fps, name=Path(npz).stem, source=Path(csv).name, license=license
    )
    save_clip(npz, clip)
    beyond = beyond_limits(clip, kinematics)
    if beyond:
        text = f"{npz} will be refused: {'; '.join(beyond)}"
        warnings.warn(text, MotionWarning, stacklevel=2)
    return clip


# --- inverse kinematics ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PoseTarget:
    """What one frame must look like."""

    height: float
    """Of the root body, m."""
    balance: tuple[float, float]
    """Centre of mass over the ground, x and y, m."""
    feet: Mapping[str, tuple[float, float, float]]
    """Body -> position of its origin, m; feet are level and look along x."""
    lean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Roll, pitch and yaw of the root, rad."""
    joints: Mapping[str, float] = field(default_factory=dict[str, float])
    """Joints that are given; the others above the legs keep the guess's value."""


def solve_pose(
    robot: RobotKinematics,
    target: PoseTarget,
    guess: Sequence[float] | Array,
    legs: Sequence[str],
) -> Array:
    """The `qpos` that meets a target, by damped Gauss-Newton steps on root xy and leg joints.

    Args:
        robot: Whose pose it is.
        target: What must be met.
        guess: `qpos` to start from: the frame before.
        legs: The joints that are free, as many as the feet have degrees of freedom.

    Raises:
        MotionError: If the feet and the balance are not met within 1e-5 m or rad, or a leg joint
            would leave its range.
    """
    model, data = robot.model, robot.data
    qpos = np.array(guess, dtype=float)
    qpos[2] = target.height
    qpos[3:7] = _quat_of(target.lean)
    for name, value in target.joints.items():
        qpos[model.joint(name).qposadr[0]] = value
    free = [int(model.joint(name).qposadr[0]) for name in legs]
    columns = [0, 1, *(int(model.joint(name).dofadr[0]) for name in legs)]
    error = np.zeros(0)
    for _ in range(60):
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        error, jacobian = _residual(robot, target)
        if np.abs(error).max() < 1e-7:
            break
        local = jacobian[:, columns]
        damped = local.T @ local + 1e-9 * np.eye(len(columns))
        step = np.linalg.solve(damped, local.T @ error).clip(-0.2, 0.2)
        qpos[:2] += step[:2]
        qpos[free] += step[2:]
    if np.abs(error).max() > 1e-5:
        raise MotionError(f"no pose meets {target}: off by {np.abs(error).max():.2g}")
    low, high = robot.limits
    for name, at in zip(legs, free, strict=True):
        if not low[at - 7] <= qpos[at] <= high[at - 7]:
            raise MotionError(f"{name} would be {qpos[at]:.3g} rad, beyond its range ({target})")
    return qpos


def _residual(robot: RobotKinematics, target: PoseTarget) -> tuple[Array, Array]:
    model, data = robot.model, robot.data
    errors: list[Array] = []
    jacobians: list[Array] = []
    for body, at in target.feet.items():
        number = model.body(body).id
        linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jacBody(model, data, linear, angular, number)
        turn = np.zeros(3)
        mujoco.mju_quat2Vel(turn, data.xquat[number] * [1.0, -1.0, -1.0, -1.0], 1.0)
        errors += [np.array(at) - data.xpos[number], turn]
        jacobians += [linear, angular]
    centre = np.zeros((3, model.nv))
    root = model.body(robot.root_body).id
    mujoco.mj_jacSubtreeCom(model, data, centre, root)
    errors.append(np.array(target.balance) - data.subtree_com[root, :2])
    jacobians.append(centre[:2])
    return np.concatenate(errors), np.concatenate(jacobians)


def _quat_of(lean: tuple[float, float, float]) -> Array:
    """Yaw, then pitch, then roll, as a quaternion."""
    result = np.array([1.0, 0.0, 0.0, 0.0])
    for axis, angle in ((2, lean[2]), (1, lean[1]), (0, lean[0])):
        turn = np.zeros(4)
        turn[0], turn[1 + axis] = np.cos(angle / 2), np.sin(angle / 2)
        product = np.zeros(4)
        mujoco.mju_mulQuat(product, result, turn)
        result = product
    return result

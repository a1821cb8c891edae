"""Motion clips: the NPZ file, its checks, resampling.

Keys are those common to UniLab, mjlab and BeyondMimic files: `fps`, `joint_pos` (T, J),
`joint_vel` (T, J), `body_pos_w` (T, B, 3), `body_quat_w` (T, B, 4) wxyz, `body_lin_vel_w` and
`body_ang_vel_w` (T, B, 3): world frame, origins of links. Ours add `schema`, `joint_names`,
`body_names`, `source` and `license`. No pickled object is ever read.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from unilab_gym.assets import asset_path, asset_root
from unilab_gym.engine import mujoco
from unilab_gym.errors import ConfigError, MotionError, near

SCHEMA = "unilab_gym.motion/1"
Array = np.ndarray[Any, np.dtype[Any]]

ARRAYS = {
    "joint_pos": 2,
    "joint_vel": 2,
    "body_pos_w": 3,
    "body_quat_w": 3,
    "body_lin_vel_w": 3,
    "body_ang_vel_w": 3,
}
"""Array keys and their dimensions."""
LAYOUTS = ("unilab31", "mjlab30", "isaaclab30")
"""Orders of files without names: world body first; depth-first; breadth-first with velocities of
centres of mass."""

LIMIT_TOLERANCE = 0.05
"""rad by which a joint may leave its range: retargeted data overshoots a little."""
POSITION_TOLERANCE = 0.01
"""m between a body's position and that of the joints' forward kinematics."""
ANGLE_TOLERANCE = 0.03
"""rad between a body's orientation and that of the joints' forward kinematics."""


@dataclass(frozen=True)
class MotionClip:
    """A checked motion: float32 arrays of T frames, J joints, B bodies."""

    name: str
    fps: float
    joint_names: tuple[str, ...]
    body_names: tuple[str, ...]
    joint_pos: Array  # [T, J] rad
    joint_vel: Array  # [T, J] rad/s
    body_pos_w: Array  # [T, B, 3] m
    body_quat_w: Array  # [T, B, 4] wxyz
    body_lin_vel_w: Array  # [T, B, 3] m/s, of the link's origin
    body_ang_vel_w: Array  # [T, B, 3] rad/s, world frame
    source: str = ""
    license: str = ""

    @property
    def frames(self) -> int:
        """T."""
        return len(self.joint_pos)

    @property
    def duration(self) -> float:
        """Seconds from the first frame to the last."""
        return (self.frames - 1) / self.fps

    def body(self, name: str) -> int:
        """The column of a body.

        Raises:
            MotionError: If the clip does not have it.
        """
        if name not in self.body_names:
            raise MotionError(f"{self.name}: body_names: no body {near(name, self.body_names)}")
        return self.body_names.index(name)


# --- robots ---------------------------------------------------------------------------------------

ROBOTS = {"g1": "robots/g1/g1.xml", "go2": "robots/go2/go2.xml"}
"""Short names, as the command line takes them."""


class RobotKinematics:
    """A floating-base robot of hinges and slides, without a scene.

    Args:
        robot: A short name of `ROBOTS`, or an MJCF file as `SceneCfg.robot` names it.

    Raises:
        ConfigError: If there is no such file, or its first joint is not free.
    """

    def __init__(self, robot: str | Path) -> None:
        path = asset_path(ROBOTS.get(str(robot), str(robot)))
        self.name = path.stem
        self.model = mujoco.MjModel.from_xml_path(str(path))
        self.data = mujoco.MjData(self.model)
        if not self.model.njnt or self.model.jnt_type[0] != mujoco.mjtJoint.mjJNT_FREE:
            raise ConfigError(f"{path.name}: a motion needs a robot with a floating base")
        self.joint_names = tuple(self.model.joint(i).name for i in range(1, self.model.njnt))
        self.body_names = tuple(self.model.body(i).name for i in range(1, self.model.nbody))
        self.root_body: str = self.model.body(int(self.model.jnt_bodyid[0])).name

    @property
    def limits(self) -> tuple[Array, Array]:
        """Lower and upper bounds `[J]`; infinite where a joint is not limited."""
        limited = self.model.jnt_limited[1:].astype(bool)
        low = np.where(limited, self.model.jnt_range[1:, 0], -np.inf)
        return low, np.where(limited, self.model.jnt_range[1:, 1], np.inf)

    def body_ids(self, names: Sequence[str]) -> list[int]:
        """Numbers of bodies.

        Raises:
            ConfigError: If one is unknown.
        """
        for name in names:
            if name not in self.body_names:
                raise ConfigError(f"{self.name} has no body {near(name, self.body_names)}")
        return [int(self.model.body(name).id) for name in names]

    def centre_of_mass(self, body: str) -> Array:
        """In the body's own frame, m."""
        return cast("Array", self.model.body(body).ipos)

    def breadth_first(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Joints and bodies level by level from the root, as USD importers list them."""
        model, order = self.model, [int(self.model.jnt_bodyid[0])]
        for body in order:
            order += [i for i in range(1, model.nbody) if model.body_parentid[i] == body]
        joints = [
            model.joint(int(model.body_jntadr[body])).name
            for body in order[1:]
            if model.body_jntnum[body]
        ]
        return tuple(joints), tuple(model.body(body).name for body in order)

    def forward(
        self, root_pos: Array, root_quat: Array, joint_pos: Array, bodies: Sequence[str]
    ) -> tuple[Array, Array]:
        """Positions `[T, B, 3]` and orientations `[T, B, 4]` of bodies, world frame."""
        ids = self.body_ids(bodies)
        pos = np.empty((len(joint_pos), len(ids), 3), dtype=np.float32)
        quat = np.empty((len(joint_pos), len(ids), 4), dtype=np.float32)
        for frame in range(len(joint_pos)):
            self.data.qpos[:3] = root_pos[frame]
            self.data.qpos[3:7] = root_quat[frame]
            self.data.qpos[7:] = joint_pos[frame]
            mujoco.mj_kinematics(self.model, self.data)
            pos[frame], quat[frame] = self.data.xpos[ids], self.data.xquat[ids]
        return pos, quat


# --- files ----------------------------------------------------------------------------------------


def packaged_motions() -> tuple[str, ...]:
    """Names of the clips that ship with the package."""
    return tuple(sorted(path.stem for path in (asset_root() / "motions").glob("*.npz")))


def motion_path(motion: str) -> Path:
    """The file of a packaged clip's name, or an existing path.

    Raises:
        MotionError: If there is neither; lists the packaged clips.
    """
    names = packaged_motions()
    if motion in names:
        return asset_path(f"motions/{motion}.npz")
    path = Path(motion).expanduser()
    if path.is_file():
        return path
    raise MotionError(f"no motion file and no packaged motion {near(motion, names)}")


def save_clip(path: str | Path, clip: MotionClip) -> None:
    """Writes a compressed NPZ with names, schema, source and licence.

    Raises:
        MotionError: If the file cannot be written.
    """
    arrays: dict[str, Any] = {key: getattr(clip, key).astype(np.float32) for key in ARRAYS}
    try:
        np.savez_compressed(
            path,
            schema=np.array(SCHEMA),
            fps=np.array(clip.fps, dtype=np.float64),
            joint_names=np.array(clip.joint_names),
            body_names=np.array(clip.body_names),
            source=np.array(clip.source),
            license=np.array(clip.license),
            **arrays,
        )
    except OSError as error:
        raise MotionError(f"cannot write {path}: {error}") from error


def load_clip(
    path: str | Path, *, robot: RobotKinematics | None = None, layout: str | None = None
) -> MotionClip:
    """Reads and checks a motion file.

    Args:
        path: An NPZ file.
        robot: What joints and bodies are compared with: names, limits, forward kinematics. None
            checks what the file says of itself.
        layout: One of `LAYOUTS`, for a file without names; needs `robot`.

    Raises:
        MotionError: Names the file, the key and what is wrong with it.
    """
    path = Path(path)
    data = _read(path)
    fps = _fps(path, data)
    arrays = {key: _array(path, data, key, dims) for key, dims in ARRAYS.items()}
    _check_shapes(path, arrays)
    names = _names(path, data, arrays, robot, layout)
    clip = MotionClip(
        name=path.stem,
        fps=fps,
        joint_names=names[0],
        body_names=names[1],
        source=_text(data, "source"),
        license=_text(data, "license"),
        **_checked_quats(path, arrays),
    )
    if layout == "unilab31":
        clip = select_bodies(clip, clip.body_names[1:])
    if layout == "isaaclab30" and robot is not None:
        clip = _from_centres_of_mass(clip, robot)
    if robot is not None:
        check_against(path, clip, robot)
    return clip


def _read(path: Path) -> Mapping[str, Array]:
    if not path.is_file():
        raise MotionError(f"{path}: no such file")
    try:
        content = io.BytesIO(path.read_bytes())  # np.load leaves a damaged file open
        archive = np.load(content, allow_pickle=False)
    except Exception as error:  # damaged bytes fail in every way there is
        raise MotionError(f"{path}: not an NPZ file ({error})") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise MotionError(f"{path}: not an NPZ file (one array)")
    data: dict[str, Array] = {}
    with archive:
        for key in archive.files:
            try:
                data[key] = archive[key]
            except Exception as error:
                objects = "allow_pickle" in str(error)
                what = "holds Python objects, not numbers" if objects else f"damaged ({error})"
                raise MotionError(f"{path}: {key}: {what}") from error
    missing = [key for key in ("fps", *ARRAYS) if key not in data]
    if missing:
        raise MotionError(f"{path}: missing {', '.join(missing)}; it has {', '.join(sorted(data))}")
    schema = _text(data, "schema")
    if schema and schema != SCHEMA:
        raise MotionError(f"{path}: schema: {schema!r} is not {SCHEMA!r}")
    return data


def _text(data: Mapping[str, Array], key: str) -> str:
    return str(data[key]) if key in data and data[key].ndim == 0 else ""


def _fps(path: Path, data: Mapping[str, Array]) -> float:
    given = data["fps"]
    if given.size != 1 or given.dtype.kind not in "iuf":
        raise MotionError(f"{path}: fps: must be one number, got shape {given.shape} {given.dtype}")
    fps = float(given.reshape(()))
    if not (np.isfinite(fps) and fps > 0):
        raise MotionError(f"{path}: fps: must be positive, got {fps}")
    return fps


def _array(path: Path, data: Mapping[str, Array], key: str, dims: int) -> Array:
    value = data[key]
    last = {"body_quat_w": 4}.get(key, 3 if dims == 3 else None)
    shape = "(T, J)" if dims == 2 else f"(T, B, {last})"
    if value.dtype.kind not in "iuf":
        raise MotionError(f"{path}: {key}: must hold numbers, got {value.dtype}")
    if value.ndim != dims or (last is not None and value.shape[-1] != last):
        raise MotionError(f"{path}: {key}: shape {value.shape}, expected {shape}")
    bad = ~np.isfinite(value).all(tuple(range(1, dims)))
    if bad.any():
        raise MotionError(f"{path}: {key}: not finite at frame {int(bad.argmax())}")
    return value.astype(np.float32)


def _check_shapes(path: Path, arrays: Mapping[str, Array]) -> None:
    frames = {key: len(value) for key, value in arrays.items()}
    if len(set(frames.values())) > 1:
        listed = ", ".join(f"{key} {count}" for key, count in frames.items())
        raise MotionError(f"{path}: numbers of frames differ: {listed}")
    if frames["joint_pos"] < 2:
        raise MotionError(
            f"{path}: joint_pos: {frames['joint_pos']} frame(s), a motion needs at least 2"
        )
    for keys in (("joint_pos", "joint_vel"), tuple(ARRAYS)[2:]):
        counts = {key: arrays[key].shape[1] for key in keys}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{key} {count}" for key, count in counts.items())
            what = "joints" if keys[0] == "joint_pos" else "bodies"
            raise MotionError(f"{path}: numbers of {what} differ: {listed}")


def _checked_quats(path: Path, arrays: Mapping[str, Array]) -> dict[str, Array]:
    quats = arrays["body_quat_w"]
    norm = np.linalg.norm(quats.astype(np.float64), axis=-1)  # a wrong file may hold 1e30
    off = np.abs(norm - 1.0) > 0.01
    if off.any():
        frame, body = np.argwhere(off)[0]
        raise MotionError(
            f"{path}: body_quat_w: norm {norm[frame, body]:.3g} at frame {frame}, body {body}: "
            "quaternions must be unit, wxyz"
        )
    return {**arrays, "body_quat_w": quats / norm[..., None].astype(np.float32)}


# --- names ----------------------------------------------------------------------------------------


def _names(
    path: Path,
    data: Mapping[str, Array],
    arrays: Mapping[str, Array],
    robot: RobotKinematics | None,
    layout: str | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    counts = arrays["joint_pos"].shape[1], arrays["body_pos_w"].shape[1]
    named = "joint_names" in data and "body_names" in data
    if layout is None and not named:
        raise MotionError(
            f"{path}: joint_names, body_names: missing, so the order of {counts[0]} joints and "
            f"{counts[1]} bodies is unknown; say layout= one of {', '.join(LAYOUTS)}"
        )
    if layout is not None:
        if named:
            raise MotionError(f"{path}: layout {layout!r} given, but the file names its bodies")
        return _layout_names(path, layout, robot, counts)
    result: list[tuple[str, ...]] = []
    for key, count in zip(("joint_names", "body_names"), counts, strict=True):
        names = tuple(str(name) for name in np.atleast_1d(data[key]))
        if len(names) != count:
            raise MotionError(f"{path}: {key}: {len(names)} names for {count} columns")
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise MotionError(f"{path}: {key}: given twice: {', '.join(twice)}")
        result.append(names)
    return result[0], result[1]


def _layout_names(
    path: Path, layout: str, robot: RobotKinematics | None, counts: tuple[int, int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if layout not in LAYOUTS:
        raise MotionError(f"{path}: layout {near(layout, LAYOUTS)}")
    if robot is None:
        raise MotionError(f"{path}: layout {layout!r} needs a robot to take the names from")
    joints, bodies = robot.joint_names, robot.body_names
    if layout == "isaaclab30":
        joints, bodies = robot.breadth_first()
    if layout == "unilab31":
        bodies = ("world", *bodies)
    if counts != (len(joints), len(bodies)):
        raise MotionError(
            f"{path}: layout {layout!r} of {robot.name} has {len(joints)} joints and "
            f"{len(bodies)} bodies, the file {counts[0]} and {counts[1]}"
        )
    return joints, bodies


def select_bodies(clip: MotionClip, names: Iterable[str]) -> MotionClip:
    """The clip with these bodies only, in this order.

    Raises:
        MotionError: If the clip lacks one.
    """
    names = tuple(names)
    columns = [clip.body(name) for name in names]
    arrays = {key: getattr(clip, key)[:, columns] for key in tuple(ARRAYS)[2:]}
    return dataclasses.replace(clip, body_names=names, **arrays)


def select_joints(clip: MotionClip, names: Iterable[str]) -> MotionClip:
    """The clip with its joints in this order.

    Raises:
        MotionError: If the clip lacks one.
    """
    names = tuple(names)
    for name in names:
        if name not in clip.joint_names:
            raise MotionError(f"{clip.name}: joint_names: no joint {near(name, clip.joint_names)}")
    columns = [clip.joint_names.index(name) for name in names]
    arrays = {key: getattr(clip, key)[:, columns] for key in tuple(ARRAYS)[:2]}
    return dataclasses.replace(clip, joint_names=names, **arrays)


def _from_centres_of_mass(clip: MotionClip, robot: RobotKinematics) -> MotionClip:
    """Velocities of links' origins from those of their centres of mass: v_o = v_c - w x R c."""
    offsets = np.array([robot.centre_of_mass(name) for name in clip.body_names], dtype=np.float32)
    arms = rotate(clip.body_quat_w, np.broadcast_to(offsets, clip.body_pos_w.shape))
    velocity = clip.body_lin_vel_w - np.cross(clip.body_ang_vel_w, arms)
    return dataclasses.replace(clip, body_lin_vel_w=velocity.astype(np.float32))


# --- comparison with a robot ----------------------------------------------------------------------


def check_against(
    path: str | Path, clip: MotionClip, robot: RobotKinematics
) -> tuple[float, float]:
    """Compares a clip with a robot: names, limits, forward kinematics.

    Returns:
        The largest distance (m) and angle (rad) between a body and the joints' kinematics.

    Raises:
        MotionError: Names what does not fit.
    """
    for key, have, want in (
        ("joint_names", clip.joint_names, robot.joint_names),
        ("body_names", clip.body_names, robot.body_names),
    ):
        unknown = [name for name in have if name not in want]
        if unknown:
            raise MotionError(f"{path}: {key}: {robot.name} has no {near(unknown[0], want)}")
    absent = [name for name in robot.joint_names if name not in clip.joint_names]
    if absent:
        raise MotionError(
            f"{path}: joint_names: {len(clip.joint_names)} joints, {robot.name} has "
            f"{len(robot.joint_names)}; missing {', '.join(absent[:4])}"
        )
    if robot.root_body not in clip.body_names:
        raise MotionError(f"{path}: body_names: the root body {robot.root_body!r} is missing")
    ordered = select_joints(clip, robot.joint_names)
    _check_limits(path, ordered, robot)
    return _check_kinematics(path, ordered, robot)


def beyond_limits(clip: MotionClip, robot: RobotKinematics) -> list[str]:
    """Says of each joint that leaves its range how far and when it is farthest, worst first.

    Args:
        clip: Joints in the robot's order.
        robot: Whose ranges they are.
    """
    low, high = robot.limits
    beyond = np.maximum(low - clip.joint_pos, clip.joint_pos - high)  # [T, J]
    worst = beyond.max(0)
    return [
        f"{robot.joint_names[joint]} is {worst[joint]:.3g} rad beyond its range "
        f"[{low[joint]:.3g}, {high[joint]:.3g}] at frame {beyond[:, joint].argmax()}"
        for joint in np.argsort(-worst)
        if worst[joint] > LIMIT_TOLERANCE
    ]


def _check_limits(path: str | Path, clip: MotionClip, robot: RobotKinematics) -> None:
    found = beyond_limits(clip, robot)
    if found:
        raise MotionError(f"{path}: joint_pos: {found[0]}")


def _check_kinematics(
    path: str | Path, clip: MotionClip, robot: RobotKinematics, most: int = 200
) -> tuple[float, float]:
    frames = np.unique(np.linspace(0, clip.frames - 1, min(most, clip.frames)).round().astype(int))
    root = clip.body(robot.root_body)
    pos, quat = clip.body_pos_w[frames], clip.body_quat_w[frames]
    want = robot.forward(pos[:, root], quat[:, root], clip.joint_pos[frames], clip.body_names)
    distance, angle = _apart(pos, quat, *want)
    if distance.max() <= POSITION_TOLERANCE and angle.max() <= ANGLE_TOLERANCE:
        return float(distance.max()), float(angle.max())
    last = np.roll(quat, 1, axis=-1)  # read as if the file were xyzw
    want = robot.forward(pos[:, root], last[:, root], clip.joint_pos[frames], clip.body_names)
    swapped = _apart(pos, last, *want)
    if swapped[0].max() <= POSITION_TOLERANCE and swapped[1].max() <= ANGLE_TOLERANCE:
        raise MotionError(f"{path}: body_quat_w: scalar last (xyzw); a motion file holds wxyz")
    frame, body = np.unravel_index(int(distance.argmax()), distance.shape)
    key = "body_pos_w" if distance.max() > POSITION_TOLERANCE else "body_quat_w"
    if key == "body_quat_w":
        frame, body = np.unravel_index(int(angle.argmax()), angle.shape)
    raise MotionError(
        f"{path}: {key}: {clip.body_names[body]} is {distance[frame, body]:.3g} m and "
        f"{angle[frame, body]:.3g} rad away from the forward kinematics of joint_pos at frame "
        f"{frames[frame]}: wrong order of bodies or joints, or another robot than {robot.name}"
    )


def _apart(pos: Array, quat: Array, want_pos: Array, want_quat: Array) -> tuple[Array, Array]:
    dot = np.abs((quat * want_quat).sum(-1)).clip(max=1.0)
    return np.linalg.norm(pos - want_pos, axis=-1), 2.0 * np.arccos(dot)


# --- resampling -----------------------------------------------------------------------------------


def resample(clip: MotionClip, fps: float) -> MotionClip:
    """The clip at another rate: positions and velocities lerp, orientations slerp on the short arc.

    First and last frame are kept, so the duration changes by at most half a new frame.
    """
    if abs(fps - clip.fps) <= 1e-6 * fps:
        return clip
    count = max(2, round(clip.duration * fps) + 1)
    at = np.linspace(0.0, clip.frames - 1, count)
    before = np.minimum(at.astype(int), clip.frames - 2)
    share = (at - before).astype(np.float32)

    def lerp(values: Array) -> Array:
        weight = share.reshape(-1, *([1] * (values.ndim - 1)))
        return (values[before] * (1.0 - weight) + values[before + 1] * weight).astype(np.float32)

    arrays = {key: lerp(getattr(clip, key)) for key in ARRAYS if key != "body_quat_w"}
    quats = slerp(clip.body_quat_w[before], clip.body_quat_w[before + 1], share[:, None, None])
    return dataclasses.replace(clip, fps=float(fps), body_quat_w=quats, **arrays)


def slerp(first: Array, second: Array, share: Array) -> Array:
    """Spherical interpolation of unit quaternions `[..., 4]` along the short arc."""
    dot = (first * second).sum(-1, keepdims=True)
    second = np.where(dot < 0.0, -second, second)
    angle = np.arccos(np.abs(dot).clip(max=1.0))
    sine = np.sin(angle)
    close = sine < 1e-4
    safe = np.where(close, 1.0, sine)
    one = np.where(close, 1.0 - share, np.sin((1.0 - share) * angle) / safe)
    two = np.where(close, share, np.sin(share * angle) / safe)
    mixed = one * first + two * second
    return cast("Array", (mixed / np.linalg.norm(mixed, axis=-1, keepdims=True)).astype(np.float32))


def rotate(quat: Array, vector: Array) -> Array:
    """R(q) v for quaternions `[..., 4]` and vectors `[..., 3]`."""
    w, u = quat[..., :1], quat[..., 1:]
    turn = 2.0 * np.cross(u, vector)
    return vector + w * turn + np.cross(u, turn)

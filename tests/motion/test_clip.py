"""Motion files: what is read, what is refused and in which words (E14, E26, E41, E43)."""

import re
import zipfile

import numpy as np
import pytest
from helpers.motion import arrays, g1, make_clip, write_clip

from unilab_gym.errors import MotionError
from unilab_gym.motion.clip import (
    RobotKinematics,
    load_clip,
    motion_path,
    resample,
    save_clip,
    select_bodies,
    slerp,
)


def rewrite(path, drop=(), **changes):
    """The file with keys dropped and changed; a function changes what is there."""
    data = arrays(path)
    for key in drop:
        del data[key]
    for key, value in changes.items():
        data[key] = value(data[key]) if callable(value) else value
    np.savez(path, **data)
    return path


def damaged(path, kind):
    """The file, compressed, with bytes changed as a disk or an attacker would."""
    np.savez_compressed(path, **arrays(path))
    content = bytearray(path.read_bytes())
    if kind == "deflate":
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo("joint_pos.npy")
        start = info.header_offset + 30 + len(info.filename) + 20
        content[start : start + 200] = bytes(200)
    elif kind in ("encrypted", "patched"):  # flag bits of every entry in the central directory
        at = content.find(b"PK\x01\x02")
        while at >= 0:
            content[at + 8] |= {"encrypted": 1, "patched": 32}[kind]
            at = content.find(b"PK\x01\x02", at + 1)
    else:
        del content[len(content) // 2 :]
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", ["deflate", "encrypted", "patched", "cut"])
def test_damaged_bytes_are_one_kind_of_error(tmp_path, kind):
    with pytest.raises(MotionError, match=r"sway\.npz: (\w+: damaged|not an NPZ file) \("):
        load_clip(damaged(write_clip(tmp_path), kind))


def test_numbers_too_large_for_a_norm_are_refused(tmp_path):
    path = rewrite(write_clip(tmp_path), body_quat_w=lambda quats: quats * np.float32(1e30))
    with pytest.raises(MotionError, match=r"body_quat_w: norm 1e\+30 at frame 0"):
        load_clip(path)


def put(index, value):
    def change(array):
        array = array.copy()
        array[index] = value
        return array

    return change


# --- round trip -----------------------------------------------------------------------------------


def test_a_clip_survives_the_file(tmp_path):
    clip = make_clip(30)
    save_clip(tmp_path / "a.npz", clip)
    again = load_clip(tmp_path / "a.npz", robot=g1())
    assert (again.fps, again.frames, again.name) == (50.0, 30, "a")
    assert (again.source, again.license) == ("tests", "none")
    assert again.joint_names == g1().joint_names and again.body_names == g1().body_names
    for key in ("joint_pos", "joint_vel", "body_pos_w", "body_quat_w", "body_ang_vel_w"):
        np.testing.assert_allclose(getattr(again, key), getattr(clip, key), atol=1e-6)
    assert again.duration == pytest.approx(29 / 50)


@pytest.mark.parametrize("fps", [50, 50.0, np.float32(50), np.array(50), np.array([50.0])])
def test_fps_may_be_any_single_number(tmp_path, fps):
    path = rewrite(write_clip(tmp_path), fps=fps)
    assert load_clip(path).fps == 50.0


def test_quaternions_are_normalised(tmp_path):
    path = rewrite(write_clip(tmp_path), body_quat_w=lambda q: q * 1.005)
    norm = np.linalg.norm(load_clip(path).body_quat_w, axis=-1)
    np.testing.assert_allclose(norm, 1.0, atol=1e-6)


# --- refusals -------------------------------------------------------------------------------------

WRONG = [
    ({"drop": ["joint_vel"]}, "missing joint_vel; it has body_ang_vel_w"),
    ({"drop": ["fps", "body_pos_w"]}, "missing fps, body_pos_w"),
    ({"fps": 0}, "fps: must be positive, got 0.0"),
    ({"fps": -30.0}, "fps: must be positive, got -30.0"),
    ({"fps": np.nan}, "fps: must be positive, got nan"),
    ({"fps": np.array([30.0, 30.0])}, "fps: must be one number, got shape (2,)"),
    ({"fps": np.array("fifty")}, "fps: must be one number"),
    ({"joint_pos": lambda a: a[:-1]}, "numbers of frames differ: joint_pos 39, joint_vel 40"),
    ({"body_quat_w": lambda a: a[:-1]}, "body_quat_w 39"),
    ({"joint_vel": lambda a: a[:, :-1]}, "numbers of joints differ: joint_pos 29, joint_vel 28"),
    ({"body_pos_w": lambda a: a[:, :-1]}, "numbers of bodies differ: body_pos_w 29, body_quat_w"),
    ({"joint_pos": lambda a: a[0]}, "joint_pos: shape (29,), expected (T, J)"),
    ({"body_quat_w": lambda a: a[..., :3]}, "body_quat_w: shape (40, 30, 3), expected (T, B, 4)"),
    ({"body_lin_vel_w": put((7, 2, 0), np.nan)}, "body_lin_vel_w: not finite at frame 7"),
    ({"joint_pos": put((39, 0), np.inf)}, "joint_pos: not finite at frame 39"),
    ({"body_quat_w": put((5, 3), 0.0)}, "body_quat_w: norm 0 at frame 5, body 3"),
    ({"body_quat_w": lambda a: a * 1.2}, "body_quat_w: norm 1.2 at frame 0, body 0"),
    ({"joint_names": lambda a: a[:-1]}, "joint_names: 28 names for 29 columns"),
    ({"body_names": lambda a: np.append(a[:-1], a[0])}, "body_names: given twice: pelvis"),
    ({"schema": np.array("other/2")}, "schema: 'other/2' is not 'unilab_gym.motion/1'"),
    ({"joint_pos": lambda a: a.astype(str)}, "joint_pos: must hold numbers, got <U"),
    ({"drop": ["joint_names", "body_names"]}, "say layout= one of unilab31, mjlab30, isaaclab30"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m for _, m in WRONG])
def test_a_wrong_file_is_refused_with_file_and_key(tmp_path, change, message):
    change = dict(change)
    path = rewrite(write_clip(tmp_path), drop=change.pop("drop", ()), **change)
    with pytest.raises(MotionError, match=re.escape(message)) as caught:
        load_clip(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("frames", [0, 1])
def test_clips_of_fewer_than_two_frames_are_refused(tmp_path, frames):
    path = write_clip(tmp_path)
    data = arrays(path)
    for key, value in data.items():
        if value.ndim > 1:
            data[key] = value[:frames]
    np.savez(path, **data)
    with pytest.raises(MotionError, match=rf"{frames} frame\(s\), a motion needs at least 2"):
        load_clip(path)


def test_what_is_no_motion_file(tmp_path):
    with pytest.raises(MotionError, match="no such file"):
        load_clip(tmp_path / "none.npz")
    text = tmp_path / "text.npz"
    text.write_text("not a zip")
    with pytest.raises(MotionError, match="not an NPZ file"):
        load_clip(text)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(MotionError, match=r"not an NPZ file \(one array\)"):
        load_clip(tmp_path / "one.npy")


def test_pickled_objects_are_never_read(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    path = rewrite(write_clip(tmp_path), joint_names=np.array([Bomb()], dtype=object))
    with pytest.raises(
        MotionError, match=r"sway.npz: joint_names: holds Python objects, not numbers$"
    ):
        load_clip(path)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(MotionError, match=r"cannot write .*nowhere/a.npz: .*No such file"):
        save_clip(tmp_path / "nowhere" / "a.npz", make_clip())


def test_packaged_names_and_paths(tmp_path):
    path = write_clip(tmp_path)
    assert motion_path(str(path)) == path
    with pytest.raises(MotionError, match="no motion file and no packaged motion 'sqat'"):
        motion_path("sqat")


# --- against the robot ----------------------------------------------------------------------------


def test_names_and_counts_are_compared_with_the_robot(tmp_path):
    def without(columns, *names):
        keys = {"joint_names": ("joint_pos", "joint_vel")}
        return {key: lambda a: np.delete(a, columns, -1) for key in keys[names[0]]} | {
            names[0]: lambda a: np.delete(a, columns)
        }

    path = rewrite(write_clip(tmp_path), **without([28], "joint_names"))
    with pytest.raises(MotionError, match=r"joint_names: 28 joints, g1 has 29; missing right_wri"):
        load_clip(path, robot=g1())
    path = rewrite(write_clip(tmp_path), body_names=put(3, "tail"))
    with pytest.raises(MotionError, match="body_names: g1 has no 'tail'"):
        load_clip(path, robot=g1())
    save_clip(path, select_bodies(make_clip(), g1().body_names[1:]))
    with pytest.raises(MotionError, match="body_names: the root body 'pelvis' is missing"):
        load_clip(path, robot=g1())


def test_joints_beyond_their_range_are_refused(tmp_path):
    path = rewrite(write_clip(tmp_path), joint_pos=put((4, 3), 3.5))
    with pytest.raises(MotionError, match=r"joint_pos: left_knee_joint is 0\.62 rad beyond its ra"):
        load_clip(path, robot=g1())


def test_bodies_permuted_with_their_names_are_the_same_clip(tmp_path):
    """E14: the same permutation of bodies and names changes nothing that is looked up by name."""
    path = write_clip(tmp_path)
    order = np.random.default_rng(0).permutation(30)
    keys = ("body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w")
    plain = load_clip(path, robot=g1())
    changes = {key: lambda a: a[:, order] for key in keys} | {"body_names": lambda a: a[order]}
    mixed = load_clip(rewrite(path, **changes), robot=g1())
    assert mixed.body_names != plain.body_names
    for name in plain.body_names:
        first, second = plain.body(name), mixed.body(name)
        np.testing.assert_array_equal(plain.body_pos_w[:, first], mixed.body_pos_w[:, second])


def test_bodies_permuted_without_their_names_disagree_with_the_kinematics(tmp_path):
    order = np.arange(30)
    order[[4, 21]] = order[[21, 4]]
    keys = ("body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w")
    path = rewrite(write_clip(tmp_path), **{key: lambda a: a[:, order] for key in keys})
    with pytest.raises(MotionError, match=r"body_pos_w: .* away from the forward kinematics"):
        load_clip(path, robot=g1())


def test_scalar_last_quaternions_are_told_apart(tmp_path):
    """E41: unit either way, so only the joints' kinematics can tell."""
    path = rewrite(write_clip(tmp_path, yaw=1.0), body_quat_w=lambda q: np.roll(q, -1, -1))
    with pytest.raises(MotionError, match=r"body_quat_w: scalar last \(xyzw\)"):
        load_clip(path, robot=g1())


def test_negated_quaternions_are_the_same(tmp_path):
    path = rewrite(write_clip(tmp_path), body_quat_w=lambda q: -q)
    load_clip(path, robot=g1())


# --- layouts of the field -------------------------------------------------------------------------


def test_layouts_are_read_in_their_order(tmp_path):
    clip = make_clip()
    nameless = {"drop": ["joint_names", "body_names"]}
    keys = ("body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w")

    path = rewrite(write_clip(tmp_path), **nameless)
    mjlab = load_clip(path, robot=g1(), layout="mjlab30")
    np.testing.assert_allclose(mjlab.body_pos_w, clip.body_pos_w, atol=1e-6)

    world = {key: lambda a: np.concatenate((a[:, :1] * 0, a), 1) for key in keys}
    world["body_quat_w"] = lambda a: np.concatenate((a[:, :1] * 0 + [1, 0, 0, 0], a), 1)
    path = rewrite(write_clip(tmp_path), **nameless, **world)
    unilab = load_clip(path, robot=g1(), layout="unilab31")
    assert unilab.body_names == g1().body_names
    np.testing.assert_allclose(unilab.body_pos_w, clip.body_pos_w, atol=1e-6)
    with pytest.raises(MotionError, match="has 29 joints and 30 bodies, the file 29 and 31"):
        load_clip(path, robot=g1(), layout="mjlab30")


def test_isaaclab_is_breadth_first_with_velocities_of_centres_of_mass(tmp_path):
    clip, robot = make_clip(yaw=1.0, spin=0.5), g1()
    joints, bodies = robot.breadth_first()
    assert joints[:3] == ("left_hip_pitch_joint", "right_hip_pitch_joint", "waist_yaw_joint")
    assert bodies[:2] == ("pelvis", "left_hip_pitch_link") and len(set(bodies)) == 30
    order = [clip.body_names.index(name) for name in bodies]
    columns = [clip.joint_names.index(name) for name in joints]
    velocity = np.empty_like(clip.body_lin_vel_w)
    for body, name in enumerate(clip.body_names):
        for frame in range(clip.frames):
            rotation = np.zeros(9)
            import mujoco

            mujoco.mju_quat2Mat(rotation, clip.body_quat_w[frame, body].astype(float))
            arm = rotation.reshape(3, 3) @ robot.centre_of_mass(name)
            spin = clip.body_ang_vel_w[frame, body]
            velocity[frame, body] = clip.body_lin_vel_w[frame, body] + np.cross(spin, arm)
    path = rewrite(
        write_clip(tmp_path, yaw=1.0, spin=0.5),
        drop=["joint_names", "body_names"],
        joint_pos=lambda a: a[:, columns],
        joint_vel=lambda a: a[:, columns],
        body_lin_vel_w=velocity[:, order],
        **{k: lambda a: a[:, order] for k in ("body_pos_w", "body_quat_w", "body_ang_vel_w")},
    )
    got = select_bodies(load_clip(path, robot=robot, layout="isaaclab30"), clip.body_names)
    np.testing.assert_allclose(got.body_lin_vel_w, clip.body_lin_vel_w, atol=1e-4)
    with pytest.raises(MotionError, match=r"forward kinematics|beyond its range"):
        load_clip(path, robot=robot, layout="mjlab30")


def test_a_layout_needs_a_robot_and_a_file_without_names(tmp_path):
    path = write_clip(tmp_path)
    with pytest.raises(MotionError, match="layout 'mjlab30' given, but the file names its bodies"):
        load_clip(path, robot=g1(), layout="mjlab30")
    rewrite(path, drop=["joint_names", "body_names"])
    with pytest.raises(MotionError, match="layout 'mjlab30' needs a robot"):
        load_clip(path, layout="mjlab30")
    with pytest.raises(MotionError, match="layout 'mjlab31'; did you mean"):
        load_clip(path, robot=g1(), layout="mjlab31")


def test_the_robot_must_float(tmp_path):
    from helpers.probe import write_probe

    with pytest.raises(ValueError, match="a motion needs a robot with a floating base"):
        RobotKinematics(write_probe(tmp_path))


# --- resampling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fps", [25, 30, 50, 100])
def test_a_motion_keeps_its_duration_and_speed_at_any_rate(fps):
    """E26: one motion of 2 s saved at several rates, brought to 50 Hz."""
    frames = 2 * fps + 1
    clip = resample(make_clip(frames, fps, seconds=2.0), 50.0)
    want = make_clip(101, 50.0)
    assert abs(clip.duration - 2.0) <= 0.02
    np.testing.assert_allclose(clip.joint_pos[-1], want.joint_pos[-1], atol=1e-5)  # kept
    np.testing.assert_allclose(clip.joint_pos, want.joint_pos, atol=2e-3)
    speed = np.abs(np.diff(clip.joint_pos, axis=0)).mean() * 50
    assert speed == pytest.approx(np.abs(np.diff(want.joint_pos, axis=0)).mean() * 50, rel=0.02)
    np.testing.assert_allclose(clip.joint_vel[1:-1], want.joint_vel[1:-1], atol=0.05)
    np.testing.assert_allclose(np.linalg.norm(clip.body_quat_w, axis=-1), 1.0, atol=1e-5)


def test_slerp_takes_the_short_arc():
    first = np.array([1.0, 0.0, 0.0, 0.0])
    angle = 1.2
    second = np.array([np.cos(angle / 2), 0.0, 0.0, np.sin(angle / 2)])
    want = [np.cos(0.15 * angle), 0.0, 0.0, np.sin(0.15 * angle)]
    for sign in (1, -1):
        np.testing.assert_allclose(slerp(first, sign * second, np.array(0.3)), want, atol=1e-6)
    np.testing.assert_allclose(slerp(first, first, np.array(0.3)), first)

"""CSV to clip: order, rate, velocities (N11)."""

import socket
import time

import numpy as np
import pytest
from helpers.motion import g1, swaying

from unilab_gym.errors import MotionError
from unilab_gym.motion.clip import load_clip
from unilab_gym.motion.convert import clip_from_qpos, convert_csv


def write_csv(path, qpos):
    rows = qpos.copy()
    rows[:, 3:7] = np.roll(qpos[:, 3:7], -1, axis=1)  # xyzw
    np.savetxt(path, rows, delimiter=",", fmt="%.9f")
    return path


def test_sixty_seconds_convert_well_within_half_a_minute_without_a_network(tmp_path, monkeypatch):
    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(socket, "socket", offline)
    qpos = swaying(1800, 30.0)
    csv = write_csv(tmp_path / "walk.csv", qpos)
    began = time.process_time()
    convert_csv(csv, tmp_path / "walk.npz", fps=30.0)
    assert time.process_time() - began < 30.0  # the promise, about 100 times what it takes
    clip = load_clip(tmp_path / "walk.npz", robot=g1())
    assert (clip.frames, clip.fps, clip.source) == (1800, 30.0, "walk.csv")
    np.testing.assert_allclose(clip.joint_pos, qpos[:, 7:], atol=1e-6)
    np.testing.assert_allclose(clip.body_pos_w[:, 0], qpos[:, :3], atol=1e-6)


def turned(first, second):
    """Rotation vectors that turn the first quaternions into the second, world frame."""
    w1, v1 = first[..., :1], first[..., 1:]
    w2, v2 = second[..., :1], second[..., 1:]
    vector = w1 * v2 - w2 * v1 - np.cross(v2, v1)
    scalar = w1 * w2 + (v1 * v2).sum(-1, keepdims=True)
    return 2.0 * vector * np.sign(scalar)  # small angles


@pytest.mark.parametrize(("yaw", "spin"), [(0.0, 0.0), (np.pi / 2, 1.5)])
def test_body_velocities_agree_with_finite_differences(yaw, spin):
    """Also of a body that spins at 90 degrees of yaw, where body and world frames differ."""
    fps = 200.0
    qpos = swaying(60, fps, yaw=yaw, spin=spin)
    roll = 0.4 * np.sin(np.arange(60) / fps * 4)  # the root rolls in its own frame, too
    turn = np.stack([np.cos(roll / 2), np.sin(roll / 2)], 1)
    w, z = qpos[:, 3].copy(), qpos[:, 6].copy()
    qpos[:, 3:7] = np.stack([w * turn[:, 0], w * turn[:, 1], z * turn[:, 1], z * turn[:, 0]], 1)
    clip = clip_from_qpos(g1(), qpos, fps, name="spin", source="", license="")
    pos, quat = clip.body_pos_w.astype(float), clip.body_quat_w.astype(float)
    linear = (pos[2:] - pos[:-2]) * fps / 2
    angular = turned(quat[:-2], quat[2:]) * fps / 2
    np.testing.assert_allclose(clip.body_lin_vel_w[1:-1], linear, atol=0.02)
    np.testing.assert_allclose(clip.body_ang_vel_w[1:-1], angular, atol=0.02)
    joints = (qpos[2:, 7:] - qpos[:-2, 7:]) * fps / 2
    np.testing.assert_allclose(clip.joint_vel[1:-1], joints, atol=1e-3)
    if spin:
        assert np.abs(clip.body_ang_vel_w[:, 0, 1]).max() > 1.0  # body x is world y here


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "rows must be numbers without a header"),
        ("", "the file is empty; one row of 36 numbers a frame"),
        ("# only a comment\n\n", "the file is empty"),
        ("1,2,3\n4,5,6\n", "3 columns, g1 needs 36: x y z, quaternion xyzw, 29 joints"),
        ("0,0,0.8,0,0,0,0" + ",0" * 29 + "\n", "row 1: quaternion has norm 0, not 1"),
        ("0,0,nan,0,0,0,1" + ",0" * 29 + "\n", "row 1: not finite"),
        ("0,0,0.8,0,0,0,1" + ",0" * 29 + "\n", r"1 frame\(s\), a motion needs at least 2"),
    ],
)
def test_a_wrong_csv_is_refused(tmp_path, text, message):
    csv = tmp_path / "bad.csv"
    csv.write_text(text)
    with pytest.raises(MotionError, match=message):
        convert_csv(csv, tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def test_a_missing_csv_and_a_wrong_rate(tmp_path):
    with pytest.raises(MotionError, match="no such file"):
        convert_csv(tmp_path / "none.csv", tmp_path / "out.npz")
    csv = write_csv(tmp_path / "a.csv", swaying(5))
    with pytest.raises(MotionError, match="fps must be positive, got 0"):
        convert_csv(csv, tmp_path / "out.npz", fps=0)

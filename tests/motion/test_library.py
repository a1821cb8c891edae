"""Packed clips: bounds, order, rate (E14, E25, E26)."""

import numpy as np
import pytest
import torch
from helpers.motion import arrays, g1, make_clip, write_clip

from unilab_gym.errors import MotionError
from unilab_gym.motion.library import MotionLibrary, load_motions

CPU = torch.device("cpu")
BODIES = ("torso_link", "pelvis", "left_wrist_yaw_link")


def packed(clips, joints=None, bodies=BODIES):
    return MotionLibrary(
        clips, joints=joints or g1().joint_names, bodies=bodies, root="pelvis", device=CPU
    )


def test_rows_of_several_clips_keep_to_their_clip():
    clips = [make_clip(40, name="a"), make_clip(60, name="b", yaw=1.0), make_clip(2, name="c")]
    lib = packed(clips)
    assert (lib.names, lib.lengths, lib.rows) == (("a", "b", "c"), (40, 60, 2), 102)
    assert lib.first.tolist() == [0, 40, 100] and lib.last.tolist() == [39, 99, 101]
    assert lib.clip.tolist() == [0] * 40 + [1] * 60 + [2] * 2
    assert torch.equal(lib.clip[lib.following], lib.clip)
    steps = lib.following - torch.arange(102)
    assert steps.tolist() == [1] * 39 + [0] + [1] * 59 + [0] + [1, 0]
    assert torch.allclose(lib.joint_pos[40:100], torch.tensor(clips[1].joint_pos))
    assert lib.number("b") == 1
    with pytest.raises(MotionError, match="no clip 'd'"):
        lib.number("d")


def test_columns_follow_the_asked_names():
    clip = make_clip()
    joints = tuple(reversed(g1().joint_names))
    lib = packed([clip], joints)
    assert torch.allclose(lib.joint_pos, torch.tensor(clip.joint_pos[:, ::-1].copy()))
    for column, name in enumerate(BODIES):
        want = torch.tensor(clip.body_pos_w[:, clip.body(name)])
        assert torch.equal(lib.body_pos[:, column], want)


def test_the_roots_angular_velocity_is_in_its_body_frame():
    """A root at 90 degrees of yaw that rolls about world x turns about its own -y."""
    clip = make_clip(yaw=np.pi / 2)
    clip.body_ang_vel_w[:, 0] = [1.0, 0.0, 0.5]
    lib = packed([clip])
    want = torch.tensor([0.0, -1.0, 0.5]).expand(40, 3)
    assert torch.allclose(lib.root_ang_vel_b, want, atol=1e-5)


@pytest.mark.parametrize("fps", [25, 30, 50, 100])
def test_any_rate_becomes_the_control_rate(tmp_path, fps):
    path = write_clip(tmp_path, 2 * fps + 1, float(fps), seconds=2.0)
    (clip,) = load_motions(str(path), fps=50.0, robot="g1")
    assert (clip.frames, clip.fps) == (101, 50.0)
    reference = make_clip(101)
    speed = np.abs(clip.joint_vel[1:-1]).mean()
    assert speed == pytest.approx(np.abs(reference.joint_vel[1:-1]).mean(), rel=0.02)


def test_wrong_sets_of_clips_are_refused(tmp_path):
    path = str(write_clip(tmp_path))
    with pytest.raises(MotionError, match="at least one clip is needed"):
        load_motions((), fps=50.0)
    with pytest.raises(MotionError, match="given twice: squat"):
        load_motions(("squat", "squat"), fps=50.0)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    alike = tuple(str(write_clip(tmp_path / folder)) for folder in ("one", "two"))
    with pytest.raises(MotionError, match="several files are called sway: rename one"):
        load_motions(alike, fps=50.0)
    with pytest.raises(MotionError, match=r"different rates in one table: \[25.0, 50.0\]"):
        packed([make_clip(), make_clip(fps=25.0)])
    data = arrays(path)
    data["joint_pos"] = data["joint_pos"][:, ::-1]
    np.savez(path, **data)
    with pytest.raises(MotionError, match=r"joint_pos|body_pos_w"):
        load_motions(path, fps=50.0, robot="g1")

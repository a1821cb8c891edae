"""The shipped motions: reproducible, possible for the robot, on feet that do not slide or sink."""

import mujoco
import numpy as np
import pytest
from helpers.g1 import SOLES
from helpers.motion import g1

from unilab_gym.errors import MotionError
from unilab_gym.motion.clip import load_clip, motion_path, packaged_motions
from unilab_gym.motion.convert import PoseTarget, solve_pose
from unilab_gym.motion.make import LEGS, MOTIONS, make_motion


def sole_points(clip):
    """Lowest points of the eight spheres `[T, 8, 3]`, and the centre of mass `[T, 2]`."""
    robot = g1()
    model, data = robot.model, robot.data
    ids = [model.geom(name).id for name in SOLES]
    points, balance, touching = [], [], []
    for frame in range(clip.frames):
        data.qpos[:3], data.qpos[3:7] = clip.body_pos_w[frame, 0], clip.body_quat_w[frame, 0]
        data.qpos[7:] = clip.joint_pos[frame]
        mujoco.mj_forward(model, data)
        points.append(data.geom_xpos[ids] - [0, 0, 0.005])
        balance.append(data.subtree_com[1, :2].copy())
        touching.append(data.sensor("self_collision").data[0])
    return np.array(points), np.array(balance), np.array(touching)


def test_what_is_shipped_is_what_can_be_made():
    assert (
        set(packaged_motions())
        == set(MOTIONS)
        == {
            "squat",
            "weight_shift",
            "arm_wave",
            "step_in_place",
            "slow_walk",
        }
    )
    for name in MOTIONS:
        assert motion_path(name).stat().st_size < 300_000, name


@pytest.mark.parametrize("name", sorted(MOTIONS))
def test_a_motion_is_made_again_and_is_plausible(name):
    shipped = load_clip(motion_path(name), robot=g1())
    made = make_motion(name)
    assert (shipped.fps, shipped.frames) == (made.fps, made.frames) and shipped.frames > 300
    assert shipped.duration < 9.98, "an episode of 10 s must reach the end"
    np.testing.assert_allclose(shipped.joint_pos, made.joint_pos, atol=1e-3)
    assert shipped.license == "Apache-2.0" and "make_motion" in shipped.source
    points, balance, touching = sole_points(shipped)
    low = points[..., 2]
    assert low.min() > -0.001  # no penetration beyond a millimetre
    assert (np.sort(low, 1)[:, 3] < 0.001).all()  # at least one whole foot is down
    down = (low[1:] < 0.001) & (low[:-1] < 0.001)
    speed = np.linalg.norm(np.diff(points[..., :2], axis=0), axis=-1) * shipped.fps
    assert (speed * down).max() < 0.1, "a foot on the ground slides"
    assert np.percentile(speed[down], 99) < 0.02
    assert not touching.any()
    assert np.abs(shipped.joint_vel).max() < 10.0
    standing = low < 0.001
    for frame in range(shipped.frames):  # statically stable: the weight is over the soles
        under = points[frame, standing[frame], :2]
        assert (under.min(0) - 0.01 <= balance[frame]).all(), frame
        assert (balance[frame] <= under.max(0) + 0.01).all(), frame


def test_motions_move_what_they_are_named_after():
    squat, walk = make_motion("squat"), make_motion("slow_walk")
    assert squat.body_pos_w[:, 0, 2].min() < 0.52 and squat.body_pos_w[0, 0, 2] > 0.74
    assert walk.body_pos_w[-1, 0, 0] - walk.body_pos_w[0, 0, 0] > 0.6
    wave = make_motion("arm_wave")
    hand = wave.body("right_wrist_yaw_link")
    assert wave.body_pos_w[:, hand, 2].max() > 1.1
    shift = make_motion("weight_shift").body_pos_w[:, 0, 1]
    assert shift.max() > 0.05 and shift.min() < -0.05


def test_impossible_targets_and_unknown_names():
    with pytest.raises(MotionError, match="no motion 'sqat'; did you mean 'squat'"):
        make_motion("sqat")
    feet = {"left_ankle_roll_link": (0, 0.12, 0.035), "right_ankle_roll_link": (0, -0.12, 0.035)}
    high = PoseTarget(height=1.2, balance=(0.03, 0.0), feet=feet)
    with pytest.raises(MotionError, match="no pose meets"):
        solve_pose(g1(), high, g1().model.key("stand").qpos, LEGS)

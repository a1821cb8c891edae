"""Our own motions of the G1, from key poses and inverse kinematics.

Each motion is a list of keys: at a time, where the root, the balance and the feet are and what
the arms do. Between keys every channel moves along a minimum-jerk curve, feet that move lift off;
`motion.convert.solve_pose` finds the legs. All of them are slow enough that the centre of mass
stays over the feet that stand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unilab_gym.errors import MotionError, near
from unilab_gym.motion.clip import MotionClip, RobotKinematics, save_clip
from unilab_gym.motion.convert import PoseTarget, clip_from_qpos, rounded, solve_pose

FPS = 50.0
FEET = {"left": "left_ankle_roll_link", "right": "right_ankle_roll_link"}
LEGS = tuple(
    f"{side}_{joint}_joint"
    for side in FEET
    for joint in ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
)
STANCE = 0.1185
"""Half the distance of the feet, m."""
SOLE = 0.035
"""Height of a foot's frame over its sole, m."""
MIDDLE = 0.035
"""The middle of a sole lies this far in front of the foot's frame, m."""
HEIGHT = 0.745
"""Of the pelvis while standing, m."""
GRID = 2.0**-14
"""Values are rounded to this: files of half the size."""

ARMS = {
    "left_shoulder_pitch_joint": 0.2,
    "left_shoulder_roll_joint": 0.2,
    "left_shoulder_yaw_joint": 0.0,
    "left_elbow_joint": 0.6,
    "right_shoulder_pitch_joint": 0.2,
    "right_shoulder_roll_joint": -0.2,
    "right_shoulder_yaw_joint": 0.0,
    "right_elbow_joint": 0.6,
    "waist_yaw_joint": 0.0,
    "waist_pitch_joint": 0.0,
}


@dataclass(frozen=True, kw_only=True)
class Key:
    """A pose at a time."""

    at: float
    """s."""
    height: float = HEIGHT
    balance: tuple[float, float] = (MIDDLE, 0.0)
    """Centre of mass over the ground, m."""
    feet: tuple[float, float] = (0.0, 0.0)
    """x of the left and the right foot, m."""
    lift: tuple[float, float] = (0.0, 0.0)
    """How high each foot rises on the way to this key, m."""
    pitch: float = 0.0
    """Of the pelvis, rad."""
    joints: Mapping[str, float] = field(default_factory=dict[str, float])
    """What differs from `ARMS`."""


def _ease(share: float) -> float:
    """Minimum jerk from 0 to 1: no velocity nor acceleration at the ends."""
    return share**3 * (10.0 - 15.0 * share + 6.0 * share**2)


def _bump(share: float) -> float:
    """0, 1, 0 with level ends: the height of a swing."""
    return 64.0 * (share * (1.0 - share)) ** 3


def _between(first: Key, second: Key, time: float) -> PoseTarget:
    share = (time - first.at) / (second.at - first.at)
    moved = _ease(share)

    def mix(a: float, b: float) -> float:
        return a + (b - a) * moved

    feet: dict[str, tuple[float, float, float]] = {}
    for number, (side, body) in enumerate(FEET.items()):
        x = mix(first.feet[number], second.feet[number])
        y = STANCE if side == "left" else -STANCE
        feet[body] = (x, y, SOLE + second.lift[number] * _bump(share))
    joints = {
        name: mix(first.joints.get(name, value), second.joints.get(name, value))
        for name, value in ARMS.items()
    }
    return PoseTarget(
        height=mix(first.height, second.height),
        balance=(
            mix(first.balance[0], second.balance[0]),
            mix(first.balance[1], second.balance[1]),
        ),
        feet=feet,
        lean=(0.0, mix(first.pitch, second.pitch), 0.0),
        joints=joints,
    )


# --- the motions ----------------------------------------------------------------------------------


def _at(key: Key, *times: float) -> list[Key]:
    """The same pose at several times."""
    return [dataclasses.replace(key, at=time) for time in times]


def _squat() -> list[Key]:
    """Down by a quarter of a metre, arms forward against the lean, and up again; twice."""
    arms = {
        "left_shoulder_pitch_joint": -0.9,
        "right_shoulder_pitch_joint": -0.9,
        "left_elbow_joint": 0.9,
        "right_elbow_joint": 0.9,
        "waist_pitch_joint": 0.25,
    }
    up, low = Key(at=0.0), Key(at=0.0, height=0.5, pitch=0.25, joints=arms)
    first = [*_at(up, 0.0, 0.3), *_at(low, 1.9, 2.3), *_at(up, 3.8, 4.1)]
    return [*first, *_at(low, 5.7, 6.1), *_at(up, 7.6, 8.0)]


def _weight_shift() -> list[Key]:
    """From foot to foot, twice."""
    keys = _at(Key(at=0.0), 0.0, 0.3)
    for number in range(4):
        start = 0.3 + 1.8 * number
        sign = 1 if number % 2 == 0 else -1
        arm = f"{'left' if sign > 0 else 'right'}_shoulder_roll_joint"
        side = Key(
            at=0.0,
            balance=(MIDDLE, 0.075 * sign),
            height=HEIGHT - 0.015,
            joints={arm: 0.45 * sign},
        )
        keys += _at(side, start + 1.3, start + 1.8)
    return [*keys, *_at(Key(at=0.0), 8.7, 9.0)]


def _arm_wave() -> list[Key]:
    """The right arm goes up and waves three times."""
    up = {
        "right_shoulder_pitch_joint": -0.3,
        "right_shoulder_roll_joint": -1.5,
        "right_shoulder_yaw_joint": -1.3,
        "right_elbow_joint": 0.2,
        "waist_yaw_joint": -0.15,
    }
    keys = [*_at(Key(at=0.0), 0.0, 0.4), Key(at=1.8, joints=up)]
    for number in range(6):
        bent = -0.45 if number % 2 == 0 else 0.5
        keys.append(Key(at=2.4 + 0.6 * number, joints={**up, "right_elbow_joint": bent}))
    return [*keys, *_at(Key(at=0.0), 7.0, 7.4)]


def _steps(length: float, count: int) -> list[Key]:
    """Steps with the weight over the standing foot; the last one closes the feet."""
    height = HEIGHT - 0.02
    keys = _at(Key(at=0.0, height=height), 0.0, 0.3)
    feet, time = [0.0, 0.0], 0.3
    for number in range(count):
        swing = number % 2  # the left foot first
        stand = 1 - swing
        inward = STANCE - 0.03
        swung = 1.2 * length + 0.1  # the arm opposite to the swinging leg goes with it
        sides = ("right", "left") if swing == 0 else ("left", "right")
        over = Key(
            at=time + 0.75,
            height=height,
            balance=(feet[stand] + MIDDLE, inward if stand == 0 else -inward),
            feet=(feet[0], feet[1]),
            joints={
                f"{sides[0]}_shoulder_pitch_joint": 0.2 - swung,
                f"{sides[1]}_shoulder_pitch_joint": 0.2 + swung,
            },
        )
        feet[swing] = feet[stand] + (0.0 if number == count - 1 else length)
        lift = (0.07, 0.0) if swing == 0 else (0.0, 0.07)
        time += 1.35
        keys += [over, dataclasses.replace(over, at=time, feet=(feet[0], feet[1]), lift=lift)]
    end = Key(at=0.0, height=height, balance=(feet[0] + MIDDLE, 0.0), feet=(feet[0], feet[1]))
    return [*keys, *_at(end, time + 0.8, time + 1.1)]


MOTIONS: Mapping[str, Callable[[], list[Key]]] = {
    "squat": _squat,
    "weight_shift": _weight_shift,
    "arm_wave": _arm_wave,
    "step_in_place": lambda: _steps(0.0, 5),
    "slow_walk": lambda: _steps(0.16, 6),
}
"""Name -> keys of the motions that ship with the package."""


def make_motion(name: str, fps: float = FPS) -> MotionClip:
    """Computes one of our motions.

    Raises:
        MotionError: If there is none of that name, or a key cannot be reached.
    """
    if name not in MOTIONS:
        raise MotionError(f"no motion {near(name, MOTIONS)}")
    keys = MOTIONS[name]()
    robot = RobotKinematics("g1")
    guess = robot.model.key("stand").qpos
    rows: list[Any] = []
    segment = 0
    for frame in range(round(keys[-1].at * fps) + 1):
        time = frame / fps
        while segment < len(keys) - 2 and time > keys[segment + 1].at + 1e-9:
            segment += 1
        guess = solve_pose(robot, _between(keys[segment], keys[segment + 1], time), guess, LEGS)
        rows.append(guess)
    source = f"unilab_gym.motion.make.make_motion({name!r})"
    clip = clip_from_qpos(robot, rows, fps, name=name, source=source, license="Apache-2.0")
    return rounded(clip, GRID)


def write_motion(name: str, path: str | Path) -> MotionClip:
    """Makes one of our motions and writes it.

    Raises:
        MotionError: As `make_motion`.
    """
    clip = make_motion(name)
    save_clip(path, clip)
    return clip

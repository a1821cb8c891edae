"""Unitree G1 (29 joints) tracks reference motions, with state estimation.

`motion` is a packaged clip's name, a path, or several of them; `sampling_mode` says where
episodes start. With `play=True` they start on the first frame, unmoved.
"""

from __future__ import annotations

from typing import Any

from unilab_gym.config import (
    ActionTermCfg,
    CommandTermCfg,
    EnvCfg,
    EventTermCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    OwnerCfg,
    RewardTermCfg,
    SceneCfg,
    TerminationTermCfg,
    TrainingCfg,
    UniformNoiseCfg,
)
from unilab_gym.mdp import actions, events, observations, rewards, terminations, tracking
from unilab_gym.motion.command import MotionCommand
from unilab_gym.registration import Outcome, Task
from unilab_gym.tasks.g1_walk_flat import ACTION_BOX, ACTION_SCALE, SIM, SOLES
from unilab_gym.tasks.learner import ppo

ANCHOR = "torso_link"
BODIES = (
    "pelvis",
    "left_hip_roll_link",
    "left_knee_link",
    "left_ankle_roll_link",
    "right_hip_roll_link",
    "right_knee_link",
    "right_ankle_roll_link",
    "torso_link",
    "left_shoulder_roll_link",
    "left_elbow_link",
    "left_wrist_yaw_link",
    "right_shoulder_roll_link",
    "right_elbow_link",
    "right_wrist_yaw_link",
)
END_EFFECTORS = (
    "left_ankle_roll_link",
    "right_ankle_roll_link",
    "left_wrist_yaw_link",
    "right_wrist_yaw_link",
)
STATE_ESTIMATES = ("anchor_pos_b", "base_lin_vel")
"""What the policy without state estimation does not see."""

_ALIGNED = {"command": "motion", "anchor": ANCHOR, "bodies": BODIES}
_ANCHORS = {"command": "motion", "anchor": ANCHOR}
_NO_RANGE = (0.0, 0.0)


def _noise(amplitude: float) -> UniformNoiseCfg:
    return UniformNoiseCfg(low=-amplitude, high=amplitude)


def _policy_terms() -> dict[str, ObservationTermCfg]:
    return {
        "command": ObservationTermCfg(
            func=observations.command, params={"command": "motion", "width": 58}
        ),
        "anchor_pos_b": ObservationTermCfg(
            func=tracking.anchor_pos_b, params=_ANCHORS, noise=_noise(0.25)
        ),
        "anchor_ori_b": ObservationTermCfg(
            func=tracking.anchor_ori_b, params=_ANCHORS, noise=_noise(0.05)
        ),
        "base_lin_vel": ObservationTermCfg(func=observations.base_lin_vel, noise=_noise(0.5)),
        "base_ang_vel": ObservationTermCfg(func=observations.base_ang_vel, noise=_noise(0.2)),
        "joint_pos_rel": ObservationTermCfg(func=observations.joint_pos_rel, noise=_noise(0.01)),
        "joint_vel": ObservationTermCfg(func=observations.joint_vel, noise=_noise(0.5)),
        "last_action": ObservationTermCfg(func=observations.last_action),
    }


def _critic_terms() -> dict[str, ObservationTermCfg]:
    clean = {
        name: ObservationTermCfg(func=cfg.func, params=cfg.params)
        for name, cfg in _policy_terms().items()
    }
    bodies = {"anchor": ANCHOR, "bodies": BODIES}
    return {
        **clean,
        "body_pos_b": ObservationTermCfg(func=tracking.body_pos_b, params=bodies),
        "body_ori_b": ObservationTermCfg(func=tracking.body_ori_b, params=bodies),
    }


def _rewards() -> dict[str, RewardTermCfg]:
    velocity = {"command": "motion", "bodies": BODIES}
    return {
        "anchor_pos": RewardTermCfg(
            func=tracking.anchor_pos, weight=0.5, params={**_ANCHORS, "sigma": 0.3}
        ),
        "anchor_ori": RewardTermCfg(
            func=tracking.anchor_ori, weight=0.5, params={**_ANCHORS, "sigma": 0.4}
        ),
        "body_pos": RewardTermCfg(
            func=tracking.body_pos, weight=1.0, params={**_ALIGNED, "sigma": 0.3}
        ),
        "body_ori": RewardTermCfg(
            func=tracking.body_ori, weight=1.0, params={**_ALIGNED, "sigma": 0.4}
        ),
        "body_lin_vel": RewardTermCfg(
            func=tracking.body_lin_vel, weight=1.0, params={**velocity, "sigma": 1.0}
        ),
        "body_ang_vel": RewardTermCfg(
            func=tracking.body_ang_vel, weight=1.0, params={**velocity, "sigma": 3.14}
        ),
        "action_rate": RewardTermCfg(func=rewards.action_rate_l2, weight=-0.1),
        "joint_limits": RewardTermCfg(func=tracking.JointLimits, weight=-10.0),
        "self_collision": RewardTermCfg(
            func=tracking.contact_count, weight=-0.1, params={"sensor": "self_collision"}
        ),
    }


def _terminations() -> dict[str, TerminationTermCfg]:
    return {
        "time_out": TerminationTermCfg(func=terminations.TimeOut, time_out=True),
        "clip_end": TerminationTermCfg(
            func=tracking.clip_end, params={"command": "motion"}, time_out=True
        ),
        "anchor_height": TerminationTermCfg(
            func=tracking.anchor_height, params={**_ANCHORS, "limit": 0.25}
        ),
        "anchor_tilt": TerminationTermCfg(
            func=tracking.anchor_tilt, params={**_ANCHORS, "limit": 0.8}
        ),
        "end_effector_height": TerminationTermCfg(
            func=tracking.BodyHeights,
            params={**_ALIGNED, "checked": END_EFFECTORS, "limit": 0.25},
        ),
    }


def _command(motion: str | tuple[str, ...], sampling_mode: str) -> CommandTermCfg:
    moved = {
        "reset_xy": (-0.05, 0.05),
        "reset_z": (-0.01, 0.01),
        "reset_roll_pitch": (-0.1, 0.1),
        "reset_yaw": (-0.2, 0.2),
        "reset_lin_vel_xy": (-0.5, 0.5),
        "reset_lin_vel_z": (-0.2, 0.2),
        "reset_ang_vel_roll_pitch": (-0.52, 0.52),
        "reset_ang_vel_yaw": (-0.78, 0.78),
        "reset_joint_pos": (-0.1, 0.1),
    }
    return CommandTermCfg(
        func=MotionCommand,
        params={
            "motion": motion,
            "anchor": ANCHOR,
            "bodies": BODIES,
            "sampling_mode": sampling_mode,
            **moved,
        },
        play_params={"sampling_mode": "start", **dict.fromkeys(moved, _NO_RANGE)},
    )


def _events() -> dict[str, EventTermCfg]:
    return {
        "foot_friction": EventTermCfg(
            func=events.RandomizeFriction,
            mode="startup",
            params={"geoms": SOLES, "slide": (0.4, 1.2)},
        ),
        "torso_com": EventTermCfg(
            func=events.RandomizeBodyCom,
            mode="startup",
            params={"body": "torso_link", "add": (-0.025, 0.025)},
        ),
        "push": EventTermCfg(
            func=events.PushRoot,
            mode="interval",
            interval_s=(1.0, 3.0),
            params={"lin_vel_xy": (-0.5, 0.5)},
        ),
    }


def env_cfg(
    motion: str | tuple[str, ...] = "squat",
    sampling_mode: str = "adaptive",
    state_estimation: bool = True,
) -> EnvCfg:
    """The environment."""
    policy = {
        name: cfg
        for name, cfg in _policy_terms().items()
        if state_estimation or name not in STATE_ESTIMATES
    }
    return EnvCfg(
        scene=SceneCfg(robot="robots/g1/g1.xml", keyframe="stand"),
        sim=SIM,
        sim_dt=0.005,
        ctrl_dt=0.02,
        episode_length_s=10.0,
        actions={
            "joint_pos": ActionTermCfg(
                func=actions.JointPositionAction,
                params={"joints": (".*",), "scale": ACTION_SCALE, "box": ACTION_BOX},
            )
        },
        observations={
            "policy": ObservationGroupCfg(terms=policy, corrupt=True),
            "critic": ObservationGroupCfg(terms=_critic_terms()),
        },
        rewards=_rewards(),
        terminations=_terminations(),
        commands={"motion": _command(motion, sampling_mode)},
        events=_events(),
        metrics={
            "body_pos_error": MetricTermCfg(func=tracking.body_pos_error, params=_ALIGNED),
            "body_angle_error": MetricTermCfg(
                func=tracking.body_angle_error, params=_ALIGNED, play_only=True
            ),
            "anchor_pos_error": MetricTermCfg(
                func=tracking.anchor_pos_error, params=_ANCHORS, play_only=True
            ),
        },
    )


def tracking_owner(task: str, backend: str, **env: Any) -> OwnerCfg:
    """The configuration of a tracking task; the same on both backends."""
    return OwnerCfg(
        task=task,
        env=env_cfg(**env),
        algo=ppo(),
        training=TrainingCfg(sim_backend=backend, num_envs=4096, iterations=3000, seed=1),
    )


def owner(
    backend: str, *, motion: str | tuple[str, ...] = "squat", sampling_mode: str = "adaptive"
) -> OwnerCfg:
    """The task's configuration."""
    return tracking_owner(TASK.id, backend, motion=motion, sampling_mode=sampling_mode)


OUTCOME = Outcome(at_most={"body_pos_error": 0.12}, at_least={"survival": 0.8})

TASK = Task(
    id="UniLab/G1MotionTracking-v0",
    backends=("mujoco", "mjwarp"),
    owner=owner,
    outcome=OUTCOME,
    summary="Unitree G1 tracks reference motions (29 joints, 160 observations)",
)

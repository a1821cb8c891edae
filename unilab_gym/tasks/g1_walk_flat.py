"""Unitree G1 (29 joints) walks after velocity commands on flat ground, to a 1.5 Hz gait clock.

The policy sees what the robot can measure and the clock; the critic sees clean copies and the
base velocity. Both backends run the same configuration.
"""

from __future__ import annotations

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
    SimCfg,
    TerminationTermCfg,
    TrainingCfg,
    UniformNoiseCfg,
)
from unilab_gym.mdp import (
    actions,
    biped,
    commands,
    events,
    metrics,
    observations,
    rewards,
    terminations,
)
from unilab_gym.registration import Outcome, Task
from unilab_gym.tasks.learner import ppo

SOLES = tuple(f"{side}_foot_contact_{i}" for side in ("left", "right") for i in range(4))
CONTACT_MARGIN = 0.005
"""A foot touches where its lowest point is less than 5 mm over the ground."""

ACTION_SCALE = {
    ".*_hip_pitch_joint|.*_hip_yaw_joint|waist_yaw_joint": 0.5475,
    ".*_hip_roll_joint|.*_knee_joint": 0.3507,
    ".*_ankle_.*|waist_roll_joint|waist_pitch_joint": 0.4386,
    ".*_shoulder_.*|.*_elbow_joint|.*_wrist_roll_joint": 0.4386,
    ".*_wrist_pitch_joint|.*_wrist_yaw_joint": 0.0745,
}
"""rad per unit of action: a quarter of what the motor's effort would bend its gain, by motor."""
ACTION_BOX = 4.0

SIM = SimCfg(iterations=10, ls_iterations=20, cone="pyramidal", impratio=1.0, njmax=288, nconmax=64)
"""Tumbling needs up to 222 constraint rows and 62 contacts."""


def _noise(amplitude: float) -> UniformNoiseCfg:
    return UniformNoiseCfg(low=-amplitude, high=amplitude)


def _policy_terms() -> dict[str, ObservationTermCfg]:
    return {
        "torso_gyro": ObservationTermCfg(
            func=biped.sensor, params={"sensor": "torso_gyro"}, noise=_noise(0.2)
        ),
        "projected_gravity": ObservationTermCfg(
            func=observations.projected_gravity, noise=_noise(0.05)
        ),
        "joint_pos_rel": ObservationTermCfg(func=observations.joint_pos_rel, noise=_noise(0.01)),
        "joint_vel": ObservationTermCfg(func=observations.joint_vel, noise=_noise(1.5)),
        "last_action": ObservationTermCfg(func=observations.last_action),
        "command": ObservationTermCfg(
            func=observations.command, params={"command": "twist", "width": 3}
        ),
        "gait_phase": ObservationTermCfg(
            func=observations.command, params={"command": "gait", "width": 2}
        ),
    }


def _critic_terms() -> dict[str, ObservationTermCfg]:
    clean = {
        name: ObservationTermCfg(func=cfg.func, params=cfg.params)
        for name, cfg in _policy_terms().items()
    }
    return {**clean, "base_lin_vel": ObservationTermCfg(func=observations.base_lin_vel)}


def _rewards() -> dict[str, RewardTermCfg]:
    tracking = {"command": "twist", "sigma": 0.25}
    return {
        "track_lin_vel": RewardTermCfg(func=rewards.track_lin_vel_xy, weight=2.0, params=tracking),
        "track_ang_vel": RewardTermCfg(func=rewards.track_ang_vel_z, weight=0.2, params=tracking),
        "feet_phase": RewardTermCfg(
            func=biped.feet_phase,
            weight=1.0,
            params={"geoms": SOLES, "gait": "gait", "swing_height": 0.09, "sigma": 0.008},
        ),
        "air_time": RewardTermCfg(
            func=biped.FeetAirTime,
            weight=0.25,
            params={
                "geoms": SOLES,
                "margin": CONTACT_MARGIN,
                "gait": "gait",
                "least_s": 0.05,
                "most_s": 0.5,
            },
        ),
        "lin_vel_z": RewardTermCfg(func=rewards.lin_vel_z_l2, weight=-1.0),
        "ang_vel_xy": RewardTermCfg(func=rewards.ang_vel_xy_l2, weight=-0.25),
        "base_height": RewardTermCfg(
            func=rewards.base_height_l2, weight=-500.0, params={"target": 0.754}
        ),
        "orientation": RewardTermCfg(func=biped.orientation_l2, weight=-5.0),
        "action_rate": RewardTermCfg(func=rewards.action_rate_l2, weight=-0.01),
        "pose": RewardTermCfg(
            func=biped.WeightedPose,
            weight=-0.1,
            params={
                "weights": {
                    ".*_(hip_pitch|knee|shoulder_pitch|elbow)_joint": 0.01,
                    "(?!.*_(hip_pitch|knee|shoulder_pitch|elbow)_joint).*": 1.0,
                }
            },
        ),
    }


def _terminations() -> dict[str, TerminationTermCfg]:
    return {
        "time_out": TerminationTermCfg(func=terminations.TimeOut, time_out=True),
        "tilt": TerminationTermCfg(func=terminations.bad_orientation, params={"limit_deg": 25.0}),
        "too_low": TerminationTermCfg(func=biped.root_below, params={"height": 0.55}),
    }


def _commands() -> dict[str, CommandTermCfg]:
    return {
        "twist": CommandTermCfg(
            func=commands.UniformVelocityCommand,
            params={
                "lin_vel_x": (-0.6, 1.0),
                "lin_vel_y": (-0.4, 0.4),
                "ang_vel_yaw": (-0.8, 0.8),
                "resampling_s": (5.0, 10.0),
                "standing_fraction": 0.1,
            },
        ),
        "gait": CommandTermCfg(
            func=biped.BipedGait,
            params={"command": "twist", "frequency": 1.5, "standing_norm": 0.05},
        ),
    }


def _events() -> dict[str, EventTermCfg]:
    return {
        "root_state": EventTermCfg(
            func=events.ResetRootUniform,
            mode="reset",
            params={
                "xy": (-0.5, 0.5),
                "yaw": (-3.141592653589793, 3.141592653589793),
                "lin_vel": (-0.2, 0.2),
                "ang_vel": (-0.2, 0.2),
            },
        ),
        "foot_friction": EventTermCfg(
            func=events.RandomizeFriction,
            mode="startup",
            params={"geoms": SOLES, "slide": (0.4, 1.2)},
        ),
        "torso_mass": EventTermCfg(
            func=events.RandomizeBodyMass,
            mode="startup",
            params={"body": "torso_link", "add": (-1.0, 1.0)},
        ),
        "gains": EventTermCfg(
            func=events.RandomizeGains,
            mode="startup",
            params={"kp": (0.9, 1.1), "kd": (0.9, 1.1)},
        ),
        "push": EventTermCfg(
            func=events.PushRoot,
            mode="interval",
            interval_s=(5.0, 10.0),
            params={"lin_vel_xy": (-0.5, 0.5)},
        ),
    }


def env_cfg() -> EnvCfg:
    """The environment."""
    return EnvCfg(
        scene=SceneCfg(robot="robots/g1/g1.xml", keyframe="stand"),
        sim=SIM,
        sim_dt=0.005,
        ctrl_dt=0.02,
        episode_length_s=20.0,
        actions={
            "joint_pos": ActionTermCfg(
                func=actions.JointPositionAction,
                params={"joints": (".*",), "scale": ACTION_SCALE, "box": ACTION_BOX},
            )
        },
        observations={
            "policy": ObservationGroupCfg(terms=_policy_terms(), corrupt=True),
            "critic": ObservationGroupCfg(terms=_critic_terms()),
        },
        rewards=_rewards(),
        terminations=_terminations(),
        commands=_commands(),
        events=_events(),
        metrics={
            "lin_vel_error": MetricTermCfg(func=metrics.lin_vel_error, params={"command": "twist"}),
            "ang_vel_error": MetricTermCfg(func=metrics.ang_vel_error, params={"command": "twist"}),
        },
    )


def owner(backend: str) -> OwnerCfg:
    """The task's configuration; the same on both backends.

    The full run is a GPU's: 2048 x 24 x 2200 steps. On a CPU, `--num-envs 512`.
    """
    return OwnerCfg(
        task="UniLab/G1WalkFlat-v0",
        env=env_cfg(),
        algo=ppo(),
        training=TrainingCfg(sim_backend=backend, num_envs=2048, iterations=2200, seed=1),
    )


TASK = Task(
    id="UniLab/G1WalkFlat-v0",
    backends=("mujoco", "mjwarp"),
    owner=owner,
    outcome=Outcome(
        at_most={"lin_vel_error": 0.25, "ang_vel_error": 0.3},
        at_least={"survival": 0.9},
    ),
    summary="Unitree G1 walks after velocity commands on flat ground (29 joints, 98 observations)",
)

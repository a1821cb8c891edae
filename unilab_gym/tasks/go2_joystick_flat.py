"""Unitree Go2 follows velocity commands on flat ground with a 2 Hz trot.

The policy sees only what the robot can measure; the critic sees clean copies, the base velocity
and the feet. Both backends run the same configuration.
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
from unilab_gym.mdp import actions, commands, events, metrics, observations, rewards, terminations
from unilab_gym.registration import Outcome, Task
from unilab_gym.tasks.learner import ppo

FEET = ("FL", "FR", "RL", "RR")
TRUNK = ("base1", "base2", "base3")
FOOT_VELOCITIES = tuple(f"{foot}_foot_vel" for foot in FEET)
CONTACT_MARGIN = 0.005
"""A foot touches where its lowest point is less than 5 mm over the ground."""


def _noise(amplitude: float) -> UniformNoiseCfg:
    return UniformNoiseCfg(low=-amplitude, high=amplitude)


def _policy_terms() -> dict[str, ObservationTermCfg]:
    return {
        "base_ang_vel": ObservationTermCfg(func=observations.base_ang_vel, noise=_noise(0.2)),
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
            func=observations.command, params={"command": "gait", "width": 4}
        ),
    }


def _critic_terms() -> dict[str, ObservationTermCfg]:
    clean = {
        name: ObservationTermCfg(func=cfg.func, params=cfg.params)
        for name, cfg in _policy_terms().items()
    }
    return {
        **clean,
        "base_lin_vel": ObservationTermCfg(func=observations.base_lin_vel),
        "foot_height": ObservationTermCfg(func=observations.geom_height, params={"geoms": FEET}),
        "foot_contact": ObservationTermCfg(
            func=observations.geom_contact, params={"geoms": FEET, "margin": CONTACT_MARGIN}
        ),
    }


def _rewards() -> dict[str, RewardTermCfg]:
    feet = {"feet": FEET, "gait": "gait"}
    contact = {"feet": FEET, "margin": CONTACT_MARGIN}
    tracking = {"command": "twist", "sigma": 0.5}
    return {
        "track_lin_vel": RewardTermCfg(func=rewards.track_lin_vel_xy, weight=2.0, params=tracking),
        "track_ang_vel": RewardTermCfg(func=rewards.track_ang_vel_z, weight=0.5, params=tracking),
        "lin_vel_z": RewardTermCfg(func=rewards.lin_vel_z_l2, weight=-5.0),
        "ang_vel_xy": RewardTermCfg(func=rewards.ang_vel_xy_l2, weight=-0.1),
        "base_height": RewardTermCfg(
            func=rewards.base_height_l2, weight=-100.0, params={"target": 0.30}
        ),
        "action_rate": RewardTermCfg(func=rewards.action_rate_l2, weight=-0.01),
        "joint_deviation": RewardTermCfg(func=rewards.joint_deviation_l1, weight=-0.1),
        "gait_contact": RewardTermCfg(
            func=rewards.gait_contact_match, weight=0.5, params={**contact, "gait": "gait"}
        ),
        "swing_height": RewardTermCfg(
            func=rewards.swing_height, weight=4.0, params={**feet, "target": 0.1, "sigma": 0.01}
        ),
        "foot_slip": RewardTermCfg(
            func=rewards.foot_slip,
            weight=-0.05,
            params={**contact, "velocity_sensors": FOOT_VELOCITIES},
        ),
    }


def _terminations() -> dict[str, TerminationTermCfg]:
    return {
        "time_out": TerminationTermCfg(func=terminations.TimeOut, time_out=True),
        "tilt": TerminationTermCfg(func=terminations.bad_orientation, params={"limit_deg": 60.0}),
        "trunk_contact": TerminationTermCfg(
            func=terminations.geom_contact, params={"geoms": TRUNK, "margin": 0.002}
        ),
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
            func=commands.TrotGait,
            params={
                "command": "twist",
                "frequency": 2.0,
                "stance_share": 0.6,
                "standing_norm": 0.05,
            },
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
                "lin_vel": (-0.5, 0.5),
                "ang_vel": (-0.5, 0.5),
            },
        ),
        "foot_friction": EventTermCfg(
            func=events.RandomizeFriction,
            mode="startup",
            params={"geoms": FEET, "slide": (0.3, 1.2)},
        ),
        "base_mass": EventTermCfg(
            func=events.RandomizeBodyMass,
            mode="startup",
            params={"body": "base", "add": (-1.5, 1.5)},
        ),
        "base_com": EventTermCfg(
            func=events.RandomizeBodyCom,
            mode="startup",
            params={"body": "base", "add": (-0.05, 0.05)},
        ),
        "gains": EventTermCfg(
            func=events.RandomizeGains,
            mode="startup",
            params={"kp": (0.9, 1.1), "kd": (0.9, 1.1)},
        ),
        "push": EventTermCfg(
            func=events.PushRoot,
            mode="interval",
            interval_s=(5.0, 15.0),
            params={"lin_vel_xy": (-0.5, 0.5)},
        ),
    }


def _metrics() -> dict[str, MetricTermCfg]:
    return {
        "lin_vel_error": MetricTermCfg(func=metrics.lin_vel_error, params={"command": "twist"}),
        "ang_vel_error": MetricTermCfg(func=metrics.ang_vel_error, params={"command": "twist"}),
        "swing_clearance": MetricTermCfg(
            func=metrics.SwingClearance,
            params={"feet": FEET, "margin": CONTACT_MARGIN},
            reduce="max",
            play_only=True,
        ),
    }


def env_cfg() -> EnvCfg:
    """The environment."""
    return EnvCfg(
        scene=SceneCfg(robot="robots/go2/go2.xml"),
        sim=SimCfg(iterations=10, ls_iterations=20, cone="pyramidal", impratio=1.0),
        sim_dt=0.005,
        ctrl_dt=0.02,
        episode_length_s=20.0,
        actions={
            "joint_pos": ActionTermCfg(
                func=actions.JointPositionAction,
                params={"joints": (".*",), "scale": 0.25, "box": 4.0},
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
        metrics=_metrics(),
    )


def owner(backend: str) -> OwnerCfg:
    """The task's configuration; the same on both backends."""
    return OwnerCfg(
        task="UniLab/Go2JoystickFlat-v0",
        env=env_cfg(),
        algo=ppo(),
        training=TrainingCfg(sim_backend=backend, num_envs=512, iterations=240, seed=1),
    )


TASK = Task(
    id="UniLab/Go2JoystickFlat-v0",
    backends=("mujoco", "mjwarp"),
    owner=owner,
    outcome=Outcome(
        at_most={"lin_vel_error": 0.15, "ang_vel_error": 0.15},
        at_least={"survival": 0.95, "swing_clearance_p10": 0.03},
    ),
    summary="Unitree Go2 follows velocity commands on flat ground (12 joints, 49 observations)",
)

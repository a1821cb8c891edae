"""A small owner on a robot of two joints, plain mappings, and damaged run records."""

import dataclasses
import json
from pathlib import Path

from unilab_gym.config import (
    ActionTermCfg,
    AlgoCfg,
    CommandTermCfg,
    EnvCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    OwnerCfg,
    RewardTermCfg,
    SceneCfg,
    TrainingCfg,
    UniformNoiseCfg,
)
from unilab_gym.runtime.term import ActionSpec, term

# The actuators stand in another order than the joints: the trap of the stock Go2.
ROBOT = """
<mujoco model="biped">
  <worldbody>
    <body name="trunk" pos="0 0 1">
      <freejoint name="root"/>
      <geom name="trunk" type="box" size=".1 .1 .1" mass="5"/>
      <body name="left" pos="0 .1 -.1">
        <joint name="left_hip" axis="0 1 0" range="-1 1" armature="{armature}"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass="1"/>
      </body>
      <body name="right" pos="0 -.1 -.1">
        <joint name="right_hip" axis="0 1 0" range="-1 1" armature="{armature}"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass="1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="right_motor" joint="right_hip" kp="{kp}" kv=".5" forcerange="-20 20"/>
    <position name="left_motor" joint="left_hip" kp="{kp}" kv=".5" forcerange="-20 20"/>
  </actuator>
  <keyframe>
    <key name="home" qpos="0 0 {height} 1 0 0 0 {left} -.2" ctrl="-.2 {left}"/>
  </keyframe>
</mujoco>
"""


@term(width=lambda params, index: len(index.joints))
def joint_pos(frame, *, gain: float = 1.0):
    """Dummy."""


@term(width=3)
def gyro(frame):
    """Dummy."""


@term(width=3)
def command_value(frame, *, command: str):
    """Dummy."""


@term()
def alive(frame):
    """Dummy."""


class JointTarget:
    """Dummy action term."""

    @classmethod
    def resolve(cls, index, *, scale: float, box: float = 4.0, target_clip=None, clipped=True):
        joints = index.joint_names
        return ActionSpec(
            kind="joint_position",
            joints=joints,
            actuators=tuple(index.actuator_of(name).name for name in joints),
            scale=(scale,) * len(joints),
            offset=tuple(index.joint(name).default for name in joints),
            box=box,
            target_clip=target_clip,
            clipped=clipped,
        )


class Velocity:
    """Dummy command."""

    component_names = ("vx", "vy", "wz")

    @classmethod
    def describe(cls, index, *, lin_vel_x, limits=(1.0, 1.0)):
        return {"ranges": {"vx": lin_vel_x}}


def write_robot(folder: Path, name: str = "biped.xml", **values) -> str:
    defaults = {"kp": 20, "height": 1.0, "left": 0.1, "armature": 0.01}
    path = folder / name
    path.write_text(ROBOT.format(**{**defaults, **values}))
    return str(path)


def make_owner(robot: str, backend: str = "mujoco") -> OwnerCfg:
    noise = UniformNoiseCfg(low=-0.1, high=0.1)
    policy = {
        "gyro": ObservationTermCfg(func=gyro, scale=0.25, noise=noise),
        "joint_pos": ObservationTermCfg(func=joint_pos, clip=(-5.0, float("inf")), noise=noise),
        "command": ObservationTermCfg(func=command_value, params={"command": "velocity"}),
    }
    critic = {"gyro": ObservationTermCfg(func=gyro, scale=(1.0, 2.0, 3.0))}
    return OwnerCfg(
        task="Test/Biped-v0",
        env=EnvCfg(
            scene=SceneCfg(robot=robot),
            actions={"joints": ActionTermCfg(func=JointTarget, params={"scale": 0.25})},
            observations={
                "policy": ObservationGroupCfg(terms=policy, corrupt=True),
                "critic": ObservationGroupCfg(terms=critic),
            },
            rewards={
                "alive": RewardTermCfg(func=alive, weight=1.0),
                "upright": RewardTermCfg(func=alive, weight=2.0),
            },
            commands={"velocity": CommandTermCfg(func=Velocity, params={"lin_vel_x": (-0.6, 1.0)})},
        ),
        algo=AlgoCfg(obs_groups={"actor": ("policy",), "critic": ("policy", "critic")}),
        training=TrainingCfg(sim_backend=backend),
    )


def with_policy_terms(owner: OwnerCfg, terms) -> OwnerCfg:
    """The owner with other terms in its policy group."""
    group = dataclasses.replace(owner.env.observations["policy"], terms=terms)
    observations = {**owner.env.observations, "policy": group}
    return dataclasses.replace(owner, env=dataclasses.replace(owner.env, observations=observations))


def config() -> dict:
    """A configuration that is compared by its declared layer alone: no owner fits it."""
    term_a = {"func": "pkg:gyro", "params": {"gain": 1.0}, "clip": [-5.0, 5.0], "scale": 0.25}
    term_b = {"func": "pkg:joint_pos", "params": {}, "clip": None, "scale": 1.0}
    noise = {"low": -0.1, "high": 0.1}
    data = {
        "algo": {
            "obs_groups": {"actor": ["policy"], "critic": ["policy", "critic"]},
            "actor": {"hidden_dims": [64, 64], "activation": "elu", "obs_normalization": True},
            "critic": {"hidden_dims": [64, 64], "activation": "elu", "obs_normalization": True},
            "obs_normalization": True,
        },
        "env": {
            "scene": {"robot": "biped.xml", "skybox": "blue"},
            "ctrl_dt": 0.02,
            "sim_dt": 0.005,
            "noise_config": {"level": 1.0},
            "control_config": {"action_scale": 0.25, "simulate_action_latency": False},
            "commands": {
                "velocity": {
                    "func": "pkg:Velocity",
                    "params": {"limits": [1.0, 0.5], "lin_vel_x": [-0.6, 1.0]},
                },
                "motion": {"func": "pkg:Motion", "params": {"sampling_mode": "uniform"}},
            },
            "observations": {
                "policy": {
                    "corrupt": True,
                    "terms": {
                        "gyro": {**term_a, "noise": noise, "bias": None, "history": 0, "delay": 0},
                        "joint_pos": {**term_b, "noise": noise, "history": 0, "delay": 0},
                    },
                    "layout": "term_major",
                },
                "critic": {"corrupt": False, "terms": {"gyro": {**term_a, "noise": None}}},
            },
            "actions": {
                "legs": {
                    "func": "pkg:Joint",
                    "params": {"scale": 0.25, "joints": ["a", "b"]},
                    "delay": 0,
                },
                "arms": {"func": "pkg:Joint", "params": {"scale": 0.5, "joints": ["c"]}},
            },
            "rewards": {
                "alive": {"func": "pkg:alive", "params": {}, "weight": 1.0},
                "upright": {"func": "pkg:upright", "params": {"std": 0.5}, "weight": 2.0},
            },
        },
        "reward": {"scales": {"torque": -0.1}},
        "training": {"sim_backend": "mujoco", "play_steps": 100, "play_only": False, "seed": 1},
    }
    return json.loads(json.dumps(data))  # no mapping is shared


def changed(path: str, value: object) -> dict:
    """`config()` with one value replaced, by dotted path."""
    data = config()
    node = data
    *parents, last = path.split(".")
    for part in parents:
        node = node[part]
    node[last] = value
    return data


def without(path: str) -> dict:
    """`config()` with one key removed."""
    data = config()
    node = data
    *parents, last = path.split(".")
    for part in parents:
        node = node[part]
    del node[last]
    return data

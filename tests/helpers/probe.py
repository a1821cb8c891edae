"""PROBE: throw-away environments whose values are exact integers, and what tests need around them.

`probe_cfg` is one hinge with a position servo; the observation is the episode's step counter and
the reward is 1. `walker_cfg` has a floating base, two hinges and two feet. Both are made from the
public config, with a MJCF that the test writes to its own folder.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import Tensor

from unilab_gym.backends.base import BackendSpec
from unilab_gym.backends.mujoco import MujocoBackend
from unilab_gym.config import (
    ActionTermCfg,
    CommandTermCfg,
    EnvCfg,
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneCfg,
    SimCfg,
    TerminationTermCfg,
)
from unilab_gym.mdp import actions, commands, events, observations, terminations
from unilab_gym.model_index import (
    ActuatorInfo,
    GeomInfo,
    JointInfo,
    ModelIndex,
    SensorInfo,
    Stage,
)
from unilab_gym.runtime.env import ManagerBasedRlEnv
from unilab_gym.runtime.frame import Frame
from unilab_gym.runtime.reads import EpisodeStep
from unilab_gym.runtime.rng import ManagerRng
from unilab_gym.runtime.term import BuildContext, Term, TermFrame, term
from unilab_gym.scene import build_scene

CPU = torch.device("cpu")

PROBE_XML = """
<mujoco model="probe">
  <compiler autolimits="true" angle="radian"/>
  <worldbody>
    <body name="arm" pos="0 0 1">
      <joint name="hinge" type="hinge" axis="0 1 0" range="-2 2"/>
      <geom name="link" type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02" mass="1"/>
      <site name="tip" pos="0 0 -0.3"/>
    </body>
  </worldbody>
  <actuator>
    <position name="servo" joint="hinge" kp="20" kv="2" forcerange="-20 20"/>
  </actuator>
  <sensor>
    <jointpos name="angle" joint="hinge"/>
    <framelinvel name="tip_vel" objtype="site" objname="tip"/>
    <accelerometer name="tip_acc" site="tip"/>
  </sensor>
  <keyframe>
    <key name="home" qpos="0.1" ctrl="0.1"/>
  </keyframe>
</mujoco>
"""

WALKER_XML = """
<mujoco model="walker">
  <compiler autolimits="true" angle="radian"/>
  <default>
    <geom condim="3" friction="0.8"/>
    <position kp="30" kv="1" forcerange="-30 30"/>
  </default>
  <worldbody>
    <body name="base" pos="0 0 0.45">
      <freejoint name="root"/>
      <geom name="trunk" type="box" size="0.2 0.1 0.05" mass="3"/>
      <body name="left" pos="0 0.15 0">
        <joint name="left_hip" type="hinge" axis="0 1 0" range="-1.5 1.5" armature="0.01"/>
        <geom name="left_foot" type="sphere" pos="0 0 -0.4" size="0.05" mass="0.3"/>
        <site name="left_tip" pos="0 0 -0.4"/>
      </body>
      <body name="right" pos="0 -0.15 0">
        <joint name="right_hip" type="hinge" axis="0 1 0" range="-1.5 1.5" armature="0.01"/>
        <geom name="right_foot" type="sphere" pos="0 0 -0.4" size="0.05" mass="0.3"/>
        <site name="right_tip" pos="0 0 -0.4"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="left_servo" joint="left_hip"/>
    <position name="right_servo" joint="right_hip"/>
  </actuator>
  <sensor>
    <framelinvel name="left_vel" objtype="site" objname="left_tip"/>
    <framelinvel name="right_vel" objtype="site" objname="right_tip"/>
  </sensor>
  <keyframe>
    <key name="home" qpos="0 0 0.45 1 0 0 0 0.2 -0.2" ctrl="0.2 -0.2"/>
  </keyframe>
</mujoco>
"""


# --- terms that count ---------------------------------------------------------------------------


@term(reads=(EpisodeStep(),), width=1)
def step_counter(frame: TermFrame) -> Tensor:  # [N, 1]
    """Control steps since the reset."""
    return frame[EpisodeStep()].unsqueeze(1)


@term(reads=(EpisodeStep(),), width=())
def counter(frame: TermFrame) -> Tensor:  # [N]
    """The same as one number: as a reward it is k in step k."""
    return frame[EpisodeStep()].float()


@term(reads=(EpisodeStep(),))
def one(frame: TermFrame) -> Tensor:  # [N]
    """1, always."""
    return torch.ones_like(frame[EpisodeStep()], dtype=torch.float32)


@term(reads=(EpisodeStep(),))
class CountCalls(Term):
    """1, and a note of how often it was computed."""

    calls = 0

    def __call__(self, frame: TermFrame) -> Tensor:
        """Counts on the class, which tests can see."""
        type(self).calls += 1
        return torch.ones_like(frame[EpisodeStep()], dtype=torch.float32)


@term(reads=(EpisodeStep(),))
def at_step(frame: TermFrame, *, step: int) -> Tensor:  # [N] bool
    """True in one step of every episode."""
    return frame[EpisodeStep()] == step


@term(reads=(EpisodeStep(),))
def row_at_step(frame: TermFrame, *, step: int, row: int, value: float | str) -> Tensor:  # [N]
    """`value` in one row and step, else 0; as text "nan" and "inf", which no config holds."""
    steps = frame[EpisodeStep()]
    rows = torch.arange(steps.shape[0])
    return torch.where((steps == step) & (rows == row), float(value), 0.0)


# --- environments -------------------------------------------------------------------------------


def write_probe(folder: Any) -> str:
    """The one-hinge MJCF as a file of that folder."""
    path = folder / "probe.xml"
    path.write_text(PROBE_XML)
    return str(path)


def write_walker(folder: Any) -> str:
    """The floating two-legged MJCF as a file of that folder."""
    path = folder / "walker.xml"
    path.write_text(WALKER_XML)
    return str(path)


def probe_cfg(folder: Any, **changes: Any) -> EnvCfg:
    """One hinge: observation = step counter, reward 1 per second, a time limit of 1 s."""
    cfg = EnvCfg(
        scene=SceneCfg(robot=write_probe(folder), ground="none"),
        sim=SimCfg(num_threads=1),
        sim_dt=0.02,
        ctrl_dt=0.02,
        episode_length_s=1.0,
        actions={"servo": ActionTermCfg(func=actions.JointPositionAction)},
        observations={"policy": ObservationGroupCfg(terms={"k": obs_term(step_counter)})},
        rewards={"one": RewardTermCfg(func=one, weight=1.0)},
        terminations={"time_out": TerminationTermCfg(func=terminations.TimeOut, time_out=True)},
    )
    return dataclasses.replace(cfg, **changes)


def walker_cfg(folder: Any, **changes: Any) -> EnvCfg:
    """A floating base with commands, randomization and pushes, and noisy observations."""
    from unilab_gym.config import UniformNoiseCfg
    from unilab_gym.mdp import rewards

    twist = {"command": "twist", "width": 3}
    policy = {
        "gravity": obs_term(
            observations.projected_gravity, noise=UniformNoiseCfg(low=-0.1, high=0.1)
        ),
        "joint_pos": obs_term(observations.joint_pos_rel),
        "joint_vel": obs_term(
            observations.joint_vel, noise=UniformNoiseCfg(low=-1.0, high=1.0), scale=0.1
        ),
        "last_action": obs_term(observations.last_action),
        "twist": obs_term(observations.command, params=twist),
    }
    critic = {
        "gravity": obs_term(observations.projected_gravity),
        "feet": obs_term(observations.geom_height, params={"geoms": (".*_foot",)}),
    }
    cfg = EnvCfg(
        scene=SceneCfg(robot=write_walker(folder)),
        sim=SimCfg(num_threads=1, iterations=4, ls_iterations=8),
        sim_dt=0.01,
        ctrl_dt=0.02,
        episode_length_s=1.0,
        actions={"legs": ActionTermCfg(func=actions.JointPositionAction, params={"scale": 0.5})},
        observations={
            "policy": ObservationGroupCfg(terms=policy, corrupt=True),
            "critic": ObservationGroupCfg(terms=critic),
        },
        rewards={
            "track": RewardTermCfg(
                func=rewards.track_lin_vel_xy,
                weight=1.0,
                params={"command": "twist", "sigma": 0.25},
            ),
            "rate": RewardTermCfg(func=rewards.action_rate_l2, weight=-0.1),
        },
        terminations={
            "time_out": TerminationTermCfg(func=terminations.TimeOut, time_out=True),
            "trunk": TerminationTermCfg(
                func=terminations.geom_contact, params={"geoms": ("trunk",), "margin": 0.01}
            ),
        },
        commands={"twist": twist_command()},
        events={
            "root": EventTermCfg(
                func=events.ResetRootUniform,
                mode="reset",
                params={"xy": (-0.5, 0.5), "yaw": (-3.0, 3.0), "lin_vel": (-0.5, 0.5)},
            ),
            "friction": EventTermCfg(
                func=events.RandomizeFriction,
                mode="startup",
                params={"geoms": (".*_foot",), "slide": (0.4, 1.2)},
            ),
            "mass": EventTermCfg(
                func=events.RandomizeBodyMass,
                mode="startup",
                params={"body": "base", "add": (-1.0, 1.0)},
            ),
            "push": EventTermCfg(
                func=events.PushRoot,
                mode="interval",
                interval_s=(0.2, 0.6),
                params={"lin_vel_xy": (-0.5, 0.5)},
            ),
        },
    )
    return dataclasses.replace(cfg, **changes)


def obs_term(func: Any, **kwargs: Any) -> ObservationTermCfg:
    """An observation term."""
    return ObservationTermCfg(func=func, **kwargs)


def twist_command(resampling_s: Any = (0.2, 0.5), **params: Any) -> CommandTermCfg:
    """A velocity command."""
    ranges = {"lin_vel_x": (-1.0, 1.0), "lin_vel_y": (-0.5, 0.5), "ang_vel_yaw": (-1.0, 1.0)}
    return CommandTermCfg(
        func=commands.UniformVelocityCommand,
        params={**ranges, "resampling_s": resampling_s, **params},
    )


def build(cfg: EnvCfg, num_envs: int = 4, *, seed: int = 0, **kwargs: Any) -> ManagerBasedRlEnv:
    """The runtime on MuJoCo C with one thread, not yet reset."""
    scene = build_scene(cfg.scene, cfg.sim, cfg.sim_dt)
    spec = BackendSpec(
        model=scene.model,
        index=scene.index,
        num_envs=num_envs,
        device=CPU,
        decimation=cfg.decimation,
        num_threads=1,
    )
    return ManagerBasedRlEnv(cfg, scene.index, MujocoBackend, spec, seed=seed, **kwargs)


def started(cfg: EnvCfg, num_envs: int = 4, **kwargs: Any) -> ManagerBasedRlEnv:
    """The same after its first reset."""
    env = build(cfg, num_envs, **kwargs)
    env.reset()
    return env


def zero_action(env: ManagerBasedRlEnv) -> Tensor:
    """An action of zeros."""
    return torch.zeros(env.num_envs, env.action_size)


def random_actions(env: ManagerBasedRlEnv, steps: int, seed: int = 0) -> Tensor:
    """`[steps, N, A]` in [-1, 1), from a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(steps, env.num_envs, env.action_size, generator=generator) * 2 - 1


# --- unit tests without an engine ---------------------------------------------------------------


def tiny_index(**changes: Any) -> ModelIndex:
    """Name tables of an imagined robot: three hinges, actuators in another order."""
    joints = tuple(
        JointInfo(name, i, i, -1.0, 1.0, default, 0.0)
        for i, (name, default) in enumerate((("hip", 0.1), ("knee", 0.2), ("toe", 0.3)))
    )
    actuators = tuple(
        ActuatorInfo(f"{joint}_motor", i, joint, 20.0, 1.0, 10.0)
        for i, joint in enumerate(("knee", "hip", "toe"))
    )
    geoms = {
        "ball": GeomInfo("ball", 0, "shin", "sphere", (0.1, 0.0, 0.0), (1.0, 0.0, 0.0)),
        "brick": GeomInfo("brick", 1, "shin", "box", (0.1, 0.2, 0.3), (1.0, 0.0, 0.0)),
        "shell": GeomInfo("shell", 2, "shin", "mesh", (0.1, 0.2, 0.3), (1.0, 0.0, 0.0)),
    }
    index = ModelIndex(
        nq=3,
        nv=3,
        nu=3,
        nstate=20,
        qpos_offset=1,
        qvel_offset=4,
        floating=False,
        root_body="thigh",
        default_qpos=(0.1, 0.2, 0.3),
        default_ctrl=(0.2, 0.1, 0.3),
        joints=joints,
        actuators=actuators,
        bodies={"world": 0, "thigh": 1, "shin": 2},
        geoms=geoms,
        sites={"tip": 0},
        sensors={
            "gyro": SensorInfo("gyro", 0, 3, Stage.VEL),
            "force": SensorInfo("force", 3, 3, Stage.ACC),
            "angle": SensorInfo("angle", 6, 1, Stage.POS),
        },
        sim_dt=0.005,
    )
    return dataclasses.replace(index, **changes)


def context(
    num_envs: int = 4,
    index: ModelIndex | None = None,
    control_dt: float = 0.02,
    model: Any = None,
) -> BuildContext:
    """A build context without an engine; nominal values come from the model, where given."""

    def nominal(name: str) -> Tensor:
        return torch.from_numpy(operator.attrgetter(name)(model).copy()).float()

    ctx = BuildContext(
        num_envs=num_envs,
        device=CPU,
        index=tiny_index() if index is None else index,
        control_dt=control_dt,
        max_episode_steps=50,
        rng=ManagerRng(num_envs, CPU),
        frame=Frame(),
        nominal=None if model is None else nominal,
    )
    ctx.owner = "test/term"
    return ctx


def ready(ctx: BuildContext, seed: int = 0) -> BuildContext:
    """The same with its random streams built, keyed and drawn."""
    from unilab_gym.runtime.rng import seed_keys

    ctx.rng.build()
    ctx.rng.set_keys(seed_keys(seed, ctx.num_envs))
    ctx.rng.draw()
    ctx.rng.draw_startup()
    return ctx

"""CRATE: a box on four feet with a swinging arm, for what randomization does to physics.

Its feet feel their load, it slides when pushed, and the arm's servo shows gains and friction.
"""

import torch

import unilab_gym
from unilab_gym.config import (
    ActionTermCfg,
    EnvCfg,
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    SceneCfg,
    SimCfg,
    TerminationTermCfg,
)
from unilab_gym.mdp import actions, observations, terminations
from unilab_gym.mdp import randomization as dr
from unilab_gym.runtime.reads import Sensors
from unilab_gym.runtime.term import term

FEET = ("fl", "fr", "rl", "rr")
FOOT = """
  <geom name="{name}" type="sphere" size=".02" pos="{x} {y} -.08" mass=".05" condim="3"
        friction=".8 .005 .0001" priority="1"/>
  <site name="{name}" pos="{x} {y} -.08" size=".03"/>"""
FEET_XML = "".join(
    FOOT.format(name=name, x=x, y=y)
    for name, x, y in zip(FEET, (0.2, 0.2, -0.2, -0.2), (0.2, -0.2, 0.2, -0.2), strict=True)
)
MJCF = f"""
<mujoco model="crate">
  <compiler angle="radian"/>
  <worldbody>
    <body name="base" pos="0 0 .1">
      <freejoint name="root"/>
      <geom name="trunk" type="box" size=".2 .2 .05" mass="4" contype="0" conaffinity="0"/>
      {FEET_XML}
      <body name="arm" pos="0 0 .06">
        <joint name="swing" axis="0 1 0" range="-2 2" armature=".01" damping=".05"
               frictionloss=".02"/>
        <geom name="rod" type="capsule" size=".015" fromto="0 0 0 0 0 .25" mass=".3"
              contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="motor" joint="swing" kp="12" kv=".4" forcerange="-3 3"/>
  </actuator>
  <sensor>{"".join(f'<touch name="{name}" site="{name}"/>' for name in FEET)}</sensor>
  <keyframe><key name="home" qpos="0 0 .1 1 0 0 0 0" ctrl="0"/></keyframe>
</mujoco>"""

WIDE = {
    "friction": (dr.RandomizeFriction, {"geoms": FEET, "slide": (0.1, 1.2), "each": True}),
    "mass": (dr.RandomizeBodyMass, {"body": "base", "scale": (0.5, 1.5)}),
    "com": (dr.RandomizeBodyCom, {"body": "arm", "add": (-0.05, 0.05)}),
    "inertia": (dr.RandomizeBodyInertia, {"body": "arm", "scale": (0.5, 3.0)}),
    "armature": (dr.RandomizeJointArmature, {"add": (0.0, 0.05)}),
    "damping": (dr.RandomizeJointDamping, {"abs": (0.0, 0.5)}),
    "joint_friction": (dr.RandomizeJointFriction, {"scale": (0.5, 20.0)}),
    "gains": (dr.RandomizeGains, {"kp": (0.5, 1.5), "kd": (0.5, 1.5)}),
    "effort": (dr.RandomizeEffortLimit, {"scale": (0.05, 0.5)}),
    "gravity": (dr.RandomizeGravity, {"add": (-1.0, 1.0)}),
    "encoder": (dr.RandomizeEncoderBias, {"add": (-0.1, 0.1)}),
}
"""Every model term with a wide range: name -> (class, params)."""
DISTURBANCES = {
    "push": (dr.PushRoot, {"lin_vel_xy": (-1.0, 1.0), "lin_vel_z": (0.0, 0.5), "ang_vel": (-1, 1)}),
    "impulse": (dr.ApplyBodyImpulse, {"body": "base", "impulse": (-2.0, 2.0)}),
    "wrench": (
        dr.ApplyBodyWrench,
        {"body": "arm", "force": (-3.0, 3.0), "torque": (-0.2, 0.2), "duration_s": 0.1},
    ),
}


@term(reads=(Sensors(FEET),), width=4)
def foot_load(frame):  # [N, 4]
    """Normal force on each foot, N: the last substep's."""
    return frame[Sensors(FEET)].flatten(1)


def event(name, mode="startup", **params):
    """One of the terms above, with some parameters replaced."""
    func, given = (WIDE | DISTURBANCES)[name]
    interval = (0.1, 0.1) if mode == "interval" else None
    return EventTermCfg(func=func, mode=mode, interval_s=interval, params={**given, **params})


def crate_cfg(folder, events=None, observations_=None, **changes):
    """The environment; its MJCF is written to the folder."""
    path = folder / "crate.xml"
    path.write_text(MJCF)
    terms = {
        "joint_pos": ObservationTermCfg(func=observations.joint_pos_rel),
        "load": ObservationTermCfg(func=foot_load),
    }
    values = {
        "scene": SceneCfg(robot=str(path)),
        "sim": SimCfg(num_threads=1, iterations=10, ls_iterations=20),
        "sim_dt": 0.005,
        "ctrl_dt": 0.02,
        "episode_length_s": 100.0,
        "actions": {"arm": ActionTermCfg(func=actions.JointPositionAction)},
        "observations": {"policy": ObservationGroupCfg(terms=observations_ or terms)},
        "terminations": {"end": TerminationTermCfg(func=terminations.TimeOut, time_out=True)},
        "events": events or {},
    }
    return EnvCfg(**(values | changes))


def make_crate(folder, events=None, num_envs=8, backend="mujoco", **kwargs):
    """A vector environment of it, reset with seed 0."""
    cfg = crate_cfg(folder, events, kwargs.pop("observations_", None))
    env = unilab_gym.make(cfg, num_envs, backend=backend, device="cpu", seed=0, **kwargs)
    env.reset(seed=0)
    return env


def swing(env, steps, amplitude=0.8):
    """Steps with an arm that beats to and fro; the states after each, `[steps, N, nq + nv]`."""
    views = env.runtime.backend.views()
    states = []
    for step in range(steps):
        env.step(torch.full((env.num_envs, 1), amplitude if step % 20 < 10 else -amplitude))
        states.append(torch.cat((views.qpos, views.qvel), 1))
    return torch.stack(states)


def rank_correlation(a, b):
    """Spearman's, without ties."""
    ranks = torch.stack((a.argsort().argsort(), b.argsort().argsort())).float()
    return float(torch.corrcoef(ranks)[0, 1])

"""MJCF composition with MjSpec, and the name tables of the compiled model.

`build_scene` loads the robot's MJCF, adds the ground, applies the task's engine settings and
compiles one `MjModel` that both engines load.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from unilab_gym.assets import asset_path
from unilab_gym.config import SceneCfg, SimCfg
from unilab_gym.engine import mujoco
from unilab_gym.errors import ConfigError, near
from unilab_gym.model_index import (
    ActuatorInfo,
    GeomInfo,
    JointInfo,
    ModelIndex,
    SensorInfo,
    Stage,
)
from unilab_gym.robot import adapt_robot, with_default_pose

_INTEGRATORS = {
    "euler": mujoco.mjtIntegrator.mjINT_EULER,
    "implicitfast": mujoco.mjtIntegrator.mjINT_IMPLICITFAST,
}
_SOLVERS = {"newton": mujoco.mjtSolver.mjSOL_NEWTON, "cg": mujoco.mjtSolver.mjSOL_CG}
_CONES = {"pyramidal": mujoco.mjtCone.mjCONE_PYRAMIDAL, "elliptic": mujoco.mjtCone.mjCONE_ELLIPTIC}
_SCALAR_JOINTS = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
_INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION

_HORIZON = (0.74, 0.82, 0.90)
_TEXTURES = (
    (
        "unilab_sky",
        mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        (0.55, 0.70, 0.86),
        (0.93, 0.94, 0.94),  # the horizon is the mean of both
    ),
    (
        "unilab_floor",
        mujoco.mjtTexture.mjTEXTURE_2D,
        mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        (0.38, 0.43, 0.49),
        (0.29, 0.34, 0.40),
    ),
)

_FIELD_SIZES = {
    "xpos": ("nbody", 3),
    "xquat": ("nbody", 4),
    "xmat": ("nbody", 9),
    "geom_xpos": ("ngeom", 3),
    "geom_xmat": ("ngeom", 9),
    "site_xpos": ("nsite", 3),
    "site_xmat": ("nsite", 9),
    "subtree_com": ("nbody", 3),
    "cvel": ("nbody", 6),
    "sensordata": ("nsensordata", 1),
    "actuator_force": ("nu", 1),
    "qacc": ("nv", 1),
    "qfrc_actuator": ("nv", 1),
}


@dataclass(frozen=True)
class Scene:
    """A compiled scene."""

    model: mujoco.MjModel
    index: ModelIndex


def build_scene(scene: SceneCfg, sim: SimCfg, sim_dt: float, *, visuals: bool = False) -> Scene:
    """Composes and compiles a scene.

    Visual geoms cost the C engine's broad phase 12 % of a step although they collide with
    nothing, so physics is compiled without them; the state layout and the motion are the same.

    Args:
        scene: Robot and ground.
        sim: Engine settings, which replace the MJCF's.
        sim_dt: Physics step in s.
        visuals: Whether to keep what is only seen: for rendering.

    Raises:
        ConfigError: If the file is missing or not valid MJCF, a file that it names is missing, a
            name of the scene matches nothing, or an engine setting is unknown.
    """
    path = asset_path(scene.robot)
    if path.is_dir():
        raise ConfigError(f"scene.robot {scene.robot!r} is a folder, not an MJCF file")
    try:
        spec = mujoco.MjSpec.from_file(str(path))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} is not a valid MJCF file: {error}") from error
    adapt_robot(spec, scene)
    _add_ground(spec, scene)
    if visuals:
        _add_looks(spec)
    _set_options(spec, sim, sim_dt)
    spec.compiler.discardvisual = not visuals
    try:
        model = spec.compile()
    except (ValueError, mujoco.FatalError) as error:
        raise ConfigError(f"{path} does not compile: {error}") from error
    index = with_default_pose(index_model(model, scene.keyframe), scene)
    return Scene(model=model, index=dataclasses.replace(index, source=str(path)))


def _add_ground(spec: Any, scene: SceneCfg) -> None:
    if scene.ground == "none":
        return
    if spec.geom("floor") is not None:
        raise ConfigError(
            f"{scene.robot} has a geom 'floor' of its own: say ground='none', or rename it"
        )
    spec.worldbody.add_geom(
        name="floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[0, 0, 0.05],
        friction=[scene.ground_friction, 0.005, 0.0001],
        condim=1,  # the larger condim of a pair counts: a geom that wants friction says so
        contype=1,
        conaffinity=1,
    )


def _add_looks(spec: Any) -> None:
    """Sky, checkered floor, light and shadow: what is only seen."""
    for name, kind, builtin, rgb1, rgb2 in _TEXTURES:
        spec.add_texture(
            name=name, type=kind, builtin=builtin, rgb1=rgb1, rgb2=rgb2, width=256, height=256
        )
    floor = spec.geom("floor")
    if floor is not None:
        # Squares of half a metre: the checker has 2 x 2, and `texuniform` fits it into 2 m.
        material = spec.add_material(name="unilab_floor", texrepeat=[2, 2], texuniform=True)
        material.specular, material.shininess, material.reflectance = 0.1, 0.3, 0.0
        material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "unilab_floor"
        floor.material = "unilab_floor"
    _add_sun(spec)
    visual = spec.visual
    visual.headlight.ambient, visual.headlight.diffuse = [0.36] * 3, [0.2] * 3
    visual.headlight.specular = [0.1] * 3
    visual.rgba.haze = [*_HORIZON, 1.0]
    visual.map.haze = 0.6
    visual.map.zfar = 60.0
    visual.map.shadowclip = 1.2
    visual.global_.fovy = 40.0
    # Software OpenGL: fewer triangles and a small shadow map halve the time of a frame. The
    # renderer draws larger and averages instead of sampling, which leaves shadows ragged.
    visual.quality.numslices, visual.quality.numstacks = 20, 10
    visual.quality.shadowsize, visual.quality.offsamples = 1024, 0


def _add_sun(spec: Any) -> None:
    """A light that follows the robot: the shadow map covers only what is near its axis.

    It leans along y alone: MuJoCo 4.0 dots the floor with false shadow where a light leans
    across the axes of its shadow map.
    """
    roots = [joint.parent for joint in spec.joints if joint.type == mujoco.mjtJoint.mjJNT_FREE]
    sun = (roots[0] if roots else spec.worldbody).add_light(
        name="unilab_sun",
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        pos=[0, -1.9, 3.2],
        dir=[0, 1.9, -3.2],
        castshadow=True,
    )
    sun.diffuse, sun.specular, sun.ambient = [0.75] * 3, [0.3] * 3, [0.0] * 3
    if roots:
        sun.mode = mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM


def _set_options(spec: Any, sim: SimCfg, sim_dt: float) -> None:
    for what, value, table in (
        ("integrator", sim.integrator, _INTEGRATORS),
        ("solver", sim.solver, _SOLVERS),
        ("cone", sim.cone, _CONES),
    ):
        if value not in table:
            raise ConfigError(f"sim.{what}: {near(value, table)}")
        setattr(spec.option, what, table[value])
    spec.option.timestep = sim_dt
    spec.option.iterations = sim.iterations
    spec.option.ls_iterations = sim.ls_iterations
    spec.option.impratio = sim.impratio
    spec.option.gravity = list(sim.gravity)


def index_model(model: mujoco.MjModel, keyframe: str | None = "home") -> ModelIndex:
    """Name tables of a compiled model.

    Args:
        model: The compiled model; every joint, actuator and sensor needs a name.
        keyframe: Which keyframe is the default state; None takes qpos0 and ctrl 0.

    Raises:
        ConfigError: If a name is missing, the keyframe is unknown, or a joint or an actuator is of
            a kind that the package does not handle (ball, free below the root; tendon, site).
    """
    qpos, ctrl = _default_state(model, keyframe)
    floating = bool(model.njnt) and int(model.jnt_type[0]) == mujoco.mjtJoint.mjJNT_FREE
    joints = _joints(model, qpos, skip=1 if floating else 0)
    root = int(model.jnt_bodyid[0]) if model.njnt else 0
    signature = int(_INTEGRATION)
    return ModelIndex(
        nq=model.nq,
        nv=model.nv,
        nu=model.nu,
        nstate=mujoco.mj_stateSize(model, signature),
        qpos_offset=1,
        qvel_offset=1 + model.nq,
        floating=floating,
        root_body=model.body(root).name,
        default_qpos=tuple(float(x) for x in qpos),
        default_ctrl=tuple(float(x) for x in ctrl),
        joints=joints,
        actuators=_actuators(model),
        bodies={model.body(i).name: i for i in range(model.nbody)},
        geoms={
            model.geom(i).name: _geom(model, i) for i in range(model.ngeom) if model.geom(i).name
        },
        sites={model.site(i).name: i for i in range(model.nsite) if model.site(i).name},
        sensors={model.sensor(i).name: _sensor(model, i) for i in range(model.nsensor)},
        sim_dt=float(model.opt.timestep),
        field_widths={
            "qpos": model.nq,
            "qvel": model.nv,
            **{name: getattr(model, size) * width for name, (size, width) in _FIELD_SIZES.items()},
        },
    )


def _default_state(model: mujoco.MjModel, keyframe: str | None) -> tuple[Any, Any]:
    if keyframe is None:
        return model.qpos0.copy(), np.zeros(model.nu)
    names = [model.key(i).name for i in range(model.nkey)]
    if keyframe not in names:
        hint = "" if names else "; keyframe=None takes qpos0, joint_pos and root_pos change it"
        raise ConfigError(f"the model has no keyframe {near(keyframe, names)}{hint}")
    key = model.key(keyframe)
    return np.array(key.qpos), np.array(key.ctrl)


def _joints(model: mujoco.MjModel, qpos: Any, skip: int) -> tuple[JointInfo, ...]:
    joints: list[JointInfo] = []
    for i in range(skip, model.njnt):
        joint = model.joint(i)
        if int(model.jnt_type[i]) not in _SCALAR_JOINTS:
            raise ConfigError(f"joint {joint.name!r} (number {i}) is neither hinge nor slide")
        if not joint.name:
            raise ConfigError(f"joint number {i} of body {model.jnt_bodyid[i]} has no name")
        limited = bool(model.jnt_limited[i])
        dof = int(model.jnt_dofadr[i])
        joints.append(
            JointInfo(
                name=joint.name,
                qpos_adr=int(model.jnt_qposadr[i]),
                dof_adr=dof,
                lower=float(model.jnt_range[i, 0]) if limited else -math.inf,
                upper=float(model.jnt_range[i, 1]) if limited else math.inf,
                default=float(qpos[model.jnt_qposadr[i]]),
                armature=float(model.dof_armature[dof]),
            )
        )
    return tuple(joints)


def _actuators(model: mujoco.MjModel) -> tuple[ActuatorInfo, ...]:
    actuators: list[ActuatorInfo] = []
    for i in range(model.nu):
        name = model.actuator(i).name
        if not name:
            raise ConfigError(f"actuator number {i} has no name")
        if int(model.actuator_trntype[i]) != mujoco.mjtTrn.mjTRN_JOINT:
            raise ConfigError(f"actuator {name!r} does not drive a joint")
        joint = int(model.actuator_trnid[i, 0])
        kind, kp, kd = _law(model, i)
        limited = bool(model.actuator_forcelimited[i])
        actuators.append(
            ActuatorInfo(
                name=name,
                index=i,
                joint=model.joint(joint).name,
                kp=kp,
                kd=kd,
                effort=float(model.actuator_forcerange[i, 1]) if limited else math.inf,
                kind=kind,
            )
        )
    return tuple(actuators)


def _law(model: mujoco.MjModel, i: int) -> tuple[str, float, float]:
    """Kind, kp and kd: force = gain * ctrl + bias . (1, q, qdot)."""
    gain = float(model.actuator_gainprm[i, 0])
    _, stiffness, damping = (float(-x) for x in model.actuator_biasprm[i, :3])
    fixed = int(model.actuator_gaintype[i]) == mujoco.mjtGain.mjGAIN_FIXED
    bias = int(model.actuator_biastype[i])
    if fixed and bias == mujoco.mjtBias.mjBIAS_NONE:
        return "motor", 0.0, 0.0
    if fixed and bias == mujoco.mjtBias.mjBIAS_AFFINE:
        if stiffness == gain:
            return "position", gain, damping
        if stiffness == 0.0 and damping == gain:
            return "velocity", 0.0, damping
    return "other", gain, damping


def _geom(model: mujoco.MjModel, i: int) -> GeomInfo:
    size, friction = model.geom_size[i], model.geom_friction[i]
    kind = mujoco.mjtGeom(int(model.geom_type[i])).name
    return GeomInfo(
        name=model.geom(i).name,
        index=i,
        body=model.body(int(model.geom_bodyid[i])).name,
        kind=kind.removeprefix("mjGEOM_").lower(),
        size=(float(size[0]), float(size[1]), float(size[2])),
        friction=(float(friction[0]), float(friction[1]), float(friction[2])),
    )


def _sensor(model: mujoco.MjModel, i: int) -> SensorInfo:
    name = model.sensor(i).name
    if not name:
        raise ConfigError(f"sensor number {i} has no name")
    return SensorInfo(
        name=name,
        adr=int(model.sensor_adr[i]),
        dim=int(model.sensor_dim[i]),
        stage=_sensor_stage(model, i),
        kind=mujoco.mjtSensor(int(model.sensor_type[i])).name.removeprefix("mjSENS_").lower(),
    )


def _sensor_stage(model: mujoco.MjModel, i: int) -> Stage:
    # A contact sensor that only counts needs no forces, but mujoco_warp 4.0 evaluates every
    # contact sensor together with the forces, in a step alone.
    if int(model.sensor_type[i]) == int(mujoco.mjtSensor.mjSENS_CONTACT):
        return Stage.ACC
    return Stage(int(model.sensor_needstage[i]))

"""A small walking robot on flat ground, for what every backend must do alike.

Two legs of two joints; sensors of every stage, in an order that no single view can hold.
"""

import torch

from unilab_gym.backends.base import BackendSpec, FieldSlice, ReadPlan, Stage
from unilab_gym.config import SceneCfg, SimCfg
from unilab_gym.scene import build_scene

N = 5
DECIMATION = 3
DT = 0.005
FIELDS = ("geom_friction", "body_mass")
LEG = """
  <body name="{name}_leg" pos="{x} 0 -.05">
    <joint name="{name}_hip" axis="0 1 0" range="-1.5 1.5" armature=".01" frictionloss=".1"/>
    <geom name="{name}_thigh" type="capsule" size=".02" fromto="0 0 0 0 0 -.15" mass=".5"/>
    <body name="{name}_shin" pos="0 0 -.15">
      <joint name="{name}_knee" axis="0 1 0" range="-2 2" armature=".01"/>
      <geom name="{name}_foot" type="sphere" size=".03" pos="0 0 -.15" mass=".2"/>
      <site name="{name}_foot" pos="0 0 -.15" size=".035"/>
    </body>
  </body>"""
MJCF = f"""
<mujoco model="walker">
  <compiler angle="radian"/>
  <default>
    <geom contype="1" conaffinity="2"/>
    <position kp="30" kv="1" forcerange="-20 20"/>
  </default>
  <worldbody>
    <body name="base" pos="0 0 .38">
      <freejoint name="root"/>
      <geom name="trunk" type="box" size=".15 .1 .05" mass="4"/>
      <site name="imu" pos=".05 0 .02"/>
      {LEG.format(name="front", x=0.1)}{LEG.format(name="rear", x=-0.1)}
    </body>
  </worldbody>
  <actuator>
    <position name="front_hip" joint="front_hip"/>
    <position name="front_knee" joint="front_knee"/>
    <position name="rear_hip" joint="rear_hip"/>
    <position name="rear_knee" joint="rear_knee"/>
  </actuator>
  <sensor>
    <accelerometer name="imu_acc" site="imu"/>
    <gyro name="imu_gyro" site="imu"/>
    <framequat name="imu_quat" objtype="site" objname="imu"/>
    <touch name="front_touch" site="front_foot"/>
    <velocimeter name="imu_linvel" site="imu"/>
    <framepos name="rear_pos" objtype="site" objname="rear_foot"/>
    <framelinvel name="rear_vel" objtype="site" objname="rear_foot"/>
    <subtreecom name="com" body="base"/>
    <subtreeangmom name="angmom" body="base"/>
    <jointpos name="knee_pos" joint="front_knee"/>
    <touch name="rear_touch" site="rear_foot"/>
    <actuatorfrc name="knee_force" actuator="front_knee"/>
    <actuatorpos name="knee_length" actuator="front_knee"/>
  </sensor>
  <keyframe>
    <key name="home" qpos="0 0 .365 1 0 0 0 .3 -.6 .3 -.6" ctrl=".3 -.6 .3 -.6"/>
  </keyframe>
</mujoco>"""


def walker_scene(folder):
    """The compiled scene; its MJCF is written to a folder."""
    path = folder / "walker.xml"
    path.write_text(MJCF)
    return build_scene(SceneCfg(robot=str(path)), SimCfg(), DT)


def make_spec(scene, **changes):
    values = {
        "model": scene.model,
        "index": scene.index,
        "num_envs": N,
        "device": torch.device("cpu"),
        "decimation": DECIMATION,
        "model_fields": FIELDS,
    }
    return BackendSpec(**(values | changes))


def block(field, first, width, stage, shape=None):
    """Consecutive columns of a field."""
    columns = tuple(range(first, first + width))
    return FieldSlice(field, columns, (width,) if shape is None else shape, stage)


def make_plan(index):
    """Views and gathered blocks of every stage; resets declare fewer reads."""

    def sensor(name):
        info = index.sensors[name]
        return block("sensordata", info.adr, info.dim, info.stage)

    def geoms(*names):
        columns = tuple(3 * index.geoms[n].index + i for n in names for i in range(3))
        return FieldSlice("geom_xpos", columns, (len(names), 3), Stage.POS)

    touch = tuple(index.sensors[n].adr for n in ("rear_touch", "front_touch"))
    shared = (
        block("qpos", 7, 4, Stage.NONE),
        FieldSlice("qvel", (9, 6, 8), (3,), Stage.NONE),
        block("xquat", 4, 4, Stage.POS),
        geoms("front_foot", "rear_foot"),
        geoms("rear_foot", "trunk", "front_foot"),
        *map(sensor, ("imu_quat", "imu_gyro", "imu_linvel", "rear_pos", "rear_vel", "com")),
        *map(sensor, ("imu_acc", "angmom", "knee_pos", "knee_force")),
        FieldSlice("sensordata", touch, (2,), Stage.ACC),
    )
    nbody = len(index.bodies)
    step_only = (
        block("cvel", 0, 6 * nbody, Stage.VEL, (nbody, 6)),
        block("subtree_com", 0, 3 * nbody, Stage.POS, (nbody, 3)),
        block("actuator_force", 0, index.nu, Stage.ACC),
        FieldSlice("qacc", (8, 2, 3), (3,), Stage.ACC),
    )
    return ReadPlan(step=shared + step_only, reset=shared)


def default_payload(backend):
    """A payload of its own for each caller: only the first one allocated is the graph's input."""
    backend.allocate_reset_payload()
    return backend.allocate_reset_payload()


def mask_of(*rows):
    mask = torch.zeros(N, dtype=torch.bool)
    mask[list(rows)] = True
    return mask


def controls(index, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(steps, N, index.nu, generator=generator)
    return torch.tensor(index.default_ctrl) + 0.6 * noise


def snapshot(backend, reads):
    tensors = {str(key): value.clone() for key, value in reads.items()}
    return tensors | {"state": backend.get_state(), "faults": backend.faults().clone()}


def assert_equal(left, right, rows=slice(None)):
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert torch.equal(value[rows], right[key][rows]), key


def run(backend, ctrl):
    for row in ctrl:
        backend.step(row, None)

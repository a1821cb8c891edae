"""What the conformance checks are made of: a small robot, its read plan, runs and snapshots.

Two legs of two joints; sensors of every stage, in an order that no single view can hold.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unilab_gym.backends.base import (
    Backend,
    BackendSpec,
    FieldSlice,
    ReadPlan,
    RecomputeLevel,
    Stage,
    TensorResetRandomizationPayload,
)
from unilab_gym.config import SceneCfg, SimCfg
from unilab_gym.model_index import ModelIndex
from unilab_gym.scene import Scene, build_scene

ROWS = 5
DECIMATION = 3
DT = 0.005
_LEG = """
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
      {_LEG.format(name="front", x=0.1)}{_LEG.format(name="rear", x=-0.1)}
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
"""The robot of the checks, in MJCF."""


class ConformanceError(AssertionError):
    """A backend breaks the contract; names the check and what was found."""


def require(condition: object, message: str) -> None:
    """Raises a `ConformanceError` where the condition is false."""
    if not condition:
        raise ConformanceError(message)


def refused(kinds: type[BaseException], what: str, call: Callable[[], object]) -> str:
    """The message with which a call is refused.

    Raises:
        ConformanceError: If it was not.
    """
    try:
        call()
    except kinds as error:
        return str(error)
    raise ConformanceError(f"{what} was not refused")


Snapshot = dict[str, Tensor]


def block(
    field: str, first: int, width: int, stage: Stage, shape: tuple[int, ...] | None = None
) -> FieldSlice:
    """Consecutive columns of a field."""
    return FieldSlice(field, tuple(range(first, first + width)), shape or (width,), stage)


def walker_plan(index: ModelIndex) -> ReadPlan:
    """Views and gathered blocks of every stage of the robot; resets declare fewer reads."""

    def sensor(name: str) -> FieldSlice:
        info = index.sensors[name]
        return block("sensordata", info.adr, info.dim, info.stage)

    def geoms(*names: str) -> FieldSlice:
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


class ConformanceBench:
    """A small robot, and backends of it that a factory builds.

    Args:
        create: Builds the backend from a spec.
        device: The device of the specs.
        tolerance: Largest difference between two runs that should be equal: 0 where the engine
            repeats itself bit for bit (both shipped ones on the CPU).
    """

    def __init__(
        self,
        create: Callable[[BackendSpec], Backend],
        *,
        device: str | torch.device = "cpu",
        tolerance: float = 0.0,
    ) -> None:
        """Composes the robot; the first backend is built by the first check."""
        self.create = create
        self.device = torch.device(device)
        self.tolerance = tolerance
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "conformance.xml"
            path.write_text(MJCF)
            self.scene: Scene = build_scene(SceneCfg(robot=str(path)), SimCfg(), DT)
        self._shared: tuple[Backend, Mapping[FieldSlice, Tensor]] | None = None

    # -- what the checks are made of -------------------------------------------------------

    @property
    def index(self) -> ModelIndex:
        """Names of the suite's robot."""
        return self.scene.index

    def spec(self, **changes: Any) -> BackendSpec:
        """The spec that the checks build from, changed."""
        values: dict[str, Any] = {
            "model": self.scene.model,
            "index": self.index,
            "num_envs": ROWS,
            "device": self.device,
            "decimation": DECIMATION,
            "model_fields": ("geom_friction", "body_mass"),
        }
        return BackendSpec(**(values | changes))

    def plan(self) -> ReadPlan:
        """Reads of every stage; resets declare fewer."""
        return walker_plan(self.index)

    def fresh(self) -> tuple[Backend, Mapping[FieldSlice, Tensor]]:
        """The suite's backend, every row at the default state with nominal fields."""
        if self._shared is None:
            backend = self.create(self.spec())
            self._shared = backend, backend.compile_reads(self.plan())
        backend, reads = self._shared
        fields = {name: self.nominal(backend, name) for name in backend.spec.model_fields}
        backend.set_model_fields(fields, self.mask(all_rows=True), RecomputeLevel.ALL)
        backend.reset(self.payload(backend), self.mask(all_rows=True))
        return backend, reads

    def nominal(self, backend: Backend, name: str) -> Tensor:
        """Nominal values of a field for every row."""
        nominal = backend.nominal(name)
        return nominal.expand(ROWS, *nominal.shape).contiguous()

    def mask(self, *rows: int, all_rows: bool = False) -> Tensor:
        """`[N]` bool, true in the rows."""
        values = [all_rows or row in rows for row in range(ROWS)]
        return torch.tensor(values, device=self.device)

    def payload(self, backend: Backend) -> TensorResetRandomizationPayload:
        """A payload of its own: an engine may keep the first one as its input."""
        backend.allocate_reset_payload()
        return backend.allocate_reset_payload()

    def controls(self, steps: int, seed: int = 0) -> Tensor:
        """Random controls `[steps, N, nu]` around the default."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(steps, ROWS, self.index.nu, generator=generator)
        return (torch.tensor(self.index.default_ctrl) + 0.6 * noise).to(self.device)

    def run(self, backend: Backend, controls: Iterable[Tensor]) -> None:
        """Steps without a payload."""
        for ctrl in controls:
            backend.step(ctrl, None)

    def snapshot(self, backend: Backend, reads: Mapping[FieldSlice, Tensor]) -> Snapshot:
        """Copies of reads, packed state and faults."""
        tensors = {str(item): value.clone() for item, value in reads.items()}
        return tensors | {"state": backend.get_state(), "faults": backend.faults().clone()}

    def same(self, left: Snapshot, right: Snapshot, rows: Tensor, what: str) -> None:
        """Requires equality in the masked rows, within the tolerance."""
        for key, value in left.items():
            a, b = value[rows].double(), right[key][rows].double()
            equal = torch.equal(a, b)
            if not equal and self.tolerance and a.numel():
                equal = bool((a - b).abs().max() <= self.tolerance)
            require(equal, f"{what}: {key} differs")

    def close(self) -> None:
        """Closes the suite's backend."""
        if self._shared is not None:
            self._shared[0].close()
            self._shared = None

"""Read plans on MuJoCo-Warp: which launches a refresh needs, and the tensor of each slice.

After a step of the engine every derived field describes the state *before* the last substep. The
launches named here bring the declared fields up to date and nothing else; their result is
bit-identical to a full forward pass (mujoco_warp 4.0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unilab_gym.backends.base import FieldSlice, ReadPlan, Stage
from unilab_gym.engine import mujoco
from unilab_gym.errors import BackendError, ConfigError, UnsupportedCapabilityError, near

_POSES = ("kinematics",)
_POS = ("kinematics", "com_pos")
_VEL = ("kinematics", "com_pos", "com_vel")
_FIELD_LAUNCHES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("qpos", "qvel"), ()),  # the state itself is always current
    **dict.fromkeys(("xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis"), _POSES),
    **dict.fromkeys(("geom_xpos", "geom_xmat", "site_xpos", "site_xmat"), _POSES),
    **dict.fromkeys(("subtree_com", "cinert", "cdof"), _POS),
    "cvel": _VEL,
    # Acceleration stage: what the last substep left, never refreshed.
    **dict.fromkeys(("qacc", "actuator_force", "qfrc_actuator", "qfrc_constraint"), ()),
}
_SENSOR_LAUNCHES: dict[Stage, tuple[str, ...]] = {
    Stage.POS: (*_POS, "sensor_pos"),
    Stage.VEL: (*_VEL, "sensor_vel"),
    Stage.ACC: (),
}
_LAUNCH_ORDER = ("kinematics", "com_pos", "com_vel", "sensor_pos", "sensor_vel")

# Position and velocity sensors that these launches compute. Others (actuator, tendon, limit and
# distance sensors, rangefinders) rest on stages that only a full forward pass runs.
_REFRESHED_SENSORS = (
    "MAGNETOMETER",
    "JOINTPOS",
    "BALLQUAT",
    "FRAMEPOS",
    "FRAMEQUAT",
    "FRAMEXAXIS",
    "FRAMEYAXIS",
    "FRAMEZAXIS",
    "SUBTREECOM",
    "CLOCK",
    "VELOCIMETER",
    "GYRO",
    "JOINTVEL",
    "BALLANGVEL",
    "FRAMELINVEL",
    "FRAMEANGVEL",
    "SUBTREELINVEL",
    "SUBTREEANGMOM",
)


def is_acceleration(item: FieldSlice) -> bool:
    """Whether a slice holds the last substep's value, and 0 in rows just reset."""
    return item.stage == Stage.ACC


def check_slices(plan: ReadPlan, model: Any) -> None:
    """Refuses what the refresh launches cannot bring up to date.

    Raises:
        ConfigError: If a field is unknown.
        UnsupportedCapabilityError: If a slice reads a sensor that needs a full forward pass.
    """
    unsupported = _unsupported_sensors(model)
    for item in (*plan.step, *plan.reset):
        if item.field == "sensordata":
            for column in () if is_acceleration(item) else item.columns:
                if column in unsupported:
                    raise UnsupportedCapabilityError(
                        f"backend 'mjwarp' does not refresh sensor {unsupported[column]}; "
                        f"it refreshes {', '.join(_REFRESHED_SENSORS)} on bodies, geoms and sites"
                    )
        elif item.field not in _FIELD_LAUNCHES:
            fields = ("sensordata", *_FIELD_LAUNCHES)
            raise ConfigError(f"backend 'mjwarp' cannot read field {near(item.field, fields)}")


def _unsupported_sensors(model: Any) -> dict[int, str]:
    """Column of sensordata -> name and type, for sensors outside the refreshed set."""
    columns: dict[int, str] = {}
    camera = int(mujoco.mjtObj.mjOBJ_CAMERA)
    for i in range(model.nsensor):
        kind = mujoco.mjtSensor(int(model.sensor_type[i])).name.removeprefix("mjSENS_")
        on_camera = camera in (int(model.sensor_objtype[i]), int(model.sensor_reftype[i]))
        if kind in _REFRESHED_SENSORS and not on_camera:
            continue
        adr = int(model.sensor_adr[i])
        name = f"{model.sensor(i).name!r} ({kind}{' on a camera' if on_camera else ''})"
        columns.update(dict.fromkeys(range(adr, adr + int(model.sensor_dim[i])), name))
    return columns


def launches(items: Iterable[FieldSlice]) -> tuple[str, ...]:
    """Names of the mujoco_warp functions that bring the slices up to date, in order."""
    wanted: set[str] = set()
    for item in items:
        if item.field == "sensordata":
            wanted.update(_SENSOR_LAUNCHES[item.stage])
        else:
            wanted.update(_FIELD_LAUNCHES[item.field])
    return tuple(name for name in _LAUNCH_ORDER if name in wanted)


@dataclass
class Carrier:
    """Columns of one field gathered into a tensor of our own, because no view can hold them."""

    source: Tensor  # [N, width]
    columns: Tensor  # [W] int64
    block: Tensor  # [N, W]
    acceleration: bool

    def fill(self) -> None:
        """Copies the columns of every row: one launch."""
        torch.index_select(self.source, 1, self.columns, out=self.block)


@dataclass
class Reads:
    """The tensors of a compiled plan and the work that keeps them current."""

    tensors: dict[FieldSlice, Tensor] = field(default_factory=dict[FieldSlice, Tensor])
    step_carriers: list[Carrier] = field(default_factory=list[Carrier])
    """Filled after every step."""
    reset_carriers: list[Carrier] = field(default_factory=list[Carrier])
    """Filled after every reset."""
    cleared: list[Tensor] = field(default_factory=list[Tensor])
    """`[N, width]`: acceleration-stage columns, set to 0 in rows that reset."""


def compile_slices(plan: ReadPlan, source_of: Callable[[str], Tensor]) -> Reads:
    """Makes every slice a view of the engine's memory, or part of a gathered block.

    Args:
        plan: The declared reads.
        source_of: Field name -> `[N, width]` view of the engine's memory.

    Raises:
        BackendError: If a slice names columns that the field does not have.
    """
    reads = Reads()
    gathered: dict[tuple[str, str], list[FieldSlice]] = {}
    cleared: dict[str, Tensor] = {}
    for item in dict.fromkeys((*plan.step, *plan.reset)):
        source = source_of(item.field)
        if not item.columns or max(item.columns) >= source.shape[1] or min(item.columns) < 0:
            raise BackendError(
                f"columns {item.columns} of field {item.field!r}: it has {source.shape[1]}"
            )
        view = strided_view(source, item)
        if view is not None:
            reads.tensors[item] = view
            if is_acceleration(item):
                cleared[item.field] = source
            continue
        phase = "reset" if item in plan.reset else "step"
        key = (item.field, "acceleration" if is_acceleration(item) else phase)
        gathered.setdefault(key, []).append(item)
    reads.cleared.extend(cleared.values())
    for (name, kind), items in gathered.items():
        carrier = _gather(source_of(name), items, reads.tensors, kind == "acceleration")
        reads.step_carriers.append(carrier)
        if kind == "reset":
            reads.reset_carriers.append(carrier)
        elif carrier.acceleration:
            reads.cleared.append(carrier.block)
    return reads


def _gather(
    source: Tensor,
    items: list[FieldSlice],
    tensors: dict[FieldSlice, Tensor],
    acceleration: bool,
) -> Carrier:
    """One block for all slices of a field, so that a refresh costs one launch."""
    columns = [column for item in items for column in item.columns]
    index = torch.tensor(columns, dtype=torch.int64, device=source.device)
    block = torch.zeros((source.shape[0], len(columns)), dtype=source.dtype, device=source.device)
    start = 0
    for item in items:
        part = block[:, start : start + len(item.columns)]
        tensors[item] = part.unflatten(1, item.shape) if item.shape else part[:, 0]
        start += len(item.columns)
    return Carrier(source, index, block, acceleration)


def strided_view(source: Tensor, item: FieldSlice) -> Tensor | None:
    """The slice as a view of `source` `[N, width]`, or None where its columns are irregular.

    Columns are regular if they form blocks of consecutive columns at equal distances, each block
    being the last dimensions of the slice's shape: three bodies' positions, every second joint.
    """
    columns, shape = list(item.columns), item.shape
    if math.prod(shape) != len(columns):
        raise BackendError(f"{len(columns)} columns of {item.field!r} cannot form shape {shape}")
    for split in range(len(shape) + 1):
        inner = math.prod(shape[split:])
        starts = columns[::inner]
        step = starts[1] - starts[0] if len(starts) > 1 else inner
        regular = [starts[0] + i * step + j for i in range(len(starts)) for j in range(inner)]
        if step > 0 and columns == regular:
            break
    else:
        return None
    strides: list[int] = []
    for axis in range(len(shape)):
        leading = step * math.prod(shape[axis + 1 : split])
        strides.append(leading if axis < split else math.prod(shape[axis + 1 :]))
    offset = source.storage_offset() + columns[0]
    return source.as_strided((source.shape[0], *shape), (source.stride(0), *strides), offset)

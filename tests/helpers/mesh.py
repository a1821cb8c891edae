"""A small robot with meshes, written file by file: two links on a base, as a stranger has it."""

import struct
from pathlib import Path

import numpy as np

_CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
_FACES = (
    *((0, 1, 3), (0, 3, 2), (4, 6, 7), (4, 7, 5), (0, 4, 5), (0, 5, 1)),
    *((2, 3, 7), (2, 7, 6), (0, 2, 6), (0, 6, 4), (1, 5, 7), (1, 7, 3)),
)  # fmt: skip


def write_stl(path: Path, half: tuple[float, float, float]) -> None:
    """A box as a binary STL file."""
    data = b"\0" * 80 + struct.pack("<I", len(_FACES))
    for face in _FACES:
        corners = (_CORNERS[list(face)] * half).astype("<f4")
        data += struct.pack("<3f", 0, 0, 0) + corners.tobytes() + b"\0\0"
    path.write_bytes(data)


def write_obj(path: Path, half: tuple[float, float, float]) -> None:
    """The same as an OBJ file."""
    lines = [f"v {x} {y} {z}" for x, y, z in _CORNERS * half]
    lines += [f"f {a + 1} {b + 1} {c + 1}" for a, b, c in _FACES]
    path.write_text("\n".join(lines) + "\n")


ARM_XML = """
<mujoco model="arm">
  <compiler angle="radian" autolimits="true" meshdir="meshes"/>
  <include file="parts/assets.xml"/>
  <worldbody>
    <body name="base" pos="0 0 .6">{root}
      <geom name="base" type="box" size=".05 .05 .05" mass="2"/>
      <body name="upper">
        <joint name="shoulder" axis="0 1 0" range="-2 2" damping=".3"/>
        <geom type="mesh" mesh="link" pos=".14 0 0" mass=".5"/>
        <geom type="mesh" mesh="cover" pos=".14 0 0" contype="0" conaffinity="0" mass="0"/>
        <body name="lower" pos=".24 0 0">
          <joint name="elbow" axis="0 1 0" range="-2 2"/>
          <geom name="tip" type="mesh" mesh="link" pos=".1 0 0" mass=".3"/>
          <site name="tool" pos=".1 0 0"/>
        </body>
      </body>
    </body>
  </worldbody>
  {actuators}
</mujoco>
"""
MOTORS = """<actuator>
  <motor name="elbow_motor" joint="elbow" gear="50" ctrlrange="-1 1"/>
  <motor name="shoulder_motor" joint="shoulder" gear="50" ctrlrange="-1 1"/>
</actuator>"""


def write_arm(folder: Path, *, free: bool = False, actuators: str = MOTORS) -> str:
    """Writes `arm.xml`, `parts/assets.xml` and `meshes/`; returns the path of the first.

    Its motors are listed in another order than its joints.
    """
    for name in ("meshes", "parts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    write_stl(folder / "meshes" / "link.stl", (0.08, 0.02, 0.02))
    write_obj(folder / "meshes" / "cover.obj", (0.09, 0.03, 0.03))
    (folder / "parts" / "assets.xml").write_text(
        '<mujoco><asset><mesh name="link" file="link.stl"/><mesh name="cover" file="cover.obj"/>'
        "</asset></mujoco>"
    )
    path = folder / "arm.xml"
    root = "<freejoint/>" if free else ""
    path.write_text(ARM_XML.format(root=root, actuators=actuators))
    return str(path)

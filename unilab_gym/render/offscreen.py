# pyright: basic
"""Draws states of a configured scene into arrays, without a window.

The scene is compiled again with all that is only seen; physics keeps its own model. A frame is a
function of the state alone, so that drawing changes nothing and the order of frames is free.
"""

from __future__ import annotations

import atexit
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unilab_gym.config import EnvCfg
from unilab_gym.engine import mujoco
from unilab_gym.errors import BackendError, BackendUnavailableError, ConfigError
from unilab_gym.render.gl import gl_available, open_context
from unilab_gym.scene import build_scene

__all__ = ["Camera", "OffscreenRenderer", "gl_available"]


@dataclass(frozen=True, kw_only=True)
class Camera:
    """Where the camera stands, relative to the robot; it keeps its direction in the world."""

    azimuth: float = 145.0
    """Direction of sight in degrees, counter-clockwise from world x; 180 looks along -x."""
    elevation: float = -17.0
    """Degrees that it looks above the horizon; negative looks down."""
    distance: float | None = None
    """m from the point looked at; None takes 2.9 times the robot's radius."""
    height: float | None = None
    """Height of the point looked at; None takes 0.55 of the default root height."""
    follow: bool = True
    """Whether it moves with the root body over the ground; never up and down."""

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ConfigError: If one is not finite or the distance is not positive.
        """
        numbers = (self.azimuth, self.elevation, self.distance or 1.0, self.height or 0.0)
        if not all(math.isfinite(number) for number in numbers):
            raise ConfigError(f"camera: every number must be finite, got {self}")
        if self.distance is not None and self.distance <= 0:
            raise ConfigError(f"camera: distance must be positive, got {self.distance}")


class OffscreenRenderer:
    """Draws one state at a time; the GL context is made by the first `draw`.

    Works from any thread, one at a time, beside other renderers, and leaves the GL context that
    was current as it was. What is not closed is closed when Python exits.

    Args:
        cfg: The environment whose scene is drawn.
        width: Pixels.
        height: Pixels.
        camera: Where to look from; None takes the default three-quarter view.
        supersample: Frames are drawn this many times larger and averaged, which smooths every
            edge; 1 takes half the time of 2.
    """

    def __init__(
        self,
        cfg: EnvCfg,
        width: int = 640,
        height: int = 480,
        camera: Camera | None = None,
        *,
        supersample: int = 2,
    ) -> None:
        """Compiles the scene; no GL yet."""
        for name, value in (("width", width), ("height", height), ("supersample", supersample)):
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ConfigError(f"{name} must be a positive integer, got {value!r}")
        self._gl: Any = None
        self._mjr: Any = None
        self._closed = False
        self.width, self.height, self.supersample = width, height, supersample
        scene = build_scene(cfg.scene, cfg.sim, cfg.sim_dt, visuals=True)
        self._model = scene.model
        self._rect = mujoco.MjrRect(0, 0, width * supersample, height * supersample)
        # The offscreen buffer is 640 x 480 by default; it holds no larger frame.
        self._model.vis.global_.offwidth = self._rect.width
        self._model.vis.global_.offheight = self._rect.height
        self._data = mujoco.MjData(self._model)
        self._scene = mujoco.MjvScene(self._model, maxgeom=self._model.ngeom + 100)
        self._option = mujoco.MjvOption()
        self._root = self._model.body(scene.index.root_body).id
        self._follow = (camera or Camera()).follow and scene.index.floating
        self._view = self._default_view(camera or Camera(), scene.index.default_qpos)

    def _default_view(self, camera: Camera, qpos: Sequence[float]) -> Any:
        """The free camera that looks at the robot in its default state."""
        self._pose(qpos)
        root = self._data.xpos[self._root]
        view = mujoco.MjvCamera()
        view.azimuth, view.elevation = camera.azimuth, camera.elevation
        view.lookat[:] = root
        view.lookat[2] = 0.55 * root[2] if camera.height is None else camera.height
        if camera.distance is not None:
            view.distance = camera.distance
        else:
            parts = self._model.geom_bodyid >= max(1, self._root)
            reach = np.linalg.norm(self._data.geom_xpos - root, axis=1) + self._model.geom_rbound
            view.distance = 2.9 * float(reach[parts].max(initial=0.1))
        return view

    def _pose(self, qpos: Sequence[float]) -> None:
        self._data.qpos[:] = qpos
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)

    def draw(self, qpos: Sequence[float], qvel: Sequence[float]) -> np.ndarray:
        """A frame `(height, width, 3)` uint8 that the caller owns.

        Args:
            qpos: Positions of one environment, as `backend.render_state(row)` gives them.
            qvel: Velocities.

        Raises:
            BackendUnavailableError: If no GL library can draw here; says what to install.
            BackendError: After `close`.
            ConfigError: If the state is not one of this scene.
        """
        if self._closed:
            raise BackendError("the renderer is closed: make a new one")
        if len(qpos) != self._model.nq or len(qvel) != self._model.nv:
            raise ConfigError(
                f"a state of this scene has {self._model.nq} positions and {self._model.nv} "
                f"velocities, got {len(qpos)} and {len(qvel)}"
            )
        if self._mjr is None:
            self._open()
        self._data.qvel[:] = qvel
        self._pose(qpos)
        if self._follow:
            self._view.lookat[:2] = self._data.xpos[self._root, :2]
        # First the camera: an infinite floor is drawn around where the scene's camera stands.
        mujoco.mjv_updateCamera(self._model, self._data, self._view, self._scene)
        mujoco.mjv_updateScene(
            self._model,
            self._data,
            self._option,
            None,
            self._view,
            mujoco.mjtCatBit.mjCAT_ALL,
            self._scene,
        )
        upside_down = np.empty((self._rect.height, self._rect.width, 3), dtype=np.uint8)
        with self._gl.as_current():
            mujoco.mjr_render(self._rect, self._scene, self._mjr)
            mujoco.mjr_readPixels(upside_down, None, self._rect, self._mjr)
        return np.ascontiguousarray(_reduce(upside_down, self.supersample)[::-1])

    def _open(self) -> None:
        gl = open_context(self._rect.width, self._rect.height)
        try:
            with gl.as_current():
                self._mjr = mujoco.MjrContext(
                    self._model, mujoco.mjtFontScale.mjFONTSCALE_100.value
                )
                mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._mjr)
        except mujoco.FatalError as error:
            gl.free()
            raise BackendUnavailableError(
                f"{type(gl).__module__} gave a context, but MuJoCo cannot draw in it: {error}"
            ) from error
        self._gl = gl
        _close_at_exit(self)

    def close(self) -> None:
        """Frees the GL context; a second call does nothing."""
        self._closed = True
        if self._mjr is not None:
            with self._gl.as_current():
                self._mjr.free()
            self._gl.free()
            self._mjr = self._gl = None

    def __enter__(self) -> OffscreenRenderer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_mjr", None) is not None:
            self.close()


def _reduce(image: np.ndarray, factor: int) -> np.ndarray:
    """Means of squares of `factor` x `factor` pixels."""
    if factor == 1:
        return image
    height, width, colors = image.shape
    rows = np.zeros((height // factor, width, colors), dtype=np.uint16)
    total = np.full((height // factor, width // factor, colors), factor**2 // 2, dtype=np.uint16)
    for i in range(factor):  # one slice at a time: 12 times faster than a mean over two axes
        rows += image[i::factor]
    for i in range(factor):
        total += rows[:, i::factor]
    return (total // factor**2).astype(np.uint8)


_OPEN: weakref.WeakSet[OffscreenRenderer] = weakref.WeakSet()


def _close_at_exit(renderer: OffscreenRenderer) -> None:
    """Contexts must be freed while PyOpenGL is whole, and before MuJoCo ends the EGL display.

    Exit handlers run last in, first out: MuJoCo adds its own when the first context is made.
    """
    if not _OPEN:
        atexit.unregister(_close_open)
        atexit.register(_close_open)
    _OPEN.add(renderer)


def _close_open() -> None:
    for renderer in list(_OPEN):
        renderer.close()

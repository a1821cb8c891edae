"""MuJoCo, imported here for the whole package: a MUJOCO_GL that names nothing is one clear error.

MuJoCo itself fails in its own import then, whoever asked for it and whether or not anything is
drawn. (MuJoCo 3.3 to 4.0)
"""

from __future__ import annotations

import os

from unilab_gym.errors import ConfigError, near

_LIBRARIES = ("egl", "osmesa", "glfw", "glx", "cgl", "wgl")
_SWITCHES = ("", "enable", "enabled", "on", "true", "1", "disable", "disabled", "off", "false", "0")


def check_gl() -> None:
    """Sees to it that MuJoCo can be imported.

    Raises:
        ConfigError: If the environment variable MUJOCO_GL names no library.
    """
    asked = os.environ.get("MUJOCO_GL", "").lower().strip()
    if asked not in (*_LIBRARIES, *_SWITCHES):
        raise ConfigError(
            f"the environment variable MUJOCO_GL: {near(asked, _LIBRARIES)}; unset it to let us "
            "choose"
        )


check_gl()

import mujoco  # noqa: E402
from mujoco.batch import DATA_FIELDS, Batch, SimulationError  # noqa: E402

__all__ = ["DATA_FIELDS", "Batch", "SimulationError", "check_gl", "mujoco"]

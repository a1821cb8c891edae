"""The Go2 configuration, its default state, and fresh processes without a display.

Nothing here skips: a machine that draws needs libegl1 or libosmesa6, and CI installs both.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import unilab_gym
from unilab_gym.registration import owner_config
from unilab_gym.scene import build_scene

TASK = "UniLab/Go2JoystickFlat-v0"
GL_VARIABLES = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM")


@pytest.fixture(scope="session")
def cfg():
    return owner_config(TASK, "mujoco").env


@pytest.fixture(scope="session")
def home(cfg):
    """Positions and velocities of the default state."""
    index = build_scene(cfg.scene, cfg.sim, cfg.sim_dt).index
    return np.array(index.default_qpos), np.zeros(index.nv)


@pytest.fixture
def run_script(tmp_path):
    """Runs Python text in a new process without a display; returns what it printed.

    The process must end well and say nothing on stderr.
    """

    def run(text, **variables):
        env = {key: value for key, value in os.environ.items() if key not in GL_VARIABLES}
        env["PYTHONPATH"] = str(Path(unilab_gym.__file__).resolve().parent.parent)
        done = subprocess.run(
            [sys.executable, "-c", text],
            env={**env, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout

    return run

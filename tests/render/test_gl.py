"""Which GL library is chosen, and what is said where there is none."""

import os

import pytest

from unilab_gym.errors import BackendUnavailableError
from unilab_gym.render import OffscreenRenderer, gl, gl_available

LINUX = pytest.mark.skipif("sys.platform != 'linux'", reason="the order of libraries on Linux")


@pytest.fixture
def fresh(monkeypatch):
    """As in a process where nothing is set and nothing was drawn."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gl, "_served_by_pyopengl", lambda: None)
    return monkeypatch


def test_this_machine_can_draw():
    found = gl_available()
    assert found, "install libegl1 or libosmesa6 (Debian): rendering cannot be tested without"
    assert found in ("egl", "osmesa", "glfw", "cgl")


@LINUX
def test_egl_then_osmesa_without_a_display(fresh):
    assert gl._candidates() == ("egl", "osmesa")
    fresh.setenv("DISPLAY", ":0")
    assert gl._candidates() == ("egl", "glfw", "osmesa")
    fresh.setattr(gl, "_obstacle", lambda name: "no device" if name == "egl" else "")
    fresh.delenv("DISPLAY")
    assert gl_available() == "osmesa"


@LINUX
def test_pyopengl_serves_one_library_a_process(fresh):
    fresh.setattr(gl, "_served_by_pyopengl", lambda: "osmesa")
    assert gl._candidates() == ("osmesa",)
    fresh.setenv("MUJOCO_GL", "egl")
    fresh.setattr(gl, "_obstacle", lambda name: "bound")
    with pytest.raises(BackendUnavailableError, match="bound to osmesa: start it again with"):
        gl.open_context(8, 8)


@pytest.mark.parametrize(("asked", "tried"), [("OSMesa ", ("osmesa",)), ("egl", ("egl",))])
def test_what_mujoco_gl_names_is_the_only_one_tried(fresh, asked, tried):
    fresh.setenv("MUJOCO_GL", asked)
    assert gl._candidates() == tried


def test_no_library_is_an_error_of_draw_alone(fresh, cfg, home):
    def refuse(names):
        raise OSError(f"{names[0]} is not there")

    fresh.setattr(gl, "_load", refuse)
    assert gl_available() is None
    renderer = OffscreenRenderer(cfg, 32, 24)
    with pytest.raises(BackendUnavailableError) as raised:
        renderer.draw(*home)
    for word in ("libEGL.so.1 is not there", "libOSMesa.so", "libegl1", "libosmesa6"):
        assert word in str(raised.value)
    renderer.close()


def test_switched_off(fresh, cfg, home):
    fresh.setenv("MUJOCO_GL", "disable")
    assert gl_available() is None
    with (
        OffscreenRenderer(cfg, 32, 24) as renderer,
        pytest.raises(BackendUnavailableError, match="MUJOCO_GL=disable switches rendering off"),
    ):
        renderer.draw(*home)
    fresh.setenv("MUJOCO_GL", "elg")
    with pytest.raises(BackendUnavailableError, match="'elg'; did you mean 'egl'"):
        gl._candidates()


@LINUX
def test_glfw_without_a_display_says_so(fresh):
    fresh.setenv("MUJOCO_GL", "glfw")
    with pytest.raises(BackendUnavailableError, match=r"neither DISPLAY nor.*Without MUJOCO_GL"):
        gl.open_context(8, 8)


def test_a_driver_that_fails_late_is_reported(fresh):
    def fail(name, width, height):
        raise RuntimeError(f"{name} has no memory for {width} x {height}")

    fresh.setattr(gl, "_obstacle", lambda name: "")
    fresh.setattr(gl, "_create", fail)
    with pytest.raises(BackendUnavailableError, match="has no memory for 8 x 6"):
        gl.open_context(8, 6)


def test_asking_changes_nothing(run_script):
    text = """
import os, sys
before = dict(os.environ)
from unilab_gym.render import gl_available
assert gl_available() and gl_available() == gl_available()
assert dict(os.environ) == before
print([name for name in ("OpenGL", "matplotlib", "imageio_ffmpeg") if name in sys.modules])
"""
    assert run_script(text) == "[]\n"
    assert "MUJOCO_GL" not in os.environ or os.environ["MUJOCO_GL"]  # this process is not touched

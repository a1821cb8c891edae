# pyright: basic
"""Which OpenGL library draws without a window, chosen when the first frame is drawn.

MuJoCo reads MUJOCO_GL once, at its own import, and takes GLFW where nothing is set; GLFW needs a
display. So contexts are made here, from MuJoCo's classes but by our choice:

1. MUJOCO_GL names one (`egl`, `osmesa`, `glfw`, `cgl`): that one or an error.
2. Linux: EGL, then GLFW where there is a display, then OSMesa. macOS: CGL, then GLFW.

PyOpenGL serves EGL or OSMesa, one of the two for the life of a process, and fixes which when it is
first imported. Therefore libraries are tried through ctypes before PyOpenGL is loaded, and after
that only the one it serves is left. (MuJoCo 4.0, PyOpenGL 3.1.10)
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
import warnings
from collections.abc import Generator
from typing import Any

from unilab_gym.errors import BackendUnavailableError, near

_OFF = ("disable", "disabled", "off", "false", "0")
_AUTO = ("", "enable", "enabled", "on", "true", "1")
_NAMES = {"egl": "egl", "osmesa": "osmesa", "glfw": "glfw", "glx": "glfw", "cgl": "cgl"}
_EGL_LIBRARIES = ("libEGL.so.1", "libEGL.so")
_OSMESA_LIBRARIES = ("libOSMesa.so", "libOSMesa.so.8", "libOSMesa.so.6")

_EGL_PLATFORM_DEVICE = 0x313F
_EGL_NONE, _EGL_SURFACE_TYPE, _EGL_RENDERABLE_TYPE = 0x3038, 0x3033, 0x3040
_EGL_PBUFFER_BIT, _EGL_OPENGL_BIT = 0x0001, 0x0008
_GL_RGBA = 0x1908


def gl_available() -> str | None:
    """Name of the library that the next renderer would draw with; None if none can.

    Takes milliseconds, opens no window, leaves PyOpenGL and the environment variables alone.
    """
    try:
        names = _candidates()
    except BackendUnavailableError:
        return None
    return next((name for name in names if not _obstacle(name)), None)


def open_context(width: int, height: int) -> Any:
    """A GL context with MuJoCo's interface (`as_current`, `free`) that never frees itself.

    MuJoCo's contexts free themselves when collected, which may be before what was drawn with
    them is freed; whoever opens one here calls `free`.

    Raises:
        BackendUnavailableError: If no library can draw; says why each cannot and what to install.
    """
    obstacles: dict[str, str] = {}
    for name in _candidates():
        obstacles[name] = _obstacle(name)
        if obstacles[name]:
            continue
        try:
            return _create(name, width, height)
        except Exception as error:  # drivers fail in ways that no list of types covers
            obstacles[name] = f"{type(error).__name__}: {error}"
    raise BackendUnavailableError(_explain(obstacles))


def _candidates() -> tuple[str, ...]:
    """The libraries to try, in order.

    Raises:
        BackendUnavailableError: If MUJOCO_GL switches rendering off or names none that there is.
    """
    asked = os.environ.get("MUJOCO_GL", "").lower().strip()
    if asked in _OFF:
        raise BackendUnavailableError(
            f"MUJOCO_GL={asked} switches rendering off: unset it, or set it to egl or osmesa"
        )
    if asked not in _AUTO:
        if asked not in _NAMES:
            raise BackendUnavailableError(f"MUJOCO_GL: {near(asked, _NAMES)}")
        return (_NAMES[asked],)
    if sys.platform == "darwin":
        return ("cgl", "glfw")
    names = ("egl", "glfw", "osmesa") if _has_display() else ("egl", "osmesa")
    served = _served_by_pyopengl()
    return tuple(name for name in names if name in (served or name, "glfw"))


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _served_by_pyopengl() -> str | None:
    """What PyOpenGL is bound to, by its import or by the user; None while it is free."""
    for name in ("egl", "osmesa"):
        if f"mujoco.{name}" in sys.modules:
            return name
    asked = os.environ.get("PYOPENGL_PLATFORM", "").lower()
    return asked if asked in ("egl", "osmesa") else None


def _obstacle(name: str) -> str:
    """Why a library cannot draw here; empty where it can."""
    try:
        if name == "egl":
            return _egl_obstacle()
        if name == "osmesa":
            return _osmesa_obstacle()
        if name == "glfw":
            return _glfw_obstacle()
        importlib.import_module(f"mujoco.{name}")
    except (OSError, ImportError, AttributeError) as error:
        return str(error)
    return ""


def _load(names: tuple[str, ...]) -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError(f"{names[0]} is not there, or cannot be loaded")


def _egl_obstacle() -> str:
    """Opens a display on each device until one offers desktop OpenGL.

    Displays stay initialized: a device has one for the whole process, and terminating it would
    take it away from whoever else draws with it.
    """
    egl = _load(_EGL_LIBRARIES)
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    address = {
        name: egl.eglGetProcAddress(name)
        for name in (b"eglQueryDevicesEXT", b"eglGetPlatformDisplayEXT")
    }
    if not all(address.values()):
        return "no driver can draw without a display (EGL_EXT_platform_device)"
    integer, pointer = ctypes.c_int, ctypes.c_void_p
    query = ctypes.CFUNCTYPE(ctypes.c_uint, integer, pointer, pointer)(
        address[b"eglQueryDevicesEXT"]
    )
    display_of = ctypes.CFUNCTYPE(pointer, ctypes.c_uint, pointer, pointer)(
        address[b"eglGetPlatformDisplayEXT"]
    )
    egl.eglInitialize.argtypes = (pointer, pointer, pointer)
    egl.eglChooseConfig.argtypes = (pointer, pointer, pointer, integer, pointer)
    wanted = (integer * 5)(
        *(_EGL_SURFACE_TYPE, _EGL_PBUFFER_BIT),
        *(_EGL_RENDERABLE_TYPE, _EGL_OPENGL_BIT),
        _EGL_NONE,
    )
    devices, found = (pointer * 16)(), integer(0)
    if not query(len(devices), devices, ctypes.byref(found)) or not found.value:
        return "it finds no device"
    for device in devices[: found.value]:
        display, configs = display_of(_EGL_PLATFORM_DEVICE, device, None), integer(0)
        if (
            display
            and egl.eglInitialize(display, None, None)
            and egl.eglChooseConfig(display, wanted, None, 0, ctypes.byref(configs))
            and configs.value
        ):
            return ""
    return f"none of its {found.value} devices offers OpenGL"


def _osmesa_obstacle() -> str:
    osmesa = _load(_OSMESA_LIBRARIES)
    osmesa.OSMesaCreateContextExt.restype = ctypes.c_void_p
    osmesa.OSMesaDestroyContext.argtypes = (ctypes.c_void_p,)
    context = osmesa.OSMesaCreateContextExt(_GL_RGBA, 24, 8, 0, None)
    if not context:
        return "it makes no context"
    osmesa.OSMesaDestroyContext(context)
    return ""


def _glfw_obstacle() -> str:
    if sys.platform == "linux" and not _has_display():
        return "it needs a display, and neither DISPLAY nor WAYLAND_DISPLAY is set"
    glfw: Any = importlib.import_module("glfw")
    try:
        with _warnings_as_errors():
            return "" if glfw.init() else "it does not start"
    except Warning as error:
        return str(error)


@contextlib.contextmanager
def _warnings_as_errors() -> Generator[None]:
    """GLFW warns where it means that it failed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _create(name: str, width: int, height: int) -> Any:
    base: Any = importlib.import_module(f"mujoco.{name}").GLContext
    owned = type(f"Owned{base.__name__}", (base,), {"__del__": lambda self: None})
    with _warnings_as_errors():
        return owned(width, height)


def _explain(obstacles: dict[str, str]) -> str:
    asked = os.environ.get("MUJOCO_GL")
    why = "; ".join(f"{name}: {reason}" for name, reason in obstacles.items())
    text = f"no OpenGL library can draw here{f' (MUJOCO_GL={asked})' if asked else ''}. {why}."
    if sys.platform == "linux":
        text += (
            " Install one: on Debian and Ubuntu `apt-get install libegl1` or `libosmesa6`; in an"
            " NVIDIA container add `graphics` to NVIDIA_DRIVER_CAPABILITIES."
        )
    served = _served_by_pyopengl()
    if asked in ("egl", "osmesa") and served not in (asked, None):
        text += f" This process is bound to {served}: start it again with MUJOCO_GL={asked}."
    elif asked:
        text += " Without MUJOCO_GL every library is tried."
    return text

# pyright: basic
"""Plots of a rollout, drawn without a display and without touching matplotlib's global state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from unilab_gym.errors import ConfigError

__all__ = ["plot_velocity_tracking"]

_PANELS = (
    (r"forward $v_x$", "m/s"),
    (r"sideways $v_y$", "m/s"),
    (r"yaw rate $\omega_z$", "rad/s"),
)
_COMMANDED, _MEASURED, _GREY = "#333333", "#d1495b", "#666666"


def plot_velocity_tracking(
    path: str | Path, time: Any, commanded: Any, measured: Any, title: str = "Velocity tracking"
) -> None:
    """Writes a PNG of three panels: commanded and measured velocity over time.

    Args:
        path: The file, `*.png`; its folder is made, and an old file is replaced at the end.
        time: `[T]` in s.
        commanded: `[T, 3]`: v_x and v_y in m/s, yaw rate in rad/s, in the robot's frame.
        measured: `[T, 3]`, the same; what is not finite leaves a gap.
        title: Above the panels.

    Raises:
        ImportError: If matplotlib is not installed; names the extra that brings it.
        ConfigError: If shapes do not fit, or the file is no PNG.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ConfigError(f"a plot is a .png file, got {path.name!r}")
    times, wanted, got = (np.asarray(item, dtype=float) for item in (time, commanded, measured))
    shape = (times.size, 3)
    if times.ndim != 1 or not times.size or wanted.shape != shape or got.shape != shape:
        raise ConfigError(
            f"time [T], commanded [T, 3] and measured [T, 3] are needed, got {times.shape}, "
            f"{wanted.shape} and {got.shape}"
        )
    figure = _figure(times, wanted, got, title)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(partial, format="png", dpi=120)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _figure(times: np.ndarray, wanted: np.ndarray, got: np.ndarray, title: str) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'plots need matplotlib, which an extra brings: pip install "unilab_gym[render]"'
        ) from error
    # pyplot would keep the figure and pick a backend for the whole process; a Figure does neither.
    figure = Figure(figsize=(9.0, 7.0), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14)
    panels = figure.subplots(3, 1, sharex=True)
    for i, (axes, (name, unit)) in enumerate(zip(panels, _PANELS, strict=True)):
        axes.plot(times, wanted[:, i], color=_COMMANDED, linewidth=1.8, label="commanded")
        axes.plot(times, got[:, i], color=_MEASURED, linewidth=1.3, alpha=0.9, label="measured")
        axes.set_ylabel(f"{name}  [{unit}]", fontsize=11)
        axes.set_title(_error(wanted[:, i], got[:, i], unit), loc="right", fontsize=9, color=_GREY)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.margins(x=0.0, y=0.1)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        _widen(axes)
    above = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
    panels[0].legend(**above, ncols=2, fontsize=10, frameon=False)
    panels[-1].set_xlabel("time [s]", fontsize=11)
    return figure


def _error(wanted: np.ndarray, got: np.ndarray, unit: str) -> str:
    difference = (got - wanted)[np.isfinite(got - wanted)]
    if not difference.size:
        return "nothing measured"
    mean, rms = np.abs(difference).mean(), np.sqrt((difference**2).mean())
    return f"mean error {mean:.3f}, RMS {rms:.3f} {unit}"


def _widen(axes: Any, least: float = 0.4) -> None:
    """Keeps noise around a constant from filling the panel."""
    low, high = axes.get_ylim()
    missing = (least - (high - low)) / 2
    if missing > 0:
        axes.set_ylim(low - missing, high + missing)

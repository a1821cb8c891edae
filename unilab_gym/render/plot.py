# pyright: basic
"""Plots of a rollout, drawn without a display and without touching matplotlib's global state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unilab_gym.errors import ConfigError

__all__ = ["plot_series", "plot_velocity_tracking"]

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
    _save(_figure(times, wanted, got, title), path)


def plot_series(
    path: str | Path, time: Any, series: Mapping[str, Any], title: str, unit: str = ""
) -> None:
    """Writes a PNG with one small panel per series: reward terms, or commands.

    Args:
        path: The file, `*.png`; its folder is made, and an old file is replaced at the end.
        time: `[T]` in s.
        series: Name -> `[T]`; what is not finite leaves a gap.
        title: Above the panels.
        unit: Of every series, for the labels.

    Raises:
        ImportError: If matplotlib is not installed; names the extra that brings it.
        ConfigError: If there is no series, shapes do not fit, or the file is no PNG.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ConfigError(f"a plot is a .png file, got {path.name!r}")
    times = np.asarray(time, dtype=float)
    values = {name: np.asarray(item, dtype=float) for name, item in series.items()}
    if not values or times.ndim != 1 or not times.size:
        raise ConfigError(f"time [T] and a series are needed, got {times.shape}, {list(values)}")
    for name, item in values.items():
        if item.shape != times.shape:
            raise ConfigError(f"series {name!r} must be {list(times.shape)}, got {item.shape}")
    columns = 1 if len(values) < 4 else 2
    lines = -(-len(values) // columns)
    figure = _blank((4.5 * columns + 2.0, 1.5 * lines + 1.2), title)
    panels = figure.subplots(lines, columns, sharex=True, squeeze=False).T.ravel()
    for axes, (name, item) in zip(panels, values.items(), strict=False):
        axes.plot(times, item, color=_MEASURED, linewidth=1.2)
        axes.set_title(f"{name} [{unit}]" if unit else name, loc="left", fontsize=9)
        finite = item[np.isfinite(item)]
        mean = f"mean {finite.mean():.4g}" if finite.size else "nothing measured"
        axes.set_title(mean, loc="right", fontsize=9, color=_GREY)
        _dress(axes)
    for axes in panels[len(values) :]:
        axes.set_visible(False)
    panels[lines - 1].set_xlabel("time [s]", fontsize=10)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(partial, format="png", dpi=120)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _blank(size: tuple[float, float], title: str) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'plots need matplotlib, which an extra brings: pip install "unilab_gym[render]"'
        ) from error
    # pyplot would keep the figure and pick a backend for the whole process; a Figure does neither.
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14)
    return figure


def _dress(axes: Any) -> None:
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.margins(x=0.0, y=0.1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _figure(times: np.ndarray, wanted: np.ndarray, got: np.ndarray, title: str) -> Any:
    figure = _blank((9.0, 7.0), title)
    panels = figure.subplots(3, 1, sharex=True)
    for i, (axes, (name, unit)) in enumerate(zip(panels, _PANELS, strict=True)):
        axes.plot(times, wanted[:, i], color=_COMMANDED, linewidth=1.8, label="commanded")
        axes.plot(times, got[:, i], color=_MEASURED, linewidth=1.3, alpha=0.9, label="measured")
        axes.set_ylabel(f"{name}  [{unit}]", fontsize=11)
        axes.set_title(_error(wanted[:, i], got[:, i], unit), loc="right", fontsize=9, color=_GREY)
        _dress(axes)
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

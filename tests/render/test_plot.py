"""The plot of a velocity-tracking rollout."""

import sys

import imageio.v2 as imageio
import numpy as np
import pytest

from unilab_gym.errors import ConfigError
from unilab_gym.render import plot, plot_series, plot_velocity_tracking

TIME = np.arange(100) * 0.02
COMMANDED = np.stack([np.where(TIME < 1, 1.0, 0.0), 0 * TIME, np.sin(TIME)], 1)
MEASURED = COMMANDED + 0.1


def test_a_png_of_the_data(tmp_path):
    path = tmp_path / "new" / "tracking.png"
    plot_velocity_tracking(path, TIME, COMMANDED, MEASURED, title="Go2, row 0")
    first = path.read_bytes()
    assert first.startswith(b"\x89PNG\r\n\x1a\n")
    image = imageio.imread(path)
    assert image.shape[:2] == (840, 1080)
    assert image.std() > 10
    plot_velocity_tracking(path, TIME, COMMANDED, MEASURED, title="Go2, row 0")
    assert path.read_bytes() == first
    for i in range(3):  # every panel shows its own column
        changed = MEASURED.copy()
        changed[:, i] -= 0.2 * TIME
        plot_velocity_tracking(path, TIME, COMMANDED, changed, title="Go2, row 0")
        rows = np.nonzero((imageio.imread(path) != image).any((1, 2)))[0]
        assert 840 * i / 3 < rows.mean() < 840 * (i + 1) / 3
    assert [item.name for item in path.parent.iterdir()] == ["tracking.png"]


def test_panels_and_errors():
    measured = MEASURED.copy()
    measured[5, 0], measured[:, 2] = np.nan, np.inf
    figure = plot._figure(TIME, COMMANDED, measured, "title")
    panels = figure.axes
    assert [axes.get_ylabel().split("[")[1] for axes in panels] == ["m/s]", "m/s]", "rad/s]"]
    for i, axes in enumerate(panels):
        commanded, shown = axes.get_lines()
        assert np.array_equal(commanded.get_ydata(), COMMANDED[:, i])
        assert np.array_equal(shown.get_ydata(), measured[:, i], equal_nan=True)
    texts = [axes.get_title(loc="right") for axes in panels]
    assert texts == ["mean error 0.100, RMS 0.100 m/s"] * 2 + ["nothing measured"]
    low, high = panels[1].get_ylim()
    assert high - low >= 0.4, "a constant is not blown up"


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ConfigError, match=r"\(100,\), \(100, 3\) and \(99, 3\)"):
        plot_velocity_tracking(tmp_path / "a.png", TIME, COMMANDED, MEASURED[1:])
    with pytest.raises(ConfigError, match=r"a .png file, got 'a.pdf'"):
        plot_velocity_tracking(tmp_path / "a.pdf", TIME, COMMANDED, MEASURED)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "unilab_gym\[render\]"'):
        plot_velocity_tracking(tmp_path / "a.png", TIME, COMMANDED, MEASURED)


def test_matplotlib_is_left_as_it_was(run_script):
    text = """
import sys
import matplotlib
def settings():  # reading the backend would choose one
    return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}
matplotlib.rcParams["axes.edgecolor"] = "red"
before = settings()
from unilab_gym.render import plot_velocity_tracking
plot_velocity_tracking("a.png", [0.0, 1.0], [[0.0] * 3] * 2, [[1.0] * 3] * 2)
assert settings() == before
assert matplotlib.get_backend(auto_select=False) is None
assert "matplotlib.pyplot" not in sys.modules
"""
    run_script(text)


def test_one_panel_per_series(tmp_path):
    time = [0.0, 0.02, 0.04]
    series = {f"term_{i}": [float(i), 1.0, float("nan")] for i in range(5)}
    path = tmp_path / "new" / "rewards.png"
    plot_series(path, time, series, "Rewards", "1/s")
    assert path.stat().st_size > 5_000
    assert [item.name for item in path.parent.iterdir()] == ["rewards.png"]
    for wrong, words in (
        ({}, "a series are needed"),
        ({"a": [1.0]}, r"series 'a' must be \[3\], got \(1,\)"),
    ):
        with pytest.raises(ConfigError, match=words):
            plot_series(path, time, wrong, "x")
    with pytest.raises(ConfigError, match=r"a plot is a \.png file"):
        plot_series(tmp_path / "x.pdf", time, series, "x")

"""What is noted of the first environment while a policy plays: for plots and the video."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from unilab_gym.cli.text import Progress
from unilab_gym.errors import BackendUnavailableError
from unilab_gym.math import quat_rotate_inverse

if TYPE_CHECKING:
    from torch import Tensor

    from unilab_gym.vector_env import UnilabVectorEnv

VELOCITY = ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")
"""Components of a command that measured velocities are drawn against."""


class Trace:
    """Commands, base velocity and reward terms of environment 0, and frames.

    Only reads the state: the trajectory is the same without it. Notes end with the first episode.

    Args:
        recorder: A `VideoRecorder`, or None.
        frames: How many frames to take at the most.
        progress: A line on stderr now and then.
    """

    def __init__(self, recorder: Any, frames: int, progress: Progress) -> None:
        """Starts empty."""
        self.recorder: Any = recorder
        self.video_problem = "" if recorder is not None else "switched off"
        self.commands: list[list[float]] = []
        self.velocities: list[list[float]] = []
        self.rewards: list[list[float]] = []
        self._frames, self._progress = frames, progress
        self._ended = False
        self._calls = 0

    def __call__(self, env: UnilabVectorEnv) -> None:
        """Notes the boundary after the reset and after each step."""
        if self._calls:
            self._progress.advance()
        self._calls += 1
        if self.recorder is not None and self._calls <= self._frames:
            self._film()
        runtime = env.runtime
        if self._calls > 1:
            state = runtime.state
            self._ended |= bool(state.terminated[0] | state.truncated[0])
        if self._ended:  # the views show the next episode already
            return
        if self._calls > 1:
            self.rewards.append(_row(runtime.rt.rewards.components))
        values = [_row(term.value) for term in runtime.commands.terms.values()]
        self.commands.append([number for value in values for number in value])
        if runtime.index.floating:
            qpos, qvel = runtime.rt.views.qpos[0], runtime.rt.views.qvel[0]
            linear = quat_rotate_inverse(qpos[3:7], qvel[:3])
            self.velocities.append([float(linear[0]), float(linear[1]), float(qvel[5])])

    def _film(self) -> None:
        try:
            self.recorder.capture()
        except BackendUnavailableError as error:  # no GL library: everything else goes on
            self.video_problem, self.recorder = str(error), None


def _row(tensor: Tensor) -> list[float]:
    return cast("list[float]", tensor[0].tolist())


def write_plots(trace: Trace, env: UnilabVectorEnv, stem: Path, title: str) -> list[Path]:
    """Velocities against commands (or the commands alone), and reward terms per second.

    Args:
        trace: What was noted.
        env: The environment, for names and the control step.
        stem: The files' common beginning.
        title: Above the panels.

    Returns:
        The files.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from unilab_gym.render.plot import plot_series, plot_velocity_tracking

    names = [
        (name, part)
        for name, term in env.runtime.commands.terms.items()
        for part in (term.component_names or map(str, range(term.value.shape[1])))
    ]
    files: list[Path] = []
    times = [step * env.step_dt for step in range(len(trace.commands))]
    columns = [next((i for i, n in enumerate(names) if n[1] == part), -1) for part in VELOCITY]
    if trace.velocities and min(columns) >= 0:
        wanted = [[row[column] for column in columns] for row in trace.commands]
        files.append(stem.with_name(f"{stem.name}.png"))
        plot_velocity_tracking(files[-1], times, wanted, trace.velocities, title=title)
    elif names:
        series = {f"{n}/{p}": [row[i] for row in trace.commands] for i, (n, p) in enumerate(names)}
        files.append(stem.with_name(f"{stem.name}.png"))
        plot_series(files[-1], times, series, f"Commands: {title}")
    terms = env.runtime.rt.rewards.names
    if terms and trace.rewards:
        series = {name: [row[i] for row in trace.rewards] for i, name in enumerate(terms)}
        files.append(stem.with_name(f"{stem.name}_rewards.png"))
        plot_series(files[-1], times[1:], series, f"Reward terms: {title}", "1/s")
    return files

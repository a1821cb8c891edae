# pyright: basic
"""Videos of rollouts at real speed: frames stream to ffmpeg, the file appears when it is whole."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from unilab_gym.errors import BackendError, ConfigError
from unilab_gym.render.offscreen import Camera, OffscreenRenderer

__all__ = ["VideoRecorder", "VideoWriter", "write_video"]

_CODING = (
    *("-c:v", "libx264", "-preset", "fast", "-crf", "20", "-pix_fmt", "yuv420p"),
    *("-vf", "crop=trunc(iw/2)*2:trunc(ih/2)*2:0:0"),  # yuv420p halves both sides
    *("-movflags", "+faststart", "-f", "mp4"),
)


def write_video(path: str | Path, frames: Iterable[np.ndarray], fps: float) -> None:
    """Writes frames into an mp4, one at a time.

    Args:
        path: The file, `*.mp4`; its folder is made.
        frames: `(H, W, 3)` uint8, all of one size; an odd last row or column is cut off.
        fps: Frames per second of playback.

    Raises:
        ImportError: If ffmpeg is not installed; names the extra that brings it.
        ConfigError: If there is no frame, or one is of the wrong kind.
        BackendError: If ffmpeg fails; holds its words.
    """
    with VideoWriter(path, fps) as writer:
        for frame in frames:
            writer.append(frame)


class VideoRecorder:
    """Films rows of a vector environment; several rows are tiled, 9 as a 3 x 3 grid.

    One `capture` a step gives a video at real speed. It only reads the state, so the trajectory
    is the same without it::

        with VideoRecorder(env, "walk.mp4", rows=range(9)) as video:
            for _ in range(500):
                obs, *_ = env.step(policy(obs))
                video.capture()

    Nothing is left behind where the block ends with an exception.

    Args:
        env: A `UnilabVectorEnv`, wrapped or not.
        path: The file, `*.mp4`; its folder is made.
        rows: Which environments, left to right, top to bottom.
        width: Pixels of one environment's picture; None takes 640, or 320 of several.
        height: None takes 480, or 240 of several.
        camera: Where to look from; None takes the default three-quarter view.
        supersample: See `OffscreenRenderer`; None takes 2, or 1 of several.

    Attributes:
        frames: How many frames were captured.
    """

    def __init__(
        self,
        env: Any,
        path: str | Path,
        rows: Sequence[int] = (0,),
        *,
        width: int | None = None,
        height: int | None = None,
        camera: Camera | None = None,
        supersample: int | None = None,
    ) -> None:
        """Compiles the scene and finds ffmpeg; the first `capture` starts it and makes the GL."""
        self._env = env.unwrapped
        self._rows = tuple(int(row) for row in rows)
        if not self._rows:
            raise ConfigError("rows: at least one environment is needed")
        for row in self._rows:
            if not 0 <= row < self._env.num_envs:
                raise ConfigError(f"rows: {row} is not in 0..{self._env.num_envs - 1}")
        several = len(self._rows) > 1
        self._renderer = OffscreenRenderer(
            self._env.cfg,
            width or (320 if several else 640),
            height or (240 if several else 480),
            camera,
            supersample=supersample or (1 if several else 2),
        )
        self._columns = math.ceil(math.sqrt(len(self._rows)))
        self._writer = VideoWriter(path, self._env.metadata["render_fps"])

    @property
    def frames(self) -> int:
        """How many frames were captured."""
        return self._writer.frames

    def capture(self) -> None:
        """Draws the rows' present state as the next frame.

        Raises:
            BackendUnavailableError: If no GL library can draw here; says what to install.
            BackendError: If ffmpeg has ended; holds its words.
        """
        render_state = self._env.runtime.backend.render_state
        width, height = self._renderer.width, self._renderer.height
        lines = math.ceil(len(self._rows) / self._columns)
        frame = np.zeros((lines * height, self._columns * width, 3), dtype=np.uint8)
        for number, row in enumerate(self._rows):
            line, column = divmod(number, self._columns)
            frame[line * height :, column * width :][:height, :width] = self._renderer.draw(
                *render_state(row)
            )
        self._writer.append(frame)

    def close(self) -> None:
        """Finishes the file; a second call does nothing.

        Raises:
            ConfigError: If nothing was captured.
            BackendError: If ffmpeg failed.
        """
        self._renderer.close()
        self._writer.close()

    def abort(self) -> None:
        """Stops without a file; a second call does nothing."""
        self._renderer.close()
        self._writer.abort()

    @property
    def path(self) -> Path:
        """The file."""
        return self._writer.path

    def __enter__(self) -> VideoRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._renderer.close()
        self._writer.__exit__(kind, *rest)


class VideoWriter:
    """An ffmpeg process that frames are handed to: H.264, yuv420p, playable everywhere.

    It writes beside `path` and takes its place in `close`. Left by an exception, forgotten, or at
    the end of Python, it stops and leaves nothing.

    Args:
        path: The file, `*.mp4`; its folder is made.
        fps: Frames per second of playback.

    Attributes:
        frames: How many frames were handed over.
    """

    def __init__(self, path: str | Path, fps: float) -> None:
        """Finds ffmpeg; the first frame starts it."""
        self.path = Path(path)
        if self.path.suffix.lower() != ".mp4":
            raise ConfigError(f"a video is an .mp4 file, got {self.path.name!r}")
        if not (isinstance(fps, (int, float)) and math.isfinite(fps) and fps > 0):
            raise ConfigError(f"fps must be a positive number, got {fps!r}")
        # 33.333333, which an environment's metadata holds, means 100/3.
        self._fps = Fraction(fps).limit_denominator(1000)
        self._ffmpeg = _ffmpeg()
        self._partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.{id(self):x}.tmp")
        self._process: Any = None
        self._words: Any = None
        self._shape: tuple[int, ...] = ()
        self._closed = False
        self.frames = 0

    def append(self, frame: np.ndarray) -> None:
        """Hands over one frame.

        Raises:
            ConfigError: If it is not `(H, W, 3)` uint8 of the first frame's size.
            BackendError: If ffmpeg has ended, or this is closed.
        """
        if self._closed:
            raise BackendError("the video is closed: make a new one")
        frame = np.asarray(frame)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise ConfigError(f"a frame is (H, W, 3) uint8, got {frame.shape} {frame.dtype}")
        if min(frame.shape[:2]) < 2:
            raise ConfigError(f"a frame has two pixels a side at the least, got {frame.shape}")
        if self._process is None:
            self._process = self._start(frame.shape)
        if frame.shape != self._shape:
            raise ConfigError(f"the first frame was {self._shape}, this one is {frame.shape}")
        try:
            self._process.stdin.write(np.ascontiguousarray(frame).data)
        except OSError as error:
            self._process.wait()
            raise BackendError(f"ffmpeg ended early: {self._said()}") from error
        self.frames += 1

    def _start(self, shape: tuple[int, ...]) -> Any:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._shape = shape
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        size = f"{shape[1]}x{shape[0]}"
        source = f"-f rawvideo -pix_fmt rgb24 -s {size} -r {self._fps} -i -".split()
        process = subprocess.Popen(
            [self._ffmpeg, "-y", "-v", "error", *source, *_CODING, str(self._partial)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._words,
            start_new_session=True,  # Ctrl-C is for the rollout: it ends this in its own time
        )
        self._abandon = weakref.finalize(self, _end, process, self._words, self._partial)
        return process

    def _said(self) -> str:
        self._words.seek(0)
        text = self._words.read().decode(errors="replace").strip()
        return text or f"exit status {self._process.returncode}, without a word"

    def close(self) -> None:
        """Finishes the file; a second call does nothing.

        Raises:
            ConfigError: If there was no frame.
            BackendError: If ffmpeg failed; the file at `path`, if any, is the old one.
        """
        if self._closed:
            return
        self._closed = True
        if self._process is None:
            raise ConfigError(f"{self.path}: a video needs a frame")
        try:
            self._process.communicate()
            if self._process.returncode:
                raise BackendError(f"ffmpeg cannot write {self.path}: {self._said()}")
            os.replace(self._partial, self.path)
        finally:
            self._abandon()

    def abort(self) -> None:
        """Stops without a file; a second call does nothing."""
        self._closed = True
        if self._process is not None:
            self._abandon()

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _ffmpeg() -> str:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise ImportError(
            'videos need ffmpeg, which an extra brings: pip install "unilab_gym[render]"'
        ) from error
    return imageio_ffmpeg.get_ffmpeg_exe()


def _end(process: Any, words: Any, partial: Path) -> None:
    """Ends the process where it still runs, and removes what it wrote."""
    if process.poll() is None:
        process.kill()
        process.wait()
    for stream in (process.stdin, words):
        try:
            stream.close()
        except OSError:  # what ffmpeg did not take
            continue
    partial.unlink(missing_ok=True)

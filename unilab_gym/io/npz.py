"""NPZ files that are whole or not there, and the writer behind the episode recorder.

A NumPy leaf: nothing here runs in a step.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = Any


def write_npz(path: str | Path, arrays: Mapping[str, Any]) -> Path:
    """Writes arrays (or CPU tensors) to a file, atomically.

    The data goes to a temporary file beside it, which takes the name when it is complete: a reader
    sees the old file or the new one, never a part.

    Returns:
        The path.

    Raises:
        OSError: If the folder cannot be written; no temporary file stays.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            contents: Any = {name: np.asarray(value) for name, value in arrays.items()}
            np.savez(file, **contents)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return path


def read_npz(path: str | Path) -> dict[str, Array]:
    """Every array of a file by name; nothing that could run code is loaded."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@dataclass(frozen=True)
class Layout:
    """Columns of a recorded step: before and after the step, and what it brought."""

    boundary: tuple[tuple[str, int], ...]
    """(name, width) of what is recorded at a boundary: `obs/<group>`, `qpos`, `qvel`."""
    actions: int
    """Width of the action."""

    @property
    def before(self) -> int:
        """Width of one boundary."""
        return sum(width for _, width in self.boundary)

    @property
    def width(self) -> int:
        """Both boundaries, action, reward, terminated, truncated, and whether it began there."""
        return 2 * self.before + self.actions + 4


class EpisodeWriter:
    """Takes chunks of steps and writes the episodes that end in them, in a thread of its own.

    One file a chunk, `episodes_<number>.npz`: S steps of E episodes, one after the other::

        obs/<group> [S, D], qpos [S, nq], qvel [S, nv]   what the action was chosen on
        final/obs/<group>, final/qpos, final/qvel [E, .]  where the episode ended
        actions [S, A], rewards [S], terminated [S], truncated [S]
        lengths [E], rows [E], ends [E]   steps, environment, control step of the run at its end

    An episode may span chunks; one that does not end is not written.
    """

    def __init__(self, folder: str | Path, layout: Layout, rows: int) -> None:
        """Makes the folder and starts the thread.

        Raises:
            OSError: If the folder cannot be made, or holds episodes of another run.
        """
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.glob("episodes_*.npz")):
            raise FileExistsError(f"{self.folder} holds episodes already: name another folder")
        self._layout = layout
        self._parts: list[list[Array]] = [[] for _ in range(rows)]
        self._live = [False] * rows
        self._files = 0
        self._steps = 0
        self._error: BaseException | None = None
        self._queue: queue.Queue[tuple[Any, Any, Callable[[], None]] | None]
        self._queue = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="episode-writer", daemon=True)
        self._thread.start()

    def put(self, chunk: Any, copied: Any, done: Callable[[], None]) -> None:
        """Hands over a chunk `[steps, rows, width]`; returns at once.

        Args:
            chunk: An array or a CPU tensor.
            copied: A CUDA event after which it is filled, for the thread to wait for; or None.
            done: Called when it may be overwritten.

        Raises:
            OSError: What the writer met with before; nothing more is written.
        """
        self._raise()
        self._queue.put((chunk, copied, done))

    def close(self) -> None:
        """Writes what was handed over and ends the thread.

        Raises:
            OSError: If something could not be written.
        """
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        failed = False
        while (item := self._queue.get()) is not None:
            chunk, copied, done = item
            try:
                if copied is not None:
                    copied.synchronize()
                if not failed:
                    self._take(np.asarray(chunk))
            except BaseException as error:
                self._error, failed = error, True
            finally:
                done()

    def _take(self, chunk: Array) -> None:
        """Cuts a chunk into episodes and writes those that end."""
        episodes: list[Array] = []
        rows: list[int] = []
        ends: list[int] = []
        starts, done = chunk[:, :, -1] > 0.5, (chunk[:, :, -3:-1] > 0.5).any(-1)
        for row in range(chunk.shape[1]):
            cuts = np.flatnonzero(starts[:, row] | done[:, row])
            position = 0
            for cut in cuts:
                if starts[cut, row]:  # what came before and did not end is dropped
                    self._parts[row], self._live[row], position = [], True, int(cut)
                if done[cut, row] and self._live[row]:
                    self._parts[row].append(chunk[position : cut + 1, row].copy())
                    episodes.append(np.concatenate(self._parts[row]))
                    rows.append(row)
                    ends.append(self._steps + int(cut) + 1)
                    self._parts[row], self._live[row] = [], False
                    position = int(cut) + 1
            if self._live[row]:
                self._parts[row].append(chunk[position:, row].copy())
        self._steps += chunk.shape[0]
        if episodes:
            self._write(episodes, rows, ends)

    def _write(self, episodes: list[Array], rows: list[int], ends: list[int]) -> None:
        layout, before = self._layout, self._layout.before
        steps = np.concatenate(episodes)
        last = np.stack([episode[-1] for episode in episodes])
        arrays: dict[str, Array] = {}
        column = 0
        for name, width in layout.boundary:
            arrays[name] = steps[:, column : column + width]
            arrays[f"final/{name}"] = last[:, before + column : before + column + width]
            column += width
        column = 2 * before
        arrays["actions"] = steps[:, column : column + layout.actions]
        column += layout.actions
        arrays["rewards"] = steps[:, column]
        arrays["terminated"] = steps[:, column + 1] > 0.5
        arrays["truncated"] = steps[:, column + 2] > 0.5
        arrays["lengths"] = np.array([len(episode) for episode in episodes])
        arrays["rows"], arrays["ends"] = np.array(rows), np.array(ends)
        write_npz(self.folder / f"episodes_{self._files:06d}.npz", arrays)
        self._files += 1

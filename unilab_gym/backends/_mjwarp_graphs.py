"""Captured Warp launches, replayed on the caller's torch stream."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
import warp

from unilab_gym.errors import BackendError

wp: Any = warp


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """No banner and no compile lines of Warp inside; its level is restored after."""
    saved = wp.config.log_level
    wp.config.log_level = wp.LOG_ERROR
    try:
        yield
    finally:
        wp.config.log_level = saved


class GraphRunner:
    """Captures work once and replays it in the order of the caller's torch streams.

    On CUDA the engine is never stepped launch by launch: outside a graph its solver loop would
    wait for the GPU in every iteration.
    """

    def __init__(self, device: torch.device, *, captured: bool = True) -> None:
        if not captured and device.type != "cpu":
            raise BackendError("launches without a graph are for tests on the CPU device only")
        self._torch_device = device
        self._cuda = device.type == "cuda"
        self._captured = captured
        self.device: Any = wp.device_from_torch(device)
        self._streams: dict[int, Any] = {}
        self._last: torch.cuda.Event | None = None
        self._last_stream = 0

    def synchronize(self) -> None:
        """Waits for the device; for building and closing, never in a step."""
        if self._cuda:
            torch.cuda.synchronize(self._torch_device)

    @contextlib.contextmanager
    def scope(self) -> Generator[None]:
        """Eager Warp work on this device, ordered against torch's streams by waiting."""
        self.synchronize()
        with quiet(), wp.ScopedDevice(self.device):
            yield
        self.synchronize()

    def capture(self, what: str, work: Callable[[], None]) -> Callable[[], None]:
        """Runs work once, so that its kernels are compiled, then captures it.

        Args:
            what: Name of the work in an error.
            work: Warp launches only, always the same ones.

        Returns:
            What replays the work on the current torch stream.

        Raises:
            BackendError: If the device refuses the capture.
        """
        with self.scope():
            work()
        if not self._captured:
            return lambda: self._run_eager(work)
        try:
            with self.scope(), wp.ScopedCapture(device=self.device) as capture:
                work()
        except Exception as error:
            raise BackendError(
                f"backend 'mjwarp' could not capture its {what} graph on {self.device}: {error}"
            ) from error
        graph = capture.graph
        return lambda: self._launch(graph)

    def _run_eager(self, work: Callable[[], None]) -> None:
        with wp.ScopedDevice(self.device):
            work()

    def _launch(self, graph: Any) -> None:
        if not self._cuda:
            wp.capture_launch(graph)
            return
        stream = torch.cuda.current_stream(self._torch_device)
        mine = self._streams.get(stream.cuda_stream)
        if mine is None:  # a wrapper registers with Warp: one per stream, kept
            mine = self._streams[stream.cuda_stream] = wp.stream_from_torch(stream)
        wp.capture_launch(graph, stream=mine)

    def begin(self) -> None:
        """Orders the current stream after the last operation, should that be another stream."""
        if self._last is None:
            return
        stream = torch.cuda.current_stream(self._torch_device)
        if stream.cuda_stream != self._last_stream:
            stream.wait_event(self._last)

    def record(self) -> torch.cuda.Event | None:
        """An event after everything issued so far; None on the CPU."""
        if not self._cuda:
            return None
        stream = torch.cuda.current_stream(self._torch_device)
        event = torch.cuda.Event()
        event.record(stream)
        self._last, self._last_stream = event, stream.cuda_stream
        return event

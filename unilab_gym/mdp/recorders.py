"""Recorders: what is kept of a run beside its log."""

from __future__ import annotations

import queue
from typing import Any

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError, near
from unilab_gym.io.npz import EpisodeWriter, Layout
from unilab_gym.runtime.recorder_term import Boundary, RecorderTerm
from unilab_gym.runtime.term import BuildContext, term


@term()
class EpisodeRecorder(RecorderTerm):
    """Writes finished episodes to NPZ files; `io.npz.EpisodeWriter` has the format.

    Cost: two concatenations a step (of the observation before, and of everything after it), and
    `chunk_steps x rows x width` floats on the device. When a chunk is full one copy goes to the
    host, without waiting for it (pinned memory on CUDA), and a thread cuts it into episodes and
    writes them. The step only waits where that thread is two chunks behind. Steps of an episode
    that has not ended yet stay in host memory. What has not ended when the environment closes is
    not written. A row that is reset by hand before its end starts anew.
    """

    def __init__(
        self,
        ctx: BuildContext,
        now: Boundary,
        *,
        folder: str,
        rows: int | None = None,
        chunk_steps: int = 256,
        groups: tuple[str, ...] | None = None,
        state: bool = True,
    ) -> None:
        """Allocates the ring and starts the writer.

        Args:
            ctx: The build context.
            now: The boundary.
            folder: Where the files go; it must hold no episodes yet.
            rows: Only the first so many environments; None takes all.
            chunk_steps: Control steps between two copies to the host.
            groups: Observation groups; None takes all.
            state: Whether qpos and qvel are kept too.

        Raises:
            ConfigError: If a number does not fit or a group is unknown.
            OSError: If the folder cannot be used.
        """
        super().__init__(ctx, now)
        count = ctx.num_envs if rows is None else rows
        if not 0 < count <= ctx.num_envs or chunk_steps < 1:
            raise ConfigError(
                f"rows must be in 1..{ctx.num_envs}, chunk_steps positive; got {rows}, "
                f"{chunk_steps}"
            )
        names = tuple(now.obs) if groups is None else groups
        for name in names:
            if name not in now.obs:
                raise ConfigError(f"observation group {near(name, now.obs)}")
        tensors = {f"obs/{name}": now.obs[name] for name in names}
        if state:
            tensors |= {"qpos": now.qpos, "qvel": now.qvel}
        self._boundary = [tensor[:count] for tensor in tensors.values()]
        columns = (now.reward, now.terminated, now.truncated)
        self._outcome = [now.action[:count], *(column[:count].unsqueeze(1) for column in columns)]
        widths = tuple((name, tensor.shape[1]) for name, tensor in tensors.items())
        layout = Layout(boundary=widths, actions=now.action.shape[1])
        self._rows, self._before = count, layout.before
        self._steps = chunk_steps
        # Not part of the environment's state: a restored environment records from then on.
        self._ring = torch.zeros(
            (chunk_steps, count, layout.width), dtype=torch.float32, device=ctx.device
        )
        self._begun = torch.zeros((count, 1), dtype=torch.bool, device=ctx.device)
        self._start = torch.zeros((count, layout.before), dtype=torch.float32, device=ctx.device)
        self._filled = 0
        self._free: queue.Queue[Tensor] = queue.Queue()
        for _ in range(2):
            host = torch.zeros(
                self._ring.shape,
                dtype=torch.float32,
                device="cpu",
                pin_memory=ctx.device.type == "cuda",
            )
            self._free.put(host)
        self._writer = EpisodeWriter(folder, layout, count)
        self._closed = False

    def post_step(self) -> None:
        """One row of the ring: before, after, action, reward, flags, whether it began here."""
        parts = [self._start, *self._boundary, *self._outcome, self._begun]
        torch.cat(parts, 1, out=self._ring[self._filled])
        torch.cat(self._boundary, 1, out=self._start)  # of the next step, where nothing resets
        self._begun.zero_()
        self._filled += 1
        if self._filled == self._steps:
            self._hand_over()

    def post_reset(self, mask: Tensor) -> None:
        """Masked rows begin an episode with the next step."""
        self._begun.logical_or_(mask[: self._rows].unsqueeze(1))
        torch.cat(self._boundary, 1, out=self._start)

    def _hand_over(self) -> None:
        """One copy to the host; the writer waits for it, not the step."""
        host = self._free.get()
        filled, self._filled = self._filled, 0
        host[:filled].copy_(self._ring[:filled], non_blocking=True)
        copied: Any = None
        if self._ring.is_cuda:
            copied = torch.cuda.Event()
            copied.record()
        self._writer.put(host[:filled], copied, lambda: self._free.put(host))

    def close(self) -> None:
        """Writes the episodes that have ended and stops the writer."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._filled:
                self._hand_over()
        finally:
            self._writer.close()

"""The last steps of every environment, kept on the device for the dump of one that fails.

One slot a control step: what physics started from and what it was given. Slots are overwritten in
turn; a few more than asked for are kept, because on CUDA a fault is known some steps late.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from unilab_gym.backends.base import QUARANTINE, Backend, TensorIntervalPayload
from unilab_gym.runtime.carriers import StateRegistry

SLACK = 16
"""Slots beyond the asked steps: how late a fault may be known with its whole history intact."""


class FaultRing:
    """Records each step of every row; costs memory steps x N x (nstate + nu + nv + A)."""

    def __init__(self, backend: Backend, action_size: int, steps: int) -> None:
        """Allocates `steps` slots and some slack."""
        n, index, device = backend.num_envs, backend.spec.index, backend.device
        self._backend = backend
        self.steps = steps
        self._slots = slots = steps + SLACK
        kind = backend.get_state().dtype
        self._rings = {
            "state": torch.zeros((slots, n, index.nstate), dtype=kind, device=device),
            "ctrl": torch.zeros((slots, n, index.nu), dtype=torch.float32, device=device),
            "qvel_delta": torch.zeros((slots, n, index.nv), dtype=torch.float32, device=device),
            "action": torch.zeros((slots, n, action_size), dtype=torch.float32, device=device),
            "episode_step": torch.zeros((slots, n), dtype=torch.int64, device=device),
            "word": torch.zeros((slots, n), dtype=torch.int32, device=device),
        }
        self._count = 0

    def register(self, state: StateRegistry) -> None:
        """A record of the past, and no state: no later step reads it."""
        for name, ring in self._rings.items():
            state.add_scratch("fault_ring", name, ring)

    def record(
        self,
        action: Tensor,
        ctrl: Tensor,
        interval: TensorIntervalPayload | None,
        episode_step: Tensor,
    ) -> None:
        """Takes a step in, just before its physics: 4 copies, 5 with pushes, of all rows."""
        slot, rings = self._count % self._slots, self._rings
        rings["state"][slot].copy_(self._backend.get_state())
        rings["ctrl"][slot].copy_(ctrl)
        rings["action"][slot].copy_(action)
        rings["episode_step"][slot].copy_(episode_step)
        if interval is not None and interval.qvel_delta is not None:
            rings["qvel_delta"][slot].copy_(interval.qvel_delta)

    def finish(self, word: Tensor) -> None:
        """Notes the step's fault words `[N]`."""
        self._rings["word"][self._count % self._slots].copy_(word)
        self._count += 1

    def history(self, row: int) -> dict[str, Tensor]:
        """The steps of one row up to its last fault, oldest first, on the host.

        At most `steps` of them; fewer after a start, or where the fault became known so late
        that older slots are overwritten.
        """
        newest = self._count - 1
        order = [i % self._slots for i in range(max(0, self._count - self._slots), self._count)]
        words = cast("list[int]", self._rings["word"][:, row].tolist())
        while order and not words[order[-1]] & QUARANTINE:
            order.pop()
        if not order:  # the fault is older than the ring: what is there is all that is known
            order = [i % self._slots for i in range(max(0, newest + 1 - self.steps), newest + 1)]
        order = order[-self.steps :]
        return {name: ring[order, row].cpu() for name, ring in self._rings.items()}

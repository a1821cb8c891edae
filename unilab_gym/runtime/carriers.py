"""Episode carriers: float columns that start every episode at 0, cleared by one operation.

Managers ask for columns while they are built; the columns lie side by side in one tensor, so that
a masked reset clears sums, returns and staged pushes of every manager at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK = 64
"""Columns of one tensor; a wider request gets a tensor of its own."""


class EpisodeCarriers:
    """Allocates columns and clears them in the rows that reset."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        """Allocates nothing yet."""
        self._num_envs = num_envs
        self._device = device
        self._tensors: list[Tensor] = []
        self._used = 0

    def columns(self, width: int) -> Tensor:
        """A persistent view `[N, width]` of float32 zeros."""
        if not self._tensors or self._used + width > self._tensors[-1].shape[1]:
            shape = (self._num_envs, max(width, _CHUNK))
            self._tensors.append(torch.zeros(shape, device=self._device))
            self._used = 0
        start, self._used = self._used, self._used + width
        return self._tensors[-1][:, start : self._used]

    def trim(self) -> None:
        """Ends the allocation: unused columns of the last tensor are no longer cleared."""
        if self._tensors:
            self._tensors[-1] = self._tensors[-1][:, : self._used]

    def reset(self, mask: Tensor) -> None:
        """Clears the rows where `mask` `[N]` is true."""
        for tensor in self._tensors:
            tensor.masked_fill_(mask.unsqueeze(1), 0.0)

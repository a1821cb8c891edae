"""Who holds memory between two calls: the state registry, and the columns of an episode.

Everything that lasts from one call to the next is registered while an environment is built:
`BuildContext.zeros` and `EpisodeCarriers.columns` do it by themselves. `get_state` saves what is
registered, so that a new manager or term cannot be forgotten; a test walks over every tensor of
a built environment and names those that nobody registered.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError
from unilab_gym.runtime.rows import RowMask, zero_columns

_CHUNK = 64
"""Columns of one tensor; a wider request gets a tensor of its own."""


class StateRegistry:
    """Names of every tensor that a later call reads.

    A name is `<owner>/<key>`, or `<owner>/<number>` where no key was given: a key keeps a saved
    state readable when the code is rearranged.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self.rows: dict[str, Tensor] = {}
        """One row per environment `[N, ...]`."""
        self.shared: dict[str, Tensor] = {}
        """One for all environments: counters, curricula; saved by `state_dict` alone."""
        self.scratch: dict[str, Tensor] = {}
        """`[N, ...]`, written before it is read in every call: no state."""

    def _name(self, owner: str, key: str) -> str:
        taken = (*self.rows, *self.shared, *self.scratch)
        if not key:
            owner = owner or "env"
            numbers = (str(number) for number in range(len(taken) + 1))
            return next(name for n in numbers if (name := f"{owner}/{n}") not in taken)
        name = f"{owner}/{key}" if owner else key
        if name in taken:
            raise ConfigError(f"state {name!r} is registered twice: give the second another key")
        return name

    def add_rows(self, owner: str, key: str, tensor: Tensor) -> Tensor:
        """Registers state with one row per environment.

        Raises:
            ConfigError: If the name is taken.
        """
        self.rows[self._name(owner, key)] = tensor
        return tensor

    def add_shared(self, owner: str, key: str, tensor: Tensor) -> Tensor:
        """Registers state that all environments share.

        Raises:
            ConfigError: If the name is taken.
        """
        self.shared[self._name(owner, key)] = tensor
        return tensor

    def add_scratch(self, owner: str, key: str, tensor: Tensor) -> Tensor:
        """Registers memory that means nothing between two calls.

        Raises:
            ConfigError: If the name is taken.
        """
        self.scratch[self._name(owner, key)] = tensor
        return tensor

    def add_mask(self, owner: str, key: str, rows: Tensor) -> RowMask:
        """The further forms of a mask `[N]`, which mean nothing between two calls.

        Raises:
            ConfigError: If the name is taken.
        """
        mask = RowMask(rows)
        self.add_scratch(owner, f"{key}/kept", mask.kept)
        self.add_scratch(owner, f"{key}/index", mask.index)
        return mask


class EpisodeCarriers:
    """Float columns that start every episode at 0, cleared by one operation.

    Managers ask for columns while they are built; they lie in one tensor `[columns, N]`, so that a
    masked reset clears sums, returns and staged pushes of every manager at once.
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device,
        register: Callable[[str, Tensor], Tensor] | None = None,
    ) -> None:
        """Allocates nothing yet; `register(key, columns)` is told of every request."""
        self._num_envs = num_envs
        self._device = device
        self._register = register
        self._tensors: list[Tensor] = []  # [columns, N]
        self._words: list[Tensor] = []  # the same memory as 32-bit words
        self._used = 0

    def columns(self, width: int, key: str = "") -> Tensor:
        """A persistent view `[N, width]` of float32 zeros; it is saved under `key`."""
        if not self._tensors or self._used + width > self._tensors[-1].shape[0]:
            self._tensors.append(zero_columns(self._num_envs, max(width, _CHUNK), self._device))
            self._used = 0
        start, self._used = self._used, self._used + width
        view = self._tensors[-1][start : self._used].t()
        return view if self._register is None else self._register(key, view)

    def trim(self) -> None:
        """Ends the allocation: unused columns of the last tensor are no longer cleared."""
        if self._tensors:
            self._tensors[-1] = self._tensors[-1][: self._used]
        self._words = [tensor.view(torch.int32) for tensor in self._tensors]

    def reset(self, rows: RowMask) -> None:
        """Clears the chosen rows."""
        for words in self._words:
            words.bitwise_and_(rows.kept)

"""Which of several processes this one is, as `torchrun` says it, and which GPU it takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from unilab_gym.errors import ConfigError


@dataclass(frozen=True)
class Processes:
    """A process among those of one training; all of them run the same program."""

    rank: int = 0
    """Number of this process among all, from 0."""
    world_size: int = 1
    """How many there are."""
    local_rank: int = 0
    """Number of this process among those of its machine: the GPU it takes."""
    local_world_size: int = 1
    """How many there are on this machine."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Processes:
        """Reads RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; without WORLD_SIZE it is one.

        Args:
            environment: Where to look; None takes the process's environment.

        Raises:
            ConfigError: If one of them is no number, is missing beside WORLD_SIZE, or a rank is
                not below its size.
        """
        found = os.environ if environment is None else environment
        world = _number(found, "WORLD_SIZE", "1")
        if world <= 1:
            return cls()
        rank, local = _number(found, "RANK"), _number(found, "LOCAL_RANK")
        here = _number(found, "LOCAL_WORLD_SIZE", str(world))
        for name, number, size in (("RANK", rank, world), ("LOCAL_RANK", local, here)):
            if number >= size:
                raise ConfigError(f"environment variable {name} must be below {size}, got {number}")
        return cls(rank, world, local, here)

    @property
    def first(self) -> bool:
        """Whether it is the one that writes the run folder and speaks."""
        return self.rank == 0

    def say(self, text: str) -> None:
        """Prints; processes other than the first are silent."""
        if self.first:
            print(text, flush=True)

    def device(self, asked: str | None, resolved: torch.device) -> torch.device:
        """The device of this process: on CUDA each takes the GPU of its local rank.

        Args:
            asked: What the user said.
            resolved: What that means for one process.

        Raises:
            ConfigError: If there are several processes and one GPU was named.
        """
        if self.world_size == 1 or resolved.type != "cuda":
            return resolved
        if asked is not None and ":" in asked:
            raise ConfigError(
                f"device {asked!r} names one GPU for {self.world_size} processes; say 'cuda': "
                "each takes that of its LOCAL_RANK"
            )
        return torch.device("cuda", self.local_rank)


def _number(found: Mapping[str, str], name: str, default: str = "") -> int:
    text = found.get(name, default)
    if not text.isdecimal():
        raise ConfigError(
            f"environment variable {name} must be an integer of 0 or more, got {text!r}; "
            "torchrun sets it"
        )
    return int(text)

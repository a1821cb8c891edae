"""The fault word: one int32 per environment, named bits, a handful of operations a step.

`FaultBit` (in `backends.base`) names the bits; `QUARANTINE` says which of them end a row's
episode. Causes are counted on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

import torch
from torch import Tensor

from unilab_gym.backends.base import QUARANTINE, FaultBit
from unilab_gym.runtime.carriers import StateRegistry
from unilab_gym.runtime.rows import Cut, zero_columns

__all__ = ["QUARANTINE", "FaultBit", "FaultMonitor", "FaultWatch", "fault_names"]

ABSURD = 1e4
"""Positions (rad, m) and velocities (rad/s, m/s) beyond this are a fault.

Legitimate joint speeds stay below 100 rad/s."""


def fault_names(word: int) -> tuple[str, ...]:
    """Names of the bits that are set, lower case."""
    return tuple(bit.name.lower() for bit in FaultBit if word & bit and bit.name)


class FaultMonitor:
    """Collects the causes of a step into the fault word."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        """Allocates the word, the quarantine mask and the counters."""
        self.word = torch.zeros(num_envs, dtype=torch.int32, device=device)
        self.bad = torch.zeros(num_envs, dtype=torch.bool, device=device)
        """Rows that are quarantined in this step."""
        self.total = torch.zeros(len(FaultBit), dtype=torch.int64, device=device)
        """How often each cause was seen, in the order of `FaultBit`."""
        self._flag_rows = zero_columns(num_envs, len(FaultBit), device, torch.bool)
        self.flags = self._flag_rows.t()
        """The word's bits of this step as columns `[N, bits]`."""
        bits = [int(bit) for bit in FaultBit]
        self._bits = torch.tensor(bits, dtype=torch.int32, device=device).unsqueeze(1)
        quarantined = sum(bool(bit & QUARANTINE) for bit in FaultBit)
        self._ending = self._flag_rows[:quarantined]
        # Checks are rows: action, state, reward, each against two limits by one comparison, which
        # holds where nothing is wrong and is false for NaN. A state that is not finite fails both
        # of its limits: ABSURD + (NONFINITE - ABSURD) leaves NONFINITE.
        infinite = float("inf")
        limits = [[[infinite], [infinite]], [[ABSURD], [infinite]], [[infinite], [infinite]]]
        second = FaultBit.STATE_NONFINITE - FaultBit.STATE_ABSURD
        codes = [
            [[int(FaultBit.ACTION_NONFINITE)], [0]],
            [[int(FaultBit.STATE_ABSURD)], [int(second)]],
            [[int(FaultBit.REWARD_NONFINITE)], [0]],
        ]
        self._limits = torch.tensor(limits, dtype=torch.float32, device=device)
        self._codes = torch.tensor(codes, dtype=torch.int32, device=device)
        self._fine = torch.zeros_like(self._codes)
        self._nothing = torch.zeros(1, dtype=torch.float32, device=device)
        # |x| as integers: without its sign a float's bits are in the order of its values, NaN last.
        self._bits_of = Cut(lambda state: (state.view(torch.int32),))
        self._no_sign = torch.tensor([0x7FFFFFFF], dtype=torch.int32, device=device)
        checks = zero_columns(num_envs, 3, device)
        self._checks = checks.unsqueeze(1)
        self._action = checks[0]
        self._worst, self._reward = checks[1].view(torch.int32), checks[2]
        causes = torch.zeros((3, 2, num_envs), dtype=torch.int32, device=device)
        self._causes, self._cause_rows = causes, causes.view(6, num_envs)

    def register(self, state: StateRegistry) -> None:
        """Names what lasts from one call to the next."""
        for key in ("word", "bad", "flags"):
            state.add_rows("faults", key, getattr(self, key))
        state.add_shared("faults", "total", self.total)
        state.add_scratch("faults", "action", self._action)

    def begin(self, action: Tensor) -> None:
        """Looks at a step's raw action `[N, A]`: 0 x a is NaN exactly where a is not finite."""
        torch.sum(action * self._nothing, 1, out=self._action)

    def finish(
        self, engine: Tensor, state: Tensor, reward: Tensor, ignore: Tensor | None = None
    ) -> None:
        """Completes the word of a step.

        Args:
            engine: The backend's bits `[N]` int32.
            state: Positions and velocities `[N, nq + nv]`.
            reward: Rewards `[N]` before faulty rows are cleared.
            ignore: Rows `[N]` bool whose step does not count, or None.
        """
        # A maximum of integers takes a third of the time of one of floats.
        sizes = torch.bitwise_and(self._bits_of(state)[0], self._no_sign)
        torch.amax(sizes, 1, out=self._worst)
        torch.abs(reward, out=self._reward)
        torch.where(self._checks < self._limits, self._fine, self._codes, out=self._causes)
        torch.sum(self._cause_rows, 0, dtype=torch.int32, out=self.word)
        self.word.bitwise_or_(engine)
        if ignore is not None:
            self.word.masked_fill_(ignore, 0)
        self._flag_rows.copy_(self.word & self._bits)
        torch.any(self._ending, 0, out=self.bad)
        self.total.add_(self._flag_rows.sum(1))


class Event(Protocol):
    """The part of `torch.cuda.Event` that a watch uses."""

    def record(self) -> None:
        """Marks this moment on the current stream."""
        ...

    def query(self) -> bool:
        """Whether the device has passed the mark."""
        ...


class _CudaEvent:
    """An event on whatever stream of its device is current when it is recorded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event()

    def record(self) -> None:
        self._event.record(torch.cuda.current_stream(self._device))

    def query(self) -> bool:
        return self._event.query()


class FaultWatch:
    """Tells the host which rows are faulty, without ever waiting for the device.

    On the CPU at once. On CUDA the words travel to pinned memory behind an event that later
    steps poll: a fault is known one step late, or more where the host runs ahead. Words that
    appear while a copy is under way are gathered on the device, so that none is lost.
    """

    def __init__(
        self, num_envs: int, device: torch.device, event: Callable[[], Event] | None = None
    ) -> None:
        """Allocates the memory of a copy.

        Args:
            num_envs: N.
            device: Where the words are.
            event: Makes an event; None takes CUDA's on CUDA, and none on the CPU.
        """
        if event is None and device.type == "cuda":
            event = partial(_CudaEvent, device)
        self._event = event
        pinned = device.type == "cuda"
        self._host = torch.zeros(num_envs, dtype=torch.int32, device="cpu", pin_memory=pinned)
        self._gathered = torch.zeros(num_envs, dtype=torch.int32, device=device)
        self._gathering = False
        self._flight: Event | None = None

    @property
    def late(self) -> bool:
        """Whether faults are known after the step in which they happened."""
        return self._event is not None

    def look(self, word: Tensor) -> list[tuple[int, int]]:
        """Takes in a step's words `[N]`; (row, word) of every quarantined fault known by now."""
        if self._event is None:
            return faulty_rows(word)
        found: list[tuple[int, int]] = []
        if self._flight is not None and self._flight.query():
            found, self._flight = faulty_rows(self._host), None
        if self._gathering or self._flight is not None:
            self._gathered.bitwise_or_(word)
            word, self._gathering = self._gathered, True
        if self._flight is None:
            self._host.copy_(word, non_blocking=True)
            if self._gathering:
                self._gathered.zero_()
                self._gathering = False
            self._flight = self._event()
            self._flight.record()
        return found


def faulty_rows(word: Tensor) -> list[tuple[int, int]]:
    """(row, word) of the quarantined rows of a word `[N]` in host memory."""
    if not bool((word & int(QUARANTINE)).any()):
        return []
    words = cast("list[int]", word.tolist())
    return [(row, bits) for row, bits in enumerate(words) if bits & QUARANTINE]

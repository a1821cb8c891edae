"""The only random source of the runtime: counter-based, pure torch integers.

A draw is a function of (key of the environment, counter, column)::

    word = mix64(key + counter * G + column_key)      # 64 bits: two uniforms of 24 bits, or four
                                                      # coarse ones of 16

which is splitmix64 from as many starting points as there are keys and columns, each walking by
the golden ratio's G: so consumption never depends on data, and the numbers of environment i do not
depend on how many environments there are, on the device, or on which other terms exist (normals
agree to rounding on another device). There are two counters per environment: (episode, draw) for
the running episode and (episode + 1, 0) for the reset that will start the next one; a constant
table picks the counter for each column. One block a step serves every term.

mix64 is the finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, OOPSLA 2014). What is kept of a counter is its position, key + counter * G.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError, near
from unilab_gym.runtime.carriers import StateRegistry
from unilab_gym.runtime.rows import copy_each, merged, zero_columns

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MUL_1 = 0xBF58476D1CE4E5B9
_MUL_2 = 0x94D049BB133111EB
_EPISODE = 1 << 32
"""Counters are episode * 2^32 + draw."""
_UNIT = 1.0 - 2.0**-24
"""The largest float32 below 1: the normal quantile of 1 is infinite."""
_PHASES = ("step", "reset", "startup")


def _signed(value: int) -> int:
    """Two's complement of a 64-bit word, as torch's int64 holds it."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


def mix64(value: int) -> int:
    """The splitmix64 finaliser on one Python integer, as an unsigned 64-bit word."""
    value &= _MASK64
    value = ((value ^ (value >> 30)) * _MUL_1) & _MASK64
    value = ((value ^ (value >> 27)) * _MUL_2) & _MASK64
    return value ^ (value >> 31)


class _Mixer:
    """`mix64` on int64 tensors.

    Its numbers lie on the device: an operation with a Python number takes up to twice as long.
    """

    def __init__(self, device: torch.device) -> None:
        def constant(value: int) -> Tensor:
            return torch.tensor([_signed(value)], device=device)

        self._rounds = [
            (constant(shift), constant((1 << (64 - shift)) - 1), factor and constant(factor))
            for shift, factor in ((30, _MUL_1), (27, _MUL_2), (31, None))
        ]

    def mix_(self, x: Tensor, scratch: Tensor) -> Tensor:
        """In place: 11 operations."""
        for shift, low_bits, factor in self._rounds:
            torch.bitwise_right_shift(x, shift, out=scratch)  # arithmetic: mask the sign copies
            scratch.bitwise_and_(low_bits)
            x.bitwise_xor_(scratch)
            if factor is not None:
                x.mul_(factor)
        return x


def seed_keys(seed: int, num_envs: int, rank: int = 0) -> list[int]:
    """Keys of `reset(seed=s)`: key[i] = mix64(s + rank * N + i), signed."""
    return [_signed(mix64(seed + rank * num_envs + i)) for i in range(num_envs)]


def constructor_keys(seed: int, num_envs: int, rank: int = 0) -> list[int]:
    """Keys of a constructor seed: mix64(mix64(S) ^ (rank * N + i)), signed.

    Two training seeds share nothing, unlike two neighbouring `reset(seed=...)`.
    """
    base = mix64(seed)
    return [_signed(mix64(base ^ (rank * num_envs + i))) for i in range(num_envs)]


def fresh_seed() -> int:
    """A seed from the operating system, to be recorded."""
    return int.from_bytes(os.urandom(4), "little")


def column_key(name: str, word: int) -> int:
    """The key of a stream's 64-bit word: stable across processes and versions."""
    digest = hashlib.blake2b(f"{name}#{word}".encode(), digest_size=8).digest()
    return _signed(int.from_bytes(digest, "little"))


@dataclass
class _Stream:
    """A uniform stream in [low, high), or a normal one of mean `low` and deviation `high`."""

    name: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    kind: str = "fine"
    start: int = 0
    values: Tensor | None = None

    @property
    def width(self) -> int:
        return len(self.low)

    @property
    def words(self) -> int:
        """64-bit words: each gives two numbers, or four coarse ones."""
        return -(-self.width // _NUMBERS[self.kind])

    @property
    def numbers(self) -> int:
        """Columns of the block's numbers that it takes."""
        return self.width if self.kind == "coarse" else _NUMBERS[self.kind] * self.words


_NUMBERS = {"coarse": 4, "fine": 2, "normal": 2}
"""Numbers out of a 64-bit word, by the kind of stream."""
_INTEGERS = {"coarse": torch.int16, "fine": torch.int32, "normal": torch.int32}
_LANES = 8
"""Rows of numbers are a multiple of this wide: arithmetic by column is a third faster."""
_GRID = {"coarse": 2.0**-16, "fine": 2.0**-24, "normal": 2.0**-24}
"""Distance of neighbouring values in [0, 1)."""


class _Block:
    """Columns of one draw and their scratch memory.

    Streams that follow the same counter lie side by side, so that picking the counter is an
    addition with broadcasting; picking columns by index costs ten times as much. Coarse streams
    are outside and the normals of both counters meet in the middle, where one transformation
    serves all. What a stream leaves of its last word is unused; a coarse one leaves no gap, so
    that noise of neighbouring terms lies side by side.
    """

    def __init__(self, num_envs: int, device: torch.device, counters: int, mixer: _Mixer) -> None:
        self.num_envs = num_envs
        self.device = device
        self._mixer = mixer
        self.streams: list[list[_Stream]] = [[] for _ in range(counters)]

    def add(self, stream: _Stream, counter: int) -> None:
        self.streams[counter].append(stream)

    def build(self) -> None:
        keys: list[int] = []
        scale: list[float] = []
        middle: list[float] = []
        bounds = [0]
        kinds = list(_NUMBERS)
        for counter, streams in enumerate(self.streams):
            streams.sort(key=lambda stream: kinds.index(stream.kind), reverse=counter > 0)
            for stream in streams:
                stream.start = len(scale)
                keys += [column_key(stream.name, word) for word in range(stream.words)]
                numbers = _scaling(stream)
                scale += numbers[0]
                middle += numbers[1]
            bounds.append(len(keys))
        flat = list(itertools.chain.from_iterable(self.streams))
        spare = [0.0] * (-len(scale) % _LANES)
        self._spare = len(spare)
        self._allocate(keys, (scale + spare, middle + spare), bounds, flat)
        normals = [stream for stream in flat if stream.kind == "normal"]
        self.normals = _Normals(self.values, normals) if normals else None
        for stream in flat:
            if stream.kind != "normal":
                stream.values = self.values[:, stream.start : stream.start + stream.width]

    def _allocate(
        self,
        keys: list[int],
        scaling: tuple[list[float], list[float]],
        bounds: list[int],
        streams: list[_Stream],
    ) -> None:
        n, device, width = self.num_envs, self.device, len(keys)
        self._scale, self._middle = torch.tensor(scaling, dtype=torch.float32, device=device)
        words = torch.zeros(n * width + _LANES, dtype=torch.int64, device=device)
        self._words = words[: n * width].view(n, width)
        # Scratch words mean nothing once the numbers are written, and share their memory: what
        # passes the cache in a step is a third less.
        numbers = len(self._scale)
        memory = torch.zeros(n * max(numbers, 2 * width), dtype=torch.float32, device=device)
        self._scratch = memory[: 2 * n * width].view(torch.int64).view(n, width)
        self.values = memory[: n * numbers].view(n, numbers)
        table = torch.tensor(keys, dtype=torch.int64, device=device)
        self._parts = [
            (counter, table[first:last], self._words[:, first:last])
            for counter, (first, last) in enumerate(itertools.pairwise(bounds))
            if last > first
        ]
        self._integers, self._numbers = self._conversions(streams)
        first = sum(stream.words for stream in self.streams[0] if stream.kind == "coarse")
        fine = sum(stream.words for stream in streams if stream.kind != "coarse")
        self._halves = self._words[:, first : first + fine].view(torch.int32) if fine else None
        self._unused_bits = torch.tensor([8], dtype=torch.int32, device=device)

    def _conversions(self, streams: list[_Stream]) -> tuple[list[Tensor], list[Tensor]]:
        """The words' integers in runs without a gap, and where the numbers of each go."""
        views = {kind: self._words.view(_INTEGERS[kind]) for kind in _NUMBERS}
        parts: list[tuple[int, Tensor]] = []
        word = 0
        for stream in streams:
            first = _NUMBERS[stream.kind] * word
            parts.append((stream.start, views[stream.kind][:, first : first + stream.numbers]))
            word += stream.words
        runs = merged(parts)
        integers = [run for _, run in runs]
        numbers = [self.values[:, start : start + run.shape[1]] for start, run in runs]
        if integers:
            self._fill_spare(integers, numbers)
        return integers, numbers

    def _fill_spare(self, integers: list[Tensor], numbers: list[Tensor]) -> None:
        """Takes spare columns along in the last run: whatever words follow in memory.

        Else arithmetic there met the bits of scratch words, often denormal floats: far slower.
        """
        last, first = integers[-1], self.values.shape[1] - self._spare - numbers[-1].shape[1]
        numbers[-1] = self.values[:, first:]
        integers[-1] = last.as_strided(numbers[-1].shape, last.stride(), last.storage_offset())

    def draw(self, positions: tuple[Tensor, ...]) -> None:
        """Fills the block from the position of each counter, `[N, 1]`."""
        for counter, keys, words in self._parts:
            torch.add(positions[counter], keys, out=words)
        self._mixer.mix_(self._words, self._scratch)
        if self._halves is not None:
            torch.bitwise_right_shift(self._halves, self._unused_bits, out=self._halves)
        # Exact, and one call for all runs; a product that converts takes twice as long.
        copy_each(self._numbers, self._integers)
        self.values.mul_(self._scale)
        self.values.add_(self._middle)
        if self.normals is not None:
            self.normals.draw()


def _scaling(stream: _Stream) -> tuple[list[float], list[float]]:
    """Factor and offset of every number that the stream takes."""
    grid = _GRID[stream.kind]
    if stream.kind == "normal":
        return [2.0 * _UNIT * grid] * stream.numbers, [0.0] * stream.numbers
    unused = stream.numbers - stream.width
    lows = [*stream.low] + [0.0] * unused
    spans = [high - low for low, high in zip(stream.low, stream.high, strict=True)] + [0.0] * unused
    # A signed 24-bit integer k gives (k / 2^24 + 1/2) in [0, 1), then low + span x that; one of 16
    # bits gives the middle of its interval, so that the mean is right.
    middle = 0.5 + grid / 2 if stream.kind == "coarse" else 0.5
    offsets = [low + span * middle for low, span in zip(lows, spans, strict=True)]
    return [span * grid for span in spans], offsets


class _Normals:
    """Normals from neighbouring columns of a block: sqrt(2) erfinv(u), the quantile of u."""

    def __init__(self, uniforms: Tensor, streams: list[_Stream]) -> None:
        n, device = uniforms.shape[0], uniforms.device
        first = streams[0].start
        width = sum(2 * stream.words for stream in streams)
        self._uniforms = uniforms[:, first : first + width]
        self.values = torch.zeros((n, width), dtype=torch.float32, device=device)
        mean: list[float] = []
        factor: list[float] = []
        for stream in streams:
            start = stream.start - first
            stream.values = self.values[:, start : start + stream.width]
            pad = [0.0] * (stream.width % 2)
            mean += [*stream.low, *pad]
            factor += [*(math.sqrt(2.0) * deviation for deviation in stream.high), *pad]
        self._mean = torch.tensor(mean, dtype=torch.float32, device=device)
        self._factor = torch.tensor(factor, dtype=torch.float32, device=device)

    def draw(self) -> None:
        """Transforms the block's current uniforms: 3 operations."""
        torch.erfinv(self._uniforms, out=self.values)
        self.values.mul_(self._factor)
        self.values.add_(self._mean)


class ManagerRng:
    """Counter-based uniforms and normals for every term of an environment.

    Terms register streams while they are built; `draw` fills all of them once per step.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        """Allocates keys and positions; every key is 0 until `set_keys`."""
        self.num_envs = num_envs
        self.device = device
        self.keys = torch.zeros((num_envs, 1), dtype=torch.int64, device=device)
        rows = zero_columns(num_envs, 2, device, torch.int64)
        self.positions = rows.t()
        """key + counter * G; column 0 of (episode, draw), column 1 of (episode + 1, 0)."""
        self._running, self._following = rows
        self._position_columns = rows.unsqueeze(2).unbind(0)
        episode = _signed(_EPISODE * _GOLDEN)
        constants = torch.tensor([[_signed(_GOLDEN)], [0], [episode]], device=device)
        self._golden, self._none, self._episode = constants
        mixer = _Mixer(device)
        self._block = _Block(num_envs, device, 2, mixer)
        self._startup = _Block(num_envs, device, 1, mixer)
        self._names: set[tuple[str, str]] = set()
        self._built = False

    def uniform(
        self,
        name: str,
        width: int,
        on: str,
        low: float | Sequence[float] = 0.0,
        high: float | Sequence[float] = 1.0,
        *,
        coarse: bool = False,
    ) -> Callable[[], Tensor]:
        """Registers a stream.

        Args:
            name: Key of the stream; the same name may be registered for several phases, whose
                draws are then independent because their counters differ.
            width: Numbers per environment and draw.
            on: "step" draws anew each step, "reset" once per episode, "startup" once per seed.
            low: Lower bound, one for all columns or one for each; scaling is part of the draw.
            high: Upper bound, excluded up to rounding.
            coarse: 2^16 values instead of 2^24, which is enough for noise: half the words.

        Returns:
            A function that returns the `[N, width]` view of the current draw, in [low, high).

        Raises:
            ConfigError: If the phase is unknown, the name is taken, the bounds are not as many as
                the columns, or the rng is built.
        """
        return self._add(name, width, on, low, high, "coarse" if coarse else "fine")

    def normal(
        self,
        name: str,
        width: int,
        on: str,
        mean: float | Sequence[float] = 0.0,
        deviation: float | Sequence[float] = 1.0,
    ) -> Callable[[], Tensor]:
        """Registers a stream of normals; it shares no number with a uniform one.

        No draw lies further than 5.5 standard deviations from the mean. All normal streams of an
        environment together cost 3 operations a draw.

        Args:
            name: Key of the stream, as in `uniform`.
            width: Numbers per environment and draw.
            on: "step", "reset" or "startup".
            mean: One for all columns or one for each.
            deviation: Standard deviation, likewise.

        Returns:
            A function that returns the `[N, width]` view of the current draw.

        Raises:
            ConfigError: As `uniform`, or if a deviation is negative.
        """
        lowest = deviation if isinstance(deviation, (int, float)) else min(deviation, default=0.0)
        if lowest < 0:
            raise ConfigError(f"random stream {name!r}: negative standard deviation {lowest}")
        return self._add(name, width, on, mean, deviation, "normal")

    def _add(
        self,
        name: str,
        width: int,
        on: str,
        low: float | Sequence[float],
        high: float | Sequence[float],
        kind: str,
    ) -> Callable[[], Tensor]:
        if on not in _PHASES:
            raise ConfigError(f"random stream {name!r}: phase {near(on, _PHASES)}")
        if self._built:
            raise ConfigError(f"random stream {name!r}: registered after the environment was built")
        if (name, on) in self._names:
            raise ConfigError(f"random stream {name!r} is registered twice for phase {on!r}")
        lows = [float(low)] * width if isinstance(low, (int, float)) else list(low)
        highs = [float(high)] * width if isinstance(high, (int, float)) else list(high)
        if not len(lows) == len(highs) == width:
            what = ("means", "deviations") if kind == "normal" else ("lower", "upper bounds")
            raise ConfigError(
                f"random stream {name!r}: {len(lows)} {what[0]} and {len(highs)} {what[1]} for "
                f"{width} columns"
            )
        self._names.add((name, on))
        stream = _Stream(name, tuple(lows), tuple(highs), kind)
        if on == "startup":
            self._startup.add(stream, 0)
        else:
            self._block.add(stream, _PHASES.index(on))

        def values() -> Tensor:
            if stream.values is None:
                raise ConfigError(f"random stream {name!r} is read before the first draw")
            return stream.values

        return values

    def build(self) -> None:
        """Allocates the blocks; no stream can be added afterwards."""
        self._block.build()
        self._startup.build()
        self._built = True

    def draw(self) -> None:
        """Fills every step and reset stream from the current counters."""
        if any(self._block.streams):
            self._block.draw(self._position_columns)

    def draw_startup(self) -> None:
        """Fills every startup stream; counter (0, 0) of each key."""
        if any(self._startup.streams):
            self._startup.draw((self.keys,))

    def advance(self) -> None:
        """A step of the running episode has begun."""
        self._running.add_(self._golden)

    def start_episode(self, mask: Tensor) -> None:
        """Masked rows enter their next episode: (episode + 1, 0)."""
        torch.where(mask, self._following, self._running, out=self._running)
        self._following.add_(torch.where(mask, self._episode, self._none))

    def set_keys(
        self, keys: Sequence[int | None], mask: Tensor | None = None, *, restart: bool = True
    ) -> None:
        """Gives rows a new key and restarts their counters.

        Args:
            keys: N signed integers; None keeps a row's stream.
            mask: `[N]` bool; rows outside keep their stream. None takes all rows.
            restart: False keeps the counters too: a restored episode that goes on differently.
        """
        given = torch.tensor([key is not None for key in keys], device=self.device)
        chosen = given if mask is None else given & mask
        values = torch.tensor([key or 0 for key in keys], dtype=torch.int64, device=self.device)
        old = self.keys.clone()
        self.keys.copy_(torch.where(chosen, values, old[:, 0]).unsqueeze(1))
        if restart:
            start = self.keys + torch.stack((self._none, self._episode), 1)
            self.positions.copy_(torch.where(chosen.unsqueeze(1), start, self.positions))
        else:
            self.positions.add_(self.keys - old)

    def register(self, state: StateRegistry) -> None:
        """Names keys and positions, which decide every later draw; after `build`."""
        state.add_rows("rng", "keys", self.keys)
        state.add_rows("rng", "positions", self.positions)
        for name, block in (("block", self._block), ("startup", self._startup)):
            state.add_scratch("rng", name, block.values)
            if block.normals is not None:
                state.add_scratch("rng", f"{name}/normals", block.normals.values)

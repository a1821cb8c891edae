"""Where episodes start: one row of the packed table per environment, chosen on the device.

* `start`: the first frame of a clip; clips are equally likely.
* `uniform`: every frame of every clip is equally likely.
* `mixed`: the first frame of a clip with probability `start_ratio`, else uniform.
* `adaptive`: clips are cut into bins of about one second that never cross clips; a bin is drawn
  with probability proportional to

      w[b] = sum over i < K of decay^i / norm * ema[min(b + i, last bin of b's clip)] + share / bins

  and a frame of it uniformly. `ema` is a moving average of how many episodes failed per step while
  their target lay in the bin; it decays in steps without failures too. The kernel looks forward:
  a bin gains from failures in the seconds after it.

Source of the adaptive scheme: BeyondMimic (Liao et al. 2025), rewritten.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError, near
from unilab_gym.motion.library import MotionLibrary
from unilab_gym.runtime.term import BuildContext

MODES = ("start", "uniform", "adaptive", "mixed")


class MotionSampler:
    """Draws start rows; `adaptive` learns from failures.

    Args:
        ctx: The build context; draws follow the "reset" phase.
        library: The packed clips.
        mode: One of `MODES`.
        start_ratio: Share of starts at first frames (`mixed`).
        bin_s: Length of a bin (`adaptive`), s.
        alpha: Weight of a step in the moving average (`adaptive`).
        uniform_share: Weight spread evenly over all bins (`adaptive`).
        kernel_size: Bins that the kernel looks at (`adaptive`).
        kernel_decay: Ratio of its neighbours (`adaptive`).

    Raises:
        ConfigError: If the mode is unknown or a number is out of its range.
    """

    def __init__(
        self,
        ctx: BuildContext,
        library: MotionLibrary,
        mode: str,
        *,
        start_ratio: float = 0.2,
        bin_s: float = 1.0,
        alpha: float = 0.001,
        uniform_share: float = 0.1,
        kernel_size: int = 3,
        kernel_decay: float = 0.8,
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"sampling_mode {near(str(mode), MODES)}")
        _check_numbers(start_ratio, bin_s, alpha, uniform_share, kernel_size, kernel_decay)
        self.mode = mode
        self.log_names: tuple[str, ...] = ()
        """Names of `log_values`."""
        self.log_values = torch.zeros(0, dtype=torch.float32, device=ctx.device)
        self._library = library
        self._clips = len(library.names)
        self._rows = library.rows
        self._start_ratio = start_ratio
        self._draw = ctx.uniform(2, "reset", key="start")
        self.rows = ctx.scratch(dtype=torch.int64, key="start")
        """What `draw` drew last `[N]`."""
        if mode == "adaptive":
            self._build_bins(ctx, bin_s, kernel_size, kernel_decay)
            self._alpha = alpha
            self._floor = uniform_share / len(self._bins)
            self.log_names = ("sampling_entropy", "sampling_top1_prob", "sampling_top1_bin")
            self.log_values = ctx.shared([0.0] * 3, key="sampling")
            self._refresh()

    def _build_bins(self, ctx: BuildContext, bin_s: float, size: int, decay: float) -> None:
        bins: list[tuple[int, int]] = []  # first row, rows
        ends: list[int] = []
        row = 0
        for length in self._library.lengths:
            count = max(1, round(length / (bin_s * self._library.fps)))
            edges = [i * length // count for i in range(count + 1)]
            bins += [(row + a, b - a) for a, b in itertools.pairwise(edges)]
            ends += [len(bins) - 1] * count
            row += length
        kernel = [math.pow(decay, i) for i in range(size)]
        self._bins = ctx.tensor(bins, dtype=torch.int64)  # [M, 2]
        self.bin_of_row = torch.repeat_interleave(
            torch.arange(len(bins), device=ctx.device), self._bins[:, 1]
        )
        """`[F]`."""
        self._kernel = ctx.tensor([[k / sum(kernel)] for k in kernel])  # [K, 1]
        ahead = [[min(b + i, ends[b]) for b in range(len(bins))] for i in range(size)]
        self._ahead = ctx.tensor(ahead, dtype=torch.int64).flatten()  # [K M]
        zeros = [0.0] * len(bins)
        self._failures = ctx.shared(zeros, key="failures")
        self._counts = ctx.shared(zeros, key="counts")
        self.probability = ctx.shared(zeros, key="probability")
        """Of each bin; they add up to 1."""
        self._upper = ctx.shared(zeros, key="upper")
        self._entropy_scale = -1.0 / math.log(len(bins)) if len(bins) > 1 else -1.0

    @property
    def failures(self) -> Tensor:
        """The moving average of failures per bin `[M]` (`adaptive`)."""
        return self._failures

    def draw(self) -> Tensor:
        """Start rows `[N]` int64 of the episodes that a reset would begin now: `rows`."""
        draw = self._draw()
        if self.mode == "start":
            self._first_frames(draw[:, 0])
        elif self.mode == "adaptive":
            self._from_bins(draw)
        elif self.mode == "mixed":
            anywhere = (draw[:, 0] * self._rows).long()
            first = self._first_frames(draw[:, 0])
            torch.where(draw[:, 1] < self._start_ratio, first, anywhere, out=self.rows)
        else:
            self.rows.copy_(draw[:, 0] * self._rows)  # rounds down
        return self.rows

    def _first_frames(self, uniform: Tensor) -> Tensor:
        if self._clips == 1:
            return self.rows.zero_()
        chosen = (uniform * self._clips).long()
        return torch.index_select(self._library.first, 0, chosen, out=self.rows)

    def _from_bins(self, draw: Tensor) -> None:
        # A rounded cumulative sum may end below 1: its last entry counts as infinite.
        chosen = torch.searchsorted(self._upper, draw[:, 0].contiguous(), right=True)
        bins = self._bins.index_select(0, chosen)  # [N, 2]
        self.rows.copy_(draw[:, 1] * bins[:, 1])
        self.rows.add_(bins[:, 0])

    def update(self, rows: Tensor, failed: Tensor) -> None:
        """One step has passed: which rows failed while their target was `rows` `[N]`."""
        if self.mode != "adaptive":
            return
        bins = self.bin_of_row.index_select(0, rows)
        self._counts.zero_().index_add_(0, bins, failed.float())
        self._failures.lerp_(self._counts, self._alpha)
        self._refresh()

    def _refresh(self) -> None:
        ahead = self._failures.index_select(0, self._ahead).view(self._kernel.shape[0], -1)
        weights = ahead.mul_(self._kernel).sum(0).add_(self._floor)
        torch.div(weights, weights.sum(), out=self.probability)
        torch.cumsum(self.probability, 0, out=self._upper)
        self._upper[-1:].fill_(torch.inf)
        logs = self.probability.log().mul_(self.probability)
        torch.mul(logs.sum(), self._entropy_scale, out=self.log_values[0])
        best = self.probability.max(0)
        self.log_values[1:2].copy_(best.values)
        self.log_values[2:3].copy_(best.indices)


def _check_numbers(
    start_ratio: float,
    bin_s: float,
    alpha: float,
    uniform_share: float,
    kernel_size: int,
    kernel_decay: float,
) -> None:
    for name, value, fits, wanted in (
        ("start_ratio", start_ratio, 0 <= start_ratio <= 1, "in [0, 1]"),
        ("bin_s", bin_s, bin_s > 0, "positive"),
        ("alpha", alpha, 0 < alpha <= 1, "in (0, 1]"),
        ("uniform_share", uniform_share, uniform_share > 0, "positive"),
        ("kernel_size", kernel_size, kernel_size >= 1, "at least 1"),
        ("kernel_decay", kernel_decay, 0 < kernel_decay <= 1, "in (0, 1]"),
    ):
        if not fits:
            raise ConfigError(f"{name} must be {wanted}, got {value!r}")

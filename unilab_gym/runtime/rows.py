"""Row subsets in the forms that full-width updates need, and memory in which they are fast.

A subset of environments is a mask at full width. Two further forms of it, one operation each, make
the updates cheap: an AND with 32-bit words clears rows of float memory whatever they hold (NaN
too), and an index picks whole rows out of two blocks that lie one behind the other. On the CPU both
take about a fifth of the time of `masked_fill_` and `where` with a mask that is broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class RowMask:
    """The rows that end at a boundary, or that are faulty there.

    Args:
        rows: `[N]` bool, persistent memory of whoever says which rows are chosen.
    """

    def __init__(self, rows: Tensor) -> None:
        """Takes the rows as they are."""
        count, device = rows.shape[0], rows.device
        self.rows = rows
        self.column = rows.unsqueeze(1)
        """`[N, 1]`, the same memory."""
        places = torch.arange(2 * count, device=device)
        self._first, self._second = places[:count], places[count:]
        self._no_bit, self._every_bit = torch.tensor([[0], [-1]], dtype=torch.int32, device=device)
        self.kept = torch.zeros(count, dtype=torch.int32, device=device)
        """`[N]`: no bit in chosen rows, every bit in the others."""
        self.kept_block = self.kept.view(-1, 1, 1)
        """`[N, 1, 1]`, the same memory."""
        self.index = self._second.clone()
        """`[N]` into two blocks of N rows: the first block's where chosen, else the second's."""
        self.refresh()

    def refresh(self) -> RowMask:
        """Follows `rows`; 2 operations."""
        torch.where(self.rows, self._no_bit, self._every_bit, out=self.kept)
        torch.where(self.rows, self._first, self._second, out=self.index)
        return self


class Cut:
    """Views of a tensor that is the same one in most steps: cut once, not in every step.

    Args:
        cut: Makes the views, and memory that goes with them.
    """

    def __init__(self, cut: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        """Has seen nothing yet."""
        self._cut = cut
        self._whole: Tensor | None = None
        self._views: tuple[Tensor, ...] = ()

    def __call__(self, whole: Tensor) -> tuple[Tensor, ...]:
        """The views of this tensor."""
        if whole is not self._whole:
            with torch.inference_mode(False):  # memory made here can be written anywhere
                self._whole, self._views = whole, self._cut(whole)
        return self._views


def merged(parts: Sequence[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
    """Joins (first column, part) where parts are neighbours in column and in memory."""
    runs: list[tuple[int, Tensor]] = []
    for start, part in parts:
        if runs:
            first, run = runs[-1]
            width = run.shape[1]
            beside = run.storage_offset() + width == part.storage_offset()
            same = run.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
            if first + width == start and beside and same and run.dtype == part.dtype:
                shape = (run.shape[0], width + part.shape[1])
                runs[-1] = (first, run.as_strided(shape, run.stride()))
                continue
        runs.append((start, part))
    return runs


_Several = list[Tensor] | tuple[Tensor, ...]


def copy_each(targets: _Several, sources: _Several) -> None:
    """Copies every tensor to its target, of any layout and dtype, in one call."""
    torch._foreach_copy_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        targets, sources
    )


def zero_columns(
    num_envs: int, width: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Zeros `[width, N]`, a scalar of every environment side by side; `.t()` shows `[N, width]`.

    Work on a few scalars per environment is several times as fast this way round.
    """
    return torch.zeros((width, num_envs), dtype=dtype, device=device)


class PairSum:
    """Sums the columns of every row in pairs, pairs of pairs and so on, in memory `[width, N]`.

    The order of the additions is written here: with `sum`, which adds several at once where there
    are enough rows, the last bit of a row would depend on the number of environments.
    """

    def __init__(self, columns: Tensor, out: Tensor, scratch: Tensor) -> None:
        """Cuts the views of every addition.

        Args:
            columns: `[width, N]`, not changed.
            out: `[N]`.
            scratch: `[width // 2, N]`; what it holds between two calls means nothing.
        """
        self._out = out
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._single: list[Tensor] = []
        width = columns.shape[0]
        if width < 2:
            self._single.append(columns[0] if width else torch.zeros_like(out))
        while width > 1:
            half = width // 2
            target = scratch[:half] if half > 1 else out.unsqueeze(0)
            self._pairs.append((columns[:half], columns[half : 2 * half], target))
            if width % 2:
                self._single.append(columns[width - 1])
            columns, width = target, half

    def __call__(self) -> Tensor:
        """The sums `[N]`, in `out`; about log2(width) operations."""
        for first, second, out in self._pairs:
            torch.add(first, second, out=out)
        if not self._pairs:
            return self._out.copy_(self._single[0])
        for column in self._single:
            self._out.add_(column)
        return self._out

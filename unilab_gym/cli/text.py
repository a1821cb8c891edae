"""Text tables and progress lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

_SILENT_S, _EVERY_S = 2.0, 5.0


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], indent: str = "  ") -> str:
    """Columns under their headers; the last one may be as long as it is.

    Args:
        headers: One text a column.
        rows: Cells; anything with a `str`.
        indent: Put before each line.
    """
    cells = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    lines = [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The same for a Markdown document."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in lines)


def number(value: float) -> str:
    """A number as short as its digits allow: 0.25, 20, 1e-05."""
    return f"{value:.6g}"


def numbers(values: Sequence[float | None]) -> str:
    """One number where all are equal, else a list; None is unlimited."""
    texts = ["inf" if value is None else number(value) for value in values]
    return texts[0] if len(set(texts)) == 1 else "[" + ", ".join(texts) + "]"


class Progress:
    """A line on stderr now and then, with rate and time left; silent in the first two seconds.

    Args:
        what: What is done, for the line.
        total: How many steps.
        rows: Environment steps in one.
    """

    def __init__(self, what: str, total: int, rows: int = 1) -> None:
        self._what, self._total, self._rows = what, total, rows
        self._started = self._shown = time.perf_counter()
        self._done = 0

    def advance(self) -> None:
        """Counts a step."""
        self._done += 1
        now = time.perf_counter()
        late = now - self._started > _SILENT_S and now - self._shown > _EVERY_S
        if not late or self._done >= self._total:
            return
        self._shown = now
        rate = self._done / (now - self._started)
        left = max(0, self._total - self._done) / rate
        print(
            f"{self._what}: step {self._done}/{self._total}  {rate * self._rows:,.0f} steps/s  "
            f"left {int(left // 60)}:{int(left % 60):02d}",
            file=sys.stderr,
            flush=True,
        )

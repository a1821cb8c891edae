"""What happens to a signal on its way: noise and latency, as config values.

`unilab_gym.config` offers these names too; users take them from there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

from unilab_gym.errors import ConfigError
from unilab_gym.serialize import freeze


@dataclass(frozen=True, kw_only=True)
class UniformNoiseCfg:
    """Uniform noise added to every component of a term."""

    low: float
    """Lower bound, in the term's unit before scaling."""
    high: float
    """Upper bound."""

    def __post_init__(self) -> None:
        """Checks the order of the bounds.

        Raises:
            ConfigError: If low exceeds high, or one is not finite.
        """
        if not self.low <= self.high:
            raise ConfigError(f"noise: low {self.low} exceeds high {self.high}")
        if not math.isfinite(self.high - self.low):
            raise ConfigError(f"noise: bounds must be finite, got {self.low}, {self.high}")


@dataclass(frozen=True, kw_only=True)
class GaussianNoiseCfg:
    """Normal noise of mean 0 added to every component of a term."""

    std: float
    """Standard deviation, in the term's unit before scaling."""

    def __post_init__(self) -> None:
        """Checks the sign.

        Raises:
            ConfigError: If `std` is negative or not finite.
        """
        if not self.std >= 0:
            raise ConfigError(f"noise: std must not be negative, got {self.std}")
        if self.std == math.inf:
            raise ConfigError("noise: std must be finite, got inf")


@dataclass(frozen=True, kw_only=True)
class DelayCfg:
    """A latency in control steps; where only `steps` is said, `delay=2` or `(0, 3)` says it too."""

    steps: int | tuple[int, int]
    """A fixed latency, or (low, high), both included, drawn per environment at each reset."""
    redraw: int | None = None
    """Control steps between two draws within an episode; None keeps the draw of the reset."""
    shared: str | None = None
    """Terms that say the same name share one draw, across groups; None draws for this term."""

    def __post_init__(self) -> None:
        """Freezes the range and checks it.

        Raises:
            ConfigError: If the steps are not whole, not 0 <= low <= high, or a setting without
                effect goes with a fixed latency.
        """
        object.__setattr__(self, "steps", freeze(self.steps))
        given: Any = self.steps
        bounds = cast("tuple[Any, ...]", given) if isinstance(given, tuple) else (given, given)
        whole = all(isinstance(x, int) and not isinstance(x, bool) for x in bounds)
        if len(bounds) != 2 or not whole or not 0 <= bounds[0] <= bounds[1]:
            raise ConfigError(
                f"delay must be whole control steps n >= 0 or (low, high), got {self.steps!r}"
            )
        if self.redraw is not None and not self.redraw >= 1:
            raise ConfigError(f"delay: redraw must be at least 1 control step, got {self.redraw}")
        if self.low == self.high and (self.redraw or self.shared):
            raise ConfigError(
                f"delay: nothing is drawn for {self.steps!r} steps, so redraw and shared do nothing"
            )

    @property
    def low(self) -> int:
        """The shortest latency."""
        return self.steps[0] if isinstance(self.steps, tuple) else self.steps

    @property
    def high(self) -> int:
        """The longest latency."""
        return self.steps[1] if isinstance(self.steps, tuple) else self.steps


Delay = int | tuple[int, int] | DelayCfg


def delay_of(delay: Delay) -> DelayCfg:
    """The long form of a latency.

    Raises:
        ConfigError: If it is none.
    """
    return delay if isinstance(delay, DelayCfg) else DelayCfg(steps=delay)

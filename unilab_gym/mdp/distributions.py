"""Draws and operations of domain randomization: see `mdp.randomization` for what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from unilab_gym.errors import ConfigError, near
from unilab_gym.runtime.term import BuildContext

Bounds = tuple[float, float]
Operation = Literal["abs", "add", "scale"]
Distribution = Literal["uniform", "log_uniform", "gaussian"]
_OPERATIONS = ("abs", "add", "scale")
_DISTRIBUTIONS = ("uniform", "log_uniform", "gaussian")
_SIGMAS = 4.0


def check_range(what: str, bounds: Bounds) -> Bounds:
    """The pair as floats.

    Raises:
        ConfigError: If it is not an ordered pair.
    """
    low, high = bounds
    if not low <= high:
        raise ConfigError(f"{what}: low {low} exceeds high {high}")
    return float(low), float(high)


def _support(what: str, bounds: Bounds, distribution: str) -> Bounds:
    """Lowest and highest value that can be drawn."""
    if distribution not in _DISTRIBUTIONS:
        raise ConfigError(f"distribution {near(str(distribution), _DISTRIBUTIONS)}")
    if distribution == "gaussian":
        mean, std = bounds
        if not std >= 0:
            raise ConfigError(f"{what}: a gaussian is (mean, std >= 0), got {bounds}")
        return mean - _SIGMAS * std, mean + _SIGMAS * std
    low, high = check_range(what, bounds)
    if distribution == "log_uniform" and not low > 0:
        raise ConfigError(f"{what}: log_uniform needs 0 < low, got {bounds}")
    return low, high


def make_draw(
    ctx: BuildContext, width: int, what: str, bounds: Bounds, distribution: str, key: str = ""
) -> Callable[[], Tensor]:
    """A function that returns this phase's draw `[N, width]`.

    A gaussian is a Box-Muller pair (Box and Muller, 1958) whose radius ends at 4, so that every
    value has bounds that can be checked.

    Raises:
        ConfigError: If the bounds do not fit the distribution.
    """
    low, high = _support(what, bounds, distribution)
    if distribution == "uniform":
        return ctx.uniform(width, ctx.phase, low, high, key)
    if distribution == "log_uniform":
        logs = ctx.uniform(width, ctx.phase, math.log(low), math.log(high), key)
        return lambda: logs().exp()
    mean, std = bounds
    floor = math.exp(-_SIGMAS * _SIGMAS / 2)
    lows, highs = [floor] * width + [0.0] * width, [1.0] * width + [2 * math.pi] * width
    pairs = ctx.uniform(2 * width, ctx.phase, lows, highs, key)

    def gaussian() -> Tensor:
        values = pairs()
        radius = values[:, :width].log().mul_(-2.0).clamp_(min=0.0).sqrt_()
        return radius.mul_(values[:, width:].cos()).mul_(std).add_(mean)

    return gaussian


class Change:
    """One operation with its draw, checked against the nominal values that it changes."""

    def __init__(
        self,
        ctx: BuildContext,
        what: str,
        nominal: Tensor,
        operation: str,
        bounds: Bounds,
        distribution: str,
        *,
        width: int | None = None,
        above: float = -math.inf,
        key: str = "",
    ) -> None:
        """Draws `width` numbers (default: one for each nominal value) per environment.

        Raises:
            ConfigError: If the operation is unknown, the bounds do not fit the distribution, or
                a value could become smaller than `above`.
        """
        if operation not in _OPERATIONS:
            raise ConfigError(f"operation {near(str(operation), _OPERATIONS)}")
        self.operation = operation
        low, high = _support(what, bounds, distribution)
        ends = torch.stack([operate(operation, nominal, ctx.tensor(end)) for end in (low, high)])
        worst = float(ends.min()) if ends.numel() else math.inf
        if not worst >= above or not torch.isfinite(ends).all():
            raise ConfigError(
                f"{what}: {operation} {bounds} ({distribution}) can make a nominal "
                f"{float(nominal.min()):g} become {worst:g}; the lowest possible value is {above:g}"
            )
        count = nominal.numel() if width is None else width
        self._draw = make_draw(ctx, count, what, bounds, distribution, key)

    def draw(self) -> Tensor:
        """This phase's numbers `[N, width]`."""
        return self._draw()

    def __call__(self, current: Tensor) -> Tensor:
        """The new values of `current` `[N, width]`."""
        return operate(self.operation, current, self._draw())


def operate(operation: str, current: Tensor, draw: Tensor) -> Tensor:
    """The operation on values `[..., K]`."""
    if operation == "add":
        return current + draw
    return current * draw if operation == "scale" else draw.expand_as(current)


def one_operation(**given: Bounds | None) -> tuple[str, Bounds]:
    """The only operation that has a range.

    Raises:
        ConfigError: If there are none or several.
    """
    chosen = {name: bounds for name, bounds in given.items() if bounds is not None}
    if len(chosen) != 1:
        raise ConfigError(
            f"exactly one of {', '.join(given)} is needed, got {', '.join(chosen) or 'none'}"
        )
    return next(iter(chosen.items()))


def match_bodies(ctx: BuildContext, body: str | tuple[str, ...]) -> list[int]:
    """Numbers of bodies: a pattern must match one, a tuple of patterns may match several.

    Raises:
        ConfigError: If nothing matches, or one pattern matches several.
    """
    names = ctx.index.match("body", body)
    if isinstance(body, str) and len(names) != 1:
        raise ConfigError(f"body {body!r} matches {len(names)}, one is needed: {names}")
    return [ctx.index.bodies[name] for name in names]

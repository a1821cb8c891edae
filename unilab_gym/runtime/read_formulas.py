"""What derived reads compute.

Each formula is a function of tensors, for whoever has some, and binds to tensors that stay where
they are: engine reads and what managers own. Bound, it has its views cut and its result allocated,
and a step does nothing but the arithmetic.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bound:
    """A formula of certain tensors."""

    run: Callable[[], object]
    """Computes it anew, into `result`."""
    result: Tensor


class Formula(ABC):
    """A function of tensors that can be bound to them."""

    @abstractmethod
    def bind(self, *tensors: Tensor) -> Bound:
        """The formula of these tensors' memory, whatever it holds later."""

    def __call__(self, *tensors: Tensor) -> Tensor:
        """The value for these tensors, in memory of its own."""
        bound = self.bind(*tensors)
        bound.run()
        return bound.result


class GravityOfRotation(Formula):
    """Minus the third row of rotation matrices `[N, 3, 3]`: unit gravity in the body's frame."""

    def bind(self, *tensors: Tensor) -> Bound:
        """Of rotations; `[N, 3]`."""
        up = tensors[0][:, 2]
        result = torch.empty_like(up)
        return Bound(functools.partial(torch.neg, up, out=result), result)


class InFrame(Formula):
    """R^T v of rotation matrices `[N, 3, 3]` and vectors `[N, 3]`."""

    def bind(self, *tensors: Tensor) -> Bound:
        """Of rotations and vectors; `[N, 3]`."""
        rotation, vector = tensors
        column, products = vector.unsqueeze(2), torch.empty_like(rotation)
        x, y, z = products.unbind(1)

        def run() -> None:
            torch.mul(rotation, column, out=products)
            x.add_(y).add_(z)  # a sum over three is slow

        return Bound(run, x)


class Minus(Formula):
    """Values minus a constant."""

    def __init__(self, constant: Tensor) -> None:
        """Keeps the constant."""
        self._constant = constant

    def bind(self, *tensors: Tensor) -> Bound:
        """Of values; as they are."""
        result = torch.empty_like(tensors[0])
        return Bound(functools.partial(torch.sub, tensors[0], self._constant, out=result), result)


class Below(Formula):
    """Whether values are below a limit."""

    def __init__(self, limit: Tensor) -> None:
        """Keeps the limit."""
        self._limit = limit

    def bind(self, *tensors: Tensor) -> Bound:
        """Of values; bool."""
        result = torch.empty_like(tensors[0], dtype=torch.bool)
        return Bound(functools.partial(torch.lt, tensors[0], self._limit, out=result), result)


class PlanarErrorSq(Formula):
    """(a_x - b_x)^2 + (a_y - b_y)^2 of two vectors."""

    def bind(self, *tensors: Tensor) -> Bound:
        """Of two `[N, d]`; `[N]`."""
        wanted, found = tensors[0][:, :2], tensors[1][:, :2]
        errors = torch.empty_like(wanted)
        x, y = errors.unbind(1)

        def run() -> None:
            torch.sub(wanted, found, out=errors).square_()
            x.add_(y)

        return Bound(run, x)


class ComponentErrorSq(Formula):
    """(a_i - b_i)^2 of one component of two vectors."""

    def __init__(self, component: int) -> None:
        """Keeps the component."""
        self._component = component

    def bind(self, *tensors: Tensor) -> Bound:
        """Of two `[N, d]`; `[N]`."""
        wanted, found = (tensor[:, self._component] for tensor in tensors)
        result = torch.empty_like(wanted)

        def run() -> None:
            torch.sub(wanted, found, out=result).square_()

        return Bound(run, result)


class LowestPoint(Formula):
    """Height of the lowest point of each of K geoms: see `reads.GeomHeight`.

    Args:
        radius: Radii of the balls `[K]`.
        halves: Halves of the segments `[K, 3]`.
        first: The first geom with a disc or ellipsoid.
        scales: Scales of the discs and ellipsoids from there on `[D, 3]`, or None.
    """

    def __init__(self, radius: Tensor, halves: Tensor, first: int, scales: Tensor | None) -> None:
        """Keeps the sizes."""
        self._radius, self._halves, self._scales = radius, halves, scales
        self._first = first

    def bind(self, *tensors: Tensor) -> Bound:
        """Of centres and, but for balls, orientations `[N, K, 3]`; `[N, K]`."""
        height, (up,) = tensors[0][..., 2], tensors[1:] or (None,)
        low = torch.empty_like(height)
        centre = functools.partial(torch.sub, height, self._radius, out=low)
        if up is None:
            return Bound(centre, low)
        extents = torch.empty_like(up)
        along = extents.unbind(2)
        discs = None if self._scales is None else self._discs(up, low, self._scales)

        def run() -> None:
            centre()
            torch.abs(up, out=extents).mul_(self._halves)
            for extent in along:  # a sum over three entries is slow
                low.sub_(extent)
            if discs is not None:
                discs()

        return Bound(run, low)

    def _discs(self, up: Tensor, low: Tensor, scales: Tensor) -> Callable[[], None]:
        """Lowers those geoms that have one by |S u|."""
        chosen = slice(self._first, self._first + scales.shape[0])
        turned, lower = up[:, chosen], low[:, chosen]
        scaled = torch.empty_like(turned)
        x, y, z = scaled.unbind(2)

        def run() -> None:
            torch.mul(turned, scales, out=scaled).square_()
            lower.sub_(x.add_(y).add_(z).sqrt_())  # a vector norm takes up to ten times as long

        return run

"""What derived reads compute, in memory of their own.

A read is computed at every boundary from the same tensors: engine reads and what managers own stay
where they are. So views are cut and results allocated once, and a step does arithmetic only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unilab_gym.runtime.rows import Cut


class GravityOfRotation:
    """Minus the third row of rotation matrices `[N, 3, 3]`: unit gravity in the body's frame."""

    def __init__(self) -> None:
        """Has seen no matrices yet."""
        self._cut = Cut(lambda rotation: (rotation[:, 2], torch.empty_like(rotation[:, 2])))

    def __call__(self, rotation: Tensor) -> Tensor:
        """`[N, 3]`; the next call overwrites it."""
        up, result = self._cut(rotation)
        return torch.neg(up, out=result)


class InFrame:
    """R^T v of rotation matrices `[N, 3, 3]` and vectors `[N, 3]`."""

    def __init__(self) -> None:
        """Has seen no matrices yet."""
        self._products = Cut(_products)
        self._column = Cut(lambda vector: (vector.unsqueeze(2),))

    def __call__(self, rotation: Tensor, vector: Tensor) -> Tensor:
        """`[N, 3]`; the next call overwrites it."""
        products, x, y, z = self._products(rotation)
        torch.mul(rotation, self._column(vector)[0], out=products)
        return x.add_(y).add_(z)  # a sum over three is slow


def _products(rotation: Tensor) -> tuple[Tensor, ...]:
    products = torch.empty_like(rotation)
    return products, *products.unbind(1)


class LowestPoint:
    """Height of the lowest point of each of K geoms `[N, K]`: see `reads.GeomHeight`.

    Args:
        radius: Radii of the balls `[K]`.
        halves: Halves of the segments `[K, 3]`.
        first: The first geom with a disc or ellipsoid.
        scales: Scales of the discs and ellipsoids from there on `[D, 3]`, or None.
    """

    def __init__(self, radius: Tensor, halves: Tensor, first: int, scales: Tensor | None) -> None:
        """Keeps the sizes."""
        self._radius, self._halves, self._scales = radius, halves, scales
        self._discs = slice(first, first + (0 if scales is None else scales.shape[0]))
        self._centre = Cut(lambda pos: (pos[..., 2], torch.empty_like(pos[..., 2])))
        self._extents = Cut(_extents)
        self._turned = Cut(lambda up: _scaled(up[:, self._discs]))
        self._low = Cut(lambda low: (low[:, self._discs],))

    def __call__(self, pos: Tensor, up: Tensor | None = None) -> Tensor:
        """`[N, K]` of centres and, but for balls, orientations `[N, K, 3]`; overwritten next."""
        height, low = self._centre(pos)
        torch.sub(height, self._radius, out=low)
        if up is None:
            return low
        extents, *along = self._extents(up)
        torch.abs(up, out=extents).mul_(self._halves)
        for extent in along:  # a sum over three entries is slow
            low.sub_(extent)
        if self._scales is not None:
            turned, scaled, x, y, z = self._turned(up)
            torch.mul(turned, self._scales, out=scaled).square_()
            self._low(low)[0].sub_(x.add_(y).add_(z).sqrt_())
        return low


def _extents(up: Tensor) -> tuple[Tensor, ...]:
    extents = torch.empty_like(up)
    return extents, *extents.unbind(2)


def _scaled(turned: Tensor) -> tuple[Tensor, ...]:
    scaled = torch.empty_like(turned)
    return turned, scaled, *scaled.unbind(2)

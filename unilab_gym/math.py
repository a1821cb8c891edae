"""Rotation and sampling helpers for `[N, ...]` tensors; quaternions are wxyz.

Written for few operations and for results whose bits do not depend on the number of rows: no
matrix products, no atan2, no fractional powers.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor


@functools.lru_cache(maxsize=4096)
def _on_device(value: float, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # usable wherever it is wanted again
        return torch.full((), value, dtype=torch.float32, device=device)


def number(value: float | Tensor, like: Tensor) -> Tensor:
    """A number as a 0-d float32 tensor on the device of `like`, made once for each value.

    An operation with a Python number wraps it in a new tensor every time, which takes as long as
    the arithmetic on a thousand rows. A tensor (a parameter that a curriculum moves) is returned
    as it is. Never write to the result.
    """
    return value if isinstance(value, Tensor) else _on_device(value, like.device)


class GravityProjector:
    """R^T (0, 0, -1) from quaternions `[N, 4]`: six operations into one buffer.

    Minus the third row of R(q): (2(wy - xz), -2(yz + wx), 2(x^2 + y^2) - 1).
    """

    def __init__(self, device: torch.device) -> None:
        """Holds the constants on the device."""
        self._scale = torch.tensor([2.0, -2.0, 2.0], dtype=torch.float32, device=device)
        self._offset = torch.tensor([0.0, 0.0, -1.0], dtype=torch.float32, device=device)
        self._result = torch.empty((0, 3), dtype=torch.float32, device=device)

    def __call__(self, quat: Tensor) -> Tensor:
        """Projected gravity `[N, 3]` of unit quaternions `[N, 4]`; the next call overwrites it."""
        if self._result.shape[0] != quat.shape[0]:
            self._result = quat.new_empty((quat.shape[0], 3))
        result = self._result
        outer = quat.unsqueeze(2) * quat.unsqueeze(1)  # [N, 4, 4]
        torch.sub(outer[:, 0, 2], outer[:, 1, 3], out=result[:, 0])
        torch.add(outer[:, 2, 3], outer[:, 0, 1], out=result[:, 1])
        torch.add(outer[:, 1, 1], outer[:, 2, 2], out=result[:, 2])
        return result.mul_(self._scale).add_(self._offset)


def quat_rotate_inverse(quat: Tensor, vector: Tensor) -> Tensor:
    """R(q)^T v for quaternions `[..., 4]` and vectors `[..., 3]`.

    With q = (w, u): v + 2 w (v x u) + 2 (v x u) x u.
    """
    u = quat[..., 1:]
    t = torch.cross(vector, u, dim=-1).mul_(2.0)
    turned = torch.cross(t, u, dim=-1)
    return turned.add_(t.mul_(quat[..., :1])).add_(vector)


def quat_rotate(quat: Tensor, vector: Tensor) -> Tensor:
    """R(q) v for quaternions `[..., 4]` and vectors `[..., 3]`."""
    u = quat[..., 1:]
    t = torch.cross(u, vector, dim=-1).mul_(2.0)
    turned = torch.cross(u, t, dim=-1)
    return turned.add_(t.mul_(quat[..., :1])).add_(vector)


def yaw_quat(yaw: Tensor) -> Tensor:
    """Quaternions `[N, 4]` of rotations by `yaw` `[N]` rad about z."""
    half = yaw * 0.5
    result = torch.zeros((*yaw.shape, 4), dtype=yaw.dtype, device=yaw.device)
    torch.cos(half, out=result[..., 0])
    torch.sin(half, out=result[..., 3])
    return result

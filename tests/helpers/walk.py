"""Every tensor that an environment holds, found by walking its objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

SCRATCH = (
    "rng._block",  # this step's draws
    "rng._startup",
    "rng._mixed",
    "rng._mixed_scratch",
    "events.payload",  # staged at full width, written where the mask is true
    "env._mask",
    "rt.state.",  # names of what is found elsewhere
    "_backend._bound",  # callers' tensors, found elsewhere too
    "_scratch",
    *("env._ended", "env._waiting", "env._chosen", "rt.faulty", "rt.void"),  # forms of masks
    *(".fresh", "._frame", "._at_step", "._at_reset", "._moves", "._source"),  # frames on their way
    "log._chosen",
    *("._whole", "._views"),  # what a `Cut` saw last
    "events._always",  # a constant
)
"""Memory that means nothing outside a call, by the end of its path or a part of it."""


def carriers(env: Any) -> dict[str, Tensor]:
    """Path -> tensor of everything that lasts from one call to the next."""
    return {
        path: tensor
        for path, tensor in _walk(env, "env", set())
        if not any(part in path for part in SCRATCH)
    }


def snapshot(env: Any) -> dict[str, Tensor]:
    """Copies of all carriers, of the engine's rows and of its per-environment model fields."""
    copies = {path: tensor.clone() for path, tensor in carriers(env).items()}
    copies["engine.state"] = env.backend.get_state()
    for name in env.backend.spec.model_fields:
        copies[f"engine.{name}"] = env.backend.get_model_field(name)
    return copies


def rows_of(copies: dict[str, Tensor], num_envs: int) -> dict[str, Tensor]:
    """Those with one entry an environment."""
    return {
        path: tensor
        for path, tensor in copies.items()
        if tensor.dim() and tensor.shape[0] == num_envs
    }


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal, with NaN equal to itself and 0 different from -0."""
    if a.dtype.is_floating_point:
        whole = torch.int64 if a.dtype == torch.float64 else torch.int32
        a, b = a.contiguous().view(whole), b.contiguous().view(whole)
    return torch.equal(a, b)


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, (list, tuple, set, frozenset)):
        children = enumerate(value)
    elif type(value).__module__.split(".")[0] in ("unilab_gym", "helpers", "runtime", "tests"):
        children = list(getattr(value, "__dict__", {}).items())
    if id(value) in seen:
        return
    seen.add(id(value))
    for name, child in children:
        yield from _walk(child, f"{path}.{name}", seen)

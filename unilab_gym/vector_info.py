"""What a step returns: copies, and in mode SAME_STEP `info` with the same keys in every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from unilab_gym.runtime.log import EpisodeLog


def step_info(log: EpisodeLog, final_obs: Any) -> dict[str, Any]:
    """Terminal observations and episode statistics; nobody asks on the host which rows ended.

    Args:
        log: The episode log, computed at this boundary.
        final_obs: Observations of the boundary before the reset, every row, owned by the caller.

    Returns:
        `{"final_obs", "_final_obs", "final_info", "_final_info"}`; names with an underscore are
        the masks of rows whose values count.
    """
    # Two copies, cut into rows that do not overlap: each result can be overwritten. A clone, as
    # `contiguous` copies nothing where there is one environment.
    columns = log.packed_rows.clone(memory_format=torch.contiguous_format).unbind(0)
    masks = log.masks.clone(memory_format=torch.contiguous_format).unbind(0)
    final: dict[str, Any] = dict(zip(log.names, columns, strict=True))
    final.update(zip(log.mask_names, masks, strict=False))
    returns, length = final.pop("episode/return"), final.pop("episode/length").long()
    masks_of = final.pop("_episode/return"), final.pop("_episode/length")
    final["episode"] = {"r": returns, "l": length, "_r": masks_of[0], "_l": masks_of[1]}
    *_, final["_episode"], of_obs, of_info = masks
    return {
        "final_obs": final_obs,
        "_final_obs": of_obs,
        "final_info": final,
        "_final_info": of_info,
    }


def cloned(value: Any) -> Any:
    """Copies of a tensor, of a dict of tensors, or of a sequence of these."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: item.clone() for key, item in cast("dict[str, Tensor]", value).items()}
    return [cloned(item) for item in cast("tuple[Any, ...]", value)]


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A nested result with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: mapped(item, change) for key, item in items}
    return tuple(mapped(item, change) for item in cast("tuple[Any, ...]", value))

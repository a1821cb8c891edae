"""What `info` holds in mode SAME_STEP: tensors `[N, ...]`, the same keys in every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unilab_gym.runtime.log import EpisodeLog

_OWN_MASKS = 5
"""Masks beside those of the log's columns."""


def step_info(log: EpisodeLog, done: Tensor, final_obs: Any) -> dict[str, Any]:
    """Terminal observations and episode statistics; nobody asks on the host which rows ended.

    Args:
        log: The episode log, computed at this boundary.
        done: Rows that ended `[N]` bool.
        final_obs: Observations of the boundary before the reset, every row, owned by the caller.

    Returns:
        `{"final_obs", "_final_obs", "final_info", "_final_info"}`; names with an underscore are
        the masks of rows whose values count.
    """
    # Two copies, cut into rows that do not overlap: each result can be overwritten. A clone, as
    # `contiguous` copies nothing where there is one environment.
    columns = log.packed_rows.clone(memory_format=torch.contiguous_format).unbind(0)
    wanted = (len(columns) + _OWN_MASKS, *done.shape)
    masks = iter(done.expand(wanted).clone(memory_format=torch.contiguous_format).unbind(0))
    values = dict(zip(log.names, columns, strict=True))
    returns, length = values.pop("episode/return"), values.pop("episode/length").long()
    final: dict[str, Any] = {
        "episode": {"r": returns, "l": length, "_r": next(masks), "_l": next(masks)},
        "_episode": next(masks),
    }
    for name, value in values.items():
        final[name] = value
        final[f"_{name}"] = next(masks)
    return {
        "final_obs": final_obs,
        "_final_obs": next(masks),
        "final_info": final,
        "_final_info": next(masks),
    }

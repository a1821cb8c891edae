"""The dump of a faulty environment: one NPZ file that plain MuJoCo replays.

Arrays, oldest step first, T steps of one environment up to the one that failed::

    state         [T, nstate]  packed mjSTATE_INTEGRATION row before the step's physics
    ctrl          [T, nu]      controls held during the step
    qvel_delta    [T, nv]      added to the velocities before the first substep
    action        [T, A]       raw action of the policy
    episode_step  [T]          control steps since the reset, before the step
    word          [T]          fault word of the step; 0 but for the last
    field/<name>               this environment's own values of randomized model fields
    model                      the compiled model as MJB bytes (uint8)
    meta                       JSON text: environment, causes, seed, versions, task (null where the
                               environment was made without an id), configuration, contract

Nothing is pickled. `examples/replay_dump.py` is the reader.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from unilab_gym.engine import mujoco

__all__ = ["write_fault_dump"]


def write_fault_dump(
    path: Path, arrays: Mapping[str, Tensor], model: Any, meta: Mapping[str, Any]
) -> None:
    """Writes a dump; the file appears whole or not at all.

    Args:
        path: Where to; the folder is made.
        arrays: Name -> tensor on any device.
        model: The compiled `mujoco.MjModel`.
        meta: What is known beside the arrays, plain JSON types; MuJoCo's version is added.

    Raises:
        OSError: If the file cannot be written.
    """
    packed = np.empty(mujoco.mj_sizeModel(model), dtype=np.uint8)
    mujoco.mj_saveModel(model, None, packed)
    text = json.dumps({**meta, "mujoco": mujoco.__version__})
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            values: dict[str, Any] = {name: t.cpu().numpy() for name, t in arrays.items()}
            np.savez_compressed(file, model=packed, meta=np.array(text), **values)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)

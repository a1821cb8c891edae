"""Saving and restoring environments: flat dicts of tensors, row by row or all of a training.

`read_rows` copies everything that a later step depends on: the engine's rows, acceleration-stage
reads, per-environment model fields, every registered carrier, the random streams and the published
observation. Keys are names::

    engine/state          packed mjSTATE_INTEGRATION rows [N, nstate], the same on both backends
    engine/acceleration   acceleration-stage reads [N, W]
    model/<field>         per-environment model fields [N, ...]
    rng/keys, rng/positions
    <owner>/<key>         what managers and terms carry, see `StateRegistry`
    shared/<owner>/<key>  what all environments share; in `state_dict` alone
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from unilab_gym.backends.base import RecomputeLevel
from unilab_gym.errors import ConfigError, near
from unilab_gym.runtime.step import Runtime

STATE, ACCELERATION, MODEL, SHARED = "engine/state", "engine/acceleration", "model/", "shared/"


def is_physics(name: str) -> bool:
    """Whether a key belongs to the simulation rather than to the episode."""
    return name.startswith(("engine/", MODEL))


def read_rows(
    rt: Runtime, mask: Tensor | None = None, *, physics: bool = False
) -> dict[str, Tensor]:
    """Detached copies of the state of every row, or of the rows where `mask` `[N]` is true.

    Args:
        rt: The runtime.
        mask: `[N]` bool; the copies hold the chosen rows only, in order.
        physics: Only the simulation: engine rows, accelerations, model fields.
    """
    state = {STATE: rt.backend.get_state(), ACCELERATION: rt.backend.get_acceleration()}
    for name in rt.backend.spec.model_fields:
        state[MODEL + name] = rt.backend.get_model_field(name)
    if not physics:
        state.update((name, tensor.clone()) for name, tensor in rt.state.rows.items())
    if mask is not None:
        state = {name: tensor[mask] for name, tensor in state.items()}
    return {name: tensor.contiguous() for name, tensor in state.items()}


def read_shared(rt: Runtime) -> dict[str, Tensor]:
    """Copies of what all environments share, under `shared/`."""
    return {SHARED + name: tensor.clone() for name, tensor in rt.state.shared.items()}


def holds_everywhere(mask: Tensor) -> bool:
    """Whether a mask is true in every row; waits for the device."""
    return bool(mask.all())


def full_width(
    rt: Runtime, state: Mapping[str, Tensor], mask: Tensor, *, physics: bool = False
) -> dict[str, Tensor]:
    """Checks a saved state and lays its rows out at full width.

    A state of one row goes to every masked row; one of N rows goes row by row; one with as many
    rows as the mask goes to the masked rows in order.

    Raises:
        ConfigError: On an unknown, missing or mis-shaped entry; names it.
    """
    wanted = read_rows(rt, physics=physics)
    _check_names(state, wanted)
    n, given = mask.shape[0], _count(state)
    chosen = int(mask.sum())
    if given not in (1, n, chosen):
        raise ConfigError(
            f"the state holds {given} rows; expected 1, {chosen} (as many as the mask) or {n}"
        )
    for name, current in wanted.items():
        value = state[name]
        same = value.shape[1:] == current.shape[1:] and value.shape[0] == given
        floats = value.dtype.is_floating_point and current.dtype.is_floating_point
        if not same or not (value.dtype == current.dtype or floats):
            raise ConfigError(
                f"state {name!r} is {value.dtype} {tuple(value.shape)}; expected {current.dtype} "
                f"{(given, *current.shape[1:])}"
            )
        value = value.to(device=current.device, dtype=current.dtype)
        if given == n:
            wanted[name] = value
        elif given == 1:
            wanted[name] = value.expand_as(current).contiguous()
        else:
            current[mask] = value
    return wanted


def check_count(state: Mapping[str, Tensor], num_envs: int) -> None:
    """Refuses a state of another number of rows.

    Raises:
        ConfigError: If the state holds no engine rows, or not `num_envs`.
    """
    found = _count(state)
    if found != num_envs:
        raise ConfigError(f"the state holds {found} rows; this environment has {num_envs}")


def _count(state: Mapping[str, Tensor]) -> int:
    rows = state.get(STATE)
    return rows.shape[0] if rows is not None and rows.dim() else 0


def _check_names(state: Mapping[str, Tensor], wanted: Iterable[str]) -> None:
    """Refuses a state whose keys are not those of this environment."""
    names = set(wanted)
    for name, value in state.items():
        if name not in names:
            raise ConfigError(f"this environment has no state {near(name, sorted(names))}")
        if not isinstance(value, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"state {name!r} must be a tensor, got {type(value).__name__}")
    missing = sorted(names - set(state))
    if missing:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise ConfigError(f"the state lacks {', '.join(missing[:8])}{more}")


def write_model(rt: Runtime, rows: Mapping[str, Tensor], mask: Tensor) -> None:
    """Writes per-environment model fields of the masked rows."""
    fields = {name.removeprefix(MODEL): rows[name] for name in rows if name.startswith(MODEL)}
    if fields:
        rt.backend.set_model_fields(fields, mask, RecomputeLevel.ALL)


def write_rows(rt: Runtime, rows: Mapping[str, Tensor], mask: Tensor) -> None:
    """Puts full-width rows back where `mask` `[N]` is true; other rows keep their bits."""
    write_model(rt, rows, mask)
    rt.receipts.accept(rt.backend.set_state(rows[STATE], mask))
    rt.backend.set_acceleration(rows[ACCELERATION], mask)
    for name, tensor in rt.state.rows.items():
        chosen = mask.view(-1, *(1,) * (tensor.dim() - 1))
        tensor.copy_(torch.where(chosen, rows[name], tensor))
    rt.frame.advance()
    rt.commands.restored()


def check_shared(rt: Runtime, state: Mapping[str, Tensor]) -> None:
    """Refuses shared entries that are not this environment's.

    Raises:
        ConfigError: On an unknown, missing or mis-shaped entry; names it.
    """
    wanted = {SHARED + name: tensor for name, tensor in rt.state.shared.items()}
    _check_names(state, wanted)
    for name, tensor in wanted.items():
        value = state[name]
        if value.shape != tensor.shape or value.dtype != tensor.dtype:
            raise ConfigError(
                f"state {name!r} is {value.dtype} {tuple(value.shape)}; expected {tensor.dtype} "
                f"{tuple(tensor.shape)}"
            )


def write_shared(rt: Runtime, state: Mapping[str, Tensor]) -> None:
    """Puts back what all environments share, after `check_shared`."""
    for name, tensor in rt.state.shared.items():
        tensor.copy_(state[SHARED + name])

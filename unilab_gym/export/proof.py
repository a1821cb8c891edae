"""The proof of an export: onnxruntime against torch, on what torch said before the export."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unilab_gym.errors import ExportError, ExportMismatchError

TOLERANCE = 1e-5
"""Largest |difference| / max(1, |action|)."""

ROUNDING = 16.0
"""Where float32 itself is coarser, as many times torch's own distance from float64 in that row.

Measured: 5 to 7 times on rows where a correct export misses `TOLERANCE` by up to 100 times
(observations of 1e3, or actions of 80 and more)."""

ROUNDING_CAP = 1e-5
"""Largest distance from float64, relative to the row's largest action, that counts as rounding."""

USUAL_ACTION = 10.0
"""Recorded observations with actions up to this must meet `TOLERANCE` without any excuse."""

MIN_OBSERVATIONS = 256
"""Fewer recorded observations than this are filled up with drawn ones."""


@dataclass(frozen=True)
class Cases:
    """What torch says, computed before the exporter sees the policy."""

    obs: Tensor  # [K, D]
    actions: Tensor  # [K, A] float32
    rounding: Tensor  # [K, 1] torch's own largest distance from float64, capped
    extremes: int
    """How many rows, the last ones, are extremes."""
    recorded: int = 0
    """How many rows, the first ones, were recorded."""


@dataclass(frozen=True)
class Comparison:
    """What a comparison found."""

    max_error: float | None = None
    """Largest |difference| / max(1, |action|) over all but the extremes."""
    rounding_limited: int = 0
    """Rows that miss `TOLERANCE`, yet by no more than rounding explains."""


def cases_of(policy: nn.Module, recorded: Tensor, width: int) -> Cases:
    """Recorded and drawn observations, zeros and extremes.

    Args:
        policy: A float32 copy in eval mode.
        recorded: Recorded observations `[K, D]`.
        width: Columns of an observation.

    Raises:
        ExportError: If the actor's output is not finite, or differs from call to call.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    count = max(0, MIN_OBSERVATIONS - len(recorded))
    spread = 10.0 ** (torch.rand(count, 1, generator=generator) * 2.0 - 1.0)
    drawn = torch.randn(count, width, generator=generator) * spread
    signs = torch.randint(0, 2, (8, width), generator=generator) * 2.0 - 1.0
    signs[0], signs[1] = 1.0, -1.0
    extremes = torch.cat([10.0 * signs, 1e3 * signs])
    obs = torch.cat([recorded, drawn, torch.zeros(1, width), extremes])
    actions = policy(obs)
    if not bool(torch.isfinite(actions[: -len(extremes)]).all()):
        raise ExportError("the actor gives actions that are not finite")
    if not torch.equal(actions.nan_to_num(), policy(obs).nan_to_num()):
        raise ExportError("the actor samples: two calls in eval mode differ; export its mean")
    return Cases(obs, actions, _rounding(policy, obs, actions), len(extremes), len(recorded))


def _rounding(policy: nn.Module, obs: Tensor, actions: Tensor) -> Tensor:
    """How far float32 is from float64 `[K, 1]`; zeros where the actor takes float32 only."""
    try:
        exact = copy.deepcopy(policy).double()(obs.double())
    except RuntimeError:
        exact = actions.double()
    distance = (actions - exact).abs().amax(1, keepdim=True).float()
    cap = ROUNDING_CAP * actions.abs().amax(1, keepdim=True).clamp(min=1.0)
    return torch.minimum(distance, cap).nan_to_num(0.0, 0.0, 0.0)


def compare(run: Callable[[Tensor], Tensor], cases: Cases, names: Sequence[str]) -> Comparison:
    """Compares a runtime with torch.

    Args:
        run: Maps observations `[K, D]` to actions `[K, A]`.
        cases: What torch says.
        names: One name per column of the action, for the message.

    Raises:
        ExportMismatchError: Names the worst action.
    """
    actions, wanted = run(cases.obs), cases.actions
    difference = (actions - wanted).abs()
    difference.masked_fill_(actions == wanted, 0.0)  # infinite actions of an extreme
    difference.masked_fill_(actions.isnan() & wanted.isnan(), 0.0)
    error = difference / wanted.abs().clamp(min=1.0)
    error.nan_to_num_(torch.inf, torch.inf)
    within = error <= TOLERANCE
    explained = difference <= ROUNDING * cases.rounding
    usual = wanted.abs().amax(1, keepdim=True) <= USUAL_ACTION
    usual[cases.recorded :] = False  # recorded rows of usual size: to the letter of the bar
    explained &= ~usual
    passed = within | explained
    if not bool(passed.all()):
        row, column = divmod(int(error.masked_fill(passed, -1.0).argmax()), error.shape[1])
        raise ExportMismatchError(
            f"onnxruntime and torch differ on {int((~passed).any(1).sum())} of {len(error)} "
            f"observations; worst at {names[column]}: torch {float(wanted[row, column]):.9g}, "
            f"onnxruntime {float(actions[row, column]):.9g}. Nothing was written. An actor that "
            "branches on its input in Python, or keeps state, cannot be exported"
        )
    return Comparison(
        max_error=float(error[: -cases.extremes].max()),
        rounding_limited=int((~within).any(1).sum()),
    )

"""Turns a shape mismatch at weight load into words.

    with policy_load_dim_guard("runs/.../model_240.pt", contract=resolve(owner_cfg)):
        runner.load(path)

Only "size mismatch" errors are touched; missing keys and everything else pass unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from unilab_gym.contract.plain import ADVICE
from unilab_gym.errors import CrossBackendIncompatibleError

_MARK = "size mismatch"
_SHAPES = re.compile(
    r"size mismatch for (?P<name>[^\s:]+):.*?\[(?P<saved>[\d, ]*)\].*?\[(?P<built>[\d, ]*)\]",
    re.DOTALL,
)
_NORMALIZER = re.compile(r"normaliz|running_(mean|var)|obs_(rms|norm)|\b_(mean|var|std)$", re.I)


@dataclass(frozen=True)
class Mismatch:
    """One parameter whose shape differs."""

    name: str
    saved: tuple[int, ...]
    """Shape in the checkpoint."""
    built: tuple[int, ...]
    """Shape in the network built for the target."""


@contextmanager
def policy_load_dim_guard(
    source: object = None, *, contract: Mapping[str, Any] | None = None
) -> Generator[None]:
    """Re-raises a shape mismatch as a diagnosis, with the original as its cause.

    Args:
        source: What is loaded, for the message.
        contract: The target's resolved contract: the message then says what it gives.

    Raises:
        CrossBackendIncompatibleError: With reason "weight_shape".
    """
    try:
        yield
    except CrossBackendIncompatibleError:
        raise  # an inner guard has said it
    except (RuntimeError, ValueError) as error:
        if _MARK not in str(error).lower():
            raise
        text = _diagnosis(str(error), source, contract)
        raise CrossBackendIncompatibleError(text, reason="weight_shape") from error


def _diagnosis(text: str, source: object, contract: Mapping[str, Any] | None) -> str:
    mismatches = parse_mismatches(text)
    subject = f"the weights of {source}" if source is not None else "the weights"
    lines = [f"{subject} do not fit the network built for the target configuration:"]
    lines += [f"  - {_explain(item, mismatches)}" for item in mismatches]
    if not mismatches:
        lines.append(f"  {text.strip()}")
    if contract is not None:
        groups = ", ".join(f"{k} {v['width']}" for k, v in contract["observations"].items())
        actions = len(contract["actions"]["scale"])
        lines.append(f"The target gives observations ({groups}) and takes {actions} actions.")
    lines.append(f"[weight_shape] What to do: {ADVICE['weight_shape']}.")
    return "\n".join(lines)


def parse_mismatches(text: str) -> list[Mismatch]:
    """The parameters that an error of `load_state_dict` names."""
    return [
        Mismatch(found["name"], _shape(found["saved"]), _shape(found["built"]))
        for found in _SHAPES.finditer(text)
    ]


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())


def _explain(item: Mismatch, every: list[Mismatch]) -> str:
    saved, built = item.saved, item.built
    shapes = f"{item.name}: checkpoint {list(saved)}, target {list(built)}"
    if _NORMALIZER.search(item.name) and saved and built:
        return f"observation width {saved[-1]} in the checkpoint, {built[-1]} here ({shapes})"
    if len(saved) != 2 or len(built) != 2:
        return shapes
    outputs, inputs = (saved[0], built[0]), (saved[1], built[1])
    same_out, same_in = outputs[0] == outputs[1], inputs[0] == inputs[1]
    others = [o for o in every if o is not item and len(o.saved) == 2 == len(o.built)]
    if same_out and not any((o.saved[0], o.built[0]) == inputs for o in others):
        return f"observation width {inputs[0]} in the checkpoint, {inputs[1]} here ({shapes})"
    if same_in and not any((o.saved[1], o.built[1]) == outputs for o in others):
        return f"output width {outputs[0]} in the checkpoint, {outputs[1]} here ({shapes})"
    return f"hidden width differs ({shapes})"

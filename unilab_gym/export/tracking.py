"""Tracking policies: the reference motion is a constant of the graph.

Inputs `obs` `[1, D]` and `time_step` `[1, 1]`; outputs `actions` `[1, A]` and the reference at
that step: `joint_pos` and `joint_vel` `[1, J]`, `body_pos_w` `[1, B, 3]`, `body_quat_w`
`[1, B, 4]` (wxyz), `body_lin_vel_w` and `body_ang_vel_w` `[1, B, 3]`. A time step below 0 gives the
first frame, one behind the end the last. The actions depend on `obs` alone: a deployment builds it
from the reference that the step before gave.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from unilab_gym.errors import ConfigError, ExportMismatchError, near
from unilab_gym.export.metadata import obs_width, resolved_of
from unilab_gym.export.onnx import (
    DEFAULT_OPSET,
    INPUT,
    OUTPUT,
    TIME_STEP,
    ExportReport,
    Graph,
    OnnxPolicy,
    check_widths,
    checked_observations,
    convert,
    describe_model,
    exporter_name,
    frozen_copy,
    load_policy,
    onnx_target,
    replacing,
    undisturbed,
)
from unilab_gym.export.proof import Comparison, cases_of, compare

MOTION_KEYS: Mapping[str, tuple[str, ...]] = {
    "joint_pos": ("J",),
    "joint_vel": ("J",),
    "body_pos_w": ("B", "3"),
    "body_quat_w": ("B", "4"),
    "body_lin_vel_w": ("B", "3"),
    "body_ang_vel_w": ("B", "3"),
}
"""Arrays of a reference motion and their dimensions after `T`; J joints of the contract, B bodies.
"""


def export_tracking_policy(
    actor: nn.Module,
    contract: Any,
    path: str | os.PathLike[str],
    *,
    motion: Mapping[str, Tensor],
    body_names: Sequence[str],
    anchor_body_name: str,
    normalizer: nn.Module | None = None,
    observations: Tensor | None = None,
    verify: bool = True,
    run_path: str = "",
    opset: int = DEFAULT_OPSET,
) -> ExportReport:
    """Writes a tracking policy with its reference motion inside; the batch is 1.

    Args:
        actor: Maps observations `[B, D]` to raw actions `[B, A]`, without sampling.
        contract: The resolved contract, or a live environment.
        path: The file, `*.onnx`.
        motion: The arrays of `MOTION_KEYS`, `[T, ...]`, at the control rate; joints in the order
            of the contract's `joints.names`, quaternions wxyz.
        body_names: Names of the B bodies, for the metadata.
        anchor_body_name: One of them.
        normalizer: Applied to the observation before the actor.
        observations: Recorded observations `[K, D]` to compare on.
        verify: False leaves out the comparison of onnxruntime with torch.
        run_path: Where the policy comes from, for the metadata.
        opset: ONNX operator set.

    Returns:
        What was written and compared.

    Raises:
        ImportError: If the extra `export` is not installed.
        ConfigError: If actor, observations, motion and contract do not fit together.
        ExportError: If the exporter cannot express the policy.
        ExportMismatchError: If the file gives other actions or another reference than torch.
    """
    exporter = exporter_name()
    started = time.perf_counter()
    target = onnx_target(path)
    resolved = resolved_of(contract)
    reference = _checked_motion(motion, resolved, body_names, anchor_body_name)
    width = obs_width(resolved)
    recorded = checked_observations(observations, width)
    graph = Graph((INPUT, TIME_STEP), (OUTPUT, *MOTION_KEYS), static_batch=True)
    more = {
        "anchor_body_name": anchor_body_name,
        "body_names": ",".join(body_names),
        "time_step_total": str(len(reference["joint_pos"])),
    }
    with undisturbed():
        policy = frozen_copy(actor, normalizer)
        check_widths(policy, resolved)
        cases = cases_of(policy, recorded, width) if verify else None
        tracker = _Tracker(policy, reference)
        model = convert(tracker, (torch.zeros(1, width), torch.zeros(1, 1)), graph, opset)
        describe_model(model, resolved, run_path, more)
    found = Comparison()
    with replacing(target) as temporary:
        temporary.write_bytes(model.SerializeToString(deterministic=True))
        if cases is not None:
            written = load_policy(temporary)
            found = compare(written, cases, resolved["actions"]["joints"])
            _prove_reference(written, reference)
    return ExportReport(
        path=target,
        obs_width=width,
        action_width=len(resolved["actions"]["scale"]),
        batch=1,
        opset=opset,
        exporter=exporter,
        verified=verify,
        recorded=len(recorded) if verify else 0,
        drawn=0 if cases is None else len(cases.obs) - len(recorded),
        max_error=found.max_error,
        rounding_limited=found.rounding_limited,
        seconds=time.perf_counter() - started,
    )


def export_motions(
    actor: nn.Module,
    contract: Any,
    env: Any,
    folder: str | os.PathLike[str],
    *,
    observations: Tensor | None = None,
    run_path: str = "",
) -> list[ExportReport]:
    """Writes `tracking_<clip>.onnx` for every clip that a task follows; see the module.

    Args:
        actor: As for `export_tracking_policy`, its normalizer inside.
        contract: The resolved contract.
        env: A live environment of the task, whose motion commands hold the references.
        folder: Where the files go.
        observations: Recorded observations `[K, D]` to compare on.
        run_path: Where the policy comes from, for the metadata.

    Returns:
        What was written, clip by clip; empty where the task follows no motion.

    Raises:
        ConfigError, ExportError, ExportMismatchError, ImportError: As `export_tracking_policy`.
    """
    from unilab_gym.motion.command import MotionCommand  # needs the engine; loading a file does not

    terms = env.unwrapped.runtime.commands.terms.values()
    return [
        export_tracking_policy(
            actor,
            contract,
            Path(folder) / f"tracking_{clip}.onnx",
            motion=command.reference(clip),
            body_names=command.body_names,
            anchor_body_name=command.anchor,
            observations=observations,
            run_path=run_path,
        )
        for command in terms
        if isinstance(command, MotionCommand)
        for clip in command.library.names
    ]


class _Tracker(nn.Module):
    """Policy and reference as one function of observation and time step."""

    def __init__(self, policy: nn.Module, reference: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.policy = policy
        for key in MOTION_KEYS:
            self.register_buffer(f"reference_{key}", reference[key])  # outputs have the bare names
        self.last = len(reference["joint_pos"]) - 1

    def forward(self, obs: Tensor, time_step: Tensor) -> tuple[Tensor, ...]:
        index = time_step.reshape(-1).long().clamp(0, self.last)  # [1]
        frames = (cast("Tensor", getattr(self, f"reference_{key}")) for key in MOTION_KEYS)
        return (self.policy(obs), *(frame.index_select(0, index) for frame in frames))


def _checked_motion(
    motion: Mapping[str, Tensor],
    contract: Mapping[str, Any],
    body_names: Sequence[str],
    anchor: str,
) -> dict[str, Tensor]:
    """Copies in float32 on the CPU."""
    if anchor not in body_names:
        raise ConfigError(f"anchor_body_name {near(anchor, body_names)}")
    lacking = [key for key in MOTION_KEYS if key not in motion]
    if lacking:
        raise ConfigError(f"the motion lacks {', '.join(lacking)}; it has {', '.join(motion)}")
    length = motion["joint_pos"].shape[0] if motion["joint_pos"].dim() else 0
    if length < 2:
        raise ConfigError(f"the motion must have two frames at the least, got {length}")
    sizes = {"J": len(contract["joints"]["names"]), "B": len(body_names), "3": 3, "4": 4}
    result: dict[str, Tensor] = {}
    for key, dims in MOTION_KEYS.items():
        wanted = [length, *(sizes[dim] for dim in dims)]
        given = motion[key].detach().to("cpu", torch.float32).clone()
        if list(given.shape) != wanted:
            raise ConfigError(
                f"motion {key} must have shape {wanted} (T {length}, J {sizes['J']}, "
                f"B {sizes['B']}), got {list(given.shape)}"
            )
        if not bool(torch.isfinite(given).all()):
            raise ConfigError(f"motion {key} holds numbers that are not finite")
        result[key] = given
    norms = (result["body_quat_w"] * result["body_quat_w"]).sum(-1).sqrt()
    if not bool(((norms - 1.0).abs() < 1e-3).all()):
        raise ConfigError(
            f"motion body_quat_w must hold unit quaternions wxyz, norms are "
            f"{float(norms.min()):.4g} .. {float(norms.max()):.4g}"
        )
    return result


def _prove_reference(policy: OnnxPolicy, reference: Mapping[str, Tensor]) -> None:
    """The file's frames at the ends, between, and outside are those that were given."""
    length = len(reference["joint_pos"])
    for step in (-1, 0, 1, length // 2, length - 1, length, length + 5):
        frame = policy.reference(step)
        index = min(max(step, 0), length - 1)
        for key in MOTION_KEYS:
            if not torch.equal(frame[key], reference[key][index]):
                raise ExportMismatchError(f"time step {step}: the file gives another {key}")

"""A policy as one self-contained ONNX file that proves itself and carries its contract.

    report = export_policy(actor, resolve(owner_cfg), "policy.onnx", observations=recorded)
    policy = load_policy("policy.onnx")  # onnxruntime: needs neither onnx nor an engine
    actions = policy(obs)

Input `obs` `[B, D]`, output `actions` `[B, A]`: raw, before box and scale, normalizer inside. The
file is written beside its target, run by onnxruntime against torch, and only then moved there.

torch's dynamo exporter does the work: the TorchScript one, 100 times as fast, is deprecated and
will be removed.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import os
import time
import warnings
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unilab_gym.contract.plain import parse_json, refuse
from unilab_gym.contract.snapshot import ONNX_KEY, from_mapping
from unilab_gym.errors import ConfigError, ExportError, ExportMismatchError
from unilab_gym.export.deploy import DeploySettings, deploy_document, write_deploy_yaml
from unilab_gym.export.metadata import (
    csv_metadata,
    layout,
    obs_width,
    policy_groups,
    resolved_of,
)
from unilab_gym.export.proof import Cases, Comparison, cases_of, compare

if TYPE_CHECKING:
    from onnx import ModelProto

INPUT, TIME_STEP, OUTPUT = "obs", "time_step", "actions"

DEFAULT_OPSET = 18
"""What the exporter writes without converting; deployed runtimes read it."""

_MISSING = 'exporting needs onnx and onnxscript: pip install "unilab_gym[export]"'
_CHATTY = ("torch.onnx", "onnxscript", "onnx_ir")


@dataclass(frozen=True)
class ExportReport:
    """What was written and how it was proved."""

    path: Path
    obs_width: int
    action_width: int
    batch: int | None
    """1 with `static_batch`; None for any number of rows."""
    opset: int
    exporter: str
    """Exporter and its version."""
    verified: bool
    """False only where `verify=False` was said."""
    recorded: int
    """Given observations that were compared."""
    drawn: int
    """Drawn observations, zeros and extremes that were compared."""
    max_error: float | None
    """Largest |difference| / max(1, |action|) over all but the extremes (+-10, +-1e3)."""
    rounding_limited: int
    """Rows that passed only because torch's own float32 result is as far from float64."""
    seconds: float
    """Wall-clock time; the first export of a process loads the exporter."""


def export_policy(
    actor: nn.Module,
    contract: Any,
    path: str | os.PathLike[str],
    *,
    normalizer: nn.Module | None = None,
    observations: Tensor | None = None,
    verify: bool = True,
    static_batch: bool = False,
    run_path: str = "",
    opset: int = DEFAULT_OPSET,
    deploy: DeploySettings | None = None,
) -> ExportReport:
    """Writes a policy as an ONNX file; neither modules nor random streams change.

    Args:
        actor: Maps observations `[B, D]` to raw actions `[B, A]`, without sampling.
        contract: The resolved contract (`unilab_gym.contract.resolve`), or a live environment.
        path: The file, `*.onnx`; its folder is made. On failure an older file stays as it was.
        normalizer: Applied to the observation before the actor.
        observations: Recorded observations `[K, D]` to compare on.
        verify: False leaves out the comparison of onnxruntime with torch.
        static_batch: Fix the batch to 1, for runtimes that cannot take a variable dimension.
        run_path: Where the policy comes from, for the metadata.
        opset: ONNX operator set.
        deploy: Also write the `deploy.yaml` that Unitree's C++ runtime reads; the batch is then
            fixed to 1, which that runtime needs.

    Returns:
        What was written and compared.

    Raises:
        ImportError: If the extra `export` is not installed.
        ConfigError: If actor, observations and contract do not fit together.
        CrossBackendIncompatibleError: If the contract is none of this version.
        ExportError: If the exporter cannot express the policy.
        ExportMismatchError: If the file's actions differ from torch's.
    """
    exporter = exporter_name()
    started = time.perf_counter()
    target = onnx_target(path)
    resolved = resolved_of(contract)
    width, action_width = obs_width(resolved), len(resolved["actions"]["scale"])
    recorded = checked_observations(observations, width)
    if deploy is not None:
        static_batch = True
        deploy_document(resolved, deploy)  # what cannot be deployed is told before the work
    with undisturbed():
        policy = frozen_copy(actor, normalizer)
        check_widths(policy, resolved)
        cases = cases_of(policy, recorded, width) if verify else None
        graph = Graph((INPUT,), (OUTPUT,), static_batch)
        model = convert(policy, (torch.zeros(1 if static_batch else 2, width),), graph, opset)
        describe_model(model, resolved, run_path)
    found = Comparison()
    with replacing(target) as temporary:
        temporary.write_bytes(model.SerializeToString(deterministic=True))
        if cases is not None:
            found = _proved(load_policy(temporary), cases, resolved)
    if deploy is not None:
        write_deploy_yaml(resolved, deploy)
    return ExportReport(
        path=target,
        obs_width=width,
        action_width=action_width,
        batch=1 if static_batch else None,
        opset=opset,
        exporter=exporter,
        verified=verify,
        recorded=len(recorded) if verify else 0,
        drawn=0 if cases is None else len(cases.obs) - len(recorded),
        max_error=found.max_error,
        rounding_limited=found.rounding_limited,
        seconds=time.perf_counter() - started,
    )


# --- what goes in ---------------------------------------------------------------------------------


def exporter_name() -> str:
    """Imports what the extra brings, quietly, and says what does the work."""
    try:
        with undisturbed():
            import onnx
            import onnxscript
    except ImportError as error:
        raise ImportError(_MISSING) from error
    script, graph = onnxscript.__version__, onnx.__version__
    return f"torch {torch.__version__} dynamo, onnxscript {script}, onnx {graph}"


def onnx_target(path: str | os.PathLike[str]) -> Path:
    """The file to write, checked."""
    target = Path(path).expanduser()
    if target.suffix.lower() != ".onnx":
        raise ConfigError(f"the path must end in .onnx, got {target.name!r}")
    return target


def checked_observations(observations: Tensor | None, width: int) -> Tensor:
    """Recorded observations `[K, D]` on the CPU; none is K = 0."""
    if observations is None:
        return torch.zeros(0, width, device="cpu")
    if observations.dim() != 2 or observations.shape[1] != width:
        raise ConfigError(
            f"observations must have shape [K, {width}], got {list(observations.shape)}"
        )
    given = observations.detach().to("cpu", torch.float32)
    if not bool(torch.isfinite(given).all()):
        raise ConfigError("observations hold numbers that are not finite")
    return given


@contextlib.contextmanager
def undisturbed() -> Generator[None]:
    """Keeps the exporter's chatter in and the caller's random stream, grad mode and device."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            torch.inference_mode(False),
            torch.no_grad(),
            torch.device("cpu"),
            torch.random.fork_rng(devices=[]),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class _Policy(nn.Module):
    """Normalizer and actor as one function of the observation."""

    def __init__(self, actor: nn.Module, normalizer: nn.Module | None) -> None:
        super().__init__()
        self.actor = actor
        self.normalizer = nn.Identity() if normalizer is None else normalizer

    def forward(self, obs: Tensor) -> Tensor:
        return self.actor(self.normalizer(obs))


def frozen_copy(actor: nn.Module, normalizer: nn.Module | None) -> nn.Module:
    """A float32 copy on the CPU in eval mode; `torch.compile` is taken off."""
    plain: list[Any] = [getattr(module, "_orig_mod", module) for module in (actor, normalizer)]
    try:
        policy = copy.deepcopy(_Policy(*plain))
    except RuntimeError as error:  # a tensor with a gradient function among the attributes
        raise ExportError(f"the actor cannot be copied: {error}") from error
    return policy.to("cpu", torch.float32).eval().requires_grad_(False)


def check_widths(policy: nn.Module, contract: Mapping[str, Any]) -> None:
    """Refuses an actor whose input or output is not the contract's."""
    width, action_width = obs_width(contract), len(contract["actions"]["scale"])
    try:
        actions: Any = policy(torch.zeros(2, width))
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        raise ConfigError(
            f"the actor does not take observations [B, {width}] ({layout(contract)}): {error}"
        ) from error
    given = list(actions.shape) if isinstance(actions, Tensor) else type(actions).__name__
    if given != [2, action_width]:
        raise ConfigError(
            f"the actor must give actions [B, {action_width}] as the contract says; for B = 2 it "
            f"gives {given}"
        )


# --- the graph and its metadata -------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    """What a graph takes and gives."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    static_batch: bool
    """Whether the first dimension is fixed to that of the examples."""


def convert(
    policy: nn.Module, examples: tuple[Tensor, ...], graph: Graph, opset: int
) -> ModelProto:
    """The graph, without what the exporter notes about this machine's files.

    Raises:
        ExportError: If the exporter cannot express the policy, or gives another graph.
    """
    batch = torch.export.Dim("batch")
    try:
        program = torch.onnx.export(
            policy,
            examples,
            dynamo=True,
            verbose=False,
            opset_version=opset,
            external_data=False,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=None if graph.static_batch else tuple({0: batch} for _ in examples),
        )
    except Exception as error:  # dozens of classes, some of them private
        raise ExportError(f"the policy has no ONNX form: {error}") from error
    assert program is not None
    model = program.model_proto
    _strip(model)
    _check_model(model, graph, opset)
    return model


def _strip(message: Any) -> None:
    """Removes stack traces (local paths) and names of local classes, at any depth."""
    for name in ("metadata_props", "doc_string"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else (value,):
                _strip(part)


def _check_model(model: ModelProto, graph: Graph, opset: int) -> None:
    from onnx import checker

    found = {entry.domain: entry.version for entry in model.opset_import}
    if found.get("") != opset:
        raise ExportError(f"opset {opset} was asked for, the exporter gives {found}")
    inputs = tuple(item.name for item in model.graph.input)
    outputs = tuple(item.name for item in model.graph.output)
    if inputs != graph.inputs or outputs != graph.outputs:
        raise ExportError(f"the graph has inputs {inputs} and outputs {outputs}")
    checker.check_model(model)


def describe_model(
    model: ModelProto,
    contract: Mapping[str, Any],
    run_path: str,
    more: Mapping[str, str] | None = None,
) -> None:
    """Adds the metadata: the contract as JSON, the keys of deployed stacks, and `more`."""
    model.graph.name = "policy"
    model.graph.output[0].doc_string = "raw actions, before box and scale"
    document = json.dumps(contract, allow_nan=False, ensure_ascii=False)
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    entries = {ONNX_KEY: document, **csv_metadata(contract), "run_path": run_path}
    entries.update(more or {})
    for key, value in {**entries, "opset": str(opset)}.items():
        model.metadata_props.add(key=key, value=value)


@contextlib.contextmanager
def replacing(target: Path) -> Generator[Path]:
    """A file beside the target that takes its place if the block ends well, and goes if not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _proved(policy: OnnxPolicy, cases: Cases, contract: Mapping[str, Any]) -> Comparison:
    """Compares what the written file says and computes with what it should."""
    if policy.contract != contract:
        raise ExportMismatchError("the contract in the file is not the given one")
    return compare(policy, cases, contract["actions"]["joints"])


# --- reading back ---------------------------------------------------------------------------------


class OnnxPolicy:
    """An exported policy on onnxruntime's CPU provider; made by `load_policy`.

    Attributes:
        contract: The resolved contract under which it was trained.
        metadata: Every metadata entry of the file, as text.
        obs_width: Columns of an observation.
        action_width: Columns of an action.
        batch: Rows that the graph takes at once; None for any number.
        obs_groups: Observation groups that its input is made of, in order.
        tracking: Whether the file holds a reference motion, see `reference`; the actions do not
            depend on the time step.
    """

    def __init__(
        self, session: Any, contract: Mapping[str, Any], metadata: Mapping[str, str]
    ) -> None:
        """Reads the shapes."""
        self.contract = dict(contract)
        self.obs_groups = tuple(policy_groups(self.contract))
        self.metadata = dict(metadata)
        inputs = {item.name: item.shape for item in session.get_inputs()}
        outputs = {item.name: item.shape for item in session.get_outputs()}
        rows, self.obs_width = inputs[INPUT]
        self.action_width: int = outputs[OUTPUT][1]
        self.tracking = TIME_STEP in inputs
        self.batch: int | None = rows if isinstance(rows, int) else None
        self._session = session

    def __call__(self, obs: Tensor) -> Tensor:
        """Raw actions `[B, A]` float32 on the observations' device; from CUDA this waits for it.

        Args:
            obs: `[B, D]`. A graph with a fixed batch is run as often as needed.

        Raises:
            ConfigError: If the shape differs.
        """
        if obs.dim() != 2 or obs.shape[1] != self.obs_width:
            raise ConfigError(
                f"the policy takes observations [B, {self.obs_width}] "
                f"({layout(self.contract)}), got {list(obs.shape)}"
            )
        rows = obs.detach().to("cpu", torch.float32).contiguous()
        parts = [rows] if self.batch is None else list(torch.split(rows, self.batch))
        return torch.cat([self._run(part) for part in parts]).to(obs.device)

    def reference(self, step: int) -> dict[str, Tensor]:
        """Frame `step` of the reference motion inside a tracking policy; steps are clamped.

        Returns:
            `joint_pos` `[J]`, `joint_vel` `[J]`, `body_pos_w` `[B, 3]`, `body_quat_w` `[B, 4]`,
            `body_lin_vel_w` `[B, 3]`, `body_ang_vel_w` `[B, 3]`.

        Raises:
            ConfigError: If the file holds no reference motion.
        """
        if not self.tracking:
            raise ConfigError("the file holds no reference motion: it is no tracking policy")
        names = [item.name for item in self._session.get_outputs() if item.name != OUTPUT]
        feed = self._feed(torch.zeros(1, self.obs_width), float(step))
        frames = self._session.run(names, feed)
        return {n: torch.from_numpy(frame)[0] for n, frame in zip(names, frames, strict=True)}

    def _run(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(self._session.run([OUTPUT], self._feed(rows, 0.0))[0])

    def _feed(self, rows: Tensor, step: float) -> dict[str, Any]:
        feed = {INPUT: rows.numpy()}
        if self.tracking:
            feed[TIME_STEP] = torch.full((1, 1), step).numpy()
        return feed


def load_policy(path: str | os.PathLike[str], *, num_threads: int = 1) -> OnnxPolicy:
    """Loads a policy that `export_policy` wrote; needs onnxruntime, neither onnx nor an engine.

    Args:
        path: The file.
        num_threads: onnxruntime's threads; a small network is fastest with one.

    Raises:
        CrossBackendIncompatibleError: If it is no ONNX file or carries no contract; see `reason`.
        ConfigError: If its input is not the observation alone.
        ImportError: If onnxruntime is not installed; says what to install.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("an ONNX policy runs on onnxruntime: pip install onnxruntime") from error

    file = Path(path).expanduser()
    if file.is_dir():
        refuse("not_a_file", f"{file} is a folder, not a file")
    if not file.exists():
        refuse("missing", f"there is no {file}")
    runtime: Any = onnxruntime  # ships no types
    options = runtime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal only: what fails is raised
    try:
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's classes share no other base
        refuse("unreadable", f"{file} is not an ONNX file that can be run: {error}")
    metadata: dict[str, str] = session.get_modelmeta().custom_metadata_map
    if ONNX_KEY not in metadata:
        refuse("no_snapshot", f"{file} has no metadata key {ONNX_KEY!r}")
    document = parse_json(metadata[ONNX_KEY], f"the metadata of {file}")
    side = from_mapping(document, str(file), must_be_recorded=True)
    inputs = [item.name for item in session.get_inputs()]
    if inputs not in ([INPUT], [INPUT, TIME_STEP]) or side.resolved is None:
        raise ConfigError(
            f"{file} takes the inputs {inputs}; a policy takes {INPUT!r} alone, a tracking policy "
            f"{INPUT!r} and {TIME_STEP!r}"
        )
    return OnnxPolicy(session, side.resolved, metadata)

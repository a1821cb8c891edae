"""Policies as ONNX files that carry their contract."""

from unilab_gym.errors import ExportError, ExportMismatchError
from unilab_gym.export.onnx import (
    DEFAULT_OPSET,
    ExportReport,
    OnnxPolicy,
    export_policy,
    load_policy,
    rsl_rl_actor,
)

__all__ = [
    "DEFAULT_OPSET",
    "ExportError",
    "ExportMismatchError",
    "ExportReport",
    "OnnxPolicy",
    "export_policy",
    "load_policy",
    "rsl_rl_actor",
]

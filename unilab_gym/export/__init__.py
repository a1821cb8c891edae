"""Policies as ONNX files that carry their contract."""

from unilab_gym.errors import ExportError, ExportMismatchError
from unilab_gym.export.actors import rsl_rl_actor, sb3_actor, skrl_actor
from unilab_gym.export.deploy import DeploySettings, deploy_document, write_deploy_yaml
from unilab_gym.export.onnx import (
    DEFAULT_OPSET,
    ExportReport,
    OnnxPolicy,
    export_policy,
    load_policy,
)
from unilab_gym.export.tracking import MOTION_KEYS, export_motions, export_tracking_policy

__all__ = [
    "DEFAULT_OPSET",
    "MOTION_KEYS",
    "DeploySettings",
    "ExportError",
    "ExportMismatchError",
    "ExportReport",
    "OnnxPolicy",
    "deploy_document",
    "export_motions",
    "export_policy",
    "export_tracking_policy",
    "load_policy",
    "rsl_rl_actor",
    "sb3_actor",
    "skrl_actor",
    "write_deploy_yaml",
]

"""Checks for our tests and yours: `check_vector_env` and, for engines, `check_backend`."""

from __future__ import annotations

from unilab_gym.testing.backend_conformance import (
    CONFORMANCE_CHECKS,
    BackendConformance,
    ConformanceError,
    check_backend,
)
from unilab_gym.testing.check_vector_env import RULES, VectorEnvCheckError, check_vector_env
from unilab_gym.testing.rules import Rule, RuleViolation

__all__ = [
    "CONFORMANCE_CHECKS",
    "RULES",
    "BackendConformance",
    "ConformanceError",
    "Rule",
    "RuleViolation",
    "VectorEnvCheckError",
    "check_backend",
    "check_vector_env",
]

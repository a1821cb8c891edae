"""Checks for environments, for our tests and yours: `check_vector_env`."""

from __future__ import annotations

from unilab_gym.testing.check_vector_env import RULES, VectorEnvCheckError, check_vector_env
from unilab_gym.testing.rules import Rule, RuleViolation

__all__ = ["RULES", "Rule", "RuleViolation", "VectorEnvCheckError", "check_vector_env"]

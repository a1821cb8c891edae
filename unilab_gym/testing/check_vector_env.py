"""`check_vector_env(env)`: what holds for every vector environment of this package, rule by rule.

Works on torch and on NumPy output, in every autoreset mode, also through wrappers::

    from unilab_gym.testing import check_vector_env
    check_vector_env(gymnasium.make_vec("unilab_gym:UniLab/Go2JoystickFlat-v0", num_envs=4))

`RULES` is the list. A violation names its rule, what was seen and what was expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium.vector import VectorEnv

from unilab_gym.errors import UnilabGymError
from unilab_gym.testing import behaviour_rules, surface_rules
from unilab_gym.testing.rules import Rule, RuleViolation, Subject, Wrong

__all__ = ["RULES", "VectorEnvCheckError", "check_vector_env"]

RULES: tuple[Rule, ...] = (*surface_rules.RULES, *behaviour_rules.RULES)
"""Every rule, in the order in which they are checked."""


class VectorEnvCheckError(UnilabGymError, AssertionError):
    """Rules that do not hold, as `violations`."""

    def __init__(self, violations: Sequence[RuleViolation]) -> None:
        """Joins their texts."""
        super().__init__(
            f"{len(violations)} rule(s) of a vector environment do not hold:\n"
            + "\n".join(str(violation) for violation in violations)
        )
        self.violations = tuple(violations)


def check_vector_env(
    env: VectorEnv[Any, Any, Any], *, seed: int = 0, fresh: bool = False
) -> tuple[str, ...]:
    """Plays an environment and checks every rule of `RULES`.

    The environment is reset many times and left open; nothing is left out silently except what
    its mode or output does not have.

    Args:
        env: A vector environment, also a wrapped one.
        seed: Seed of resets and actions.
        fresh: Whether nobody has reset it yet, so that "reset-first" can be checked.

    Returns:
        The names of the rules that hold.

    Raises:
        VectorEnvCheckError: Holds every violation; rules that rest on a broken basic one are not
            tried.
    """
    subject = Subject(env, seed, fresh)
    violations: list[RuleViolation] = []
    for rule in RULES:
        try:
            rule.check(subject)
        except Wrong as wrong:
            violations.append(RuleViolation(rule, wrong.seen, wrong.expected))
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
            violations.append(RuleViolation(rule, seen, "no error"))
        if violations and rule.basic:
            break
    if violations:
        raise VectorEnvCheckError(violations)
    return tuple(rule.name for rule in RULES)

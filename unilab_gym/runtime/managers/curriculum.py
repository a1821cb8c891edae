"""Curriculum manager: moves weights, ranges and thresholds while an environment runs.

It acts as a control step begins, before physics: a stage that starts at step k holds in the whole
of step k. Steps are counted from 1, one for each call of `step`, however many environments there
are; resets do not count and do not set anything back.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import torch
from torch import Tensor

from unilab_gym.config import CurriculumTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.curriculum_term import CurriculumTerm
from unilab_gym.runtime.frame import TermFrame
from unilab_gym.runtime.reads import RuntimeRead, StepCount
from unilab_gym.runtime.term import BuildContext, full_params, term_spec


def moved_paths(terms: Mapping[str, CurriculumTermCfg]) -> tuple[str, ...]:
    """Paths of the parameters that the config's curricula move.

    Raises:
        ConfigError: If a config does not name a `CurriculumTerm`, a parameter does not fit, or two
            curricula move one target.
    """
    taken: dict[str, str] = {}
    for name, cfg in terms.items():
        if not (inspect.isclass(cfg.func) and issubclass(cfg.func, CurriculumTerm)):
            raise ConfigError(f"curriculum/{name}: {cfg.func!r} is not a CurriculumTerm class")
        try:
            paths = cfg.func.targets(**full_params(cfg.func, cfg.params))
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"curriculum/{name}: {error} (params {cfg.params})") from error
        for path in paths:
            if path in taken:
                raise ConfigError(f"curriculum/{name}: {path} is moved by {taken[path]!r} too")
            taken[path] = name
    return tuple(taken)


class CurriculumManager:
    """Runs every curriculum in the config's order. Built last: its targets must be there."""

    def __init__(self, ctx: BuildContext, terms: Mapping[str, CurriculumTermCfg]) -> None:
        """Builds the curricula.

        Raises:
            ConfigError: If a target is nobody's parameter, or a read is not a runtime read.
        """
        self.names = tuple(terms)
        self._terms: list[tuple[CurriculumTerm, TermFrame]] = []
        self.targets: dict[str, Tensor] = {}
        """What is moved, by path."""
        if not terms:
            return
        self.steps = ctx.shared(0, torch.int64, key="steps")
        """Control steps since construction, 0-d; only where there is a curriculum."""
        ctx.frame.provide(StepCount(), self.steps)
        self.targets = {path: ctx.adjustables.target(path) for path in moved_paths(terms)}
        for name, cfg in terms.items():
            owner = f"curriculum/{name}"
            params = full_params(cfg.func, cfg.params)
            reads = term_spec(cfg.func).reads(params)
            for read in reads:
                if not isinstance(read, RuntimeRead):
                    raise ConfigError(f"{owner}: reads {read}; only runtime reads are at hand")
            frame = ctx.view(owner, reads, ())
            try:
                with ctx.owned(owner):
                    term: CurriculumTerm = cfg.func(ctx, **params)
            except (ConfigError, TypeError) as error:
                raise ConfigError(f"{owner}: {error} (params {cfg.params})") from error
            self._terms.append((term, frame))

    def check(self) -> None:
        """Applies what holds before the first step."""
        for term, frame in self._terms:
            term.update(frame)

    def update(self) -> None:
        """A control step begins."""
        if not self._terms:
            return
        self.steps.add_(1)
        for term, frame in self._terms:
            term.update(frame)

    def log(self) -> dict[str, Tensor]:
        """`curriculum/<term>` -> copies of the logged values, 0-d."""
        values = (term.value.clone() for term, _ in self._terms)
        return {f"curriculum/{name}": value for name, value in zip(self.names, values, strict=True)}

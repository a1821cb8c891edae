"""Recorder manager: lets recorders look at every boundary. Without recorders it costs nothing."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from torch import Tensor

from unilab_gym.config import RecorderTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.recorder_term import Boundary, RecorderTerm
from unilab_gym.runtime.term import BuildContext, full_params


class RecorderManager:
    """Calls the hooks of every recorder in the config's order."""

    def __init__(
        self, ctx: BuildContext, terms: Mapping[str, RecorderTermCfg], now: Boundary
    ) -> None:
        """Builds the recorders.

        Raises:
            ConfigError: If a config does not name a `RecorderTerm` class, or does not fit.
        """
        self.terms: dict[str, RecorderTerm] = {}
        for name, cfg in terms.items():
            if not (inspect.isclass(cfg.func) and issubclass(cfg.func, RecorderTerm)):
                raise ConfigError(f"recorders/{name}: {cfg.func!r} is not a RecorderTerm class")
            try:
                with ctx.owned(f"recorders/{name}"):
                    self.terms[name] = cfg.func(ctx, now, **full_params(cfg.func, cfg.params))
            except (ConfigError, TypeError, OSError) as error:
                self.close()
                raise ConfigError(f"recorders/{name}: {error} (params {cfg.params})") from error

    def post_step(self) -> None:
        """A step is done, before any reset."""
        for term in self.terms.values():
            term.post_step()

    def pre_reset(self, mask: Tensor) -> None:
        """Masked rows are about to reset."""
        for term in self.terms.values():
            term.pre_reset(mask)

    def post_reset(self, mask: Tensor) -> None:
        """Masked rows have reset."""
        for term in self.terms.values():
            term.post_reset(mask)

    def close(self) -> None:
        """Closes every recorder, also where one fails."""
        errors: list[Exception] = []
        for term in self.terms.values():
            try:
                term.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

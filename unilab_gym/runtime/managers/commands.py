"""Command manager: owns the command generators, their timers and held values.

A `CommandTerm` keeps a persistent value `[N, d]` (and named parts) that terms read through
`Command(name, part)`. Order at a boundary: rewards are computed with the command that the policy
saw, then `update` counts down, resamples due rows and refreshes the value.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unilab_gym.backends.base import TensorResetRandomizationPayload
from unilab_gym.config import CommandTermCfg
from unilab_gym.errors import ConfigError, near
from unilab_gym.runtime.command_term import CommandTerm
from unilab_gym.runtime.frame import TermFrame
from unilab_gym.runtime.reads import Command, Read
from unilab_gym.runtime.term import BuildContext, full_params, term_spec, told


class _Held:
    """Rows whose command a user has pinned."""

    def __init__(self, ctx: BuildContext, value: Tensor) -> None:
        self.mask = ctx.zeros(1, dtype=torch.bool, key="held/mask")
        self.value = ctx.zeros(*value.shape[1:], dtype=value.dtype, key="held/value")
        self.used = False


class CommandManager:
    """Updates every command in the config's order."""

    def __init__(self, ctx: BuildContext, terms: Mapping[str, CommandTermCfg]) -> None:
        """Builds the generators and offers their values to the frame.

        Raises:
            ConfigError: If a config does not name a `CommandTerm` class.
        """
        self.terms: dict[str, CommandTerm] = {}
        self._frames: dict[str, TermFrame] = {}
        self._held: dict[str, _Held] = {}
        for name, cfg in terms.items():
            owner = f"commands/{name}"
            if not (inspect.isclass(cfg.func) and issubclass(cfg.func, CommandTerm)):
                raise ConfigError(f"{owner}: {cfg.func!r} is not a CommandTerm class")
            with ctx.owned(owner), told(owner, cfg.params):
                params = full_params(cfg.func, cfg.params)
                reads: tuple[Read, ...] = term_spec(cfg.func).reads(params)
                self._frames[name] = ctx.view(owner, reads, ("step", "reset"))
                command: CommandTerm = cfg.func(ctx, **params)
            with ctx.owned(owner):
                self.terms[name] = command
                self._held[name] = _Held(ctx, command.value)
            ctx.frame.provide(Command(name), command.value)
            for part, tensor in command.parts.items():
                ctx.frame.provide(Command(name, part), tensor)

    @property
    def adds_to_reset(self) -> bool:
        """Whether a command writes the state of a reset and may add to what is staged."""
        return any(
            type(command).stage_reset is not CommandTerm.stage_reset and not command.assigns
            for command in self.terms.values()
        )

    def _pin(self, name: str) -> None:
        held = self._held[name]
        if held.used:
            value = self.terms[name].value
            torch.where(held.mask, held.value, value, out=value)

    def update(self) -> None:
        """Advances every command by one control step."""
        for name, command in self.terms.items():
            command.update(self._frames[name])
            self._pin(name)

    def stage_reset(self, payload: TensorResetRandomizationPayload) -> None:
        """Lets every command write the state of the episodes that begin."""
        for command in self.terms.values():
            command.stage_reset(payload)

    def reset(self, mask: Tensor) -> None:
        """Draws new commands in the masked rows."""
        for name, command in self.terms.items():
            command.reset(mask, self._frames[name])
            self._pin(name)

    def log(self) -> dict[str, Tensor]:
        """Figures of the commands as 0-d tensors that nothing will change."""
        figures: dict[str, Tensor] = {}
        for name, command in self.terms.items():
            if command.log_names:
                keys = (f"command/{name}/{figure}" for figure in command.log_names)
                figures.update(zip(keys, command.log_values.clone().unbind(), strict=True))
        return figures

    def hold(self, name: str, value: Any, mask: Tensor | None = None) -> None:
        """Pins a command for chosen rows until `release`, across resampling and resets.

        The draws of the stream go on underneath: a released row keeps the held value until its
        next resampling, which comes when it would have come anyway, with the same draw.

        Args:
            name: The command.
            value: `[d]` or `[N, d]`, in the command's units.
            mask: `[N]` bool; None pins every row.

        Raises:
            ConfigError: If there is no such command or the shape does not fit.
        """
        held, current = self._lookup(name), self.terms[name].value
        given = torch.as_tensor(value, dtype=current.dtype, device=current.device)
        if given.shape not in (current.shape, current.shape[1:]):
            raise ConfigError(
                f"command {name!r} has shape {tuple(current.shape)} or "
                f"{tuple(current.shape[1:])}, got {tuple(given.shape)}"
            )
        if not bool(torch.isfinite(given).all()):  # a cold path: may wait for the device
            raise ConfigError(f"command {name!r} must be finite, got {value!r}")
        rows = torch.ones_like(held.mask) if mask is None else mask.view(-1, 1)
        held.value.copy_(torch.where(rows, given, held.value))
        held.mask.logical_or_(rows)
        held.used = True
        self._pin(name)

    def release(self, name: str, mask: Tensor | None = None) -> None:
        """Lets chosen rows (None: all) sample again at their next resampling.

        Raises:
            ConfigError: If there is no such command.
        """
        held = self._lookup(name)
        if mask is None:
            held.mask.zero_()
            held.used = False
        else:
            held.mask.logical_and_(~mask.view(-1, 1))

    def restored(self) -> None:
        """After a state was written: finds which commands are held (a cold path)."""
        for held in self._held.values():
            held.used = bool(held.mask.any())

    def _lookup(self, name: str) -> _Held:
        if name not in self._held:
            raise ConfigError(f"no command {near(name, self._held)}")
        return self._held[name]

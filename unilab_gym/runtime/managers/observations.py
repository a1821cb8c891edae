"""Observation manager: owns the observation groups.

Each term is value -> noise -> clip -> scale. A term that several groups use with the same
function and parameters is computed once per boundary, and every group sees the clean value.
Per group there is one persistent `[N, D]` buffer: the observation of the last boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab_gym.config import (
    ObservationGroupCfg,
    ObservationTermCfg,
    func_name,
    to_dict,
)
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.term import BoundTerm, BuildContext, bind_term, check_value


@dataclass(frozen=True)
class ObservationTermInfo:
    """Where a term lies in its group."""

    name: str
    start: int
    width: int
    cfg: ObservationTermCfg


class _Noise:
    """Uniform noise on the columns of one group: one operation for each run of columns."""

    def __init__(self, ctx: BuildContext, group: str, terms: list[ObservationTermInfo]) -> None:
        self._draws: dict[str, list[tuple[int, Callable[[], Tensor]]]] = {"step": [], "reset": []}
        for phase, draws in self._draws.items():
            for term in terms:
                noise = term.cfg.noise
                if noise is not None:
                    with ctx.owned(f"observations/{group}/{term.name}"):
                        draw = ctx.uniform(term.width, phase, noise.low, noise.high)
                    draws.append((term.start, draw))
        self._runs: dict[str, list[tuple[int, Tensor]]] = {}

    def add(self, values: Tensor, phase: str) -> None:
        runs = self._runs.get(phase)
        if runs is None:
            parts = [(start, draw()) for start, draw in self._draws[phase]]
            runs = self._runs[phase] = _merge(parts)
        for start, noise in runs:
            values[:, start : start + noise.shape[1]].add_(noise)


def _merge(parts: list[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
    """Joins columns that are neighbours both in the group and in the random block."""
    runs: list[tuple[int, Tensor]] = []
    for start, part in parts:
        if runs:
            first, run = runs[-1]
            width = run.shape[1]
            if first + width == start and run.storage_offset() + width == part.storage_offset():
                shape = (run.shape[0], width + part.shape[1])
                runs[-1] = (first, run.as_strided(shape, run.stride()))
                continue
        runs.append((start, part))
    return runs


class _Group:
    """One observation group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.terms: list[ObservationTermInfo] = []
        self.keys: list[str] = []
        self.width = 0

    def finish(self, ctx: BuildContext, cfg: ObservationGroupCfg) -> None:
        with ctx.owned(f"observations/{self.name}"):
            self.buffer = ctx.zeros(self.width, key="buffer")
            self._scratch = ctx.scratch(self.width, key="scratch")
        self._noise = None
        if cfg.corrupt and any(term.cfg.noise is not None for term in self.terms):
            self._noise = _Noise(ctx, self.name, self.terms)
        low: list[float] = []
        high: list[float] = []
        scale: list[float] = []
        for term in self.terms:
            bounds = term.cfg.clip or (-torch.inf, torch.inf)
            low += [bounds[0]] * term.width
            high += [bounds[1]] * term.width
            factors = term.cfg.scale
            if isinstance(factors, tuple):
                if len(factors) != term.width:
                    raise ConfigError(
                        f"observations/{self.name}/{term.name}: scale has {len(factors)} "
                        f"entries, the term has {term.width} columns"
                    )
                scale += list(factors)
            else:
                scale += [factors] * term.width
        self._low = ctx.tensor(low) if any(term.cfg.clip for term in self.terms) else None
        self._high = ctx.tensor(high)
        self._scale = ctx.tensor(scale) if any(factor != 1.0 for factor in scale) else None

    def compute(self, values: list[Tensor], phase: str) -> Tensor:
        fresh = torch.cat(values, 1, out=self._scratch)
        if self._noise is not None:
            self._noise.add(fresh, phase)
        if self._low is not None:
            torch.clamp(fresh, self._low, self._high, out=fresh)
        if self._scale is not None:
            fresh.mul_(self._scale)
        return fresh


class ObservationManager:
    """Computes every group at a boundary."""

    def __init__(self, ctx: BuildContext, groups: Mapping[str, ObservationGroupCfg]) -> None:
        """Binds the terms, each distinct one once.

        Raises:
            ConfigError: If a group is empty or a term does not bind.
        """
        self._terms: dict[str, BoundTerm] = {}
        self._groups: dict[str, _Group] = {}
        for group_name, cfg in groups.items():
            if not cfg.terms:
                raise ConfigError(f"observations/{group_name}: a group needs at least one term")
            group = _Group(group_name)
            for name, term_cfg in cfg.terms.items():
                key = f"{func_name(term_cfg.func)}({to_dict(term_cfg.params)})"
                if key not in self._terms:
                    owner = f"observations/{group_name}"
                    self._terms[key] = bind_term(ctx, owner, name, term_cfg, ("step", "reset"))
                bound = self._terms[key]
                info = ObservationTermInfo(name, group.width, bound.width, term_cfg)
                group.terms.append(info)
                group.keys.append(key)
                group.width += bound.width
            group.finish(ctx, cfg)
            self._groups[group_name] = group

    @property
    def widths(self) -> dict[str, int]:
        """Columns per group."""
        return {name: group.width for name, group in self._groups.items()}

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Observations of the last boundary, persistent `[N, D]` per group."""
        return {name: group.buffer for name, group in self._groups.items()}

    def layout(self, group: str) -> list[ObservationTermInfo]:
        """Terms of a group in order."""
        return list(self._groups[group].terms)

    def check(self) -> None:
        """Computes every term once to compare its width with its declaration."""
        rows = next(iter(self._groups.values())).buffer.shape[0]
        for term in self._terms.values():
            check_value(term, rows)

    def _values(self) -> dict[str, Tensor]:
        return {key: _columns(term) for key, term in self._terms.items()}

    def compute(self, keep: Tensor) -> None:
        """Observes a boundary; rows where `keep` `[N]` is true hold their last observation."""
        values = self._values()
        keep = keep.unsqueeze(1)
        for group in self._groups.values():
            fresh = group.compute([values[key] for key in group.keys], "step")
            torch.where(keep, group.buffer, fresh, out=group.buffer)

    def compute_reset(self, mask: Tensor) -> None:
        """Observes the boundary after a reset, into the masked rows only."""
        values = self._values()
        mask = mask.unsqueeze(1)
        for group in self._groups.values():
            fresh = group.compute([values[key] for key in group.keys], "reset")
            torch.where(mask, fresh, group.buffer, out=group.buffer)

    def reset(self, mask: Tensor) -> None:
        """Resets terms with state."""
        for term in self._terms.values():
            term.reset(mask)


def _columns(term: BoundTerm) -> Tensor:
    value = term()
    if value.dim() != 2:
        value = value.unsqueeze(1) if value.dim() == 1 else value.flatten(1)
    return value

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
    UniformNoiseCfg,
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
    """Uniform noise on the columns of one group: one operation on one block of columns."""

    def __init__(self, ctx: BuildContext, group: str, terms: list[ObservationTermInfo]) -> None:
        noisy = [term for term in terms if term.cfg.noise is not None]
        self.start = min(term.start for term in noisy)
        self.stop = max(term.start + term.width for term in noisy)
        self._sources: dict[str, list[Callable[[], Tensor]]] = {"step": [], "reset": []}
        for phase, sources in self._sources.items():
            for term in terms:
                if self.start <= term.start < self.stop:
                    ctx.owner = f"observations/{group}/{term.name}"
                    noise = term.cfg.noise or UniformNoiseCfg(low=0.0, high=0.0)
                    sources.append(ctx.uniform(term.width, phase, noise.low, noise.high))
        self._views: dict[str, Tensor] = {}

    def add(self, values: Tensor, phase: str) -> None:
        uniform = self._views.get(phase)
        if uniform is None:
            uniform = self._views[phase] = _adjacent([s() for s in self._sources[phase]])
        values[:, self.start : self.stop].add_(uniform)


def _adjacent(parts: list[Tensor]) -> Tensor:
    """One view over neighbouring column blocks of the same tensor."""
    first, width = parts[0], sum(part.shape[1] for part in parts)
    offset = first.storage_offset()
    for part in parts:
        if part.storage_offset() != offset:
            raise ConfigError("noise streams of one group are not neighbours")
        offset += part.shape[1]
    return first.as_strided((first.shape[0], width), first.stride())


class _Group:
    """One observation group."""

    def __init__(self, ctx: BuildContext, name: str, cfg: ObservationGroupCfg) -> None:
        self.name = name
        self.terms: list[ObservationTermInfo] = []
        self.keys: list[str] = []
        self.bound: list[BoundTerm] = []
        self.width = 0

    def finish(self, ctx: BuildContext, cfg: ObservationGroupCfg) -> None:
        self.buffer = ctx.zeros(self.width)
        self._scratch = ctx.zeros(self.width)
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
            group = _Group(ctx, group_name, cfg)
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

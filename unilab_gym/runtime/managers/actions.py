"""Action manager: owns the action box, the action history, its delay and the controls.

Pipeline: raw -> NaN to 0 (with a fault bit), infinity to the bound -> clamp to [-box, box] ->
history (`last_action` is this value) -> delay -> offset + scale x a (+ joint position, where the
action is relative) -> optional target clip -> controls.

A delayed action takes effect some control steps later: until the first one of an episode arrives
the action in effect is 0. What `last_action` and the action-rate penalty see is not delayed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from unilab_gym.config import ActionTermCfg, delay_of
from unilab_gym.errors import ConfigError
from unilab_gym.model_index import ModelIndex
from unilab_gym.runtime.buffers import DelayLine, Lags
from unilab_gym.runtime.reads import Action, JointPos
from unilab_gym.runtime.rows import RowMask
from unilab_gym.runtime.term import ActionSpec, BuildContext, TermFrame, full_params, told

_ORDERS = 3
_RELATIVE = "relative_joint_position"


def resolve_actions(
    terms: Mapping[str, ActionTermCfg], index: ModelIndex, clip: bool = True
) -> dict[str, ActionSpec]:
    """Resolves every action term to numbers, without an environment.

    Raises:
        ConfigError: If a term fits nothing, or two terms drive one actuator.
    """
    specs: dict[str, ActionSpec] = {}
    taken: dict[str, str] = {}
    for name, cfg in terms.items():
        with told(f"actions/{name}", cfg.params):
            resolve = getattr(cfg.func, "resolve", None)
            if resolve is None:
                raise ConfigError(f"{cfg.func!r} is not an action class")
            params = full_params(resolve, cfg.params) | {"clipped": clip}
            spec: ActionSpec = resolve(index, **params)
        for actuator in spec.actuators:
            if actuator in taken:
                raise ConfigError(
                    f"actions/{name}: actuator {actuator!r} is driven by {taken[actuator]!r} too"
                )
            taken[actuator] = name
        specs[name] = spec
    return specs


class ActionManager:
    """Turns actions `[N, A]` into controls `[N, nu]`."""

    def __init__(
        self, ctx: BuildContext, terms: Mapping[str, ActionTermCfg], clip: bool = True
    ) -> None:
        """Resolves the terms and allocates the carriers."""
        self.specs = resolve_actions(terms, ctx.index, clip)
        specs = list(self.specs.values())
        self.width = sum(len(spec.joints) for spec in specs)
        self._clip = clip
        box = [spec.box for spec in specs for _ in spec.joints]
        self.box = ctx.tensor(box)
        """Bounds `[A]`."""
        self._uniform_box = box[0] if len(set(box)) == 1 else None
        self.ctrl = ctx.zeros(ctx.index.nu, key="ctrl")
        self.ctrl.copy_(ctx.tensor(ctx.index.default_ctrl))
        """Controls handed to the backend."""
        scale = [x for spec in specs for x in spec.scale]
        self._scale = ctx.tensor(scale[:1] if len(set(scale)) == 1 else scale)
        self._offset = ctx.tensor([x for spec in specs for x in spec.offset])
        clips = [
            bounds
            for spec in specs
            for bounds in (spec.target_clip or [(-torch.inf, torch.inf)] * len(spec.joints))
        ]
        self._has_target_clip = any(spec.target_clip for spec in specs)
        self._low, self._high = ctx.tensor(clips).unbind(1)
        order = {actuator.name: actuator.index for actuator in ctx.index.actuators}
        columns = [order[name] for spec in specs for name in spec.actuators]
        self._all = columns == list(range(ctx.index.nu))
        self._columns = ctx.tensor(columns, dtype=torch.int64)
        # One block of contiguous rows per order: slices of one row would slow down who reads them.
        shape = (_ORDERS, ctx.num_envs, self.width)
        memory = torch.zeros(shape, dtype=torch.float32, device=ctx.device)
        self._history = ctx.state.add_rows(ctx.owner, "history", memory.transpose(0, 1))
        self._past = memory.unbind(0)
        self._target = self.ctrl if self._all else ctx.scratch(self.width, key="target")
        self.use_orders(1)
        for order_ in range(_ORDERS):
            ctx.frame.provide(Action(order_), self._past[order_])
        self._relative = self._bind_relative(ctx)
        self._lags = Lags()
        with ctx.owned("actions"):
            self._line = self._bind_delay(ctx, terms)

    def _bind_relative(self, ctx: BuildContext) -> list[tuple[Tensor, TermFrame, JointPos]]:
        """Columns of the target to which joint positions are added."""
        found: list[tuple[Tensor, TermFrame, JointPos]] = []
        start = 0
        for name, spec in self.specs.items():
            end = start + len(spec.joints)
            if spec.kind == _RELATIVE:
                read = JointPos(tuple(re.escape(joint) for joint in spec.joints))
                view = ctx.view(f"actions/{name}", (read,), ("step", "reset"))
                found.append((self._target[:, start:end], view, read))
            start = end
        return found

    def _bind_delay(
        self, ctx: BuildContext, terms: Mapping[str, ActionTermCfg]
    ) -> DelayLine | None:
        """The delay line, where a term has a delay."""
        delays = {name: delay_of(cfg.delay) for name, cfg in terms.items()}
        columns: list[int | None] = []
        for name, delay in delays.items():
            owner = f"actions/{name}"
            draw = owner if delay.shared is None else f"actions/delay {delay.shared}"
            drawn = delay.low < delay.high
            columns.append(self._lags.column(ctx, draw, delay, owner) if drawn else None)
        self._lags.build(ctx, "actions")
        if not any(delay.high for delay in delays.values()):
            return None
        widths = [len(spec.joints) for spec in self.specs.values()]
        return DelayLine(ctx, widths, list(delays.values()), self._lags, columns, self.action)

    def use_orders(self, count: int) -> None:
        """How many past actions anybody reads; older ones are not kept."""
        self._orders = max(1, count)
        self._history_words = self._history[:, : self._orders].view(torch.int32)

    @property
    def action(self) -> Tensor:
        """This step's clamped action `[N, A]`."""
        return self._past[0]

    def process(self, action: Tensor) -> None:
        """Takes a raw action `[N, A]` and writes the controls."""
        for order in range(self._orders - 1, 0, -1):
            self._past[order].copy_(self._past[order - 1])
        current = self.action
        bound = self._uniform_box
        if bound is None:
            torch.nan_to_num(action, nan=0.0, out=current)
            torch.clamp(current, -self.box, self.box, out=current)
            if not self._clip:
                torch.where(action.abs() < torch.inf, action, current, out=current)
        else:
            torch.nan_to_num(action, nan=0.0, posinf=bound, neginf=-bound, out=current)
            if self._clip:
                current.clamp_(-bound, bound)
        torch.mul(self._in_effect(current), self._scale, out=self._target)
        self._target.add_(self._offset)
        for columns, frame, read in self._relative:
            columns.add_(frame[read])
        if self._has_target_clip:
            torch.clamp(self._target, self._low, self._high, out=self._target)
        if not self._all:
            self.ctrl.index_copy_(1, self._columns, self._target)

    def _in_effect(self, current: Tensor) -> Tensor:
        """The action that reaches the actuators in this step."""
        if self._line is None:
            return current
        if self._lags.advance():
            self._line.read_lags()
        self._line.push()
        return self._line.delayed

    def reset(self, rows: RowMask) -> None:
        """The chosen rows forget their past actions and draw their latency."""
        self._history_words.bitwise_and_(rows.kept_block)
        if self._line is not None:
            self._line.clear(rows.column)
            if self._lags.reset(rows.rows):
                self._line.read_lags()

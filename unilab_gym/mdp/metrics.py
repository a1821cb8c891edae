"""Metrics: numbers that are logged, never rewarded."""

from __future__ import annotations

import torch
from torch import Tensor

from unilab_gym.runtime.reads import AngVelErrorSq, GeomContact, GeomHeight, LinVelErrorSq
from unilab_gym.runtime.term import BuildContext, Term, TermFrame, term


@term(reads=lambda p: (LinVelErrorSq(p["command"]),))
def lin_vel_error(frame: TermFrame, *, command: str) -> Tensor:  # [N]
    """|v_xy - c_xy| in the base frame, m/s."""
    return frame[LinVelErrorSq(command)].sqrt()


@term(reads=lambda p: (AngVelErrorSq(p["command"]),))
def ang_vel_error(frame: TermFrame, *, command: str) -> Tensor:  # [N]
    """|w_z - c_yaw| in the base frame, rad/s."""
    return frame[AngVelErrorSq(command)].sqrt()


@term(reads=lambda p: (GeomHeight(p["feet"]), GeomContact(p["feet"], p["margin"])))
class SwingClearance(Term):
    """Peak height of the swings that end in this step, m: the lowest of them, 0 where none ends.

    A swing is at least `min_air_s` without contact; its height is that of the foot's lowest
    point.
    """

    def __init__(
        self, ctx: BuildContext, *, feet: tuple[str, ...], margin: float, min_air_s: float = 0.08
    ) -> None:
        """Allocates air time and peak height per foot."""
        super().__init__(ctx)
        self._reads = (GeomHeight(feet), GeomContact(feet, margin))
        count = len(ctx.index.match("geom", feet))
        self._min_steps = max(1, round(min_air_s / ctx.control_dt))
        self._air = ctx.zeros(count, key="air")
        self._peak = ctx.zeros(count, key="peak")

    def __call__(self, frame: TermFrame) -> Tensor:  # [N]
        """Advances the swings and reports those that end."""
        height, contact = frame[self._reads[0]], frame[self._reads[1]]
        torch.maximum(self._peak, height, out=self._peak)
        landed = contact & (self._air >= self._min_steps)
        lowest = torch.where(landed, self._peak, torch.inf).amin(-1)
        self._air.add_(1.0).masked_fill_(contact, 0.0)
        self._peak.masked_fill_(contact, 0.0)
        return lowest.masked_fill_(lowest == torch.inf, 0.0)

    def reset(self, mask: Tensor) -> None:
        """No foot is in the air."""
        self._air.masked_fill_(mask.unsqueeze(1), 0.0)
        self._peak.masked_fill_(mask.unsqueeze(1), 0.0)

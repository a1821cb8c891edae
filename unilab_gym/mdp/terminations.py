"""Termination terms: one flag per environment."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unilab_gym.math import number
from unilab_gym.runtime.reads import EpisodeStep, GeomContact, ProjectedGravity, Sensors
from unilab_gym.runtime.term import BuildContext, Term, TermFrame, term


@term(reads=(EpisodeStep(),))
class TimeOut(Term):
    """True where the episode has reached its limit; use with `time_out=True`."""

    is_time_limit = True
    """Refused as a failure: a forgotten `time_out=True` would stop the bootstrapping."""

    def __init__(self, ctx: BuildContext) -> None:
        """Takes the limit in control steps."""
        super().__init__(ctx)
        self._limit = ctx.tensor(ctx.max_episode_steps, torch.int64)

    def __call__(self, frame: TermFrame) -> Tensor:  # [N] bool
        """Compares the episode's steps with the limit."""
        return frame[EpisodeStep()] >= self._limit


@term(reads=(ProjectedGravity(),), adjustable=("limit_deg",))
def bad_orientation(frame: TermFrame, *, limit_deg: float | Tensor) -> Tensor:  # [N] bool
    """True where the base's z axis is more than `limit_deg` degrees from vertical."""
    if isinstance(limit_deg, Tensor):  # moved by a curriculum
        limit = torch.cos(limit_deg * (math.pi / 180.0))
    else:
        limit = math.cos(math.radians(limit_deg))
    down = frame[ProjectedGravity()][:, 2]
    return down > number(-limit, down)


@term(reads=lambda p: (GeomContact(p["geoms"], p["margin"]),))
def geom_contact(frame: TermFrame, *, geoms: tuple[str, ...], margin: float) -> Tensor:  # [N] bool
    """True where any of the geoms is below `margin` m over flat ground (kinematic)."""
    return frame[GeomContact(geoms, margin)].any(-1)


@term(reads=lambda p: (Sensors(p["sensors"]),), adjustable=("limit",))
def illegal_contact(
    frame: TermFrame, *, sensors: tuple[str, ...], limit: float
) -> Tensor:  # [N] bool
    """True where any of the sensors reports a force above `limit` N in the last substep.

    Sensors are of one width: touch (1), force or contact force (3, whose length counts). Fit for
    any contact; for flat ground alone `geom_contact` is exact and needs no sensor.
    """
    force = frame[Sensors(sensors)].square().sum(-1).amax(-1)
    return force > limit * limit

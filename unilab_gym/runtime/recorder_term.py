"""What recorders are written from: `RecorderTerm`, and the `Boundary` that they look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from unilab_gym.runtime.term import BuildContext


@dataclass(frozen=True)
class Boundary:
    """The runtime's own tensors, in place for life: read them in a hook, never write them."""

    obs: Mapping[str, Tensor]
    """Observation groups `[N, D]` of the current boundary."""
    action: Tensor  # [N, A], the clamped action of this step
    reward: Tensor  # [N]
    terminated: Tensor  # [N] bool
    truncated: Tensor  # [N] bool
    qpos: Tensor  # [N, nq]
    qvel: Tensor  # [N, nv]


class RecorderTerm:
    """Base of recorders. A hook runs within a step: it must not wait for the device.

    Parameters are the subclass's keyword-only arguments; decorate it with `@term()`.
    """

    def __init__(self, ctx: BuildContext, now: Boundary) -> None:
        """Keeps the sizes and the boundary."""
        self.num_envs = ctx.num_envs
        self.device = ctx.device
        self.now = now

    def post_step(self) -> None:
        """A step is done, before any reset: `now.obs` holds the terminal observations."""

    def pre_reset(self, mask: Tensor) -> None:
        """Rows where `mask` `[N]` is true are about to reset; possibly none."""

    def post_reset(self, mask: Tensor) -> None:
        """They have: `now.obs` and the state show their new episodes."""

    def close(self) -> None:
        """The environment closes; a second call does nothing."""

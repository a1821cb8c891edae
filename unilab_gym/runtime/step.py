"""One control step and the masked reset, in order. Nothing else happens here.

The order is a contract: see `docs/runtime.md` for the figure and the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unilab_gym.backends.base import Backend, StateViews
from unilab_gym.runtime.carriers import EpisodeCarriers
from unilab_gym.runtime.faults import FaultMonitor
from unilab_gym.runtime.frame import Frame
from unilab_gym.runtime.log import EpisodeLog
from unilab_gym.runtime.managers.actions import ActionManager
from unilab_gym.runtime.managers.commands import CommandManager
from unilab_gym.runtime.managers.curriculum import CurriculumManager
from unilab_gym.runtime.managers.events import EventManager
from unilab_gym.runtime.managers.metrics import MetricsManager
from unilab_gym.runtime.managers.observations import ObservationManager
from unilab_gym.runtime.managers.rewards import RewardManager
from unilab_gym.runtime.managers.terminations import TerminationManager
from unilab_gym.runtime.receipts import ReceiptLedger
from unilab_gym.runtime.rng import ManagerRng


@dataclass
class Runtime:
    """Everything that a step touches."""

    backend: Backend
    receipts: ReceiptLedger
    views: StateViews
    frame: Frame
    rng: ManagerRng
    faults: FaultMonitor
    actions: ActionManager
    observations: ObservationManager
    rewards: RewardManager
    terminations: TerminationManager
    commands: CommandManager
    events: EventManager
    metrics: MetricsManager
    curriculum: CurriculumManager
    log: EpisodeLog
    carriers: EpisodeCarriers
    episode_step: Tensor  # [N] int64


def advance(rt: Runtime, action: Tensor) -> None:
    """Physics and everything computed at Frame A, up to the terminal observation."""
    rt.curriculum.update()
    rt.rng.advance()
    rt.rng.draw()
    rt.faults.begin(action)
    rt.actions.process(action)

    rt.receipts.accept(rt.backend.step(rt.actions.ctrl, rt.events.interval))
    rt.frame.advance()  # Frame A holds until the reset: nothing below writes engine state
    rt.episode_step.add_(1)

    rt.terminations.compute()
    rt.faults.finish(rt.backend.faults(), _state(rt.views), rt.rewards.compute())
    rt.rewards.finish(rt.faults.bad)
    rt.terminations.finish(rt.faults.bad)
    rt.metrics.compute(rt.faults.bad)
    rt.log.compute(rt.terminations.done)

    rt.commands.update()
    rt.frame.commands_changed()
    rt.events.update()
    # A faulty row's state is meaningless: it keeps the observation of the boundary before.
    rt.observations.compute(keep=rt.faults.bad)


def _state(views: StateViews) -> Tensor:
    if views.packed is not None:
        return views.packed
    return torch.cat((views.qpos, views.qvel), 1)


def masked_reset(rt: Runtime, mask: Tensor) -> None:
    """New episodes in the rows where `mask` `[N]` is true; every other row stays as it is.

    Always at full width: an empty, a partial and a full mask take the same path.
    """
    payload = rt.events.stage_reset()
    rt.commands.stage_reset(payload)
    rt.receipts.accept(rt.backend.reset(payload, mask))
    rt.frame.advance()  # Frame B: only what observations declare is refreshed
    rt.episode_step.masked_fill_(mask, 0)
    rt.carriers.reset(mask)
    rt.actions.reset(mask)
    rt.rewards.reset(mask)
    rt.terminations.reset(mask)
    rt.metrics.reset(mask)
    rt.commands.reset(mask)
    rt.frame.commands_changed()
    rt.events.reset(mask)
    rt.observations.reset(mask)
    rt.observations.compute_reset(mask)
    rt.rng.start_episode(mask)

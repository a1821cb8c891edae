"""One control step and the masked reset, in order. Nothing else happens here.

The order is a contract: see `docs/runtime.md` for the figure and the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from unilab_gym.backends.base import Backend, StateViews
from unilab_gym.runtime.carriers import EpisodeCarriers, StateRegistry
from unilab_gym.runtime.fault_ring import FaultRing
from unilab_gym.runtime.faults import FaultMonitor
from unilab_gym.runtime.frame import Frame
from unilab_gym.runtime.log import EpisodeLog
from unilab_gym.runtime.managers.actions import ActionManager
from unilab_gym.runtime.managers.commands import CommandManager
from unilab_gym.runtime.managers.curriculum import CurriculumManager
from unilab_gym.runtime.managers.events import EventManager
from unilab_gym.runtime.managers.metrics import MetricsManager
from unilab_gym.runtime.managers.observations import ObservationManager
from unilab_gym.runtime.managers.recorder import RecorderManager
from unilab_gym.runtime.managers.rewards import RewardManager
from unilab_gym.runtime.managers.terminations import TerminationManager
from unilab_gym.runtime.receipts import ReceiptLedger
from unilab_gym.runtime.rng import ManagerRng
from unilab_gym.runtime.rows import RowMask


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
    state: StateRegistry
    episode_step: Tensor  # [N] int64
    recorders: RecorderManager = field(init=False)
    """Built last: it looks at what the others carry, and may hold files."""
    faulty: RowMask = field(init=False)
    void: RowMask = field(init=False)
    """Rows whose step counts for nothing: faulty, or restarting."""
    ring: FaultRing | None = None
    """Past steps for dumps, where the config asks for them."""

    def __post_init__(self) -> None:
        """Allocates the masks."""
        bad = self.faults.bad
        self.faulty = self.state.add_mask("env", "rows/faulty", bad)
        void = self.state.add_scratch("env", "rows/void", torch.zeros_like(bad))
        self.void = self.state.add_mask("env", "rows/void", void)


def advance(rt: Runtime, action: Tensor, restart: Tensor | None = None) -> None:
    """Physics and everything computed at Frame A, up to the terminal observation.

    Rows in `restart` `[N]` bool ended before and begin anew after this step: no action, reward 0,
    no flag, no fault. `Terminated` still says there what ended them, for their reset to read.
    """
    rt.curriculum.update()
    if restart is not None:
        action = action.masked_fill(restart.unsqueeze(1), 0.0)
    rt.rng.advance()
    rt.rng.draw()
    rt.faults.begin(action)
    rt.actions.process(action)
    if rt.ring is not None:
        rt.ring.record(action, rt.actions.ctrl, rt.events.interval, rt.episode_step)

    rt.events.models.commit()
    rt.receipts.accept(rt.backend.step(rt.actions.ctrl, rt.events.interval))
    rt.frame.advance()  # Frame A holds until the reset: nothing below writes engine state
    rt.episode_step.add_(1)

    rt.terminations.compute(keep=restart)
    rt.faults.finish(rt.backend.faults(), _state(rt.views), rt.rewards.compute(), restart)
    if rt.ring is not None:
        rt.ring.finish(rt.faults.word)
    faulty = void = rt.faulty.refresh()
    if restart is not None:
        torch.logical_or(faulty.rows, restart, out=rt.void.rows)
        void = rt.void.refresh()
    rt.rewards.finish(void)
    rt.terminations.finish(rt.faults.bad, restart)
    rt.metrics.compute(void)
    rt.log.compute(rt.terminations.done)

    rt.commands.update()
    rt.frame.commands_changed()
    rt.events.update()
    # A faulty row's state is meaningless: it keeps the observation of the boundary before.
    rt.observations.compute(keep=faulty)
    if rt.recorders.terms:
        rt.observations.publish()
        rt.recorders.post_step()


def _state(views: StateViews) -> Tensor:
    if views.packed is not None:
        return views.packed
    return torch.cat((views.qpos, views.qvel), 1)


def masked_reset(rt: Runtime, rows: RowMask, start: Tensor | None = None) -> None:
    """New episodes in the chosen rows; every other row stays as it is.

    Always at full width: an empty, a partial and a full mask take the same path. Episodes begin
    where events and commands say, or at the engine rows `start` `[N, nstate]`.
    """
    mask = rows.refresh().rows
    rt.recorders.pre_reset(mask)
    payload = rt.events.stage_reset()
    rt.commands.stage_reset(payload)
    rt.events.models.write_reset(mask)
    if start is None:
        rt.receipts.accept(rt.backend.reset(payload, mask))
    else:
        rt.receipts.accept(rt.backend.set_state(start, mask))
    rt.frame.advance()  # Frame B: only what observations declare is refreshed
    rt.episode_step.masked_fill_(mask, 0)
    rt.carriers.reset(rows)
    rt.actions.reset(rows)
    rt.rewards.reset(mask)
    rt.metrics.reset(mask)
    rt.commands.reset(mask)
    rt.terminations.reset(mask)  # after the commands, which may read what ended the episode
    rt.frame.commands_changed()
    rt.events.reset(mask)
    rt.observations.reset(mask)
    rt.observations.compute_reset(rows)
    rt.rng.start_episode(mask)
    rt.recorders.post_reset(mask)

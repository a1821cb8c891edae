"""`ManagerBasedRlEnv`: the runtime without Gymnasium.

Usable by itself: `step(action)` and `reset(...)` return a `TorchEnvState` whose tensors are the
runtime's persistent carriers, valid until the next call. `unilab_gym.vector_env` adds spaces,
modes and copies on top.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from unilab_gym.backends.base import Backend, BackendSpec
from unilab_gym.config import EnvCfg
from unilab_gym.errors import ConfigError, near
from unilab_gym.model_index import ModelIndex
from unilab_gym.runtime import rng as rng_module
from unilab_gym.runtime import state as state_module
from unilab_gym.runtime.fault_report import FaultReporter
from unilab_gym.runtime.faults import FaultMonitor
from unilab_gym.runtime.frame import Frame, SceneTensorReadPlan
from unilab_gym.runtime.log import EpisodeLog
from unilab_gym.runtime.managers.actions import ActionManager
from unilab_gym.runtime.managers.commands import CommandManager
from unilab_gym.runtime.managers.curriculum import CurriculumManager, moved_paths
from unilab_gym.runtime.managers.events import EventManager, event_fields
from unilab_gym.runtime.managers.metrics import MetricsManager
from unilab_gym.runtime.managers.observations import ObservationManager
from unilab_gym.runtime.managers.recorder import RecorderManager
from unilab_gym.runtime.managers.rewards import RewardManager
from unilab_gym.runtime.managers.terminations import TerminationManager
from unilab_gym.runtime.reads import Action, EpisodeStep, Terminated
from unilab_gym.runtime.receipts import ReceiptLedger
from unilab_gym.runtime.recorder_term import Boundary
from unilab_gym.runtime.step import Runtime, advance, masked_reset
from unilab_gym.runtime.term import BuildContext

FaultPolicy = Literal["quarantine", "raise"]


@dataclass
class TorchEnvState:
    """What a step publishes; tensors are carriers that the next call overwrites."""

    obs: dict[str, Tensor]
    """Observation groups `[N, D]`; rows that ended show their new episode (with autoreset)."""
    reward: Tensor  # [N] float32
    terminated: Tensor  # [N] bool
    truncated: Tensor  # [N] bool, never together with terminated
    final_obs: dict[str, Tensor]
    """Observation groups of this boundary before any reset."""


class _Quiet:
    """What `quiet_torch` returns: a generator would take longer than all it does.

    It can be entered again and again, within itself too (a term that calls its environment).
    """

    __slots__ = ("_inner", "_inside", "_modes", "_single_thread", "_threads")

    def __init__(self, single_thread: bool, inference: bool) -> None:
        self._single_thread = single_thread
        self._modes = (torch.inference_mode(inference), None if inference else torch.no_grad())
        self._inside = False
        self._inner: list[_Quiet] = []

    def __enter__(self) -> None:
        if self._inside:  # torch's modes remember one entry
            self._inner.append(_Quiet(self._single_thread, self._modes[1] is None))
            return self._inner[-1].__enter__()
        self._inside = True
        self._threads = torch.get_num_threads()
        if self._single_thread and self._threads != 1:
            torch.set_num_threads(1)
        mode, no_grad = self._modes
        mode.__enter__()
        if no_grad is not None:
            no_grad.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._inner:
            return self._inner.pop().__exit__(*error)
        self._inside = False
        mode, no_grad = self._modes
        if no_grad is not None:
            no_grad.__exit__(*error)
        mode.__exit__(*error)
        if self._single_thread and self._threads != 1:
            torch.set_num_threads(self._threads)


def quiet_torch(single_thread: bool, *, inference: bool = False) -> _Quiet:
    """A context without gradients, and with one torch thread where physics owns the CPUs.

    With `inference`, for what only writes carriers: new tensors are inference tensors, which saves
    a tenth of every operation's dispatch. Without it none are, and callers may do what they like.

    Torch's thread count is saved and restored: with its default pool beside the physics threads
    one copy of the state costs up to 70 times as much.
    """
    return _Quiet(single_thread, inference)


class ManagerBasedRlEnv:
    """N environments of one `EnvCfg` on one backend.

    Args:
        cfg: The environment.
        index: Name tables of the compiled model.
        backend: A function that builds the backend from the spec that this class completes.
        spec: The backend's spec; model fields are added from the events.
        seed: Seed of the streams; None takes one from the operating system.
        rank: Number of this process among several: environments count on from it.
        on_fault: "quarantine" ends a faulty row's episode; "raise" raises naming the rows, at
            once on the CPU and a step or so late on CUDA, where nothing is waited for.
    """

    def __init__(
        self,
        cfg: EnvCfg,
        index: ModelIndex,
        backend: Callable[[BackendSpec], Backend],
        spec: BackendSpec,
        *,
        seed: int | None = None,
        rank: int = 0,
        on_fault: FaultPolicy = "quarantine",
        max_episode_steps: int | None = None,
    ) -> None:
        """Builds managers and backend, compiles the read plan."""
        if on_fault not in ("quarantine", "raise"):
            raise ConfigError(f"on_fault {near(str(on_fault), ('quarantine', 'raise'))}")
        self.cfg = cfg
        self.index = index
        self.num_envs = spec.num_envs
        self.device = spec.device
        self.seed = rng_module.fresh_seed() if seed is None else int(seed)
        self.rank = rank
        self.max_episode_steps = max_episode_steps or cfg.max_episode_steps
        self._on_fault = on_fault
        self._single_thread = spec.device.type == "cpu"
        self._quiet = quiet_torch(self._single_thread, inference=True)  # of a step
        self._closed = False
        self._backend: Backend | None = None
        fields = event_fields(cfg.events)
        with quiet_torch(self._single_thread):
            self._backend = backend(dataclasses.replace(spec, model_fields=fields))
            try:
                self._backend.capabilities.check_runtime(on_fault)
                self._build()
            except BaseException:
                self._backend.close()
                raise

    def _context(self) -> BuildContext:
        return BuildContext(
            num_envs=self.num_envs,
            device=self.device,
            index=self.index,
            control_dt=self.cfg.ctrl_dt,
            max_episode_steps=self.max_episode_steps,
            rng=rng_module.ManagerRng(self.num_envs, self.device),
            frame=Frame(),
            nominal=self.backend.nominal,
            moved=moved_paths(self.cfg.curriculum),
        )

    def _build(self) -> None:
        backend, ctx = self.backend, self._context()
        frame, rng = ctx.frame, ctx.rng
        episode_step = ctx.zeros(dtype=torch.int64, key="env/episode_step")
        frame.provide(EpisodeStep(), episode_step)
        with ctx.owned("actions"):
            actions = ActionManager(ctx, self.cfg.actions, self.cfg.clip_actions)
        with ctx.owned("commands"):
            commands = CommandManager(ctx, self.cfg.commands)
        with ctx.owned("observations"):
            observations = ObservationManager(ctx, self.cfg.observations)
        with ctx.owned("rewards"):
            rewards = RewardManager(ctx, self.cfg.rewards)
        with ctx.owned("terminations"):
            terminations = TerminationManager(ctx, self.cfg.terminations)
        with ctx.owned("events"):
            events = EventManager(ctx, self.cfg.events, backend)
        with ctx.owned("metrics"):
            metrics = MetricsManager(ctx, self.cfg.metrics, play=self.cfg.play)
        with ctx.owned("curriculum"):
            curriculum = CurriculumManager(ctx, self.cfg.curriculum)
        faults = FaultMonitor(self.num_envs, self.device)
        with ctx.owned("log"):
            log = EpisodeLog(ctx, rewards, terminations, metrics, faults)
        self._compile_reads(ctx, actions, terminations)
        rng.build()
        for part in (rng, faults):
            part.register(ctx.state)
        ctx.carriers.trim()
        rng.set_keys(rng_module.constructor_keys(self.seed, self.num_envs, self.rank))
        self.rt = Runtime(
            backend=backend,
            receipts=ReceiptLedger(backend.producer),
            views=backend.views(),
            frame=frame,
            rng=rng,
            faults=faults,
            actions=actions,
            observations=observations,
            rewards=rewards,
            terminations=terminations,
            commands=commands,
            events=events,
            metrics=metrics,
            curriculum=curriculum,
            log=log,
            carriers=ctx.carriers,
            state=ctx.state,
            episode_step=episode_step,
        )
        self._check_terms()
        self._publish(ctx)

    def _check_terms(self) -> None:
        """Computes every term once, so that what does not fit is named before the first step."""
        rt = self.rt
        rt.events.restores |= rt.commands.adds_to_reset
        rt.rng.draw()  # so that checks see draws
        managers = (rt.observations, rt.rewards, rt.terminations, rt.metrics)
        for manager in (*managers, rt.events, rt.curriculum):
            manager.check()

    def _compile_reads(
        self, ctx: BuildContext, actions: ActionManager, terminations: TerminationManager
    ) -> None:
        """Turns what was declared into the backend's plan."""
        self.read_plan: SceneTensorReadPlan = ctx.frame.plan()
        orders = [read.order for read in self.read_plan.runtime if isinstance(read, Action)]
        actions.use_orders(1 + max(orders, default=0))
        terminations.use_reads(any(isinstance(r, Terminated) for r in self.read_plan.runtime))
        ctx.frame.bind(self.backend.compile_reads(self.read_plan.engine))

    def _publish(self, ctx: BuildContext) -> None:
        """Allocates what this class itself carries and publishes."""
        with ctx.owned("env"):
            self._mask = ctx.scratch(dtype=torch.bool, key="mask")
            self._started = ctx.zeros(dtype=torch.bool, key="started")
            self.pending = ctx.zeros(dtype=torch.bool, key="pending")
            """Rows `[N]` that ended and have not begun a new episode (without autoreset)."""
        state, done = self.rt.state, self.rt.terminations.done
        self._ended = state.add_mask("env", "rows/ended", done)
        self._waiting = state.add_mask("env", "rows/waiting", self.pending)
        self._chosen = state.add_mask("env", "rows/chosen", self._mask)
        self._needs_startup = True
        rt = self.rt
        self.faults: FaultReporter | None = None
        """Dumps and raises, where that was asked for."""
        if self._on_fault == "raise" or self.cfg.fault_dump is not None:
            self.faults = FaultReporter(
                self.rt,
                self.cfg,
                action_size=self.action_size,
                seed=self.seed,
                rank=self.rank,
                raises=self._on_fault == "raise",
            )
        self.state = TorchEnvState(
            obs=rt.observations.buffers,
            reward=rt.rewards.reward,
            terminated=rt.terminations.terminated,
            truncated=rt.terminations.truncated,
            final_obs=rt.observations.boundaries,
        )
        now = Boundary(
            obs=rt.observations.buffers,
            action=rt.actions.action,
            reward=rt.rewards.reward,
            terminated=rt.terminations.terminated,
            truncated=rt.terminations.truncated,
            qpos=rt.views.qpos,
            qvel=rt.views.qvel,
        )
        rt.recorders = RecorderManager(ctx, self.cfg.recorders, now)

    @property
    def backend(self) -> Backend:
        """The engine."""
        assert self._backend is not None
        return self._backend

    @property
    def action_size(self) -> int:
        """Columns of an action."""
        return self.rt.actions.width

    @property
    def commands(self) -> CommandManager:
        """Commands, to hold and release them."""
        return self.rt.commands

    def step(
        self, action: Tensor, *, autoreset: bool = True, restart: bool = False
    ) -> TorchEnvState:
        """One control step of every environment.

        Args:
            action: `[N, A]` float32 on this device; not kept, not changed.
            autoreset: Whether rows that end start a new episode within this step.
            restart: Whether rows that ended in the step before start a new episode in this one,
                whatever their action and physics: reward 0, no flag. Goes with autoreset False.

        Returns:
            The published state: carriers that the next call overwrites.

        Raises:
            ConfigError: If the action's shape, dtype or device differ.
            FaultError: With `on_fault="raise"`, where a row is faulty (on CUDA: was).
        """
        wanted = (self.num_envs, self.action_size)
        fits = action.shape == wanted and action.dtype == torch.float32
        if not fits or action.device.type != self.device.type:
            raise ConfigError(
                f"action must be float32 {wanted} on {self.device}, got {action.dtype} "
                f"{tuple(action.shape)} on {action.device}"
            )
        with self._quiet:
            advance(self.rt, action, self.pending if restart else None)
            done = self.rt.terminations.done
            if autoreset:
                masked_reset(self.rt, self._ended)
            elif restart:
                masked_reset(self.rt, self._waiting)
                self.pending.copy_(done)
            else:
                self.rt.observations.publish()
                self.pending.logical_or_(done)
            if self.faults is not None:
                self.faults.look()
        return self.state

    def reset(
        self,
        *,
        keys: Sequence[int | None] | None = None,
        mask: Tensor | None = None,
    ) -> TorchEnvState:
        """Starts new episodes.

        Args:
            keys: New stream keys, one per environment (None keeps a stream); see
                `unilab_gym.runtime.rng.seed_keys`.
            mask: `[N]` bool; None resets every row.

        Returns:
            The published state; flags are those of the last step.

        Raises:
            ConfigError: If the mask is not `[N]` bool, or the keys are not N.
        """
        self._check_rows(keys, mask)
        with quiet_torch(self._single_thread, inference=True):
            self._mask.fill_(True) if mask is None else self._mask.copy_(mask)
            self._begin(keys, whole=mask is None)
        return self.state

    def _check_rows(self, keys: Sequence[int | None] | None, mask: Tensor | None) -> None:
        rows = (self.num_envs,)
        if mask is not None and (mask.dtype != torch.bool or mask.shape != rows):
            raise ConfigError(f"mask must be bool {rows}, got {mask.dtype} {tuple(mask.shape)}")
        if keys is not None and len(keys) != self.num_envs:
            raise ConfigError(f"{self.num_envs} keys are needed, got {len(keys)}")

    def _begin(
        self,
        keys: Sequence[int | None] | None,
        *,
        whole: bool,
        rows: Mapping[str, Tensor] | None = None,
    ) -> None:
        """New episodes in the rows of `self._mask`, where `rows` says or as events draw them."""
        fresh = ~self._started
        if keys is not None:
            self.rt.rng.set_keys(keys, self._mask)
            given = torch.tensor([key is not None for key in keys], device=self.device)
            fresh = fresh | given
        if self._needs_startup or keys is not None:
            self.rt.rng.draw_startup()
            self.rt.events.startup(fresh & self._mask)
            self._started |= self._mask
            self._needs_startup &= not whole
        self.rt.rng.draw()
        self.rt.observations.recall()
        if rows is None:
            masked_reset(self.rt, self._chosen)
        else:
            state_module.write_model(self.rt, rows, self._mask)
            masked_reset(self.rt, self._chosen, rows[state_module.STATE])
        self.pending.masked_fill_(self._mask, False)

    # --- state ---------------------------------------------------------------------------------

    def get_state(
        self, mask: Tensor | None = None, *, physics_only: bool = False
    ) -> dict[str, Tensor]:
        """Copies of everything that later steps of the chosen rows depend on; see `docs/state.md`.

        Args:
            mask: `[N]` bool; the copies then hold these rows only, in order. None takes all.
            physics_only: Only the simulation: engine rows, accelerations, model fields.

        Returns:
            Name -> tensor `[rows, ...]`, picklable, on this device.

        Raises:
            ConfigError: If the mask is not `[N]` bool.
        """
        self._check_rows(None, mask)
        with quiet_torch(self._single_thread):
            return state_module.read_rows(self.rt, mask, physics=physics_only)

    def set_state(
        self,
        state: Mapping[str, Tensor],
        mask: Tensor | None = None,
        *,
        keys: Sequence[int | None] | None = None,
    ) -> TorchEnvState:
        """Puts saved rows back; rows outside the mask keep their bits.

        A whole state is resumed: episode, streams, observation and all. A physics-only one
        begins new episodes at that simulation state. States of either backend fit the other.

        Args:
            state: What `get_state` returned: one row (goes to every masked row), N rows (row by
                row), or as many rows as the mask (in order).
            mask: `[N]` bool; None writes every row.
            keys: New stream keys, one per environment (None keeps a row's): with them, copies of
                one row go on differently.

        Raises:
            ConfigError: On an unknown, missing or mis-shaped entry, named; nothing is written.
        """
        self._check_rows(keys, mask)
        if not isinstance(cast("Any", state), Mapping):
            raise ConfigError(f"a state is a dict of tensors, got {type(state).__name__}")
        with quiet_torch(self._single_thread):
            self._mask.fill_(True) if mask is None else self._mask.copy_(mask)
            physics = all(state_module.is_physics(name) for name in state)
            rows = state_module.full_width(self.rt, state, self._mask, physics=physics)
            if physics:
                self._begin(keys, whole=mask is None, rows=rows)
            else:
                state_module.write_rows(self.rt, rows, self._mask)
                self.rt.recorders.post_reset(self._mask)
                if keys is not None:
                    self.rt.rng.set_keys(keys, self._mask, restart=False)
                self._needs_startup = not state_module.holds_everywhere(self._started)
        return self.state

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the whole environment, to go on with a training in another process.

        What `get_state` holds, and under `shared/` what all environments share: totals, the log,
        curricula, samplers.
        """
        with quiet_torch(self._single_thread):
            return state_module.read_rows(self.rt) | state_module.read_shared(self.rt)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `state_dict` saved, in an environment of the same config and size.

        Raises:
            ConfigError: On an unknown, missing or mis-shaped entry, named; nothing is written.
        """
        shared = {k: v for k, v in state.items() if k.startswith(state_module.SHARED)}
        rows = {name: value for name, value in state.items() if name not in shared}
        with quiet_torch(self._single_thread):
            state_module.check_count(rows, self.num_envs)
            state_module.check_shared(self.rt, shared)
            self.set_state(rows)
            state_module.write_shared(self.rt, shared)

    def log(self) -> dict[str, Tensor]:
        """The episode log as 0-d tensors; a new dict each call."""
        rt = self.rt
        return {**rt.log.values(), **rt.commands.log(), **rt.curriculum.log()}

    def fault_totals(self) -> dict[str, int]:
        """How often each cause was seen since construction (reads the device)."""
        names = [name.removeprefix("fault/") for name in self.rt.log.names if "fault/" in name]
        totals = cast("list[int]", self.rt.faults.total.tolist())
        return dict(zip(names, totals, strict=True))

    def close(self) -> None:
        """Closes recorders and backend; a second call does nothing."""
        if not self._closed and self._backend is not None:
            self._closed = True
            try:
                self.rt.recorders.close()
            finally:
                self._backend.close()

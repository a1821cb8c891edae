"""Measures how many contacts and constraint rows a task needs: behind `unilab-gym size-buffers`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unilab_gym.backends.budgets import round_up
from unilab_gym.errors import ConfigError

_MARGIN = 1.25
"""Recommended over measured: random actions do not reach every pose."""


@dataclass(frozen=True)
class Demand:
    """Percentiles over environments and steps."""

    p50: int
    p99_9: int
    max: int


@dataclass(frozen=True)
class BufferSizes:
    """What a task needed under random actions, and what to set."""

    task: str
    backend: str
    num_envs: int
    steps: int
    contacts: Demand
    """Contacts of one environment in the last substep of a control step."""
    constraints: Demand
    """Constraint rows of one environment."""
    pool: int
    """Most contacts of all environments together, divided by their number and rounded up."""
    nconmax: int
    """Recommended `sim.nconmax`; smaller where memory matters more, never below `pool`."""
    njmax: int
    """Recommended `sim.njmax`."""
    overflowed: bool
    """Whether the budgets in force were too small while this was measured."""

    def __str__(self) -> str:
        """A few lines for a terminal."""
        lines = [
            f"{self.task} on {self.backend}: {self.num_envs} environments x {self.steps} steps",
            f"  {'':<12}{'p50':>6}{'p99.9':>8}{'max':>6}",
        ]
        for name, demand in (("contacts", self.contacts), ("constraints", self.constraints)):
            lines.append(f"  {name:<12}{demand.p50:>6}{demand.p99_9:>8}{demand.max:>6}")
        lines.append(f"  sim.nconmax={self.nconmax}  sim.njmax={self.njmax}")
        if self.overflowed:
            lines.append("  the budgets in force overflowed: measure again with these")
        return "\n".join(lines)


def size_buffers(
    task: str,
    *,
    backend: str = "mujoco",
    num_envs: int = 64,
    steps: int = 500,
    seed: int = 0,
    on_step: Callable[[], None] | None = None,
    **make_kwargs: Any,
) -> BufferSizes:
    """Runs a task under uniformly random actions and counts contacts and constraint rows.

    Both engines make the same contacts of primitive geoms to within one or two, so the quick
    `mujoco` sizes `mjwarp`.

    Args:
        task: A registered id.
        backend: "mujoco" or "mjwarp".
        num_envs: Environments.
        steps: Control steps; episodes that end start anew.
        seed: Of the reset and of the actions.
        on_step: Called after each step, for a line of progress.
        make_kwargs: More arguments of `gymnasium.make_vec`, such as `overrides`.

    Returns:
        The figures; `print` shows them as a table.

    Raises:
        ConfigError: If a number is not positive.
    """
    import gymnasium

    import unilab_gym

    for name, value in (("num_envs", num_envs), ("steps", steps)):
        if value <= 0:
            raise ConfigError(f"{name} must be positive, got {value}")
    assert unilab_gym.task_ids()  # registers them
    env: Any = gymnasium.make_vec(task, num_envs=num_envs, backend=backend, **make_kwargs)
    try:
        return measure(env.unwrapped, task, steps, seed, on_step)
    finally:
        env.close()


def measure(
    env: Any, task: str, steps: int, seed: int, on_step: Callable[[], None] | None = None
) -> BufferSizes:
    """Counts contacts and constraint rows of an environment; see `size_buffers`."""
    runtime = env.runtime
    backend = runtime.backend
    env.reset(seed=seed)
    before = runtime.fault_totals()
    generator = torch.Generator().manual_seed(seed)
    box = runtime.rt.actions.box.cpu()
    contacts: list[Tensor] = []
    constraints: list[Tensor] = []
    for _ in range(steps):
        action = torch.rand(env.num_envs, box.numel(), generator=generator) * 2 - 1
        env.step((action * box).to(runtime.device))
        used = backend.budget_use()
        contacts.append(used[0].cpu())
        constraints.append(used[1].cpu())
        if on_step is not None:
            on_step()
    per_env, rows = torch.stack(contacts), torch.stack(constraints)  # [steps, N]
    counts = runtime.fault_totals()
    budgets = ("contact_pool_overflow", "constraint_overflow")
    pool = -(-int(per_env.sum(1).max()) // env.num_envs)
    return BufferSizes(
        task=task,
        backend=backend.capabilities.name,
        num_envs=env.num_envs,
        steps=steps,
        contacts=_demand(per_env),
        constraints=_demand(rows),
        pool=pool,
        # The pool is shared, so its mean counts; but all may fall at once, in the first step.
        nconmax=round_up(round(_MARGIN * int(per_env.max()))),
        njmax=round_up(round(_MARGIN * int(rows.max()))),
        overflowed=any(counts[name] > before[name] for name in budgets),
    )


def _demand(counts: Tensor) -> Demand:
    values = counts.flatten().sort().values
    ranks = (round(share * (values.numel() - 1)) for share in (0.5, 0.999, 1.0))
    p50, p999, most = (int(values[rank]) for rank in ranks)
    return Demand(p50=p50, p99_9=p999, max=most)

"""Contact and constraint budgets that complain in Python, once, with a value that is enough.

MuJoCo-Warp fixes the pool of contacts (`sim.nconmax` per environment, shared by all) and the
constraint rows of each environment (`sim.njmax`) when it is built. What does not fit is dropped,
and robots sink. The engine keeps the largest demand of every substep on the device; this class
looks at it and warns. `-W error` turns the warning into an exception.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from unilab_gym.errors import BudgetOverflowWarning

CONTACTS, PAIRS, CONSTRAINTS = 0, 1, 2
"""Columns of the demand: contacts and geom pairs of all environments, rows of the neediest one."""


def round_up(count: int) -> int:
    """The next multiple of 8, at least 8: the form in which budgets are given."""
    return max(8, -(-count // 8) * 8)


class BudgetWatch:
    """Looks at the largest demand so far and warns once for each budget that was too small.

    On the CPU it looks after every step. On CUDA the numbers travel to pinned memory every
    `EVERY` steps and are read when they have arrived: nothing waits for the device.
    """

    EVERY = 50

    def __init__(
        self,
        demand: Tensor,
        arrived: Tensor,
        values: Callable[[], list[int]],
        num_envs: int,
        *,
        nconmax: int,
        njmax: int,
        enough: tuple[int, int],
    ) -> None:
        """Keeps the sizes.

        Args:
            demand: `[3]` int32 on the engine's device, only growing; see `CONTACTS`.
            arrived: Where the host reads it: the same tensor on the CPU, pinned memory on CUDA.
            values: Its numbers, as they are.
            num_envs: N.
            nconmax: Contacts per environment in the pool.
            njmax: Constraint rows per environment.
            enough: Values of both that no state of this model exceeds.
        """
        self._demand, self._arrived, self._values = demand, arrived, values
        self._num_envs = num_envs
        self._nconmax, self._njmax, self._enough = nconmax, njmax, enough
        self._told: set[str] = set()
        self._cuda = demand.is_cuda
        self._event: torch.cuda.Event | None = None
        self._steps = 0

    def poll(self) -> None:
        """After a step: warns about what is known by now.

        Raises:
            BudgetOverflowWarning: Where warnings are errors.
        """
        if self._cuda and not self._fetch():
            return
        contacts, pairs, constraints = self._values()
        demand = max(contacts, pairs)
        if demand > self._nconmax * self._num_envs and "nconmax" not in self._told:
            self._told.add("nconmax")
            each = -(-demand // self._num_envs)
            enough = max(self._enough[0], round_up(each + each // 2))
            warnings.warn(
                f"sim.nconmax={self._nconmax} is too small: {demand} contacts in one substep, the "
                f"pool of all {self._num_envs} environments holds "
                f"{self._nconmax * self._num_envs}. Contacts were dropped in any of them (counted "
                f"as fault 'contact_pool_overflow'). sim.nconmax={enough} is enough; None takes "
                "the model's own bound",
                BudgetOverflowWarning,
                stacklevel=3,
            )
        if constraints > self._njmax and "njmax" not in self._told:
            self._told.add("njmax")
            enough = max(self._enough[1], round_up(constraints))
            warnings.warn(
                f"sim.njmax={self._njmax} is too small: an environment needed {constraints} "
                "constraint rows in one substep; its episode ended with fault "
                f"'constraint_overflow'. sim.njmax={enough} is enough; None takes the model's own "
                "bound",
                BudgetOverflowWarning,
                stacklevel=3,
            )

    def _fetch(self) -> bool:
        """Whether numbers have arrived; sends for new ones from time to time."""
        if self._event is not None:
            if not self._event.query():
                return False
            self._event = None
            return True
        self._steps += 1
        if self._steps % self.EVERY == 0:
            self._arrived.copy_(self._demand, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(self._demand.device))
        return False

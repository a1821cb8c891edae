"""Autoreset modes: what happens to a row whose episode has ended.

SAME_STEP: the step that ends it also begins the next one, and `final_obs` holds how it ended.
NEXT_STEP: its terminal observation is returned; the step after ignores its action, gives reward 0
and no flag, and returns the first observation of the next episode.
DISABLED: it keeps its terminal observation until `reset(options={"reset_mask": ...})`; a step
before that is a mistake of the caller, for which `EndedRows` looks out.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

import torch
from gymnasium.error import AlreadyPendingCallError, ResetNeeded
from gymnasium.vector import AutoresetMode
from torch import Tensor

from unilab_gym.errors import ConfigError, near

P = ParamSpec("P")
R = TypeVar("R")
Env = TypeVar("Env", bound="OneThread")

_NAMED = 8
"""Rows that an error names."""


class OneThread(Protocol):
    """What `alone` needs of its class."""

    one_thread: threading.RLock


def to_mode(given: AutoresetMode | str) -> AutoresetMode:
    """The enum's member of a member or of its value.

    Raises:
        ConfigError: If there is no such mode.
    """
    modes = {mode.value: mode for mode in AutoresetMode}
    mode = given if isinstance(given, AutoresetMode) else modes.get(str(given))
    if mode is None:
        raise ConfigError(f"autoreset_mode {near(str(given), modes)}")
    return mode


def alone(method: Callable[Concatenate[Env, P], R]) -> Callable[Concatenate[Env, P], R]:
    """A method of which one thread at a time may be inside; the same thread may come again.

    Two threads in one environment would write the same carriers: both would get wrong numbers. The
    lock is never waited for, and costs about 0.6 us a call.
    """

    @functools.wraps(method)
    def guarded(self: Env, *args: P.args, **kwargs: P.kwargs) -> R:
        if not self.one_thread.acquire(False):
            raise AlreadyPendingCallError(
                f"{method.__name__}() was called while another thread is inside this environment: "
                "call it from one thread at a time, or make one environment for each",
                method.__name__,
            )
        try:
            return method(self, *args, **kwargs)
        finally:
            self.one_thread.release()

    return guarded


class EndedRows:
    """Raises where rows are stepped whose episode has ended (mode DISABLED).

    With `validate` the mask is read on the host before each step, which waits for the device.
    Without it the mask goes to pinned memory by a copy that nobody waits for; the first step
    that finds the copy complete raises, so the error comes one step late.

    Args:
        pending: `[N]` bool carrier: rows that ended and were not reset.
        validate: Whether to look before the step instead of after it.
    """

    def __init__(self, pending: Tensor, validate: bool) -> None:
        """Allocates the host's copy, pinned where the device is a GPU."""
        self._pending = pending
        self._validate = validate
        self._stepped = torch.zeros_like(pending)
        on_gpu = pending.device.type == "cuda"
        self._host = torch.zeros(pending.shape, dtype=torch.bool, device="cpu", pin_memory=on_gpu)
        self._event = torch.cuda.Event() if on_gpu else None
        self._copying = False

    def check(self) -> None:
        """Call before each step.

        Raises:
            ResetNeeded: Names the first rows that ended and were not reset.
        """
        if self._validate:
            if bool(self._pending.any()):
                raise ResetNeeded(_words(self._pending, "ended and were not reset"))
            return
        arrived = self._event is None or self._event.query()
        if self._copying and arrived:
            self._copying = False
            if bool(self._host.any()):
                words = _words(self._host, "were stepped after their episode had ended")
                self._stepped.zero_()
                raise ResetNeeded(words)
        self._stepped.logical_or_(self._pending)
        if not self._copying:
            self._host.copy_(self._stepped, non_blocking=True)
            if self._event is not None:
                self._event.record(torch.cuda.current_stream(self._pending.device))
            self._copying = True


def _words(mask: Tensor, what: str) -> str:
    flags = cast("list[bool]", mask.tolist())
    rows = [row for row, ended in enumerate(flags) if ended]
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    named = ", ".join(str(row) for row in rows[:_NAMED])
    return f"row(s) {named}{more} {what}: call reset(options={{'reset_mask': mask}}) first"

"""CPU placement: confines the process to some CPUs, once, before a physics pool starts."""

from __future__ import annotations

import contextlib
import os
import platform
import warnings

from unilab_gym.errors import ConfigError, UnsupportedCapabilityError

_placed: list[tuple[int, ...]] = []
"""The set in force: one at the most."""


def place(cpu_ids: tuple[int, ...]) -> None:
    """Confines this process and its existing threads to CPUs; threads made later inherit it.

    Nothing else changes: no torch or engine setting, no environment variable. The first call
    decides; another set later only warns, because pools that run keep their threads.

    Args:
        cpu_ids: Numbers as the operating system counts them.

    Raises:
        UnsupportedCapabilityError: On systems without Linux's scheduler interface.
        ConfigError: If a CPU is not usable by this process.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise UnsupportedCapabilityError(
            f"cpu_ids={cpu_ids}: CPU placement needs Linux, this is {platform.system()}; "
            "leave cpu_ids out"
        )
    wanted = tuple(sorted(set(cpu_ids)))
    if _placed:
        if _placed[0] != wanted:
            warnings.warn(
                f"cpu_ids={wanted} is ignored: this process is confined to {_placed[0]} since an "
                "earlier environment",
                UserWarning,
                stacklevel=3,
            )
        return
    usable = os.sched_getaffinity(0)
    missing = [cpu for cpu in wanted if cpu not in usable]
    if missing:
        raise ConfigError(f"cpu_ids {missing} are not usable here; usable: {sorted(usable)}")
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread), wanted)
    _placed.append(wanted)

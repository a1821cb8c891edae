"""Every error that the package raises on purpose, and the helper that words them.

Errors are raised when something is built or called; data inside a step never raises, it sets a
fault bit (see `unilab_gym.backends.base.FaultBit`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnilabGymError(Exception):
    """Base class of the package's own errors."""


class ConfigError(UnilabGymError, ValueError):
    """A configuration that cannot be built: unknown key, no match, value out of range."""


class MotionError(ConfigError):
    """A motion file that cannot be used: names the file, the key and what is wrong with it."""


class BackendError(UnilabGymError, RuntimeError):
    """An engine failed in a way that no row-wise fault describes."""


class BackendUnavailableError(BackendError, ImportError):
    """The asked engine is not installed, or cannot run on this machine."""


class PluginError(UnilabGymError, ImportError):
    """A task of another package that cannot be loaded; its `__cause__` is what went wrong there."""


class PluginWarning(UserWarning):
    """A task of another package that cannot be used was left out of a list."""


class UnsupportedCapabilityError(UnilabGymError, ValueError):
    """A backend was asked for something that it cannot honour."""


class UndeclaredRead(UnilabGymError, LookupError):
    """A term asked the frame for a read that it did not declare."""


class ReceiptError(UnilabGymError, RuntimeError):
    """A receipt that is stale, was consumed before, or comes from another producer."""


class FaultError(UnilabGymError, RuntimeError):
    """Raised by `on_fault="raise"`: names the faulty rows and their causes."""


class ExportError(UnilabGymError, RuntimeError):
    """A policy that cannot be written as an ONNX file."""


class ExportMismatchError(ExportError):
    """The exported file computes something else than the policy; it was not kept."""


class RunFolderError(UnilabGymError, OSError):
    """A run folder that is not there, or that cannot be written."""


class CrossBackendIncompatibleError(UnilabGymError, ValueError):
    """A policy and the configuration it would run under do not share a contract."""

    def __init__(self, message: str, *, reason: str, report: object = None) -> None:
        """Holds the reason beside the message.

        Args:
            message: What was found and what to do.
            reason: One of `unilab_gym.contract.REASONS`.
            report: The `ReplayReport`, where fields differ.
        """
        super().__init__(message)
        self.reason = reason
        self.report = report


class BudgetOverflowWarning(UserWarning):
    """An engine dropped contacts or constraints; names the setting and a value that is enough."""


class CrossBackendWarning(UserWarning):
    """A replay that goes on although something differs or could not be verified."""


class MotionWarning(UserWarning):
    """A motion file that was written, but that a task will refuse."""


def near(given: str, available: Iterable[str], limit: int = 8) -> str:
    """Words what was given against what is there, nearest candidates first.

    Args:
        given: The text that matched nothing.
        available: Every valid text.
        limit: How many valid texts to list at the most.

    Returns:
        A half sentence such as `"'hipp'; did you mean 'hip'? available: hip, knee"`.
    """
    names = list(dict.fromkeys(str(name) for name in available))
    close = difflib.get_close_matches(str(given), names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else ";"
    shown = ", ".join(names[:limit]) + (
        f", ... ({len(names)} in all)" if len(names) > limit else ""
    )
    return f"{given!r}{hint} available: {shown or 'nothing'}"


def one_bool(what: str, value: object) -> None:
    """Checks that a value is True or False: text such as "no" would count as true.

    Raises:
        ConfigError: If it is anything else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{what} must be True or False, got {value!r}")


def one_of(what: str, value: str, options: tuple[str, ...]) -> None:
    """Checks a value against its options.

    Raises:
        ConfigError: With near candidates.
    """
    if value not in options:
        raise ConfigError(f"{what}: {near(str(value), options)}")

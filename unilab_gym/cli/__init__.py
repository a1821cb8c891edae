"""The command line `unilab-gym`: look, train, play, export, compare.

Every command is a dataclass in `arguments` (what it takes, and its help) and a function of the
same name elsewhere, imported when it runs: `--help` loads neither torch nor an engine.

Exit codes: 0 done; 1 refused or failed; 2 wrong usage (unknown option, id, or a value that cannot
be). With `--json` stdout holds one JSON document and nothing else; progress goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from unilab_gym.errors import ConfigError, CrossBackendWarning, MotionWarning, UnilabGymError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: Arguments after the program's name; None takes the process's.

    Returns:
        The exit code.
    """
    try:
        import tyro
    except ImportError:
        print("error: the command line needs tyro: pip install tyro", file=sys.stderr)
        return FAILED
    from unilab_gym.cli.arguments import COMMANDS, DESCRIPTION, command_type, runner_of

    arguments = sys.argv[1:] if argv is None else list(argv)
    command: Any = tyro.cli(
        command_type(brief=not COMMANDS.keys() & set(arguments[:1])),
        prog="unilab-gym",
        description=DESCRIPTION,
        args=arguments,
        config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
    )
    module, name = runner_of(command)
    return guarded_call(lambda: getattr(importlib.import_module(module), name)(command))


def guarded_call(function: Any) -> int:
    """Calls a command's function; our own errors become one message and an exit code.

    Args:
        function: Takes nothing; returns None or an exit code.
    """
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        warnings.simplefilter("always", CrossBackendWarning)
        warnings.simplefilter("always", MotionWarning)
        try:
            return int(function() or OK)
        except ConfigError as error:
            print(f"error: {error}", file=sys.stderr)
            return USAGE
        except (UnilabGymError, ImportError) as error:
            print(f"error: {error}", file=sys.stderr)
            return FAILED
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:  # the reader of a pipe went away
            sys.stderr.close()
            return FAILED


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    print(f"warning: {message}", file=sys.stderr)


def print_json(data: Any) -> None:
    """One JSON document on stdout; NaN and infinity, which JSON lacks, become null."""
    print(json.dumps(without_nan(data), indent=2, allow_nan=False, ensure_ascii=False))


def without_nan(value: Any) -> Any:
    """A figure of something that never happened is null."""
    if isinstance(value, dict):
        return {str(key): without_nan(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value

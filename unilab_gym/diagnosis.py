"""What is recorded in case something goes wrong, as config values.

`unilab_gym.config` offers these names too; users take them from there.
"""

from __future__ import annotations

from dataclasses import dataclass

from unilab_gym.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FaultDumpCfg:
    """Files for bug reports: the last steps of a row that fails, which plain MuJoCo replays."""

    directory: str
    """Folder that the NPZ files go to; made with the environment."""
    steps: int = 64
    """Control steps kept, each row's engine state included."""
    max_files: int = 8
    """After so many files no more are written: a diverging run fails without end."""

    def __post_init__(self) -> None:
        """Checks the counts.

        Raises:
            ConfigError: If one is not a positive integer, or the folder has no name.
        """
        for name in ("steps", "max_files"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ConfigError(f"fault_dump.{name} must be a positive integer, got {value!r}")
        if not self.directory:
            raise ConfigError("fault_dump.directory must name a folder, got ''")

"""Where packaged files lie: `assets/` in a checkout, `unilab_gym/_assets/` in a wheel."""

from __future__ import annotations

from pathlib import Path

from unilab_gym.errors import ConfigError, near

_PACKAGE = Path(__file__).resolve().parent


def asset_root() -> Path:
    """The folder of packaged assets.

    Raises:
        ConfigError: If neither place exists (a broken installation).
    """
    for folder in (_PACKAGE / "_assets", _PACKAGE.parent / "assets"):
        if folder.is_dir():
            return folder
    raise ConfigError(f"the package's assets are missing: neither _assets nor assets by {_PACKAGE}")


def asset_path(name: str) -> Path:
    """A packaged file, or an existing path on disk.

    Args:
        name: Relative to the assets (`robots/go2/go2.xml`), or any path that exists.

    Raises:
        ConfigError: If there is no such file; lists what lies beside it, and what is packaged,
            with that ending.
    """
    packaged = asset_root() / name
    if packaged.exists():
        return packaged
    given = Path(name).expanduser()
    if given.exists():
        return given.resolve()
    root = asset_root()
    others = sorted(p.relative_to(root).as_posix() for p in root.rglob(f"*{given.suffix or ''}"))
    beside = sorted(str(p) for p in given.parent.glob(f"*{given.suffix}") if p.is_file())
    raise ConfigError(f"no file {near(name, [*beside, *others])}")

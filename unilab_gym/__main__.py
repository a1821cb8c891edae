"""`python -m unilab_gym` is the command `unilab-gym`."""

from __future__ import annotations

from unilab_gym.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

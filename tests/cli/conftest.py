"""Commands in this process: what they print, and their exit codes."""

import json
from types import SimpleNamespace

import pytest

from unilab_gym.cli import main


@pytest.fixture
def cli(capsys, tmp_path, monkeypatch):
    """`cli("list", "--json")` -> code, out, err; runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0):
        try:
            given = main([str(item) for item in arguments])
        except SystemExit as stop:  # tyro: wrong usage, or help
            given = stop.code
        said = capsys.readouterr()
        assert given == code, said.out + said.err
        assert "Traceback" not in said.err
        result = SimpleNamespace(out=said.out, err=said.err)
        if "--json" in arguments and code != 2:
            result.data = json.loads(said.out)
        return result

    return run

"""Hardware markers, one thread a process, and a scratch folder to run in."""

import os
import sys

import pytest

# Before torch is imported: the suite runs one worker a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def _scratch_folder(tmp_path_factory):
    """MuJoCo appends to MUJOCO_LOG.TXT, and runs go to runs/, in the current folder."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    os.chdir(before)


def _absent(marker: str) -> str | None:
    """Why this machine cannot run the tests of a marker; None where it can."""
    if marker == "macos":
        return None if sys.platform == "darwin" else "needs macOS"
    import torch  # only where such a test was collected

    needed = 2 if marker == "multigpu" else 1
    found = torch.cuda.device_count()
    return None if found >= needed else f"needs {needed} NVIDIA GPU(s), found {found}"


def pytest_collection_modifyitems(items):
    reasons: dict[str, str | None] = {}
    for item in items:
        for marker in ("cuda", "multigpu", "macos"):
            if item.get_closest_marker(marker) is None:
                continue
            if marker not in reasons:
                reasons[marker] = _absent(marker)
            if reasons[marker] is not None:
                item.add_marker(pytest.mark.skip(reason=reasons[marker]))

"""The package that the docs describe: installed, listed, made, trained, exported, replayed."""

import json
import os
import re
import subprocess
import sys

import pytest
from helpers.face import ROOT
from helpers.mesh import write_arm

TASK = "MyLab/ArmReach-v0"
PAGES = ("write-a-task.md", "bring-your-robot.md")


def blocks(page):
    """(language, code) of every fenced block of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def files():
    """Path -> code of the blocks whose first line is a path."""
    found = {}
    for page in PAGES:
        for language, code in blocks(page):
            if language in ("python", "toml") and (path := re.match(r"# (\S+\.\w+)\n", code)):
                found[path.group(1)] = code
    return found


def snippets():
    """The Python blocks that are no file."""
    return [
        code
        for page in PAGES
        for language, code in blocks(page)
        if language == "python" and not code.startswith("# mylab/")
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which pip has installed the package, with a robot that has meshes."""
    pytest.importorskip("hatchling")
    source = tmp_path_factory.mktemp("mylab-tasks")
    for path, code in files().items():
        (source / path).parent.mkdir(exist_ok=True)
        (source / path).write_text(code)
    (source / "mylab" / "__init__.py").touch()
    write_arm(source / "mylab" / "robot")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--no-cache-dir"]
    done = subprocess.run(
        [*command, "--target", str(target), str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


def run(site, *arguments, cwd):
    paths = os.pathsep.join(map(str, (site, ROOT)))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MUJOCO_GL": "disable"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_docs_hold_the_package_and_it_is_short():
    found = files()
    assert set(found) == {"pyproject.toml", "mylab/arm.py", "mylab/reach.py"}
    lines = [line for path in found if path.endswith(".py") for line in found[path].splitlines()]
    assert len([line for line in lines if line.strip()]) < 100
    assert len(snippets()) == 2


def test_its_snippets_run(site, tmp_path):
    use, look = snippets()
    assert TASK in run(site, "-W", "error", "-c", use, cwd=tmp_path)
    printed = run(site, "-W", "error", "-c", look, cwd=tmp_path)
    assert "shoulder -0.5 -2.0 2.0" in printed and "tool_vel" in printed
    assert "kp=60.0, kd=4.0, effort=30.0" in printed


@pytest.mark.slow
def test_it_is_trained_exported_and_replayed_like_ours(site, tmp_path):
    pytest.importorskip("rsl_rl")
    train = [str(ROOT / "examples" / "train_rsl_rl.py"), "--task", TASK, "--backend", "mujoco"]
    printed = run(site, *train, "--num-envs", "16", "--iterations", "2", cwd=tmp_path)
    assert "verified policy" in printed
    (record,) = tmp_path.glob("runs/MyLab_ArmReach-v0/*/run_config.json")
    data = json.loads(record.read_text())
    rewards = data["contract_snapshot"]["declared"]["env.rewards"]
    assert rewards["distance"]["func"] == "mylab.reach:Distance"
    assert data["contract_snapshot"]["resolved"]["joints"]["kp"] == [60.0, 40.0]
    replay = [str(ROOT / "examples" / "replay.py"), "--run", "latest", "--backend", "mujoco"]
    printed = run(site, *replay, "--episodes", "4", "--no-video", cwd=tmp_path)
    assert "4 episodes, 100% reached the time limit" in printed

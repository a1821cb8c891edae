"""The main job through its own commands: train, resume, export, guard, replay."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SMALL = ["--num-envs", "16", "--backend", "mujoco", "--save-interval", "1"]


def run(script: str, *arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    environment.setdefault("MUJOCO_GL", "egl")
    done = subprocess.run(
        [sys.executable, str(REPO / "examples" / script), *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run of two iterations was trained; its only run is `latest`."""
    cwd = tmp_path_factory.mktemp("main_job")
    run("train_rsl_rl.py", *SMALL, "--iterations", "2", "--seed", "7", cwd=cwd)
    return cwd


def run_folder(cwd: Path) -> Path:
    (record,) = cwd.glob("runs/*/*/run_config.json")
    return record.parent


def test_run_folder_holds_what_a_run_needs(trained: Path) -> None:
    folder = run_folder(trained)
    assert folder.parent.name == "UniLab_Go2JoystickFlat-v0"
    assert folder.name.endswith("_7")
    names = {path.name for path in folder.iterdir()}
    assert {"run_config.json", "run_summary.json", "policy.onnx", "model_1.pt"} <= names
    assert any(name.startswith("events") for name in names)
    record = json.loads((folder / "run_config.json").read_text())
    assert record["run"]["seeds"]["training"] == 7
    assert record["contract_snapshot"]["resolved"]["control_dt"] == 0.02
    summary = json.loads((folder / "run_summary.json").read_text())
    assert summary["totals"]["env_steps"] == 2 * 16 * 24


def test_replay_writes_figures_plot_and_video(trained: Path) -> None:
    done = run(
        "replay.py", "--run", "latest", "--backend", "mujoco", "--episodes", "3",
        "--video-s", "0.4", cwd=trained,
    )  # fmt: skip
    folder = run_folder(trained)
    figures = json.loads((folder / "replay_mujoco.json").read_text())
    assert figures["episodes"] == 3
    assert 0 < figures["mean_length"] <= 1000
    assert (folder / "replay_mujoco.png").stat().st_size > 10_000
    assert (folder / "replay_mujoco.mp4").stat().st_size > 1_000
    assert "outcome: missed" in done.stdout  # two iterations teach nothing


def test_replay_without_a_gl_library_still_ends_well(trained: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPO), "MUJOCO_GL": "disable"}
    done = subprocess.run(
        [
            sys.executable, str(REPO / "examples" / "replay.py"), "--run", str(run_folder(trained)),
            "--backend", "mujoco", "--episodes", "2", "--out", str(tmp_path / "out"),
        ],
        cwd=trained, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no video" in done.stdout
    assert (tmp_path / "out" / "replay_mujoco.png").exists()
    assert not (tmp_path / "out" / "replay_mujoco.mp4").exists()


def test_guard_refuses_before_the_environment_exists(trained: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    source = run_folder(trained)
    (changed / "policy.onnx").write_bytes((source / "policy.onnx").read_bytes())
    record = json.loads((source / "run_config.json").read_text())
    scale = record["contract_snapshot"]["resolved"]["actions"]["scale"]
    record["contract_snapshot"]["resolved"]["actions"]["scale"] = [2 * x for x in scale]
    (changed / "run_config.json").write_text(json.dumps(record))
    done = run("replay.py", "--run", str(changed), "--backend", "mujoco", cwd=trained, code=1)
    assert "actions.scale" in done.stderr
    assert "0.5" in done.stderr
    assert "0.25" in done.stderr
    assert "policy" not in done.stdout  # printed before the environment is made


def test_resume_goes_on_and_refuses_a_finished_run(trained: Path, tmp_path: Path) -> None:
    source, root = run_folder(trained), tmp_path / "runs" / "UniLab_Go2JoystickFlat-v0" / "copy"
    root.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file():
            (root / path.name).write_bytes(path.read_bytes())
    done = run("train_rsl_rl.py", *SMALL, "--resume", str(root), "--iterations", "3", cwd=tmp_path)
    assert "resumed from model_1.pt: iteration 2 of 3" in done.stdout
    assert (root / "model_2.pt").exists()
    done = run(
        "train_rsl_rl.py", *SMALL, "--resume", str(root), "--iterations", "3", cwd=tmp_path, code=2
    )
    assert "the run has 3 iterations" in done.stderr


def test_a_swapped_policy_is_noticed(trained: Path, tmp_path: Path) -> None:
    """The record of the run holds the digest of the policy that was exported from it."""
    source, copy = run_folder(trained), tmp_path / "copy"
    copy.mkdir()
    record = (source / "run_config.json").read_text()
    assert set(json.loads(record)["run"]["files"]) == {"policy.onnx"}
    (copy / "run_config.json").write_text(record)
    shipped = REPO / "assets" / "policies" / "go2" / "policy.onnx"
    (copy / "policy.onnx").write_bytes(shipped.read_bytes())
    done = run("replay.py", "--run", str(copy), "--backend", "mujoco", cwd=tmp_path, code=1)
    assert "[swapped_file]" in done.stderr


def test_malicious_checkpoint_is_refused(trained: Path, tmp_path: Path) -> None:
    source, root = run_folder(trained), tmp_path / "runs" / "task" / "evil"
    root.mkdir(parents=True)
    (root / "run_config.json").write_bytes((source / "run_config.json").read_bytes())
    marker = tmp_path / "executed"
    payload = f"cposix\nsystem\n(S'touch {marker}'\ntR."
    (root / "model_5.pt").write_bytes(payload.encode())
    done = run(
        "train_rsl_rl.py", *SMALL, "--resume", str(root), "--iterations", "9", cwd=tmp_path, code=1
    )
    assert "not a readable checkpoint" in done.stderr
    assert not marker.exists()


def test_unwritable_run_folder_is_named(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    done = run("train_rsl_rl.py", *SMALL, "--run-root", str(blocker), cwd=tmp_path, code=1)
    assert "run folder" in done.stderr

"""A tracking run's files: training and `export` write the same ones and note their digests."""

import json
import os

import onnxruntime
import pytest

from unilab_gym.contract import tracker

TASK = "UniLab/G1MotionTracking-v0"
FILES = {"policy.onnx", "tracking_weight_shift.onnx"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One iteration on one clip."""
    pytest.importorskip("rsl_rl")
    from unilab_gym.adapters.rsl_rl_train import train
    from unilab_gym.adapters.settings import TrainSettings

    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    return train(
        TrainSettings(
            task=TASK,
            task_args=("motion=weight_shift",),
            backend="mujoco",
            num_envs=2,
            iterations=1,
            run_root=tmp_path_factory.mktemp("tracking") / "runs",
        )
    )


def digests(folder):
    return json.loads((folder / "run_config.json").read_text())["run"]["files"]


def test_training_writes_the_motion_variant_and_notes_its_digest(run):
    assert {path.name for path in run.glob("*.onnx")} == FILES
    assert digests(run) == {name: tracker.file_digest(run / name) for name in FILES}


def test_export_writes_what_training_writes(cli, run, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("run_config.json", "model_0.pt"):
        (copy / name).write_bytes((run / name).read_bytes())
    data = cli("export", "--run", copy, "--observations", "16", "--json").data
    (variant,) = data["tracking"]
    assert variant["path"] == str(copy / "tracking_weight_shift.onnx")
    assert variant["verified"] and variant["recorded"] == 16 and variant["batch"] == 1
    assert digests(copy) == {name: tracker.file_digest(copy / name) for name in FILES}
    session = onnxruntime.InferenceSession(copy / "tracking_weight_shift.onnx")
    assert [item.name for item in session.get_inputs()] == ["obs", "time_step"]
    meta = session.get_modelmeta().custom_metadata_map
    assert meta["anchor_body_name"] == "torso_link" and meta["run_path"] == "copy"


def test_a_swapped_motion_variant_is_refused(cli, run, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "run_config.json").write_bytes((run / "run_config.json").read_bytes())
    (copy / "tracking_weight_shift.onnx").write_bytes((run / "policy.onnx").read_bytes())
    said = cli("describe", copy / "tracking_weight_shift.onnx", code=1)
    assert "[swapped_file]" in said.err


def test_a_task_without_motions_gets_no_variant(tmp_path):
    import torch

    import unilab_gym
    from unilab_gym.export import export_motions
    from unilab_gym.registration import owner_config

    env = unilab_gym.make(owner_config("UniLab/CartPole-v0", "mujoco").env, 1, backend="mujoco")
    assert export_motions(torch.nn.Linear(4, 1), {}, env, tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    env.close()

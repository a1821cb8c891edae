"""play, export, compare and train: every route asks the guard before an environment exists."""

import json
import os
import runpy
import sys
import warnings
from pathlib import Path

import imageio.v2 as imageio
import pytest
import torch

from unilab_gym import vector_env
from unilab_gym.assets import asset_path
from unilab_gym.cli import policies
from unilab_gym.contract import guard, resolve, tracker
from unilab_gym.registration import owner_config
from unilab_gym.render.gl import gl_available

ROOT = Path(__file__).resolve().parents[2]
TASK = "UniLab/Go2JoystickFlat-v0"
SHORT = ("--backend", "mujoco", "--episodes", "2", "--steps", "3", "--no-video", "--no-plots")
SMALL = ("--backend", "mujoco", "--num-envs", "4", "--save-interval", "1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of one iteration: checkpoint, record, ONNX."""
    pytest.importorskip("rsl_rl")
    from unilab_gym.adapters.rsl_rl_train import train
    from unilab_gym.adapters.settings import TrainSettings

    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    root = tmp_path_factory.mktemp("trained") / "runs"
    return train(
        TrainSettings(
            task="UniLab/CartPole-v0", backend="mujoco", num_envs=4, iterations=1, run_root=root
        )
    )


@pytest.fixture
def order(monkeypatch):
    """What happened, in order: the guard's comparisons, and environments that were built."""
    events = []
    check, build = guard.check_replay, vector_env.UnilabVectorEnv.__init__

    def checked(*args, **kwargs):
        events.append("guard")
        return check(*args, **kwargs)

    def built(*args, **kwargs):
        events.append("env")
        return build(*args, **kwargs)

    monkeypatch.setattr(guard, "check_replay", checked)
    monkeypatch.setattr(vector_env.UnilabVectorEnv, "__init__", built)
    return events


def copied(trained, folder, change=None):
    folder.mkdir(parents=True)
    for path in trained.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    if change is not None:
        record = json.loads((folder / "run_config.json").read_text())
        change(record)
        (folder / "run_config.json").write_text(json.dumps(record))
    return folder


def wider(record):
    """As trained with another action scale."""
    actions = record["contract_snapshot"]["resolved"]["actions"]
    actions["scale"] = [2 * scale for scale in actions["scale"]]


# --- the guard comes first ------------------------------------------------------------------------

ROUTES = {
    "shipped": lambda run: ["play", *SHORT],
    "folder": lambda run: ["play", "--run", run, *SHORT],
    "onnx": lambda run: ["play", "--run", run / "policy.onnx", *SHORT],
    "checkpoint": lambda run: ["play", "--run", run / "model_0.pt", *SHORT],
    "export": lambda run: ["export", "--run", run, "--observations", "16", "--out", "new.onnx"],
    "resume": lambda run: ["train", "--resume", run, "--iterations", "2", *SMALL],
    "compare": lambda run: [
        "compare", "--run", run, "--backend", "mujoco", "--steps", "2", "--num-envs", "1"
    ],
}  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
def test_the_guard_runs_before_the_environment_exists(cli, order, trained, tmp_path, route):
    run = copied(trained, tmp_path / "copy")
    cli(*ROUTES[route](run))
    assert order[0] == "guard" and "env" in order


@pytest.mark.parametrize("route", [name for name in ROUTES if name != "shipped"])
def test_a_refused_route_builds_no_environment(cli, order, trained, tmp_path, route):
    run = copied(trained, tmp_path / "copy", wider)
    said = cli(*ROUTES[route](run), code=1)
    assert "actions.scale" in said.err and "[incompatible]" in said.err
    scale = resolve(owner_config("UniLab/CartPole-v0", "mujoco"))["actions"]["scale"][0]
    assert f"source [{2 * scale}], target [{scale}]" in said.err
    assert "env" not in order


def test_the_example_is_a_route_like_any_other(order, trained, tmp_path, monkeypatch, capsys):
    run = copied(trained, tmp_path / "copy", wider)
    for name, arguments in (
        ("replay.py", ["--run"]),
        ("train_rsl_rl.py", [*SMALL, "--iterations", "2", "--resume"]),
    ):
        monkeypatch.setattr(sys, "argv", [name, *arguments, str(run)])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        assert stop.value.code == 1
        assert "actions.scale" in capsys.readouterr().err
    assert set(order) == {"guard"}


def test_an_override_goes_on_and_says_what_it_skipped(cli, order, trained, tmp_path):
    run = copied(trained, tmp_path / "copy", wider)
    said = cli("play", "--run", run, *SHORT, "--no-strict")
    assert "warning: replaying although" in said.err and "actions.scale" in said.err
    assert "env" in order


@pytest.mark.parametrize("agent", ["zero", "random"])
def test_zero_and_random_actions_skip_the_guard(cli, order, agent):
    data = cli("play", "--agent", agent, "--task", TASK, *SHORT, "--json").data
    assert order == ["env"]
    assert (data["agent"], data["policy"], data["missed"]) == (agent, None, None)


def test_an_onnx_file_alone_plays_with_a_warning(cli, trained, tmp_path):
    (tmp_path / "alone.onnx").write_bytes((trained / "policy.onnx").read_bytes())
    said = cli("play", "--run", tmp_path / "alone.onnx", *SHORT)
    assert "no run record beside it" in said.err


def test_a_checkpoint_without_a_record_is_refused(cli, order, trained, tmp_path):
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "model_0.pt").write_bytes((trained / "model_0.pt").read_bytes())
    said = cli("play", "--run", tmp_path / "alone" / "model_0.pt", *SHORT, code=1)
    assert "run_config.json" in said.err
    assert order == []


@pytest.mark.parametrize("route", ["checkpoint", "export", "resume"])
def test_a_malicious_checkpoint_is_refused_and_not_executed(cli, trained, tmp_path, route):
    run, marker = copied(trained, tmp_path / "copy"), tmp_path / "executed"
    payload = f"cposix\nsystem\n(S'touch {marker}'\ntR."
    (run / "model_0.pt").write_bytes(payload.encode())
    said = cli(*ROUTES[route](run), code=1)
    assert "not a readable checkpoint" in said.err
    assert not marker.exists()


def test_a_checkpoint_that_is_none_is_told(cli, trained, tmp_path):
    run = copied(trained, tmp_path / "copy")
    torch.save({"weights": torch.zeros(2)}, run / "model_0.pt")
    said = cli("play", "--run", run / "model_0.pt", *SHORT, code=1)
    assert "no checkpoint of rsl_rl" in said.err


def test_a_checkpoint_of_another_width_is_a_diagnosis(cli, trained, tmp_path):
    run = copied(trained, tmp_path / "copy")
    state = torch.load(run / "model_0.pt", weights_only=True)
    weights = state["actor_state_dict"]
    name = next(key for key in weights if key.endswith("0.weight"))
    weights[name] = torch.zeros(weights[name].shape[0], 9)
    torch.save(state, run / "model_0.pt")
    said = cli("play", "--run", run / "model_0.pt", *SHORT, code=1)
    assert "observation width 9 in the checkpoint, 4 here" in said.err
    assert "[weight_shape]" in said.err


# --- what play does -------------------------------------------------------------------------------


def test_a_checkpoint_plays_like_the_file_exported_from_it(cli, trained, tmp_path):
    run = copied(trained, tmp_path / "copy")
    figures = [
        cli("play", "--run", run / name, *SHORT[:4], "--steps", "40", *SHORT[6:], "--json").data
        for name in ("policy.onnx", "model_0.pt")
    ]
    assert figures[0]["mean_return"] == pytest.approx(figures[1]["mean_return"], rel=1e-5)
    assert figures[0]["mean_return"] != 0.0


def test_the_shipped_policy_belongs_to_its_task(cli):
    said = cli("play", "--task", "UniLab/G1Walk-v0", *SHORT, code=1)
    assert "no policy for UniLab/G1Walk-v0 ships" in said.err
    folder = asset_path("policies/go2")
    said = cli("play", "--run", folder, "--task", "UniLab/CartPole-v0", *SHORT, code=2)
    assert "was trained on UniLab/Go2JoystickFlat-v0" in said.err


def test_a_held_command_is_what_the_policy_sees(cli, monkeypatch):
    seen = []

    class Spy(policies.Agent):
        def __call__(self, obs):
            seen.append(obs[:, 42:45].clone())
            return super().__call__(obs)

    monkeypatch.setattr("unilab_gym.cli.play.Agent", Spy)
    hold = ("--command", "1.0", "0", "0.5")
    said = cli("play", "--agent", "zero", "--task", TASK, *SHORT, *hold)
    assert torch.equal(torch.cat(seen).unique(dim=0), torch.tensor([[1.0, 0.0, 0.5]]))
    assert "zero_mujoco_1_0_0.5.json" in said.out
    said = cli("play", "--agent", "zero", "--task", TASK, *SHORT, "--command", "3", "0", "0")
    assert "lin_vel_x 3 lies outside the trained range -0.6 .. 1" in said.err
    said = cli("play", "--agent", "zero", "--task", TASK, *SHORT, "--command", "3", code=2)
    assert "twist 3" in said.err


@pytest.mark.skipif(gl_available() is None, reason="no GL library")
def test_video_and_plots_leave_the_trajectory_alone(cli, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    common = ("--backend", "mujoco", "--episodes", "9", "--steps", "4", "--seed", "3", "--json")
    filmed = cli("play", *common, "--grid", "--video-s", "0.06", "--out", tmp_path / "a").data
    plain = cli("play", *common, "--no-video", "--no-plots", "--out", tmp_path / "b").data
    for name in ("mean_return", "mean_length", "metrics"):
        assert filmed[name] == plain[name]
    assert set(filmed["files"]) == {"figures", "plot", "plot_2", "video"}
    assert all(Path(path).stat().st_size > 500 for path in filmed["files"].values())
    assert plain["notes"] == ["no video: switched off"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # imageio 2.38 leaves its pipes open
        with imageio.get_reader(filmed["files"]["video"], format="FFMPEG") as video:
            frames, data = list(video.iter_data()), video.get_meta_data()
    assert (len(frames), data["fps"], frames[0].shape) == (3, 50.0, (720, 960, 3))
    assert frames[0].std() > 5.0 and (frames[0] != frames[-1]).any()


def test_without_a_gl_library_everything_else_goes_on(cli, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    data = cli("play", *SHORT[:6], "--json").data
    assert "video" not in data["files"] and "plot" in data["files"]
    assert any("MUJOCO_GL=disable" in note for note in data["notes"])


def test_an_outcome_that_is_missed_fails_on_request(cli, trained, tmp_path):
    run = copied(trained, tmp_path / "copy")
    arguments = ("play", "--run", run, "--backend", "mujoco", "--episodes", "2", "--no-video")
    said = cli(*arguments, "--no-plots")
    assert "outcome: missed" in said.out
    cli(*arguments, "--no-plots", "--require-outcome", code=1)


def test_a_folder_that_cannot_be_written_is_named(cli, tmp_path):
    (tmp_path / "file").write_text("")
    said = cli("play", *SHORT, "--out", tmp_path / "file" / "below", code=1)
    assert "cannot write to" in said.err


# --- export and compare ---------------------------------------------------------------------------


def test_export_proves_itself_and_notes_the_digest(cli, trained, tmp_path):
    run = copied(trained, tmp_path / "copy")
    (run / "policy.onnx").unlink()
    data = cli("export", "--run", run, "--observations", "300", "--json").data
    assert data["verified"] and data["recorded"] == 300 and data["max_error"] <= 1e-5
    record = json.loads((run / "run_config.json").read_text())
    digest = tracker.file_digest(run / "policy.onnx")
    assert record["run"]["files"] == {"policy.onnx": digest}
    cli("play", "--run", run, *SHORT)
    said = cli("export", "--run", run / "policy.onnx", code=2)
    assert "an ONNX file already" in said.err


def test_compare_passes_for_one_engine_and_names_a_changed_gain(cli, tmp_path):
    same = ("compare", "--backend", "mujoco", "--steps", "20", "--num-envs", "2", "--json")
    data = cli(*same).data
    assert data["ok"] and not data["contract"]["warned"]
    assert {term["largest"] for term in data["terms"]} == {0.0}
    robot = asset_path("robots/go2/go2.xml").read_text()
    old = 'class="calf" joint="FL_calf_joint"/>'
    assert old in robot
    changed = tmp_path / "go2.xml"
    changed.write_text(robot.replace(old, 'class="calf" joint="FL_calf_joint" kp="42" kv=".5"/>'))
    data = cli(*same, "--set", f"scene.robot={changed}", code=1).data
    assert data["contract"]["warned"] == ["resolved.joints.kp: FL_calf_joint 35.0 -> 42.0"]
    beyond = [term["name"] for term in data["terms"] if not term["ok"]]
    assert "policy/joint_vel" in beyond and "policy/last_action" not in beyond


def test_a_task_without_a_bar_is_not_said_to_reach_it(cli, trained, monkeypatch):
    import dataclasses

    from unilab_gym.cli import play
    from unilab_gym.registration import Outcome, load_task

    def barless(task):
        return dataclasses.replace(load_task(task), outcome=Outcome())

    monkeypatch.setattr(play, "load_task", barless)
    whole = ("--backend", "mujoco", "--episodes", "2", "--no-video", "--no-plots")
    said = cli("play", "--run", trained, *whole).out
    assert "UniLab/CartPole-v0 has no bar" in said
    assert "outcome: reached" not in said
    assert cli("play", "--run", trained, *whole, "--json").data["missed"] is None
    said = cli("play", "--run", trained, *whole, "--require-outcome", code=2).err
    assert "UniLab/CartPole-v0 has no bar" in said


@pytest.mark.parametrize(
    "option", [("--agent", "zero"), ("--steps", "3"), ("--command", "1", "0", "0")]
)
def test_an_outcome_cannot_be_required_where_none_is_judged(cli, order, option):
    whole = ("--backend", "mujoco", "--episodes", "2", "--no-video", "--no-plots")
    said = cli("play", *whole, "--require-outcome", *option, code=2).err
    assert f"--require-outcome goes without {option[0]}" in said
    assert "env" not in order


def test_an_export_keeps_the_arguments_that_its_run_was_trained_with(trained, tmp_path):
    from unilab_gym.cli.arguments import Export
    from unilab_gym.cli.export import _checkpoint

    run = copied(trained, tmp_path / "own", own_arguments)
    assert dict(_checkpoint(Export(run=str(run))).task_kwargs) == {"motion": "weight_shift"}


def own_arguments(record):
    """As trained with an argument of the task."""
    record["config"]["task_kwargs"] = {"motion": "weight_shift"}

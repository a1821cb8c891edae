"""The commands that look: help, list, describe, doctor, audit; and what wrong usage says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unilab_gym.assets import asset_path
from unilab_gym.backends import BACKENDS
from unilab_gym.cli import doctor
from unilab_gym.cli.arguments import COMMANDS
from unilab_gym.cli.text import Progress, numbers, table
from unilab_gym.contract import contract_hash, resolve, transfer_matrix
from unilab_gym.contract.owner import KNOWN_BACKENDS
from unilab_gym.registration import owner_config, task_ids

ROOT = Path(__file__).resolve().parents[2]
TASK = "UniLab/Go2JoystickFlat-v0"


def test_help_names_every_command_and_the_exit_codes(cli):
    said = cli("--help").out
    assert all(f"• {name} " in said for name in COMMANDS)
    assert "2 wrong usage" in said
    for name in COMMANDS:
        words = " ".join(cli(name, "--help").out.split())
        assert len(words) > 150, name


def test_help_loads_neither_torch_nor_an_engine():
    code = (
        "import sys; from unilab_gym.cli import main\n"
        "try: main(['play', '--help'])\n"
        "except SystemExit: pass\n"
        "print([n for n in ('torch', 'mujoco', 'warp') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bogus"], "bogus"),
        (["list", "--jsno"], "--jsno"),
        (["play", "--episodes", "many"], "many"),
        (["play", "--episodes", "0"], "positive"),
        (["play", "--video-s", "-1"], "positive"),
        (["play", "--run", "latest", "--agent", "zero"], "--agent"),
        (["play", "--agent", "zero", "--task", "UniLab/Go2-v0"], "UniLab/Go2JoystickFlat-v0"),
        (["play", "--backend", "mujocoo"], "mujoco"),
        (["play", "--task", "UniLab/Go2JoystickFlat-v0", "--backend", "mujoco", "--device",
          "cuda"], "mjwarp"),
        (["train", "--task", "UniLab/Go2JoystickFlatt-v0"], "UniLab/Go2JoystickFlat-v0"),
        (["train", "--backend", "mujocoo"], "mujoco"),
        (["train", "--num-envs", "0"], "positive"),
        (["train", "--save-interval", "0"], "positive"),
        (["train", "--backend", "mujoco", "--device", "cuda"], "mjwarp"),
        (["describe", "UniLab/Nothing-v0"], "UniLab/Go2JoystickFlat-v0"),
        (["describe", TASK, "--backend", "x"], "mujoco"),
        (["audit", "--task", "UniLab/Nothing-v0"], "UniLab/Go2JoystickFlat-v0"),
        (["compare", "--set", "sim_dt"], "PATH=VALUE"),
        (["compare", "--set", "sim_d=1"], "sim_dt"),
        (["export", "--observations", "0"], "positive"),
    ],
)  # fmt: skip
def test_wrong_usage_is_two(cli, arguments, words):
    said = cli(*arguments, code=2)
    assert words in said.err


@pytest.mark.parametrize(
    "option", ["play --run", "export --run", "compare --run", "train --resume"]
)
@pytest.mark.parametrize("run", ["latest", "nowhere", "nothing.onnx", "model_3.pt"])
def test_a_run_that_is_not_there_is_one(cli, option, run):
    said = cli(*option.split(), run, code=1)
    assert said.err.startswith("error: no run")


@pytest.mark.parametrize(
    "option", ["play --run", "export --run", "compare --run", "train --resume"]
)
@pytest.mark.parametrize(
    "record", ["{}", '{"run": null}', '{"run": {"task": 5}}', "[]", "", "{cut"]
)
def test_a_damaged_record_is_one_clear_error(cli, option, record, tmp_path):
    folder = tmp_path / "runs" / "task" / "damaged"
    folder.mkdir(parents=True)
    (folder / "run_config.json").write_text(record)
    for name in ("policy.onnx", "model_0.pt"):
        (folder / name).write_bytes(b"")
    said = cli(*option.split(), folder, code=1)
    assert said.err.startswith("error: ")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["-m", "unilab_gym", "play"], 2),
        (["examples/train_rsl_rl.py"], 2),
        (["examples/train_cleanrl.py"], 1),
        (["examples/replay_dump.py", "x.npz"], 1),
        (["examples/replay_onnx_only.py", "x.onnx"], 1),
    ],
)
def test_a_bogus_mujoco_gl_is_named(command, code):
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env=os.environ | {"MUJOCO_GL": "bogus", "PYTHONPATH": str(ROOT)},
    )
    said = done.stderr.splitlines()[-1]
    assert done.returncode == code
    assert "bogus" in said and "MUJOCO_GL" in said and "osmesa" in said and "unset it" in said
    assert said.startswith(("error: ", "unilab_gym.errors.ConfigError: "))


# --- list and describe ----------------------------------------------------------------------------


def test_list_has_every_task(cli):
    data = cli("list", "--json").data
    assert [item["id"] for item in data] == list(task_ids())
    go2 = next(item for item in data if item["id"] == TASK)
    assert (go2["observations"], go2["actions"]) == (49, 12)
    assert go2["backends"] == ["mujoco", "mjwarp"]
    assert all(task in cli("list").out for task in task_ids())


def test_the_table_of_the_readme_is_what_list_prints(cli):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert cli("list", "--markdown").out.strip() in readme


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readme_and_its_page_name_every_command(command):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert f"unilab-gym {command}" in readme
    assert f"unilab-gym {command}" in page


def test_describe_gives_the_contract_word_for_word(cli, tmp_path):
    data = cli("describe", TASK, "--json", "--out", tmp_path / "go2.json").data
    contract = resolve(owner_config(TASK, "mujoco"))
    assert data["contract"] == contract
    assert data["contract_hash"] == contract_hash(contract)
    assert json.loads((tmp_path / "go2.json").read_text()) == data
    folder = asset_path("policies/go2")
    record = json.loads((folder / "run_config.json").read_text())
    assert record["contract_snapshot"]["resolved"] == contract
    for source in (folder, folder / "policy.onnx"):  # the same text in record and export
        assert cli("describe", source, "--json").data["contract"] == contract
    assert data["timing"]["max_episode_steps"] == 1000
    assert {item["name"] for item in data["terminations"]} == {"time_out", "tilt", "trunk_contact"}
    assert data["rewards"][0] == {
        "name": "track_lin_vel",
        "weight": 2.0,
        "func": "unilab_gym.mdp.rewards:track_lin_vel_xy",
        "params": {"command": "twist", "sigma": 0.5},
    }
    assert any("after a step" in line for line in data["read_plan"])


def test_describe_says_what_commands_are_drawn_from(cli):
    folder = asset_path("policies/go2")
    expected = {"lin_vel_x": [-0.6, 1.0], "lin_vel_y": [-0.4, 0.4], "ang_vel_yaw": [-0.8, 0.8]}
    for source in (TASK, folder):
        assert cli("describe", source, "--json").data["command_ranges"] == {"twist": expected}
        assert "lin_vel_x [-0.6, 1], lin_vel_y [-0.4, 0.4]" in cli("describe", source).out
    alone = cli("describe", folder / "policy.onnx", "--json").data  # holds the contract alone
    assert alone["command_ranges"] == {} and set(alone["contract"]["commands"]) == {"twist", "gait"}


def test_describe_says_which_column_is_which_joint(cli):
    lines = cli("describe", TASK).out.splitlines()
    columns = [line.split() for line in lines]
    assert ["18:30", "joint_vel", "1", "none", "[-1.5,", "1.5]"] in [row[:6] for row in columns]
    assert ["2", "FL_calf_joint", "FL_calf", "0.25", "-1.5"] in [row[:5] for row in columns]


def test_describe_shows_events_curricula_and_recorders(cli, monkeypatch, tmp_path):
    import dataclasses

    from unilab_gym.config import CurriculumTermCfg, EventTermCfg, RecorderTermCfg
    from unilab_gym.mdp import curriculums, events, recorders

    params = {"path": "events/push/lin_vel_xy", "stages": ((500, (-0.5, 0.5)),)}

    def owner(task, backend):
        cfg = owner_config(task, backend)
        push = EventTermCfg(
            func=events.PushRoot,
            mode="interval",
            interval_s=(4.0, 6.0),
            global_interval=True,
            params={"lin_vel_xy": (-0.1, 0.1)},
        )
        env = dataclasses.replace(
            cfg.env,
            events={"push": push},
            curriculum={
                "harder": CurriculumTermCfg(func=curriculums.ParameterStages, params=params)
            },
            recorders={
                "kept": RecorderTermCfg(func=recorders.EpisodeRecorder, params={"folder": "kept"})
            },
        )
        return dataclasses.replace(cfg, env=env)

    monkeypatch.setattr("unilab_gym.registration.owner_config", owner)
    data = cli("describe", TASK, "--json").data
    assert data["curriculum"] == [
        {
            "name": "harder",
            "func": "unilab_gym.mdp.curriculums:ParameterStages",
            "params": {"path": "events/push/lin_vel_xy", "stages": [[500, [-0.5, 0.5]]]},
        }
    ]
    assert data["recorders"][0]["params"] == {"folder": "kept"}
    assert (data["events"][0]["global_interval"], data["events"][0]["min_steps_between"]) == (
        True,
        0,
    )
    said = cli("describe", TASK).out
    assert "ParameterStages(path=events/push/lin_vel_xy, stages=[[500, [-0.5, 0.5]]])" in said
    assert "EpisodeRecorder(folder=kept)" in said and "global_interval" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("task", task_ids())
def test_describe_knows_every_task(cli, task):
    said = cli("describe", task).out
    assert said.startswith(f"{task} on mujoco: ")
    for part in ("timing", "observation group 'policy'", "actions: ", "rewards", "read plan"):
        assert f"\n{part}" in said


# --- audit and doctor -----------------------------------------------------------------------------


def test_every_policy_may_move_between_its_backends(cli):
    """The transfer matrix of every shipped task and backend pair."""
    data = cli("audit", "--json").data
    assert {(item["task"], item["source"], item["target"]) for item in data} == {
        (task, source, target)
        for task in task_ids()
        for source in KNOWN_BACKENDS
        for target in KNOWN_BACKENDS
    }
    assert {item["verdict"] for item in data} == {"ok"}
    assert all(item["same_contract"] and not item["fallback"] for item in data)
    assert cli("audit", "--task", TASK).out.count(" ok ") == 4


def test_an_incompatible_pair_is_shown_and_fails(cli, monkeypatch):
    import dataclasses

    from unilab_gym.contract import audit as module

    def owner(task, backend):
        cfg = owner_config(task, backend)
        env = dataclasses.replace(cfg.env, clip_actions=backend == "mujoco")
        return dataclasses.replace(cfg, env=env)

    monkeypatch.setattr(module, "owner_config", owner)
    said = cli("audit", "--task", TASK, code=1).out
    assert "refused" in said and "resolved.actions.clipped" in said
    assert [cell.verdict for cell in transfer_matrix([TASK])] == ["ok", "ok", "refused", "refused"]


def test_known_backends_are_the_backends():
    assert KNOWN_BACKENDS == BACKENDS


def test_doctor_says_what_works_here(cli):
    data = cli("doctor", "--json").data
    assert data["versions"]["mujoco"] and data["machine"]["cpu_count"] > 0
    assert data["works"]["mujoco backend"] == {"ok": True, "detail": "stepped UniLab/CartPole-v0"}
    assert data["works"]["ONNX export"]["ok"]
    import torch

    assert data["works"]["mjwarp backend on CUDA"]["ok"] == torch.cuda.is_available()
    assert "what works here" in cli("doctor").out


def test_doctor_fails_where_the_engine_does(cli, monkeypatch):
    def broken():
        raise OSError("libmujoco.so: cannot open")

    monkeypatch.setattr(doctor, "_step_mujoco", broken)
    said = cli("doctor", code=1).out
    assert "libmujoco.so: cannot open" in said


def test_doctor_names_the_extra_of_what_is_missing():
    found = doctor._modules(("json", "no_such_module"), "export")
    assert not found["ok"]
    assert "no_such_module" in found["detail"] and "unilab_gym[export]" in found["detail"]


# --- text -----------------------------------------------------------------------------------------


def test_tables_and_numbers():
    assert table(("a", "long"), [("xx", 1), ("y", "zz")], "") == "a   long\nxx  1\ny   zz"
    assert (numbers([0.25, 0.25]), numbers([1.0, None])) == ("0.25", "[1, inf]")


def test_progress_shows_rate_and_time_left(capsys, monkeypatch):
    clock = iter([0.0, 1.0, 10.0, 11.0, 20.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    progress = Progress("work", 4, rows=3)
    for _ in range(4):
        progress.advance()
    said = capsys.readouterr().err
    assert said == "work: step 2/4  1 steps/s  left 0:10\n"

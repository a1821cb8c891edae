"""Dumps that replay, errors that are raised late, and what they cost where nobody asked."""

import dataclasses
import gc
import importlib.util
import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.opcount import count_ops
from helpers.probe import CPU, build, random_actions, started, walker_cfg, zero_action
from helpers.walk import same_bits, snapshot

from unilab_gym.backends.base import FaultBit
from unilab_gym.config import FaultDumpCfg
from unilab_gym.errors import ConfigError, FaultError
from unilab_gym.runtime.fault_ring import SLACK
from unilab_gym.runtime.faults import FaultWatch

NAN = float("nan")
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "replay_dump.py"


def load_script():
    spec = importlib.util.spec_from_file_location("replay_dump", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dumping(folder, **changes):
    wanted = FaultDumpCfg(**{"directory": str(folder / "faults"), "steps": 50} | changes)
    return walker_cfg(folder, episode_length_s=20.0, fault_dump=wanted)


def break_row(env, row):
    """Makes a row's height NaN, as physics would have left it."""
    env.backend.batch.state[row, env.index.qpos_offset + 2] = NAN


# --- the dump -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """A run of 70 steps in which env 5 of 8 fails in step 60, and the file that it wrote."""
    folder = tmp_path_factory.mktemp("dump")
    env = started(dumping(folder), 8, seed=3)
    actions, states = random_actions(env, 70) * 0.2, []
    for step, action in enumerate(actions):
        if step == 60:
            break_row(env, 5)
        states.append(env.backend.get_state()[5])
        env.step(action)
    (path,) = env.faults.dumps
    fields = {name: env.backend.get_model_field(name)[5] for name in env.backend.spec.model_fields}
    yield path, torch.stack(states), actions[:, 5], fields
    env.close()


def test_the_dump_names_the_row_that_failed_and_holds_its_last_steps(dumped):
    """N01 and the last sentence of E13: env 5, although it is not among the first."""
    path, states, actions, fields = dumped
    assert path.name == "fault_step61_env5.npz"
    with np.load(path, allow_pickle=False) as file:
        meta = json.loads(str(file["meta"]))
        assert meta["env"] == 5 and meta["causes"] == ["engine_bad_state"]
        assert (meta["seed"], meta["rank"], meta["num_envs"]) == (3, 0, 8)
        assert meta["backend"] == "mujoco" and meta["config"]["ctrl_dt"] == 0.02
        assert file["state"].shape[0] == 50
        np.testing.assert_array_equal(file["state"], states[11:61].numpy())
        np.testing.assert_array_equal(file["action"], actions[11:61].numpy())
        assert file["word"][:-1].max() == 0
        assert file["word"][-1] == FaultBit.ENGINE_BAD_STATE
        assert set(file["qvel_delta"][:, 2:].flatten()) == {0.0} and file["qvel_delta"].any()
        for name, value in fields.items():
            np.testing.assert_array_equal(file[f"field/{name}"], value.numpy())


def test_plain_mujoco_confirms_every_step_to_the_last_bit(dumped, capsys):
    path, *_ = dumped
    script = load_script()
    dump, meta = script.load(path)
    model = script.load_model(dump)
    after, warnings = script.replay(model, dump, meta)
    differences = script.confirmed(dump, meta, after)
    assert differences[48:] == [None, None]  # the last row was broken by hand
    checked = [value for value in differences if value is not None]
    assert len(checked) >= 46 and max(checked) == 0.0  # pushes and randomization included
    assert list(warnings) == [49] and "huge value in QPOS" in warnings[49][0]
    script.main([str(path)])
    printed = capsys.readouterr().out
    assert "environment 5 of 8 (backend mujoco)" in printed
    assert "engine_bad_state" in printed and "starts NaN" in printed


def test_a_dump_is_drawn(dumped, tmp_path):
    from unilab_gym.render.gl import gl_available

    if gl_available() != "egl":
        pytest.skip("no EGL here")
    pytest.importorskip("imageio_ffmpeg")
    video = tmp_path / "fault.mp4"
    command = [sys.executable, str(SCRIPT), str(dumped[0]), "--video", str(video), "--last", "6"]
    env = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "video         6 frames" in done.stdout
    import imageio

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # imageio leaves its pipes to the collector
        with imageio.get_reader(video, format="FFMPEG") as reader:
            frames = np.stack(list(reader.iter_data())).astype(int)
        gc.collect()
    assert len(frames) == 6 and frames[0].std() > 10  # not one colour
    assert (frames[4] - frames[0]).any()


def test_a_file_that_is_no_dump(tmp_path):
    np.savez(tmp_path / "other.npz", meta=np.array("{}"))
    with pytest.raises(ValueError, match="not a fault dump"):
        load_script().load(tmp_path / "other.npz")


def test_recording_changes_no_bit(tmp_path):
    plain = dataclasses.replace(dumping(tmp_path), fault_dump=None)
    env, control = started(dumping(tmp_path), 3), started(plain, 3)
    assert control.rt.ring is None and control.faults is None
    for action in random_actions(env, 12):
        env.step(action)
        control.step(action)
    left, right = snapshot(env), snapshot(control)
    assert all(same_bits(value, left[path]) for path, value in right.items())
    assert list((tmp_path / "faults").iterdir()) == []  # nothing failed
    env.close()
    control.close()


def test_what_recording_and_raising_cost(tmp_path):
    """Operations of a step: none where nobody asked; copies of what a step is given otherwise."""
    plain = dataclasses.replace(dumping(tmp_path), fault_dump=None)
    counts = []
    for cfg, policy in ((plain, "quarantine"), (dumping(tmp_path), "quarantine"), (plain, "raise")):
        env = started(cfg, 3, on_fault=policy)
        action = zero_action(env)
        env.step(action)
        counts.append(count_ops(lambda env=env, action=action: env.step(action))["nonview"])
        env.close()
    quiet, recording, raising = counts
    assert quiet < recording <= quiet + 9
    assert quiet < raising <= quiet + 3


def test_a_dump_says_whose_it_is_and_is_refused_for_another_task(tmp_path, capsys):
    import gymnasium

    import unilab_gym
    from unilab_gym.contract import resolve
    from unilab_gym.registration import owner_config

    task = "UniLab/CartPole-v0"
    owner = owner_config(task, "mujoco")
    wanted = FaultDumpCfg(directory=str(tmp_path / "faults"), steps=4)
    made = (
        gymnasium.make_vec(
            f"unilab_gym:{task}", num_envs=2, backend="mujoco", overrides={"fault_dump": wanted}
        ),
        unilab_gym.make(
            dataclasses.replace(
                owner.env, fault_dump=dataclasses.replace(wanted, directory=str(tmp_path / "cfg"))
            ),
            2,
            backend="mujoco",
        ),
    )
    paths = []
    for env in made:
        env.reset(seed=0)
        env.step(torch.tensor([[0.0], [NAN]]))
        paths += env.unwrapped.runtime.faults.dumps
        env.close()
    script = load_script()
    metas = [script.load(path)[1] for path in paths]
    assert [meta["task"] for meta in metas] == [task, None]
    contract = {**resolve(owner), "network": None}
    assert metas[0]["contract"] == contract
    assert metas[1]["contract"] == {**contract, "task": ""}
    script.main([str(paths[0]), "--task", f"unilab_gym:{task}", "--contract"])
    said = capsys.readouterr().out
    assert f"task          {task}" in said and "policy 4" in said and "1 joints" in said
    (joint,) = contract["actions"]["joints"]
    assert f"action   0  {joint}: " in said and "policy from   0  " in said
    with pytest.raises(SystemExit, match=r"dump is of UniLab/CartPole-v0, not of UniLab/G1W"):
        script.main([str(paths[0]), "--task", "UniLab/G1WalkFlat-v0"])
    with pytest.raises(SystemExit, match="made without an id, not of UniLab/CartPole-v0"):
        script.main([str(paths[1]), "--task", task])


def test_early_faults_and_the_limit_of_files(tmp_path, caplog):
    env = started(dumping(tmp_path, max_files=2), 4)
    action = zero_action(env)
    env.step(action)
    action[[0, 2, 3], 0] = NAN
    with caplog.at_level(logging.WARNING, "unilab_gym"):
        env.step(action)
        env.step(action)
    assert [path.name for path in env.faults.dumps] == [
        "fault_step2_env0.npz",
        "fault_step2_env2.npz",
    ]
    assert len(caplog.records) == 2 and "no more dumps" in caplog.text
    assert "environment 2 failed (action_nonfinite)" in caplog.text
    with np.load(env.faults.dumps[1]) as file:
        assert file["episode_step"].tolist() == [0, 1]
        assert np.isnan(file["action"][1, 0])
    assert sorted((tmp_path / "faults").iterdir()) == env.faults.dumps
    env.close()


def test_a_fault_that_is_known_late_keeps_its_whole_history(tmp_path):
    env = started(dumping(tmp_path), 3)
    ring = env.rt.ring
    action = zero_action(env)
    for step in range(80):
        given = action.clone()
        given[1, 0] = NAN if step == 60 else 0.01 * step
        env.step(given)
        if step >= 60:
            history = ring.history(1)
            late = step - 60
            assert history["word"].shape[0] == min(50, 50 + SLACK - late)
            assert history["word"][-1] == FaultBit.ACTION_NONFINITE
            assert history["action"][0, 0].item() == pytest.approx(
                0.01 * (61 - history["word"].shape[0])
            )
    env.close()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"steps": 0}, "fault_dump.steps must be a positive integer, got 0"),
        ({"max_files": True}, "fault_dump.max_files must be a positive integer, got True"),
        ({"directory": ""}, "fault_dump.directory must name a folder"),
    ],
)
def test_bad_settings(bad, message):
    with pytest.raises(ConfigError, match=message):
        FaultDumpCfg(**{"directory": "faults"} | bad)


@pytest.mark.parametrize("place", ["a file", "below a file", "below /proc"])
def test_a_folder_that_cannot_be_written_is_refused_when_built(tmp_path, place):
    (tmp_path / "file").touch()
    folder = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "dumps"}.get(
        place, Path("/proc/nope")
    )
    with pytest.raises(ConfigError, match=r"cannot be written .* name a folder") as caught:
        started(dumping(tmp_path, directory=str(folder)), 2)
    assert f"fault_dump.directory '{folder}'" in str(caught.value)


# --- known late, as on CUDA -----------------------------------------------------------------------


class Event:
    """Passed when the test says so."""

    def __init__(self, made):
        self.passed, self.recorded = False, False
        made.append(self)

    def record(self):
        self.recorded = True

    def query(self):
        assert self.recorded
        return self.passed


def word_of(*rows, bits=FaultBit.STATE_NONFINITE):
    word = torch.zeros(4, dtype=torch.int32)
    word[list(rows)] = int(bits)
    return word


def test_a_late_watch_polls_and_loses_nothing():
    events = []
    watch = FaultWatch(4, CPU, event=lambda: Event(events))
    assert watch.late and watch.look(word_of(1)) == []
    assert watch.look(word_of(2)) == []  # the first copy is still under way
    assert watch.look(word_of(2, 3, bits=FaultBit.ACTION_NONFINITE)) == []
    assert len(events) == 1
    events[0].passed = True
    assert watch.look(word_of()) == [(1, FaultBit.STATE_NONFINITE)]
    assert len(events) == 2
    events[1].passed = True
    both = FaultBit.STATE_NONFINITE | FaultBit.ACTION_NONFINITE
    assert watch.look(word_of(0)) == [(2, both), (3, FaultBit.ACTION_NONFINITE)]
    events[2].passed = True
    assert watch.look(word_of()) == [(0, FaultBit.STATE_NONFINITE)]
    events[3].passed = True
    assert watch.look(word_of()) == []


def test_what_is_only_counted_raises_nothing():
    events = []
    for watch in (FaultWatch(4, CPU), FaultWatch(4, CPU, event=lambda: Event(events))):
        for _ in range(3):
            assert watch.look(word_of(1, bits=FaultBit.SOLVER_ITERATIONS)) == []
            for event in events:
                event.passed = True


def test_a_late_error_comes_one_step_after_the_fault(tmp_path):
    events = []
    env = started(walker_cfg(tmp_path), 4, on_fault="raise")
    env.faults.watch = FaultWatch(4, CPU, event=lambda: Event(events))
    action = zero_action(env)
    bad = action.clone()
    bad[2, 0] = NAN
    env.step(bad)  # the word is on its way
    events[0].passed = True
    with pytest.raises(
        FaultError, match=r"1 faulty row\(s\) in an earlier step: row 2: action_nonfinite$"
    ):
        env.step(action)
    assert env.rt.episode_step[0].item() == 2  # the step is complete
    events[1].passed = True
    env.step(action)
    env.close()


@pytest.mark.cuda
def test_on_cuda_a_fault_is_raised_without_waiting():
    device = torch.device("cuda")
    watch = FaultWatch(4, device)
    word = word_of(2).to(device)
    torch.cuda.synchronize()
    with torch.cuda.device(device):
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = watch.look(word)
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            found += watch.look(torch.zeros_like(word))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert found == [(2, FaultBit.STATE_NONFINITE)]


def test_an_environment_without_dump_and_raise_looks_at_nothing(tmp_path):
    env = build(walker_cfg(tmp_path), 2)
    assert env.faults is None and env.rt.ring is None
    env.close()

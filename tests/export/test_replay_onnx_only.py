"""The replay that knows nothing but the ONNX file and plain MuJoCo follows every environment."""

import contextlib
import copy
import importlib.util
import io
import subprocess
import sys
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import onnx
import pytest
import torch
from helpers.actors import TASK, D, make_actor

import unilab_gym
from unilab_gym.contract import resolve
from unilab_gym.export import export_policy, export_tracking_policy, load_policy
from unilab_gym.registration import owner_config

EXAMPLE = Path(unilab_gym.__file__).parents[1] / "examples" / "replay_onnx_only.py"
COMMAND = np.array([0.5, -0.1, 0.3])
HISTORY = "Go2 with five frames of every term"


@pytest.fixture(scope="module")
def contract():
    return resolve(owner_config(TASK, "mujoco"))


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("replay_onnx_only", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Walker:
    """A small random actor on one environment of a task, exported from that environment."""

    def __init__(self, task, folder, **overrides):
        self.env = gymnasium.make_vec(
            task, num_envs=1, backend="mujoco", play=True, overrides=overrides
        )
        self.runtime = self.env.unwrapped.runtime
        for name, term in self.runtime.commands.terms.items():
            if term.value.shape[1] == len(COMMAND):
                self.env.unwrapped.hold_command(name, list(COMMAND))
        width = self.env.single_observation_space.shape[0]
        actions = self.env.single_action_space.shape[0]
        self.actor = make_actor(seed=3, gain=3.0, width=width, actions=actions)
        self.motion = self.runtime.commands.terms.get("motion")
        self.path = folder / "policy.onnx"
        if self.motion is None:
            export_policy(self.actor, self.env, self.path)
            return
        self.path = folder / f"tracking_{self.motion.library.names[0]}.onnx"
        export_tracking_policy(
            self.actor,
            self.env,
            self.path,
            motion=self.motion.reference(),
            body_names=self.motion.body_names,
            anchor_body_name=self.motion.anchor,
        )

    @property
    def shown(self):
        """The frame of the reference that the environment shows; None without a motion."""
        return None if self.motion is None else int(self.motion.frame[0])


@pytest.fixture(scope="module")
def walkers(tmp_path_factory):
    made = {}

    def get(task):
        if task not in made:
            made[task] = Walker(task, tmp_path_factory.mktemp("walker"))
        return made[task]

    yield get
    for walker in made.values():
        walker.env.close()


@pytest.fixture(scope="module")
def walker(walkers):
    return walkers(TASK)


def test_a_live_environment_gives_its_contract(walker, contract):
    """As resolved without one, but for the learner and the noise that `play` takes off."""
    given = load_policy(walker.path).contract
    wanted = copy.deepcopy(contract)
    wanted["network"] = None
    for term in wanted["observations"]["policy"]["terms"]:
        term["noise"] = None
    assert given == wanted


def phase_of(runtime):
    """The clock's phase, in periods, from the sine and cosine that it shows first."""
    for term in runtime.commands.terms.values():
        if term.component_names[:1] and term.component_names[0].startswith("sin_"):
            sine, cosine = term.value[0, :2].tolist()
            return float(np.arctan2(sine, cosine)) / (2 * np.pi)
    return 0.0


def follow(walker, example):
    """The stranger's observations and targets are the environment's, across resets."""
    env, runtime = walker.env, walker.runtime
    session, contract = example.load_policy(walker.path)
    reference = None if walker.shown is None else example.Reference(session)
    data = mujoco.MjData(runtime.backend.model)
    observe, drive = example.Observer(contract), example.Driver(contract)
    obs, _ = env.reset(seed=5)
    count = len(contract["actions"]["scale"])
    action, phase, step, ended, worst = np.zeros(count), phase_of(runtime), 0, 0, 0.0
    clipped, first, frame, feed = False, walker.shown, None, {}
    for number in range(200):
        data.qpos[:], data.qvel[:] = runtime.backend.render_state(0)
        mujoco.mj_forward(runtime.backend.model, data)
        if reference:  # counted from the start of the episode, which alone is the environment's
            frame = reference(first + step)
            feed = {"time_step": np.full((1, 1), first + step, dtype=np.float32)}
        commands = example.command_values(contract, COMMAND, phase, step, frame)
        built = observe(data, action, commands, frame)
        np.testing.assert_allclose(built, obs[0].numpy(), atol=1e-4)
        huge = 30.0 if number % 40 == 39 else 1.0  # now and then far beyond the box
        raw = session.run(["actions"], {"obs": huge * built[None], **feed})[0][0]
        action, targets = drive(raw, data)
        clipped |= bool((np.abs(raw) > np.abs(action)).any())
        with torch.no_grad():
            obs, _, terminated, truncated, _ = env.step(
                walker.actor(huge * torch.from_numpy(built[None]))
            )
        worst = max(worst, float(np.abs(targets - runtime.rt.actions.ctrl[0].numpy()).max()))
        step += 1
        if bool(terminated | truncated):
            action, phase, step, ended = np.zeros(count), phase_of(runtime), 0, ended + 1
            first = walker.shown
            observe.reset()
            drive.reset()
    assert worst <= 1e-4
    assert clipped
    assert ended > 0  # the comparison went across resets


@pytest.mark.parametrize("task", unilab_gym.task_ids())
def test_a_stranger_with_the_file_alone_gives_the_environments_targets(walkers, example, task):
    follow(walkers(task), example)


def test_histories_latencies_and_relative_targets_are_in_the_file(example, tmp_path):
    """E56: the input is the flat group, and the file says how to build it."""
    walker = Walker(
        TASK,
        tmp_path,
        **{
            "observations.policy.history": 5,
            "observations.policy.terms.joint_vel.delay": 2,
            "observations.policy.terms.base_ang_vel.history": 0,
            "actions.joint_pos.func": "unilab_gym.mdp.actions:RelativeJointPositionAction",
            "actions.joint_pos.delay": 1,
        },
    )
    assert load_policy(walker.path).obs_width == 5 * D - 4 * 3
    follow(walker, example)
    walker.env.close()


def test_what_the_example_cannot_do_is_refused_by_name(contract, example):
    def refused(message, change):
        changed = copy.deepcopy(contract)
        change(changed["observations"]["policy"], changed["actions"]["terms"][0])
        with pytest.raises(example.BadFile, match=message):
            example.check(changed)

    example.check(contract)
    drawn = {"steps": [0, 3], "redraw": None, "shared": None}
    refused("'joint_pos' is of kind 'muscle'", lambda o, a: a.update(kind="muscle"))
    refused("delay of 'joint_pos' is drawn", lambda o, a: a.update(delay=drawn))
    refused("delay of 'base_ang_vel'", lambda o, a: o["terms"][0].update(delay=drawn))
    refused("'policy' is laid out as '.H, D.'", lambda o, a: o.update(layout="[H, D]"))


def test_targets_are_clipped_like_the_environments(walker, example):
    session, contract = example.load_policy(walker.path)
    walker.env.reset(seed=6)
    huge = 1e3 * torch.randn(1, D, generator=torch.Generator().manual_seed(4))
    raw = session.run(["actions"], {"obs": huge.numpy()})[0][0]
    assert np.abs(raw).max() > 4.0
    data = mujoco.MjData(walker.runtime.backend.model)
    _, targets = example.Driver(contract)(raw, data)
    walker.env.step(torch.from_numpy(raw[None]))
    np.testing.assert_allclose(targets, walker.runtime.rt.actions.ctrl[0].numpy(), atol=1e-4)


def test_history_is_term_major_and_oldest_first(contract, example):
    changed = copy.deepcopy(contract)
    terms = changed["observations"]["policy"]["terms"][:2]
    for term in terms:
        term["history"] = 3
    changed["observations"]["policy"]["terms"] = terms
    _, data = example.load_robot(example.find_robot(contract), contract)
    observe = example.Observer(changed)
    for speed in (1.0, 2.0, 3.0):
        data.qvel[3:6] = speed
        built = observe(data, None, {})
    gravity = [0.0, 0.0, -1.0]
    assert built.tolist() == [1.0] * 3 + [2.0] * 3 + [3.0] * 3 + gravity * 3
    observe.reset()
    assert observe(data, None, {})[:9].tolist() == [3.0] * 9  # the first frame fills the past


@pytest.mark.parametrize("task", ["UniLab/CartPole-v0", TASK])
def test_the_example_runs(walkers, example, task, monkeypatch):
    out = io.StringIO()
    path = walkers(task).path
    monkeypatch.setattr(
        sys, "argv", ["replay", str(path), "--seconds", "1", "--command", "0.5", "0", "0"]
    )
    with contextlib.redirect_stdout(out):
        assert example.main() == 0
    lines = out.getvalue().splitlines()
    if task == TASK:
        assert [line.split()[0] for line in lines] == ["walked", "vx", "vy", "wz"]
        assert "command +0.50" in lines[1]
    else:
        assert lines[0].startswith("joints in the end")


def _edited(source, target, change):
    model = onnx.load(str(source))
    change(model)
    onnx.save(model, str(target))
    return target


def _metadata(model, value):
    entry = next(item for item in model.metadata_props if item.key == "unilab_gym")
    entry.value = value


BAD = {
    "there is no file": lambda source, path: path,
    "not an ONNX file": lambda source, path: path.write_bytes(b"\x00garbage") and path,
    "no metadata key": lambda source, path: _edited(
        source, path, lambda model: model.ClearField("metadata_props")
    ),
    "not JSON": lambda source, path: _edited(source, path, lambda m: _metadata(m, "{cut")),
    "schema 'other/9'": lambda source, path: _edited(
        source, path, lambda m: _metadata(m, '{"schema": "other/9"}')
    ),
}


@pytest.mark.parametrize("words", BAD)
def test_a_bad_file_is_one_clear_line(walker, example, tmp_path, capsys, monkeypatch, words):
    path = BAD[words](walker.path, tmp_path / "bad.onnx")
    monkeypatch.setattr(sys, "argv", ["replay", str(path)])
    assert example.main() == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and words in said


def test_another_robot_is_refused(walker, example, tmp_path, capsys, monkeypatch):
    robot = tmp_path / "robot.xml"
    robot.write_text("<mujoco><worldbody><body><joint name='a'/><geom size='1'/></body>"
                     "</worldbody></mujoco>")  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["replay", str(walker.path), "--robot", str(robot)])
    assert example.main() == 1
    assert "is not the policy's robot" in capsys.readouterr().err


def test_the_example_knows_nothing_of_ours():
    code = (
        f"import runpy, sys; sys.argv = ['x', '--help']\n"
        f"try: runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print([n for n in sys.modules if n.split('.')[0] in ('unilab_gym', 'torch')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_tracking_policy_without_its_motion_is_refused(walkers, example, tmp_path):
    walker = walkers("UniLab/G1MotionTracking-v0")
    path = tmp_path / "policy.onnx"
    export_policy(walker.actor, walker.env, path)
    with pytest.raises(example.BadFile, match=r"holds no reference motion: give.*tracking_CLIP"):
        example.load_policy(path)


def test_the_example_tracks_from_the_file_alone(walkers, example, capsys, monkeypatch):
    """It starts on the first frame, where no policy has had time to leave the reference."""
    path = walkers("UniLab/G1MotionTracking-v0").path
    monkeypatch.setattr(sys, "argv", ["replay", str(path), "--seconds", "0.1"])
    assert example.main() == 0
    words = capsys.readouterr().out.split()
    assert words[:3] == ["5", "frames,", "torso_link"] and float(words[3]) < 0.05

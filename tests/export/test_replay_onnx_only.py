"""The replay that knows nothing but the ONNX file and plain MuJoCo follows the environment."""

import contextlib
import copy
import importlib.util
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from helpers.actors import TASK, A, D, make_actor

import unilab_gym
from unilab_gym.contract import resolve
from unilab_gym.export import export_policy, load_policy
from unilab_gym.registration import owner_config

EXAMPLE = Path(unilab_gym.__file__).parents[1] / "examples" / "replay_onnx_only.py"


@pytest.fixture(scope="module")
def contract():
    return resolve(owner_config(TASK, "mujoco"))


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("replay_onnx_only", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def env():
    env = gymnasium.make_vec(TASK, num_envs=1, backend="mujoco", play=True)
    env.unwrapped.hold_command("twist", [0.5, -0.1, 0.3])
    yield env
    env.close()


@pytest.fixture(scope="module")
def walker(env, tmp_path_factory):
    """A small random actor, exported from the live environment."""
    path = tmp_path_factory.mktemp("walker") / "policy.onnx"
    actor = make_actor(seed=3, gain=3.0)
    export_policy(actor, env, path)
    return SimpleNamespace(actor=actor, path=path)


def test_a_live_environment_gives_its_contract(walker, contract):
    """As resolved without one, but for the learner and the noise that `play` takes off."""
    given = load_policy(walker.path).contract
    wanted = copy.deepcopy(contract)
    wanted["network"] = None
    for term in wanted["observations"]["policy"]["terms"]:
        term["noise"] = None
    assert given == wanted


def _phase(obs):
    """The clock's phase, in periods, from the sine and cosine of the first pair of legs."""
    return float(torch.atan2(obs[0, 45], obs[0, 46])) / (2 * np.pi)


def test_a_replay_from_the_file_alone_gives_the_environments_targets(env, walker, example):
    session, contract = example.load_policy(walker.path)
    engine = env.unwrapped.runtime
    data = mujoco.MjData(engine.backend.model)
    obs, _ = env.reset(seed=5)
    action, phase, step, ended, worst = np.zeros(A), _phase(obs), 0, 0, 0.0
    command = np.array([0.5, -0.1, 0.3])
    for _ in range(200):
        data.qpos[:], data.qvel[:] = engine.backend.render_state(0)
        commands = {"twist": command, "gait": example.trot_gait(contract, command, phase, step)}
        built = example.observation(contract, data, action, commands)
        np.testing.assert_allclose(built, obs[0].numpy(), atol=2e-5)
        raw = session.run(["actions"], {"obs": built[None]})[0][0]
        action, targets = example.joint_targets(contract, raw)
        with torch.no_grad():
            obs, _, terminated, truncated, _ = env.step(walker.actor(obs))
        worst = max(worst, float(np.abs(targets - engine.rt.actions.ctrl[0].numpy()).max()))
        step += 1
        if bool(terminated | truncated):
            action, phase, step, ended = np.zeros(A), _phase(obs), 0, ended + 1
    assert worst <= 1e-4
    assert ended > 0  # the comparison went across resets


def test_targets_are_clipped_like_the_environments(env, walker, example):
    session, contract = example.load_policy(walker.path)
    env.reset(seed=6)
    huge = 1e3 * torch.randn(1, D, generator=torch.Generator().manual_seed(4))
    raw = session.run(["actions"], {"obs": huge.numpy()})[0][0]
    assert np.abs(raw).max() > 4.0
    _, targets = example.joint_targets(contract, raw)
    env.step(torch.from_numpy(raw[None]))
    engine = env.unwrapped.runtime
    np.testing.assert_allclose(targets, engine.rt.actions.ctrl[0].numpy(), atol=1e-4)


def test_the_example_runs(walker, contract, example, tmp_path, monkeypatch):
    path = tmp_path / "policy.onnx"
    export_policy(walker.actor, contract, path)
    out = io.StringIO()
    monkeypatch.setattr(
        sys, "argv", ["replay", str(path), "--seconds", "1", "--command", "0.5", "0", "0"]
    )
    with contextlib.redirect_stdout(out):
        example.main()
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["walked", "vx", "vy", "wz"]
    assert "command +0.50" in lines[1]

"""The Gymnasium face: environments that close, fail, and live side by side."""

import dataclasses
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import pytest
import torch
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError
from helpers.face import ACTIONS, actions, frozen, leaves, make_go2, rollout, same

import unilab_gym
from unilab_gym.config import RewardTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import rewards
from unilab_gym.tasks import go2_joystick_flat

# -- life ------------------------------------------------------------------------------------------


def test_one_thread_at_a_time(monkeypatch):
    env = make_go2(2)
    env.reset(seed=0)
    inside, leave = threading.Event(), threading.Event()
    step = env.runtime.step

    def slow(*args, **kwargs):
        inside.set()
        assert leave.wait(10)
        return step(*args, **kwargs)

    monkeypatch.setattr(env.runtime, "step", slow)
    zeros = torch.zeros(2, ACTIONS)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(env.step, zeros)
        assert inside.wait(10)
        for name, call in {
            "step": lambda: env.step(zeros),
            "reset": env.reset,
            "get_state": env.get_state,
            "state_dict": env.state_dict,
            "load_state_dict": lambda: env.load_state_dict({}),
        }.items():
            with pytest.raises(AlreadyPendingCallError, match=rf"^{name}\(\) was called while"):
                call()
        leave.set()
        assert first.result()[1].isfinite().all()
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="shape"):
        env.step(zeros[:1])  # an error leaves nobody inside
    assert env.step(zeros)[1].isfinite().all()
    with ThreadPoolExecutor(1) as pool:  # one after the other, any thread may step
        assert pool.submit(env.step, zeros).result()[1].isfinite().all()
    env.close()


def test_close_is_final_and_idempotent():
    env = make_go2(2)
    env.reset(seed=0)
    held = env.step(torch.zeros(2, ACTIONS))
    env.close()
    env.close()
    assert env.closed and all(leaf.isfinite().all() for _, leaf in leaves(held))
    for use in (
        env.reset,
        lambda: env.step(torch.zeros(2, ACTIONS)),
        env.render,
        env.state,
        env.get_observations,
        lambda: env.episode_length_buf,
        lambda: env.hold_command("twist", [0.0, 0.0, 0.0]),
    ):
        with pytest.raises(ClosedEnvironmentError, match="closed: make a new one"):
            use()
    make_go2(2).close()  # before any reset


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_worker_threads_end_with_their_environment():
    gc.collect()
    threads = len(os.listdir("/proc/self/task"))
    for how in ("close", "del"):
        env = make_go2(2, overrides={"sim.num_threads": 3})
        env.reset(seed=0)
        assert len(os.listdir("/proc/self/task")) > threads
        if how == "close":
            env.close()
            assert len(os.listdir("/proc/self/task")) == threads  # and still referred to
        del env
        gc.collect()
        assert len(os.listdir("/proc/self/task")) == threads


def test_a_failure_while_building_is_the_only_error(monkeypatch, capfd):
    """In a term, when the engine was built already: it is closed, and nothing else is said."""
    from unilab_gym.backends.mujoco import MujocoBackend

    closed = []
    close = MujocoBackend.close
    monkeypatch.setattr(MujocoBackend, "close", lambda self: (closed.append(self), close(self)))
    cfg = go2_joystick_flat.env_cfg()
    bad = RewardTermCfg(func=rewards.base_height_l2, weight=1.0, params={"targt": 0.3})
    cfg = dataclasses.replace(cfg, rewards={**cfg.rewards, "bad": bad})
    with pytest.raises(ConfigError, match=r"rewards/bad.*'targt'; did you mean 'target'"):
        unilab_gym.make(cfg, 2, device="cpu")
    assert len(closed) == 1
    gc.collect()
    assert capfd.readouterr() == ("", "")


def test_two_environments_alive_equal_solo_runs():
    solo = make_go2(3, max_episode_steps=5)
    want = rollout(solo, 8, reset_seed=2)
    solo.close()
    first, second = make_go2(3, max_episode_steps=5), make_go2(5)
    results = [frozen(first.reset(seed=2))]
    second.reset(seed=9)
    for mine, other in zip(actions(8, 3), actions(8, 5, seed=3), strict=True):
        results.append(frozen((*first.step(mine), first.get_observations())))
        second.step(other)
    second.close()
    for one, two in zip(results, want, strict=True):
        same(one, two)
    first.step(mine)
    first.close()


@pytest.fixture
def two_torch_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_torch_keeps_its_threads(two_torch_threads, monkeypatch):
    seen = []
    env = make_go2(2)
    backend = env.runtime.backend
    step = backend.step
    monkeypatch.setattr(
        backend, "step", lambda *a: (seen.append(torch.get_num_threads()), step(*a))[1]
    )
    env.reset(seed=0)
    env.step(torch.zeros(2, ACTIONS))
    assert seen == [1] and torch.get_num_threads() == 2

    def fail(*args):
        raise RuntimeError("engine on fire")

    monkeypatch.setattr(backend, "step", fail)
    with pytest.raises(RuntimeError, match="on fire"):
        env.step(torch.zeros(2, ACTIONS))
    assert torch.get_num_threads() == 2 and torch.is_grad_enabled()
    env.close()


def test_a_forked_child_is_told_instead_of_waiting_for_ever():
    env = make_go2(2)
    env.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)  # what a child would see
        with pytest.raises(ClosedEnvironmentError, match="another process"):
            env.step(torch.zeros(2, ACTIONS))
    env.step(torch.zeros(2, ACTIONS))
    env.close()


@pytest.fixture
def double_by_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("task", ["Go2JoystickFlat", "G1MotionTracking"])
def test_results_and_states_do_not_depend_on_torchs_default_type(task, double_by_default):
    def play():
        env = gym.make_vec(f"unilab_gym:UniLab/{task}-v0", num_envs=2, backend="mujoco")
        env.reset(seed=1)
        width = env.single_action_space.shape[0]
        returned = [env.step(torch.full((2, width), 0.1))[:2] for _ in range(6)]
        state = env.unwrapped.state_dict()
        env.close()
        return returned, state

    doubles, state = play()
    torch.set_default_dtype(torch.float32)
    floats, expected = play()
    assert {k: v.dtype for k, v in state.items()} == {k: v.dtype for k, v in expected.items()}
    for got, wanted in zip(doubles, floats, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.fixture
def elsewhere_by_default():
    """New tensors without a device hold no data: as with "cuda", nobody here can read them."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize(
    ("task", "backend", "mode"),
    [
        ("Go2JoystickFlat", "mujoco", "NextStep"),
        ("G1MotionTracking", "mujoco", "SameStep"),
        ("CartPole", "mujoco", "Disabled"),
        ("CartPole", "mjwarp", "SameStep"),
    ],
)
def test_torchs_default_device_is_not_asked(task, backend, mode, elsewhere_by_default):
    if backend == "mjwarp":
        pytest.importorskip("mujoco_warp")

    def play():
        env = gym.make_vec(
            f"unilab_gym:UniLab/{task}-v0",
            num_envs=2,
            backend=backend,
            device="cpu",
            autoreset_mode=mode,
            log_in_info=True,
            seed=0,
        )
        env.reset(seed=1)
        action = torch.full((2, env.single_action_space.shape[0]), 0.1, device="cpu")
        returned = [env.step(action)[:4] for _ in range(4)]
        env.unwrapped.load_state_dict(env.unwrapped.state_dict())
        mask = torch.tensor([True, False], device="cpu")
        returned.append(env.reset(options={"reset_mask": mask})[:1])
        env.close()
        return returned

    found = play()
    torch.set_default_device(None)
    for got, wanted in zip(found, play(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))

"""`ManagerBasedRlEnv` by itself: construction, strict arguments, threads and gradients, closing."""

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.probe import build, probe_cfg, random_actions, started, walker_cfg, zero_action

import unilab_gym
from unilab_gym.backends.base import BackendSpec
from unilab_gym.backends.mujoco import MujocoBackend
from unilab_gym.config import EventTermCfg, RewardTermCfg, to_dict
from unilab_gym.errors import BackendError, ConfigError
from unilab_gym.runtime.env import ManagerBasedRlEnv, quiet_torch
from unilab_gym.runtime.reads import EpisodeStep
from unilab_gym.runtime.rng import constructor_keys, seed_keys
from unilab_gym.runtime.term import term
from unilab_gym.scene import build_scene


def test_the_counter_is_observed_and_the_reward_is_one_per_second(tmp_path):
    env = build(probe_cfg(tmp_path))
    assert env.reset().obs["policy"].tolist() == [[0.0]] * 4
    for step in (1, 2, 3):
        state = env.step(zero_action(env))
        assert state.obs["policy"].flatten().tolist() == [float(step)] * 4
        assert state.final_obs["policy"].flatten().tolist() == [float(step)] * 4
        torch.testing.assert_close(state.reward, torch.full((4,), 0.02))
    env.close()


def test_building_leaves_the_config_as_it_was(tmp_path):
    cfg = walker_cfg(tmp_path)
    before, copied = to_dict(cfg), dataclasses.replace(cfg)
    env = started(cfg)
    env.step(zero_action(env))
    env.close()
    assert to_dict(cfg) == before
    assert cfg == copied


def test_keys_come_from_the_seed_and_the_rank(tmp_path):
    env = build(probe_cfg(tmp_path), 2, seed=11, rank=3)
    assert env.rt.rng.keys.flatten().tolist() == constructor_keys(11, 2, rank=3)
    env.reset(keys=seed_keys(5, 2))
    assert env.rt.rng.keys.flatten().tolist() == seed_keys(5, 2)
    env.close()


def starts(folder):
    """A digest of start-up parameters, the first observation and three automatic resets."""
    env = started(walker_cfg(folder, episode_length_s=0.1), 3, seed=7)
    parts = [env.backend.get_model_field("body_mass"), env.backend.get_model_field("geom_friction")]
    for _ in range(15):
        parts.append(env.state.obs["policy"].clone())
        env.step(zero_action(env))
    env.close()
    whole = torch.cat([part.flatten() for part in parts])
    return hashlib.sha256(bytes(whole.view(torch.uint8).tolist())).hexdigest()


def test_a_seed_gives_the_same_in_another_process(tmp_path):
    """E23."""
    code = "import pathlib; from runtime.test_env import starts; print(starts(pathlib.Path('.')))"
    paths = [str(Path(__file__).parent.parent), str(Path(unilab_gym.__file__).parent.parent)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "123"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env
    )
    assert done.stdout.strip() == starts(tmp_path), done.stderr


def test_without_a_seed_it_takes_one_and_says_which(tmp_path):
    envs = [build(probe_cfg(tmp_path), 1, seed=None) for _ in range(3)]
    assert len({env.seed for env in envs}) > 1
    for env in envs:
        assert env.rt.rng.keys[0, 0].item() == constructor_keys(env.seed, 1)[0]
        env.close()


def test_the_limit_can_be_given_in_steps(tmp_path):
    env = started(probe_cfg(tmp_path), 2, max_episode_steps=3)
    ends = [env.step(zero_action(env)).truncated.any().item() for _ in range(6)]
    assert ends == [False, False, True] * 2
    env.close()


def test_the_observation_of_the_last_boundary_stays_until_the_next_call(tmp_path):
    env = started(walker_cfg(tmp_path), 3)
    state = env.step(random_actions(env, 1)[0])
    before = {name: obs.clone() for name, obs in state.obs.items()}
    env.log()
    env.fault_totals()
    assert all(torch.equal(state.obs[name], obs) for name, obs in before.items())
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"mask": torch.ones(3)}, r"mask must be bool \(3,\), got torch.float32 \(3,\)"),
        (
            {"mask": torch.ones(1, dtype=torch.bool)},
            r"mask must be bool \(3,\), got torch.bool \(1,\)",
        ),
        ({"mask": torch.tensor([0, 2])}, r"mask must be bool \(3,\), got torch.int64 \(2,\)"),
        ({"keys": [5]}, "3 keys are needed, got 1"),
    ],
)
def test_a_reset_is_strict_about_mask_and_keys(tmp_path, kwargs, message):
    env = started(probe_cfg(tmp_path), 3)
    env.step(zero_action(env))
    with pytest.raises(ConfigError, match=message):
        env.reset(**kwargs)
    assert env.rt.episode_step.tolist() == [1, 1, 1]
    env.close()


def test_torch_threads_and_modes_are_restored():
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)
    try:
        with quiet_torch(single_thread=True):
            assert torch.get_num_threads() == 1
            assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError), quiet_torch(single_thread=True):
            1 / 0  # noqa: B018
        assert torch.get_num_threads() == 2
        with quiet_torch(single_thread=False):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("inference", [True, False])
def test_a_context_within_itself_restores_what_was_before_each(inference):
    """A term may call the environment that is calling it."""

    def torch_now():
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads()

    context = quiet_torch(single_thread=True, inference=inference)
    torch.set_num_threads(2)
    try:
        before = torch_now()
        for _ in range(2):
            with context:
                inside = torch_now()
                with context, pytest.raises(ZeroDivisionError), context:
                    assert torch_now() == inside == (False, inference, 1)
                    1 / 0  # noqa: B018
                assert torch_now() == inside
            assert torch_now() == before
    finally:
        torch.set_num_threads(1)


class Fuse:
    """Blows in the middle of a step, after the term has changed torch's modes."""

    blown = False


@term(reads=(EpisodeStep(),))
def fused(frame):
    if Fuse.blown:
        torch.set_grad_enabled(True)
        raise ArithmeticError("blown")
    return torch.ones_like(frame[EpisodeStep()], dtype=torch.float32)


@pytest.mark.parametrize(
    "mode", [torch.enable_grad, torch.no_grad, torch.inference_mode, lambda: quiet_torch(True)]
)
def test_an_error_within_a_step_restores_torch_and_the_environment_goes_on(tmp_path, mode):
    env = started(probe_cfg(tmp_path, rewards={"x": RewardTermCfg(func=fused, weight=1.0)}))

    def torch_now():
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads()

    torch.set_num_threads(2)
    try:
        with mode():
            before = torch_now()
            Fuse.blown = True
            with pytest.raises(ArithmeticError, match="blown"):
                env.step(zero_action(env))
            Fuse.blown = False
            assert torch_now() == before
            assert env.step(zero_action(env)).reward.tolist() == pytest.approx([0.02] * 4)
        assert torch_now() == (True, False, 2)
    finally:
        Fuse.blown = False
        torch.set_num_threads(1)
    env.close()


def test_it_works_inside_inference_mode_and_needs_no_gradient(tmp_path):
    with torch.inference_mode():
        env = started(walker_cfg(tmp_path))
        state = env.step(zero_action(env))
        assert not state.obs["policy"].is_inference()
    action = zero_action(env).requires_grad_()
    state = env.step(action)
    assert not state.obs["policy"].requires_grad
    assert not env.rt.actions.action.requires_grad
    state.obs["policy"].add_(0.0)  # an ordinary tensor outside inference mode
    env.close()


def test_closing_twice_and_using_it_afterwards(tmp_path):
    env = started(probe_cfg(tmp_path))
    env.close()
    env.close()
    with pytest.raises(BackendError, match="closed"):
        env.step(zero_action(env))


def test_a_failed_build_closes_the_backend(tmp_path):
    closed = []

    class Watched(MujocoBackend):
        def close(self):
            closed.append(True)
            super().close()

    cfg = probe_cfg(tmp_path)
    scene = build_scene(cfg.scene, cfg.sim, cfg.sim_dt)
    spec = BackendSpec(
        model=scene.model,
        index=scene.index,
        num_envs=1,
        device=torch.device("cpu"),
        decimation=1,
        num_threads=1,
    )
    bad = dataclasses.replace(cfg, events={"e": _unfit()})
    with pytest.raises(ConfigError, match="events/e: PushRoot needs a floating base"):
        ManagerBasedRlEnv(bad, scene.index, Watched, spec)
    assert closed == [True]


def _unfit():
    from unilab_gym.mdp.events import PushRoot

    params = {"lin_vel_xy": (0.0, 1.0)}
    return EventTermCfg(func=PushRoot, mode="interval", interval_s=(1.0, 2.0), params=params)


def test_global_generators_stay_untouched(tmp_path):
    import random

    state, python_state = torch.get_rng_state(), random.getstate()
    env = started(walker_cfg(tmp_path))
    env.step(torch.zeros(4, 2))
    env.reset(keys=seed_keys(1, 4))
    env.close()
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state

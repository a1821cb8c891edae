"""The policy that ships with the package: it walks, and it walks the same on both engines."""

import json

import gymnasium as gym
import pytest
import torch

from unilab_gym import evaluate
from unilab_gym.assets import asset_path
from unilab_gym.config import apply_overrides
from unilab_gym.contract import check_replay, contract_hash, resolve
from unilab_gym.export.onnx import load_policy
from unilab_gym.registration import load_task, owner_config

TASK = "UniLab/Go2JoystickFlat-v0"
FOLDER = asset_path("policies/go2")


@pytest.fixture(scope="module")
def policy():
    return load_policy(FOLDER / "policy.onnx")


def test_it_is_small_and_its_record_and_contract_hold(policy) -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000
    for backend in ("mujoco", "mjwarp"):
        owner = owner_config(TASK, backend)
        for source in (FOLDER, FOLDER / "policy.onnx"):
            report = check_replay(source, owner)
            assert report.ok and report.warned == ()
            assert "world" not in str(report)
        assert contract_hash(policy.contract) == contract_hash(resolve(owner))


@pytest.mark.parametrize("source", [".", "policy.onnx"])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("env.sim.gravity", [0.0, 0.0, -3.0]),
        ("env.scene.ground_friction", 0.1),
        ("env.sim.cone", "elliptic"),
    ],
)
def test_another_world_is_told_of_both_files(source, path, value) -> None:
    """Their contracts are older than the record of the world: it comes from the configuration."""
    target = apply_overrides(owner_config(TASK, "mujoco"), {path: value})
    report = check_replay(FOLDER / source, target)
    assert report.ok
    (item,) = report.warned
    assert item.path == f"resolved.world.{path.split('.')[-1]}"
    assert item.target == value and item.source != value


def test_its_record_tells_how_it_was_trained() -> None:
    record = json.loads((FOLDER / "run_config.json").read_text())
    training = record["config"]["training"]
    assert (training["num_envs"], training["iterations"]) == (512, 240)
    summary = json.loads((FOLDER / "run_summary.json").read_text())
    assert summary["totals"]["env_steps"] == 512 * 24 * 240


def test_it_reaches_the_outcome_in_shorter_episodes(policy) -> None:
    env = gym.make_vec(
        f"unilab_gym:{TASK}", num_envs=32, backend="mujoco", play=True, max_episode_steps=300
    )
    report = evaluate(env, policy)
    assert report.shortfalls(load_task(TASK).outcome) == []
    assert report.faults == {}
    env.close()


def test_a_robot_that_does_not_move_misses_the_outcome() -> None:
    env = gym.make_vec(
        f"unilab_gym:{TASK}", num_envs=32, backend="mujoco", play=True, max_episode_steps=100
    )
    report = evaluate(env, lambda obs: torch.zeros(obs.shape[0], 12))
    missed = " ".join(report.shortfalls(load_task(TASK).outcome))
    assert "lin_vel_error" in missed
    assert "swing_clearance_p10" in missed
    env.close()


def test_both_engines_stay_together_in_closed_loop(policy) -> None:
    envs = [
        gym.make_vec(f"unilab_gym:{TASK}", num_envs=4, backend=name, device="cpu", play=True)
        for name in ("mujoco", "mjwarp")
    ]
    observations = [env.reset(seed=7)[0] for env in envs]
    worst = moved = 0.0
    for _ in range(300):
        observations = [
            env.step(policy(obs))[0] for env, obs in zip(envs, observations, strict=True)
        ]
        left, right = (env.unwrapped.runtime.rt.views for env in envs)
        worst = max(worst, float((left.qpos - right.qpos).abs().max()))
        worst = max(worst, float((left.qvel - right.qvel).abs().max()))
        moved = float(left.qpos[:, :2].norm(dim=1).max())
    assert worst <= 1e-3
    assert moved > 0.5  # they walked: standing still would agree for nothing
    for env in envs:
        env.close()

"""The environment beside a checkpoint: it comes back whole, or the reason is said."""

import dataclasses
from pathlib import Path

import gymnasium as gym
import pytest
import torch

from unilab_gym.adapters.env_checkpoint import SCHEMA, env_file, keep_env, restored_env
from unilab_gym.adapters.settings import TrainSettings
from unilab_gym.errors import RunFolderError

TASK = "unilab_gym:UniLab/CartPole-v0"


def make(num_envs=4, seed=0):
    env = gym.make_vec(TASK, num_envs=num_envs, backend="mujoco", seed=seed, max_episode_steps=9)
    env.reset()
    return env.unwrapped


def steps(env, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        env.step(torch.rand(env.num_envs, 1, generator=generator) * 2 - 1)[0] for _ in range(count)
    ]


def equal(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(torch.nan_to_num(a[k].float()), torch.nan_to_num(b[k].float())) for k in a
    )


def test_a_restored_environment_goes_on_bit_for_bit(tmp_path):
    env, other = make(), make(seed=5)
    steps(env, 13)
    keep_env(tmp_path / "model_3.pt", env)
    found = restored_env(tmp_path / "model_3.pt", other)
    assert found.episodes and "go on" in found.text
    assert equal(other.state_dict(), env.state_dict())
    for a, b in zip(steps(env, 20, seed=1), steps(other, 20, seed=1), strict=True):
        assert torch.equal(a, b)
    env.close()
    other.close()


def test_a_torn_step_keeps_what_is_shared_and_starts_new_episodes(tmp_path):
    env, other = make(), make(seed=5)
    steps(env, 13)
    keep_env(tmp_path / "model_3.pt", env, between_steps=False)
    found = restored_env(tmp_path / "model_3.pt", other)
    assert not found.episodes and "counters and curricula go on" in found.text
    assert other.episode_length_buf.tolist() == [0] * 4 != env.episode_length_buf.tolist()
    here, there = env.runtime.rt.state.shared, other.runtime.rt.state.shared
    counted = [name for name in here if "total" in name or "step" in name]
    assert counted and all(torch.equal(here[name], there[name]) for name in counted)
    env.close()
    other.close()


def test_only_the_newest_is_kept_and_no_half_file(tmp_path):
    env = make()
    for number in (0, 40, 80):
        (tmp_path / f"model_{number}.pt").touch()
        keep_env(tmp_path / f"model_{number}.pt", env)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "env_state_80.pt", "model_0.pt", "model_40.pt", "model_80.pt",
    ]  # fmt: skip
    found = restored_env(tmp_path / "model_40.pt", env)
    assert not found.episodes and "no env_state_40.pt beside model_40.pt" in found.text
    env.close()


def test_what_does_not_fit_is_said_in_one_line_and_changes_nothing(tmp_path):
    small, env = make(2), make(4)
    checkpoint, marker = tmp_path / "model_7.pt", tmp_path / "executed"
    keep_env(checkpoint, small)
    evil = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
    whole = env_file(checkpoint).read_bytes()
    before = env.state_dict()
    for content, words in (
        (whole, "holds 2 rows; this environment has 4"),
        (whole[:200], "only tensors"),
        (evil, "only tensors"),
    ):
        env_file(checkpoint).write_bytes(content)
        found = restored_env(checkpoint, env)
        assert not found.episodes and words in found.text and "\n" not in found.text
        assert "env_state_7.pt does not fit" in found.text
    schema = {"schema": SCHEMA}
    for data in ({"schema": "other"}, schema | {"state": {"engine/state": 5}}, schema, [1]):
        torch.save(data, env_file(checkpoint))
        assert "does not fit: it" in restored_env(checkpoint, env).text
    assert not marker.exists() and equal(env.state_dict(), before)
    small.close()
    env.close()


# --- through the trainer --------------------------------------------------------------------------


class _Stop(Exception):
    """Ends a training where the test has seen enough."""


@pytest.fixture
def trainer(monkeypatch):
    module = pytest.importorskip("unilab_gym.adapters.rsl_rl_train")

    def stop(*_):
        raise _Stop

    monkeypatch.setattr(module, "_export", stop)  # tested elsewhere
    return module


def test_resume_goes_on_with_the_environment(trainer, tmp_path, monkeypatch, capsys):
    settings = TrainSettings(
        task="UniLab/CartPole-v0", backend="mujoco", num_envs=8, iterations=2, seed=3,
        save_interval=1, run_root=tmp_path,
    )  # fmt: skip
    with pytest.raises(_Stop):
        trainer.train(settings)
    (folder,) = tmp_path.glob("*/*")
    assert [path.name for path in folder.glob("env_state_*")] == ["env_state_1.pt"]
    saved = torch.load(folder / "env_state_1.pt", weights_only=True)["state"]
    seen = []

    def learn(runner, *_, stagger):
        seen.append((runner.env.env.state_dict(), stagger))
        raise _Stop

    monkeypatch.setattr(trainer, "_learn", learn)
    resumed = dataclasses.replace(settings, resume="latest", iterations=4)
    for words in ("environments go on where they were", "no env_state_1.pt beside model_1.pt"):
        capsys.readouterr()
        with pytest.raises(_Stop):
            trainer.train(resumed)
        assert words in capsys.readouterr().out
        (folder / "env_state_1.pt").unlink(missing_ok=True)
    (restored, staggered), (fresh, anew) = seen
    assert equal(restored, saved) and not staggered
    assert not equal(fresh, saved) and anew


def test_an_interrupt_within_a_step_is_noticed(trainer, tmp_path, monkeypatch):
    settings = TrainSettings(
        task="UniLab/CartPole-v0", backend="mujoco", num_envs=2, iterations=2, run_root=tmp_path
    )
    from unilab_gym.vector_env import UnilabVectorEnv

    def interrupted(self, actions):
        raise KeyboardInterrupt

    monkeypatch.setattr(UnilabVectorEnv, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(settings)
    (path,) = tmp_path.glob("*/*/env_state_0.pt")
    assert torch.load(path, weights_only=True)["between_steps"] is False


def test_a_checkpoint_that_cannot_be_written_leaves_whole_ones_only(trainer, tmp_path, monkeypatch):
    settings = TrainSettings(
        task="UniLab/CartPole-v0", backend="mujoco", num_envs=2, iterations=3, save_interval=1,
        run_root=tmp_path,
    )  # fmt: skip
    write, written = torch.save, []

    def fills_the_disk(data, path):
        written.append(path)
        if "iter" in data and data["iter"] == 1:
            Path(path).write_bytes(b"half")
            raise RuntimeError("no space left")
        write(data, path)

    monkeypatch.setattr(torch, "save", fills_the_disk)
    with pytest.raises(RunFolderError, match=r"cannot write checkpoint .*model_1.pt: no space"):
        trainer.train(settings)
    (folder,) = tmp_path.glob("*/*")
    assert len(written) == 3
    kept = {path.name for path in folder.iterdir() if path.suffix in (".pt", ".tmp")}
    assert kept == {"model_0.pt", "env_state_0.pt"}

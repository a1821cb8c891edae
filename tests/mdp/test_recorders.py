"""The episode recorder: every finished episode, bit by bit, in files that are whole."""

import numpy as np
import pytest
import torch
from helpers.dispatch import dispatched, stalls
from helpers.probe import build, probe_cfg, random_actions, started, walker_cfg, zero_action

from unilab_gym.config import RecorderTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.io import npz
from unilab_gym.mdp.recorders import EpisodeRecorder
from unilab_gym.runtime.managers.recorder import RecorderManager
from unilab_gym.runtime.recorder_term import RecorderTerm
from unilab_gym.runtime.term import term


def recording(folder, **params):
    params = {"folder": str(folder), "chunk_steps": 7, **params}
    return {"episodes": RecorderTermCfg(func=EpisodeRecorder, params=params)}


def episodes(folder):
    """(row, end, arrays of its steps) of every episode, in the order of files."""
    found = []
    for path in sorted(folder.glob("*.npz")):
        data, start = npz.read_npz(path), 0
        for number, length in enumerate(data["lengths"]):
            steps = slice(start, start + length)
            start += length
            per_step = {
                name: value[steps]
                for name, value in data.items()
                if name.startswith(("obs/", "qpos", "qvel", "actions", "rewards", "t"))
            }
            last = {name: value[number] for name, value in data.items() if name.startswith("final")}
            found.append((data["rows"][number], data["ends"][number], per_step | last))
    return found


def test_every_finished_episode_by_hand(tmp_path):
    """Twelve-step episodes over chunks of seven steps, beside what the environment returned."""
    folder = tmp_path / "episodes"
    cfg = walker_cfg(tmp_path, episode_length_s=0.24, recorders=recording(folder))
    env = started(cfg, 3)
    env.rt.episode_step.copy_(torch.tensor([0, 5, 9]))
    seen = []
    actions = random_actions(env, 40)
    for action in actions:
        start = {f"obs/{name}": value.clone() for name, value in env.state.obs.items()}
        start |= {"qpos": env.rt.views.qpos.clone(), "qvel": env.rt.views.qvel.clone()}
        state = env.step(action, autoreset=False)
        last = {f"final/obs/{name}": value.clone() for name, value in state.obs.items()}
        last |= {"final/qpos": env.rt.views.qpos.clone(), "final/qvel": env.rt.views.qvel.clone()}
        kept = {"rewards": state.reward.clone(), "terminated": state.terminated.clone()}
        kept |= {"truncated": state.truncated.clone(), "actions": action}
        seen.append(start | last | kept)
        env.reset(mask=env.rt.terminations.done.clone())
    env.close()
    found = episodes(folder)
    done = [(step["terminated"] | step["truncated"]).tolist() for step in seen]
    ends = [(row, k + 1) for k, rows in enumerate(done) for row in range(3) if rows[row]]
    assert len(ends) > 8
    assert sorted((int(row), int(end)) for row, end, _ in found) == sorted(ends)
    for row, end, data in found:
        length = len(data["rewards"])
        earlier = [k for other, k in ends if other == row and k < end]
        assert length == end - max(earlier, default=0)
        for name, value in data.items():
            if name.startswith("final"):
                wanted = seen[end - 1][name][row]
            else:
                wanted = torch.stack([step[name][row] for step in seen[end - length : end]])
            np.testing.assert_array_equal(value, wanted.numpy(), err_msg=name)


def test_rows_that_restart_by_hand_and_unfinished_episodes_are_not_written(tmp_path):
    folder = tmp_path / "e"
    params = {"rows": 2, "state": False}
    cfg = probe_cfg(tmp_path, episode_length_s=0.1, recorders=recording(folder, **params))
    env = started(cfg, 3)
    for step in range(1, 14):  # five-step episodes; row 0 restarts by hand after step 2
        env.step(zero_action(env))
        if step == 2:
            env.reset(mask=torch.tensor([True, False, False]))
    env.close()
    found = episodes(folder)
    assert sorted((int(row), int(end)) for row, end, _ in found) == [
        (0, 7),
        (0, 12),
        (1, 5),
        (1, 10),
    ]
    for _, _, data in found:
        assert data["obs/policy"][:, 0].tolist() == [0, 1, 2, 3, 4]
        assert data["final/obs/policy"].tolist() == [5]
        assert data["truncated"].tolist() == [False] * 4 + [True]
        assert "qpos" not in data


def test_nothing_half_written(tmp_path, monkeypatch):
    folder = tmp_path / "e"
    cfg = probe_cfg(tmp_path, episode_length_s=0.04, recorders=recording(folder))
    env = started(cfg, 2)

    def breaks(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(npz.np, "savez", breaks)
    for _ in range(7):
        env.step(zero_action(env))
    with pytest.raises(OSError, match="no space left"):
        env.close()
    assert list(folder.iterdir()) == []
    env.close()
    with pytest.raises(Exception, match="closed"):  # the engine was closed all the same
        env.backend.get_state()


def test_a_step_with_a_recorder_stalls_nothing_and_costs_two_operations(tmp_path):
    cfg = {"episode_length_s": 9.0}
    env = started(probe_cfg(tmp_path, **cfg, recorders=recording(tmp_path / "e")), 2)
    plain = started(probe_cfg(tmp_path, **cfg), 2)
    lists = []
    for one in (env, plain):
        one.step(zero_action(one))
        action = zero_action(one)
        lists.append(dispatched(lambda o=one, a=action: o.step(a)))
        one.close()
    assert stalls(lists[0]) == []
    assert len(lists[0]) - len(lists[1]) <= 6
    empty = RecorderManager(None, {}, None)
    hooks = (empty.post_step, empty.close, lambda: empty.pre_reset(None))
    assert [dispatched(hook) for hook in hooks] == [[], [], []]


# --- hooks ----------------------------------------------------------------------------------------

CALLS = []


@term()
class Diary(RecorderTerm):
    def post_step(self):
        CALLS.append(("post_step", self.now.obs["policy"].flatten().tolist()))

    def pre_reset(self, mask):
        CALLS.append(("pre_reset", mask.tolist(), self.now.obs["policy"].flatten().tolist()))

    def post_reset(self, mask):
        CALLS.append(("post_reset", mask.tolist(), self.now.obs["policy"].flatten().tolist()))

    def close(self):
        CALLS.append(("close",))


def test_hooks_in_order(tmp_path):
    CALLS.clear()
    diary = {"d": RecorderTermCfg(func=Diary)}
    env = started(probe_cfg(tmp_path, recorders=diary), 2)
    assert [call[0] for call in CALLS] == ["pre_reset", "post_reset"]
    env.rt.episode_step.copy_(torch.tensor([3, 49]))
    CALLS.clear()
    env.step(zero_action(env))
    env.close()
    env.close()
    assert CALLS == [
        ("post_step", [4.0, 50.0]),
        ("pre_reset", [False, True], [4.0, 50.0]),
        ("post_reset", [False, True], [4.0, 0.0]),
        ("close",),
    ]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"rows": 9}, r"recorders/episodes: rows must be in 1..2"),
        ({"chunk_steps": 0}, r"chunk_steps positive"),
        ({"groups": ("polcy",)}, r"observation group 'polcy'; did you mean 'policy'"),
        ({"step": 1}, r"has no parameter 'step'"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, params, message):
    cfg = probe_cfg(tmp_path, recorders=recording(tmp_path / "e", **params))
    with pytest.raises(ConfigError, match=message):
        build(cfg, 2)


def test_a_folder_of_another_run_and_a_wrong_class_are_refused(tmp_path):
    npz.write_npz(tmp_path / "episodes_000000.npz", {"a": [1]})
    with pytest.raises(ConfigError, match="holds episodes already"):
        build(probe_cfg(tmp_path, recorders=recording(tmp_path)), 2)
    wrong = {"r": RecorderTermCfg(func=recording)}
    with pytest.raises(ConfigError, match=r"recorders/r: .* is not a RecorderTerm class"):
        build(probe_cfg(tmp_path, recorders=wrong), 2)

"""NPZ files: whole or not there."""

import numpy as np
import pytest
import torch

from unilab_gym.io.npz import EpisodeWriter, Layout, read_npz, write_npz


def test_arrays_and_tensors_come_back(tmp_path):
    given = {"a/b": torch.tensor([[1.5, 2.0]]), "flags": np.array([True, False]), "n": 3}
    path = write_npz(tmp_path / "x.npz", given)
    back = read_npz(path)
    assert list(tmp_path.iterdir()) == [path]
    assert back["a/b"].tolist() == [[1.5, 2.0]]
    assert back["flags"].tolist() == [True, False]
    assert back["n"] == 3


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = write_npz(tmp_path / "x.npz", {"a": [1]})

    class Breaks:
        def __array__(self, *args, **kwargs):
            raise ValueError("no array")

    with pytest.raises(ValueError, match="no array"):
        write_npz(path, {"a": [2], "b": Breaks()})
    assert read_npz(path)["a"].tolist() == [1]
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_that_runs_code_is_loaded(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, a=np.array([{"an": "object"}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        read_npz(path)


def test_an_episode_over_three_chunks(tmp_path):
    layout = Layout(boundary=(("obs/policy", 1),), actions=1)
    assert layout.width == 7
    writer = EpisodeWriter(tmp_path, layout, rows=2)
    freed = []
    # Columns: before, after, action, reward, terminated, truncated, begun. Row 1 never begins.
    for chunk in range(3):
        steps = np.zeros((2, 2, 7), np.float32)
        for k in range(2):
            step = 2 * chunk + k
            steps[k, :, :4] = [step, step + 1, 10 + step, 0.5]
            steps[k, 0, 4] = step == 4
            steps[k, 0, 6] = step == 1
        writer.put(steps, None, lambda chunk=chunk: freed.append(chunk))
    writer.close()
    writer.close()
    assert freed == [0, 1, 2]
    data = read_npz(tmp_path / "episodes_000000.npz")
    assert data["obs/policy"].flatten().tolist() == [1, 2, 3, 4]
    assert data["final/obs/policy"].flatten().tolist() == [5]
    assert data["actions"].flatten().tolist() == [11, 12, 13, 14]
    assert data["terminated"].tolist() == [False, False, False, True]
    assert (data["lengths"].tolist(), data["rows"].tolist(), data["ends"].tolist()) == (
        [4],
        [0],
        [5],
    )

"""Videos: length, speed, size, tiles, and what is left behind when something fails."""

import shutil
import sys
import warnings

import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest
import torch

from unilab_gym.errors import BackendError, ConfigError
from unilab_gym.render import OffscreenRenderer, VideoRecorder, VideoWriter, video, write_video

ID = "unilab_gym:UniLab/Go2JoystickFlat-v0"


def read(path):
    """Frames and metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # imageio 2.38 leaves its pipes open
        with imageio.get_reader(path, format="FFMPEG") as reader:
            return np.stack(list(reader.iter_data())), reader.get_meta_data()


def ramp(count, height=32, width=48):
    """Grey frames whose value tells their number."""
    for number in range(count):
        yield np.full((height, width, 3), 20 + 2 * number, dtype=np.uint8)


def make(num_envs=3, backend="mujoco"):
    env = gymnasium.make_vec(ID, num_envs=num_envs, backend=backend, device="cpu", seed=5)
    env.reset(seed=0)
    return env


# --- files -------------------------------------------------------------------------------------


def test_every_frame_in_order_at_its_speed(tmp_path):
    path = tmp_path / "new" / "ramp.mp4"
    write_video(path, ramp(100), fps=50.0)
    frames, about = read(path)
    assert frames.shape == (100, 32, 48, 3)
    assert abs(frames.mean((1, 2, 3)) - (20 + 2 * np.arange(100))).max() < 4
    assert (about["fps"], about["codec"], about["duration"]) == (50.0, "h264", 2.0)
    assert about["pix_fmt"].startswith("yuv420p")
    assert [item.name for item in path.parent.iterdir()] == ["ramp.mp4"]


def test_odd_sizes_lose_a_pixel_and_thirds_of_a_second_stay(tmp_path):
    write_video(tmp_path / "odd.mp4", ramp(9, 33, 47), fps=33.333333)
    frames, about = read(tmp_path / "odd.mp4")
    assert frames.shape == (9, 32, 46, 3)
    assert about["fps"] == pytest.approx(100 / 3, abs=0.01)


def test_a_failure_keeps_the_old_file(tmp_path):
    path = tmp_path / "walk.mp4"
    write_video(path, ramp(3), fps=10)
    old = path.read_bytes()

    def broken():
        yield from ramp(5)
        raise KeyError("rollout")

    with pytest.raises(KeyError, match="rollout"):
        write_video(path, broken(), fps=10)
    with pytest.raises(ConfigError, match=r"first frame was \(32, 48, 3\), this one is \(16,"):
        write_video(path, [*ramp(2), *ramp(1, 16, 16)], fps=10)
    with pytest.raises(ConfigError, match="a video needs a frame"):
        write_video(path, [], fps=10)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "frame", "fps", "words"),
    [
        ("a.gif", np.zeros((8, 8, 3), np.uint8), 10, "mp4 file, got 'a.gif'"),
        ("a.mp4", np.zeros((8, 8, 3), np.uint8), 0, "fps must be a positive number"),
        ("a.mp4", np.zeros((8, 8, 3)), 10, r"\(H, W, 3\) uint8, got \(8, 8, 3\) float64"),
        ("a.mp4", np.zeros((8, 8), np.uint8), 10, r"got \(8, 8\) uint8"),
        ("a.mp4", np.zeros((1, 8, 3), np.uint8), 10, "two pixels a side"),
    ],
)
def test_arguments_are_checked(tmp_path, name, frame, fps, words):
    with pytest.raises(ConfigError, match=words):
        write_video(tmp_path / name, [frame], fps)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r'pip install "unilab_gym\[render\]"'):
        write_video(tmp_path / "a.mp4", ramp(2), 10)


def test_what_ffmpeg_says_is_passed_on(tmp_path, monkeypatch):
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(OSError):
        write_video(tmp_path / "folder.mp4", ramp(2), 10)
    monkeypatch.setattr(video, "_CODING", (*video._CODING, "-nonsense"))
    with pytest.raises(BackendError, match="nonsense"):
        write_video(tmp_path / "a.mp4", ramp(2000), 10)
    monkeypatch.setattr(video, "_ffmpeg", lambda: shutil.which("false"))
    with pytest.raises(BackendError, match="exit status 1, without a word"):
        write_video(tmp_path / "a.mp4", ramp(2000), 10)
    assert [item.name for item in tmp_path.iterdir()] == ["folder.mp4"]


def test_closed_twice_and_used_after(tmp_path):
    writer = VideoWriter(tmp_path / "a.mp4", 10)
    for frame in ramp(4):
        writer.append(frame)
    writer.close()
    writer.close()
    writer.abort()
    assert writer.frames == len(read(tmp_path / "a.mp4")[0]) == 4
    with pytest.raises(BackendError, match="closed"):
        writer.append(np.zeros((32, 48, 3), np.uint8))


def test_a_forgotten_video_leaves_nothing(tmp_path, run_script):
    text = """
import numpy as np
from unilab_gym.render import VideoWriter
writer = VideoWriter("a.mp4", 10)
for _ in range(50):
    writer.append(np.zeros((64, 64, 3), np.uint8))
"""
    run_script(text)
    assert list(tmp_path.iterdir()) == []


# --- rollouts ----------------------------------------------------------------------------------


def test_a_rollout_at_real_speed_that_filming_does_not_change(tmp_path):
    filmed, other = make(), make()
    generator = torch.Generator().manual_seed(1)
    path = tmp_path / "walk.mp4"
    with VideoRecorder(gymnasium.vector.VectorWrapper(filmed), path, [1], width=64, height=48) as v:
        for _ in range(100):
            action = torch.rand(3, 12, generator=generator) * 2 - 1
            for mine, plain in zip(filmed.step(action)[:4], other.step(action)[:4], strict=True):
                assert torch.equal(mine, plain)
            v.capture()
        assert v.frames == 100
    states = [env.unwrapped.runtime.backend.get_state() for env in (filmed, other)]
    assert torch.equal(*states)
    frames, about = read(path)
    assert frames.shape == (100, 48, 64, 3)
    assert about["fps"] == filmed.metadata["render_fps"] == 50.0
    assert about["duration"] == pytest.approx(100 * filmed.unwrapped.step_dt, abs=0.02)
    assert frames.std() > 20 and (frames[0] != frames[-1]).mean() > 0.1
    filmed.close()
    other.close()


def test_nine_rows_make_a_square(tmp_path, monkeypatch):
    env, taken = make(9), []
    monkeypatch.setattr(VideoWriter, "append", lambda self, frame: taken.append(frame))
    recorder = VideoRecorder(env, tmp_path / "a.mp4", range(9), width=64, height=48)
    recorder.capture()
    grid = taken[0].reshape(3, 48, 3, 64, 3).swapaxes(1, 2).reshape(9, 48, 64, 3)
    with OffscreenRenderer(env.unwrapped.cfg, 64, 48, supersample=1) as renderer:
        for row, tile in enumerate(grid):
            state = env.unwrapped.runtime.backend.render_state(row)
            assert np.array_equal(tile, renderer.draw(*state)), row
    recorder = VideoRecorder(env, tmp_path / "a.mp4", (7, 2, 4), width=64, height=48)
    recorder.capture()
    assert taken[1].shape == (96, 128, 3)
    assert np.array_equal(taken[1][:48, 64:], grid[2])
    assert not taken[1][48:, 64:].any()
    env.close()


def test_default_sizes(tmp_path):
    env = make()
    for rows, size in (((1,), (480, 640, 3)), (range(3), (480, 640, 3)), ((0, 1), (240, 640, 3))):
        with VideoRecorder(env, tmp_path / "a.mp4", rows) as recorder:
            recorder.capture()
        assert read(tmp_path / "a.mp4")[0].shape == (1, *size)
    env.close()


@pytest.mark.parametrize(("rows", "words"), [((3,), "rows: 3 is not in 0..2"), ((), "at least")])
def test_rows_are_checked(tmp_path, rows, words):
    env = make()
    with pytest.raises(ConfigError, match=words):
        VideoRecorder(env, tmp_path / "a.mp4", rows)
    env.close()


def test_the_other_engine_is_filmed_too(tmp_path):
    env = make(2, backend="mjwarp")
    with VideoRecorder(env, tmp_path / "a.mp4", (0, 1), width=64, height=48) as recorder:
        for _ in range(3):
            env.step(torch.zeros(2, 12))
            recorder.capture()
    frames, about = read(tmp_path / "a.mp4")
    assert frames.shape == (3, 48, 128, 3) and about["fps"] == 50.0
    assert frames.std() > 20
    env.close()

"""docs/gymnasium.md: its loop computes the right targets, and its table of wrappers is true."""

import re
import sys
import types
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import wrappers as single
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector
from helpers.face import make_probe
from helpers.probe import counter, obs_term, step_counter

import unilab_gym
from unilab_gym.config import ObservationGroupCfg, RewardTermCfg, TerminationTermCfg
from unilab_gym.mdp import terminations
from unilab_gym.runtime.reads import Action
from unilab_gym.runtime.term import term

PAGE = Path(__file__).parents[1].joinpath("docs", "gymnasium.md").read_text(encoding="utf-8")
MODES = list(AutoresetMode)
CARTPOLE = "UniLab/CartPole-v0"

# -- the loop --------------------------------------------------------------------------------------

GAMMA = 0.5
LIMIT, QUITS = 5, 3


@term(reads=(Action(0),))
def quits(frame):
    """True where the action says so."""
    return frame[Action(0)][:, 0] > 0.5


def chain(folder, mode):
    """A chain: state k, reward k on entering it; ends where the action says, or at the limit."""
    changes = {
        "observations": {"policy": ObservationGroupCfg(terms={"k": obs_term(step_counter)})},
        "rewards": {"k": RewardTermCfg(func=counter, weight=50.0)},
        "terminations": {
            "quits": TerminationTermCfg(func=quits),
            "time_out": TerminationTermCfg(func=terminations.TimeOut, time_out=True),
        },
    }
    return make_probe(folder, 4, changes=changes, max_episode_steps=LIMIT, autoreset_mode=mode)


def going_on(obs):
    return torch.zeros(obs.shape[0], 1)


def quitting(obs):
    return (obs == QUITS - 1).float()


def value_of_going_on(obs):
    """Sum over j >= 1 of gamma^(j - 1) (k + j) = 2 k + 4: the limit cuts what would go on."""
    return 2 * obs[:, 0] + 4


def value_of_quitting(obs):
    """The same sum up to the failure, on entering state 3: [1 + 1 + 3/4, 2 + 3/2, 3]."""
    values = torch.tensor([2.75, 3.5, 3.0, torch.nan])
    return values[obs[:, 0].long().clamp(max=3)]


def loop(text=PAGE):
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "def" in block)
    assert len(code.split("def ")[1].splitlines()) <= 20
    names = {}
    exec(compile(code, "docs/gymnasium.md", "exec"), names)
    return names["td_targets"]


def errors(folder, mode, policy, value, targets=None):
    env = chain(folder, mode)
    obs, found = (targets or loop())(env, policy, value, GAMMA, 30)
    env.close()
    return obs, (found - value(obs)).abs()


@pytest.mark.parametrize("mode", MODES)
def test_the_loop_finds_the_known_values(tmp_path, mode):
    obs, wrong = errors(tmp_path, mode, going_on, value_of_going_on)
    assert wrong.max() < 1e-5
    assert set(obs[:, 0].tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0}  # 4 leads to the limit
    obs, wrong = errors(tmp_path, mode, quitting, value_of_quitting)
    assert wrong.max() < 1e-5
    assert set(obs[:, 0].tolist()) == {0.0, 1.0, 2.0}  # 2 leads to the failure
    transitions = {"NextStep": 4 * (30 - 30 // (QUITS + 1)), "SameStep": 120, "Disabled": 120}
    assert len(obs) == transitions[mode.value]


@pytest.mark.parametrize(
    ("mode", "right", "wrong"),
    [
        ("SameStep", 'info["final_obs"] if', "following if"),
        ("NextStep", "dummy = done", "dummy = dummy"),
        ("SameStep", "where(terminated,", "where(terminated | truncated,"),
    ],
)
def test_the_chain_tells_a_wrong_loop(tmp_path, mode, right, wrong):
    assert PAGE.count(right) == 1
    spoiled = loop(PAGE.replace(right, wrong))
    _, error = errors(tmp_path, mode, going_on, value_of_going_on, spoiled)
    assert error.max() > 0.5


# -- the wrappers ----------------------------------------------------------------------------------


def filtered(env):
    return vector.FilterObservation(env, ["policy"])


WRAPPERS = {
    "RecordEpisodeStatistics": vector.RecordEpisodeStatistics,
    "DictInfoToList": vector.DictInfoToList,
    "TransformAction": lambda env: vector.TransformAction(env, lambda action: action / 2),
    "ClipAction": vector.ClipAction,
    "RescaleAction": lambda env: vector.RescaleAction(env, np.float32(-2), np.float32(2)),
    "VectorizeTransformAction": lambda env: vector.VectorizeTransformAction(env, single.ClipAction),
    "TransformReward": lambda env: vector.TransformReward(env, lambda reward: reward * 2),
    "ClipReward": lambda env: vector.ClipReward(env, -1.0, 1.0),
    "NormalizeReward": vector.NormalizeReward,
    "VectorizeTransformReward": lambda env: vector.VectorizeTransformReward(
        env, single.TransformReward, func=lambda reward: reward * 2
    ),
    "TransformObservation": lambda env: vector.TransformObservation(env, lambda obs: obs * 2),
    "VectorizeTransformObservation": lambda env: vector.VectorizeTransformObservation(
        env, single.FlattenObservation
    ),
    "FilterObservation": filtered,
    "FlattenObservation": vector.FlattenObservation,
    "ReshapeObservation": lambda env: vector.ReshapeObservation(env, (2, 2)),
    "DtypeObservation": lambda env: vector.DtypeObservation(env, np.float64),
    "NormalizeObservation": vector.NormalizeObservation,
    "RescaleObservation": lambda env: vector.RescaleObservation(env, np.float32(-1), np.float32(1)),
    "GrayscaleObservation": vector.GrayscaleObservation,
    "ResizeObservation": lambda env: vector.ResizeObservation(env, (2, 2)),
}


def rows():
    found = re.findall(r"^\| `(\w+)` \| (yes|no) \| (yes|no) \| (yes|no) \|", PAGE, re.M)
    return {
        name: dict(zip(("SameStep", "NextStep", "Disabled"), r, strict=True)) for name, *r in found
    }


def test_the_table_names_every_wrapper_of_gymnasium():
    elsewhere = {"HumanRendering", "ArrayConversion", "JaxToNumpy", "JaxToTorch", "NumpyToTorch"}
    assert set(rows()) == set(vector.__all__) - elsewhere == {*WRAPPERS, "RecordVideo"}


def play(env, mode, action=None):
    """Two episodes of three steps and a bit."""
    action = np.zeros((3, 1), np.float32) if action is None else action
    results = [env.reset(seed=0)]
    for _ in range(8):
        result = env.step(action)
        results.append(result)
        done = np.asarray(result[2]) | np.asarray(result[3])
        if mode == "Disabled" and done.any():
            env.reset(options={"reset_mask": done.copy()})
    return results


def cartpole(mode, output="numpy", **kwargs):
    return gymnasium.make_vec(
        CARTPOLE, 3, device="cpu", output=output, autoreset_mode=mode, max_episode_steps=3, **kwargs
    )


@pytest.mark.parametrize("mode", [mode.value for mode in MODES])
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_table_is_true(name, mode):
    obs = ("policy",) if name == "FilterObservation" else "policy"
    env = cartpole(mode, obs=obs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if rows()[name][mode] == "yes":
            results = play(WRAPPERS[name](env), mode)
            ended = [bool(np.any(result[2] | result[3])) for result in results[1:]]
            assert sum(ended) >= 2
            assert all(np.isfinite(result[1]).all() for result in results[1:])
        else:
            with pytest.raises((ValueError, TypeError)):
                play(WRAPPERS[name](env), mode)
    env.close()


@pytest.mark.parametrize("mode", [mode.value for mode in MODES])
def test_wrappers_that_take_a_function_work_on_tensors(mode):
    env = cartpole(mode, output="torch")
    wrapped = vector.TransformAction(env, lambda action: action / 2)
    wrapped = vector.TransformReward(wrapped, lambda reward: reward * 2)
    if mode != "SameStep":
        wrapped = vector.TransformObservation(wrapped, lambda obs: obs * 2)
    reference = cartpole(mode, output="torch")
    wrapped.reset(seed=0), reference.reset(seed=0)
    got, want = wrapped.step(torch.ones(3, 1)), reference.step(torch.full((3, 1), 0.5))
    assert torch.equal(got[1], want[1] * 2)
    assert torch.equal(got[0], want[0] * (1 if mode == "SameStep" else 2))
    env.close(), reference.close()


@pytest.mark.parametrize("mode", [mode.value for mode in MODES])
def test_statistics_of_every_episode(mode):
    """r and l of Gymnasium's wrapper are those of `final_info`, in the second episode as well."""
    env = vector.RecordEpisodeStatistics(cartpole(mode))
    results = play(env, mode)
    ended = [result for result in results[1:] if "episode" in result[4]]
    assert len(ended) == 2
    for result in ended:
        assert result[4]["episode"]["l"].tolist() == [3] * 3
        if mode == "SameStep":
            own = result[4]["final_info"]["episode"]
            assert np.allclose(own["r"], result[4]["episode"]["r"], rtol=1e-5)
            assert (own["l"] == 3).all()
    assert list(env.length_queue) == [3] * 6
    env.close()


def test_flattening_a_dict_leaks_what_the_page_says(tmp_path):
    """The policy's columns, then the critic's."""
    from helpers.face import make_small

    env = make_small(tmp_path, 2, obs="dict", output="numpy", autoreset_mode="NextStep")
    flat = vector.FlattenObservation(env)
    obs, _ = flat.reset(seed=0)
    groups = env.get_observations()
    assert np.array_equal(obs, np.concatenate([groups["policy"], groups["critic"]], 1))
    env.close()


def test_array_conversion():
    pytest.importorskip("array_api_compat")
    env = vector.ArrayConversion(cartpole("SameStep", "torch"), env_xp=torch, target_xp=np)
    want = play(cartpole("SameStep"), "SameStep")
    for got, expected in zip(play(env, "SameStep"), want, strict=True):
        for one, two in zip(got[:-1], expected[:-1], strict=True):
            assert isinstance(one, np.ndarray) and np.array_equal(one, two)
    env.close()


# -- video -----------------------------------------------------------------------------------------


@pytest.fixture
def clips(monkeypatch):
    """What RecordVideo hands to moviepy, which need not be installed: (frames, fps, path)."""
    written = []

    class ImageSequenceClip:
        def __init__(self, frames, fps):
            self.frames, self.fps = list(frames), fps

        def write_videofile(self, path, logger=None):
            written.append((self.frames, self.fps, path))

    names = ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip")
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[names[-1]].ImageSequenceClip = ImageSequenceClip
    return written


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_record_video(tmp_path, clips, output):
    """A grid of the rows at the control rate; the trajectory is the one without recording."""
    env = gymnasium.make_vec(
        CARTPOLE,
        2,
        device="cpu",
        output=output,
        autoreset_mode="NextStep",
        render_mode="rgb_array",
        max_episode_steps=3,
    )
    frames = env.reset(seed=0) and env.render()
    assert isinstance(frames, tuple) and len(frames) == 2
    height, width, _ = frames[0].shape
    reference = gymnasium.make_vec(
        CARTPOLE, 2, device="cpu", output=output, autoreset_mode="NextStep", max_episode_steps=3
    )
    recorded = vector.RecordVideo(env, str(tmp_path / "videos"), episode_trigger=lambda n: n == 0)
    assert np.array_equal(recorded.reset(seed=0)[0], reference.reset(seed=0)[0])
    for _ in range(5):
        action = np.full((2, 1), 0.5, np.float32)
        assert np.array_equal(recorded.step(action)[0], reference.step(action)[0])
    recorded.close(), reference.close()
    ((frames, fps, path),) = clips
    assert fps == 50 and path.endswith("rl-video-episode-0.mp4")
    assert len(frames) == 4  # the reset and three steps
    assert {frame.shape for frame in frames} <= {(2 * height, width, 3), (height, 2 * width, 3)}
    assert all(frame.dtype == np.uint8 for frame in frames)
    assert not np.array_equal(frames[0], frames[3])


def test_record_video_writes_a_file(tmp_path):
    pytest.importorskip("moviepy")
    env = gymnasium.make_vec(
        CARTPOLE, 1, device="cpu", autoreset_mode="NextStep", render_mode="rgb_array"
    )
    recorded = vector.RecordVideo(env, str(tmp_path / "videos"), video_length=4)
    recorded.reset(seed=0)
    for _ in range(6):
        recorded.step(np.zeros((1, 1), np.float32))
    recorded.close()
    (file,) = (tmp_path / "videos").iterdir()
    assert file.stat().st_size > 1000


def test_the_page_names_what_there_is():
    for name in re.findall(r"`unilab_gym\.([\w.]+)", PAGE):
        target = unilab_gym
        for part in name.split("."):
            if part == "testing":
                target = __import__("unilab_gym.testing").testing
            else:
                target = getattr(target, part)
    assert "UnilabSingleEnv" in PAGE and unilab_gym.UnilabSingleEnv.__name__ == "UnilabSingleEnv"

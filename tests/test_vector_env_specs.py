"""The Gymnasium face: specs, pickles, ranks, attributes, arrays in one transfer."""

import copy
import itertools
import json
import pickle

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from helpers.face import (
    GO2,
    frozen,
    leaves,
    make_go2,
    make_probe,
    make_small,
    mask_of,
    rollout,
    same,
    small_actions,
)
from helpers.opcount import count_ops

import unilab_gym
from unilab_gym.errors import ConfigError

N = 4


def story(env, steps=8):
    """A reset and some steps, with the constructor's streams."""
    results = [frozen(env.reset())]
    width = env.single_action_space.shape[0]
    results += [frozen(env.step(a)) for a in small_actions(steps, env.num_envs, width)]
    return results


def same_stories(left, right):
    for one, two in zip(left, right, strict=True):
        same(one, two)


# -- specs -----------------------------------------------------------------------------------------


def test_a_spec_of_rich_arguments_has_a_json_form():
    """The enum's member and torch's device are kept as what they are called."""
    env = make_go2(
        2, autoreset_mode=AutoresetMode.NEXT_STEP, device=torch.device("cpu"), seed=3, obs="dict"
    )
    assert json.loads(env.spec.to_json())["kwargs"] == {
        "task": GO2,
        "autoreset_mode": "NextStep",
        "device": "cpu",
        "backend": "mujoco",
        "seed": 3,
        "obs": "dict",
        "num_envs": 2,
        "vectorization_mode": "vector_entry_point",
    }
    want = story(env, 2)
    for spec in (env.spec, EnvSpec.from_json(env.spec.to_json())):
        again = gymnasium.make_vec(spec)
        assert again.autoreset_mode is AutoresetMode.NEXT_STEP and again.spec == env.spec
        same_stories(story(again, 2), want)
        again.close()
    env.close()


def test_an_id_registered_with_a_limit():
    """Gymnasium hands it over as a keyword; the caller's own wins."""
    gymnasium.register(
        id="Limited-v0",
        vector_entry_point="unilab_gym.factory:make_vector_env",
        kwargs={"task": GO2},
        max_episode_steps=3,
    )
    try:
        for given, limit in (({}, 3), ({"max_episode_steps": 2}, 2)):
            env = gymnasium.make_vec("Limited-v0", 2, device="cpu", play=True, **given)
            assert type(env) is unilab_gym.UnilabVectorEnv and env.max_episode_steps == limit
            env.reset(seed=0)
            for step in range(1, 2 * limit + 1):
                *_, terminated, truncated, _ = env.step(torch.zeros(2, 12))
                assert truncated.tolist() == [step % limit == 0] * 2 and not terminated.any()
            again = gymnasium.make_vec(env.spec)
            assert again.max_episode_steps == limit
            again.close(), env.close()
    finally:
        gymnasium.registry.pop("Limited-v0")


# -- pickles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_a_pickle_makes_the_environment_anew(tmp_path, how):
    env = make_small(tmp_path, 3, seed=11, obs="dict", autoreset_mode="NextStep", rank=2)
    want = story(env)
    again = pickle.loads(pickle.dumps(env)) if how == "pickle" else copy.deepcopy(env)
    assert type(again) is type(env) and again.spec is None and again.rank == 2
    assert again.runtime is not env.runtime and again.cfg == env.cfg
    same_stories(story(again), want)
    same(env.step(torch.zeros(3, 2))[0], env.get_observations())  # the first one goes on
    env.close()
    third = pickle.loads(pickle.dumps(env))  # closed: its arguments are still known
    same_stories(story(third), want)
    again.close(), third.close()


def test_a_pickle_of_a_registered_one_keeps_its_spec():
    env = make_go2(2, seed=5, max_episode_steps=6)
    want = rollout(env, 3)
    again = pickle.loads(pickle.dumps(env))
    assert again.spec == env.spec and again.max_episode_steps == 6
    same_stories(rollout(again, 3), want)
    env.close(), again.close()


def test_wrapped_environments_pickle(tmp_path):
    from gymnasium.wrappers.vector import RecordEpisodeStatistics

    wrapped = RecordEpisodeStatistics(make_small(tmp_path, 2, seed=1, output="numpy"))
    first, _ = wrapped.reset()
    again = pickle.loads(pickle.dumps(wrapped))
    assert np.array_equal(again.reset()[0], first)
    wrapped.close(), again.close()


# -- ranks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", ["reset", "constructor"])
def test_processes_count_on_from_each_other(tmp_path, seed):
    """Rank r of N environments is rows r*N ... of one large batch."""
    given = {"seed": 7} if seed == "constructor" else {}
    start = {"seed": 7} if seed == "reset" else {}
    whole = make_small(tmp_path, 6, **given)
    parts = [make_small(tmp_path, 3, rank=rank, **given) for rank in range(2)]
    want = whole.reset(**start)[0]
    assert torch.equal(torch.cat([part.reset(**start)[0] for part in parts]), want)
    for action in small_actions(10, 6):
        want = whole.step(action)[0]
        got = [part.step(half)[0] for part, half in zip(parts, action.chunk(2), strict=True)]
        assert torch.equal(torch.cat(got), want)
    for env in (whole, *parts):
        env.close()


def test_the_rank_is_the_processes_own(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    env, first = make_probe(tmp_path), make_probe(tmp_path, rank=0)
    assert (env.rank, first.rank, env.runtime.rank) == (3, 0, 3)
    env.close(), first.close()
    for text in ("-1", "one", ""):
        monkeypatch.setenv("RANK", text)
        with pytest.raises(ConfigError, match=f"variable RANK must be an integer.*got '{text}'"):
            make_probe(tmp_path)
    monkeypatch.delenv("RANK")
    env = make_probe(tmp_path)
    assert env.rank == 0
    env.close()


def test_seeds_of_a_list_are_taken_as_they_are(tmp_path):
    env, other = make_small(tmp_path, 3), make_small(tmp_path, 3, rank=4)
    same(env.reset(seed=[5, 6, 7]), other.reset(seed=[5, 6, 7]))
    env.close(), other.close()


# -- arrays ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["SameStep", "NextStep", "Disabled"])
def test_arrays_cross_in_one_transfer(tmp_path, mode):
    env = make_small(tmp_path, 3, output="numpy", obs="dict", log_in_info=True, autoreset_mode=mode)
    reference = make_small(tmp_path, 3, obs="dict", log_in_info=True, autoreset_mode=mode)
    same_arrays(env.reset(seed=0), reference.reset(seed=0))
    for action in small_actions(4, 3):
        results = []
        report = count_ops(lambda action=action, out=results: out.append(env.step(action.numpy())))
        assert report["host_calls"]["cpu"] == 1
        same_arrays(results[0], reference.step(action))
    same_arrays(env.get_observations(), reference.get_observations())
    same_arrays(env.state(), reference.state())
    env.close(), reference.close()


def same_arrays(arrays, tensors):
    arrays, tensors = dict(leaves(arrays)), dict(leaves(tensors))
    assert list(arrays) == list(tensors)
    spans = []
    for path, array in arrays.items():
        tensor = tensors[path]
        assert isinstance(array, np.ndarray) and array.flags.writeable, path
        assert array.flags.aligned and array.flags.c_contiguous, path
        assert array.shape == tuple(tensor.shape), path
        assert array.tobytes() == tensor.numpy().tobytes(), path
        start = array.__array_interface__["data"][0]
        spans.append((start, start + array.nbytes))
    spans.sort()
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


# -- attributes ------------------------------------------------------------------------------------


def test_attributes_of_each_environment(tmp_path):
    env = make_probe(tmp_path, N, max_episode_steps=5)
    env.reset(seed=0)
    env.set_attr("episode_length_buf", [4, 0, 3, 1])
    assert env.get_attr("episode_length_buf") == (4, 0, 3, 1)
    *_, truncated, _ = env.step(torch.zeros(N, 1))
    assert truncated.tolist() == [True, False, False, False]
    with pytest.raises(ConfigError, match=r"numbers of 0 or more, got \[0, -1, 0, 0\]"):
        env.episode_length_buf = [0, -1, 0, 0]
    with pytest.raises(ConfigError, match=r"integers of shape \(4,\)"):
        env.set_attr("episode_length_buf", [0.5] * N)
    assert env.call("get_attr", "num_envs") == ((N,) * N,) * N
    env.close()


# -- options of a reset ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": [True] * N}, ValueError, "'mask'; did you mean 'reset_mask'"),
        ({"reset_mask": None}, TypeError, "reset_mask must be bool, got NoneType"),
        ({"reset_mask": "all"}, TypeError, "reset_mask must be bool, got str"),
        ({"reset_mask": [1, 0, 0, 0]}, TypeError, "must be bool, got torch.int64"),
        ({"reset_mask": [True, False]}, ValueError, r"shape \(4,\), got \(2,\)"),
        ({"reset_mask": [[True]] * N}, ValueError, r"shape \(4,\), got \(4, 1\)"),
        ([True] * N, ValueError, "options must be a dict, got"),
        (mask_of(1), ValueError, "options must be a dict, got"),
    ],
)
def test_bad_options_are_refused_and_nothing_happens(tmp_path, options, error, message):
    env = make_probe(tmp_path, N)
    env.reset(seed=0)
    env.step(torch.zeros(N, 1))
    with pytest.raises(error, match=message):
        env.reset(options=options)
    assert env.episode_length_buf.tolist() == [1] * N
    env.close()


class Exporter:
    """A mask of another library."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack__(self, **kwargs):
        return self._tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


def test_a_mask_of_another_library(tmp_path):
    env = make_probe(tmp_path, N)
    env.reset(seed=0)
    env.step(torch.zeros(N, 1))
    env.reset(options={"reset_mask": Exporter(mask_of(2))})
    assert env.episode_length_buf.tolist() == [1, 1, 0, 1]
    env.close()

"""The Gymnasium face: seeds, masked resets, time limits, life and death of an environment."""

import dataclasses
import random

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded
from helpers.face import (
    ACTIONS,
    GO2,
    actions,
    digest,
    frozen,
    make_go2,
    rollout,
    run_python,
    same,
)

import unilab_gym
from unilab_gym.errors import ConfigError

N = 4
STARTUP = ("geom_friction", "body_mass", "body_ipos", "actuator_gainprm", "actuator_biasprm")


@pytest.fixture(scope="module")
def shared():
    env = make_go2(N)
    yield env
    env.close()


@pytest.fixture
def env(shared):
    shared.reset(seed=0)
    return shared


def startup(env):
    """Read-back of what start-up events randomized."""
    return {name: env.runtime.backend.get_model_field(name) for name in STARTUP}


def mask_of(*rows, n=N):
    mask = torch.zeros(n, dtype=torch.bool)
    mask[list(rows)] = True
    return mask


@pytest.mark.parametrize(
    "mask",
    [torch.ones(N, dtype=torch.bool, device="meta"), torch.ones(N, dtype=torch.bool).to_sparse()],
    ids=["meta", "sparse"],
)
def test_a_mask_holds_data(env, mask):
    message = r"must be dense and hold data, got torch\.(strided on device meta|sparse_coo)"
    for use in (
        lambda: env.reset(options={"reset_mask": mask}),
        lambda: env.get_state(mask),
        lambda: env.hold_command("twist", [0.0, 0.0, 0.0], mask),
    ):
        with pytest.raises(ConfigError, match=message):
            use()


# -- seeds -----------------------------------------------------------------------------------------


def test_a_reset_seed_decides_everything(env):
    first, other, again = ((rollout(env, 3, reset_seed=seed), startup(env)) for seed in (42, 7, 42))
    for one, two in zip(first[0], again[0], strict=True):
        same(one, two)
    same(first[1], again[1])
    assert not torch.equal(first[0][0]["[0]"], other[0][0]["[0]"])
    assert all(not torch.equal(first[1][name], other[1][name]) for name in STARTUP)


def test_environment_i_of_seed_s_is_the_first_of_seed_s_plus_i(env):
    batch = rollout(env, 4, reset_seed=3)
    one = make_go2(1)
    for row in range(N):
        results = [frozen(one.reset(seed=3 + row))]
        results += [
            frozen((*one.step(action[row : row + 1]), one.get_observations()))
            for action in actions(4, N)
        ]
        for single, many in zip(results, batch, strict=True):
            for path, leaf in single.items():
                assert torch.equal(leaf[0], many[path][row]), path
    assert len({tuple(row.tolist()) for row in batch[0]["[0]"]}) == N
    one.close()


def test_seed_lists_and_their_gaps(env):
    want = frozen(env.reset(seed=10))
    same(env.reset(seed=[10, 11, 12, 13]), want)
    same(env.reset(seed=(10, 11, np.int64(12), 13)), want)
    env.reset(seed=10)
    gaps = frozen(env.reset(seed=[None, 11, None, 13]))
    same(gaps, want, mask_of(1, 3))
    env.reset(seed=10)
    same(gaps, env.reset(), mask_of(0, 2))  # a None entry continues its stream


def test_an_unseeded_reset_continues_the_streams(env):
    first, params = frozen(env.reset(seed=5)), startup(env)
    second, third = frozen(env.reset()), frozen(env.reset())
    for other in (second, third):
        assert (other["[0]"] != first["[0]"]).any(1).all()
    same(startup(env), params)  # randomized once per seed
    env.reset(seed=5)
    same(env.reset(), second)
    same(env.reset(), third)


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (1.5, "got 1.5"),
        (True, "got True"),
        ("a", "got 'a'"),
        ([1, 2], "4 seeds are needed, got 2"),
        ([1, 2, 3, 4.0], "integers or None"),
        ([1, 2, 3, True], "integers or None"),
    ],
)
def test_bad_seeds_are_refused(env, seed, message):
    with pytest.raises(ValueError, match=message):
        env.reset(seed=seed)


def test_constructor_seeds_share_nothing():
    first, again, other = (make_go2(3, seed=seed) for seed in (7, 7, 8))
    results = [frozen(env.reset()) for env in (first, again, other)]
    same(results[0], results[1])
    same(startup(first), startup(again))
    rows = torch.cat((results[0]["[0]"], results[2]["[0]"]))
    assert len({tuple(row.tolist()) for row in rows}) == 6  # 7's row 1 is not 8's row 0
    masses = torch.cat((startup(first)["body_mass"], startup(other)["body_mass"]))
    assert len(set(masses.sum(1).tolist())) == 6
    reseeded = frozen(other.reset(seed=7))
    same(reseeded, first.reset(seed=7))  # whatever the constructor was given
    for env in (first, again, other):
        env.close()


LONG_IN_A_PROCESS = """
import json
from helpers.face import digest, make_go2, rollout
env = make_go2(3, seed=7, max_episode_steps=90)
print(json.dumps([digest(rollout(env, 500))]))
"""


def test_500_steps_are_the_same_in_two_processes():
    """N09: noise, pushes, randomization and automatic resets included."""
    one, other = (run_python(LONG_IN_A_PROCESS, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert one == other


def test_without_a_seed_every_environment_differs():
    first, other = make_go2(2), make_go2(2)
    assert not torch.equal(first.reset()[0], other.reset()[0])
    assert first.runtime.seed != other.runtime.seed
    first.close(), other.close()


SEEDS_IN_A_PROCESS = """
import json
import gymnasium
env = gymnasium.make_vec("unilab_gym:UniLab/Go2JoystickFlat-v0", num_envs=3, device="cpu",
                         backend="mujoco", seed=7, max_episode_steps=4)
from helpers.face import digest, rollout
results = rollout(env, 12)
backend = env.runtime.backend
fields = {name: backend.get_model_field(name) for name in backend.spec.model_fields}
print(json.dumps([digest(results), digest(fields)]))
"""


def test_seed_7_twice_in_two_processes():
    """Start-up parameters, first observation and three automatic resets; by the id's prefix."""
    elsewhere = run_python(SEEDS_IN_A_PROCESS)
    env = make_go2(3, seed=7, max_episode_steps=4)
    results = rollout(env, 12)
    assert sum(int(result["[3]"].sum()) for result in results[1:]) >= 6
    backend = env.runtime.backend
    fields = {name: backend.get_model_field(name) for name in backend.spec.model_fields}
    assert [digest(results), digest(fields)] == elsewhere
    env.close()


def test_global_random_states_are_neither_read_nor_written():
    def states():
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    before = states()
    env = make_go2(3, seed=1, max_episode_steps=3)
    first = [frozen(env.reset())] + [frozen(env.step(a)) for a in actions(5, 3)]
    env.reset(seed=4)
    assert states() == before
    env.close()
    torch.manual_seed(2), np.random.seed(2), random.seed(2)
    env = make_go2(3, seed=1, max_episode_steps=3)
    again = [frozen(env.reset())] + [frozen(env.step(a)) for a in actions(5, 3)]
    for one, two in zip(first, again, strict=True):
        same(one, two)
    env.close()


# -- masked resets ---------------------------------------------------------------------------------


def test_a_masked_reset_touches_its_rows_only():
    """The others equal, bit for bit, a run in which nobody was reset, for 15 more steps."""
    env, control = make_go2(N), make_go2(N)
    env.reset(seed=1), control.reset(seed=1)
    for action in actions(5, N):
        env.step(action), control.step(action)
    env.step(action), control.step(action)
    before = env.get_observations()
    mask = mask_of(2)
    obs, info = env.reset(options={"reset_mask": mask})
    assert info == {} and env.episode_length_buf.tolist() == [6, 6, 0, 6]
    same(env.get_observations(), before, ~mask)
    assert torch.equal(obs, env.get_observations()["policy"])
    assert (obs[2] != before["policy"][2]).any()
    others = ~mask
    for action in actions(15, N, seed=2):
        got, want = env.step(action), control.step(action)
        same(got, want, others)
        assert not got[3][2]  # row 2 may fall, its time limit is far
    env.close(), control.close()


def test_a_masked_reset_is_the_automatic_one():
    """Row 1 reset by hand starts the episode that a time limit would have started."""
    env, automatic = make_go2(N), make_go2(N)
    env.reset(seed=1), automatic.reset(seed=1)
    first, *rest = actions(6, N)
    env.step(first), automatic.step(first)
    automatic.episode_length_buf = [1, 999, 1, 1]
    env.step(first)
    obs = automatic.step(first)[0]
    manual, _ = env.reset(options={"reset_mask": mask_of(1)})
    assert torch.equal(manual, obs)
    for action in rest:
        same(env.step(action)[0], automatic.step(action)[0])
    env.close(), automatic.close()


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
def test_masks_of_every_kind(env, kind):
    env.step(torch.zeros(N, ACTIONS))
    mask = kind([False, True, False, True])
    options = {"reset_mask": mask}
    env.reset(options=options)
    assert env.episode_length_buf.tolist() == [1, 0, 1, 0]
    assert list(options) == ["reset_mask"] and options["reset_mask"] is mask
    assert list(mask) == [False, True, False, True]


def test_an_all_false_mask_restarts_nobody():
    env, control = make_go2(N), make_go2(N)
    env.reset(seed=3), control.reset(seed=3)
    for action in actions(4, N):
        obs, *_ = control.step(action)
        env.step(action)
        same(env.reset(options={"reset_mask": mask_of()})[0], obs)
        same(env.reset(seed=8, options={"reset_mask": np.zeros(N, bool)})[0], obs)
    same(env.step(action), control.step(action))
    same(startup(env), startup(control))
    env.close(), control.close()


def test_a_full_mask_is_a_full_reset(env):
    env.step(torch.zeros(N, ACTIONS))
    want = frozen(env.reset())
    env.reset(seed=0)
    env.step(torch.zeros(N, ACTIONS))
    same(env.reset(options={"reset_mask": mask_of(0, 1, 2, 3)}), want)


def test_a_masked_reset_gives_its_seed_to_masked_rows(env):
    want, params = frozen(env.reset(seed=9)), startup(env)
    before, kept = frozen(env.reset(seed=0)), startup(env)
    mask = mask_of(0, 2)
    got = frozen(env.reset(seed=9, options={"reset_mask": mask}))
    same(got, want, mask), same(got, before, ~mask)
    same(startup(env), params, mask), same(startup(env), kept, ~mask)
    same(env.reset(), (env.reset(seed=[9, 1, 11, 3]), env.reset())[1])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reset_mask": torch.zeros(3, dtype=torch.bool)}, ValueError, r"\(4,\), got \(3,\)"),
        ({"reset_mask": np.zeros((4, 1), bool)}, ValueError, r"\(4,\), got \(4, 1\)"),
        ({"reset_mask": True}, ValueError, r"\(4,\), got \(\)"),
        ({"reset_mask": torch.zeros(4)}, TypeError, "bool, got torch.float32"),
        ({"reset_mask": np.zeros(4, np.int64)}, TypeError, "bool, got torch.int64"),
        ({"reset_maks": mask_of(1)}, ValueError, "'reset_maks'; did you mean 'reset_mask'"),
        ({"mask": mask_of(1)}, ValueError, "'mask'.*available: reset_mask"),
    ],
)
def test_bad_options_are_refused_and_nothing_happens(env, options, error, message):
    env.step(torch.zeros(N, ACTIONS))
    before = env.get_observations()
    with pytest.raises(error, match=message):
        env.reset(seed=1, options=options)
    same(env.get_observations(), before)
    assert env.episode_length_buf.tolist() == [1] * N


def test_the_first_reset_must_be_a_full_one():
    env = make_go2(2, render_mode="rgb_array")
    with pytest.raises(ResetNeeded, match=r"call reset\(\) before the first step"):
        env.step(torch.zeros(2, ACTIONS))
    with pytest.raises(ResetNeeded, match="full reset"):
        env.reset(options={"reset_mask": mask_of(0, n=2)})
    with pytest.raises(ResetNeeded, match=r"reset\(\) before render"):
        env.render()
    env.reset(options={})
    env.step(torch.zeros(2, ACTIONS))
    env.close()


# -- time limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["argument", "spec"])
def test_truncation_exactly_at_the_limit(how):
    """As a keyword, and from a spec that carries it (Gymnasium passes it to the environment)."""
    if how == "argument":
        env = make_go2(3, max_episode_steps=10, play=True)
    else:
        spec = dataclasses.replace(gymnasium.spec(GO2), id="Limited-v0", max_episode_steps=10)
        env = gymnasium.make_vec(spec, num_envs=3, device="cpu", backend="mujoco", play=True)
    assert env.max_episode_steps == env.max_episode_length == 10
    assert type(env) is unilab_gym.UnilabVectorEnv
    env.reset(seed=0)
    for step in range(1, 31):
        *_, terminated, truncated, info = env.step(torch.zeros(3, ACTIONS))
        assert truncated.tolist() == [step % 10 == 0] * 3 and not terminated.any()
        assert env.episode_length_buf.tolist() == [step % 10] * 3
        if truncated.all():
            assert info["final_info"]["episode"]["l"].tolist() == [10] * 3
    env.close()


def test_episode_length_buf_staggers_the_time_limits():
    env = make_go2(N, max_episode_steps=10, play=True)
    env.reset(seed=0)
    counters = torch.tensor([9, 0, 7, 4])
    env.episode_length_buf = counters
    counters.fill_(0)
    ends = []
    for step in range(1, 11):
        truncated = env.step(torch.zeros(N, ACTIONS))[3]
        ends += [(step, row) for row in truncated.nonzero().flatten().tolist()]
    assert ends == [(1, 0), (3, 2), (6, 3), (10, 1)]
    view = env.episode_length_buf
    view.fill_(9)
    assert env.episode_length_buf.tolist() == [9, 0, 7, 4]
    for bad in (torch.zeros(N), [1, 2], torch.zeros(N, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"integers of shape \(4,\)"):
            env.episode_length_buf = bad
    env.close()

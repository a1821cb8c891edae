"""The conformance list, on the smallest task: both engines, every autoreset mode.

Most of the list is `unilab_gym.testing.RULES`; what needs a second environment, a second process
or a GPU is here, or in the file named beside it:

    arguments, wrong keywords, wrappers= ...   test_vector_env_arguments.py
    specs, pickles, ranks, masks, arrays       test_vector_env_specs.py
    SAME_STEP against DISABLED, NEXT_STEP      test_vector_env_modes.py
    seeds, streams, processes                  test_vector_env_reset.py
    close, threads, forks                      test_vector_env_life.py
    wrappers, RecordVideo                      test_docs_gymnasium.py
    check_env, Sync, Async                     test_single_env.py
    imports                                    test_architecture.py, test_registration.py
"""

import gc
import weakref

import gymnasium
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from helpers.face import (
    CONFORM,
    ENGINES,
    MODES,
    frozen,
    leaves,
    make_cartpole,
    mask_of,
    play,
    same,
    small_actions,
)

import unilab_gym
from unilab_gym.testing import RULES, check_vector_env

EVERY = [(engine, mode) for engine in ENGINES for mode in MODES]
every = pytest.mark.parametrize(("engine", "mode"), EVERY)
ENDS = {"overrides": {"episode_length_s": 0.1}}  # five steps


def table(steps, num_envs, seed=0):
    """Actions; those of row i do not depend on the number of rows."""
    return torch.stack(
        [small_actions(steps, 1, 1, seed + 100 * i)[:, 0] for i in range(num_envs)], 1
    )


# -- what it is ------------------------------------------------------------------------------------


@every
def test_the_rules_hold(engine, mode):
    """Every warning is an error here, in `make_vec` and `reset` as well."""
    env = make_cartpole(3, backend=engine, autoreset_mode=mode)
    assert isinstance(env, VectorEnv) and env.metadata["autoreset_mode"] is AutoresetMode(mode)
    assert len(check_vector_env(env, fresh=True)) == len(RULES)
    env.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_made_again_from_its_spec(engine):
    env = gymnasium.make_vec(
        CONFORM, backend=engine, device="cpu", seed=4, autoreset_mode="NextStep"
    )
    assert env.num_envs == 1 and env.spec.vector_entry_point == "unilab_gym.factory:make_vector_env"
    want = play(env, table(8, 1))
    for spec in (env.spec, EnvSpec.from_json(env.spec.to_json())):
        again = gymnasium.make_vec(spec)
        assert type(again) is unilab_gym.UnilabVectorEnv and again.spec == env.spec
        for one, two in zip(play(again, table(8, 1)), want, strict=True):
            same(one, two)
        again.close()
    env.close()


# -- rows ------------------------------------------------------------------------------------------


@every
def test_row_i_does_not_depend_on_the_number_of_rows(engine, mode):
    few, many = (make_cartpole(n, backend=engine, autoreset_mode=mode, **ENDS) for n in (2, 5))
    actions = table(12, 5)
    pairs = zip(
        play(few, actions[:, :2], {"seed": 3}), play(many, actions, {"seed": 3}), strict=True
    )
    for one, two in pairs:
        assert one.keys() == two.keys()
        for path, leaf in one.items():
            assert torch.equal(leaf, two[path][:2]), path
    few.close(), many.close()


@every
def test_a_masked_reset_with_a_seed(engine, mode):
    """Masked rows start the episode of that seed, the others go on as if nothing had happened."""
    env, control = (make_cartpole(backend=engine, autoreset_mode=mode) for _ in range(2))
    fresh = env.reset(seed=9)[0].clone()
    for one in (env, control):
        one.reset(seed=1)
        for action in table(3, 4):
            last = one.step(action)[0]
    mask = mask_of(1, 3)
    obs, _ = env.reset(seed=9, options={"reset_mask": mask})
    assert torch.equal(obs[mask], fresh[mask]) and torch.equal(obs[~mask], last[~mask])
    for action in table(6, 4, seed=5):
        same(env.step(action)[:4], control.step(action)[:4], ~mask)
    env.close(), control.close()


@every
def test_a_blown_up_row_stays_alone(engine, mode):
    env, control = (make_cartpole(backend=engine, autoreset_mode=mode) for _ in range(2))
    env.reset(seed=1), control.reset(seed=1)
    others = ~mask_of(2)
    for step, action in enumerate(table(8, 4)):
        wild = action.clone()
        wild[2] = torch.nan if step == 3 else wild[2]
        got, want = env.step(wild), control.step(action)
        same(got[:4], want[:4], others)
        assert all(leaf.isfinite().all() for _, leaf in leaves(got))
        if step == 3:
            assert got[2].tolist() == [False, False, True, False] and got[1][2] == 0.0
            if mode == "Disabled":
                env.reset(options={"reset_mask": got[2]})
    causes = {name: total for name, total in env.runtime.fault_totals().items() if total}
    assert causes == {"action_nonfinite": 1}
    env.close(), control.close()


# -- engines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_both_engines_tell_one_story(mode):
    one, two = (make_cartpole(backend=engine, autoreset_mode=mode, **ENDS) for engine in ENGINES)
    assert one.single_observation_space == two.single_observation_space
    assert one.single_action_space == two.single_action_space
    ended = 0
    for left, right in zip(
        play(one, table(12, 4), {"seed": 2}), play(two, table(12, 4), {"seed": 2}), strict=True
    ):
        assert left.keys() == right.keys()
        for path, leaf in left.items():
            assert leaf.dtype == right[path].dtype
            torch.testing.assert_close(leaf, right[path], atol=2e-3, rtol=2e-3)
        ended += int(left["[3]"].sum()) if "[3]" in left else 0
    assert ended == {"SameStep": 8, "NextStep": 8, "Disabled": 8}[mode]
    one.close(), two.close()


@every
def test_two_environments_coexist(engine, mode):
    solo = make_cartpole(3, backend=engine, autoreset_mode=mode, **ENDS)
    want = play(solo, table(8, 3), {"seed": 2})
    solo.close()
    other = ENGINES[1 - ENGINES.index(engine)]
    mine = make_cartpole(3, backend=engine, autoreset_mode=mode, **ENDS)
    theirs = make_cartpole(2, backend=other)
    theirs.reset(seed=8)

    def interrupted():
        for action in table(8, 3):
            theirs.step(action[:2])
            yield action

    for left, right in zip(play(mine, interrupted(), {"seed": 2}), want, strict=True):
        same(left, right)
    theirs.close()
    mine.reset(seed=0)
    mine.close()


# -- life ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_left_after_close(engine):
    kept = []
    for _ in range(2):
        env = make_cartpole(2, backend=engine, autoreset_mode="Disabled")
        env.reset(seed=0)
        result = env.step(torch.zeros(2, 1))
        kept += [weakref.ref(env), weakref.ref(env.runtime), weakref.ref(env.runtime.backend)]
        env.close()
        del env
    gc.collect()
    assert [ref() for ref in kept] == [None] * 6
    assert result[0].isfinite().all()


def test_benchmark_vector_step_runs():
    from gymnasium.utils.performance import benchmark_vector_step

    env = make_cartpole(2, output="numpy", autoreset_mode="NextStep")
    assert benchmark_vector_step(env, target_duration=1, seed=0) > 0
    env.close()


@pytest.mark.slow
def test_a_large_batch_is_built():
    env = make_cartpole(16_384)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (16_384, 4) and len(obs.unique(dim=0)) == 16_384
    assert env.step(torch.zeros(16_384, 1))[0].isfinite().all()
    assert env.observation_space.shape == (16_384, 4)
    env.close()


# -- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("mode", MODES)
def test_no_step_waits_for_the_gpu(mode):
    """Over two episodes, in every mode, with torch's own watch."""
    env = make_cartpole(64, backend="mjwarp", device="cuda", autoreset_mode=mode, **ENDS)
    assert env.validate is False
    actions = table(12, 64).to(env.device)
    env.reset(seed=0)
    before = torch.cuda.get_sync_debug_mode()
    for step, action in enumerate(actions):
        torch.cuda.set_sync_debug_mode("error" if step > 0 else before)
        try:
            *_, terminated, truncated, _ = env.step(action)
        finally:
            torch.cuda.set_sync_debug_mode(before)
        if mode == "Disabled":
            env.reset(options={"reset_mask": terminated | truncated})
    env.close()


@pytest.mark.cuda
def test_the_late_error_on_a_gpu():
    from gymnasium.error import ResetNeeded

    env = make_cartpole(4, backend="mjwarp", device="cuda", autoreset_mode="Disabled", **ENDS)
    env.reset(seed=0)
    env.episode_length_buf = torch.tensor([0, 4, 0, 0])
    zeros = torch.zeros(4, 1, device=env.device)
    env.step(zeros)
    env.step(zeros)  # row 1 had ended
    torch.cuda.synchronize()
    with pytest.raises(ResetNeeded, match=r"row\(s\) 1 were stepped"):
        env.step(zeros)
    env.close()


@pytest.mark.cuda
def test_a_consumer_on_another_stream():
    """What a step returns is complete for whoever waits for the stream that called it."""
    env = make_cartpole(64, backend="mjwarp", device="cuda")
    reference = make_cartpole(64, backend="mjwarp", device="cuda")
    env.reset(seed=0), reference.reset(seed=0)
    side = torch.cuda.Stream(env.device)
    for action in table(6, 64).to(env.device):
        side.wait_stream(torch.cuda.current_stream(env.device))
        with torch.cuda.stream(side):
            got = env.step(action)
        torch.cuda.current_stream(env.device).wait_stream(side)
        same(frozen(got), reference.step(action))
    env.close(), reference.close()


@pytest.mark.multigpu
def test_another_device_than_the_current_one():
    env = make_cartpole(4, backend="mjwarp", device="cuda:1", autoreset_mode="Disabled")
    assert torch.cuda.current_device() == 0
    check_vector_env(env)
    assert torch.cuda.current_device() == 0
    env.close()

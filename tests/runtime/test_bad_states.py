"""E13: bad states of every sort, on both engines; the row ends, its neighbours keep their bits."""

import math

import mujoco
import pytest
import torch
from helpers.crate import event, make_crate

from unilab_gym.backends.base import RecomputeLevel

N, BAD, STEP, STEPS = 4, 2, 2, 6
NAN, INF = math.nan, math.inf
INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
OTHERS = torch.arange(N) != BAD


@pytest.fixture(scope="module", params=["mujoco", "mjwarp"])
def env(request, tmp_path_factory):
    if request.param == "mjwarp":
        pytest.importorskip("mujoco_warp")
    events = {"mass": event("mass", scale=(1.0, 1.0))}
    env = make_crate(tmp_path_factory.mktemp("crate"), events, N, request.param)
    yield env
    env.close()


def poison(env, part, column, value):
    """Writes one number of the bad row's packed state."""
    bit = getattr(mujoco.mjtState, f"mjSTATE_{part}")
    below = int(INTEGRATION) & (int(bit) - 1)
    backend = env.runtime.backend
    state = backend.get_state()
    state[BAD, mujoco.mj_stateSize(backend.spec.model, below) + column] = value
    backend.set_state(state, ~OTHERS)


def run(env, inject=None, action=None):
    """What a learner gets in each step, and the states."""
    env.reset(seed=3)
    results = []
    for step in range(STEPS):
        given = torch.full((N, 1), 0.3)
        if step == STEP:
            if inject is not None:
                inject()
            if action is not None:
                given[BAD] = action
        obs, reward, terminated, truncated, info = env.step(given)
        views = env.runtime.backend.views()
        values = (obs, reward, terminated, truncated, views.qpos, views.qvel)
        results.append([value.clone() for value in values] + [info.get("final_obs", obs).clone()])
    return results


def check(env, results, control):
    """The row ends at once; what is returned is finite; the others do not notice."""
    for step, (got, want) in enumerate(zip(results, control, strict=True)):
        for one, two in zip(got[:-1], want[:-1], strict=True):
            assert torch.equal(one[OTHERS], two[OTHERS]), step
        obs, reward, terminated, truncated, qpos, qvel, final = got
        assert terminated[BAD] == (step == STEP) and not truncated.any()
        for value in (obs, reward, qpos, qvel, final):
            assert value.isfinite().all(), step
        if step == STEP:
            assert reward[BAD] == 0.0


@pytest.fixture(scope="module")
def control(env):
    results = run(env)
    assert not any(result[2].any() for result in results)
    return results


def counted(env, call):
    before = env.runtime.fault_totals()
    results = call()
    after = env.runtime.fault_totals()
    return results, {name for name in after if after[name] > before[name]}


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e30, 1e7])
@pytest.mark.parametrize(
    ("part", "column"),
    [("QPOS", 0), ("QPOS", 2), ("QPOS", 7), ("QVEL", 1), ("QVEL", 4), ("QVEL", 6)],
)
def test_positions_and_velocities(env, control, part, column, value):
    results, causes = counted(env, lambda: run(env, lambda: poison(env, part, column, value)))
    check(env, results, control)
    assert causes & {"state_nonfinite", "state_absurd", "engine_bad_state"}


@pytest.mark.parametrize("value", [NAN, INF, 1e12])
@pytest.mark.parametrize(("part", "column"), [("QFRC_APPLIED", 1), ("XFRC_APPLIED", 8)])
def test_applied_forces(env, control, part, column, value):
    results, causes = counted(env, lambda: run(env, lambda: poison(env, part, column, value)))
    check(env, results, control)
    assert causes & {"state_nonfinite", "state_absurd", "engine_bad_state"}


def test_a_force_whose_square_float32_cannot_hold(env, control):
    """`mujoco` is thrown off; `mjwarp`'s solver rejects the step: nothing that is bad comes out."""
    results, causes = counted(env, lambda: run(env, lambda: poison(env, "XFRC_APPLIED", 8, 1e30)))
    if env.runtime.backend.capabilities.name == "mujoco":
        check(env, results, control)
        assert "engine_bad_state" in causes
        return
    assert not causes
    for got, want in zip(results, control, strict=True):
        assert all(value.isfinite().all() for value in (*got[:2], *got[4:]))
        assert torch.equal(got[4][OTHERS], want[4][OTHERS])


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_actions(env, control, value):
    results, causes = counted(env, lambda: run(env, action=value))
    check(env, results, control)
    assert causes == {"action_nonfinite"}


def test_a_quaternion_of_zeros_is_taken_as_no_turn(env, control):
    """Both engines renormalise it: nothing is bad, and nobody else notices."""
    results, causes = counted(
        env, lambda: run(env, lambda: [poison(env, "QPOS", i, 0.0) for i in range(3, 7)])
    )
    assert not causes
    for got, want in zip(results, control, strict=True):
        assert not got[2].any() and got[4].isfinite().all()
        for one, two in zip(got[:-1], want[:-1], strict=True):
            assert torch.equal(one[OTHERS], two[OTHERS])


@pytest.mark.parametrize("value", [NAN, INF, 0.0, -1.0])
def test_masses(env, control, value):
    """The row fails in every step as long as it weighs nothing that is a weight."""
    backend = env.runtime.backend
    mass = backend.get_model_field("body_mass")
    bad = mass.clone()
    bad[BAD, 1:] = value

    def write(values):
        backend.set_model_fields({"body_mass": values}, ~OTHERS, RecomputeLevel.NONE)

    results, causes = counted(env, lambda: run(env, lambda: write(bad)))
    write(mass)
    for step, (got, want) in enumerate(zip(results, control, strict=True)):
        for one, two in zip(got[:-1], want[:-1], strict=True):
            assert torch.equal(one[OTHERS], two[OTHERS]), step
        assert got[0].isfinite().all() and got[1].isfinite().all()
    if not math.isfinite(value):
        assert [bool(got[2][BAD]) for got in results] == [step >= STEP for step in range(STEPS)]
        assert causes & {"state_nonfinite", "state_absurd", "engine_bad_state"}
    check_healed = run(env)
    for got, want in zip(check_healed, control, strict=True):
        for one, two in zip(got, want, strict=True):
            assert torch.equal(one, two)

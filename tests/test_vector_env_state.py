"""The Gymnasium face: states saved, restored, moved between environments and into resets."""

import pickle

import pytest
import torch
from gymnasium.error import ResetNeeded
from helpers.face import actions, frozen, make_go2, same

from unilab_gym.errors import ConfigError, FaultError

N = 5
CHOSEN = torch.tensor([False, True, False, True, False])


@pytest.fixture(scope="module")
def env():
    env = make_go2(N, max_episode_steps=20, seed=1)
    yield env
    env.close()


def play(env, given):
    return [frozen((*env.step(action), env.get_observations())) for action in given]


@pytest.mark.parametrize("how", ["set_state", "reset"])
def test_restored_rows_repeat_their_steps(env, how):
    """N16 through the face, over automatic resets."""
    env.reset(seed=3)
    play(env, actions(8, N, seed=1))
    saved = pickle.loads(pickle.dumps(env.get_state(CHOSEN)))
    policy = env.get_observations()["policy"]
    once = play(env, actions(30, N))
    before = env.get_observations()["policy"]
    options = {"state": saved, "reset_mask": CHOSEN}
    if how == "reset":
        obs, info = env.reset(options=options)
        assert info == {} and set(options) == {"state", "reset_mask"}
    else:
        obs = env.set_state(saved, CHOSEN.numpy())
    assert torch.equal(obs[CHOSEN], policy[CHOSEN]) and torch.equal(obs[~CHOSEN], before[~CHOSEN])
    again = play(env, actions(30, N))
    for one, two in zip(once, again, strict=True):
        same(one, two, CHOSEN)


def test_a_seed_parts_the_copies_of_one_state(env):
    env.reset(seed=3)
    play(env, actions(8, N, seed=1))
    one = env.get_state(torch.arange(N) == 2)
    for seeds in (5, [5, 6, 7, 8, 9]):
        obs = env.set_state(one, seed=seeds)
        assert torch.equal(obs, obs[:1].expand_as(obs))
        obs, *_ = env.step(torch.zeros(N, 12))  # the noise of the observation
        assert not torch.equal(obs[0], obs[1])


def test_a_physics_state_begins_an_episode(env):
    env.reset(seed=3)
    play(env, actions(8, N, seed=1))
    physics = env.get_state(physics_only=True)
    obs = env.set_state(physics)
    assert env.episode_length_buf.tolist() == [0] * N
    qpos, qvel = env.runtime.backend.render_state(2)
    index = env.runtime.index
    row = physics["engine/state"][2]
    assert qpos == row[index.qpos_offset : index.qpos_offset + index.nq].tolist()
    assert qvel == row[index.qvel_offset : index.qvel_offset + index.nv].tolist()
    assert obs.isfinite().all()


def test_a_training_goes_on_elsewhere(env):
    """E49 through the face: a fresh environment continues as if nothing had happened."""
    env.reset(seed=4)
    play(env, actions(12, N, seed=2))
    saved = env.state_dict()
    other = make_go2(N, max_episode_steps=20, seed=99)
    other.load_state_dict(saved)  # no reset is needed
    for one, two in zip(play(env, actions(25, N)), play(other, actions(25, N)), strict=True):
        same(one, two)
    assert {k: v.item() for k, v in env.runtime.log().items()} == {
        k: v.item() for k, v in other.runtime.log().items()
    }
    other.close()


def test_refusals(env):
    fresh = make_go2(N)
    env.reset(seed=0)
    saved = env.get_state()
    with pytest.raises(ResetNeeded, match="full reset"):
        fresh.reset(options={"state": saved, "reset_mask": CHOSEN})
    for nothing in (None, 3):
        with pytest.raises(ConfigError, match="a state is a dict of tensors, got"):
            env.reset(options={"state": nothing})
    with pytest.raises(ConfigError, match="lacks rng/keys"):
        env.reset(options={"state": {k: v for k, v in saved.items() if k != "rng/keys"}})
    with pytest.raises(ConfigError, match=r"5 rows; expected 1, 2|holds 3 rows"):
        env.set_state({k: v[:3] for k, v in saved.items()}, CHOSEN)
    with pytest.raises(TypeError, match="mask must be bool"):
        env.get_state(torch.ones(N))
    fresh.reset(options={"state": saved})  # another time limit is no state
    fresh.close()


def test_raise_names_the_row(env):
    raising = make_go2(3, on_fault="raise")
    raising.reset(seed=0)
    action = torch.zeros(3, 12)
    action[2, 0] = torch.nan
    with pytest.raises(FaultError, match=r"1 faulty row\(s\): row 2: action_nonfinite$"):
        raising.step(action)
    raising.close()


@pytest.mark.cuda
def test_raise_on_cuda_comes_late_and_waits_for_nothing():
    env = make_go2(8, backend="mjwarp", device="cuda", on_fault="raise")
    env.reset(seed=0)
    action = torch.zeros(8, 12, device="cuda")
    env.step(action)
    bad = action.clone()
    bad[5, 0] = torch.nan
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(FaultError, match="in an earlier step: row 5: action_nonfinite"):
            env.step(bad)
            for _ in range(50):
                env.step(action)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    env.close()


@pytest.mark.cuda
def test_a_receipt_orders_a_side_stream_after_the_step():
    """What another stream computes from the state after `wait` is what the step left."""
    env = make_go2(64, backend="mjwarp", device="cuda")
    env.reset(seed=0)
    runtime = env.runtime
    for _ in range(5):
        receipt = runtime.backend.step(runtime.rt.actions.ctrl, None)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            receipt.wait()
            early = runtime.rt.views.qpos.clone()
        side.synchronize()
        assert torch.equal(early, runtime.rt.views.qpos)
    env.close()

"""N16 on Go2: whole states move between the engines, and plain steps follow alike."""

import pytest
import torch
from helpers.face import actions, frozen, same


@pytest.mark.parametrize(("home", "away"), [("mujoco", "mjwarp"), ("mjwarp", "mujoco")])
def test_a_state_moves_to_the_other_engine(go2, home, away):
    here, there = go2(home), go2(away)
    here.reset(seed=5)
    there.reset(seed=6)
    for action in actions(8, 6, scale=1.0):
        here.step(action)
    saved = here.get_state()
    obs = there.set_state(saved)
    assert torch.equal(obs, here.get_observations()["policy"])
    for name, value in there.get_state().items():
        assert torch.equal(value, saved[name].to(value.dtype)), name
    left, right = (frozen(env.step(torch.zeros(6, 12))) for env in (here, there))
    for path in ("[2]", "[3]"):
        assert torch.equal(left[path], right[path])
    assert (left["[0]"] - right["[0]"]).abs().max() <= 2e-3  # joint velocities in contact
    assert (left["[1]"] - right["[1]"]).abs().max() <= 1e-3


def test_restored_rows_repeat_their_steps(train_env):
    """Bitwise on MuJoCo C and on the CPU device of MuJoCo-Warp."""
    train_env.reset(seed=5)
    chosen = torch.arange(6) % 2 == 1
    saved = train_env.get_state(chosen)
    steps = actions(10, 6)
    runs = []
    for _ in range(2):
        train_env.set_state(saved, chosen)
        runs.append([frozen(train_env.step(action)) for action in steps])
    for one, two in zip(*runs, strict=True):
        same(one, two, chosen)

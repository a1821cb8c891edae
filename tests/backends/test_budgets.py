"""Contact and constraint budgets: what is enough, what overflows, and who says so."""

import re
import warnings

import pytest
import torch
from helpers.face import make_go2

import unilab_gym
from unilab_gym.backends import sizing
from unilab_gym.backends.budgets import BudgetWatch, round_up
from unilab_gym.errors import BudgetOverflowWarning


def watch(demand, **changes):
    values = {"nconmax": 8, "njmax": 16, "enough": (24, 64)}
    tensor = torch.tensor(demand, dtype=torch.int32)
    return BudgetWatch(tensor, tensor, lambda: demand, 4, **(values | changes))


def test_what_fits_says_nothing():
    watch([32, 32, 16]).poll()
    watch([0, 0, 0]).poll()


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        ([33, 0, 0], r"sim.nconmax=8 is too small: 33 contacts .* holds 32\..*sim.nconmax=24 is"),
        ([0, 50, 0], r"sim.nconmax=8 is too small: 50 contacts"),  # pairs share the same pool
        ([400, 0, 0], r"sim.nconmax=152 is enough"),
        ([0, 0, 17], r"sim.njmax=16 is too small: .* needed 17 .*sim.njmax=64 is enough"),
        ([0, 0, 99], r"sim.njmax=104 is enough"),
    ],
)
def test_a_budget_that_is_too_small_is_named_once(demand, message):
    one = watch(demand)
    with pytest.warns(BudgetOverflowWarning, match=message):
        one.poll()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.poll()


def test_warnings_as_errors_make_it_fail():
    with warnings.catch_warnings(), pytest.raises(BudgetOverflowWarning):
        warnings.simplefilter("error")
        watch([33, 0, 17]).poll()


def test_budgets_are_multiples_of_eight():
    assert [round_up(count) for count in (0, 1, 8, 9, 64, 65)] == [8, 8, 8, 16, 64, 72]


# --- E11 and N14 on Go2 ---------------------------------------------------------------------------


def on_its_side(env):
    """Every robot lies on its side, a bit in the floor."""
    backend, index = env.runtime.backend, env.runtime.index
    state = backend.get_state()
    q = index.qpos_offset
    state[:, q + 2] = 0.08
    state[:, q + 3 : q + 7] = torch.tensor([0.7071068, 0.7071068, 0.0, 0.0])
    backend.set_state(state, torch.ones(env.num_envs, dtype=torch.bool))


def advised(messages, setting):
    found = [re.search(rf"sim.{setting}=(\d+) is enough", str(m.message)) for m in messages]
    return max(int(match[1]) for match in found if match)


def test_too_small_budgets_name_values_that_are_enough():
    """E11: Go2 on its side. The smallest budgets warn and count; what they advise holds."""
    pytest.importorskip("mujoco_warp")
    tiny = {"sim.nconmax": 1, "sim.njmax": 8}
    env = make_go2(4, backend="mjwarp", overrides=tiny, play=True)
    env.reset(seed=0)
    on_its_side(env)
    with pytest.warns(BudgetOverflowWarning) as told:
        env.step(torch.zeros(4, 12))
    totals = env.runtime.fault_totals()
    assert totals["contact_pool_overflow"] >= 4
    assert env.extras["log"]["fault/constraint_overflow"] >= 0  # a counter that users can log
    env.close()
    enough = {f"sim.{name}": advised(told, name) for name in ("nconmax", "njmax")}
    assert enough["sim.nconmax"] > 1
    env = make_go2(4, backend="mjwarp", overrides=enough, play=True)
    env.reset(seed=0)
    for _ in range(10):
        on_its_side(env)
        env.step(torch.zeros(4, 12))
    totals = env.runtime.fault_totals()
    assert totals["contact_pool_overflow"] == totals["constraint_overflow"] == 0
    env.close()


@pytest.mark.parametrize("task", unilab_gym.task_ids())
def test_shipped_defaults_hold_under_random_actions(task):
    """N14: measured on MuJoCo C, against what `mjwarp` allocates by default."""
    pytest.importorskip("mujoco_warp")
    sizes = sizing.size_buffers(task, num_envs=64, steps=60)
    env = unilab_gym_env(task, 2)
    budgets = env.runtime.backend.data
    assert sizes.constraints.max <= int(budgets.njmax)
    assert sizes.contacts.max <= int(budgets.naconmax) // 2
    env.close()


def unilab_gym_env(task, num_envs):
    import gymnasium

    return gymnasium.make_vec(task, num_envs=num_envs, backend="mjwarp", device="cpu").unwrapped


def test_both_engines_count_alike():
    """So the quick engine sizes the other."""
    pytest.importorskip("mujoco_warp")
    c = sizing.size_buffers("UniLab/Go2JoystickFlat-v0", num_envs=6, steps=15)
    w = sizing.size_buffers("UniLab/Go2JoystickFlat-v0", num_envs=6, steps=15, backend="mjwarp")
    assert abs(c.contacts.max - w.contacts.max) <= 3
    assert abs(c.constraints.max - w.constraints.max) <= 12
    assert c.constraints.p50 > 12  # friction loss of every joint, at least
    assert not w.overflowed


def test_the_report_is_a_short_table():
    sizes = sizing.size_buffers("UniLab/Go2JoystickFlat-v0", num_envs=4, steps=5, seed=1)
    assert sizes.contacts.p50 <= sizes.contacts.p99_9 <= sizes.contacts.max
    assert sizes.nconmax % 8 == sizes.njmax % 8 == 0
    assert sizes.nconmax >= 1.25 * sizes.contacts.max - 1 >= sizes.pool - 1
    text = str(sizes)
    assert f"sim.nconmax={sizes.nconmax}  sim.njmax={sizes.njmax}" in text
    assert text.splitlines()[1].split() == ["p50", "p99.9", "max"]


def test_percentiles_of_known_counts():
    counts = torch.arange(1000).flip(0).view(10, 100)
    assert sizing._demand(counts) == sizing.Demand(p50=500, p99_9=998, max=999)

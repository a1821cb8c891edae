"""Seeds decide everything random, whatever ran before, however many rows and processes."""

import torch
from helpers.probe import build, random_actions, started, walker_cfg
from helpers.walk import same_bits, snapshot

from unilab_gym.config import UniformNoiseCfg, apply_overrides
from unilab_gym.runtime.rng import constructor_keys, seed_keys


def drawn(env):
    """Start-up parameters, the state of the start and what is observed of it."""
    fields = [env.backend.get_model_field(name) for name in env.backend.spec.model_fields]
    parts = [env.backend.get_state(), env.state.obs["policy"], *fields]
    parts += [command.value for command in env.rt.commands.terms.values()]
    return [part.flatten(1).double().clone() for part in parts]


def same(left, right, rows=slice(None)):
    return all(torch.equal(a[rows], b[rows]) for a, b in zip(left, right, strict=True))


def differ(left, right, rows=slice(None)):
    """Every part differs in every row."""
    return all((a[rows] != b[rows]).any(1).all() for a, b in zip(left, right, strict=True))


def test_a_seed_gives_the_same_start_whatever_ran_before(tmp_path):
    """E23 and N09: 42, 7, 42 and steps in between."""
    env = build(walker_cfg(tmp_path, episode_length_s=0.2), 4)
    starts = []
    for seed in (42, 7, 42):
        env.reset(keys=seed_keys(seed, 4))
        starts.append(drawn(env))
        for action in random_actions(env, 13, seed=seed):
            env.step(action)
    assert same(starts[0], starts[2]) and differ(starts[0], starts[1])
    env.reset(keys=seed_keys(1, 4))
    before = drawn(env)
    env.reset()  # goes on: another episode of the same streams, the same start-up parameters
    after = drawn(env)
    assert all(part.isfinite().all() for part in after)
    assert differ(before[:2], after[:2]) and same(before[2:5], after[2:5])
    env.close()


def test_the_constructor_seed_reaches_startup_and_neighbours_share_nothing(tmp_path):
    """E23: seed 7 twice, and 8."""
    starts = []
    for seed in (7, 7, 8):
        env = started(walker_cfg(tmp_path), 4, seed=seed)
        starts.append(drawn(env))
        env.close()
    assert same(starts[0], starts[1]) and differ(starts[0], starts[2])
    assert not set(constructor_keys(7, 256)) & set(constructor_keys(8, 256))


def test_rows_do_not_depend_on_num_envs_or_rank(tmp_path):
    """A process of rank r holds rows r N, r N + 1 ... of one large run."""
    cfg = walker_cfg(tmp_path)
    large, first = started(cfg, 6, seed=5), started(cfg, 2, seed=5)
    third = started(cfg, 2, seed=5, rank=2)
    actions = random_actions(large, 20)
    for step in range(21):
        whole = drawn(large)
        assert same(whole, [torch.nn.functional.pad(p, (0, 0, 0, 4)) for p in drawn(first)], [0, 1])
        assert same([part[4:] for part in whole], drawn(third))
        if step < 20:
            large.step(actions[step])
            first.step(actions[step, :2])
            third.step(actions[step, 4:])
    large.reset(keys=seed_keys(3, 6))
    third.reset(keys=seed_keys(3, 2, rank=2))
    assert same([part[4:] for part in drawn(large)], drawn(third))
    for env in (large, first, third):
        env.close()


def test_a_list_of_seeds_with_none_and_a_mask(tmp_path):
    """Only the rows that are seeded and reset begin anew, start-up parameters included."""
    env, control = started(walker_cfg(tmp_path), 4), started(walker_cfg(tmp_path), 4)
    keys = seed_keys(9, 4)
    env.reset(keys=[None, keys[1], keys[2], None])
    control.reset()
    assert same(drawn(env), drawn(control), [0, 3]) and differ(drawn(env), drawn(control), [1, 2])
    mask = torch.tensor([False, True, False, True])
    before = snapshot(env)
    env.reset(keys=seed_keys(77, 4), mask=mask)
    control.reset(keys=seed_keys(77, 4))
    after = snapshot(env)
    assert same(drawn(env), drawn(control), [1, 3])
    for path in ("engine.state", "engine.body_mass", "env.rt.rng.keys", "env.rt.rng.positions"):
        assert same_bits(before[path][~mask], after[path][~mask]), path
    env.close()
    control.close()


def test_startup_waits_for_a_masked_first_reset_of_each_row(tmp_path):
    """The runtime alone allows it: rows that never began hold nominal fields."""
    env, control = build(walker_cfg(tmp_path), 3), started(walker_cfg(tmp_path), 3)
    nominal = env.backend.nominal("body_mass")
    env.reset(mask=torch.tensor([True, False, True]))
    mass = env.backend.get_model_field("body_mass")
    assert torch.equal(mass[1], nominal)
    env.reset(mask=torch.tensor([False, True, True]))
    assert torch.equal(
        env.backend.get_model_field("body_mass"), control.backend.get_model_field("body_mass")
    )
    env.close()
    control.close()


def test_more_noise_moves_nobody_elses_numbers(tmp_path):
    """Columns are keyed by name: a further random term leaves every other draw as it was."""
    cfg = walker_cfg(tmp_path)
    noisy = apply_overrides(
        cfg, {"observations.policy.terms.joint_pos.noise": UniformNoiseCfg(low=-0.1, high=0.1)}
    )
    env, other = started(cfg, 3), started(noisy, 3)
    for action in random_actions(env, 10):
        env.step(action)
        other.step(action)
    policy, changed = env.state.obs["policy"], other.state.obs["policy"]
    assert torch.equal(policy[:, :3], changed[:, :3]) and torch.equal(policy[:, 5:], changed[:, 5:])
    assert (policy[:, 3:5] != changed[:, 3:5]).all()
    assert torch.equal(env.backend.get_state(), other.backend.get_state())
    env.close()
    other.close()

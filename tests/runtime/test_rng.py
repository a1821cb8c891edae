"""Counter-based draws: known values, independence, bounds, masks."""

import math
from statistics import NormalDist

import pytest
import torch
from helpers.probe import CPU, context, ready

from unilab_gym.errors import ConfigError
from unilab_gym.runtime.carriers import StateRegistry
from unilab_gym.runtime.rng import (
    ManagerRng,
    column_key,
    constructor_keys,
    fresh_seed,
    mix64,
    seed_keys,
)

GOLDEN = 0x9E3779B97F4A7C15
# The published first outputs of splitmix64 from seed 1234567.
PUBLISHED = (
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
)


def unsigned(word):
    return word & ((1 << 64) - 1)


def make_rng(num_envs=4, streams=(("a", 3, "step"),), seed=0, low=0.0, high=1.0):
    rng = ManagerRng(num_envs, CPU)
    read = {(n, on): rng.uniform(n, width, on, low, high) for n, width, on in streams}
    rng.build()
    rng.set_keys(seed_keys(seed, num_envs))
    rng.start_episode(torch.ones(num_envs, dtype=torch.bool))
    return rng, read


def drawn(rng, read):
    rng.draw()
    return read().clone()


def counters(rng):
    """How often every stream has walked by G from its key."""
    backwards = pow(GOLDEN, -1, 1 << 64)
    steps = (rng.positions - rng.keys).tolist()
    return [[unsigned(step * backwards) for step in row] for row in steps]


def test_mix64_is_the_finaliser_of_splitmix64():
    for number, output in enumerate(PUBLISHED, start=1):
        assert mix64(1234567 + number * GOLDEN) == output


def uniform(half):
    """The upper 24 bits of a signed half word, moved to [0, 1)."""
    signed = half - (1 << 32) if half >> 31 else half
    return (signed >> 8) / 2**24 + 0.5


def test_a_draw_worked_by_hand_in_python_integers():
    rng, read = make_rng(num_envs=3, streams=(("a", 4, "step"),), seed=5)
    rng.advance()
    values = drawn(rng, read["a", "step"])
    for env in range(3):
        counter = (1 << 32) + 1  # episode 1, its first step
        position = mix64(5 + env) + counter * GOLDEN
        for column in range(4):
            word = mix64(position + unsigned(column_key("a", column // 2)))
            half = (word >> (32 * (column % 2))) & 0xFFFFFFFF
            assert values[env, column].item() == uniform(half)


def test_reset_and_startup_streams_follow_their_own_counters():
    streams = (("a", 1, "step"), ("a", 1, "reset"), ("a", 1, "startup"))
    rng, read = make_rng(num_envs=1, streams=streams, seed=9)
    key, column = mix64(9), unsigned(column_key("a", 0))

    def expected(counter):
        return uniform(mix64(key + counter * GOLDEN + column) & 0xFFFFFFFF)

    rng.advance()
    rng.advance()
    rng.draw()
    rng.draw_startup()
    assert read["a", "step"]().item() == expected((1 << 32) + 2)
    assert read["a", "reset"]().item() == expected(2 << 32)  # of the episode to come
    assert read["a", "startup"]().item() == expected(0)


def test_reset_draw_does_not_depend_on_when_it_is_made():
    rng, read = make_rng(streams=(("a", 2, "reset"),))
    early = drawn(rng, read["a", "reset"])
    for _ in range(7):
        rng.advance()
        assert torch.equal(drawn(rng, read["a", "reset"]), early)
    rng.start_episode(torch.tensor([True, False, True, False]))
    late = drawn(rng, read["a", "reset"])
    assert torch.equal(late[1::2], early[1::2])
    assert (late[::2] != early[::2]).all()


@pytest.mark.parametrize("phase", ["step", "reset", "startup"])
def test_draws_do_not_depend_on_num_envs_order_or_other_terms(phase):
    _, alone = few = make_rng(2, (("a", 3, phase),), seed=3)
    many = make_rng(9, (("z", 5, "step"), ("b", 1, phase), ("a", 3, phase)), seed=3)
    for rng, _read in (few, many):
        rng.advance()
        rng.draw()
        rng.draw_startup()
    assert torch.equal(many[1]["a", phase]()[:2], alone["a", phase]())


def test_a_wider_stream_begins_with_the_same_numbers():
    rng, read = make_rng(streams=(("a", 3, "step"),))
    wide, wide_read = make_rng(streams=(("a", 8, "step"),))
    narrow = drawn(rng, read["a", "step"])
    assert torch.equal(drawn(wide, wide_read["a", "step"])[:, :3], narrow)


def test_bounds_are_those_of_each_column():
    rng = ManagerRng(512, CPU)
    read = rng.uniform("a", 3, "step", (-1.0, 5.0, 2.0), (1.0, 6.0, 2.0))
    rng.build()
    rng.set_keys(seed_keys(1, 512))
    rng.draw()
    low, high = read().amin(0), read().amax(0)
    assert (low >= torch.tensor([-1.0, 5.0, 2.0])).all()
    assert (high <= torch.tensor([1.0, 6.0, 2.0])).all()
    assert (high[:2] - low[:2] > torch.tensor([1.9, 0.95])).all()


def test_uniform_in_every_tenth():
    rng, read = make_rng(num_envs=4000, streams=(("a", 5, "step"),))
    counts = torch.histc(drawn(rng, read["a", "step"]), bins=10, min=0.0, max=1.0)
    # 20000 draws, 2000 expected in each tenth, standard deviation 42.
    assert (counts - 2000).abs().max() < 5 * 42


def test_no_correlation_between_columns_steps_envs_or_phases():
    streams = (("a", 4, "step"), ("b", 2, "step"), ("a", 2, "reset"))
    rng, read = make_rng(num_envs=8192, streams=streams)
    columns = []
    for _ in range(2):
        rng.advance()
        rng.draw()
        columns += [read[key]().clone() for key in (("a", "step"), ("b", "step"))]
    columns.append(read["a", "reset"]().clone())
    samples = torch.cat(columns, 1)
    samples = torch.cat((samples, samples.roll(1, 0)), 1)  # the neighbouring environment's
    correlation = torch.corrcoef(samples.T) - torch.eye(samples.shape[1])
    assert correlation.abs().max() < 5.5 / math.sqrt(8192)


def test_episodes_and_seeds_share_no_draw():
    rng, read = make_rng(num_envs=64, streams=(("a", 2, "step"),))
    seen = [drawn(rng, read["a", "step"])]
    for _ in range(3):
        rng.start_episode(torch.ones(64, dtype=torch.bool))
        seen.append(drawn(rng, read["a", "step"]))
    values = torch.cat(seen).flatten()
    assert values.unique().numel() >= values.numel() - 1  # one chance collision in 2^24


def test_seed_keys_count_on_over_envs_and_ranks():
    assert [unsigned(key) for key in seed_keys(7, 2)] == [mix64(7), mix64(8)]
    assert seed_keys(7, 4) == seed_keys(7, 2) + seed_keys(7, 2, rank=1)
    assert seed_keys(8, 1) == seed_keys(7, 2)[1:]


def test_constructor_keys_of_two_seeds_share_nothing():
    assert constructor_keys(3, 4) == constructor_keys(3, 2) + constructor_keys(3, 2, rank=1)
    assert [unsigned(key) for key in constructor_keys(3, 2)] == [
        mix64(mix64(3)),
        mix64(mix64(3) ^ 1),
    ]
    assert not set(constructor_keys(3, 4096)) & set(constructor_keys(4, 4096))


def test_none_keeps_a_stream_and_a_mask_limits_the_seed():
    rng, read = make_rng()
    rng.advance()
    before = drawn(rng, read["a", "step"])
    keys, positions = rng.keys.clone(), rng.positions.clone()
    fresh = seed_keys(99, 4)
    rng.set_keys([fresh[0], None, fresh[2], fresh[3]], torch.tensor([True, True, True, False]))
    assert torch.equal(rng.keys[[1, 3]], keys[[1, 3]])
    assert torch.equal(rng.positions[[1, 3]], positions[[1, 3]])
    assert rng.keys[[0, 2], 0].tolist() == [fresh[0], fresh[2]]
    after = drawn(rng, read["a", "step"])
    assert torch.equal(after[[1, 3]], before[[1, 3]])
    assert (after[[0, 2]] != before[[0, 2]]).all()


def test_masked_rows_alone_enter_their_next_episode():
    rng, _ = make_rng(num_envs=3)
    rng.advance()
    before = rng.positions.clone()
    rng.start_episode(torch.tensor([False, True, False]))
    assert torch.equal(rng.positions[[0, 2]], before[[0, 2]])
    assert counters(rng)[1] == [2 << 32, 3 << 32]


def test_keys_and_positions_are_all_of_a_stream():
    rng, read = make_rng(streams=(("a", 2, "step"), ("a", 2, "reset")))
    rng.advance()
    registry = StateRegistry()
    rng.register(registry)
    state = {name: tensor.clone() for name, tensor in registry.rows.items()}
    assert set(state) == {"rng/keys", "rng/positions"}
    wanted = drawn(rng, read["a", "step"])
    rng.advance()
    rng.start_episode(torch.tensor([True, False, False, True]))
    assert not torch.equal(drawn(rng, read["a", "step"]), wanted)
    for name, tensor in registry.rows.items():
        tensor.copy_(state[name])
    assert torch.equal(drawn(rng, read["a", "step"]), wanted)


def test_global_generators_are_neither_read_nor_written():
    state = torch.get_rng_state()
    rng, read = make_rng(seed=4)
    first = drawn(rng, read["a", "step"])
    assert torch.equal(torch.get_rng_state(), state)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        again, again_read = make_rng(seed=4)
        assert torch.equal(drawn(again, again_read["a", "step"]), first)


def test_fresh_seeds_differ_and_fit_a_seed_argument():
    seeds = {fresh_seed() for _ in range(4)}
    assert len(seeds) > 1
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_no_streams_draw_nothing():
    rng, _ = make_rng(streams=())
    rng.draw()
    rng.draw_startup()
    assert counters(rng) == [[1 << 32, 2 << 32]] * 4


def test_errors_name_the_stream():
    rng = ManagerRng(2, CPU)
    read = rng.uniform("obs/x", 1, "step")
    with pytest.raises(ConfigError, match=r"'obs/x' is registered twice for phase 'step'"):
        rng.uniform("obs/x", 2, "step")
    with pytest.raises(ConfigError, match=r"'obs/y': phase 'rest'; did you mean 'reset'"):
        rng.uniform("obs/y", 1, "rest")
    with pytest.raises(ConfigError, match=r"'obs/z': 2 lower and 3 upper bounds for 3 columns"):
        rng.uniform("obs/z", 3, "step", (0.0, 0.0), (1.0, 1.0, 1.0))
    with pytest.raises(ConfigError, match=r"'obs/x' is read before the first draw"):
        read()
    rng.build()
    with pytest.raises(ConfigError, match=r"'late': registered after the environment was built"):
        rng.uniform("late", 1, "step")


# --- normals, integers, flags ---------------------------------------------------------------------


def test_a_normal_worked_by_hand():
    rng = ManagerRng(2, CPU)
    read = rng.normal("n", 3, "step", (1.0, 2.0, 3.0), (0.5, 1.0, 2.0))
    rng.build()
    rng.set_keys(seed_keys(5, 2))
    rng.draw()
    for env in range(2):
        position = mix64(5 + env)  # counter 0
        expected = []
        for word in range(2):
            bits = mix64(position + unsigned(column_key("n", word)))
            halves = (bits & 0xFFFFFFFF, bits >> 32)
            expected += [NormalDist().inv_cdf(uniform(half)) for half in halves]
        wanted = [1.0 + 0.5 * expected[0], 2.0 + expected[1], 3.0 + 2.0 * expected[2]]
        assert read()[env].tolist() == pytest.approx(wanted, abs=2e-5)


def test_normals_of_every_phase_beside_uniforms():
    """They lie in one run of columns; each keeps its own bounds, mean and counter."""
    rng = ManagerRng(20000, CPU)
    reads = {
        "u": rng.uniform("u", 3, "step", 5.0, 6.0),
        "n": rng.normal("n", 1, "step", 10.0, 2.0),
        "r": rng.normal("r", 2, "reset", -3.0, 0.1),
        "v": rng.uniform("v", 1, "reset", -1.0, 0.0),
        "s": rng.normal("s", 1, "startup"),
    }
    rng.build()
    rng.set_keys(seed_keys(1, 20000))
    rng.start_episode(torch.ones(20000, dtype=torch.bool))
    rng.draw()
    rng.draw_startup()
    assert reads["u"]().min() >= 5.0 and reads["u"]().max() < 6.0
    assert reads["v"]().min() >= -1.0 and reads["v"]().max() <= 0.0
    for name, mean, deviation in (("n", 10.0, 2.0), ("r", -3.0, 0.1), ("s", 0.0, 1.0)):
        z = ((reads[name]() - mean) / deviation).double()
        assert z.mean().abs() < 0.03 and (z.std() - 1.0).abs() < 0.03
        assert (z.abs() < 1.0).double().mean() == pytest.approx(0.6827, abs=0.015)
        assert z.abs().max() < 5.5 and z.isfinite().all()
    pair = torch.corrcoef(reads["r"]().T)
    assert pair[0, 1].abs() < 0.03
    reset, step = reads["r"]().clone(), reads["n"]().clone()
    rng.advance()
    rng.draw()
    assert torch.equal(reads["r"](), reset) and not torch.equal(reads["n"](), step)


def test_normals_move_no_other_stream_and_do_not_depend_on_num_envs():
    alone, read = make_rng(3, (("a", 3, "step"),), seed=2)
    mixed = ManagerRng(7, CPU)
    mixed.normal("n", 5, "step")
    normal = mixed.normal("m", 2, "reset")
    also = mixed.uniform("a", 3, "step")
    mixed.build()
    mixed.set_keys(seed_keys(2, 7))
    mixed.start_episode(torch.ones(7, dtype=torch.bool))
    few = ManagerRng(2, CPU)
    same = few.normal("m", 2, "reset")
    few.build()
    few.set_keys(seed_keys(2, 2))
    few.start_episode(torch.ones(2, dtype=torch.bool))
    for rng in (alone, mixed, few):
        rng.draw()
    assert torch.equal(also()[:3], read["a", "step"]())
    assert torch.equal(normal()[:2], same())


def test_extreme_uniforms_give_finite_normals():
    rng = ManagerRng(1, CPU)
    read = rng.normal("n", 2, "step")
    rng.build()
    block = rng._block
    scale, middle = block._scale[:2], block._middle[:2]
    ends = torch.tensor([-(2**23), 2**23 - 1]) * scale + middle
    block.values[:, :2].copy_(ends)
    block.normals.draw()
    assert 5.0 < read()[0, 1] < 5.5
    assert -5.5 < read()[0, 0] < -5.0


def test_integers_and_flags():
    ctx = context(num_envs=30000)
    dice = ctx.integers(2, "step", 1, 7, key="dice")
    coin = ctx.bernoulli(1, "step", 0.25, key="coin")
    never, always = (ctx.bernoulli(1, "step", p, key=str(p)) for p in (0.0, 1.0))
    large = ctx.integers(1, "reset", -(2**23), 2**23, key="large")
    ready(ctx, seed=3)
    values = dice()
    assert values.dtype == torch.int64 and values.shape == (30000, 2)
    counts = torch.bincount(values.flatten(), minlength=7)
    assert counts[0] == 0 and (counts[1:] - 10000).abs().max() < 5 * 92  # its deviation is 91
    assert coin().dtype == torch.bool
    assert coin().float().mean().item() == pytest.approx(0.25, abs=0.013)
    assert not never().any() and always().all()
    assert large().min() >= -(2**23) and large().max() < 2**23
    for span in (3, 5, 6, 1000, 2**20 + 1, 2**24 - 1, 2**24):  # the last uniform below 1
        assert torch.tensor(1.0 - 2.0**-24).mul(span).floor().item() < span


def test_errors_of_the_other_kinds():
    ctx = context()
    with pytest.raises(ConfigError, match="negative standard deviation -1"):
        ctx.normal(2, "step", 0.0, (1.0, -1.0))
    with pytest.raises(ConfigError, match="'test/term': 1 means and 2 deviations for 2 columns"):
        ctx.normal(2, "step", (0.0,), (1.0, 1.0))
    with pytest.raises(ConfigError, match=r"integers in \[3, 3\)"):
        ctx.integers(1, "step", 3, 3)
    with pytest.raises(ConfigError, match=r"a probability must be in \[0, 1\], got 1.5"):
        ctx.bernoulli(1, "step", 1.5)


# --- coarse draws: four numbers of 16 bits out of a word ------------------------------------------


def coarse_rng(num_envs, width, on="step", seed=0):
    rng = ManagerRng(num_envs, CPU)
    read = rng.uniform("a", width, on, coarse=True)
    rng.build()
    rng.set_keys(seed_keys(seed, num_envs))
    return rng, read


def test_coarse_numbers_worked_by_hand():
    """Each is the middle of its interval of 2^-16, from a signed 16-bit part of the word."""
    rng, read = coarse_rng(3, 6, seed=5)
    rng.advance()
    values = drawn(rng, read)
    for env in range(3):
        position = mix64(5 + env) + GOLDEN  # episode 0, its first step
        for column in range(6):
            word = mix64(position + unsigned(column_key("a", column // 4)))
            part = (word >> (16 * (column % 4))) & 0xFFFF
            signed = part - (1 << 16) if part >> 15 else part
            assert values[env, column].item() == (signed + 0.5) / 2**16 + 0.5


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7])
def test_coarse_draws_leave_the_other_streams_alone(width):
    """Of either phase, however many numbers of their last word are unused."""
    alone, read = make_rng(5, (("f", 3, "step"), ("g", 2, "reset")), seed=4)
    mixed = ManagerRng(5, CPU)
    coarse = [mixed.uniform("c", width, on, coarse=True) for on in ("step", "reset", "startup")]
    normal = mixed.normal("n", 3, "reset")
    fine = [mixed.uniform("f", 3, "step"), mixed.uniform("g", 2, "reset")]
    mixed.build()
    mixed.set_keys(seed_keys(4, 5))
    mixed.start_episode(torch.ones(5, dtype=torch.bool))
    for rng in (alone, mixed):
        rng.draw()
    mixed.draw_startup()
    assert torch.equal(fine[0](), read["f", "step"]())
    assert torch.equal(fine[1](), read["g", "reset"]())
    assert all(((one() > 0.0) & (one() < 1.0)).all() for one in coarse)
    assert not torch.equal(coarse[0](), coarse[1]()) and normal().isfinite().all()


def test_coarse_numbers_are_uniform_and_share_nothing():
    count = 40_000
    rng, read = coarse_rng(count, 7)
    steps = [(rng.advance(), drawn(rng, read))[1] for _ in range(2)]
    for values in steps:
        for column in values.unbind(1):
            found = torch.histc(column, bins=64, min=0.0, max=1.0)
            chi2 = ((found - count / 64).square() / (count / 64)).sum()
            assert chi2 < 63 + 5 * math.sqrt(2 * 63)
    # Neighbours in the word, in the next step and in the next environment; high and low bits.
    samples = torch.cat((*steps, steps[0].roll(1, 0)), 1)
    for part in (samples, (samples * 256.0).frac()):
        correlation = torch.corrcoef(part.T) - torch.eye(part.shape[1])
        assert correlation.abs().max() < 5.5 / math.sqrt(count)
        assert (part.mean() - 0.5).abs() < 5.0 / math.sqrt(12 * part.numel())


@pytest.mark.parametrize("width", [1, 3, 5, 8, 13])
def test_spare_columns_are_drawn_too(width):
    """Bits of scratch words there would be denormal numbers, which take many times as long."""
    rng = ManagerRng(16, torch.device("cpu"))
    reads = [
        rng.uniform("a", width, "step", coarse=True),
        rng.normal("n", 1, "step"),
        rng.uniform("a", width, "reset", coarse=width % 3 > 0),
    ]
    rng.build()
    rng.set_keys(seed_keys(3, 16))
    block = rng._block
    block._scale, block._middle = torch.ones(()), torch.zeros(())
    rng.draw()
    assert block.values.shape[1] % 8 == 0
    assert torch.equal(block.values, block.values.round())
    assert all(read()[-1].any() for read in reads)

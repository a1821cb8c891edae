"""Start frames: every mode, every frame, weights that stay weights (E43)."""

import math

import pytest
import torch
from helpers.motion import g1, make_clip
from helpers.probe import context, ready

from unilab_gym.errors import ConfigError
from unilab_gym.motion.library import MotionLibrary
from unilab_gym.motion.sampler import MODES, MotionSampler


def library(*lengths):
    clips = [make_clip(n, name=f"c{i}") for i, n in enumerate(lengths)]
    return MotionLibrary(
        clips,
        joints=g1().joint_names,
        bodies=("pelvis",),
        root="pelvis",
        device=torch.device("cpu"),
    )


def sampler(lib, mode, num_envs=20_000, **kwargs):
    ctx = context(num_envs)
    result = MotionSampler(ctx, lib, mode, **kwargs)
    ready(ctx)
    return result


@pytest.mark.parametrize("mode", ["uniform", "adaptive"])
def test_every_frame_is_a_start(mode):
    rows = sampler(library(500), mode).draw()
    assert rows.dtype == torch.int64
    assert (rows.min(), rows.max()) == (0, 499)
    counts = torch.bincount(rows, minlength=500)
    assert (counts > 0).all() and counts.max() < 100


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", [(2,), (3,), (49,), (2, 3, 49), (120, 75)])
def test_short_and_several_clips_are_sampled_within_bounds(mode, lengths):
    lib = library(*lengths)
    rows = sampler(lib, mode, 4000).draw()
    assert rows.min() == 0 and rows.max() < lib.rows
    assert lib.clip[rows].unique().tolist() == list(range(len(lengths)))


def test_start_and_mixed():
    lib = library(30, 50)
    assert set(sampler(lib, "start", 1000).draw().tolist()) == {0, 30}
    rows = sampler(lib, "mixed", start_ratio=0.3).draw()
    first = ((rows == 0) | (rows == 30)).float().mean().item()
    assert first == pytest.approx(0.3 + 0.7 * 2 / 80, abs=0.02)
    assert torch.bincount(rows, minlength=80).gt(0).all()


def test_bins_are_about_a_second_and_never_cross_clips():
    lib = library(120, 75, 30)
    adaptive = sampler(lib, "adaptive", 10)
    bins = adaptive.bin_of_row
    assert bins.tolist() == [0] * 60 + [1] * 60 + [2] * 37 + [3] * 38 + [4] * 30
    for number in range(5):
        assert lib.clip[bins == number].unique().numel() == 1


def test_failures_draw_starts_before_them_and_fade():
    lib = library(250, 100)  # five bins and two
    adaptive = sampler(lib, "adaptive", alpha=0.1)
    assert torch.allclose(adaptive.probability, torch.full((7,), 1 / 7))
    rows = torch.full((20_000,), 220)  # everybody fails in the fifth bin
    for _ in range(50):
        adaptive.update(rows, torch.ones(20_000, dtype=torch.bool))
        assert adaptive.probability.isfinite().all()
        assert adaptive.probability.sum().item() == pytest.approx(1.0, abs=1e-5)
    p = adaptive.probability
    assert p.argmax() == 4 and p[2:5].sum() > 0.99  # the kernel looks two bins ahead
    shares = [(1.0 + 0.8 + 0.64) / 2.44, (0.8 + 0.64) / 2.44, 0.64 / 2.44]
    assert torch.allclose(p[2:5].flip(0) / p[4], torch.tensor(shares), rtol=0.01)
    assert (p[5:] < 1e-3).all()  # and not across the clip's end
    start = adaptive.draw()
    assert ((start >= 100) & (start < 250)).float().mean() > 0.98
    before = adaptive.failures.clone()
    for _ in range(100):
        adaptive.update(rows, torch.zeros(20_000, dtype=torch.bool))
    assert torch.allclose(adaptive.failures, before * 0.9**100, rtol=1e-3)


def test_the_weights_are_the_documented_formula():
    lib = library(150)
    adaptive = sampler(lib, "adaptive", 4, alpha=0.5, uniform_share=0.1, kernel_size=2)
    rows = torch.tensor([10, 60, 60, 140])
    adaptive.update(rows, torch.tensor([False, True, True, True]))
    ema = [0.0, 1.0, 0.5]
    k = [1 / 1.8, 0.8 / 1.8]
    weights = [k[0] * ema[b] + k[1] * ema[min(b + 1, 2)] + 0.1 / 3 for b in range(3)]
    want = torch.tensor(weights) / sum(weights)
    assert torch.allclose(adaptive.probability, want, atol=1e-6)
    entropy, top, number = adaptive.log_values.tolist()
    p = want.tolist()
    assert entropy == pytest.approx(-sum(x * math.log(x) for x in p) / math.log(3), abs=1e-5)
    assert (top, number) == (pytest.approx(max(p)), p.index(max(p)))


def test_wrong_settings_are_named():
    lib = library(30)
    with pytest.raises(ConfigError, match="sampling_mode 'adaptiv'; did you mean 'adaptive'"):
        sampler(lib, "adaptiv", 2)
    for name, value in {
        "start_ratio": 1.5,
        "bin_s": 0,
        "alpha": 0.0,
        "uniform_share": 0,
        "kernel_size": 0,
        "kernel_decay": 0.0,
    }.items():
        with pytest.raises(ConfigError, match=f"{name} must be .*, got {value}"):
            sampler(lib, "adaptive", 2, **{name: value})

"""Noise and bias of observations: distributions, when they are drawn, and where they go."""

import math

import pytest
import torch
from helpers.probe import build, context, obs_term, probe_cfg, ready, started, zero_action

from unilab_gym.config import GaussianNoiseCfg, ObservationGroupCfg, UniformNoiseCfg
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.managers._noise import Column, Draws
from unilab_gym.runtime.reads import EpisodeStep
from unilab_gym.runtime.rng import seed_keys
from unilab_gym.runtime.term import term

GAUSS = GaussianNoiseCfg(std=0.5)
UNIFORM = UniformNoiseCfg(low=1.0, high=2.0)


@term(reads=(EpisodeStep(),), width=3)
def zeros(frame):
    return torch.zeros(frame[EpisodeStep()].shape[0], 3)


@term(reads=(EpisodeStep(),))
def zero(frame):
    return torch.zeros(frame[EpisodeStep()].shape[0])


def env_of(tmp_path, num_envs, corrupt=True, build=started, **terms):
    group = ObservationGroupCfg(terms=terms, corrupt=corrupt)
    return build(probe_cfg(tmp_path, observations={"policy": group}), num_envs)


def observed(env):
    return env.step(zero_action(env)).obs["policy"].clone()


def test_normal_noise_has_its_moments_and_is_drawn_anew(tmp_path):
    env = env_of(tmp_path, 400, z=obs_term(zeros, noise=GAUSS, scale=2.0))
    draws = torch.stack([observed(env) for _ in range(10)])
    assert draws.mean() == pytest.approx(0.0, abs=0.03)
    assert draws.std() == pytest.approx(1.0, rel=0.03)
    assert ((draws / 1.0) ** 4).mean() == pytest.approx(3.0, rel=0.15)  # as a normal one has it
    within = (draws.abs() < 1.0).float().mean()
    assert within == pytest.approx(math.erf(math.sqrt(0.5)), abs=0.02)
    flat = draws.flatten(1)
    correlation = torch.corrcoef(flat) - torch.eye(10)
    assert correlation.abs().max() < 0.12
    env.close()


def test_every_column_has_its_own_distribution(tmp_path):
    terms = {
        "a": obs_term(zeros, noise=GaussianNoiseCfg(std=0.1)),
        "none": obs_term(zero),
        "b": obs_term(zeros, noise=UNIFORM),
        "c": obs_term(zero, noise=GaussianNoiseCfg(std=3.0)),
        "d": obs_term(zeros, noise=GaussianNoiseCfg(std=0.0)),
    }
    env = env_of(tmp_path, 1000, **terms)
    std, mean = torch.std_mean(observed(env), 0)
    expected = [0.1] * 3 + [0.0] + [1 / math.sqrt(12)] * 3 + [3.0] + [0.0] * 3
    torch.testing.assert_close(std, torch.tensor(expected), rtol=0.1, atol=1e-6)
    assert mean[4:7].tolist() == pytest.approx([1.5] * 3, abs=0.05)
    assert mean[[0, 1, 2, 3, 8]].abs().max() < 0.02
    env.close()


def test_a_bias_is_drawn_once_an_episode_for_every_component(tmp_path):
    terms = {
        "u": obs_term(zeros, bias=UNIFORM),
        "z": obs_term(zero),
        "g": obs_term(zero, bias=GAUSS),
    }
    env = env_of(tmp_path, 300, build=build, **terms)
    first = env.reset().obs["policy"].clone()
    assert all(torch.equal(observed(env), first) for _ in range(3))
    assert first.unique().numel() >= 4 * 300 - 2  # components and rows apart
    assert ((first[:, :3] >= 1.0) & (first[:, :3] < 2.0)).all()
    assert (first[:, 3] == 0.0).all()
    assert first[:, 4].std() == pytest.approx(0.5, rel=0.15)
    mask = torch.arange(300) < 100
    again = env.reset(mask=mask).obs["policy"]
    assert torch.equal(again[~mask], first[~mask])
    assert (again[mask] != first[mask])[:, [0, 1, 2, 4]].all()
    assert torch.equal(observed(env), again)
    env.close()


def test_noise_and_bias_add_up_before_clip_and_scale(tmp_path):
    both = {"noise": UniformNoiseCfg(low=1.0, high=1.0), "bias": UniformNoiseCfg(low=2.0, high=2.0)}
    terms = {
        "sum": obs_term(zeros, **both, scale=10.0),
        "clipped": obs_term(zeros, **both, clip=(-1.0, 2.5), scale=10.0),
    }
    env = env_of(tmp_path, 2, **terms)
    assert observed(env).tolist() == [[30.0] * 3 + [25.0] * 3] * 2
    assert env.reset().obs["policy"].tolist() == [[30.0] * 3 + [25.0] * 3] * 2
    env.close()


def test_a_clean_group_has_neither(tmp_path):
    env = env_of(tmp_path, 4, corrupt=False, z=obs_term(zeros, noise=GAUSS, bias=UNIFORM))
    assert not observed(env).any()
    assert not env.rt.rng._block.streams[0]
    env.close()


def test_the_same_stream_gives_the_same_bits_whoever_stands_beside_it():
    """Normal draws do not depend on the number of rows, nor on other columns."""
    alone, crowd = context(2), context(9)
    few = Draws(alone, [Column("a", 0, 3, GAUSS)], "step")
    columns = [Column("x", 0, 5, GAUSS), Column("a", 5, 3, GAUSS), Column("u", 8, 1, UNIFORM)]
    many = Draws(crowd, columns, "step")
    for ctx, rows in ((alone, 2), (crowd, 9)):
        ready(ctx)
        ctx.rng.set_keys(seed_keys(3, rows))
        ctx.rng.draw()
    ((_, values),) = few.runs()
    wide = torch.cat([run for _, run in many.runs()], 1)
    assert torch.equal(values, wide[:2, 5:8])
    assert wide.isfinite().all()


def test_a_standard_deviation_is_not_negative():
    with pytest.raises(ConfigError, match=r"std must not be negative, got -0\.1"):
        GaussianNoiseCfg(std=-0.1)

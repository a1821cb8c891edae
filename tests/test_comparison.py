"""Same seed and actions on two sides: how far each term is apart, and what is refused."""

import dataclasses

import pytest
import torch
from helpers.probe import walker_cfg

from unilab_gym.comparison import TOLERANCES, compare_backends
from unilab_gym.config import apply_overrides
from unilab_gym.errors import ConfigError


@pytest.fixture
def cfg(tmp_path):
    return walker_cfg(tmp_path)


def policy(obs):
    return torch.full((obs.shape[0], 2), 0.3)


SAME = {"backends": ("mujoco", "mujoco"), "num_envs": 2, "steps": 8}


def test_a_side_compared_with_itself_is_equal(cfg):
    report = compare_backends(cfg, cfg, policy, **SAME)
    assert report.ok and report.beyond == []
    assert {term.largest for term in report.terms} == {0.0}
    names = [(term.kind, term.name) for term in report.terms]
    assert ("observation", "policy/gravity") in names and ("reward", "track") in names
    assert names[-2:] == [("state", "qpos"), ("state", "qvel")]


def test_a_scale_is_found_in_its_term_alone(cfg):
    """Worked number: twice the scale of x is a difference of |x| / max(1, |x|)."""
    other = apply_overrides(cfg, {"observations.policy.terms.last_action.scale": 2.0})
    report = compare_backends(cfg, other, policy, **SAME)
    (apart,) = report.beyond
    assert (apart.name, apart.first_step, apart.step) == ("policy/last_action", 1, 1)
    assert apart.largest == pytest.approx(0.3)
    assert not report.ok and report.to_dict()["ok"] is False


def test_both_engines_agree_within_the_stated_tolerances(cfg):
    report = compare_backends(cfg, cfg, policy, num_envs=2, steps=5)
    assert report.ok
    assert 0.0 < max(term.largest for term in report.terms) < TOLERANCES["state"]
    assert (report.home, report.other) == ("mujoco", "mjwarp")


def test_another_reward_weight_and_an_earlier_end_are_seen(cfg):
    rewards = {**cfg.rewards, "track": dataclasses.replace(cfg.rewards["track"], weight=3.0)}
    other = dataclasses.replace(cfg, rewards=rewards, episode_length_s=0.1)
    report = compare_backends(cfg, other, policy, **SAME)
    assert report.beyond[0].name in ("track", "policy/joint_pos", "policy/gravity")
    assert any(term.name == "track" and not term.ok for term in report.terms)
    assert report.ended_apart == 1


def test_other_terms_and_numbers_are_refused(cfg):
    lacking = dataclasses.replace(cfg, rewards={"rate": cfg.rewards["rate"]})
    with pytest.raises(ConfigError, match="reward track"):
        compare_backends(cfg, lacking, policy, **SAME)
    with pytest.raises(ConfigError, match="must be positive, got 0 and 2"):
        compare_backends(cfg, cfg, policy, **{**SAME, "steps": 0})


def test_the_policy_may_be_made_from_the_home_side(cfg):
    seen = []

    def make(env):
        seen.append(env.backend_name)
        return policy

    steps = []
    compare_backends(cfg, cfg, make, needs_env=True, on_step=lambda: steps.append(1), **SAME)
    assert (seen, len(steps)) == (["mujoco"], 8)

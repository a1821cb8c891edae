"""Observation groups: value -> noise -> clip -> scale, columns in order, shared terms clean."""

import dataclasses

import pytest
import torch
from helpers.probe import (
    build,
    obs_term,
    probe_cfg,
    random_actions,
    started,
    step_counter,
    walker_cfg,
    zero_action,
)

from unilab_gym.config import ObservationGroupCfg, UniformNoiseCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import observations
from unilab_gym.runtime.managers.observations import Concatenation, Copies
from unilab_gym.runtime.reads import EpisodeStep
from unilab_gym.runtime.rows import RowMask
from unilab_gym.runtime.term import Term, term

NOISE = UniformNoiseCfg(low=-0.25, high=0.25)


@term(reads=(EpisodeStep(),), width=3)
def ramp(frame, *, slope=1.0):
    """(k, k + 10, k + 20) times a slope."""
    return (frame[EpisodeStep()].unsqueeze(1) + torch.tensor([0.0, 10.0, 20.0])) * slope


@term(reads=(EpisodeStep(),), width=2)
def flags(frame):
    return torch.stack((frame[EpisodeStep()] > 1, frame[EpisodeStep()] > 2), 1)


@term(reads=(EpisodeStep(),))
def scalar(frame):
    return frame[EpisodeStep()]


@term(reads=(EpisodeStep(),), width=4)
def block(frame):
    """Two rows of two, as bodies or feet give them."""
    k = frame[EpisodeStep()].float()
    return torch.stack((k, k + 0.25, k + 0.5, k + 0.75), 1).view(-1, 2, 2)


@term(reads=(EpisodeStep(),), width=1)
class Counting(Term):
    calls = 0

    def __init__(self, ctx):
        super().__init__(ctx)
        self.seen = ctx.zeros(1)

    def __call__(self, frame):
        type(self).calls += 1
        return self.seen

    def reset(self, mask):
        self.seen.masked_fill_(mask.unsqueeze(1), -1.0)


def groups(corrupt=False, critic=None, **terms):
    result = {"policy": ObservationGroupCfg(terms=terms, corrupt=corrupt)}
    if critic is not None:
        result["critic"] = ObservationGroupCfg(terms=critic)
    return result


def stepped(tmp_path, observations_, steps=1, **kwargs):
    env = started(probe_cfg(tmp_path, observations=observations_), **kwargs)
    for _ in range(steps):
        env.step(zero_action(env))
    return env


def test_clip_comes_before_scale(tmp_path):
    terms = groups(r=obs_term(ramp, clip=(2.0, 12.5), scale=(1.0, 10.0, -2.0)))
    env = stepped(tmp_path, terms)
    assert env.state.obs["policy"][0].tolist() == [2.0, 110.0, -25.0]
    env.close()


def test_columns_follow_the_config_and_their_kinds_become_float32(tmp_path):
    terms = groups(s=obs_term(scalar), f=obs_term(flags), b=obs_term(block, scale=2.0))
    env = stepped(tmp_path, terms, steps=2)
    policy = env.state.obs["policy"]
    assert policy.dtype == torch.float32
    assert policy[0].tolist() == [2.0, 1.0, 0.0, 4.0, 4.5, 5.0, 5.5]
    layout = [(info.name, info.start, info.width) for info in env.rt.observations.layout("policy")]
    assert layout == [("s", 0, 1), ("f", 1, 2), ("b", 3, 4)]
    assert env.rt.observations.widths == {"policy": 7}
    env.close()


def test_noise_is_added_before_clip_and_scale_and_only_in_its_columns(tmp_path):
    terms = {
        "k": obs_term(step_counter),
        "r": obs_term(ramp, noise=NOISE, scale=10.0),
        "s": obs_term(scalar),
        "q": obs_term(step_counter, noise=UniformNoiseCfg(low=1.0, high=2.0), clip=(0.0, 2.5)),
        "end": obs_term(scalar),
    }
    env = stepped(tmp_path, groups(corrupt=True, **terms), num_envs=256)
    policy = env.state.obs["policy"]
    assert (policy[:, [0, 4, 6]] == 1.0).all()
    error = policy[:, 1:4] / 10.0 - torch.tensor([1.0, 11.0, 21.0])
    assert error.abs().max() <= 0.2501
    assert (error.amax(0) > 0.2).all()
    assert (error.amin(0) < -0.2).all()
    assert (policy[:, 5] >= 2.0).all()
    assert policy[:, 5].max() == 2.5  # 1 + up to 2, clipped
    assert (policy[:, 5] == 2.5).float().mean() == pytest.approx(0.5, abs=0.15)
    env.close()


def test_noise_needs_a_corrupt_group(tmp_path):
    env = stepped(tmp_path, groups(corrupt=False, r=obs_term(ramp, noise=NOISE)))
    assert env.state.obs["policy"].tolist() == [[1.0, 11.0, 21.0]] * 4
    env.close()


def test_a_term_shared_by_groups_is_computed_once_and_stays_clean(tmp_path):
    shared = {"c": obs_term(Counting, noise=NOISE)}
    terms = groups(corrupt=True, critic={"raw": obs_term(Counting), "r": obs_term(ramp)}, **shared)
    env = stepped(tmp_path, terms)
    before = Counting.calls
    env.step(zero_action(env))
    assert Counting.calls - before == 2  # at the boundary and after the reset, not per group
    assert env.state.obs["critic"][:, 0].tolist() == [-1.0] * 4
    assert (env.state.obs["policy"] != -1.0).all()
    env.close()


def test_other_parameters_make_another_term(tmp_path):
    terms = groups(a=obs_term(ramp), b=obs_term(ramp, params={"slope": 2.0}))
    env = stepped(tmp_path, terms)
    assert env.state.obs["policy"][0].tolist() == [1.0, 11.0, 21.0, 2.0, 22.0, 42.0]
    env.close()


def test_noise_of_step_and_reset_differs_and_never_repeats(tmp_path):
    terms = groups(corrupt=True, z=obs_term(step_counter, scale=0.0), r=obs_term(ramp, noise=NOISE))
    env = build(probe_cfg(tmp_path, observations=terms, episode_length_s=0.04), 8)
    seen = [env.reset().obs["policy"][:, 1].clone()]
    for _ in range(6):
        state = env.step(zero_action(env))
        seen.append(state.final_obs["policy"][:, 1].clone())
        if state.truncated.any():
            seen.append(state.obs["policy"][:, 1].clone())
    noise = torch.cat(seen).frac()  # the clean values are whole numbers
    assert noise.unique().numel() == noise.numel() == 80
    env.close()


def test_kept_rows_hold_the_boundary_before(tmp_path):
    env = stepped(tmp_path, groups(k=obs_term(step_counter)), steps=3)
    env.rt.episode_step.fill_(9)
    env.rt.observations.compute(keep=RowMask(torch.tensor([True, False, False, True])))
    assert env.state.final_obs["policy"].flatten().tolist() == [3.0, 9.0, 9.0, 3.0]
    env.rt.observations.publish()
    assert env.state.obs["policy"].flatten().tolist() == [3.0, 9.0, 9.0, 3.0]
    env.close()


def test_after_a_reset_only_masked_rows_are_observed(tmp_path):
    env = stepped(tmp_path, groups(k=obs_term(step_counter)), steps=3)
    env.rt.episode_step.fill_(9)
    env.rt.observations.compute_reset(RowMask(torch.tensor([True, False, False, True])))
    assert env.state.obs["policy"].flatten().tolist() == [9.0, 3.0, 3.0, 9.0]
    env.close()


def test_groups_do_not_disturb_each_other(tmp_path):
    """The policy's numbers are the same whether a critic looks on or not.

    To rounding: a critic that reads geoms brings the rotation matrices, and gravity comes from
    them then.
    """
    cfg = walker_cfg(tmp_path)
    alone = walker_cfg(tmp_path, observations={"policy": cfg.observations["policy"]})
    actions = random_actions(env := started(cfg), 30)
    other = started(alone)
    for action in actions:
        given, wanted = env.step(action).obs["policy"], other.step(action).obs["policy"]
        torch.testing.assert_close(given, wanted, rtol=0, atol=1e-5)
    assert not torch.equal(env.state.obs["critic"][:, :3], env.state.obs["policy"][:, :3])
    env.close()
    other.close()


def test_the_clean_term_equals_the_engines_state(tmp_path):
    terms = groups(q=obs_term(observations.joint_pos_rel), v=obs_term(observations.joint_vel))
    env = started(walker_cfg(tmp_path, observations=terms, terminations={}), 2)
    state = env.step(random_actions(env, 1)[0])
    default = torch.tensor([0.2, -0.2])
    expected = torch.cat((env.rt.views.qpos[:, 7:] - default, env.rt.views.qvel[:, 6:]), 1)
    assert torch.equal(state.obs["policy"], expected)
    env.close()


def test_scale_needs_one_entry_a_column(tmp_path):
    terms = groups(r=obs_term(ramp, scale=(1.0, 2.0)))
    with pytest.raises(ConfigError, match=r"policy/r: scale has 2 entries, the term has 3 columns"):
        build(probe_cfg(tmp_path, observations=terms))


# --- groups that lie in one memory ----------------------------------------------------------------


def family(tmp_path):
    """The walker with relatives of its clean critic: the same terms with all that may follow."""
    cfg = walker_cfg(tmp_path)
    clean = dict(cfg.observations["critic"].terms)
    first = dict(list(clean.items())[:1])
    noisy = {name: dataclasses.replace(t, noise=NOISE, scale=2.0) for name, t in clean.items()}
    relatives = {
        "equal": ObservationGroupCfg(terms=clean),
        "first": ObservationGroupCfg(terms=first),
        "noisy": ObservationGroupCfg(terms=noisy, corrupt=True),
        "flat": ObservationGroupCfg(terms=clean, history=3),
        "stack": ObservationGroupCfg(terms=clean, history=2, flatten=False),
        "late": ObservationGroupCfg(terms=clean, delay=(0, 2)),
        "late_noisy": ObservationGroupCfg(terms=noisy, corrupt=True, history=2, delay=1),
    }
    return dataclasses.replace(cfg, observations={**cfg.observations, **relatives})


def seen_in(cfg, names):
    """Both boundaries of 40 steps with ends, a fault and masked resets, in a few groups."""
    chosen = {name: cfg.observations[name] for name in names}
    env = started(dataclasses.replace(cfg, observations=chosen, episode_length_s=0.22), 5)
    seen = []
    for step, action in enumerate(random_actions(env, 40)):
        if step == 7:
            env.backend.batch.state[3, env.index.qpos_offset + 2] = float("nan")
        state = env.step(action)
        seen.append({f"final/{name}": obs.clone() for name, obs in state.final_obs.items()})
        if step % 9 == 4:
            env.reset(mask=torch.arange(5) % 2 == 1)
        seen[-1] |= {name: obs.clone() for name, obs in state.obs.items()}
    env.close()
    return seen


def test_a_group_is_the_same_alone_and_beside_its_relatives(tmp_path):
    cfg = family(tmp_path)
    names = list(cfg.observations)
    together = seen_in(cfg, names)
    for name in names[2:]:
        alone = seen_in(cfg, ["policy", "critic", name])
        for one, many in zip(alone, together, strict=True):
            for key in (name, f"final/{name}"):
                assert torch.equal(one[key], many[key]), key
    backwards = seen_in(cfg, names[::-1])
    for one, many in zip(backwards, together, strict=True):
        assert all(torch.equal(value, many[key]) for key, value in one.items())


def test_relatives_agree_and_share_no_number(tmp_path):
    env = started(family(tmp_path), 5)
    for action in random_actions(env, 60):
        env.step(action)
        for groups_ in (env.state.obs, env.state.final_obs):
            critic = groups_["critic"]
            assert torch.equal(groups_["equal"], critic)
            assert torch.equal(groups_["first"], critic[:, : groups_["first"].shape[1]])
            assert torch.equal(groups_["stack"][:, -1], critic)
            newest = [info.newest for info in env.rt.observations.layout("flat")]
            assert torch.equal(torch.cat([groups_["flat"][:, s] for s in newest], 1), critic)
    for number, obs in enumerate(env.state.obs.values()):
        obs.fill_(float(number))  # only its own columns
    assert all((obs == n).all() for n, obs in enumerate(env.state.obs.values()))
    env.close()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_copies_on_the_cpu_are_the_concatenation_of_cuda(count):
    """Scalars, vectors, blocks, flags, integers and doubles, in any layout, into strided rows."""
    generator = torch.Generator().manual_seed(0)
    values = [
        torch.randn(count, generator=generator),
        torch.randn(3, count, generator=generator).t(),
        torch.randn(count, 2, 2, generator=generator),
        torch.randn(count, 4, generator=generator) > 0,
        torch.arange(count),
        torch.randn(count, 1, generator=generator, dtype=torch.float64),
        torch.randn(1, 2, generator=generator).expand(count, 2),
    ]
    outs = [torch.zeros(count, 20)[:, 1:17] for _ in range(2)]
    for gather in (Copies(outs[0]), Concatenation(outs[1])):
        gather(values)
        gather(values)
    assert torch.equal(*outs)
    assert outs[0][:, 0].equal(values[0]) and outs[0][:, 4:8].equal(values[2].flatten(1))

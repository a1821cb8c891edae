"""Terms: what binds, what is refused, and with which words."""

import pytest
import torch
from helpers.probe import (
    build,
    context,
    obs_term,
    one,
    probe_cfg,
    step_counter,
    tiny_index,
    walker_cfg,
)

from unilab_gym.config import (
    MetricTermCfg,
    ObservationGroupCfg,
    RewardTermCfg,
    TermCfg,
    TerminationTermCfg,
)
from unilab_gym.errors import ConfigError, UndeclaredRead
from unilab_gym.mdp import observations
from unilab_gym.runtime.reads import EpisodeStep, JointPos, JointVel, RootLinVelW
from unilab_gym.runtime.term import (
    Term,
    bind_term,
    full_params,
    resets_of,
    term,
    term_spec,
    term_width,
)


@term(reads=lambda p: (JointPos(p["joints"]),), width=lambda p, index: len(p["joints"]))
def positions(frame, *, joints, factor=2.0):
    return frame[JointPos(joints)] * factor


@term(reads=(EpisodeStep(),), width=2)
class Stateful(Term):
    def __init__(self, ctx, *, start=1.0):
        super().__init__(ctx)
        self.value = ctx.zeros(2) + start

    def __call__(self, frame):
        return self.value

    def reset(self, mask):
        self.value.masked_fill_(mask.unsqueeze(1), 0.0)


@term(reads=(EpisodeStep(),))
def peeks(frame):
    return frame[JointVel()][:, 0]


@term(reads=(EpisodeStep(),), width=3)
def too_narrow(frame):
    return frame[EpisodeStep()].unsqueeze(1)


@term(reads=(EpisodeStep(),))
def column(frame):
    return frame[EpisodeStep()].unsqueeze(1).float()


@term(reads=(EpisodeStep(),))
def shortened(frame):
    return frame[EpisodeStep()][:1].float()


@term(reads=JointPos())
def forgotten_comma(frame):
    return frame[JointPos()][:, 0]


@term(reads=(RootLinVelW(),))
def flat_view(frame):
    return frame[RootLinVelW()].view(-1)[:3]


@term(reads=(RootLinVelW(), JointVel()))
def misfit(frame):
    return (frame[JointVel()] - frame[RootLinVelW()]).sum(-1)


@term(reads=(EpisodeStep(),))
def unwritten(frame):
    raise NotImplementedError("later")


def undecorated(frame):
    return frame


def test_a_function_is_bound_with_its_parameters():
    ctx = context(2)
    bound = bind_term(ctx, "observations", "q", TermCfg(func=positions, params={"joints": ["toe"]}))
    assert (bound.name, bound.width, bound.scalar) == ("observations/q", 1, False)
    assert bound.params == {"joints": ("toe",), "factor": 2.0}
    assert bound.reads == (JointPos(("toe",)),)
    item = JointPos(("toe",)).resolve(tiny_index())
    ctx.frame.bind({item: torch.tensor([[1.5], [2.0]])})
    assert bound().tolist() == [[3.0], [4.0]]


def test_a_class_is_built_once_and_reset_where_the_mask_is_true():
    bound = bind_term(context(3), "metrics", "s", TermCfg(func=Stateful, params={"start": 4.0}))
    assert bound().tolist() == [[4.0, 4.0]] * 3
    (reset,) = resets_of([bound])
    reset(torch.tensor([True, False, True]))
    assert bound().tolist() == [[0.0, 0.0], [4.0, 4.0], [0.0, 0.0]]
    plain = bind_term(context(3), "rewards", "o", TermCfg(func=one))
    assert plain.reset is None and resets_of([plain]) == []  # a function has no state


def test_width_needs_no_environment():
    assert term_width(positions, {"joints": ("hip", "toe")}, tiny_index()) == 2
    assert term_width(one, {}, tiny_index()) == 1
    assert term_width(Stateful, {}, tiny_index()) == 2
    assert term_spec(one).reads({}) == (EpisodeStep(),)


def test_parameters_are_given_ones_over_defaults():
    assert full_params(positions, {"joints": ("hip",)}) == {"joints": ("hip",), "factor": 2.0}
    with pytest.raises(ConfigError, match=r"has no parameter 'factr'; did you mean 'factor'"):
        full_params(positions, {"factr": 1.0})
    with pytest.raises(ConfigError, match=r"test_term:positions needs the parameters joints"):
        full_params(positions, {})


@pytest.mark.parametrize(
    ("func", "params", "message"),
    [
        (undecorated, {}, r"rewards/x: .*:undecorated is not a term: decorate it with @term"),
        (one, {"scale": 1.0}, r"rewards/x: .*:one has no parameter 'scale'"),
        (forgotten_comma, {}, r"rewards/x: reads must be a tuple of reads, got JointPos"),
        (positions, {"joints": ("tow",)}, r"rewards/x: no joint matches 'tow'; did you mean 'toe'"),
    ],
)
def test_what_does_not_bind_is_named(func, params, message):
    with pytest.raises(ConfigError, match=message):
        bind_term(context(), "rewards", "x", TermCfg(func=func, params=params))


# --- checked while the environment is built -------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rewards": {"x": RewardTermCfg(func=column, weight=1.0)}},
            r"rewards/x: returns \(3, 1\), declares \[N\], N = 3",
        ),
        (
            {"rewards": {"x": RewardTermCfg(func=shortened, weight=1.0)}},
            r"rewards/x: returns \(1,\), declares \[N\], N = 3",
        ),
        (
            {"rewards": {"x": RewardTermCfg(func=step_counter, weight=1.0)}},
            r"rewards/x: a reward is one number per environment, width=\(\)",
        ),
        (
            {"terminations": {"x": TerminationTermCfg(func=one)}},
            r"terminations/x: returns torch.float32, expected torch.bool",
        ),
        (
            {"terminations": {"x": TerminationTermCfg(func=step_counter)}},
            r"terminations/x: a termination is one flag",
        ),
        (
            {"metrics": {"x": MetricTermCfg(func=step_counter)}},
            r"metrics/x: a metric is one number",
        ),
        (
            {"metrics": {"x": MetricTermCfg(func=column)}},
            r"metrics/x: returns \(3, 1\), declares \[N\], N = 3",
        ),
        (
            {"observations": {"policy": ObservationGroupCfg(terms={"x": obs_term(too_narrow)})}},
            r"observations/policy/x: returns \(3, 1\), declares \[N, 3\], N = 3",
        ),
        (
            {"observations": {"policy": ObservationGroupCfg(terms={})}},
            r"observations/policy: a group needs at least one term",
        ),
    ],
)
def test_shapes_and_kinds_are_checked_when_built(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        build(probe_cfg(tmp_path, **changes), 3)


def test_an_undeclared_read_is_found_when_built(tmp_path):
    cfg = probe_cfg(tmp_path, rewards={"x": RewardTermCfg(func=peeks, weight=1.0)})
    with pytest.raises(UndeclaredRead, match=r"rewards/x reads JointVel.*only: EpisodeStep\(\)"):
        build(cfg)


def test_a_wrong_width_parameter_is_found_when_built(tmp_path):
    terms = {"c": obs_term(observations.command, params={"command": "twist", "width": 4})}
    groups = {"policy": ObservationGroupCfg(terms=terms)}
    with pytest.raises(ConfigError, match=r"policy/c: returns \(2, 3\), declares \[N, 4\]"):
        build(walker_cfg(tmp_path, observations=groups), 2)


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (flat_view, r"rewards/x: RuntimeError: view size is not compatible.*reshape"),
        (misfit, r"rewards/x: RuntimeError: The size of tensor a \(2\) must match"),
    ],
)
def test_what_torch_refuses_names_the_term(tmp_path, func, message):
    """Short reads lie as columns: they cannot be viewed as one run of numbers."""
    with pytest.raises(ConfigError, match=message):
        build(walker_cfg(tmp_path, rewards={"x": RewardTermCfg(func=func, weight=1.0)}), 3)


def test_other_errors_of_the_runtime_stay_what_they_are(tmp_path):
    changes = {"rewards": {"x": RewardTermCfg(func=unwritten, weight=1.0)}}
    with pytest.raises(NotImplementedError, match="later"):
        build(probe_cfg(tmp_path, **changes), 3)


def test_a_single_environment_keeps_its_axis(tmp_path):
    env = build(probe_cfg(tmp_path), 1)
    env.reset()
    state = env.step(torch.zeros(1, 1))
    assert state.obs["policy"].tolist() == [[1.0]]
    assert state.reward.shape == state.terminated.shape == (1,)
    env.close()

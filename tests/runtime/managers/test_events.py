"""Events: from the nominal value, per row, staged for the next physics and dropped by a reset."""

import itertools

import pytest
import torch
from helpers.probe import build, probe_cfg, random_actions, started, walker_cfg, zero_action

from unilab_gym.config import EventTermCfg
from unilab_gym.errors import ConfigError, UnsupportedCapabilityError
from unilab_gym.mdp import events
from unilab_gym.runtime.event_term import IntervalEvent, ResetEvent, StartupEvent
from unilab_gym.runtime.rng import seed_keys


class Kick(IntervalEvent):
    """Adds exactly 1 rad/s to the hinge."""

    dofs = (0,)

    def __init__(self, ctx, *, parts=("qvel_delta",)):
        self.parts = parts

    def apply(self, payload, due):
        payload.qvel_delta[:, 0].copy_(due)


class Nudge(ResetEvent):
    """Adds 0.5 rad to what the payload holds."""

    def __init__(self, ctx):
        pass

    def apply(self, payload):
        payload.qpos[:, 0] += 0.5


class SaysItAssigns(Nudge):
    assigns = True


class AddFriction(StartupEvent):
    """Adds 1 to what is there: twice applied it would be 2."""

    fields = ("geom_friction",)

    def __init__(self, ctx):
        pass

    def apply(self, fields):
        fields["geom_friction"][..., 0] += 1.0


class Colour(StartupEvent):
    fields = ("geom_rgba",)

    def __init__(self, ctx):
        pass


class HingeAt(ResetEvent):
    def __init__(self, ctx, *, low, high):
        self.draw = ctx.uniform(1, "reset", low, high)

    def apply(self, payload):
        payload.qpos[:, 0].copy_(self.draw()[:, 0])


def kick(interval_s=(1.0, 1.0), **params):
    return EventTermCfg(func=Kick, mode="interval", interval_s=interval_s, params=params)


def kicks(env, steps, resets=None):
    """Steps at whose boundary a kick is staged, per row."""
    staged = [[] for _ in range(env.num_envs)]
    for step in range(1, steps + 1):
        env.step(zero_action(env))
        for row in env.rt.events.interval.qvel_delta[:, 0].nonzero().flatten().tolist():
            staged[row].append(step)
        if resets and step in resets:
            env.reset(mask=resets[step])
    return staged


# --- interval -------------------------------------------------------------------------------------


def test_a_push_is_staged_and_applied_before_the_next_physics(tmp_path):
    cfg = dict(events={"kick": kick((0.06, 0.06))}, terminations={})
    env, control = (
        started(probe_cfg(tmp_path, **cfg)),
        started(probe_cfg(tmp_path, terminations={})),
    )
    for _ in range(3):  # staged at the boundary of step 3: the state is untouched there
        env.step(zero_action(env))
        control.step(zero_action(control))
        assert torch.equal(env.rt.views.qvel, control.rt.views.qvel)
    assert env.rt.events.interval.qvel_delta.tolist() == [[1.0]] * 4
    control.backend.batch.bind("qvel")[:] += 1.0
    env.step(zero_action(env))
    control.step(zero_action(control))
    assert torch.equal(env.rt.views.qvel, control.rt.views.qvel)
    assert env.rt.events.interval.qvel_delta.tolist() == [[0.0]] * 4  # once
    env.close()
    control.close()


def test_the_interval_counts_from_each_rows_reset(tmp_path):
    """E20 (c): push every 1.0 s, a reset at 0.7 s: the next one is 1.0 s after the reset."""
    env = started(probe_cfg(tmp_path, events={"kick": kick()}, terminations={}), 3)
    staged = kicks(env, 120, {35: torch.tensor([True, False, False])})
    assert staged == [[85], [50, 100], [50, 100]]
    env.close()


def test_random_intervals_stay_in_their_range(tmp_path):
    env = started(probe_cfg(tmp_path, events={"kick": kick((0.1, 0.16))}, terminations={}), 8)
    gaps = []
    for steps in kicks(env, 100):
        gaps += [b - a for a, b in itertools.pairwise([0, *steps])]
    assert set(gaps) == {5, 6, 7, 8}
    env.close()


def test_what_is_staged_for_a_row_that_resets_is_dropped(tmp_path):
    env = started(probe_cfg(tmp_path, events={"kick": kick((0.06, 0.06))}, terminations={}), 3)
    mask = torch.tensor([False, True, False])
    assert kicks(env, 3, {3: mask}) == [[3], [3], [3]]
    assert env.rt.events.interval.qvel_delta.flatten().tolist() == [1.0, 0.0, 1.0]
    assert kicks(env, 3) == [[3], [3], [3]]
    env.close()


def test_a_reset_within_the_step_drops_it_too(tmp_path):
    cfg = probe_cfg(tmp_path, events={"kick": kick((0.06, 0.06))}, episode_length_s=0.06)
    env = started(cfg)
    for _ in range(7):
        env.step(zero_action(env))
        assert not env.rt.events.interval.qvel_delta.any()
    env.close()


def test_two_events_cannot_push_one_column(tmp_path):
    cfg = probe_cfg(tmp_path, events={"kick": kick(), "shove": kick()})
    with pytest.raises(ConfigError, match=r"events/shove: velocity column 0 is pushed by 'kick'"):
        build(cfg)


# --- step, and intervals of all rows together -----------------------------------------------------


def test_a_step_event_is_staged_at_every_boundary_and_dropped_by_a_reset(tmp_path):
    always = EventTermCfg(func=Kick, mode="step")
    env = started(probe_cfg(tmp_path, events={"kick": always}, episode_length_s=0.06), 2)
    env.rt.episode_step.copy_(torch.tensor([0, 1]))
    staged = kicks(env, 6)
    assert staged == [[1, 2, 4, 5], [1, 3, 4, 6]]  # not where that row's episode ended
    env.close()


def test_a_global_interval_is_due_in_all_rows_at_once_whatever_resets(tmp_path):
    every = EventTermCfg(func=Kick, mode="interval", interval_s=(0.1, 0.4), global_interval=True)
    env = started(probe_cfg(tmp_path, events={"kick": every}, terminations={}), 3)
    staged = kicks(env, 200, {35: torch.tensor([True, False, False])})
    assert staged[0] == staged[1] == staged[2]
    gaps = {b - a for a, b in itertools.pairwise([0, *staged[0]])}
    assert gaps <= set(range(5, 21))
    assert len(gaps) > 4
    env.close()


def test_a_global_interval_restarts_where_every_row_resets(tmp_path):
    every = EventTermCfg(func=Kick, mode="interval", interval_s=(0.2, 0.2), global_interval=True)
    env = started(probe_cfg(tmp_path, events={"kick": every}, terminations={}), 2)
    assert kicks(env, 25, {4: torch.tensor([True, True])}) == [[14, 24], [14, 24]]
    env.close()


# --- reset ----------------------------------------------------------------------------------------


def test_an_event_that_adds_starts_from_the_default_each_time(tmp_path):
    """E08: 200 resets, the first as the last."""
    cfg = probe_cfg(tmp_path, events={"nudge": EventTermCfg(func=Nudge, mode="reset")})
    env = started(cfg)
    for _ in range(200):
        env.reset()
        assert torch.equal(env.rt.views.qpos, torch.full((4, 1), 0.1) + 0.5)
    env.close()


def test_events_that_assign_cost_no_copy_and_are_held_to_it(tmp_path):
    env = started(walker_cfg(tmp_path))
    assert not env.rt.events.restores
    env.close()
    false = EventTermCfg(func=SaysItAssigns, mode="reset")
    with pytest.raises(ConfigError, match=r"events/nudge: .*SaysItAssigns says `assigns = True`"):
        build(probe_cfg(tmp_path, events={"nudge": false}))


def test_a_reset_too_soon_after_the_last_application_leaves_the_default(tmp_path):
    cfg = probe_cfg(
        tmp_path,
        events={"n": EventTermCfg(func=Nudge, mode="reset", min_steps_between=10)},
        terminations={},
    )
    env = started(cfg, 2)
    first = torch.tensor([True, False])

    def after(steps, mask):
        for _ in range(steps):
            env.step(zero_action(env))
        env.reset(mask=mask)
        return [round(x, 3) for x in env.rt.views.qpos[mask, 0].tolist()]

    assert env.rt.views.qpos.flatten().tolist() == pytest.approx([0.6, 0.6])
    assert after(9, first) == [0.1]  # 9 steps since
    assert after(1, first) == [0.6]  # 10: applied, counts anew
    assert after(9, torch.tensor([True, True])) == [0.1, 0.6]  # 9 and 19
    env.reset(keys=seed_keys(3, 2))  # a new seed: as if it were never applied
    assert env.rt.views.qpos.flatten().tolist() == pytest.approx([0.6, 0.6])
    env.close()


def test_a_reset_event_writes_the_masked_rows(tmp_path):
    place = EventTermCfg(func=HingeAt, mode="reset", params={"low": -1.0, "high": 1.0})
    env = build(probe_cfg(tmp_path, events={"place": place}), 64)
    env.reset()
    first = env.rt.views.qpos.clone()
    assert first.amin() < -0.9 < 0.9 < first.amax()
    assert first.unique().numel() == 64
    env.step(zero_action(env))
    before = env.rt.views.qpos.clone()
    mask = torch.arange(64) % 3 == 0
    env.reset(mask=mask)
    after = env.rt.views.qpos
    assert torch.equal(after[~mask], before[~mask])
    assert not (after[mask] == first[mask]).any()  # the next episode's draw
    env.close()


def test_without_events_a_reset_is_the_keyframe(tmp_path):
    env = started(probe_cfg(tmp_path))
    assert env.rt.views.qpos.flatten().tolist() == pytest.approx([0.1] * 4)
    assert not env.rt.views.qvel.any()
    env.close()


# --- startup --------------------------------------------------------------------------------------


def friction(env):
    return env.backend.get_model_field("geom_friction")[:, 0, 0]


def test_startup_is_drawn_at_the_first_reset_from_the_nominal_value(tmp_path):
    add = EventTermCfg(func=AddFriction, mode="startup")
    env = build(probe_cfg(tmp_path, events={"add": add}))
    assert friction(env).tolist() == [1.0] * 4
    env.reset()
    assert friction(env).tolist() == [2.0] * 4
    for keys in (None, seed_keys(1, 4), seed_keys(2, 4)):
        env.reset(keys=keys)
        assert friction(env).tolist() == [2.0] * 4  # never added to itself
    env.close()


def test_only_a_seed_draws_startup_anew_and_only_in_its_rows(tmp_path):
    slide = EventTermCfg(
        func=events.RandomizeFriction,
        mode="startup",
        params={"geoms": ("link",), "slide": (0.5, 1.5)},
    )
    env = started(probe_cfg(tmp_path, events={"slide": slide}), 6)
    first = friction(env).clone()
    assert first.unique().numel() == 6
    env.reset()
    env.step(zero_action(env))
    assert torch.equal(friction(env), first)
    fresh = seed_keys(5, 6)
    keys = [None, fresh[1], None, fresh[3], fresh[4], None]
    env.reset(keys=keys, mask=torch.tensor([True, True, True, True, False, False]))
    changed = friction(env) != first
    assert changed.tolist() == [False, True, False, True, False, False]
    env.reset(keys=fresh)
    again = friction(env).clone()
    assert (again != first).all()
    env.reset(keys=seed_keys(9, 6))
    env.reset(keys=fresh)
    assert torch.equal(friction(env), again)
    env.close()


def test_a_partial_first_reset_leaves_the_others_for_later(tmp_path):
    add = EventTermCfg(func=AddFriction, mode="startup")
    env = build(probe_cfg(tmp_path, events={"add": add}), 3)
    env.reset(mask=torch.tensor([True, False, False]))
    assert friction(env).tolist() == [2.0, 1.0, 1.0]
    env.reset(mask=torch.tensor([False, True, False]))
    assert friction(env).tolist() == [2.0, 2.0, 1.0]
    env.reset()
    assert friction(env).tolist() == [2.0, 2.0, 2.0]
    env.close()


def test_seeded_runs_repeat_whatever_came_before(tmp_path):
    """E23: reset(42), reset(7), reset(42): the first and the third are one run."""
    env = build(walker_cfg(tmp_path), 4, seed=3)
    runs = []
    for seed in (42, 7, 42):
        env.reset(keys=seed_keys(seed, 4))
        parts = [env.backend.get_model_field(name) for name in ("body_mass", "geom_friction")]
        parts += [env.step(a).obs["policy"].clone() for a in random_actions(env, 40)]
        runs.append(torch.cat([part.flatten() for part in parts]))
    assert torch.equal(runs[0], runs[2])
    assert not torch.equal(runs[0], runs[1])
    env.close()


@pytest.mark.parametrize("seed", [7, 8])
def test_a_constructor_seed_fixes_startup_and_starts(tmp_path, seed):
    """E23 within one process: equal seeds are equal, other ones differ in every row."""
    states = []
    for one in (7, seed):
        env = started(walker_cfg(tmp_path), 4, seed=one)
        states.append(torch.cat((env.backend.get_model_field("body_mass"), env.rt.views.qpos), 1))
        env.close()
    equal = (states[0] == states[1]).all(1)
    assert equal.tolist() == [seed == 7] * 4


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "kind", "message"),
    [
        (EventTermCfg(func=Colour, mode="startup"), UnsupportedCapabilityError,
         r"backend 'mujoco' cannot randomize model field 'geom_rgba'"),
        (kick(parts=("xfrc",)), UnsupportedCapabilityError,
         r"events/e: backend 'mujoco' cannot apply 'xfrc', it applies \('qvel_delta', "),
        (EventTermCfg(func=Kick, mode="reset"), ConfigError,
         r"events/e: mode 'reset' takes a ResetEvent or ModelEvent class, got .*Kick"),
        (EventTermCfg(func=HingeAt, mode="startup"), ConfigError,
         r"events/e: mode 'startup' takes a ModelEvent class"),
        (EventTermCfg(func=HingeAt, mode="reset", params={"low": 0.0}), ConfigError,
         r"events/e: .*HingeAt needs the parameters high"),
        (EventTermCfg(func=events.PushRoot, mode="interval", interval_s=(1, 2),
                      params={"lin_vel_xy": (0, 1)}), ConfigError,
         r"events/e: PushRoot needs a floating base"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused(tmp_path, event, kind, message):
    with pytest.raises(kind, match=message):
        build(probe_cfg(tmp_path, events={"e": event}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "intervall"}, r"mode: 'intervall'; did you mean 'interval'"),
        ({"mode": "interval"}, "interval_s goes with mode 'interval' only"),
        ({"mode": "reset", "interval_s": (1, 2)}, "interval_s goes with mode 'interval' only"),
        ({"mode": "interval", "interval_s": (2, 1)}, r"interval_s must be 0 < low <= high"),
        ({"mode": "step", "global_interval": True}, "global_interval goes with mode 'interval'"),
        ({"mode": "step", "min_steps_between": 3}, "min_steps_between goes with mode 'reset' only"),
        ({"mode": "reset", "min_steps_between": -1}, "min_steps_between must not be negative"),
    ],
)
def test_modes_and_intervals_are_checked(fields, message):
    with pytest.raises(ConfigError, match=message):
        EventTermCfg(func=Kick, **fields)

"""Commands: resampled at exact steps of each row's episode, held and released row by row."""

import itertools

import pytest
import torch
from helpers.probe import (
    build,
    context,
    obs_term,
    probe_cfg,
    random_actions,
    ready,
    started,
    twist_command,
    walker_cfg,
    zero_action,
)
from helpers.walk import same_bits

from unilab_gym.config import CommandTermCfg, ObservationGroupCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import biped, commands, observations
from unilab_gym.runtime.command_term import CommandTerm
from unilab_gym.runtime.managers.commands import CommandManager
from unilab_gym.runtime.reads import BodyPos, Command, DerivedRead, EpisodeStep
from unilab_gym.runtime.term import term

TWIST = {"c": obs_term(observations.command, params={"command": "twist", "width": 3})}


def commanded(tmp_path, period=(1.0, 1.0), **changes):
    """PROBE that observes a velocity command."""
    return probe_cfg(
        tmp_path,
        commands={"twist": twist_command(period)},
        observations={"policy": ObservationGroupCfg(terms=TWIST)},
        **changes,
    )


def changes_of(env, steps, resets=()):
    """Steps in which each row's command changed, and the values."""
    value = env.commands.terms["twist"].value
    changed = [[] for _ in range(env.num_envs)]
    for step in range(1, steps + 1):
        before = value.clone()
        env.step(zero_action(env))
        for row in (value != before).any(1).nonzero().flatten().tolist():
            changed[row].append(step)
        if step in resets:
            env.reset(mask=resets[step])
    return changed


def test_resampled_at_the_period_counted_from_each_rows_reset(tmp_path):
    """E20 (b): 1.0 s at 0.02 s are 50 steps, from that row's reset on."""
    env = started(commanded(tmp_path, terminations={}), 3)
    changed = changes_of(env, 170, {35: torch.tensor([False, True, False])})
    assert changed == [[50, 100, 150], [85, 135], [50, 100, 150]]
    env.close()


def test_random_periods_stay_in_their_range_and_differ(tmp_path):
    env = started(commanded(tmp_path, (0.1, 0.2), terminations={}), 8)
    gaps = []
    for steps in changes_of(env, 100):
        gaps += [b - a for a, b in itertools.pairwise([0, *steps])]
    assert set(gaps) == {5, 6, 7, 8, 9, 10}
    env.close()


def test_observed_command_is_that_of_the_coming_step(tmp_path):
    """A step's reward uses the command that the policy saw; the observation shows the next."""
    env = started(commanded(tmp_path, (0.04, 0.04), terminations={}), 2)
    first = env.state.obs["policy"].clone()
    assert torch.equal(env.step(zero_action(env)).obs["policy"], first)
    second = env.step(zero_action(env)).obs["policy"]
    assert not torch.equal(second, first)
    assert torch.equal(second, env.commands.terms["twist"].value)
    env.close()


@pytest.mark.parametrize("params", [{}, {"heading": (-3.0, 3.0), "heading_fraction": 0.5}])
def test_automatic_and_manual_resets_draw_the_same(tmp_path, params):
    """E20 (a): commands, timers, observations of 300 steps, bit by bit."""
    twist = {"twist": twist_command(**params)}
    cfg = walker_cfg(tmp_path, episode_length_s=0.5, commands=twist)
    auto, manual = started(cfg, 5), started(cfg, 5)
    timers = [env.commands.terms["twist"]._timer.left for env in (auto, manual)]
    ended = 0
    for action in random_actions(auto, 300):
        auto.step(action)
        state = manual.step(action, autoreset=False)
        done = manual.rt.terminations.done.clone()
        ended += int(done.sum())
        manual.reset(mask=done)
        assert torch.equal(timers[0], timers[1])
        for group, obs in auto.state.obs.items():
            assert torch.equal(obs, state.obs[group])
    assert ended > 50
    assert torch.equal(auto.backend.get_state(), manual.backend.get_state())
    auto.close()
    manual.close()


def test_a_change_of_command_does_not_touch_the_physics(tmp_path):
    """E20 (d)."""
    moving = started(walker_cfg(tmp_path, terminations={}), 4)
    seldom = {"twist": twist_command((99.0, 99.0))}
    still = started(walker_cfg(tmp_path, terminations={}, commands=seldom), 4)
    fixed = still.commands.terms["twist"].value.clone()
    for action in random_actions(moving, 50):
        moving.step(action)
        still.step(action)
    assert torch.equal(still.commands.terms["twist"].value, fixed)
    assert (moving.commands.terms["twist"].value != fixed).all(1).all()
    assert torch.equal(moving.backend.get_state(), still.backend.get_state())
    moving.close()
    still.close()


# --- hold and release -----------------------------------------------------------------------------


def values_of(env, actions):
    result = []
    for action in actions:
        env.step(action)
        result.append(env.commands.terms["twist"].value.clone())
    return torch.stack(result)


def test_holding_nothing_changes_nothing(tmp_path, monkeypatch):
    cfg = commanded(tmp_path, (0.1, 0.3))
    plain, idle = started(cfg), started(cfg)
    idle.commands.hold("twist", [1.0, 2.0, 3.0], torch.zeros(4, dtype=torch.bool))
    actions = random_actions(plain, 120)
    wanted = values_of(plain, actions)
    assert torch.equal(values_of(idle, actions), wanted)
    monkeypatch.setattr(CommandManager, "_pin", lambda self, name: None)
    without = started(cfg)
    assert torch.equal(values_of(without, actions), wanted)
    for env in (plain, idle, without):
        env.close()


def test_a_held_row_keeps_its_value_across_resampling_and_resets(tmp_path):
    cfg = commanded(tmp_path, (0.1, 0.3), episode_length_s=0.4)
    env, control = started(cfg), started(cfg)
    row = torch.tensor([False, True, False, False])
    env.commands.hold("twist", [1.0, 2.0, 3.0], row)
    actions = random_actions(env, 60)
    held, wanted = values_of(env, actions), values_of(control, actions)
    assert (held[:, 1] == torch.tensor([1.0, 2.0, 3.0])).all()
    assert torch.equal(held[:, ~row], wanted[:, ~row])
    assert torch.equal(env.state.obs["policy"][1], torch.tensor([1.0, 2.0, 3.0]))
    env.close()
    control.close()


def test_a_released_row_samples_again_at_its_next_resampling(tmp_path):
    cfg = commanded(tmp_path, (0.2, 0.2), terminations={})
    env, control = started(cfg), started(cfg)
    rows = torch.tensor([True, True, False, False])
    env.commands.hold("twist", [9.0, 9.0, 9.0], rows)
    actions = random_actions(env, 24)
    values_of(env, actions[:4])
    values_of(control, actions[:4])
    env.commands.release("twist", torch.tensor([True, False, False, False]))
    held, wanted = values_of(env, actions[4:]), values_of(control, actions[4:])
    assert (held[:5, 0] == 9.0).all()  # until step 10
    assert torch.equal(held[5:, 0], wanted[5:, 0])
    assert (held[:, 1] == 9.0).all()
    env.commands.release("twist")
    held, wanted = values_of(env, actions[:6]), values_of(control, actions[:6])
    assert (held[:5, 1] == 9.0).all()
    assert torch.equal(held[5], wanted[5])
    env.close()
    control.close()


def test_hold_takes_one_value_or_one_a_row_and_says_what_does_not_fit():
    ctx = context(2)
    manager = CommandManager(ctx, {"twist": twist_command()})
    ready(ctx)
    rows = torch.arange(6.0).reshape(2, 3)
    manager.hold("twist", rows)
    assert torch.equal(manager.terms["twist"].value, rows)
    manager.hold("twist", torch.tensor([7.0, 8.0, 9.0]), torch.tensor([False, True]))
    assert manager.terms["twist"].value.tolist() == [[0.0, 1.0, 2.0], [7.0, 8.0, 9.0]]
    with pytest.raises(ConfigError, match=r"'twist' has shape \(2, 3\) or \(3,\), got \(2,\)"):
        manager.hold("twist", [1.0, 2.0])
    with pytest.raises(ConfigError, match=r"no command 'twits'; did you mean 'twist'"):
        manager.hold("twits", [1.0, 2.0, 3.0])
    with pytest.raises(ConfigError, match=r"no command 'x'; available: twist"):
        manager.release("x")


# --- what generators may do -----------------------------------------------------------------------


@term(reads=lambda p: (Command(p["follow"]), EpisodeStep()), width=1)
class Follower(CommandTerm):
    """Twice the first component of another command."""

    def __init__(self, ctx, *, follow):
        super().__init__(ctx)
        self.follow = follow
        self.value = ctx.zeros(1)
        self.parts = {"first": self.value[:, 0]}

    def reset(self, mask, frame):
        self.update(frame)

    def update(self, frame):
        self.value.copy_(frame[Command(self.follow)][:, :1] * 2.0)


class Halved(DerivedRead):
    """Half of the follower: derived from a command."""

    def requires(self, index):
        return (Command("b"),)

    def build(self, index, device):
        return lambda value: value * 0.5


@term(reads=(Halved(),), width=1)
def halved(frame):
    return frame[Halved()]


@term(reads=lambda p: (Halved(),), width=1)
class Watcher(CommandTerm):
    """Looks at the derived value while commands are still being reset."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.value = ctx.zeros(1)

    def reset(self, mask, frame):
        self.update(frame)

    def update(self, frame):
        self.value.copy_(frame[Halved()])


def test_a_later_command_reads_an_earlier_one_in_the_same_boundary(tmp_path):
    cmds = {
        "a": twist_command((0.06, 0.06)),
        "b": CommandTermCfg(func=Follower, params={"follow": "a"}),
    }
    terms = {"first": obs_term(observations.command, params={"command": "b", "width": 1})}
    groups = {"policy": ObservationGroupCfg(terms=terms)}
    env = build(probe_cfg(tmp_path, commands=cmds, observations=groups, episode_length_s=0.1))
    state = env.reset()
    for _ in range(12):
        assert torch.equal(state.obs["policy"], env.commands.terms["a"].value[:, :1] * 2.0)
        state = env.step(zero_action(env))
    env.close()


def test_a_value_derived_from_a_command_is_fresh_after_update_and_reset(tmp_path):
    """Cached while the commands were moving, it would show the old command."""
    cmds = {
        "watch": CommandTermCfg(func=Watcher),
        "a": twist_command((0.06, 0.06)),
        "b": CommandTermCfg(func=Follower, params={"follow": "a"}),
    }
    groups = {"policy": ObservationGroupCfg(terms={"h": obs_term(halved)})}
    env = build(probe_cfg(tmp_path, commands=cmds, observations=groups, episode_length_s=0.1))
    state = env.reset()
    for _ in range(12):
        assert torch.equal(state.obs["policy"], env.commands.terms["a"].value[:, :1])
        state = env.step(zero_action(env))
    env.close()


@term(reads=(BodyPos(("arm",)),), width=3)
class ArmTarget(CommandTerm):
    """Where the arm is when the episode begins."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.value = ctx.zeros(3)

    def reset(self, mask, frame):
        torch.where(mask.unsqueeze(1), frame[BodyPos(("arm",))][:, 0], self.value, out=self.value)

    def update(self, frame):
        pass


def test_what_a_command_reads_is_refreshed_after_a_reset(tmp_path):
    env = build(probe_cfg(tmp_path, commands={"arm": CommandTermCfg(func=ArmTarget)}))
    env.reset()  # no physics yet: only the refresh after the reset can have filled it
    torch.testing.assert_close(
        env.commands.terms["arm"].value, torch.tensor([[0.0, 0.0, 1.0]]).expand(4, 3)
    )
    env.close()


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ({"c": CommandTermCfg(func=halved)}, r"commands/c: .*halved.* is not a CommandTerm class"),
        ({"c": twist_command(standing=0.1)}, r"commands/c: .* has no parameter 'standing'"),
        ({"c": twist_command((0.0, 1.0))}, r"commands/c: .*period must be 0 < low <= high"),
        ({"c": twist_command(lin_vel_x=(1.0, 0.0))}, r"commands/c: lin_vel_x: low 1.0 exceeds"),
        (
            {"a": twist_command(), "b": CommandTermCfg(func=Follower, params={"follow": "aa"})},
            r"no manager provides .*'aa'.*did you mean .*'a'",
        ),
    ],
)
def test_what_does_not_build_is_named(tmp_path, commands, message):
    with pytest.raises(ConfigError, match=message):
        build(probe_cfg(tmp_path, commands=commands))


def test_a_masked_reset_right_after_a_hold_leaves_the_other_rows_alone(tmp_path):
    """A gait shows what it is at the boundary; a command that stands now shows at the next one."""
    gait = {"command": "twist", "frequency": 2.0, "stance_share": 0.6, "standing_norm": 0.1}
    terms = {
        "twist": twist_command(),
        "trot": CommandTermCfg(func=commands.TrotGait, params=gait),
        "clock": CommandTermCfg(
            func=biped.BipedGait, params={k: v for k, v in gait.items() if k != "stance_share"}
        ),
    }
    env = started(walker_cfg(tmp_path, commands=terms), 5)
    rows = torch.tensor([True, False, False, True, False])
    for number, action in enumerate(random_actions(env, 12)):
        env.step(action)
        env.commands.hold("twist", [0.0, 0.0, 0.0] if number % 2 else [0.5, 0.0, 0.0])
        before = env.get_state(~rows)
        env.reset(mask=rows)
        after = env.get_state(~rows)
        for name, value in after.items():
            if not name.startswith("env/final_obs"):  # of the boundary before: none any more
                assert same_bits(value, before[name]), name
        assert (env.rt.episode_step[rows] == 0).all()
    env.close()

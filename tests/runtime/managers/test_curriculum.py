"""Curricula: they move tensors on the device, at the step they say, and cost others nothing."""

import dataclasses

import pytest
import torch
from helpers.dispatch import dispatched, stalls
from helpers.probe import (
    CountCalls,
    build,
    context,
    counter,
    one,
    probe_cfg,
    random_actions,
    ready,
    started,
    twist_command,
    walker_cfg,
    zero_action,
)

from unilab_gym.config import (
    CurriculumTermCfg,
    EventTermCfg,
    RewardTermCfg,
    from_dict,
    to_dict,
)
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import curriculums, events
from unilab_gym.runtime.curriculum_term import CurriculumTerm, Range, RangedDraw
from unilab_gym.runtime.managers.curriculum import CurriculumManager
from unilab_gym.runtime.reads import JointPos, StepCount
from unilab_gym.runtime.term import term


def weights(*stages, reward="k"):
    params = {"reward": reward, "stages": stages}
    return CurriculumTermCfg(func=curriculums.RewardWeightStages, params=params)


def probe(tmp_path, curriculum, **changes):
    rewards = {
        "one": RewardTermCfg(func=one, weight=2.0),
        "k": RewardTermCfg(func=counter, weight=0.5),
    }
    changes = {"terminations": {}, "rewards": rewards, **changes}
    return probe_cfg(tmp_path, curriculum=curriculum, **changes)


def test_a_weight_that_goes_to_zero_at_step_ten_pays_nothing_from_step_ten_on(tmp_path):
    """E44: steps are counted from 1; the reward of step 10 is computed with the new weight."""
    env = started(probe(tmp_path, {"fade": weights((10, 0.0), (12, 4.0))}))
    paid, logged = [], []
    for _ in range(13):
        reward = env.step(zero_action(env)).reward
        torch.testing.assert_close(reward, env.rt.rewards.components.sum(1) * 0.02)
        paid.append(round(env.rt.rewards.components[0, 1].item(), 4))
        logged.append(env.log()["curriculum/fade"].item())
    assert paid == [0.5 * k for k in range(1, 10)] + [0.0, 0.0, 48.0, 52.0]
    assert logged == [0.5] * 9 + [0.0, 0.0, 4.0, 4.0]
    env.close()


def test_a_term_of_weight_zero_is_computed_only_if_a_curriculum_may_raise_it(tmp_path):
    later = {"later": RewardTermCfg(func=CountCalls, weight=0.0)}
    env = started(probe(tmp_path, {}, rewards=later))
    assert env.rt.rewards.names == ()
    env.close()
    env = started(probe(tmp_path, {"c": weights((2, 1.0), reward="later")}, rewards=later))
    rewards = [env.step(zero_action(env)).reward[0].item() for _ in range(3)]
    assert rewards == pytest.approx([0.0, 0.02, 0.02])
    env.close()


def test_resets_do_not_set_the_stage_back(tmp_path):
    env = started(probe(tmp_path, {"c": weights((0, 1.0), (3, 7.0))}))
    assert env.log()["curriculum/c"].item() == 1.0  # a stage at 0 holds from the start
    for step in range(1, 6):
        env.step(zero_action(env))
        env.reset()
        assert env.log()["curriculum/c"].item() == (7.0 if step >= 3 else 1.0)
    assert env.rt.curriculum.steps.item() == 5
    env.close()


def test_a_command_range_is_moved_for_draws_from_then_on(tmp_path):
    params = {"command": "twist", "parameter": "lin_vel_x", "stages": [(3, (5.0, 6.0))]}
    stages = CurriculumTermCfg(func=curriculums.CommandRangeStages, params=params)
    cfg = {"commands": {"twist": twist_command((0.04, 0.04))}}
    env = started(probe(tmp_path, {"faster": stages}, **cfg), 64)
    plain = started(probe(tmp_path, {}, **cfg), 64)
    value, other = (e.commands.terms["twist"].value for e in (env, plain))
    for step in range(1, 7):
        env.step(zero_action(env))
        plain.step(zero_action(plain))
        torch.testing.assert_close(value[:, 1:], other[:, 1:])  # other ranges, same numbers
        if step < 4:  # drawn at the end of step 2, at the latest
            torch.testing.assert_close(value[:, 0], other[:, 0])
        else:
            assert ((value[:, 0] >= 5.0) & (value[:, 0] <= 6.0)).all()
            torch.testing.assert_close(value[:, 0] - 5.5, other[:, 0] / 2)  # the same draw
    assert env.log()["curriculum/faster"].item() == 6.0
    env.close()
    plain.close()


def test_an_event_range_is_moved(tmp_path):
    params = {"event": "push", "parameter": "lin_vel_xy", "stages": [(2, (3.0, 3.0))]}
    stages = CurriculumTermCfg(func=curriculums.EventRangeStages, params=params)
    push = EventTermCfg(func=events.PushRoot, mode="step", params={"lin_vel_xy": (0.0, 0.0)})
    env = started(walker_cfg(tmp_path, curriculum={"c": stages}, events={"push": push}), 2)
    env.step(zero_action(env))
    assert not env.rt.events.interval.qvel_delta.any()
    env.step(zero_action(env))
    assert env.rt.events.interval.qvel_delta[:, :3].tolist() == [[3.0, 3.0, 0.0]] * 2
    env.close()


def test_every_range_of_the_root_is_moved_in_its_own_unit(tmp_path):
    """Positions and yaw, too; the draw underneath is that of an environment without curriculum."""
    given = {"xy": (1.0, 1.0), "yaw": (0.2, 0.2), "lin_vel": (0.3, 0.3), "ang_vel": (0.4, 0.4)}
    root = EventTermCfg(
        func=events.ResetRootUniform, mode="reset", params={"xy": (-0.5, 0.5), "yaw": (-1.0, 1.0)}
    )
    stages = {
        name: CurriculumTermCfg(
            func=curriculums.ParameterStages,
            params={"path": f"events/root/{name}", "stages": [(2, bounds)]},
        )
        for name, bounds in given.items()
    }
    env = started(walker_cfg(tmp_path, curriculum=stages, events={"root": root}), 32)
    plain = started(walker_cfg(tmp_path, events={"root": root}), 32)
    moved, usual = (e.rt.events.payload for e in (env, plain))
    torch.testing.assert_close(moved.state, usual.state)
    for _ in range(2):
        env.step(zero_action(env))
    env.reset()
    qpos, qvel = moved.qpos, moved.qvel
    torch.testing.assert_close(qpos[:, :2], torch.ones(32, 2))
    torch.testing.assert_close(2 * torch.atan2(qpos[:, 6], qpos[:, 3]), torch.full((32,), 0.2))
    assert qvel[:, :3].eq(0.3).all() and qvel[:, 3:6].eq(0.4).all()
    env.close()
    plain.close()


def test_a_moved_range_keeps_its_scale_and_its_offsets():
    ctx = context(64)
    ctx.adjustables.moved = frozenset({"events/e/place"})
    with ctx.owned("events/e"):
        ranges = [Range("place", -1.0, 1.0, 2, scale=0.5, offset=(10.0, 20.0)), Range("", 3.0, 3.0)]
        draw = RangedDraw(ctx, ranges, ("reset",))
    ctx.adjustables.target("events/e/place").copy_(torch.tensor([[4.0, 4.0], [8.0, 8.0]]))
    ready(ctx)
    values = draw("reset")
    assert draw.bounds.shape == (2, 3)
    assert ((values[:, 0] >= 12.0) & (values[:, 0] <= 14.0)).all()
    assert ((values[:, 1] >= 22.0) & (values[:, 1] <= 24.0)).all()
    assert (values[:, 2] == 3.0).all()


def test_a_threshold_is_moved(tmp_path):
    from unilab_gym.config import TerminationTermCfg
    from unilab_gym.mdp import terminations

    tilt = TerminationTermCfg(func=terminations.bad_orientation, params={"limit_deg": 170.0})
    path = "terminations/tilt/limit_deg"
    stages = CurriculumTermCfg(
        func=curriculums.ParameterStages, params={"path": path, "stages": [(2, 0.1), (3, 90.0)]}
    )
    roll = {"ang_vel": (0.5, 0.5)}
    root = EventTermCfg(func=events.ResetRootUniform, mode="reset", params=roll)
    changes = {"terminations": {"tilt": tilt}, "events": {"root": root}}
    cfg = walker_cfg(tmp_path, curriculum={"c": stages}, **changes)
    env = started(cfg, 2)
    ends = [env.step(zero_action(env)).terminated.all().item() for _ in range(4)]
    assert ends == [False, True, False, False]
    env.close()


def test_levels_follow_a_logged_figure_by_hand(tmp_path):
    """Episodes last as long as the counter lets them: 10 steps, or fewer where it is set on."""
    levels = CurriculumTermCfg(
        func=curriculums.PerformanceLevels,
        params={
            "path": "rewards/one/weight",
            "key": "episode/length",
            "values": (1.0, 2.0, 3.0),
            "raise_at": 8.0,
            "lower_below": 4.0,
            "episodes": 2,
        },
    )
    from unilab_gym.config import TerminationTermCfg
    from unilab_gym.mdp.terminations import TimeOut

    limit = {"limit": TerminationTermCfg(func=TimeOut, time_out=True)}
    cfg = probe(tmp_path, {"levels": levels}, terminations=limit, episode_length_s=0.2)
    env = started(cfg, 2)

    def play(steps, lengths):
        env.rt.episode_step.copy_(torch.tensor([10 - length for length in lengths]))
        for _ in range(steps):
            env.step(zero_action(env))
        env.step(zero_action(env))  # acts as the next step begins
        weight = env.rt.curriculum.targets["rewards/one/weight"].item()
        level = env.log()["curriculum/levels"].item()
        env.reset()
        return level, weight

    assert play(8, (10, 10)) == (0.0, 1.0)  # nobody has ended
    assert play(10, (10, 10)) == (1.0, 2.0)  # both, of length 10
    assert play(6, (6, 6)) == (1.0, 2.0)  # between the thresholds
    assert play(10, (10, 10)) == (2.0, 3.0)
    assert play(10, (10, 10)) == (2.0, 3.0)  # the top
    assert play(2, (2, 2)) == (1.0, 2.0)
    assert play(8, (9, 10)) == (1.0, 2.0)  # one episode is not enough ...
    assert play(8, (10, 8)) == (2.0, 3.0)  # ... (9 + 8) / 2 is
    env.close()


def test_a_checkpoint_leads_to_the_same_stage(tmp_path):
    """E49: stage, counter, ranges and the next 50 steps; without it a fresh start."""
    params = {"command": "twist", "parameter": "lin_vel_x", "stages": [(10, (5.0, 6.0))]}
    faster = CurriculumTermCfg(func=curriculums.CommandRangeStages, params=params)
    levels = CurriculumTermCfg(
        func=curriculums.PerformanceLevels,
        params={"path": "rewards/rate/weight", "key": "episode/length", "episodes": 3,
                "values": (-0.1, -0.2, -0.3), "raise_at": 5.0},
    )  # fmt: skip
    fade = weights((5, 0.25), (40, 8.0), reward="track")
    cfg = walker_cfg(
        tmp_path, episode_length_s=0.3, curriculum={"fade": fade, "f": faster, "levels": levels}
    )
    first, second, fresh = started(cfg), started(cfg, seed=9), started(cfg)
    actions = random_actions(first, 74)
    for action in actions[:24]:
        first.step(action)
    saved = first.state_dict()
    assert {name for name in saved if name.startswith("shared/curriculum")} == {
        "shared/curriculum/steps",
        *(f"shared/curriculum/{name}/value" for name in ("fade", "f", "levels")),
        *(f"shared/curriculum/levels/{name}" for name in ("level", "sum", "count", "written")),
    }
    second.load_state_dict(saved)
    for action in actions[24:]:
        states = [env.step(action) for env in (first, second)]
        assert torch.equal(states[0].reward, states[1].reward)
        assert torch.equal(states[0].obs["policy"], states[1].obs["policy"])
    logs = [{k: v.item() for k, v in env.log().items()} for env in (first, second, fresh)]
    assert logs[0] == logs[1]
    assert logs[0]["curriculum/fade"] == 8.0
    assert logs[0]["curriculum/levels"] > 0.0
    assert logs[2]["curriculum/fade"] == 1.0
    for env in (first, second, fresh):
        env.close()


def test_play_runs_without_and_a_config_survives_json(tmp_path):
    cfg = probe(tmp_path, {"c": weights((1, 0.0))})
    env = started(cfg.for_play())
    env.step(zero_action(env))
    assert env.rt.rewards.components[0].tolist() == [2.0, 0.5]
    assert "curriculum/c" not in env.log()
    env.close()
    assert from_dict(type(cfg), to_dict(cfg)) == cfg


def test_a_curriculum_stalls_nothing_and_none_costs_nothing(tmp_path):
    def operations(cfg):
        env = started(cfg, 2)
        action = random_actions(env, 1)[0]
        env.step(action)
        found = dispatched(lambda: env.step(action))
        env.close()
        return found

    levels = CurriculumTermCfg(
        func=curriculums.PerformanceLevels,
        params={"path": "rewards/one/weight", "key": "episode/length", "values": (1.0,),
                "raise_at": 8.0},
    )  # fmt: skip
    both = operations(probe(tmp_path, {"c": weights((1, 0.0)), "levels": levels}))
    assert stalls(both) == []
    assert len(operations(probe(tmp_path, {}))) < len(both)
    manager = CurriculumManager(context(), {})
    assert dispatched(manager.update) == []
    assert manager.log() == {}


# --- errors ---------------------------------------------------------------------------------------


@term(reads=(JointPos(), StepCount()))
class Peeks(CurriculumTerm):
    @classmethod
    def targets(cls):
        return ("rewards/k/weight",)


def ranged(parameter, *stages):
    params = {"command": "twist", "parameter": parameter, "stages": stages}
    return CurriculumTermCfg(func=curriculums.CommandRangeStages, params=params)


@pytest.mark.parametrize(
    ("curriculum", "message"),
    [
        ({"c": CurriculumTermCfg(func=one)}, r"curriculum/c: .* is not a CurriculumTerm class"),
        ({"c": weights((1, 0.0), reward="kk")},
         r"no term has an adjustable parameter 'rewards/kk/weight'; did you mean "
         r"'rewards/k/weight'"),
        ({"c": ranged("lin_vel_z", (1, (0, 1)))}, r"'commands/twist/lin_vel_z'; did you mean"),
        ({"c": weights((5, 0.0), (5, 1.0))}, r"curriculum/c: stages must be .* growing steps"),
        ({"c": weights()}, r"curriculum/c: stages must be "),
        ({"c": weights((1, (0.0, 1.0)))}, r"rewards/k/weight takes numbers, got \(0.0, 1.0\)"),
        ({"c": ranged("lin_vel_x", (1, 0.5))}, r"lin_vel_x takes \(low, high\) pairs, got 0.5"),
        ({"c": ranged("lin_vel_x", (1, (1, 0)))}, r"takes \(low, high\) pairs, got \(1, 0\)"),
        ({"c": weights((1, 0.0)), "d": weights((1, 0.0))},
         r"curriculum/d: rewards/k/weight is moved by 'c' too"),
        ({"c": CurriculumTermCfg(func=curriculums.RewardWeightStages, params={"reward": "k"})},
         r"curriculum/c: .*RewardWeightStages needs the parameters stages"),
        ({"c": CurriculumTermCfg(func=Peeks)}, r"curriculum/c: reads .*JointPos.*; only runtime"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(tmp_path, curriculum, message):
    cfg = probe(tmp_path, curriculum, commands={"twist": twist_command()})
    with pytest.raises(ConfigError, match=message):
        build(cfg)


def test_levels_are_checked(tmp_path):
    params = {"path": "rewards/k/weight", "key": "episode/lenght", "values": (1.0,), "raise_at": 1}
    levels = CurriculumTermCfg(func=curriculums.PerformanceLevels, params=params)
    with pytest.raises(ConfigError, match=r"LogValue\(key='episode/lenght'\).*did you mean"):
        build(probe(tmp_path, {"c": levels}))
    wrong = dataclasses.replace(levels, params={**params, "lower_below": 2.0})
    with pytest.raises(ConfigError, match="lower_below not exceed raise_at"):
        build(probe(tmp_path, {"c": wrong}))

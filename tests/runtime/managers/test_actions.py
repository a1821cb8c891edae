"""The action pipeline in numbers: clean, clamp, remember, offset + scale, clip targets, place."""

import math

import pytest
import torch
from helpers.probe import context, started, tiny_index, walker_cfg

from unilab_gym.backends.base import FaultBit
from unilab_gym.config import ActionTermCfg, ObservationGroupCfg, ObservationTermCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import observations
from unilab_gym.mdp.actions import JointPositionAction
from unilab_gym.runtime.managers.actions import ActionManager, resolve_actions
from unilab_gym.runtime.reads import Action, ActuatorForce
from unilab_gym.runtime.rows import RowMask
from unilab_gym.runtime.term import term


@term(reads=(ActuatorForce(),), width=lambda p, index: index.nu)
def actuator_force(frame):
    return frame[ActuatorForce()]


INF, NAN = math.inf, math.nan


def manager(clip=True, num_envs=1, ctx=None, **params):
    return ActionManager(ctx or context(num_envs), {"a": cfg(**params)}, clip)


def cfg(**params):
    return ActionTermCfg(func=JointPositionAction, params=params)


def processed(actions, *rows):
    actions.process(torch.tensor(rows, dtype=torch.float32))
    return actions.ctrl


def test_target_is_default_plus_scaled_action_in_the_actuators_order():
    actions = manager(scale=0.5, box=2.0)
    ctrl = processed(actions, [1.0, -2.0, 0.5])  # hip, knee, toe; the motors are knee, hip, toe
    torch.testing.assert_close(ctrl, torch.tensor([[0.2 - 1.0, 0.1 + 0.5, 0.3 + 0.25]]))


@pytest.mark.parametrize("boxes", ["uniform", "mixed"])
@pytest.mark.parametrize("clip", [True, False])
def test_nan_is_zero_infinity_the_bound_and_the_rest_is_clamped(boxes, clip):
    if boxes == "uniform":
        actions, box = manager(clip, box=2.0), (2.0, 2.0, 2.0)
    else:
        terms = {"a": cfg(joints=["hip", "knee"], box=2.0), "b": cfg(joints=["toe"], box=0.5)}
        actions, box = ActionManager(context(1), terms, clip), (2.0, 2.0, 0.5)
    processed(actions, [NAN, 7.0, -7.0])
    expected = [0.0, 2.0, -box[2]] if clip else [0.0, 7.0, -7.0]
    assert actions.action.tolist() == [expected]
    processed(actions, [INF, -INF, INF])
    assert actions.action.tolist() == [[2.0, -2.0, box[2]]]
    processed(actions, [0.25, -0.125, 0.5])
    assert actions.action.tolist() == [[0.25, -0.125, 0.5]]


def test_the_callers_action_is_not_changed():
    actions, given = manager(), torch.tensor([[NAN, 9.0, -9.0]])
    actions.process(given)
    assert given[0, 1:].tolist() == [9.0, -9.0]
    assert given[0, 0].isnan()


def test_scale_and_offset_by_pattern():
    actions = manager(
        scale={"hip": 0.1, "(knee|toe)": 0.2}, offset={".*e": 1.0, "toe": 1.0, "hip": 3}
    )
    ctrl = processed(actions, [1.0, 1.0, 1.0])
    torch.testing.assert_close(ctrl, torch.tensor([[1.2, 3.1, 1.2]]))


def test_targets_are_clipped_where_a_pattern_says_so():
    actions = manager(target_clip={"hip": (-0.2, 0.2)})
    ctrl = processed(actions, [1.0, 1.0, 1.0])
    torch.testing.assert_close(ctrl, torch.tensor([[1.2, 0.2, 1.3]]))
    ctrl = processed(actions, [-1.0, -1.0, -1.0])
    torch.testing.assert_close(ctrl, torch.tensor([[-0.8, -0.2, -0.7]]))
    assert actions.specs["a"].target_clip == ((-0.2, 0.2), (-INF, INF), (-INF, INF))


def test_joints_without_an_action_keep_their_default_control():
    actions = manager(joints=("toe",), num_envs=2)
    ctrl = processed(actions, [1.0], [-1.0])
    torch.testing.assert_close(ctrl, torch.tensor([[0.2, 0.1, 1.3], [0.2, 0.1, -0.7]]))


def test_terms_are_concatenated_in_order():
    terms = {"b": cfg(joints=["toe", "hip"]), "a": cfg(joints=["knee"], scale=10.0)}
    actions = ActionManager(context(1), terms)
    ctrl = processed(actions, [1.0, 0.5, -1.0])  # toe, hip, knee
    torch.testing.assert_close(ctrl, torch.tensor([[0.2 - 10.0, 0.1 + 0.5, 0.3 + 1.0]]))
    assert list(resolve_actions(terms, tiny_index())) == ["b", "a"]


def test_history_holds_the_clamped_action_newest_first_and_forgets_at_a_reset():
    ctx = context(2)
    actions = manager(ctx=ctx)
    orders = [Action(0), Action(1), Action(2)]
    for read in orders:
        ctx.frame.declare(read, ("step",), ctx.index, ctx.device)
    ctx.frame.bind({})
    actions.use_orders(3)
    for step in (1, 2, 3, 4):
        processed(actions, [0.1 * step, 0.0, 5.0], [-0.1 * step, 0.0, 5.0])
    newest, previous, oldest = (ctx.frame.get(read) for read in orders)
    torch.testing.assert_close(newest[0], torch.tensor([0.4, 0.0, 1.0]))
    torch.testing.assert_close(previous[1], torch.tensor([-0.3, 0.0, 1.0]))
    torch.testing.assert_close(oldest[:, 0], torch.tensor([0.2, -0.2]))
    actions.reset(RowMask(torch.tensor([False, True])))
    assert all(not value[1].any() for value in (newest, previous, oldest))
    torch.testing.assert_close(oldest[0, 0], torch.tensor(0.2))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"joints": ["hips"]}, r"actions/a: no joint matches 'hips'; did you mean 'hip'"),
        ({"joints": []}, r"actions/a: no joint pattern was given"),
        ({"scael": 1.0}, r"actions/a: .* has no parameter 'scael'; did you mean 'scale'"),
        ({"scale": {"hip": 1.0}}, r"actions/a: scale: no value for joints \['knee', 'toe'\]"),
        ({"scale": {".*": 1.0, "hpi": 2.0}}, r"actions/a: scale: no joint matches 'hpi'"),
        ({"scale": {".*": 1.0, "hip": 2.0}}, r"scale: joint 'hip' is claimed with 1.0 and 2.0"),
        ({"scale": {"*": 1.0}}, r"actions/a: scale: joint pattern '\*' is not valid"),
        ({"box": 0.0}, r"actions/a: box must be positive and finite, got 0.0"),
        ({"box": INF}, r"actions/a: box must be positive and finite, got inf"),
        ({"target_clip": {"hip": (1, 0)}}, r"target_clip 'hip': low 1 exceeds high 0"),
        ({"target_clip": {"hpi": (0, 1)}}, r"target_clip: no joint matches 'hpi'"),
        (
            {"joints": ["hip"], "target_clip": {"toe": (0, 1)}},
            r"target_clip: no joint matches 'toe'; available: hip",
        ),
        (
            {"target_clip": {".*": (0, 1), "hip": (0, 2)}},
            r"target_clip: joint 'hip' is claimed with 1.0 and 2",
        ),
    ],
)
def test_what_fits_no_joint_is_refused(params, message):
    with pytest.raises(ConfigError, match=message):
        resolve_actions({"a": cfg(**params)}, tiny_index())


def test_two_terms_cannot_drive_one_actuator():
    terms = {"a": cfg(joints=["hip", "knee"]), "b": cfg(joints=["knee", "toe"])}
    with pytest.raises(ConfigError, match=r"actions/b: actuator 'knee_motor' is driven by 'a' too"):
        resolve_actions(terms, tiny_index())


def test_what_is_no_action_class_is_refused():
    terms = {"a": ActionTermCfg(func=math.sqrt)}
    with pytest.raises(ConfigError, match=r"actions/a: .*sqrt.* is not an action class"):
        resolve_actions(terms, tiny_index())


def test_a_joint_without_actuator_is_refused():
    index = tiny_index(actuators=tiny_index().actuators[:2], nu=2)
    with pytest.raises(ConfigError, match=r"actions/a: no actuator drives joint 'toe'"):
        resolve_actions({"a": cfg()}, index)


# --- with an engine -------------------------------------------------------------------------------


def test_an_unclipped_action_reaches_the_force_limit(tmp_path):
    """E47: +10 in a box of 0.5 is 0.5 clipped; unclipped it saturates the actuator's force."""
    terms = {"force": ObservationTermCfg(func=actuator_force)}
    changes = {
        "actions": {"legs": cfg(scale=0.5, box=0.5)},
        "observations": {"policy": ObservationGroupCfg(terms=terms)},
        "terminations": {},
        "events": {},
    }
    targets, forces = {}, {}
    for clip in (True, False):
        env = started(walker_cfg(tmp_path, clip_actions=clip, **changes), 2)
        forces[clip] = env.step(torch.full((2, 2), 10.0)).obs["policy"][0].clone()
        targets[clip] = env.rt.actions.ctrl[0].clone()
        env.close()
    torch.testing.assert_close(targets[True], torch.tensor([0.2 + 0.25, -0.2 + 0.25]))
    torch.testing.assert_close(targets[False], torch.tensor([0.2 + 5.0, -0.2 + 5.0]))
    assert forces[False].tolist() == [30.0, 30.0]
    assert (forces[True].abs() < 20.0).all()


def test_last_action_of_some_joints_says_its_width(tmp_path):
    terms = {"last": ObservationTermCfg(func=observations.last_action, params={"width": 1})}
    groups = {"policy": ObservationGroupCfg(terms=terms)}
    actions = {"left": cfg(joints=["left_hip"], box=0.5)}
    env = started(walker_cfg(tmp_path, observations=groups, actions=actions), 2)
    state = env.step(torch.tensor([[0.25], [9.0]]))
    assert state.obs["policy"].tolist() == [[0.25], [0.5]]
    assert env.rt.actions.ctrl[:, 1].tolist() == pytest.approx([-0.2, -0.2])
    env.close()
    whole = {
        "policy": ObservationGroupCfg(terms={"last": ObservationTermCfg(func=terms["last"].func)})
    }
    with pytest.raises(ConfigError, match=r"policy/last: returns \(2, 1\), declares \[N, 2\]"):
        started(walker_cfg(tmp_path, observations=whole, actions=actions), 2)


def test_a_nan_or_infinite_action_is_a_fault_of_its_row(tmp_path):
    env = started(walker_cfg(tmp_path), 3)
    env.step(torch.tensor([[0.0, NAN], [0.5, 0.5], [INF, 0.0]]))
    bit = int(FaultBit.ACTION_NONFINITE)
    assert env.rt.faults.word.tolist() == [bit, 0, bit]
    assert env.state.terminated.tolist() == [True, False, True]
    env.close()


@pytest.mark.parametrize(
    "action",
    [
        torch.zeros(2, 3),
        torch.zeros(2),
        torch.zeros(2, 2, dtype=torch.float64),
        torch.zeros(2, 2, device="meta"),
    ],
)
def test_the_runtime_is_strict_about_actions(tmp_path, action):
    env = started(walker_cfg(tmp_path), 2)
    with pytest.raises(ConfigError, match=r"action must be float32 \(2, 2\) on cpu, got "):
        env.step(action)
    env.close()

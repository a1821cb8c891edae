"""What an action means to each kind of actuator, and when a delayed one takes effect."""

import dataclasses

import pytest
import torch
from helpers.memory import memory_cfg
from helpers.probe import (
    PROBE_XML,
    context,
    obs_term,
    probe_cfg,
    random_actions,
    ready,
    started,
    tiny_index,
    walker_cfg,
)

import unilab_gym
from unilab_gym.config import ActionTermCfg, DelayCfg, ObservationGroupCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import observations
from unilab_gym.mdp.actions import (
    JointEffortAction,
    JointPositionAction,
    JointVelocityAction,
    RelativeJointPositionAction,
)
from unilab_gym.runtime.managers.actions import ActionManager, resolve_actions
from unilab_gym.runtime.reads import ActuatorForce, JointPos
from unilab_gym.runtime.rows import RowMask
from unilab_gym.runtime.term import term

SERVO = '<position name="servo" joint="hinge" kp="20" kv="2" forcerange="-20 20"/>'
OTHERS = {
    "motor": '<motor name="servo" joint="hinge" forcerange="-20 20"/>',
    "velocity": '<velocity name="servo" joint="hinge" kv="5" forcerange="-20 20"/>',
    "other": '<general name="servo" joint="hinge" gainprm="3" biastype="affine" biasprm="0 -2 0"/>',
}
ENGINES = ["mujoco", "mjwarp"]


@term(reads=(ActuatorForce(),), width=lambda p, index: index.nu)
def actuator_force(frame):
    return frame[ActuatorForce()]


@term(reads=(JointPos(),), width=lambda p, index: len(index.joints))
def joint_pos(frame):
    return frame[JointPos()]


def cfg(func=JointPositionAction, delay=0, **params):
    return ActionTermCfg(func=func, delay=delay, params=params)


def hinge(tmp_path, kind, action, **terms):
    """One hinge with an actuator of that kind."""
    groups = {"policy": ObservationGroupCfg(terms={k: obs_term(f) for k, f in terms.items()})}
    made = probe_cfg(tmp_path, actions={"a": action}, observations=groups)
    assert PROBE_XML.count(SERVO) == 1
    path = tmp_path / f"{kind}.xml"
    text = PROBE_XML.replace(SERVO, OTHERS[kind]) if kind in OTHERS else PROBE_XML
    path.write_text(text)
    sim = dataclasses.replace(made.sim, gravity=(0.0, 0.0, 0.0))
    return dataclasses.replace(
        made, scene=dataclasses.replace(made.scene, robot=str(path)), sim=sim
    )


def made(cfg, num_envs=2, backend="mujoco"):
    if backend == "mjwarp":
        pytest.importorskip("mujoco_warp")
    env = unilab_gym.make(cfg, num_envs, backend=backend, device="cpu", seed=0)
    env.reset(seed=0)
    return env


# --- kinds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ENGINES)
def test_an_effort_is_the_force_within_the_actuators_limits(tmp_path, backend):
    action = cfg(JointEffortAction, scale=10.0, box=4.0, target_clip={"hinge": (-25.0, 15.0)})
    env = made(hinge(tmp_path, "motor", action, force=actuator_force), 3, backend)
    force = env.step(torch.tensor([[0.5], [4.0], [-9.0]]))[0]
    assert force.flatten().tolist() == [5.0, 15.0, -20.0]  # plain, target clip, force range
    assert env.runtime.rt.actions.ctrl.flatten().tolist() == [5.0, 15.0, -25.0]
    assert env.runtime.rt.actions.specs["a"].offset == (0.0,)
    env.close()


def test_a_velocity_is_reached(tmp_path):
    action = cfg(JointVelocityAction, scale=2.0, offset=0.5)
    env = made(hinge(tmp_path, "velocity", action, v=observations.joint_vel))
    for _ in range(20):
        speed = env.step(torch.tensor([[0.25], [-0.5]]))[0]
    torch.testing.assert_close(speed.flatten(), torch.tensor([1.0, -0.5]), atol=0.01, rtol=0.0)
    env.close()


@pytest.mark.parametrize("backend", ENGINES)
def test_a_relative_position_counts_from_where_the_joint_is(tmp_path, backend):
    actions = {
        "right": cfg(RelativeJointPositionAction, joints=("right_hip",), scale=0.5, offset=0.01),
        "left": cfg(joints=("left_hip",), scale=0.5),
    }
    groups = {"policy": ObservationGroupCfg(terms={"q": obs_term(joint_pos)})}
    changes = {"actions": actions, "observations": groups, "terminations": {}}
    env = made(walker_cfg(tmp_path, **changes), 3, backend)
    q = env.get_observations()["policy"]
    for step, action in enumerate(random_actions(env.runtime, 4)):
        if step == 2:  # the joint of a row that restarts is where the reset put it
            q = env.reset(options={"reset_mask": torch.tensor([True, False, False])})[0]
            torch.testing.assert_close(q[0], torch.tensor([0.2, -0.2]))
        before = q.clone()
        q = env.step(action)[0]
        ctrl = env.runtime.rt.actions.ctrl
        torch.testing.assert_close(ctrl[:, 1], before[:, 1] + 0.01 + 0.5 * action[:, 0])
        torch.testing.assert_close(ctrl[:, 0], 0.2 + 0.5 * action[:, 1])
    env.close()


@pytest.mark.parametrize("backend", ENGINES)
def test_a_huge_action_is_the_box_or_the_force_limit(tmp_path, backend):
    """E47: the same on both backends, and `last_action` shows the clamped value."""
    terms = {"force": obs_term(actuator_force), "last": obs_term(observations.last_action)}
    changes = {
        "actions": {"legs": cfg(scale=0.5, box=0.5)},
        "observations": {"policy": ObservationGroupCfg(terms=terms)},
        "terminations": {},
        "events": {},
    }
    for clip, target, last in ((True, 0.25, 0.5), (False, 5.0, 10.0)):
        env = made(walker_cfg(tmp_path, clip_actions=clip, **changes), 2, backend)
        env.action_space.seed(0)
        box = env.single_action_space
        assert (box.low.tolist(), box.high.tolist()) == ([-0.5] * 2, [0.5] * 2)
        assert all(abs(env.action_space.sample()).max() <= 0.5 for _ in range(20))
        obs = env.step(torch.full((2, 2), 10.0))[0]
        ctrl = env.runtime.rt.actions.ctrl[0]
        torch.testing.assert_close(ctrl, torch.tensor([0.2 + target, -0.2 + target]))
        assert obs[:, 2:].tolist() == [[last] * 2] * 2
        assert (obs[:, :2] == 30.0).tolist() == [[not clip] * 2] * 2
        env.close()


@pytest.mark.parametrize(
    ("func", "needed", "kind"),
    [
        (JointPositionAction, "position", "motor"),
        (RelativeJointPositionAction, "position", "velocity"),
        (JointVelocityAction, "velocity", "motor"),
        (JointEffortAction, "motor", "position"),
        (JointPositionAction, "position", "other"),
    ],
)
def test_an_action_of_another_kind_than_the_actuator_is_refused(tmp_path, func, needed, kind):
    message = f"actions/a: joint 'hinge' needs a {needed} actuator, it has the {kind} actuator"
    with pytest.raises(ConfigError, match=message):
        made(hinge(tmp_path, kind, cfg(func), q=joint_pos))


def test_of_two_actuators_of_a_joint_the_fitting_one_is_driven():
    index = tiny_index()
    motor = dataclasses.replace(index.actuators[1], name="hip_torque", index=3, kind="motor")
    index = dataclasses.replace(index, actuators=(*index.actuators, motor), nu=4)
    terms = {"p": cfg(), "e": cfg(JointEffortAction, joints=("hip",))}
    specs = resolve_actions(terms, index)
    assert specs["p"].actuators == ("hip_motor", "knee_motor", "toe_motor")
    assert (specs["e"].actuators, specs["e"].kind) == (("hip_torque",), "joint_effort")


def test_a_list_of_all_joints_keeps_its_order():
    """E01: column 0 drives the joint that is listed first."""
    index = tiny_index()
    for joints in (("toe", "knee", "hip"), ("knee", "hip", "toe")):
        actions = ActionManager(context(1), {"a": cfg(joints=joints)})
        actions.process(torch.tensor([[0.5, 0.25, 0.125]]))
        moved = actions.ctrl[0] - torch.tensor(index.default_ctrl)
        for column, joint in enumerate(joints):
            assert moved[index.actuator_of(joint).index] == pytest.approx(2.0 ** -(column + 1))


def test_a_relative_action_goes_on_from_a_restored_state(tmp_path):
    action = cfg(RelativeJointPositionAction, delay=1, scale=0.5)
    env = started(walker_cfg(tmp_path, actions={"legs": action}, terminations={}), 3)
    actions = random_actions(env, 8)
    for step in actions[:4]:
        env.step(step)
    saved = env.get_state()

    def targets():
        return [env.step(step) and env.rt.actions.ctrl.clone() for step in actions[4:]]

    first = targets()
    env.set_state(saved)
    assert all(torch.equal(a, b) for a, b in zip(first, targets(), strict=True))
    env.close()


# --- delay ----------------------------------------------------------------------------------------


def manager(num_envs, terms):
    ctx = context(num_envs)
    actions = ActionManager(ctx, terms)
    ready(ctx)
    return ctx, actions


def test_a_delayed_action_arrives_later_and_last_action_does_not_wait():
    terms = {
        "late": cfg(joints=("hip",), delay=2, scale=10.0, box=9.0, offset=0.0),
        "now": cfg(joints=("knee", "toe"), box=9.0, offset=0.0),
    }
    _, actions = manager(2, terms)
    actions.reset(RowMask(torch.tensor([True, True])))
    late = []
    for step in (1.0, 2.0, 3.0, 4.0):
        actions.process(torch.full((2, 3), step))
        assert actions.action.tolist() == [[step] * 3] * 2
        assert actions.ctrl[:, [0, 2]].tolist() == [[step] * 2] * 2  # knee, toe
        late.append(actions.ctrl[:, 1].tolist())
        if step == 3.0:
            actions.reset(RowMask(torch.tensor([False, True])))  # row 1 forgets what is on its way
    assert late == [[0.0, 0.0], [0.0, 0.0], [10.0, 10.0], [20.0, 0.0]]


def test_latencies_of_actions_are_drawn_at_each_reset():
    terms = {"a": cfg(joints=("hip",), delay=(0, 3), offset=0.0, box=99.0)}
    ctx, actions = manager(400, terms)
    every = torch.ones(400, dtype=torch.bool)
    lags = []
    for _ in range(2):
        actions.reset(RowMask(every))
        for step in range(1, 6):
            actions.process(torch.full((400, 1), float(step)))
        lags.append(5 - actions.ctrl[:, 1])
        ctx.rng.start_episode(every)
        ctx.rng.draw()
    for lag in lags:
        assert lag.unique().tolist() == [0, 1, 2, 3]
        assert lag.mean() == pytest.approx(1.5, abs=0.2)
    assert (lags[0] != lags[1]).any()


def test_action_terms_can_share_a_latency_or_draw_it_anew():
    bus = DelayCfg(steps=(0, 3), redraw=4, shared="bus")
    terms = {
        "a": cfg(joints=("hip",), delay=bus, offset=0.0, box=99.0),
        "b": cfg(joints=("toe",), delay=bus, offset=0.0, box=99.0),
    }
    ctx, actions = manager(100, terms)
    actions.reset(RowMask(torch.ones(100, dtype=torch.bool)))
    lags = []
    for step in range(1, 12):
        ctx.rng.advance()
        ctx.rng.draw()
        actions.process(torch.full((100, 2), float(step)))
        assert torch.equal(actions.ctrl[:, 1], actions.ctrl[:, 2])
        lags.append(step - actions.ctrl[:, 1])
    assert torch.equal(lags[4], lags[6]) and not torch.equal(lags[6], lags[7])


def test_a_delay_in_the_engine_moves_the_joint_later(tmp_path):
    """The same action, two steps later, gives the same path from the same rest."""
    paths = {}
    for delay in (0, 2):
        changes = {"actions": {"a": cfg(delay=delay)}}
        groups = {"policy": ObservationGroupCfg(terms={"q": obs_term(joint_pos)})}
        base = probe_cfg(tmp_path, observations=groups, **changes)
        still = dataclasses.replace(base.sim, gravity=(0.0, 0.0, 0.0))
        env = started(dataclasses.replace(base, sim=still), 1)
        action = torch.ones(1, 1)
        paths[delay] = [env.step(action).obs["policy"].item() for _ in range(6)]
        env.close()
    assert paths[2][:2] == pytest.approx([0.1, 0.1])
    assert paths[2][2:] == pytest.approx(paths[0][:4], abs=1e-6)
    assert paths[0][0] > 0.1


# --- everything at once ---------------------------------------------------------------------------


def test_memory_is_the_same_on_both_engines(tmp_path):
    """Draws, latencies and histories: only physics' rounding is left."""
    pytest.importorskip("mujoco_warp")
    cfg = memory_cfg(tmp_path, terminations={})
    seen = {}
    for backend in ENGINES:
        env = unilab_gym.make(cfg, 3, backend=backend, device="cpu", obs="dict", seed=4)
        obs, _ = env.reset(seed=4)
        trace = [obs]
        for step, action in enumerate(random_actions(env.runtime, 6)):
            trace.append(env.step(action)[0])
            if step == 3:
                mask = torch.tensor([False, True, False])
                trace.append(env.reset(options={"reset_mask": mask})[0])
        lags = [env.runtime.rt.observations._lags.steps, env.runtime.rt.actions._lags.steps]
        seen[backend] = trace, [lag.clone() for lag in lags]
        env.close()
    (first, lags), (second, other) = seen.values()
    assert all(torch.equal(a, b) for a, b in zip(lags, other, strict=True))
    for one, two in zip(first, second, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], two[name], atol=2e-3, rtol=1e-3)

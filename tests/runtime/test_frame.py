"""The frame: declared reads only, derived once per boundary, volatile where commands are in it."""

import mujoco
import pytest
import torch
from helpers.probe import CPU, build, probe_cfg, tiny_index, walker_cfg, zero_action

from unilab_gym.errors import ConfigError, UndeclaredRead
from unilab_gym.model_index import Stage
from unilab_gym.runtime.frame import Frame, TermFrame
from unilab_gym.runtime.reads import (
    BodyPos,
    Command,
    DerivedRead,
    EpisodeStep,
    GeomPos,
    JointPos,
    JointPosRel,
    JointVel,
    LinVelErrorSq,
    ProjectedGravity,
    RootLinVelB,
    RootLinVelW,
    RootQuat,
    Sensor,
)


def bound(*reads, phases=("step",), index=None, runtime=()):
    """A frame of these reads; engine tensors are ramps."""
    index = tiny_index() if index is None else index
    frame = Frame()
    for read, tensor in runtime:
        frame.provide(read, tensor)
    for read in reads:
        frame.declare(read, phases, index, CPU)
    plan = frame.plan().engine
    tensors = {
        item: torch.arange(2.0 * len(item.columns)).reshape(2, *item.shape)
        for item in (*plan.step, *plan.reset)
    }
    frame.bind(tensors)
    return frame, tensors


def test_joint_positions_relative_to_the_default_by_hand():
    frame, _ = bound(JointPosRel())
    # Rows 0..2 and 3..5 minus the default pose (0.1, 0.2, 0.3).
    expected = torch.tensor([[-0.1, 0.8, 1.7], [2.9, 3.8, 4.7]])
    torch.testing.assert_close(frame.get(JointPosRel()), expected)


def test_equal_reads_share_one_tensor_and_engine_reads_are_the_backends():
    frame, tensors = bound(JointPos(), JointPos((".*",)), JointVel())
    assert len(tensors) == 2
    plan = frame.plan()
    assert plan.step_reads == (JointPos(), JointVel())
    assert frame.get(JointPos()) is tensors[JointPos().resolve(tiny_index())]


def test_an_undeclared_read_names_term_read_and_declarations():
    frame, _ = bound(JointPos(), JointVel())
    view = TermFrame(frame, "rewards/mine", (JointVel(), JointPos()))
    assert view[JointPos()] is frame.get(JointPos())
    with pytest.raises(
        UndeclaredRead,
        match=r"rewards/mine reads JointPos\(names=\('hip',\)\) but declares only: "
        r"JointPos\(names=\('\.\*',\)\), JointVel",
    ):
        view[JointPos(("hip",))]
    with pytest.raises(UndeclaredRead, match="declares only: nothing"):
        TermFrame(frame, "x", ())[JointPos()]


def test_a_term_sees_the_same_frame_whatever_it_has_looked_up():
    frame, _ = bound(JointPos(), JointVel())
    view = TermFrame(frame, "rewards/mine", (JointPos(),))
    for _ in range(2):  # the second time with the read at hand
        assert view and JointPos() in view and JointVel() not in view
        assert view.get(JointPos()) is view[JointPos()]
        with pytest.raises(UndeclaredRead, match="rewards/mine reads JointVel"):
            view.get(JointVel())
    with pytest.raises(TypeError, match="rewards/mine assigns to JointPos"):
        view[JointPos()] = torch.zeros(2, 3)


def test_needs_of_a_derived_read_are_not_granted_to_the_term():
    frame, _ = bound(JointPosRel())
    view = TermFrame(frame, "observations/q", (JointPosRel(),))
    assert view[JointPosRel()].shape == (2, 3)
    with pytest.raises(UndeclaredRead, match=r"observations/q reads JointPos\("):
        view[JointPos()]


def counting(monkeypatch, cls):
    """Counts the computations of a derived read; returns the list of calls."""
    calls = []
    build = cls.build

    def spy(self, index, device):
        compute = build(self, index, device)

        def counted(*tensors):
            calls.append(self)
            return compute(*tensors)

        return counted

    monkeypatch.setattr(cls, "build", spy)
    return calls


def test_derived_reads_are_computed_once_per_boundary(monkeypatch):
    calls = counting(monkeypatch, JointPosRel)
    frame, tensors = bound(JointPosRel())
    first = frame.get(JointPosRel())
    assert frame.get(JointPosRel()) is first
    frame.commands_changed()  # no command in it
    assert frame.get(JointPosRel()) is first
    assert len(calls) == 1
    next(iter(tensors.values())).add_(1.0)
    frame.advance()
    torch.testing.assert_close(frame.get(JointPosRel()), first + 1.0)
    assert len(calls) == 2


def test_what_is_derived_from_a_command_is_computed_anew_when_commands_change():
    index = tiny_index(floating=True)
    command = torch.zeros(2, 3)
    read = LinVelErrorSq("twist")
    frame, tensors = bound(read, index=index, runtime=[(Command("twist"), command)])
    tensors[RootQuat().resolve(index)].copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    tensors[RootLinVelW().resolve(index)].copy_(torch.tensor([1.0, 2.0, 9.0]))
    assert frame.get(read).tolist() == [5.0, 5.0]
    command[0, 0] = 1.0
    assert frame.get(read).tolist() == [5.0, 5.0]  # the boundary's value holds
    frame.commands_changed()
    assert frame.get(read).tolist() == [4.0, 5.0]


def test_unknown_names_give_near_candidates():
    with pytest.raises(ConfigError, match=r"no joint matches 'knees'; did you mean 'knee'"):
        bound(JointPos(("knees",)))
    with pytest.raises(ConfigError, match=r"no body matches 'shim'; did you mean 'shin'"):
        bound(BodyPos(("shim",)))
    with pytest.raises(ConfigError, match=r"no sensor 'gyros'; did you mean 'gyro'"):
        bound(Sensor("gyros"))


def test_what_is_no_read_is_refused():
    with pytest.raises(ConfigError, match="'joint_pos' is not a read"):
        bound("joint_pos")


def test_a_runtime_read_that_nobody_provides():
    given = [(Command("twist"), torch.zeros(2, 3))]
    with pytest.raises(
        ConfigError, match=r"no manager provides .*'twitch'.*did you mean .*'twist'"
    ):
        bound(Command("twitch"), runtime=given)


def test_phases_decide_what_a_reset_refreshes():
    index = tiny_index()
    frame = Frame()
    frame.declare(BodyPos(("shin",)), ("step",), index, CPU)
    frame.declare(JointPosRel(), ("step", "reset"), index, CPU)
    frame.declare(Sensor("force"), ("step", "reset"), index, CPU)
    plan = frame.plan()
    assert plan.step_reads == (BodyPos(("shin",)), JointPos(), Sensor("force"))
    assert plan.reset_reads == (JointPos(), Sensor("force"))
    assert plan.derived == (JointPosRel(),)
    assert plan.engine.step_stage == Stage.ACC
    assert plan.engine.reset_stage == Stage.NONE  # the force is 0 then: nothing to compute


def test_the_plan_prints_stages_and_reads(tmp_path):
    env = build(walker_cfg(tmp_path), 1)
    after_step, after_reset, derived, runtime = str(env.read_plan).splitlines()
    assert after_step.startswith("after a step (stage POS): RootRot(), ")
    assert "GeomPos(names=('trunk',))" in after_step
    assert after_reset.startswith("after a reset (stage POS): ")
    assert "trunk" not in after_reset  # only observations are computed then
    assert "LinVelErrorSq(command='twist')" in derived
    assert runtime.startswith("runtime: Action(order=0), Command(name='twist'")
    env.close()


def test_a_plan_of_counters_reads_nothing_from_the_engine(tmp_path):
    env = build(probe_cfg(tmp_path), 1)
    assert str(env.read_plan).splitlines() == [
        "after a step (stage NONE): nothing",
        "after a reset (stage NONE): nothing",
        "derived: nothing",
        "runtime: EpisodeStep()",
    ]
    env.close()


def test_terms_of_one_step_compute_a_derived_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr(RootLinVelB, "at_stage", DerivedRead.at_stage)
    calls = counting(monkeypatch, RootLinVelB)
    env = build(walker_cfg(tmp_path), 2)
    env.reset()
    calls.clear()
    env.step(zero_action(env))  # reward and metrics read it; no observation does after the reset
    assert calls == [RootLinVelB()]
    env.close()


def test_custom_reads_need_their_methods():
    class Mine(DerivedRead):
        pass

    with pytest.raises(NotImplementedError, match="Mine"):
        Mine().requires(tiny_index())
    assert EpisodeStep() == EpisodeStep()


@pytest.mark.parametrize("read", [ProjectedGravity(), RootLinVelB()])
def test_a_rotation_matrix_is_used_where_every_phase_has_one(read):
    index = tiny_index(floating=True)
    height = GeomPos(("ball",))

    def fields(**phases):
        frame = Frame()
        for name, wanted in phases.items():
            frame.declare({"read": read, "height": height}[name], wanted, index, CPU)
        plan = frame.plan()
        return {item.field for item in (*plan.engine.step, *plan.engine.reset)}, plan.engine

    alone, plan = fields(read=("step", "reset"))
    assert "xmat" not in alone and plan.step_stage == plan.reset_stage == Stage.NONE
    half, plan = fields(read=("step", "reset"), height=("step",))
    assert "xmat" not in half and plan.reset_stage == Stage.NONE
    both, plan = fields(read=("step", "reset"), height=("step", "reset"))
    assert "xmat" in both and not {"xmat", "qpos"} <= both
    assert plan.step_stage == plan.reset_stage == Stage.POS


def test_gravity_and_velocity_are_the_same_from_quaternion_and_matrix():
    index = tiny_index(floating=True)
    quat = torch.nn.functional.normalize(torch.randn(50, 4, dtype=torch.float64), dim=1)
    rotation = torch.empty(50, 9, dtype=torch.float64)
    for row, q in zip(rotation, quat, strict=True):
        mujoco.mju_quat2Mat(row.numpy(), q.numpy())
    rotation = rotation.view(50, 3, 3).float()
    vel = torch.randn(50, 3)
    for read, given in ((ProjectedGravity(), ()), (RootLinVelB(), (vel,))):
        direct = read.build(index, CPU)(quat.float(), *given)
        matrix = read.at_stage(Stage.POS).build(index, CPU)(rotation, *given)
        torch.testing.assert_close(direct, matrix, rtol=0, atol=2e-6)

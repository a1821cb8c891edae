"""Formulas of derived reads: by hand, bound and unbound, and where their results lie."""

import pytest
import torch
from helpers.probe import CPU, tiny_index

from unilab_gym.runtime.frame import Frame, TermFrame
from unilab_gym.runtime.read_formulas import (
    Below,
    ComponentErrorSq,
    GravityOfRotation,
    InFrame,
    LowestPoint,
    Minus,
    PlanarErrorSq,
)
from unilab_gym.runtime.reads import JointPos, JointPosRel


def columns(tensor):
    """The same values with environments side by side, as the C backend keeps short reads."""
    return tensor.movedim(0, -1).contiguous().movedim(-1, 0)


def rows(count, *shape, seed=0):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


MIXED = LowestPoint(  # a ball, a box, a cylinder
    torch.tensor([0.1, 0.0, 0.0]),
    torch.tensor([[0.0, 0.0, 0.0], [0.1, 0.2, 0.3], [0.0, 0.0, 0.5]]),
    2,
    torch.tensor([[0.2, 0.2, 0.0]]),
)
FORMULAS = {
    "gravity": (GravityOfRotation(), [(3, 3)]),
    "velocity": (InFrame(), [(3, 3), (3,)]),
    "minus": (Minus(torch.tensor([1.0, -2.0])), [(2,)]),
    "below": (Below(torch.tensor(0.2)), [(2,)]),
    "planar": (PlanarErrorSq(), [(3,), (3,)]),
    "component": (ComponentErrorSq(2), [(3,), (3,)]),
    "ball": (LowestPoint(torch.tensor([0.1]), torch.zeros(1, 3), 0, None), [(1, 3)]),
    "mixed": (MIXED, [(3, 3), (3, 3)]),
}


def test_values_by_hand():
    turn = torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])  # 90 deg about z
    assert GravityOfRotation()(turn).tolist() == [[0.0, 0.0, -1.0]]
    assert InFrame()(turn, torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[2.0, -1.0, 3.0]]
    one, other = torch.tensor([[1.0, 2.0, 5.0]]), torch.tensor([[0.0, 4.0, 2.0]])
    assert PlanarErrorSq()(one, other).tolist() == [5.0]
    assert ComponentErrorSq(2)(one, other).tolist() == [9.0]
    assert Minus(torch.tensor([1.0, 1.0, 1.0]))(one).tolist() == [[0.0, 1.0, 4.0]]
    assert Below(torch.tensor(2.0))(one).tolist() == [[True, False, False]]


def test_lowest_points_by_hand():
    up = torch.tensor([[[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.6, 0.0, 0.8]]])
    pos = torch.tensor([[[9.0, 9.0, 1.0]] * 3])
    expected = [1.0 - 0.1, 1.0 - 0.2, 1.0 - 0.5 * 0.8 - 0.2 * 0.6]
    torch.testing.assert_close(MIXED(pos, up), torch.tensor([expected]))


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_bound_formulas_follow_their_tensors_and_stay_in_place(name, count):
    formula, shapes = FORMULAS[name]
    for layout in (torch.clone, columns):
        tensors = [layout(rows(count, *shape, seed=k)) for k, shape in enumerate(shapes)]
        bound = formula.bind(*tensors)
        place = bound.result.data_ptr()
        for seed in (3, 4):
            for number, tensor in enumerate(tensors):
                tensor.copy_(rows(count, *tensor.shape[1:], seed=10 * seed + number))
            bound.run()
            assert torch.equal(bound.result, formula(*tensors))
            bound.run()  # the same again: nothing piles up
            assert torch.equal(bound.result, formula(*tensors))
        assert bound.result.data_ptr() == place
        assert bound.result.shape[0] == count


@pytest.mark.parametrize("name", FORMULAS)
def test_a_call_leaves_its_tensors_alone_and_returns_memory_of_its_own(name):
    formula, shapes = FORMULAS[name]
    tensors = [rows(4, *shape, seed=k) for k, shape in enumerate(shapes)]
    before = [tensor.clone() for tensor in tensors]
    first, second = formula(*tensors), formula(*tensors)
    assert first.data_ptr() != second.data_ptr() and torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def joints(frame):
    """Declares the joints' positions and offers two rows of them."""
    for read in (JointPos(), JointPosRel()):
        frame.declare(read, ("step",), tiny_index(), CPU)
    (item,) = frame.plan().engine.step
    tensor = torch.zeros(2, 3)
    frame.bind({item: tensor})
    return tensor


def test_a_frame_computes_a_bound_read_once_a_boundary_and_into_the_same_memory():
    frame = Frame()
    tensor = joints(frame)
    view = TermFrame(frame, "rewards/mine", (JointPos(), JointPosRel()))
    first = view[JointPosRel()]
    kept = first.clone()
    tensor.add_(1.0)
    assert torch.equal(view[JointPosRel()], kept)  # the boundary's value holds
    frame.advance()
    assert view[JointPosRel()] is first  # overwritten: a term clones what it keeps
    torch.testing.assert_close(first, kept + 1.0)
    assert view[JointPos()] is tensor and list(view) == [JointPos()]


def test_two_frames_share_no_result():
    frames = [Frame(), Frame()]
    tensors = [joints(frame) for frame in frames]
    tensors[0].fill_(5.0)
    values = [frame.get(JointPosRel()) for frame in frames]
    assert values[0].data_ptr() != values[1].data_ptr()
    torch.testing.assert_close(values[0], values[1] + 5.0)

"""Rotations against rotation matrices of MuJoCo, and bits that do not depend on the row count."""

import math

import mujoco
import numpy as np
import pytest
import torch

from unilab_gym import math as ugm


def quats(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, 4, generator=generator)
    return values / values.norm(dim=-1, keepdim=True)


def vectors(count, seed=1):
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))


def matrices(values):
    result = np.zeros((len(values), 9))
    for row, quat in enumerate(values.double().numpy()):
        mujoco.mju_quat2Mat(result[row], quat)
    return torch.from_numpy(result.reshape(-1, 3, 3)).float()


def test_a_quarter_turn_about_z_by_hand():
    quarter = ugm.yaw_quat(torch.tensor([math.pi / 2]))
    torch.testing.assert_close(quarter, torch.tensor([[math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)]]))
    x = torch.tensor([[1.0, 0.0, 0.0]])
    torch.testing.assert_close(ugm.quat_rotate(quarter, x), torch.tensor([[0.0, 1.0, 0.0]]))
    torch.testing.assert_close(
        ugm.quat_rotate_inverse(quarter, x), torch.tensor([[0.0, -1.0, 0.0]])
    )


def test_rotation_and_its_inverse_equal_matrices():
    q, v = quats(200), vectors(200)
    rotation = matrices(q)
    expected = (rotation * v.unsqueeze(1)).sum(-1)
    torch.testing.assert_close(ugm.quat_rotate(q, v), expected, atol=2e-6, rtol=0)
    expected = (rotation.mT * v.unsqueeze(1)).sum(-1)
    torch.testing.assert_close(ugm.quat_rotate_inverse(q, v), expected, atol=2e-6, rtol=0)


def test_a_quaternion_and_its_negative_are_one_rotation():
    q, v = quats(50), vectors(50)
    project = ugm.GravityProjector(q.device)
    for rotate in (ugm.quat_rotate, ugm.quat_rotate_inverse):
        torch.testing.assert_close(rotate(-q, v), rotate(q, v))
    torch.testing.assert_close(project(-q).clone(), project(q).clone())


def test_there_and_back():
    q, v = quats(50), vectors(50)
    back = ugm.quat_rotate_inverse(q, ugm.quat_rotate(q, v))
    torch.testing.assert_close(back, v, atol=2e-6, rtol=0)


def test_leading_dimensions_are_kept():
    q, v = quats(12).view(3, 4, 4), vectors(12).view(3, 4, 3)
    flat = ugm.quat_rotate(q.view(-1, 4), v.view(-1, 3))
    assert torch.equal(ugm.quat_rotate(q, v).view(-1, 3), flat)


def test_gravity_of_an_upright_a_tipped_and_an_inverted_body():
    half = math.sqrt(0.5)
    rows = torch.tensor([[1.0, 0, 0, 0], [half, 0, half, 0], [0, 1.0, 0, 0]])
    # Pitched 90 degrees down about y, the body's x axis points down: gravity is along +x.
    expected = torch.tensor([[0.0, 0, -1], [1, 0, 0], [0, 0, 1]])
    torch.testing.assert_close(ugm.GravityProjector(rows.device)(rows), expected)


def test_gravity_equals_the_inverse_rotation_of_down():
    q = quats(300)
    down = torch.tensor([0.0, 0.0, -1.0]).expand(300, 3)
    projected = ugm.GravityProjector(q.device)(q)
    torch.testing.assert_close(projected, ugm.quat_rotate_inverse(q, down), atol=2e-6, rtol=0)


def test_the_projector_keeps_its_buffer():
    project = ugm.GravityProjector(torch.device("cpu"))
    first = project(quats(5))
    assert project(quats(5, seed=2)) is first
    assert project(quats(6)).shape == (6, 3)


@pytest.mark.parametrize(
    "compute",
    [
        ugm.quat_rotate,
        ugm.quat_rotate_inverse,
        lambda q, v: ugm.GravityProjector(q.device)(q),
        lambda q, v: ugm.yaw_quat(v[:, 0]),
    ],
)
def test_bits_of_a_row_do_not_depend_on_how_many_there_are(compute):
    q, v = quats(257), vectors(257)
    together = compute(q, v).clone()
    for rows in (slice(0, 1), slice(3, 10), slice(200, 257)):
        assert torch.equal(compute(q[rows], v[rows]), together[rows])


def test_inputs_are_not_changed():
    q, v = quats(8), vectors(8)
    kept = q.clone(), v.clone()
    ugm.quat_rotate(q, v)
    ugm.quat_rotate_inverse(q, v)
    ugm.GravityProjector(q.device)(q)
    ugm.yaw_quat(v[:, 0])
    assert torch.equal(q, kept[0])
    assert torch.equal(v, kept[1])


def test_a_number_is_made_once_and_means_what_python_means():
    x = torch.tensor([0.1, -3.0, 7.5])
    assert ugm.number(-1.5, x) is ugm.number(-1.5, x) is not ugm.number(-1.25, x)
    for value in (0.1, -1.0 / 0.3, 1e-30, 3.0):
        assert torch.equal(x * ugm.number(value, x), x * value)
        assert torch.equal(x - ugm.number(value, x), x - value)
        assert torch.equal(x > ugm.number(value, x), x > value)
    moved = torch.tensor(2.0)
    assert ugm.number(moved, x) is moved  # a curriculum's
    with torch.inference_mode():
        made = ugm.number(123.25, x)
    assert not made.is_inference() and (x.requires_grad_() * made).sum().requires_grad

"""Events: what is written, within which bounds, and around which nominal value."""

import dataclasses
import math

import pytest
import torch
from helpers.probe import context, ready, tiny_index, write_walker

from unilab_gym.backends.base import (
    RecomputeLevel,
    TensorIntervalPayload,
    TensorResetRandomizationPayload,
)
from unilab_gym.config import SceneCfg, SimCfg
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import events
from unilab_gym.scene import build_scene

N = 400


@pytest.fixture
def scene(tmp_path):
    return build_scene(SceneCfg(robot=write_walker(tmp_path)), SimCfg(), 0.01)


def made(scene, cls, **params):
    ctx = context(N, scene.index, model=scene.model)
    event = cls(ctx, **params)
    ready(ctx)
    return event


def reset_payload(index):
    state = torch.tensor([0.0, *index.default_qpos, *[0.0] * index.nv]).repeat(N, 1)
    return TensorResetRandomizationPayload(
        state=state, qpos=state[:, 1 : 1 + index.nq], qvel=state[:, 1 + index.nq :]
    )


def nominal(scene, *names):
    return {
        name: torch.from_numpy(getattr(scene.model, name)).float().repeat(N, *[1] * ndim)
        for name in names
        for ndim in [getattr(scene.model, name).ndim]
    }


def fills(values, low, high):
    """Whether uniform draws fill a range and keep to it."""
    span = high - low
    inside = (values >= low - 1e-6).all() and (values <= high + 1e-6).all()
    return bool(inside and values.min() < low + 0.03 * span and values.max() > high - 0.03 * span)


def test_the_root_moves_in_its_ranges_and_stays_upright(scene):
    event = made(
        scene,
        events.ResetRootUniform,
        xy=(-0.5, 0.25),
        yaw=(-1.0, 2.0),
        lin_vel=(-0.1, 0.3),
        ang_vel=(-0.2, 0.4),
    )
    payload = reset_payload(scene.index)
    event.apply(payload)
    qpos, qvel = payload.qpos, payload.qvel
    assert fills(qpos[:, 0], -0.5, 0.25)
    assert fills(qpos[:, 1], -0.5, 0.25)
    assert (qpos[:, 2] == scene.index.default_qpos[2]).all()
    torch.testing.assert_close(qpos[:, 3:7].norm(dim=1), torch.ones(N))
    assert not qpos[:, 4:6].any()
    assert fills(2 * torch.atan2(qpos[:, 6], qpos[:, 3]), -1.0, 2.0)
    assert fills(qvel[:, :3], -0.1, 0.3)
    assert fills(qvel[:, 3:6], -0.2, 0.4)
    assert torch.equal(qpos[:, 7:], torch.tensor([0.2, -0.2]).expand(N, 2))
    assert not qvel[:, 6:].any()
    again = payload.state.clone()
    event.apply(payload)  # from the default, never from what is there
    assert torch.equal(payload.state, again)


def test_friction_is_one_draw_an_environment(scene):
    event = made(scene, events.RandomizeFriction, geoms=(".*_foot",), slide=(0.3, 1.2))
    fields = nominal(scene, "geom_friction")
    before = fields["geom_friction"].clone()
    event.apply(fields)
    left, right, trunk = (
        scene.index.geoms[name].index for name in ("left_foot", "right_foot", "trunk")
    )
    after = fields["geom_friction"]
    assert fills(after[:, left, 0], 0.3, 1.2)
    assert torch.equal(after[:, left, 0], after[:, right, 0])
    assert torch.equal(after[:, trunk], before[:, trunk])
    assert torch.equal(after[..., 1:], before[..., 1:])


def test_added_mass_scales_the_inertia(scene):
    event = made(scene, events.RandomizeBodyMass, body="base", add=(-1.0, 2.0))
    fields = nominal(scene, "body_mass", "body_inertia")
    before = {name: value.clone() for name, value in fields.items()}
    event.apply(fields)
    base = scene.index.bodies["base"]
    assert fills(fields["body_mass"][:, base] - 3.0, -1.0, 2.0)
    factor = fields["body_mass"][:, base] / before["body_mass"][:, base]
    expected = before["body_inertia"][:, base] * factor.unsqueeze(1)
    torch.testing.assert_close(fields["body_inertia"][:, base], expected)
    others = [i for i in range(scene.model.nbody) if i != base]
    for name, value in fields.items():
        assert torch.equal(value[:, others], before[name][:, others])
    assert event.level == RecomputeLevel.ALL


def test_the_centre_of_mass_moves_along_each_axis(scene):
    event = made(scene, events.RandomizeBodyCom, body="base", add=(-0.05, 0.05))
    fields = nominal(scene, "body_ipos")
    before = fields["body_ipos"].clone()
    event.apply(fields)
    base = scene.index.bodies["base"]
    moved = fields["body_ipos"] - before
    assert fills(moved[:, base], -0.05, 0.05)
    assert moved[:, base].unique().numel() > 3 * N - 5
    moved[:, base] = 0.0
    assert not moved.any()


def test_gains_are_scaled_and_the_target_stays_the_rest_position(scene):
    event = made(scene, events.RandomizeGains, kp=(0.5, 1.5), kd=(0.8, 1.2))
    fields = nominal(scene, "actuator_gainprm", "actuator_biasprm")
    event.apply(fields)
    gain, bias = fields["actuator_gainprm"], fields["actuator_biasprm"]
    assert fills(gain[..., 0] / 30.0, 0.5, 1.5)
    assert fills(bias[..., 2] / -1.0, 0.8, 1.2)
    torch.testing.assert_close(bias[..., 1], -gain[..., 0])  # force 0 where q is the target
    assert (gain[:, 0, 0] != gain[:, 1, 0]).all()  # each actuator by itself


def test_a_push_is_staged_where_it_is_due(scene):
    event = made(scene, events.PushRoot, lin_vel_xy=(-0.5, 0.5))
    payload = TensorIntervalPayload(qvel_delta=torch.zeros(N, scene.index.nv))
    payload.qvel_delta[:, 3] = 7.0  # another event's column
    due = torch.arange(N) % 2 == 0
    event.apply(payload, due)
    assert fills(payload.qvel_delta[due, :2], -0.5, 0.5)
    assert not payload.qvel_delta[~due, :2].any()
    assert (payload.qvel_delta[:, 3] == 7.0).all()
    assert event.dofs == (0, 1)


@pytest.mark.parametrize(
    ("cls", "params", "message"),
    [
        (events.ResetRootUniform, {"yaw": (1.0, -1.0)}, r"yaw: low 1.0 exceeds high -1.0"),
        (events.ResetRootUniform, {"ang_vel": (1, 0)}, r"ang_vel: low 1 exceeds high 0"),
        (
            events.RandomizeFriction,
            {"geoms": ("foot",), "slide": (0, 1)},
            r"no geom matches 'foot'; did you mean .*'left_foot'",
        ),
        (
            events.RandomizeFriction,
            {"geoms": (".*_foot",), "slide": (1, 0)},
            r"slide: low 1 exceeds high 0",
        ),
        (
            events.RandomizeBodyMass,
            {"body": "left|right", "add": (0, 1)},
            r"body 'left\|right' matches 2, one is needed: \('left', 'right'\)",
        ),
        (events.RandomizeBodyCom, {"body": "bse", "add": (0, 1)}, r"no body matches 'bse'"),
        (events.RandomizeGains, {"kp": (2, 1), "kd": (1, 1)}, r"kp: low 2 exceeds high 1"),
        (events.PushRoot, {"lin_vel_xy": (math.nan, 1)}, r"lin_vel_xy: low nan exceeds high 1"),
    ],
)
def test_impossible_parameters(scene, cls, params, message):
    with pytest.raises(ConfigError, match=message):
        made(scene, cls, **params)


def test_a_root_event_needs_a_root_that_is_free_and_level(scene):
    with pytest.raises(ConfigError, match="ResetRootUniform needs a floating base"):
        events.ResetRootUniform(context(1, tiny_index()))
    half = math.sqrt(0.5)
    tilted = dataclasses.replace(
        scene.index, default_qpos=(0.0, 0.0, 0.4, half, half, 0.0, 0.0, 0.0, 0.0)
    )
    with pytest.raises(ConfigError, match="default orientation must be upright and level"):
        events.ResetRootUniform(context(1, tilted))

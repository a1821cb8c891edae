"""UniLab/Go2JoystickFlat-v0: what differs between environments, episodes and steps."""

import itertools
import math

import torch
from helpers.face import ACTIONS, actions, make_go2, same
from helpers.go2 import FEET, NOISE, POLICY, columns, critic


def test_noise_stays_in_its_bounds(train_env):
    """The policy sees noisy copies of what the critic sees, with the task's amplitudes."""
    train_env.reset(seed=0)
    errors = []
    for action in actions(8, train_env.num_envs):
        obs, *_ = train_env.step(action)
        errors.append(obs - train_env.state()[:, :49])
    spread = torch.stack(errors).abs().amax((0, 1))
    for before, after in itertools.pairwise(errors):  # drawn anew in every step
        assert ((after - before)[:, :3].abs() > 0.01).any(1).all()
    for name in POLICY:
        bound, block = NOISE.get(name, 0.0), spread[columns(name)]
        assert (block <= bound * 1.0001 + 1e-6).all(), name
        assert (block >= 0.7 * bound).all() and block.max() >= 0.95 * bound, name


def test_startup_ranges_on_read_back(train_env):
    train_env.reset(seed=11)
    check_startup(train_env)


def fills(values, low, high):
    """Whether many draws stay in a range and come close to both ends."""
    edge = 0.015 * (high - low)
    inside = values.min() >= low - 1e-5 and values.max() <= high + 1e-5
    return inside and values.min() < low + edge and values.max() > high - edge


def test_many_rows_fill_every_range():
    """512 rows: start-up draws, poses and velocities of a reset, commands."""
    n = 512
    env = make_go2(n)
    env.reset(seed=11)
    for values, low, high in check_startup(env):
        assert fills(values, low, high)
    backend, index = env.runtime.backend, env.runtime.index
    qpos, qvel = backend.views().qpos, backend.views().qvel
    assert all(fills(column, -0.5, 0.5) for column in qpos[:, :2].unbind(1))
    assert torch.equal(qpos[:, 2], torch.full((n,), index.default_qpos[2]))
    assert torch.allclose(qpos[:, 3:7].square().sum(1), torch.ones(n), atol=1e-6)
    assert fills(2 * torch.atan2(qpos[:, 6], qpos[:, 3]), -math.pi, math.pi)
    assert not qpos[:, 4:6].any()
    assert torch.allclose(qpos[:, 7:], torch.tensor(index.default_qpos[7:]))
    assert all(fills(column, -0.5, 0.5) for column in qvel[:, :6].unbind(1))
    assert not qvel[:, 6:].any()
    command = critic(env, "command")
    bounds = [(-0.6, 1.0), (-0.4, 0.4), (-0.8, 0.8)]
    for column, (low, high) in zip(command.unbind(1), bounds, strict=True):
        assert fills(column, low, high)
    assert 0.07 * n < (command == 0).all(1).sum() < 0.13 * n  # a tenth stands
    assert not critic(env, "gait_phase")[(command == 0).all(1)].any()
    assert env.cfg.commands["twist"].params["resampling_s"] == (5.0, 10.0)
    assert env.cfg.events["push"].interval_s == (5.0, 15.0)
    env.close()


def check_startup(env):
    """Checks every range and the untouched rest; returns the draws with their bounds."""
    backend, index = env.runtime.backend, env.runtime.index
    got = {name: backend.get_model_field(name) for name in backend.spec.model_fields}
    nominal = {name: backend.nominal(name) for name in got}
    n = env.num_envs
    feet = [index.geoms[name].index for name in FEET]
    base = index.bodies["base"]
    friction = got["geom_friction"][:, feet, 0]
    assert torch.equal(friction, friction[:, :1].expand(-1, 4))  # one draw for all feet
    mass = got["body_mass"][:, base] - nominal["body_mass"][base]
    inertia = got["body_inertia"][:, base] / nominal["body_inertia"][base]
    ratio = got["body_mass"][:, base] / nominal["body_mass"][base]
    assert torch.allclose(inertia, ratio.unsqueeze(1).expand(-1, 3), rtol=1e-5)
    com = got["body_ipos"][:, base] - nominal["body_ipos"][base]
    kp = got["actuator_gainprm"][..., 0] / nominal["actuator_gainprm"][:, 0]
    kd = got["actuator_biasprm"][..., 2] / nominal["actuator_biasprm"][:, 2]
    assert torch.equal(got["actuator_biasprm"][..., 1], -got["actuator_gainprm"][..., 0])
    draws = [(friction[:, 0], 0.3, 1.2), (mass, -1.5, 1.5), (com, -0.05, 0.05)]
    draws += [(kp, 0.9, 1.1), (kd, 0.9, 1.1)]
    for values, low, high in draws:
        assert values.min() >= low - 1e-5 and values.max() <= high + 1e-5
        assert len(set(values.flatten().tolist())) >= 0.9 * values.numel()
    for name, cells in {
        "geom_friction": (feet, slice(None)),
        "body_mass": (base,),
        "body_inertia": (base,),
        "body_ipos": (base,),
    }.items():
        rest = got[name].clone()
        rest[(slice(None), *cells)] = nominal[name][cells]
        assert torch.equal(rest, nominal[name].expand(n, *nominal[name].shape)), name
    return draws


def test_a_push_changes_the_velocity():
    """E22: due every 0.1 s, staged at a boundary, felt by the physics after it."""
    often = {"events.push.interval_s": [0.1, 0.1]}
    pushed, calm = make_go2(4, overrides=often), make_go2(4)
    pushed.reset(seed=1), calm.reset(seed=1)
    for step in range(1, 7):
        for env in (pushed, calm):
            env.step(torch.zeros(4, ACTIONS))
        delta = pushed.runtime.rt.events.interval.qvel_delta
        assert delta[:, :2].any() == (step == 5) and not delta[:, 2:].any()
        assert delta.abs().max() <= 0.5
        if step == 5:
            staged = delta[:, :2].clone()
            same(pushed.get_observations(), calm.get_observations())
    moved = pushed.runtime.backend.views().qvel[:, :2] - calm.runtime.backend.views().qvel[:, :2]
    assert (moved - staged).norm(dim=1).lt(0.5 * staged.norm(dim=1)).all()
    pushed.close(), calm.close()

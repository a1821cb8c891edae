"""The G1's names, and checks that every task with it shares."""

import json
from pathlib import Path

import torch

FACTS = json.loads((Path(__file__).parents[1] / "data" / "robots" / "g1_facts.json").read_text())
JOINTS = tuple(FACTS["joint_order_natural"])
STAND = FACTS["keyframes"]["stand"]["qpos"]
TRACKED = tuple(FACTS["bodies_tracked_14"])
SOLES = tuple(f"{side}_foot_contact_{i}" for side in ("left", "right") for i in range(4))
MOTORS = FACTS["per_joint_motor_mjlab"]


def columns(env, group, name):
    """Where a term lies in an observation group."""
    for term in env.runtime.rt.observations.layout(group):
        if term.name == name:
            return slice(term.start, term.start + term.width)
    raise KeyError(name)


def observed(env, name, group="critic"):
    """A term of the last boundary's observation."""
    return env.get_observations()[group][:, columns(env, group, name)]


def layout(env, group):
    return {term.name: term.width for term in env.runtime.rt.observations.layout(group)}


def actions(steps, num_envs, seed=0, scale=0.3):
    """Random actions `[steps, N, 29]`; row i does not depend on the number of rows."""
    rows = []
    for row in range(num_envs):
        generator = torch.Generator().manual_seed(1000 * seed + row)
        rows.append(torch.randn(steps, 29, generator=generator) * scale)
    return torch.stack(rows, 1)


def zeros(env):
    return torch.zeros(env.num_envs, 29)


def same_start(env, seed=0, lift=0.0):
    """Every row in the state of row 0, lifted by m, as a user would not: through the backend."""
    env.reset(seed=seed)
    backend = env.runtime.backend
    state = backend.get_state()
    state[:, env.runtime.index.qpos_offset + 2] += lift
    backend.set_state(state[:1].expand_as(state), torch.ones(env.num_envs, dtype=torch.bool))


def check_column_i_moves_joint_i(env):
    """E01. Row 0 rests; row 1 + j gets +1 in column j for two control steps, in the air.

    On the ground an ankle that cannot turn the foot bends the knee instead.
    """
    same_start(env, lift=0.2)
    before = env.runtime.backend.views().qpos[0, 7:].clone()
    action = torch.cat((torch.zeros(1, 29), torch.eye(29)))
    for _ in range(2):
        env.step(action)
    rt = env.runtime.rt
    spec = rt.actions.specs["joint_pos"]
    assert spec.joints == JOINTS == env.runtime.index.joint_names
    change = rt.actions.ctrl[1:] - rt.actions.ctrl[:1]
    scale = torch.tensor([MOTORS[j]["action_scale_quarter_effort_over_kp"] for j in JOINTS])
    assert torch.allclose(change, torch.diag(scale), atol=1e-4)
    assert torch.allclose(rt.actions.ctrl[0], torch.tensor(STAND[7:]), atol=1e-6)
    joints = env.runtime.backend.views().qpos[:, 7:]
    moved = joints[1:] - joints[:1]
    assert (moved.diagonal() > 0.005).all()
    assert moved.abs().argmax(1).tolist() == list(range(29))
    assert not torch.equal(joints[0], before)


def count_a_step(env, bar, action, end_rows):
    """Operations of steps in which no, some and all rows end; at most `bar`, none of them waits.

    Returns the largest count.
    """
    from helpers.opcount import count_ops

    n, most, kinds = env.num_envs, 0, set()
    env.reset(seed=0)
    env.step(action)
    for number in range(9):
        if number % 3 == 0:
            end_rows(torch.arange(n) < (2 if number < 6 else n))
        counts = count_ops(lambda: env.step(action))
        ended = int(env.extras["log"]["episode/ended"])
        kinds.add("none" if ended == 0 else "all" if ended == n else "some")
        assert counts["nonview"] <= bar, counts
        assert (counts["sync"], counts["host"], counts["upload"]) == (0, 0, 0), counts
        most = max(most, counts["nonview"])
    assert kinds == {"none", "some", "all"}
    return most

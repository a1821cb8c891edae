"""The Go2 task's names and where its observations lie."""

import torch
from helpers.face import ACTIONS

FEET = ("FL", "FR", "RL", "RR")
JOINTS = tuple(f"{leg}_{part}_joint" for leg in FEET for part in ("hip", "thigh", "calf"))
DEFAULT = [0.0, 0.8, -1.5] * 2 + [0.0, 1.0, -1.5] * 2
POLICY = {
    "base_ang_vel": 3,
    "projected_gravity": 3,
    "joint_pos_rel": 12,
    "joint_vel": 12,
    "last_action": 12,
    "command": 3,
    "gait_phase": 4,
}
EXTRA = {"base_lin_vel": 3, "foot_height": 4, "foot_contact": 4}
NOISE = {"base_ang_vel": 0.2, "projected_gravity": 0.05, "joint_pos_rel": 0.01, "joint_vel": 1.5}


def columns(name):
    start = 0
    for term, width in {**POLICY, **EXTRA}.items():
        if term == name:
            return slice(start, start + width)
        start += width
    raise KeyError(name)


def critic(env, name):
    return env.state()[:, columns(name)]


def zeros(env):
    return torch.zeros(env.num_envs, ACTIONS)


def put(env, row, *, quat=None, height=None, velocity=None):
    """Moves one row's state, as a user would not: through the backend."""
    backend, index = env.runtime.backend, env.runtime.index
    state = backend.get_state()
    q, v = index.qpos_offset, index.qvel_offset
    if quat is not None:
        state[row, q + 3 : q + 7] = torch.tensor(quat, dtype=state.dtype)
    if height is not None:
        state[row, q + 2] = height
    if velocity is not None:
        state[row, v : v + 6] = velocity
    mask = torch.zeros(env.num_envs, dtype=torch.bool)
    mask[row] = True
    backend.set_state(state, mask)

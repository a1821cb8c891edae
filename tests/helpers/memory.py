"""The walker with everything that remembers: histories, latencies, noise and bias of every kind."""

from __future__ import annotations

import dataclasses
from typing import Any

from helpers.probe import obs_term, walker_cfg

from unilab_gym.config import DelayCfg, EnvCfg, GaussianNoiseCfg, UniformNoiseCfg
from unilab_gym.mdp import observations

GAUSS = GaussianNoiseCfg(std=0.1)
UNIFORM = UniformNoiseCfg(low=-0.1, high=0.1)


def memory_cfg(folder: Any, **changes: Any) -> EnvCfg:
    """Policy: delays of every kind, histories of 0, 2 and 4 frames. Critic: `[N, 3, D]`."""
    cfg = walker_cfg(folder)
    policy, critic = cfg.observations["policy"], cfg.observations["critic"]
    terms = {
        **policy.terms,
        "gravity": obs_term(
            observations.projected_gravity, noise=GAUSS, bias=UNIFORM, delay=2, history=4
        ),
        "joint_pos": obs_term(
            observations.joint_pos_rel, noise=UNIFORM, bias=GAUSS, delay=(0, 3), history=2
        ),
        "joint_vel": obs_term(
            observations.joint_vel,
            noise=GAUSS,
            scale=0.1,
            delay=DelayCfg(steps=(0, 2), redraw=5, shared="bus"),
        ),
        "velocity": obs_term(
            observations.base_lin_vel,
            bias=UNIFORM,
            clip=(-1.0, 1.0),
            delay=DelayCfg(steps=(0, 2), redraw=5, shared="bus"),
        ),
    }
    groups = {
        "policy": dataclasses.replace(policy, terms=terms, delay=(1, 2)),
        "critic": dataclasses.replace(critic, history=3, flatten=False, delay=1),
    }
    actions = {name: dataclasses.replace(term, delay=(0, 3)) for name, term in cfg.actions.items()}
    return dataclasses.replace(cfg, observations=groups, actions=actions, **changes)

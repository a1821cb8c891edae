"""Cases of the field that ask for Go2 and many rows: small on the CPU, as asked on CUDA."""

import dataclasses

import pytest
import torch
from helpers.crate import rank_correlation
from helpers.face import ACTIONS, actions, make_go2
from helpers.go2 import FEET

import unilab_gym
from unilab_gym.config import EventTermCfg, ObservationGroupCfg, ObservationTermCfg
from unilab_gym.mdp import randomization as dr
from unilab_gym.model_index import FieldSlice, Stage
from unilab_gym.runtime.reads import EngineRead, GeomPos
from unilab_gym.runtime.term import term
from unilab_gym.tasks.go2_joystick_flat import env_cfg

cuda = pytest.mark.cuda
DEVICES = [
    ("mujoco", "cpu", 16),
    ("mjwarp", "cpu", 16),
    *(pytest.param("mjwarp", "cuda", n, marks=cuda) for n in (64, 128, 4096)),
]


@dataclasses.dataclass(frozen=True, eq=False)
class VerticalForce(EngineRead):
    """What contacts push the robot up with in the last substep, `[N, 1]`, N."""

    def resolve(self, index):
        return FieldSlice("qfrc_constraint", (2,), (1,), Stage.ACC)


@term(reads=(VerticalForce(),), width=1)
def vertical_force(frame):
    return frame[VerticalForce()]


@term(reads=(GeomPos(tuple(FEET)),), width=1)
def feet_y(frame):
    return frame[GeomPos(tuple(FEET))][..., 1].mean(-1)


def heavy_and_slippery():
    """Go2 whose trunk and feet are drawn at the start and again at every reset."""
    mass = {"body": "base", "scale": (0.5, 1.5)}
    slide = {"geoms": FEET, "slide": (0.1, 1.2)}
    cfg = env_cfg()
    extra = {
        name: ObservationGroupCfg(terms={name: ObservationTermCfg(func=func)})
        for name, func in (("force", vertical_force), ("feet_y", feet_y))
    }
    return dataclasses.replace(
        cfg,
        events={
            "mass": EventTermCfg(func=dr.RandomizeBodyMass, mode="startup", params=mass),
            "slide": EventTermCfg(func=dr.RandomizeFriction, mode="startup", params=slide),
            "mass_again": EventTermCfg(func=dr.RandomizeBodyMass, mode="reset", params=mass),
            "slide_again": EventTermCfg(func=dr.RandomizeFriction, mode="reset", params=slide),
        },
        terminations={"time_out": cfg.terminations["time_out"]},
        observations={**cfg.observations, **extra},
    )


def stand(env, steps):
    for _ in range(steps):
        env.step(torch.zeros(env.num_envs, ACTIONS, device=env.device))


@pytest.mark.parametrize(("backend", "device", "n"), DEVICES)
def test_mass_and_friction_are_felt_and_change_again_at_a_reset(backend, device, n):
    """E10: each robot's feet carry its own weight; a shove slides slippery ones farther."""
    env = unilab_gym.make(heavy_and_slippery(), num_envs=n, backend=backend, device=device, seed=0)
    engine, index = env.runtime.backend, env.runtime.index
    every = torch.ones(n, dtype=torch.bool, device=env.device)
    env.reset()
    stand(env, 50)
    before = {name: engine.get_model_field(name) for name in ("body_mass", "geom_friction")}
    env.reset(options={"reset_mask": every})
    for name, values in before.items():
        changed = (engine.get_model_field(name) != values).flatten(1).any(1)
        assert changed.all(), name
    stand(env, 100)
    weight = engine.get_model_field("body_mass").sum(1) * 9.81
    assert weight.max() / weight.min() > 1.3
    assert torch.allclose(env.runtime.state.obs["force"][:, 0], weight, rtol=0.03)
    state = engine.get_state()
    state[:, index.qvel_offset + 1] = 0.7
    engine.set_state(state, every)
    # The feet tell: a robot whose feet stick sways on its legs.
    place = env.runtime.state.obs["feet_y"][:, 0]
    start, moved = place.clone(), torch.zeros_like(place)
    for _ in range(40):
        stand(env, 1)
        moved = torch.maximum(moved, (place - start).abs())
    feet = [index.geoms[name].index for name in FEET]
    friction = engine.get_model_field("geom_friction")[:, feet[0], 0]
    assert rank_correlation(-friction.cpu(), moved.cpu()) > 0.8
    env.close()


@pytest.mark.parametrize(
    ("device", "n", "steps"), [("cpu", 8, 12), pytest.param("cuda", 1024, 200, marks=cuda)]
)
def test_two_runs_of_one_seed_on_mjwarp(device, n, steps):
    """E55: the first observation, one step, and the mean reward of many; on the CPU every bit."""
    runs = []
    for _ in range(2):
        env = make_go2(n, seed=4, backend="mjwarp", device=device)
        obs, _ = env.reset(seed=4)
        chosen = [action.to(env.device) for action in actions(steps, n)]
        env.step(chosen[0])
        one_step = env.runtime.backend.views().qpos.clone()
        rewards = [env.step(action)[1] for action in chosen[1:]]
        runs.append((obs, one_step, torch.stack(rewards)))
        env.close()
    (obs, one_step, rewards), (other_obs, other_step, others) = runs
    assert (obs - other_obs).abs().max() <= 1e-6
    assert (one_step - other_step).abs().max() <= 1e-4
    assert (rewards.mean() - others.mean()).abs() <= 0.02 * rewards.mean().abs()
    if device == "cpu":
        assert torch.equal(rewards, others) and torch.equal(one_step, other_step)

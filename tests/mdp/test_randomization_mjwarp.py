"""Randomization on MuJoCo-Warp's CPU device: the captured graphs see what is written.

One environment with every model term at once; each test writes or resets it anew.
"""

import pytest
import torch
from helpers.crate import DISTURBANCES, WIDE, event, make_crate, rank_correlation, swing

from unilab_gym.backends.base import MODEL_FIELDS, RecomputeLevel

pytest.importorskip("mujoco_warp")

N = 6
EVENTS = {name: event(name) for name in WIDE} | {
    "mass": event("mass"),
    "friction_again": event("friction", "reset", slide=(0.1, 1.2), each=False),
    "mass_again": event("mass", "reset", body="arm", scale=(0.5, 2.0)),
    **{name: event(name, "interval") for name in DISTURBANCES},
}


@pytest.fixture(scope="module")
def envs(tmp_path_factory):
    """Both engines with every term and disturbance."""
    folder = tmp_path_factory.mktemp("crate")
    built = {name: make_crate(folder, EVENTS, N, name) for name in ("mujoco", "mjwarp")}
    yield built
    for env in built.values():
        env.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """MuJoCo-Warp with every field declared and nothing drawn."""
    folder = tmp_path_factory.mktemp("crate")
    neutral = {
        "mass": event("mass", scale=(1.0, 1.0)),
        "com": event("com", add=(0.0, 0.0)),
        "armature": event("armature", add=(0.0, 0.0)),
        "damping": event("damping", abs=None, scale=(1.0, 1.0)),
        "dry": event("joint_friction", scale=(1.0, 1.0)),
        "gains": event("gains", kp=(1.0, 1.0), kd=(1.0, 1.0)),
        "effort": event("effort", scale=(1.0, 1.0)),
        "gravity": event("gravity", add=(0.0, 0.0)),
        "friction": event("friction", slide=(1.0, 1.0), operation="scale"),
    }
    env = make_crate(folder, neutral, N, "mjwarp")
    yield env
    env.close()


def test_both_engines_hold_the_same_draws(envs):
    """E22: read-back differs between environments, and agrees between engines."""
    backends = [env.runtime.backend for env in envs.values()]
    for env in envs.values():
        env.reset(seed=5)
    for name in MODEL_FIELDS:
        c, w = (backend.get_model_field(name) for backend in backends)
        assert torch.allclose(c, w, rtol=2e-6, atol=1e-8), name
        assert torch.unique(w.flatten(1), dim=0).shape[0] == N, name


def test_randomized_motion_agrees_between_engines(envs):
    """E10, E28: eleven model terms and three disturbances, one control step from each state."""
    c, w = envs["mujoco"], envs["mjwarp"]
    for env in (c, w):
        env.reset(seed=7)
    every = torch.ones(N, dtype=torch.bool)
    pushed = 0
    for step in range(14):
        state = c.runtime.backend.get_state().float()
        for env in (c, w):
            backend = env.runtime.backend
            backend.set_state(state.to(backend.get_state().dtype), every)
        left, right = (swing(env, 1)[0] for env in (c, w))
        nq = c.runtime.index.nq
        assert (left - right)[:, :nq].abs().max() <= 2e-6, step
        assert (left - right)[:, nq:].abs().max() <= 2e-4, step
        staged = [env.runtime.rt.events.interval for env in (c, w)]
        for part in ("qvel_delta", "body_wrench"):
            a, b = (getattr(payload, part) for payload in staged)
            assert torch.allclose(a, b, rtol=1e-6, atol=1e-7), part
            pushed += int(a.any())
    assert pushed >= 4


@pytest.mark.parametrize("name", MODEL_FIELDS)
def test_every_field_takes_effect_in_a_captured_graph(plain, name):
    """A write after capture moves the written rows only, and undoing it restores every bit."""
    backend = plain.runtime.backend
    plain.reset(seed=0)
    start = backend.get_state()
    start[:, plain.runtime.index.qvel_offset] = 0.8  # the feet slide
    every, mask = torch.ones(N, dtype=torch.bool), torch.arange(N) % 2 == 0
    level = RecomputeLevel.ALL if name.startswith(("body", "dof_arm")) else RecomputeLevel.NONE

    def run():
        backend.set_state(start, every)
        return swing(plain, 2, amplitude=1.0 if name == "actuator_forcerange" else 0.1)[-1]

    expected = run()
    nominal = backend.get_model_field(name)
    changed = nominal + 0.02 if name == "body_ipos" else nominal * 0.7
    backend.set_model_fields({name: changed}, mask, level)
    moved = run()
    assert ((moved - expected).abs().amax(1) > 1e-6).tolist() == mask.tolist()
    assert torch.equal(moved[~mask], expected[~mask])
    backend.set_model_fields({name: nominal}, mask, level)
    assert torch.equal(run(), expected)


def test_mass_and_friction_change_again_at_a_reset(envs):
    """E10: the weight that the feet feel is the new mass x g."""
    env = envs["mjwarp"]
    backend = env.runtime.backend
    env.reset(seed=1)
    before = {name: backend.read_back(name) for name in ("body_mass", "geom_friction")}
    mask = torch.tensor([True, True, True, False, False, False])
    env.reset(options={"reset_mask": mask})
    for name, values in before.items():
        changed = (backend.read_back(name) != values).flatten(1).any(1)
        assert changed.tolist() == mask.tolist(), name


def test_two_hundred_resets_start_from_the_nominal_value_each_time(envs):
    """E08: the mass of a row stays in its range, the last resets spread as the first."""
    env = envs["mjwarp"]
    backend = env.runtime.backend
    arm = env.runtime.index.bodies["arm"]
    row = torch.arange(N) == 0
    factors, slides = [], []
    for _ in range(200):
        env.reset(options={"reset_mask": row})
        factors.append(backend.read_back("body_mass", "arm")[0] / backend.nominal("body_mass")[arm])
        slides.append(backend.read_back("geom_friction", "fl")[0, 0])
    factors, slides = torch.stack(factors), torch.stack(slides)
    assert factors.min() >= 0.5 - 1e-6 and factors.max() <= 2.0 + 1e-6
    assert slides.min() >= 0.1 - 1e-6 and slides.max() <= 1.2 + 1e-6
    assert abs(factors.mean() - 1.25) < 0.1 and abs(slides.mean() - 0.65) < 0.1
    for values in (factors, slides):
        spreads = values[:50].std(), values[-50:].std()
        assert 0.7 < spreads[0] / spreads[1] < 1.4


def test_the_feet_carry_the_own_weight(plain):
    backend = plain.runtime.backend
    plain.reset(seed=0)
    mass, inertia = backend.read_back("body_mass"), backend.read_back("body_inertia")
    factor = torch.linspace(0.5, 1.5, N)
    every = torch.ones(N, dtype=torch.bool)
    fields = {
        "body_mass": mass * factor.view(-1, 1),
        "body_inertia": inertia * factor.view(-1, 1, 1),
    }
    backend.set_model_fields(fields, every, RecomputeLevel.ALL)
    swing(plain, 25, amplitude=0.0)
    load = plain.step(torch.zeros(N, 1))[0][:, 1:].sum(1)
    weight = backend.read_back("body_mass").sum(1) * 9.81
    assert torch.allclose(load, weight, rtol=0.03)
    backend.set_model_fields(
        {"body_mass": mass, "body_inertia": inertia}, every, RecomputeLevel.ALL
    )


def test_mass_and_friction_of_64_environments_are_felt_after_a_reset(tmp_path):
    """E10, N10: drawn at the start, run, drawn anew by a reset; weight, sliding, MuJoCo C."""
    mass = {"base": event("mass"), "again": event("mass", "reset")}
    slide = {"feet": event("friction"), "feet_again": event("friction", "reset", each=False)}
    w = make_crate(tmp_path, mass | slide, 64, "mjwarp")
    backend, index = w.runtime.backend, w.runtime.index
    swing(w, 50, amplitude=0.0)
    names = backend.spec.model_fields
    before = {name: backend.get_model_field(name) for name in names}
    every = torch.ones(64, dtype=torch.bool)
    w.reset(options={"reset_mask": every})
    for name in ("body_mass", "geom_friction"):
        assert (backend.get_model_field(name) != before[name]).flatten(1).any(1).all(), name
    swing(w, 30, amplitude=0.0)
    load = w.step(torch.zeros(64, 1))[0][:, 1:].sum(1)
    weight = backend.read_back("body_mass").sum(1) * 9.81
    assert weight.max() / weight.min() > 2.0
    assert torch.allclose(load, weight, rtol=0.03)

    state = backend.get_state()
    state[:, index.qvel_offset] = 1.5  # a shove
    backend.set_state(state, every)
    start = backend.views().qpos[:, 0].clone()
    moved = swing(w, 1, amplitude=0.0)[0]
    swing(w, 80, amplitude=0.0)
    friction = backend.read_back("geom_friction", "fl")[:, 0]
    assert rank_correlation(-friction, backend.views().qpos[:, 0] - start) > 0.95

    c = make_crate(tmp_path, mass | slide, 4, "mujoco")
    four = torch.ones(4, dtype=torch.bool)
    fields = {name: backend.get_model_field(name)[:4] for name in names}
    c.runtime.backend.set_model_fields(fields, four, RecomputeLevel.ALL)
    c.runtime.backend.set_state(state[:4].double(), four)
    difference = (swing(c, 1, amplitude=0.0)[0] - moved[:4]).abs()
    assert difference[:, : index.nq].max() <= 2e-6 and difference[:, index.nq :].max() <= 2e-4
    w.close(), c.close()

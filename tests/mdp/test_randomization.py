"""Randomization: what is drawn, around which nominal value, and what it does to physics."""

import itertools
import math

import pytest
import torch
from helpers.crate import (
    DISTURBANCES,
    FEET,
    MJCF,
    WIDE,
    event,
    make_crate,
    rank_correlation,
    swing,
)
from helpers.face import ROOT
from helpers.probe import context, ready

from unilab_gym.backends.base import Capabilities
from unilab_gym.backends.capabilities import CAPABILITIES
from unilab_gym.config import ObservationTermCfg, SceneCfg, SimCfg
from unilab_gym.errors import ConfigError, UnsupportedCapabilityError
from unilab_gym.mdp import observations
from unilab_gym.mdp import randomization as dr
from unilab_gym.mdp.distributions import make_draw
from unilab_gym.scene import build_scene

N = 4000


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    path = tmp_path_factory.mktemp("mjcf") / "crate.xml"
    path.write_text(MJCF)
    return build_scene(SceneCfg(robot=str(path)), SimCfg(), 0.005)


def context_of(scene, n=N):
    return context(n, scene.index, model=scene.model)


# --- distributions ------------------------------------------------------------------------------


def draws(distribution, bounds):
    ctx = context(20000)
    draw = make_draw(ctx, 2, "x", bounds, distribution)
    ready(ctx)
    return draw()


def test_a_log_uniform_draw_is_uniform_in_the_logarithm():
    values = draws("log_uniform", (0.1, 10.0))
    logs = values.log10()
    assert logs.min() >= -1.0001 and logs.max() <= 1.0001
    assert abs(logs.mean()) < 0.02 and abs(logs.var() - 4 / 12) < 0.01
    assert abs((values < 1.0).float().mean() - 0.5) < 0.01


def test_a_gaussian_draw_has_its_moments_and_bounds():
    values = draws("gaussian", (3.0, 0.5))
    z = (values - 3.0) / 0.5
    assert abs(z.mean()) < 0.02 and abs(z.std() - 1.0) < 0.015
    assert abs((z.abs() < 1.0).float().mean() - 0.6827) < 0.01
    assert abs(z.pow(4).mean() - 3.0) < 0.15
    assert z.abs().max() <= 4.0 + 1e-3
    assert abs((z[:, 0] * z[:, 1]).mean()) < 0.02  # columns are independent
    assert draws("gaussian", (3.0, 0.0)).unique().tolist() == [3.0]


def test_operations_on_known_numbers(scene):
    """Degenerate ranges: abs 2 -> 2, add 0.5 -> nominal + 0.5, scale 3 -> 3 x nominal."""
    for operation, expected in (("abs", 2.0), ("add", 0.55), ("scale", 0.15)):
        ctx = context_of(scene, 3)
        value = {"abs": 2.0, "add": 0.5, "scale": 3.0}[operation]
        damping = dr.RandomizeJointDamping(ctx, **{operation: (value, value)})
        ready(ctx)
        fields = {"dof_damping": ctx.nominal("dof_damping").repeat(3, 1)}
        damping.apply(fields)
        swing_dof = scene.index.joint("swing").dof_adr
        assert fields["dof_damping"][:, swing_dof].tolist() == pytest.approx([expected] * 3)
        assert not fields["dof_damping"][:, :6].any()


def test_the_inertia_follows_the_mass(scene):
    ctx = context_of(scene, 5)
    ctx.owner = "a"
    mass = dr.RandomizeBodyMass(ctx, body="base", scale=(2.0, 2.0))
    ctx.owner = "b"
    inertia = dr.RandomizeBodyInertia(ctx, body=("base", "arm"), scale=(3.0, 3.0))
    ready(ctx)
    nominal = {name: ctx.nominal(name) for name in ("body_mass", "body_inertia")}
    fields = {name: value.repeat(5, *[1] * value.dim()) for name, value in nominal.items()}
    mass.apply(fields), inertia.apply(fields)
    base, arm = scene.index.bodies["base"], scene.index.bodies["arm"]
    ratio = fields["body_inertia"] / nominal["body_inertia"]
    assert torch.allclose(ratio[:, base], torch.tensor(6.0))
    assert torch.allclose(ratio[:, arm], torch.tensor(3.0))
    assert torch.allclose(
        fields["body_mass"][:, base] / nominal["body_mass"][base], torch.tensor(2.0)
    )
    assert torch.equal(fields["body_mass"][:, arm], nominal["body_mass"][arm].expand(5))


def test_each_geom_or_one_for_all(scene):
    for each in (True, False):
        ctx = context_of(scene, 6)
        term = dr.RandomizeFriction(
            ctx, geoms=FEET, slide=(0.1, 1.0), roll=(0.0, 1e-3), spin=(5e-3, 6e-3), each=each
        )
        ready(ctx)
        fields = {"geom_friction": ctx.nominal("geom_friction").repeat(6, 1, 1)}
        term.apply(fields)
        feet = fields["geom_friction"][:, [scene.index.geoms[name].index for name in FEET]]
        for column in range(3):
            assert feet[:, :, column].unique().numel() == (24 if each else 6)
        assert feet[..., 1].min() >= 5e-3 and feet[..., 2].max() <= 1e-3


# --- refused when it is built ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "params", "message"),
    [
        (dr.RandomizeBodyMass, {"body": "base", "add": (-9.0, 1.0)},
         r"add: add \(-9.0, 1.0\) \(uniform\) can make a nominal 4.2 become -4.8"),
        (dr.RandomizeBodyMass, {"body": "base", "scale": (0.0, 1.0)}, "lowest possible value"),
        (dr.RandomizeBodyMass, {"body": "arm", "abs": (1.0, 0.3), "distribution": "gaussian"},
         "can make a nominal 0.3 become -0.2"),
        (dr.RandomizeBodyMass, {"body": "arm"}, "exactly one of add, scale, abs is needed"),
        (dr.RandomizeBodyMass, {"body": "arm", "add": (0, 1), "abs": (1, 2)}, "got add, abs"),
        (dr.RandomizeFriction, {"geoms": FEET}, "one of slide, spin, roll is needed"),
        (dr.RandomizeFriction, {"geoms": FEET, "slide": (-1.0, 0.0), "operation": "add"},
         "can make a nominal 0.8 become -0.2"),
        (dr.RandomizeFriction, {"geoms": FEET, "slide": (1, 2), "operation": "mul"},
         "operation 'mul'; available: abs, add, scale"),
        (dr.RandomizeGains, {"kp": (0.0, 1.0)}, "kp: scale"),
        (dr.RandomizeGains, {"kd": (-1.0, 1.0), "operation": "add"}, "kd: add"),
        (dr.RandomizeEffortLimit, {"add": (-4.0, 0.0)}, "can make a nominal 3 become -1"),
        (dr.RandomizeJointDamping, {"add": (-1.0, 0.0)}, "can make a nominal 0.05 become -0.95"),
        (dr.RandomizeJointArmature, {"scale": (0.5, math.inf)}, "become"),
        (dr.RandomizeGravity, {}, "exactly one of add, scale is needed, got none"),
        (dr.RandomizeBodyInertia, {"body": "arm", "scale": (-1.0, 1.0)}, "become -1"),
        (dr.RandomizeBodyCom, {"body": "arm", "add": (0.0, 1.0), "distribution": "log_uniform"},
         "log_uniform needs 0 < low"),
        (dr.RandomizeBodyCom, {"body": "arm", "add": (0.0, 1.0), "distribution": "normal"},
         "distribution 'normal'"),
        (dr.RandomizeEncoderBias, {"add": (0.1, 0.0)}, "low 0.1 exceeds high 0.0"),
        (dr.ApplyBodyWrench, {"body": "arm", "duration_s": 0.1}, "force and torque are both 0"),
        (dr.ApplyBodyWrench, {"body": "arm", "force": (0, 1), "duration_s": 0.001},
         "duration_s must be 0.02 s or more, got 0.001"),
        (dr.ApplyBodyImpulse, {"body": "lag", "impulse": (0, 1)}, "no body matches 'lag'"),
    ],
)  # fmt: skip
def test_impossible_ranges(scene, cls, params, message):
    with pytest.raises(ConfigError, match=message):
        cls(context_of(scene, 1), **params)


def test_a_factor_on_nothing_is_refused(scene):
    """E22: an accepted term without any effect is the fault; so it is refused."""
    model = scene.model.__copy__()
    model.dof_damping[:] = 0.0
    ctx = context(1, scene.index, model=model)
    with pytest.raises(
        ConfigError, match="dof_damping is 0 at every joint, a factor has no effect"
    ):
        dr.RandomizeJointDamping(ctx, scale=(0.5, 2.0))


def test_actuators_without_a_limit_have_no_limit_to_change(scene):
    import dataclasses

    free = dataclasses.replace(scene.index.actuators[0], effort=math.inf)
    index = dataclasses.replace(scene.index, actuators=(free,))
    with pytest.raises(ConfigError, match="actuators without a force limit: motor"):
        dr.RandomizeEffortLimit(context(1, index, model=scene.model), scale=(0.5, 1.0))


# --- physics follows, on MuJoCo C -----------------------------------------------------------------


@pytest.mark.parametrize("name", WIDE)
def test_every_term_moves_every_environment_differently(tmp_path, name):
    """E22: 32 envs; no row keeps the nominal motion, no two rows move alike."""
    plain = make_crate(tmp_path, num_envs=1)
    env = make_crate(tmp_path, {name: event(name)}, num_envs=32)
    amplitude = 3.0 if name == "effort" else 0.8
    if name in ("friction", "mass"):  # felt where the feet slide
        for one in (plain, env):
            delta = one.runtime.backend.get_state()
            delta[:, one.runtime.index.qvel_offset] = 1.0
            one.runtime.backend.set_state(delta, torch.ones(one.num_envs, dtype=torch.bool))
    nominal, moved = swing(plain, 30, amplitude)[-1], swing(env, 30, amplitude)[-1]
    assert ((moved - nominal).abs().amax(1) > 1e-6).all()
    assert torch.unique(moved, dim=0).shape[0] == 32
    for field in env.runtime.backend.spec.model_fields:
        if field not in ("body_inertia",) or name in ("mass", "inertia"):
            values = env.runtime.backend.get_model_field(field).flatten(1)
            if name != "encoder" or field == "actuator_biasprm":
                assert torch.unique(values, dim=0).shape[0] == 32, field
    plain.close(), env.close()


@pytest.mark.parametrize("name", DISTURBANCES)
def test_every_disturbance_moves_every_environment(tmp_path, name):
    plain = make_crate(tmp_path, num_envs=1)
    env = make_crate(tmp_path, {name: event(name, "interval")}, num_envs=8)
    nominal, moved = swing(plain, 12), swing(env, 12)
    assert torch.equal(nominal[:5].expand(-1, 8, -1), moved[:5])  # due at 0.1 s, felt after it
    assert ((moved[5] - nominal[5]).abs().amax(1) > 1e-4).all()
    plain.close(), env.close()


def test_the_feet_carry_the_own_weight(tmp_path):
    """N10: standing still, the vertical force of each env is its own mass x g within 3 %."""
    env = make_crate(tmp_path, {"mass": event("mass")}, num_envs=16)
    swing(env, 60, amplitude=0.0)
    load = env.step(torch.zeros(16, 1))[0][:, 1:].sum(1)
    mass = env.runtime.backend.read_back("body_mass").sum(1)
    assert mass.max() / mass.min() > 1.8
    assert torch.allclose(load, mass * 9.81, rtol=0.03)
    env.close()


def test_low_friction_slides_farther(tmp_path):
    """N10: rank correlation of friction and sliding distance after a shove."""
    env = make_crate(tmp_path, {"friction": event("friction", each=False)}, num_envs=16)
    swing(env, 20, amplitude=0.0)
    backend = env.runtime.backend
    state = backend.get_state()
    state[:, env.runtime.index.qvel_offset] = 1.5
    start = backend.views().qpos[:, 0].clone()
    backend.set_state(state, torch.ones(16, dtype=torch.bool))
    swing(env, 100, amplitude=0.0)
    distance = backend.views().qpos[:, 0] - start
    slide = backend.read_back("geom_friction", "fl")[:, 0]
    assert rank_correlation(-slide, distance) > 0.95
    env.close()


def test_a_wrench_gives_its_impulse_and_ends(tmp_path):
    """F = 20 N for 0.1 s on 4.5 kg in the air: dv = F t / m; then nothing more."""
    wrench = event("wrench", "interval", body="base", force=(20.0, 20.0), torque=(0.0, 0.0))
    kick = event("impulse", "interval", impulse=(2.0, 2.0))
    for name, cfg, steps in (("wrench", wrench, 5), ("impulse", kick, 1)):
        env = make_crate(tmp_path, {name: cfg, "g": event("gravity", add=None, scale=(0.0, 0.0))})
        backend, index = env.runtime.backend, env.runtime.index
        swing(env, 5, amplitude=0.0)
        before = backend.views().qvel[:, :3].clone()
        swing(env, steps, amplitude=0.0)
        gained = (backend.views().qvel[:, :3] - before).mean(1)
        mass = (
            backend.nominal("body_mass").sum() if "body_mass" in backend.spec.model_fields else 4.5
        )
        # xfrc acts on the base; the arm's inertia comes along through the joint.
        assert torch.allclose(gained, torch.tensor(2.0 / mass), rtol=0.05), name
        env.close()
        assert index.floating


def test_a_reset_ends_a_wrench(tmp_path):
    env = make_crate(tmp_path, {"wrench": event("wrench", "interval", body="base")}, num_envs=4)
    mask = torch.tensor([True, False, True, False])
    swing(env, 5, amplitude=0.0)
    staged = env.runtime.rt.events.interval.body_wrench
    assert staged.any(1).all()
    env.reset(options={"reset_mask": mask})
    assert staged.any(1).tolist() == (~mask).tolist()
    swing(env, 1, amplitude=0.0)
    felt = torch.from_numpy(env.runtime.backend.batch.bind("xfrc_applied").copy()).flatten(1)
    assert felt.any(1).tolist() == (~mask).tolist()
    env.close()


def test_an_encoder_bias_is_seen_and_felt(tmp_path):
    """At rest the wrong encoder agrees with the target: q + b = target, and the policy sees it."""
    terms = {
        "true": ObservationTermCfg(func=observations.joint_pos_rel),
        "seen": ObservationTermCfg(func=observations.joint_pos_measured),
    }
    events = {
        "encoder": event("encoder", "reset"),
        "gains": event("gains"),
        "g": event("gravity", add=None, scale=(0.0, 0.0)),
        "dry": event("joint_friction", scale=None, abs=(0.0, 0.0)),
    }
    env = make_crate(tmp_path, events, num_envs=12, observations_=terms)
    bias = env.runtime.rt.events.models._reset.events[0].bias
    for _ in range(2):
        for _ in range(150):
            obs, *_ = env.step(torch.zeros(12, 1))
        assert bias.abs().max() > 0.05 and bias.unique().numel() == 12
        assert torch.allclose(obs[:, 0], -bias[:, 0], atol=2e-3)
        assert torch.allclose(obs[:, 1], obs[:, 0] + bias[:, 0])
        before = bias.clone()
        mask = torch.arange(12) % 2 == 0
        env.reset(options={"reset_mask": mask})
        assert (bias != before).any(1).tolist() == mask.tolist()
    env.close()


# --- from the nominal value, at resets and by countdown -------------------------------------------


def test_200_resets_never_leave_the_nominal_range(tmp_path):
    """E08."""
    events = {
        "mass": event("mass", "reset", scale=(0.8, 1.2)),
        "friction": event("friction", "reset", slide=(-0.1, 0.1), operation="add", each=False),
        "gains": event("gains", "reset", kp=(0.9, 1.1), kd=(0.9, 1.1)),
    }
    env = make_crate(tmp_path, events, num_envs=3)
    backend = env.runtime.backend
    seen = {"mass": [], "inertia": [], "friction": [], "kp": []}
    first = torch.tensor([True, False, False])
    others = None
    for _ in range(200):
        env.reset(options={"reset_mask": first})
        seen["mass"].append(backend.read_back("body_mass", "base")[0])
        seen["inertia"].append(backend.read_back("body_inertia", "base")[0, 0])
        seen["friction"].append(backend.read_back("geom_friction", "fl")[0, 0])
        seen["kp"].append(backend.read_back("actuator_gainprm", "motor")[0, 0])
        rest = backend.read_back("body_mass")[1:]
        others = rest if others is None else others
        assert torch.equal(rest, others)
    nominal = {
        "mass": backend.nominal("body_mass")[1],
        "inertia": backend.nominal("body_inertia")[1, 0],
        "friction": torch.tensor(0.8),
        "kp": torch.tensor(12.0),
    }
    widths = {"mass": 0.2, "inertia": 0.2, "friction": 0.125, "kp": 0.1}
    for name, values in seen.items():
        ratio = torch.stack(values) / nominal[name]
        width = widths[name]
        assert ratio.min() >= 1 - width - 1e-5 and ratio.max() <= 1 + width + 1e-5, name
        assert ratio.max() - ratio.min() > 1.8 * width, name  # the range is filled
        assert abs(ratio.mean() - 1) < 0.02, name
        early, late = ratio[:50].std(), ratio[-50:].std()
        assert 0.7 < early / late < 1.4, name
    env.close()


def test_neutral_ranges_keep_the_nominal_bits(tmp_path):
    """E08: [1, 1] and [0, 0] are bitwise "off", through 60 steps with resets."""
    neutral = {
        "mass": event("mass", "reset", scale=(1.0, 1.0)),
        "friction": event("friction", "reset", slide=(0.0, 0.0), operation="add"),
        "gains": event("gains", kp=(1.0, 1.0), kd=(1.0, 1.0)),
        "gravity": event("gravity", add=None, scale=(1.0, 1.0)),
    }
    runs = []
    for events in (neutral, {}):
        env = make_crate(tmp_path, events, num_envs=3)
        parts = [swing(env, 30)]
        env.reset(options={"reset_mask": torch.tensor([False, True, True])})
        runs.append(torch.cat([*parts, swing(env, 30)]))
        env.close()
    assert torch.equal(*runs)


def test_a_reset_term_starts_from_what_startup_drew(tmp_path):
    """Start-up and reset terms on one field compose, and do not drift."""
    events = {
        "mass": event("mass", scale=(2.0, 2.0)),
        "again": event("mass", "reset", body="arm", scale=(0.5, 0.5)),
    }
    env = make_crate(tmp_path, events, num_envs=2)
    nominal = env.runtime.backend.nominal("body_mass")
    for _ in range(4):
        env.reset()
        ratio = env.runtime.backend.read_back("body_mass")[:, 1:] / nominal[1:]
        assert ratio.flatten().tolist() == pytest.approx([2.0, 0.5] * 2)
    env.close()


def test_a_countdown_changes_the_model_before_the_next_physics(tmp_path):
    env = make_crate(tmp_path, {"gains": event("gains", "interval")}, num_envs=4)
    backend = env.runtime.backend
    history = []
    for step in range(1, 17):
        if step == 10:
            env.reset(options={"reset_mask": torch.tensor([True, False, False, False])})
        swing(env, 1)
        history.append(backend.read_back("actuator_gainprm", "motor")[:, 0])
    changes = [(after != before).tolist() for before, after in itertools.pairwise(history)]
    when = [[i + 2 for i, row in enumerate(changes) if row[env_]] for env_ in range(4)]
    # Staged at the boundary of steps 5, 10 and 15, written before the physics of the step after;
    # row 0 restarted its countdown at the reset before step 10.
    assert when[1:] == [[6, 11, 16]] * 3
    assert when[0] == [6, 15]
    env.close()


def test_constants_are_recomputed_only_for_what_needs_them(tmp_path):
    """Friction per reset never touches derived constants; mass does, in its rows."""
    env = make_crate(tmp_path, {"mass": event("mass"), "f": event("friction", "reset")}, num_envs=3)
    calls = []
    batch = env.runtime.backend._batch

    class Spy:
        def __getattr__(self, name):
            if name == "set_const":
                calls.append(name)
            return getattr(batch, name)

    env.runtime.backend._batch = Spy()
    env.reset()
    assert calls == []
    env.reset(seed=1)
    assert calls == ["set_const"]
    env.close()


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ({"a": event("mass", "reset"), "b": event("mass", "interval", body="arm")},
         r"events/b: model field 'body_mass' is written by 'a' \(mode 'reset'\) too"),
        ({"a": event("gains", "interval"), "b": event("gains", "interval")},
         r"events/b: model field 'actuator_gainprm' is written by 'a'"),
        ({"a": event("impulse", "interval"), "b": event("wrench", "interval", body="base")},
         r"events/b: body 1 is pushed by 'a' too"),
        ({"a": event("encoder", "interval")}, "events/a: mode 'interval' takes a"),
        ({"a": event("mass", scale=(-1.0, 1.0))}, "events/a: scale: scale"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(tmp_path, events, message):
    with pytest.raises(ConfigError, match=message):
        make_crate(tmp_path, events, num_envs=1)


def test_the_measured_position_needs_its_bias(tmp_path):
    terms = {"seen": ObservationTermCfg(func=observations.joint_pos_measured)}
    with pytest.raises(ConfigError, match="no manager provides 'JointBias"):
        make_crate(tmp_path, num_envs=1, observations_=terms)


def test_reading_back_by_name(tmp_path):
    env = make_crate(tmp_path, {"mass": event("mass"), "g": event("gravity")}, num_envs=2)
    backend = env.runtime.backend
    assert backend.read_back("body_mass", "base").shape == (2,)
    assert backend.read_back("body_inertia", "arm").shape == (2, 3)
    assert backend.read_back("opt.gravity").shape == (2, 3)
    with pytest.raises(ConfigError, match="no body 'bas'; did you mean 'base'"):
        backend.read_back("body_mass", "bas")
    with pytest.raises(ConfigError, match=r"'opt.gravity' has no rows by name, 'base'"):
        backend.read_back("opt.gravity", "base")
    with pytest.raises(ConfigError, match="'dof_damping'"):
        backend.read_back("dof_damping")
    env.close()


# --- term x backend -------------------------------------------------------------------------------


def test_the_table_tells_what_each_backend_does():
    weak = Capabilities(
        name="weak", device_types=("cpu",), model_fields=("body_mass",), interval=()
    )
    table = dr.randomization_table([*CAPABILITIES.values(), weak])
    rows = {line.split("|")[1].strip(" `"): line for line in table.splitlines()[2:]}
    assert set(rows) == {cls.__name__ for cls in dr.EVENTS}
    assert all(line.count("| yes") == 2 for line in rows.values())  # both engines, every term
    assert all(line.endswith("| refused |") for line in rows.values())
    assert "constants" in rows["RandomizeBodyMass"] and "constants" not in rows["RandomizeGains"]


def test_a_backend_that_cannot_is_refused_by_name(tmp_path, monkeypatch):
    """E22: construction fails naming the term's field and the backend."""
    import dataclasses

    from unilab_gym.backends.mujoco import MujocoBackend

    weak = dataclasses.replace(
        MujocoBackend.capabilities, name="weak", model_fields=("body_mass",), interval=()
    )
    monkeypatch.setattr(MujocoBackend, "capabilities", weak)
    with pytest.raises(UnsupportedCapabilityError, match=r"'weak'.*'geom_friction'"):
        make_crate(tmp_path, {"f": event("friction")}, num_envs=1)
    with pytest.raises(UnsupportedCapabilityError, match=r"events/p: backend 'weak'.*'qvel_delta'"):
        make_crate(tmp_path, {"p": event("push", "interval")}, num_envs=1)


def test_the_documented_table_is_the_printed_one():
    table = dr.randomization_table(CAPABILITIES.values())
    assert table in (ROOT / "docs" / "randomization.md").read_text()

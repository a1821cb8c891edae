"""A config is taken to the letter or refused by name before the first step; none is changed."""

import copy
import json

import pytest
import torch
from helpers.probe import counter, walker_cfg

import unilab_gym
from unilab_gym.backends import ENGINE_SETTINGS, refuse_idle
from unilab_gym.config import (
    AlgoCfg,
    MetricTermCfg,
    OwnerCfg,
    SimCfg,
    TrainingCfg,
    apply_overrides,
    from_dict,
    to_dict,
)
from unilab_gym.contract import resolve
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import metrics
from unilab_gym.registration import load_task, owner_config, task_ids

POLICY = "observations.policy.terms"

MISTAKES = [
    # keys and names of terms
    ({"sim_dtt": 1}, r"EnvCfg has no 'sim_dtt'; did you mean 'sim_dt'"),
    ({"rewards.trak.weight": 1.0}, r"rewards has no 'trak'; did you mean 'track'"),
    ({"scene.sensors": {"g": {"kind": "gyro", "bdy": "base"}}}, r"scene.sensors.g: unknown .*body"),
    ({"scene.keyframe": "hom"}, r"no keyframe 'hom'; did you mean 'home'"),
    # parameters
    ({"rewards.track.params.sigm": 1.0}, r"rewards/track: .* no parameter 'sigm'; did .*'sigma'"),
    ({"terminations.trunk.params.marginn": 0.1}, r"terminations/trunk: .*'marginn'; .*'margin'"),
    (
        {"commands.twist.params.lin_vel_z": [0, 1]},
        r"commands/twist: .*'lin_vel_z'; did .*lin_vel_y",
    ),
    (
        {"events.push.params.lin_vel": [0, 1]},
        r"events/push: .*'lin_vel'; did you mean .*'lin_vel_xy'",
    ),
    ({"actions.legs.params.bx": 1.0}, r"actions/legs: .*no parameter 'bx'; did you mean 'box'"),
    # patterns
    ({f"{POLICY}.joint_pos.params.joints": ["left_hipp"]}, r"policy/joint_pos: .*'left_hipp'; did"),
    (
        {"actions.legs.params.joints": ["lft.*"]},
        r"actions/legs: no joint matches 'lft.*'; available",
    ),
    ({"actions.legs.params.scale": {"left.*": 1.0, ".*": 2.0}}, r"'left_hip' is claimed with 1.0"),
    (
        {"events.mass.params.body": "bas"},
        r"events/mass: no body matches 'bas'; did you mean 'base'",
    ),
    (
        {"events.friction.params.geoms": ["foot"]},
        r"events/friction: no geom matches 'foot'; did you",
    ),
    ({"terminations.trunk.params.geoms": ["trnk"]}, r"terminations/trunk: no geom matches 'trnk'"),
    # commands
    (
        {"rewards.track.params.command": "twst"},
        r"rewards/track: no manager provides .*'twst'.*; did",
    ),
    ({f"{POLICY}.twist.params.command": "twst"}, r"policy/twist: no manager provides .*; did you"),
    (
        {"metrics.error.params.command": "twst"},
        r"metrics/error: no manager provides .*; did you mean",
    ),
    # what is configured and not computed is checked, too
    ({"rewards.rate.weight": 0.0, "rewards.rate.params.x": 1}, r"rewards/rate: .*no parameter 'x'"),
    (
        {"rewards.track.weight": 0.0, "rewards.track.params.command": "twst"},
        r"rewards/track: no manager provides .*'twst'.*; did you mean",
    ),
    ({"metrics.in_play.params.x": 1}, r"metrics/in_play: .*no parameter 'x'"),
    # values of the wrong kind
    ({"rewards.track.params.sigma": "x"}, r"rewards/track: TypeError: .*'sigma': 'x'"),
    ({"rewards.track.params.sigma": 0.0}, r"rewards/track: ZeroDivisionError: .*'sigma': 0.0"),
    ({"rewards.track.weight": float("nan")}, r"weight must be finite, got nan"),
    ({"events.mass.params.add": ["a", "b"]}, r"events/mass: ValueError: .*'add': \('a', 'b'\)"),
    ({"events.mass.params.add": 1.0}, r"events/mass: TypeError: .*'add': 1.0"),
    ({"actions.legs.params.box": "a"}, r"actions/legs: TypeError: .*'box': 'a'"),
    ({f"{POLICY}.joint_pos.params.joints": 5}, r"policy/joint_pos: TypeError: .*'joints': 5"),
    ({f"{POLICY}.twist.params.width": 2}, r"policy/twist: returns \(2, 3\), declares \[N, 2\]"),
]


def base(tmp_path):
    error = MetricTermCfg(func=metrics.lin_vel_error, params={"command": "twist"})
    in_play = MetricTermCfg(func=counter, play_only=True)
    return walker_cfg(tmp_path, metrics={"error": error, "in_play": in_play})


@pytest.mark.parametrize(("overrides", "message"), MISTAKES)
def test_a_mistake_is_named_before_the_first_step(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        unilab_gym.make(base(tmp_path), 2, backend="mujoco", overrides=overrides)


def test_without_a_mistake_it_is_built_without_registration(tmp_path):
    cfg = base(tmp_path)
    before = copy.deepcopy(to_dict(cfg))
    env = unilab_gym.make(cfg, 2, backend="mujoco", overrides={"rewards.rate.weight": 0.0})
    env.reset(seed=0)
    env.step(torch.zeros(2, 2))
    assert "reward/rate" not in env.runtime.log()
    env.close()
    assert to_dict(cfg) == before


# --- settings that one engine reads ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "overrides", "name"),
    [
        ("mujoco", {"sim.njmax": 50}, "njmax"),
        ("mujoco", {"sim.nconmax": 50}, "nconmax"),
        ("mjwarp", {"sim.num_threads": 2}, "num_threads"),
        ("mujoco", {"sim": {"njmax": 50}}, "njmax"),
        ("mujoco", {"sim": SimCfg(nconmax=5)}, "nconmax"),
    ],
)
def test_an_override_that_the_backend_would_not_read(tmp_path, backend, overrides, name):
    with pytest.raises(ConfigError, match=rf"'sim.{name}' has no effect on backend '{backend}'"):
        unilab_gym.make(base(tmp_path), 2, backend=backend, device="cpu", overrides=overrides)


def test_a_config_may_hold_the_settings_of_both(tmp_path):
    both = {"sim.njmax": 50, "sim.nconmax": 20, "sim.num_threads": 1}
    cfg = apply_overrides(base(tmp_path), both)
    unilab_gym.make(cfg, 2, backend="mujoco").close()
    assert set(ENGINE_SETTINGS) == {path.removeprefix("sim.") for path in both}
    for backend in ("mujoco", "mjwarp"):
        kept = {path: value for path, value in both.items() if ENGINE_SETTINGS[path[4:]] == backend}
        refuse_idle({**kept, "sim.njmax": None} if backend == "mujoco" else kept, backend)


# --- every registered task ------------------------------------------------------------------------


def tasks():
    return [(name, backend) for name in task_ids() for backend in load_task(name).backends]


@pytest.mark.parametrize(("task", "backend"), tasks())
def test_a_task_round_trips_exactly(task, backend):
    cfg = owner_config(task, backend)
    text = json.dumps(to_dict(cfg), allow_nan=False)
    assert from_dict(OwnerCfg, json.loads(text)) == cfg
    assert to_dict(from_dict(OwnerCfg, json.loads(text))) == json.loads(text)
    play = cfg.env.for_play()
    assert from_dict(type(play), json.loads(json.dumps(to_dict(play)))) == play


@pytest.mark.parametrize("task", task_ids())
def test_building_a_task_does_not_change_its_config(task):
    cfg = owner_config(task, "mujoco")
    before = copy.deepcopy(to_dict(cfg))
    env = unilab_gym.make(cfg.env, 2, backend="mujoco")
    env.reset(seed=0)
    env.step(torch.zeros(env.action_space.shape))
    env.close()
    resolve(cfg)
    assert to_dict(cfg) == before
    assert cfg == owner_config(task, "mujoco")


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"sim_backend": "mujco"}, "sim_backend: 'mujco'; did you mean 'mujoco'"),
        ({"num_envs": 0}, "training.num_envs must be positive, got 0"),
        ({"iterations": -1}, "training.iterations must be positive, got -1"),
        ({"play_steps": 0}, "training.play_steps must be positive, got 0"),
    ],
)
def test_an_impossible_run(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        TrainingCfg(**kwargs)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"library": "rslrl"}, "algo.library is 'rslrl'"),
        ({"hyper": {"gama": 0.9}}, "algo.hyper 'gama'; did you mean 'gamma'"),
        (
            {"obs_groups": {"acter": ("policy",), "critic": ("policy",)}},
            "obs_groups has no 'actor'",
        ),
    ],
)
def test_settings_that_the_learner_would_not_read(kwargs, message):
    pytest.importorskip("rsl_rl")
    from unilab_gym.adapters.rsl_rl_config import rsl_rl_config

    with pytest.raises(ConfigError, match=message):
        rsl_rl_config(AlgoCfg(**kwargs))


def test_an_observation_group_that_the_learner_asks_for_and_nobody_has():
    cfg = owner_config("UniLab/CartPole-v0", "mujoco")
    wrong = apply_overrides(cfg, {"algo.obs_groups": {"actor": ["polcy"], "critic": ["policy"]}})
    with pytest.raises(ConfigError, match=r"algo.obs_groups.actor: no group 'polcy'; did you mean"):
        resolve(wrong)

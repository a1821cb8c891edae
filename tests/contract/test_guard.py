import copy
import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from contract.owners import changed, config, without

import unilab_gym.contract
from unilab_gym.contract import (
    ABSENT,
    DENYLIST,
    WARNING_LIST,
    CrossBackendIncompatibleError,
    CrossBackendWarning,
    check_replay,
    resolve_sim2sim_config,
    tiers,
)
from unilab_gym.contract.compare import equal

# path -> another value; every rule of the deny list meets at least one of them.
DENIED = {
    "algo.obs_groups.actor": ["critic"],
    "algo.obs_groups": {"actor": ["policy", "critic"], "critic": ["policy"]},
    "algo.actor.hidden_dims": [64, 32],
    "algo.actor.activation": "relu",
    "algo.actor.obs_normalization": False,
    "algo.critic.hidden_dims": [64, 64, 64],
    "algo.critic.activation": "tanh",
    "algo.critic.obs_normalization": False,
    "algo.obs_normalization": False,
    "env.ctrl_dt": 0.01,
    "env.scene.robot": "quadruped.xml",
    "env.control_config.action_scale": 0.5,
    "env.commands.velocity.func": "pkg:Other",
    "env.commands.velocity.params.limits": [2.0, 0.5],
    "env.commands.vel_limit": [1.0],
    "env.commands.velocity.limits": [1.0],
    "env.commands.motion.params.sampling_mode": "adaptive",
    "env.actions.legs.params.scale": 0.3,
    "env.actions.legs.params.joints": ["b", "a"],
    "env.observations.policy.terms.gyro.scale": 1.0,
    "env.observations.policy.terms.gyro.clip": [-4.0, 5.0],
    "env.observations.policy.terms.gyro.history": 5,
    "env.observations.policy.terms.gyro.delay": 1,
    "env.observations.policy.terms.gyro.func": "pkg:body_z",
    "env.observations.policy.terms.gyro.params.gain": 2.0,
    "env.observations.policy.layout": "time_major",
    "env.observations.critic.terms.gyro.scale": 1.0,
}
WARNED = {
    "env.rewards.alive.weight": 3.0,
    "env.rewards.upright.params.std": 1.0,
    "reward.scales.torque": -1.0,
    "env.commands.velocity.params.lin_vel_x": [-2.0, 2.0],
    "env.control_config.simulate_action_latency": True,
    "env.sim_dt": 0.01,
    "env.observations.policy.terms.gyro.noise": None,
    "env.observations.policy.terms.gyro.bias": {"low": -1.0, "high": 1.0},
    "env.actions.legs.delay": [0, 2],
}
SILENT = {
    "training.sim_backend": "mjwarp",
    "training.play_steps": 7,
    "training.seed": 2,
    "env.scene.skybox": "red",
    "env.noise_config": {"level": 0.0},
    "env.commands.velocity.play_params": {"lin_vel_x": [0.5, 0.5]},
    "env.sim": {"iterations": 50, "nconmax": 100},
    "env.terminations": {"tilt": {}},
}


def paths(differences):
    return [item.path for item in differences]


@pytest.mark.parametrize("path", DENIED)
def test_deny_tier_refuses_and_names_field_and_values(path):
    target = changed(path, DENIED[path])
    with pytest.raises(CrossBackendIncompatibleError, match=r"\[incompatible\]") as caught:
        resolve_sim2sim_config(config(), target)
    assert caught.value.reason == "incompatible"
    report = caught.value.report
    assert report.denied and not report.warned
    for item in report.denied:
        assert item.path.startswith(path)
        assert str(item) in str(caught.value)
        if item.source is not ABSENT:
            assert json.dumps(item.source) in str(item)
        assert json.dumps(item.target) in str(item)


def test_every_declared_deny_rule_has_a_case():
    rules = [tiers.parts(rule) for rule in DENYLIST if rule != "resolved"]
    given = [tiers.parts(path) for path in DENIED]
    assert [rule for rule in rules if not any(tiers.covers(rule, path) for path in given)] == []


@pytest.mark.parametrize("path", DENIED)
def test_not_strict_returns_the_same_object_and_warns_once(path):
    target = changed(path, DENIED[path])
    strict = check_replay(config(), target)
    with pytest.warns(CrossBackendWarning) as caught:
        assert resolve_sim2sim_config(config(), target, strict=False) is target
    assert len(caught) == 1
    assert all(str(item) in str(caught[0].message) for item in strict.denied)
    assert check_replay(config(), target, strict=False).warned == strict.denied


def test_all_differences_are_listed():
    target = config()
    target["env"]["ctrl_dt"] = 0.01
    target["algo"]["actor"]["hidden_dims"] = [8]
    with pytest.raises(CrossBackendIncompatibleError) as caught:
        resolve_sim2sim_config(config(), target)
    assert "env.ctrl_dt: source 0.02, target 0.01" in str(caught.value)
    assert "algo.actor.hidden_dims: source [64, 64], target [8]" in str(caught.value)
    assert "sim2sim_strict=false" in str(caught.value)


@pytest.mark.parametrize(
    "path",
    ["env.observations.policy.terms", "env.actions"],
)
def test_order_of_terms_is_order_of_columns(path):
    target = config()
    *parents, last = path.split(".")
    node = target
    for part in parents:
        node = node[part]
    node[last] = dict(reversed(node[last].items()))
    (item,) = check_replay(config(), target).denied
    assert item.path == path
    assert item.source == list(reversed(item.target))


def test_order_of_plain_maps_is_free():
    target = config()
    for parent, key in (("env", "rewards"), ("env", "observations"), ("algo", "obs_groups")):
        target[parent][key] = dict(reversed(target[parent][key].items()))
    report = check_replay(config(), target)
    assert report.ok and not report.warned


@pytest.mark.parametrize("removed_from", ["source", "target"])
@pytest.mark.parametrize(
    "path",
    [
        "env.observations.policy.terms.gyro",
        "env.observations.policy.terms.gyro.scale",
        "env.observations.policy",
        "env.actions.arms",
        "env.commands.motion",
        "env.control_config.action_scale",
        "env.ctrl_dt",
        "algo.obs_normalization",
        "algo.actor.hidden_dims",
    ],
)
def test_a_field_of_one_side_is_refused(path, removed_from):
    sides = (without(path), config()) if removed_from == "source" else (config(), without(path))
    (item,) = check_replay(*sides).denied
    assert item.path == path and item.one_sided
    assert "absent" in str(item)
    with pytest.warns(CrossBackendWarning, match="could not be verified"):
        resolve_sim2sim_config(*sides, strict=False)
    (text, *_) = check_replay(*sides, strict=False).unchecked
    other = "target" if removed_from == "source" else "source"
    assert text == f"{path}: only the {other} has it"


@pytest.mark.parametrize("path", ["env.observations.policy.terms.gyro.clip", "env.ctrl_dt"])
def test_null_is_a_value(path):
    null = changed(path, None)
    assert paths(check_replay(null, config()).denied) == [path]
    assert paths(check_replay(config(), null).denied) == [path]
    assert paths(check_replay(null, without(path)).denied) == [path]
    assert check_replay(null, copy.deepcopy(null)).ok


@pytest.mark.parametrize("path", WARNED)
def test_warn_tier_warns_once_and_goes_on(path):
    target = changed(path, WARNED[path])
    with pytest.warns(CrossBackendWarning) as caught:
        assert resolve_sim2sim_config(config(), target) is target
    assert len(caught) == 1
    report = check_replay(config(), target)
    assert report.ok
    (item,) = report.warned
    assert item.path == path and item.path in str(caught[0].message)


def test_every_declared_warn_rule_is_met_or_of_the_future():
    future = {"env.actions.*.params.delay", "env.observations.*.corrupt"}
    rules = {rule for rule in WARNING_LIST if not rule.startswith("resolved")} - future
    given = [tiers.parts(path) for path in WARNED]
    missing = [r for r in rules if not any(tiers.covers(tiers.parts(r), path) for path in given)]
    assert missing == []


def test_rewards_warn_once_per_term():
    target = config()
    target["env"]["rewards"]["upright"].update(weight=5.0, params={"std": 9.0})
    target["env"]["rewards"]["extra"] = {"func": "pkg:extra", "params": {}, "weight": 1.0}
    del target["env"]["rewards"]["alive"]
    with pytest.warns(CrossBackendWarning) as caught:
        resolve_sim2sim_config(config(), target)
    subjects = sorted(str(w.message).split(":")[0].split(".")[2] for w in caught)
    assert subjects == ["alive", "extra", "upright"]


def test_noise_is_one_line_and_silent_in_play():
    target = changed("env.observations.policy.corrupt", False)
    for entry in target["env"]["observations"]["policy"]["terms"].values():
        entry["noise"] = None
    (item,) = check_replay(config(), target).warned
    assert item.path == "observation noise" and len(item.source) == 3
    target["training"]["play_only"] = True
    assert check_replay(config(), target).warned == ()


def test_action_delay_warns():
    source, target = config(), config()
    source["env"]["actions"]["legs"]["delay"] = 0
    target["env"]["actions"]["legs"]["delay"] = 2
    report = check_replay(source, target)
    assert report.ok and paths(report.warned) == ["env.actions.legs.delay"]


@pytest.mark.parametrize("path", SILENT)
def test_silent_fields(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve_sim2sim_config(config(), changed(path, SILENT[path]))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (2, 2.0, True),
        (1.0, 1.0 + 1e-12, True),
        (1.0, 1.0 + 1e-5, False),
        (0.0, 1e-12, False),
        ((1, 2), [1, 2.0], True),
        ([1, 2], [2, 1], False),
        (True, 1, False),
        (False, 0.0, False),
        (1, "1", False),
        ("a", "a", True),
        (None, 0, False),
        (None, False, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([], {}, False),
    ],
)
def test_equality(one, other, same):
    assert equal(one, other) is same
    assert equal(other, one) is same


def test_infinite_clip_bounds():
    path = "env.observations.policy.terms.gyro.clip"
    infinite = changed(path, (-math.inf, math.inf))
    assert check_replay(infinite, copy.deepcopy(infinite)).ok
    assert paths(check_replay(infinite, config()).denied) == [path]
    assert not check_replay(infinite, changed(path, (-math.inf, 5.0))).ok


def test_nan_is_refused_on_either_side():
    nan = changed("env.ctrl_dt", math.nan)
    with pytest.raises(CrossBackendIncompatibleError, match=r"env\.ctrl_dt") as caught:
        check_replay(config(), nan)
    assert caught.value.reason == "invalid_target"
    with pytest.raises(CrossBackendIncompatibleError, match=r"env\.ctrl_dt"):
        check_replay(nan, config())


def test_purity():
    source, target = config(), changed("env.ctrl_dt", 0.01)
    before = copy.deepcopy((source, target))
    first = check_replay(source, target)
    assert check_replay(source, target) == first
    assert (source, target) == before


def test_specific_rules_win_and_ties_are_strict():
    rules = (
        (("a",), "deny"),
        (("a", "b"), "allow"),
        (("a", "*", "c"), "warn"),
        (("a", "b", "c"), "allow"),
        (("t", "x"), "allow"),
        (("t", "x"), "warn"),
        (("t", "x"), "deny"),
        (("u", "*"), "warn"),
        (("u", "v*"), "allow"),
    )
    assert tiers.strictest(("a", "z"), rules) == "deny"
    assert tiers.strictest(("a", "b", "z"), rules) == "allow"
    assert tiers.strictest(("a", "b", "c"), rules) == "allow"
    assert tiers.strictest(("a", "y", "c", "d"), rules) == "warn"
    assert tiers.strictest(("t", "x"), rules) == "deny"
    assert tiers.strictest(("u", "v"), rules) == "warn"
    assert tiers.strictest(("n",), rules) is None


def test_allow_never_covers_robot_identity():
    assert tiers.strictest(("env", "scene", "ground")) == "allow"
    for path in ("env.scene.robot", "resolved.joints.names", "resolved.joints.default"):
        assert tiers.strictest(tiers.parts(path)) == "deny"
    report = check_replay(config(), changed("env.scene.robot", "another/folder/biped.xml"))
    assert report.ok, "where the file lies is no part of the contract"


def test_retired_keys_are_refused_whatever_strict_says():
    for path in tiers.RETIRED:
        data = config()
        node = data
        *parents, last = path.split(".")
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = 1
        for sides in ((data, config()), (config(), data)):
            with pytest.raises(CrossBackendIncompatibleError, match=path) as caught:
                check_replay(*sides, strict=False)
            assert caught.value.reason == "retired_key"


def test_importing_and_comparing_loads_neither_torch_nor_an_engine():
    code = (
        "import sys, json\n"
        "from unilab_gym.contract import check_replay\n"
        "heavy = {'torch', 'mujoco', 'warp', 'mujoco_warp', 'onnxruntime', 'onnx'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "data = json.loads(sys.argv[1])\n"
        "assert check_replay(data, data).ok\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    root = str(Path(unilab_gym.contract.__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", code, json.dumps(config())], check=True, env=env)

"""The resolved contract in numbers."""

import dataclasses
import json

import pytest
from contract.owners import make_owner, write_robot

from unilab_gym.config import apply_overrides, to_dict
from unilab_gym.contract import contract_hash, resolve, resolve_from
from unilab_gym.contract.resolve import CONTRACT_KEYS, world_of
from unilab_gym.errors import ConfigError
from unilab_gym.scene import build_scene


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    return make_owner(write_robot(tmp_path_factory.mktemp("robot")))


@pytest.fixture(scope="module")
def contract(owner):
    return resolve(owner)


def test_it_is_plain_json_with_every_key(contract):
    assert list(contract) == list(CONTRACT_KEYS)
    assert json.loads(json.dumps(contract, allow_nan=False)) == contract
    assert (contract["control_dt"], contract["sim_dt"], contract["decimation"]) == (0.02, 0.005, 4)


def test_the_world_is_that_of_the_configuration(owner, contract):
    assert contract["world"] == {
        "gravity": [0.0, 0.0, -9.81],
        "integrator": "implicitfast",
        "cone": "pyramidal",
        "impratio": 1.0,
        "ground": "flat",
        "ground_friction": 1.0,
    }
    assert world_of(to_dict(owner)) == contract["world"]
    assert world_of({"env": {"sim": {"gravity": [0.0, 0.0, 0.0]}}}) is None


def test_joints_follow_the_model_and_name_their_actuators(contract):
    assert contract["joints"] == {
        "names": ["left_hip", "right_hip"],
        "actuators": ["left_motor", "right_motor"],
        "default": [0.1, -0.2],
        "kp": [20.0, 20.0],
        "kd": [0.5, 0.5],
        "effort": [20.0, 20.0],
        "armature": [0.01, 0.01],
    }


def test_actions_are_columns(contract):
    actions = dict(contract["actions"])
    (term,) = actions.pop("terms")
    assert actions == {
        "joints": ["left_hip", "right_hip"],
        "actuators": ["left_motor", "right_motor"],
        "scale": [0.25, 0.25],
        "offset": [0.1, -0.2],
        "box": [4.0, 4.0],
        "target_clip": [None, None],
        "clipped": [True, True],
    }
    assert (term["name"], term["kind"], term["start"]) == ("joints", "joint_position", 0)
    assert (term["width"], term["delay"]) == (2, 0)


def test_an_open_box_is_null(owner):
    overrides = {
        "env.clip_actions": False,
        "env.actions.joints.params.target_clip": [[-0.5, float("inf")], [-0.5, 0.5]],
    }
    actions = resolve(apply_overrides(owner, overrides))["actions"]
    assert actions["box"] == [None, None]
    assert actions["target_clip"] == [[-0.5, None], [-0.5, 0.5]]


def test_observation_terms_have_columns_scale_and_clip(contract):
    policy, critic = contract["observations"]["policy"], contract["observations"]["critic"]
    assert [(t["name"], t["start"], t["width"]) for t in policy["terms"]] == [
        ("gyro", 0, 3),
        ("joint_pos", 3, 2),
        ("command", 5, 3),
    ]
    assert (policy["width"], policy["layout"]) == (8, "term-major, oldest first")
    gyro, joint_pos, command = policy["terms"]
    assert gyro["scale"] == [0.25, 0.25, 0.25]
    assert gyro["noise"] == {"kind": "uniform", "low": -0.1, "high": 0.1}
    assert joint_pos["clip"] == [-5.0, None]
    assert joint_pos["params"] == {"gain": 1.0}, "defaults are filled in"
    assert command["params"] == {"command": "velocity"}
    assert critic["terms"][0]["scale"] == [1.0, 2.0, 3.0]
    assert critic["terms"][0]["noise"] is None


def test_commands_say_what_their_class_says(contract):
    assert contract["commands"]["velocity"] == {
        "func": "contract.owners:Velocity",
        "components": ["vx", "vy", "wz"],
        "ranges": {"vx": [-0.6, 1.0]},
    }


def test_network_has_its_widths(contract, owner):
    network = contract["network"]
    assert network["obs_groups"] == {"actor": ["policy"], "critic": ["policy", "critic"]}
    assert (network["actor"]["obs_width"], network["critic"]["obs_width"]) == (8, 11)
    assert (network["action_width"], network["actor"]["hidden_dims"]) == (2, [256, 128, 64])
    assert network["actor"]["activation"] == "elu" and network["actor"]["obs_normalization"] is True
    index = build_scene(owner.env.scene, owner.env.sim, owner.env.sim_dt).index
    assert resolve_from(owner.env, index, task=owner.task)["network"] is None


def test_a_built_environment_says_the_same(contract, owner):
    index = build_scene(owner.env.scene, owner.env.sim, owner.env.sim_dt).index
    widths = {
        name: {term["name"]: term["width"] for term in group["terms"]}
        for name, group in contract["observations"].items()
    }
    specs = {name: cfg.func.resolve(index, **cfg.params) for name, cfg in owner.env.actions.items()}
    built = resolve_from(
        owner.env, index, task=owner.task, algo=owner.algo, widths=widths, actions=specs
    )
    assert built == contract


def test_hash_is_the_same_on_both_backends_and_moves_with_the_policy(owner, contract):
    other = dataclasses.replace(
        owner, training=dataclasses.replace(owner.training, sim_backend="mjwarp")
    )
    digest = contract_hash(contract)
    assert contract_hash(resolve(other)) == digest
    assert digest.startswith("sha256:") and len(digest) == 71
    same = [
        {"env.sim_dt": 0.01},
        {"env.observations.policy.corrupt": False},
        {"task": "x"},
        {"env.sim.gravity": [0.0, 0.0, -3.0]},
    ]
    for overrides in same:
        assert contract_hash(resolve(apply_overrides(owner, overrides))) == digest
    moved = [
        {"env.ctrl_dt": 0.01},
        {"env.observations.policy.terms.gyro.scale": 0.5},
        {"env.actions.joints.params.scale": 0.5},
        {"algo.actor.hidden_dims": [8]},
    ]
    for overrides in moved:
        assert contract_hash(resolve(apply_overrides(owner, overrides))) != digest


def test_hash_does_not_know_spellings(contract):
    respelled = json.loads(json.dumps(contract))
    respelled["joints"]["kp"] = [20, 20 + 1e-12]
    respelled = dict(reversed(respelled.items()))
    assert contract_hash(respelled) == contract_hash(contract)


def test_hash_ignores_the_base_height(owner, contract, tmp_path):
    lower = apply_overrides(owner, {"env.scene.robot": write_robot(tmp_path, height=0.5)})
    assert contract_hash(resolve(lower)) == contract_hash(contract)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"algo.obs_groups.actor": ["polic"]}, r"algo\.obs_groups\.actor.*did you mean 'policy'"),
        ({"env.observations.policy.terms.gyro.scale": [1.0, 2.0]}, r"policy\.gyro: 2 scales for 3"),
        ({"env.observations.policy.terms.gyro.params.x": 1}, r"policy\.gyro: .*no parameter 'x'"),
        ({"env.actions.joints.func": "contract.owners:alive"}, r"actions/joints: .*action class"),
        ({"env.scene.robot": "nowhere.xml"}, "nowhere"),
    ],
)
def test_errors_name_the_place(owner, overrides, message):
    with pytest.raises(ConfigError, match=message):
        resolve(apply_overrides(owner, overrides))

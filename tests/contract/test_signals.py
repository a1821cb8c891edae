"""What the contract and the guard say of histories, latencies, noise and kinds of actions."""

import pytest
from helpers.memory import memory_cfg
from helpers.probe import build, obs_term, walker_cfg

from unilab_gym.config import (
    ActionTermCfg,
    ObservationGroupCfg,
    OwnerCfg,
    apply_overrides,
)
from unilab_gym.contract import build_snapshot, check_replay, contract_hash, resolve, resolve_from
from unilab_gym.contract.resolve import FRAMES, LAYOUT
from unilab_gym.errors import ConfigError
from unilab_gym.export.metadata import csv_metadata, layout, obs_width
from unilab_gym.mdp import observations
from unilab_gym.mdp.actions import JointPositionAction, RelativeJointPositionAction

POLICY = "env.observations.policy"


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    cfg = memory_cfg(tmp_path_factory.mktemp("walker"))
    return OwnerCfg(task="Test/Walker-v0", env=cfg)


@pytest.fixture(scope="module")
def contract(owner):
    return resolve(owner)


def term_of(contract, name, group="policy"):
    return next(t for t in contract["observations"][group]["terms"] if t["name"] == name)


def test_the_group_states_layout_columns_and_frames(contract):
    policy, critic = contract["observations"]["policy"], contract["observations"]["critic"]
    columns = [(t["name"], t["start"], t["width"], t["history"]) for t in policy["terms"]]
    assert columns == [
        ("gravity", 0, 3, 4),
        ("joint_pos", 12, 2, 2),
        ("joint_vel", 16, 2, 0),
        ("last_action", 18, 2, 0),
        ("twist", 20, 3, 0),
        ("velocity", 23, 3, 0),
    ]
    assert (policy["width"], policy["layout"]) == (26, LAYOUT)
    assert [(t["start"], t["width"], t["history"]) for t in critic["terms"]] == [
        (0, 3, 3),
        (3, 2, 3),
    ]
    assert (critic["width"], critic["layout"]) == (15, FRAMES)


def test_terms_state_their_latency_noise_and_bias(contract):
    assert term_of(contract, "gravity")["delay"] == 2
    assert term_of(contract, "feet", "critic")["delay"] == 1
    assert term_of(contract, "joint_pos")["delay"] == {
        "steps": [0, 3],
        "redraw": None,
        "shared": None,
    }
    assert term_of(contract, "velocity")["delay"] == {
        "steps": [0, 2],
        "redraw": 5,
        "shared": "bus",
    }
    assert term_of(contract, "twist")["delay"]["shared"] == "policy", "the group's one draw"
    gravity = term_of(contract, "gravity")
    assert gravity["noise"] == {"kind": "gaussian", "std": 0.1}
    assert gravity["bias"] == {"kind": "uniform", "low": -0.1, "high": 0.1}
    (action,) = contract["actions"]["terms"]
    assert action["delay"] == {"steps": [0, 3], "redraw": None, "shared": None}


def test_a_built_environment_says_the_same(owner, contract):
    env = build(owner.env, 2)
    rt = env.rt
    widths = {
        name: {info.name: info.width for info in rt.observations.layout(name)}
        for name in owner.env.observations
    }
    built = resolve_from(
        owner.env,
        env.index,
        task=owner.task,
        algo=owner.algo,
        widths=widths,
        actions=rt.actions.specs,
    )
    assert built == contract
    assert {name: group["width"] for name, group in contract["observations"].items()} == (
        rt.observations.widths
    )
    for name, group in contract["observations"].items():
        starts = [info.start for info in rt.observations.layout(name)]
        assert starts == [entry["start"] for entry in group["terms"]]
    env.close()


DENIED = {
    f"{POLICY}.terms.gravity.history": 3,
    f"{POLICY}.terms.gravity.delay": 1,
    f"{POLICY}.terms.joint_pos.delay": [0, 2],
    f"{POLICY}.terms.joint_vel.delay.redraw": 6,
    f"{POLICY}.terms.velocity.clip": [-2.0, 2.0],
    f"{POLICY}.terms.joint_vel.scale": 0.2,
    f"{POLICY}.delay": [0, 2],
    f"{POLICY}.history": 2,
    "env.observations.critic.flatten": True,
    "env.actions.legs.params.scale": 0.25,
    "env.actions.legs.params.target_clip": {".*": [-1.0, 1.0]},
    "env.actions.legs.params.box": 2.0,
    "env.actions.legs.params.joints": ["right_hip", "left_hip"],
    "env.actions.legs.func": "unilab_gym.mdp.actions:RelativeJointPositionAction",
}
WARNED = {
    "env.actions.legs.delay": 1,
    f"{POLICY}.terms.gravity.bias": None,
    f"{POLICY}.terms.gravity.noise.std": 0.2,
}


@pytest.mark.parametrize("path", DENIED)
def test_another_meaning_is_refused_by_path(owner, path):
    """E16, what concerns observations and actions."""
    target = apply_overrides(owner, {path: DENIED[path]})
    report = check_replay(build_snapshot(owner), target)
    assert any(item.path.startswith(path) for item in report.denied), report


@pytest.mark.parametrize("path", WARNED)
def test_another_training_is_told(owner, path):
    report = check_replay(build_snapshot(owner), apply_overrides(owner, {path: WARNED[path]}))
    assert report.ok
    assert [item.path.startswith(path) for item in report.warned] == [True]


@pytest.mark.parametrize("path", DENIED)
def test_the_resolved_layer_sees_it_alone(owner, contract, path):
    """An ONNX file has nothing else."""
    target = apply_overrides(owner, {path: DENIED[path]})
    assert not check_replay(contract, target).ok
    assert contract_hash(resolve(target)) != contract_hash(contract)


def test_noise_is_no_part_of_the_hash(owner, contract):
    for path in (f"{POLICY}.terms.gravity.bias", f"{POLICY}.terms.gravity.noise"):
        assert contract_hash(resolve(apply_overrides(owner, {path: None}))) == contract_hash(
            contract
        )


def test_metadata_tells_deployed_stacks_of_the_history(contract):
    metadata = csv_metadata(contract)
    assert metadata["observation_names"] == "gravity,joint_pos,joint_vel,last_action,twist,velocity"
    assert metadata["observation_terms_history_length"] == "4,2,0,0,0,0"
    assert metadata["observation_terms_flatten_history_dim"] == "1,1,1,1,1,1"
    assert layout(contract).startswith("gravity 3 x 4, joint_pos 2 x 2, joint_vel 2, ")
    assert obs_width(contract) == 26


def test_a_policy_of_unflattened_frames_is_not_exported(tmp_path):
    terms = {"gravity": obs_term(observations.projected_gravity, history=2)}
    groups = {"policy": ObservationGroupCfg(terms=terms, flatten=False)}
    given = resolve(OwnerCfg(task="x", env=walker_cfg(tmp_path, observations=groups)))
    with pytest.raises(
        ConfigError, match=r"'policy' is laid out as \[H, D\], oldest first; .*flat"
    ):
        obs_width(given)


def test_every_kind_of_action_has_its_name(tmp_path):
    for func, kind, offset in (
        (JointPositionAction, "joint_position", [0.2, -0.2]),
        (RelativeJointPositionAction, "relative_joint_position", [0.0, 0.0]),
    ):
        cfg = walker_cfg(tmp_path, actions={"legs": ActionTermCfg(func=func)})
        actions = resolve(OwnerCfg(task="x", env=cfg))["actions"]
        assert (actions["terms"][0]["kind"], actions["offset"]) == (kind, offset)

"""The guard on owner configurations: both layers, the small robot and the shipped tasks."""

import dataclasses

import pytest
from contract.owners import config, make_owner, with_policy_terms, write_robot

from unilab_gym.config import (
    ActionTermCfg,
    ObservationTermCfg,
    RewardTermCfg,
    apply_overrides,
    to_dict,
)
from unilab_gym.contract import (
    REASONS,
    CrossBackendIncompatibleError,
    CrossBackendWarning,
    build_snapshot,
    check_replay,
    contract_hash,
    resolve,
    resolve_sim2sim_config,
)
from unilab_gym.tasks import go2_joystick_flat


def paths(differences):
    return [item.path for item in differences]


@pytest.fixture
def owner(tmp_path):
    return make_owner(write_robot(tmp_path))


def robot_variant(owner, tmp_path, **values):
    """The owner on a robot of the same file name and other numbers."""
    folder = tmp_path / "variant"
    folder.mkdir()
    return apply_overrides(owner, {"env.scene.robot": write_robot(folder, **values)})


def test_an_unchanged_owner_passes(owner):
    target = dataclasses.replace(
        owner, training=dataclasses.replace(owner.training, sim_backend="mjwarp", num_envs=3)
    )
    assert resolve_sim2sim_config(build_snapshot(owner), target) is target
    assert resolve_sim2sim_config(to_dict(owner), target) is target
    report = check_replay(build_snapshot(owner), target)
    assert (report.denied, report.warned, report.unchecked) == ((), (), ())
    assert str(report) == "no difference"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"env.ctrl_dt": 0.01}, {"env.ctrl_dt"}),
        (
            {"env.observations.policy.terms.gyro.scale": 1.0},
            {"env.observations.policy.terms.gyro.scale"},
        ),
        (
            {"env.observations.policy.terms.joint_pos.clip": None},
            {"env.observations.policy.terms.joint_pos.clip"},
        ),
        (
            {"env.actions.joints.params.scale": 0.5},
            {"env.actions.joints.params.scale", "resolved.actions.scale"},
        ),
        (
            {"env.actions.joints.params.box": 1.0},
            {"env.actions.joints.params.box", "resolved.actions.box"},
        ),
        (
            {"algo.obs_groups.actor": ["policy", "critic"]},
            {"algo.obs_groups.actor", "resolved.network.actor.obs_width"},
        ),
        ({"algo.actor.obs_normalization": False}, {"algo.actor.obs_normalization"}),
        (
            {"env.commands.velocity.params.limits": [2.0, 2.0]},
            {"env.commands.velocity.params.limits"},
        ),
    ],
)
def test_one_change_of_an_owner_is_told_once_per_layer(owner, overrides, expected):
    report = check_replay(build_snapshot(owner), apply_overrides(owner, overrides))
    assert set(paths(report.denied)) == expected
    assert len(report.denied) == len(expected)
    assert report.warned == ()


def test_swapped_terms_of_an_owner(owner):
    terms = owner.env.observations["policy"].terms
    swapped = {name: terms[name] for name in ("command", "joint_pos", "gyro")}
    report = check_replay(build_snapshot(owner), with_policy_terms(owner, swapped))
    assert paths(report.denied) == ["env.observations.policy.terms"]


def test_missing_and_extra_terms_of_an_owner(owner):
    terms = dict(owner.env.observations["policy"].terms)
    del terms["gyro"]
    fewer = with_policy_terms(owner, terms)
    for sides in ((build_snapshot(owner), fewer), (build_snapshot(fewer), owner)):
        report = check_replay(*sides)
        assert "env.observations.policy.terms.gyro" in paths(report.denied)
        assert "resolved.observations.policy.width" in paths(report.denied)
        assert not any("start" in path for path in paths(report.denied))


def test_default_pose_behind_an_allowed_scene(owner, tmp_path):
    target = robot_variant(owner, tmp_path, left=0.2)
    (pose, offset) = check_replay(build_snapshot(owner), target).denied
    assert str(pose) == "resolved.joints.default: source [0.1, -0.2], target [0.2, -0.2]"
    assert offset.path == "resolved.actions.offset"


def test_base_height_alone_is_equal(owner, tmp_path):
    target = robot_variant(owner, tmp_path, height=0.8)
    report = check_replay(build_snapshot(owner), target)
    assert (report.denied, report.warned) == ((), ())


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ({"kp": 20.01}, []),
        ({"kp": 20.1}, ["resolved.joints.kp"]),
        ({"armature": 0.02}, ["resolved.joints.armature"]),
    ],
)
def test_gains_have_a_tolerance(owner, tmp_path, values, warned):
    report = check_replay(build_snapshot(owner), robot_variant(owner, tmp_path, **values))
    assert report.ok and paths(report.warned) == warned


def test_physics_step_warns_with_an_equal_control_step(owner):
    report = check_replay(build_snapshot(owner), apply_overrides(owner, {"env.sim_dt": 0.01}))
    assert report.ok and paths(report.warned) == ["env.sim_dt"]


def test_command_ranges_warn(owner):
    target = apply_overrides(owner, {"env.commands.velocity.params.lin_vel_x": [0.0, 3.0]})
    report = check_replay(build_snapshot(owner), target)
    assert report.ok
    assert paths(report.warned) == [
        "env.commands.velocity.params.lin_vel_x",
        "resolved.commands.velocity.ranges.vx",
    ]


WORLDS = {
    "gravity": ({"env.sim.gravity": [0.0, 0.0, -3.0]}, "gravity", "-9.81", "-3.0"),
    "friction": ({"env.scene.ground_friction": 0.1}, "ground_friction", "1.0", "0.1"),
    "ground": ({"env.scene.ground": "none"}, "ground", "flat", "none"),
    "cone": ({"env.sim.cone": "elliptic"}, "cone", "pyramidal", "elliptic"),
    "impratio": ({"env.sim.impratio": 10.0}, "impratio", "1.0", "10.0"),
    "integrator": ({"env.sim.integrator": "euler"}, "integrator", "implicitfast", "euler"),
}


@pytest.mark.parametrize("case", WORLDS)
@pytest.mark.parametrize("layer", ["snapshot", "contract"])
def test_another_world_warns_once_with_both_values(owner, case, layer):
    overrides, field, source, target = WORLDS[case]
    record = build_snapshot(owner)
    other = apply_overrides(owner, overrides)
    with pytest.warns(CrossBackendWarning) as caught:
        given = record if layer == "snapshot" else record["resolved"]
        assert resolve_sim2sim_config(given, other) is other
    (text,) = [str(warning.message) for warning in caught]
    assert text.startswith(f"resolved.world.{field}: source ")
    assert source in text.split(", target ")[0] and target in text.split(", target ")[1]


def test_a_record_without_a_world_leaves_it_unchecked(owner):
    record = build_snapshot(owner)
    del record["resolved"]["world"]
    lighter = apply_overrides(owner, {"env.sim.gravity": [0.0, 0.0, -3.0]})
    for strict in (True, False):
        report = check_replay(record, lighter, strict)
        assert report.ok and report.warned == ()
        (text,) = report.unchecked
        assert text.startswith("world: ") and "gravity" in text


@pytest.mark.parametrize("key", ["joints", "actions", "observations", "control_dt", "conventions"])
def test_a_contract_that_lacks_a_part_is_refused(owner, key):
    snapshot = build_snapshot(owner)
    del snapshot["resolved"][key]
    assert paths(check_replay(snapshot, owner).denied) == [f"resolved.{key}"]


def test_a_side_without_a_contract_is_refused(owner):
    unbuildable = to_dict(owner)
    unbuildable["env"]["extra"] = 1
    assert paths(check_replay(build_snapshot(owner), unbuildable).denied) == ["resolved"]
    assert paths(check_replay(unbuildable, owner).denied) == ["resolved"]
    assert "resolved contract: neither" in str(check_replay(unbuildable, unbuildable))


def test_long_lists_show_the_entries_that_differ():
    source, target = config(), config()
    source["env"]["actions"]["legs"]["params"]["scale"] = [0.1, 0.2, 0.3, 0.4, 0.5]
    target["env"]["actions"]["legs"]["params"]["scale"] = [0.1, 0.2, 0.9, 0.4, 0.5]
    (item,) = check_replay(source, target).denied
    assert str(item) == "env.actions.legs.params.scale: source -> target [2] 0.3 -> 0.9"


def test_keys_with_dots_are_quoted():
    source, target = config(), config()
    source["env"]["actions"]["legs"]["params"]["scale"] = {".*_hip": 1.0}
    target["env"]["actions"]["legs"]["params"]["scale"] = {".*_hip": 2.0}
    (item,) = check_replay(source, target).denied
    assert item.path == 'env.actions.legs.params.scale[".*_hip"]'


def test_a_target_that_does_not_build_is_refused(owner):
    target = apply_overrides(owner, {"env.scene.keyframe": "stand"})
    with pytest.raises(CrossBackendIncompatibleError, match="keyframe") as caught:
        check_replay(build_snapshot(owner), target)
    assert caught.value.reason == "invalid_target"
    assert caught.value.reason in REASONS


def test_terms_of_other_kinds_still_differ(owner):
    """A term replaced under its own name is named by its function."""
    source = build_snapshot(owner)
    action = owner.env.actions["joints"]

    class Other(action.func):
        pass

    Other.__qualname__ = "Other"
    actions = {"joints": ActionTermCfg(func=Other, params=action.params)}
    env = dataclasses.replace(owner.env, actions=actions)
    report = check_replay(source, dataclasses.replace(owner, env=env))
    assert paths(report.denied) == ["env.actions.joints.func"]


def test_reward_and_observation_configs_are_not_confused(owner):
    rewards = {
        **owner.env.rewards,
        "alive": RewardTermCfg(func=owner.env.rewards["alive"].func, weight=9.0),
    }
    target = dataclasses.replace(owner, env=dataclasses.replace(owner.env, rewards=rewards))
    report = check_replay(build_snapshot(owner), target)
    assert report.ok and paths(report.warned) == ["env.rewards.alive.weight"]
    gyro = owner.env.observations["policy"].terms["gyro"]
    extra = {**owner.env.observations["policy"].terms, "alive": ObservationTermCfg(func=gyro.func)}
    assert not check_replay(build_snapshot(owner), with_policy_terms(owner, extra)).ok


# --- a shipped task, from one backend to the other -----------------------------------------------

GO2_DENIED = {
    "term scale": ({"env.observations.policy.terms.joint_vel.scale": 0.05}, "joint_vel.scale"),
    "term clip": ({"env.observations.policy.terms.joint_vel.clip": [-9.0, 9.0]}, "joint_vel.clip"),
    "command read": (
        {"env.observations.policy.terms.command.params": {"command": "gait", "width": 3}},
        "command.params.command",
    ),
    "action scale": ({"env.actions.joint_pos.params.scale": 0.5}, "resolved.actions.scale"),
    "action box": ({"env.actions.joint_pos.params.box": 1.0}, "resolved.actions.box"),
    "action clip off": (
        {"env.clip_actions": False},
        "resolved.actions.clipped",
    ),
    "joint order": (
        {"env.actions.joint_pos.params.joints": ["FR_.*", "FL_.*", "RL_.*", "RR_.*"]},
        "resolved.actions.joints",
    ),
    "target clip": (
        {"env.actions.joint_pos.params.target_clip": {".*_calf_joint": [-2.0, -1.0]}},
        "resolved.actions.target_clip",
    ),
    "default pose": ({"env.scene.keyframe": None}, "resolved.joints.default"),
    "control step": ({"env.ctrl_dt": 0.01}, "env.ctrl_dt"),
    "default pose of one joint": (
        {"env.scene.joint_pos": {"FL_hip_joint": 0.1}},
        "resolved.joints.default",
    ),
    "history": ({"env.observations.policy.history": 4}, "env.observations.policy.history"),
    "history of a term": (
        {"env.observations.policy.terms.joint_vel.history": 4},
        "joint_vel.history",
    ),
    "layout": (
        {"env.observations.policy.history": 5, "env.observations.policy.flatten": False},
        "resolved.observations.policy.layout",
    ),
    "latency": ({"env.observations.policy.terms.joint_vel.delay": 1}, "joint_vel.delay"),
    "group map": ({"algo.obs_groups.actor": ["critic"]}, "algo.obs_groups.actor"),
    "normalizer": ({"algo.actor.obs_normalization": False}, "algo.actor.obs_normalization"),
    "network": ({"algo.critic.hidden_dims": [64, 64]}, "algo.critic.hidden_dims"),
}
GO2_ALLOWED = {
    "nothing": {},
    "solver": {"env.sim.iterations": 50, "env.sim.ls_iterations": 50},
    "contacts": {"env.sim.nconmax": 64, "env.sim.njmax": 400},
    "run": {"training.num_envs": 7, "training.seed": 9, "training.play_steps": 3},
    "learner": {"algo.hyper.learning_rate": 1.0},
}


@pytest.fixture(scope="module")
def go2_record():
    return build_snapshot(go2_joystick_flat.owner("mujoco"))


@pytest.mark.parametrize("case", GO2_DENIED)
def test_go2_with_one_change_is_refused(go2_record, case):
    overrides, path = GO2_DENIED[case]
    target = apply_overrides(go2_joystick_flat.owner("mjwarp"), overrides)
    with pytest.raises(CrossBackendIncompatibleError) as caught:
        resolve_sim2sim_config(go2_record, target)
    found = [item for item in caught.value.report.denied if item.path.endswith(path)]
    assert found and str(found[0]) in str(caught.value)


def test_go2_with_other_terms_is_refused(go2_record):
    """E16: two of equal width that changed places, so that nothing else fails; and one less."""
    target = go2_joystick_flat.owner("mjwarp")
    terms = dict(target.env.observations["policy"].terms)
    swap = {"base_ang_vel": "projected_gravity", "projected_gravity": "base_ang_vel"}
    swapped = {swap.get(name, name): terms[swap.get(name, name)] for name in terms}
    report = check_replay(go2_record, with_policy_terms(target, swapped))
    assert paths(report.denied) == ["env.observations.policy.terms"]
    del terms["projected_gravity"]
    with pytest.raises(CrossBackendIncompatibleError) as caught:
        resolve_sim2sim_config(go2_record, with_policy_terms(target, terms))
    assert "policy.terms.projected_gravity: source {" in str(caught.value)
    assert "target absent" in str(caught.value)


def test_go2_with_another_reward_is_warned_about(go2_record):
    target = apply_overrides(
        go2_joystick_flat.owner("mjwarp"), {"env.rewards.track_lin_vel.weight": 3.0}
    )
    report = check_replay(go2_record, target)
    assert report.ok and paths(report.warned) == ["env.rewards.track_lin_vel.weight"]


@pytest.mark.parametrize("case", GO2_ALLOWED)
def test_go2_with_other_engine_settings_is_allowed(go2_record, case):
    target = apply_overrides(go2_joystick_flat.owner("mjwarp"), GO2_ALLOWED[case])
    assert resolve_sim2sim_config(go2_record, target) is target
    assert check_replay(go2_record, target).unchecked == ()


def test_go2_has_one_contract_on_both_backends(go2_record):
    contract = resolve(go2_joystick_flat.owner("mjwarp"))
    assert contract == go2_record["resolved"]
    assert contract_hash(contract) == contract_hash(go2_record["resolved"])
    assert contract["observations"]["policy"]["width"] == 49
    assert contract["joints"]["names"][0] == "FL_hip_joint"
    assert contract["commands"]["twist"]["components"] == ["lin_vel_x", "lin_vel_y", "ang_vel_yaw"]

"""Configs: exact round trips, and every typo is an error that names it."""

import dataclasses
import functools
import json

import pytest
from helpers.probe import counter, probe_cfg, step_counter, walker_cfg

from unilab_gym.config import (
    ActionTermCfg,
    AlgoCfg,
    EnvCfg,
    GaussianNoiseCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    OwnerCfg,
    RewardTermCfg,
    SceneCfg,
    SimCfg,
    TermCfg,
    TrainingCfg,
    UniformNoiseCfg,
    apply_overrides,
    from_dict,
    func_name,
    load_func,
    to_dict,
)
from unilab_gym.errors import ConfigError
from unilab_gym.mdp.terminations import TimeOut
from unilab_gym.tasks import go2_joystick_flat as go2

NAN, INF = float("nan"), float("inf")


class Outer:
    @staticmethod
    def inner(frame):
        return frame


def minimal(**changes):
    actions = {"a": ActionTermCfg(func=counter)}
    groups = {"policy": ObservationGroupCfg(terms={})}
    scene = SceneCfg(robot="x.xml")
    return EnvCfg(**{"scene": scene, "actions": actions, "observations": groups, **changes})


# --- round trip -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["mujoco", "mjwarp"])
def test_go2_round_trips_exactly_through_json(backend):
    owner = go2.owner(backend)
    data = to_dict(owner)
    text = json.dumps(data, allow_nan=False)
    assert from_dict(OwnerCfg, json.loads(text)) == owner
    assert to_dict(from_dict(OwnerCfg, json.loads(text))) == data


def test_probe_and_its_play_variant_round_trip(tmp_path):
    for cfg in (probe_cfg(tmp_path), walker_cfg(tmp_path), walker_cfg(tmp_path).for_play()):
        assert from_dict(EnvCfg, json.loads(json.dumps(to_dict(cfg)))) == cfg


def test_lists_are_kept_as_tuples_at_any_depth():
    written = ObservationTermCfg(
        func=counter, params={"a": [1, [2, {"b": [3]}]]}, clip=[-1, 1], scale=[1.0, 2.0]
    )
    assert written.params == {"a": (1, (2, {"b": (3,)}))}
    assert (written.clip, written.scale) == ((-1, 1), (1.0, 2.0))
    assert from_dict(ObservationTermCfg, to_dict(written)) == written
    assert AlgoCfg(hyper={"betas": [0.9, 0.99]}).hyper == {"betas": (0.9, 0.99)}


def test_factories_return_fresh_values():
    first, second = go2.owner("mujoco"), go2.owner("mujoco")
    assert first == second
    assert first.env.rewards is not second.env.rewards
    assert TermCfg(func=counter).params is not TermCfg(func=counter).params


def test_what_a_caller_passed_in_can_change_without_changing_the_config():
    params = {"joints": ["a"]}
    cfg = TermCfg(func=counter, params=params)
    params["joints"].append("b")
    params["more"] = 1
    assert cfg.params == {"joints": ("a",)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        cfg.func = step_counter


# --- names of terms -------------------------------------------------------------------------------


def test_a_term_is_stored_as_module_and_name():
    assert func_name(TimeOut) == "unilab_gym.mdp.terminations:TimeOut"
    assert load_func("unilab_gym.mdp.terminations:TimeOut") is TimeOut
    assert func_name(Outer.inner).endswith(":Outer.inner")
    assert load_func("helpers.probe:counter") is counter


@pytest.mark.parametrize("func", [lambda frame: frame, functools.partial(counter)])
def test_a_term_without_an_importable_name(func):
    with pytest.raises(ConfigError, match="needs an importable name: define it at module level"):
        to_dict(TermCfg(func=func))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("helpers.probe:countr", r"helpers.probe has no 'countr'; did you mean 'counter'"),
        ("helpers.prob:counter", r"cannot import 'helpers.prob'"),
        ("counter", r"term 'counter': cannot import 'counter'"),
        (":counter", r"term ':counter': cannot import ''"),
        (".probe:counter", r"term '.probe:counter': cannot import '.probe'"),
        ("helpers.probe:", r"has no ''"),
    ],
)
def test_a_name_that_leads_nowhere(name, message):
    with pytest.raises(ConfigError, match=message):
        from_dict(TermCfg, {"func": name})


# --- typos at every level -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"enb": {}}, r"^unknown key 'enb'; did you mean 'env'"),
        ({"env.sim_dtt": 1}, r"^env: unknown key 'sim_dtt'; did you mean 'sim_dt'"),
        ({"env.scene.robbot": 1}, r"^env.scene: unknown key 'robbot'; did you mean 'robot'"),
        ({"env.rewards.lin_vel_z.wieght": 1}, r"^env.rewards.lin_vel_z: unknown key 'wieght'"),
        (
            {"env.observations.policy.terms.joint_vel.noise.hihg": 1},
            r"^env.observations.policy.terms.joint_vel.noise: unknown key 'hihg'",
        ),
        (
            {"env.events.push.mode": "intervall"},
            r"^env.events.push.mode: 'intervall'; did you mean",
        ),
        ({"env.sim.iterations": 2.5}, r"^env.sim.iterations: expected int, got float 2.5"),
        ({"env.sim.gravity": [0, 0]}, r"^env.sim.gravity: expected 3 entries, got 2"),
        ({"env.sim.gravity": 9.81}, r"^env.sim.gravity: expected a list, got 9.81"),
        ({"env.sim.gravity": [0, 0, "x"]}, r"^env.sim.gravity\[2\]: expected float, got str 'x'"),
        ({"env.sim.njmax": "many"}, r"^env.sim.njmax: expected int, got str 'many'"),
        ({"env.play": 1}, r"^env.play: expected bool, got int 1"),
        ({"env.sim_dt": True}, r"^env.sim_dt: expected float, got bool True"),
        ({"env.rewards": []}, r"^env.rewards: expected a mapping, got \[\]"),
        ({"env.scene": "go2"}, r"^env.scene: expected a mapping, got 'go2'"),
        ({"training.seed": "1"}, r"^training.seed: expected int, got str '1'"),
        ({"algo.actor.activation": 3}, r"^algo.actor.activation: expected str, got int 3"),
        (
            {"env.observations.policy.terms.joint_vel.scale": "big"},
            r"^env.observations.policy.terms.joint_vel.scale: expected float, got str 'big'",
        ),
    ],
)
def test_a_typo_is_named_with_its_path(change, message):
    data = to_dict(go2.owner("mujoco"))
    ((path, value),) = change.items()
    node = data
    *parents, last = path.split(".")
    for part in parents:
        node = node[part]
    node[last] = value
    with pytest.raises(ConfigError, match=message):
        from_dict(OwnerCfg, data)


def test_a_missing_key_is_named_with_its_path():
    data = to_dict(go2.owner("mujoco"))
    del data["env"]["rewards"]["lin_vel_z"]["weight"]
    with pytest.raises(ConfigError, match=r"^env.rewards.lin_vel_z: missing weight"):
        from_dict(OwnerCfg, data)
    with pytest.raises(ConfigError, match=r"^SceneCfg: missing robot"):
        from_dict(SceneCfg, {})


def test_a_value_without_a_plain_form_is_named_with_its_path():
    cfg = minimal(actions={"a": ActionTermCfg(func=counter, params={"x": [1, {1, 2}]})})
    with pytest.raises(ConfigError, match=r"^actions.a.params.x\[1\]: set \{1, 2\} has no plain"):
        to_dict(cfg)


# --- checks at construction -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "dt", "steps"),
    [(0.02, 0.02, 1), (0.28, 0.02, 14), (0.58, 0.02, 29), (1e-9, 0.02, 1)],
)
def test_steps_of_an_episode(seconds, dt, steps):
    assert minimal(episode_length_s=seconds, ctrl_dt=dt).max_episode_steps == steps


def test_substeps_of_a_control_step():
    assert minimal(sim_dt=0.002, ctrl_dt=0.02).decimation == 10
    assert minimal(sim_dt=0.005, ctrl_dt=0.005).decimation == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sim_dt": 0.0}, "sim_dt must be a positive time in s, got 0.0"),
        ({"ctrl_dt": float("nan")}, "ctrl_dt must be a positive time in s, got nan"),
        ({"episode_length_s": "20"}, "episode_length_s must be a positive time in s, got '20'"),
        ({"sim_dt": 0.007}, "ctrl_dt 0.02 is not a whole multiple of sim_dt 0.007"),
        ({"sim_dt": 0.04}, "ctrl_dt 0.02 is not a whole multiple of sim_dt 0.04"),
        ({"actions": {}}, "actions: at least one action term is needed"),
        ({"observations": {}}, r"observations need a group 'policy', got \[\]"),
        (
            {
                "rewards": {
                    "one": RewardTermCfg(func=counter, weight=1.0, params={"at": [0.0, NAN]})
                }
            },
            r"rewards.one.params.at.1 is not a number \(NaN\)",
        ),
        ({"scene": SceneCfg(robot="x", ground_friction=NAN)}, "scene.ground_friction is not a num"),
        ({"scene": SceneCfg(robot="x", ground_friction=INF)}, "scene.ground_friction is infinite"),
        (
            {"actions": {"a": ActionTermCfg(func=counter, params={"scale": {"hip_.*": -INF}})}},
            r"actions.a.params.scale.hip_\.\* is infinite in float32",
        ),
        (
            {"rewards": {"clip": RewardTermCfg(func=counter, weight=1.0, params={"std": 1e39})}},
            "rewards.clip.params.std is infinite in float32: only a bound may be",
        ),
        ({"clip_actions": "no"}, "clip_actions must be True or False, got 'no'"),
        ({"play": "yes"}, "play must be True or False, got 'yes'"),
        (
            {"observations": {n: ObservationGroupCfg(terms={}) for n in ("policy", "state")}},
            "an observation group cannot be named 'state'",
        ),
    ],
)
def test_an_impossible_environment(changes, message):
    with pytest.raises(ConfigError, match=message):
        minimal(**changes)


def test_bounds_may_be_infinite():
    open_clip = ObservationTermCfg(func=counter, clip=(-INF, INF))
    params = {"most_s": INF, "joint_limits": {".*": (-INF, INF)}, "max_force": INF}
    cfg = minimal(
        observations={"policy": ObservationGroupCfg(terms={"one": open_clip})},
        rewards={"one": RewardTermCfg(func=counter, weight=1.0, params=params)},
    )
    assert cfg.rewards["one"].params == params


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TermCfg(func="one"), "func must be a term function or class, got 'one'"),
        (lambda: UniformNoiseCfg(low=1.0, high=0.0), "noise: low 1.0 exceeds high 0.0"),
        (lambda: UniformNoiseCfg(low=0.0, high=NAN), "exceeds high nan"),
        (lambda: UniformNoiseCfg(low=0.0, high=INF), r"bounds must be finite, got 0.0, inf"),
        (lambda: GaussianNoiseCfg(std=INF), "std must be finite, got inf"),
        (lambda: ObservationTermCfg(func=counter, scale=INF), "scale must be finite, got inf"),
        (lambda: ObservationTermCfg(func=counter, scale=(1.0, NAN)), "scale must be finite, got"),
        (lambda: SimCfg(gravity=(0.0, 0.0, NAN)), "sim.gravity must be finite, got 1.0"),
        (lambda: SimCfg(impratio=INF), "sim.impratio and sim.gravity must be finite, got inf"),
        (lambda: ObservationTermCfg(func=counter, clip=(1, -1)), r"clip must be \(low, high\)"),
        (lambda: ObservationTermCfg(func=counter, clip=(1,)), r"clip must be \(low, high\)"),
        (lambda: MetricTermCfg(func=counter, reduce="maxx"), r"reduce: 'maxx'; did you mean 'max'"),
        (lambda: SceneCfg(robot="x", ground="flatt"), r"ground: 'flatt'; did you mean 'flat'"),
    ],
)
def test_an_impossible_value(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_play_takes_noise_randomization_and_pushes_away(tmp_path):
    cfg = walker_cfg(tmp_path)
    kept = dataclasses.replace(cfg.events["root"], in_play=True)
    cfg = dataclasses.replace(cfg, events={**cfg.events, "root": kept})
    play = cfg.for_play()
    assert play.play
    assert list(play.events) == ["root"]
    assert not any(group.corrupt for group in play.observations.values())
    assert play.rewards == cfg.rewards
    assert cfg.observations["policy"].corrupt  # the given config is another one


# --- overrides ------------------------------------------------------------------------------------


def test_overrides_reach_every_level_and_change_nothing_else():
    owner = go2.owner("mujoco")
    before = to_dict(owner)
    changed = apply_overrides(
        owner,
        {
            "env.episode_length_s": 5.0,
            "env.rewards.lin_vel_z.weight": -1.0,
            "env.rewards.track_lin_vel.params.sigma": 0.1,
            "env.actions.joint_pos.params.scale": {"FL.*": 0.5, "(FR|RL|RR).*": 0.25},
            "env.commands.twist.params.standing_fraction": 0.5,
            "env.sim.num_threads": 1,
            "env.observations.policy.terms.joint_vel.noise": UniformNoiseCfg(low=-1, high=1),
            "env.terminations.tilt.func": TimeOut,
            "algo.hyper": {"gamma": 0.9},
        },
    )
    assert to_dict(owner) == before
    assert changed.env.max_episode_steps == 250
    assert changed.env.rewards["lin_vel_z"] == dataclasses.replace(
        owner.env.rewards["lin_vel_z"], weight=-1.0
    )
    assert changed.env.rewards["track_lin_vel"].params == {"command": "twist", "sigma": 0.1}
    assert changed.env.actions["joint_pos"].params["scale"] == {"FL.*": 0.5, "(FR|RL|RR).*": 0.25}
    assert changed.env.sim == dataclasses.replace(owner.env.sim, num_threads=1)
    assert changed.env.observations["policy"].terms["joint_vel"].noise.high == 1
    assert changed.env.terminations["tilt"].func is TimeOut
    assert changed.algo.hyper == {"gamma": 0.9}
    assert changed.training == owner.training


def test_no_overrides_give_an_equal_config():
    owner = go2.owner("mujoco")
    assert apply_overrides(owner, {}) == owner


def test_a_parameter_may_be_new_its_name_is_checked_when_built(tmp_path):
    from helpers.probe import build

    cfg = apply_overrides(probe_cfg(tmp_path), {"actions.servo.params.scael": 2.0})
    assert cfg.actions["servo"].params == {"scael": 2.0}
    with pytest.raises(ConfigError, match="has no parameter 'scael'; did you mean 'scale'"):
        build(cfg)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("episode_length", 1.0, r"EnvCfg has no 'episode_length'; did you mean 'episode_length_s'"),
        (
            "rewards.onee.weight",
            1.0,
            r"'rewards.onee.weight': rewards has no 'onee'; did you mean 'one'",
        ),
        ("rewards.one.weigth", 1.0, r"rewards.one has no 'weigth'; did you mean 'weight'"),
        ("rewards.one.weight.x", 1.0, r"rewards.one.weight has no 'x'; available: nothing"),
        ("actions.servo.params.a.b", 1.0, r"actions.servo.params has no 'a'"),
        ("observations.policy.terms.k.noise.low", 0, r"policy.terms.k.noise has no 'low'"),
        ("rewards.one.weight", "much", r"rewards.one.weight: expected float, got str 'much'"),
        (1, 1.0, "an override is named by a dotted path, got 1"),
        ("ctrl_dt", 0.03, r"ctrl_dt 0.03 is not a whole multiple of sim_dt 0.02"),
        ("actions", {}, r"at least one action term"),
    ],
)
def test_an_override_that_does_not_fit(tmp_path, path, value, message):
    with pytest.raises(ConfigError, match=message):
        apply_overrides(probe_cfg(tmp_path), {path: value})


def test_defaults_are_those_documented():
    assert SimCfg().gravity == (0.0, 0.0, -9.81)
    assert TrainingCfg().sim_backend == "mujoco"
    assert RewardTermCfg(func=counter, weight=1).params == {}

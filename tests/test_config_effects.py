"""Every public field of an environment's config changes something that can be measured."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.probe import counter, one, walker_cfg, write_probe, write_walker

import unilab_gym
from unilab_gym import config, diagnosis, scene_config, signals
from unilab_gym.config import (
    CurriculumTermCfg,
    DelayCfg,
    EventTermCfg,
    GaussianNoiseCfg,
    MetricTermCfg,
    apply_overrides,
)
from unilab_gym.mdp import curriculums, events

STEPS = 40
HIPS = "scene.actuators.hips"
TERM = "observations.policy.terms.joint_vel"

CHANGES = {
    "EnvCfg.scene": {"scene.keyframe": None},
    "EnvCfg.sim": {"sim.gravity": [0.0, 0.0, -1.0]},
    "EnvCfg.sim_dt": {"sim_dt": 0.005},
    "EnvCfg.ctrl_dt": {"ctrl_dt": 0.04},
    "EnvCfg.episode_length_s": {"episode_length_s": 0.3},
    "EnvCfg.actions": {"actions.legs.params.box": 0.5},
    "EnvCfg.clip_actions": {"clip_actions": False},
    "EnvCfg.observations": {"observations.critic.terms.feet.scale": 2.0},
    "EnvCfg.rewards": {"rewards.track.params.sigma": 0.5},
    "EnvCfg.terminations": {"terminations.trunk.params.margin": 0.1},
    "EnvCfg.commands": {"commands.twist.params.standing_fraction": 0.5},
    "EnvCfg.events": {"events.friction.params.slide": [2.0, 3.0]},
    "EnvCfg.metrics": {"metrics.k.func": one},
    "EnvCfg.curriculum": {"curriculum.fade.params.stages": [[5, 0.0]]},
    "EnvCfg.play": {"play": True},
    "SceneCfg.actuators": {"scene.actuators": {}},
    "SceneCfg.sensors": {"scene.sensors": {}},
    "SceneCfg.joint_pos": {"scene.joint_pos": {"left_hip": 0.5}},
    "SceneCfg.root_pos": {"scene.root_pos": [0.0, 0.0, 0.6]},
    "ActuatorCfg.joints": {f"{HIPS}.joints": ["left_hip"]},
    "ActuatorCfg.kp": {f"{HIPS}.kp": 40.0},
    "ActuatorCfg.kd": {f"{HIPS}.kd": 3.0},
    "ActuatorCfg.effort": {f"{HIPS}.effort": 1.0},
    "ActuatorCfg.armature": {f"{HIPS}.armature": 0.1},
    "ActuatorCfg.damping": {f"{HIPS}.damping": 1.0},
    "ActuatorCfg.frictionloss": {f"{HIPS}.frictionloss": 1.0},
    "SensorCfg.kind": {"scene.sensors.imu.kind": "velocimeter"},
    "SensorCfg.site": {"scene.sensors.imu": {"kind": "gyro", "site": "left_tip"}},
    "SensorCfg.body": {"scene.sensors.imu": {"kind": "gyro", "body": "left"}},
    "SensorCfg.geom": {"scene.sensors.imu": {"kind": "frameangvel", "geom": "trunk"}},
    "SensorCfg.joint": {"scene.sensors.imu": {"kind": "jointvel", "joint": "left_hip"}},
    "SceneCfg.ground": {"scene.ground": "none"},
    "SceneCfg.ground_friction": {"scene.ground_friction": 0.1},
    "SceneCfg.keyframe": {"scene.keyframe": None},
    "SimCfg.integrator": {"sim.integrator": "euler"},
    "SimCfg.solver": {"sim.solver": "cg"},
    "SimCfg.iterations": {"sim.iterations": 1},
    "SimCfg.ls_iterations": {"sim.ls_iterations": 1},
    "SimCfg.cone": {"sim.cone": "elliptic"},
    "SimCfg.impratio": {"sim.impratio": 5.0},
    "SimCfg.gravity": {"sim.gravity": [0.0, 0.0, -9.0]},
    "SimCfg.njmax": {"sim.njmax": 77},  # the engine's own budgets reach its spec
    "SimCfg.nconmax": {"sim.nconmax": 33},
    "SimCfg.num_threads": {"sim.num_threads": 2},  # by contract no bit changes
    "TermCfg.func": {"rewards.rate.func": one},
    "TermCfg.params": {"actions.legs.params.scale": 0.25},
    "ObservationTermCfg.noise": {f"{TERM}.noise": {"low": -2.0, "high": 2.0}},
    "ObservationTermCfg.bias": {f"{TERM}.bias": {"std": 1.0}},
    "ObservationTermCfg.delay": {f"{TERM}.delay": 1},
    "ObservationTermCfg.history": {f"{TERM}.history": 2},
    "ObservationTermCfg.clip": {f"{TERM}.clip": [-0.5, 0.5]},
    "ObservationTermCfg.scale": {f"{TERM}.scale": 0.2},
    "UniformNoiseCfg.low": {f"{TERM}.noise.low": -0.5},
    "UniformNoiseCfg.high": {f"{TERM}.noise.high": 0.5},
    "GaussianNoiseCfg.std": {"observations.policy.terms.gravity.bias.std": 0.5},
    "DelayCfg.steps": {"observations.policy.delay.steps": [1, 4]},
    "DelayCfg.redraw": {"observations.policy.delay.redraw": 3},
    "DelayCfg.shared": {"observations.policy.delay.shared": "bus"},
    "ObservationGroupCfg.terms": {"observations.critic.terms.feet.scale": 2.0},
    "ObservationGroupCfg.delay": {"observations.critic.delay": 1},
    "ObservationGroupCfg.history": {"observations.critic.history": 2},
    "ObservationGroupCfg.flatten": {
        "observations.critic.history": 2,
        "observations.critic.flatten": False,
    },
    "ObservationGroupCfg.corrupt": {"observations.policy.corrupt": False},
    "ActionTermCfg.delay": {"actions.legs.delay": 1},
    "RewardTermCfg.weight": {"rewards.rate.weight": -1.0},
    "TerminationTermCfg.time_out": {
        "terminations.trunk.time_out": True,
    },
    "EventTermCfg.interval_s": {"events.push.interval_s": [0.1, 0.1]},
    "EventTermCfg.global_interval": {"events.push.global_interval": True},
    "EventTermCfg.min_steps_between": {"events.root.min_steps_between": 100},
    "MetricTermCfg.reduce": {"metrics.k.reduce": "max"},
    "MetricTermCfg.play_only": {"metrics.k.play_only": True},
}
ELSEWHERE = {
    "ActuatorCfg.kind": "test_the_kind_of_an_actuator",
    "EnvCfg.fault_dump": "test_dumps_of_faults",
    "FaultDumpCfg.directory": "test_dumps_of_faults",
    "FaultDumpCfg.steps": "test_dumps_of_faults",
    "FaultDumpCfg.max_files": "test_dumps_of_faults",
    "SceneCfg.robot": "test_another_robot_is_another_model",
    "EnvCfg.recorders": "test_a_recorder_leaves_files",
    "EventTermCfg.mode": "test_the_mode_of_an_event",
    "EventTermCfg.in_play": "test_play_keeps_what_says_so",
    "EnvCfg.cpu_ids": "test_cpu_ids_reach_the_scheduler",
    "CommandTermCfg.play_params": "test_play_parameters_replace_those_of_training",
}
CLASSES = [
    value
    for value in vars(config).values()
    if dataclasses.is_dataclass(value)
    and value.__module__
    in (config.__name__, scene_config.__name__, signals.__name__, diagnosis.__name__)
    and value not in (config.AlgoCfg, config.NetworkCfg, config.TrainingCfg, config.OwnerCfg)
]


def base(tmp_path):
    hips = config.ActuatorCfg(joints=(".*_hip",), kp=30.0, kd=1.0, effort=20.0)
    scene = config.SceneCfg(
        robot=write_walker(tmp_path),
        actuators={"hips": hips},
        sensors={"imu": config.SensorCfg(kind="gyro", body="base")},
    )
    cfg = walker_cfg(tmp_path)
    policy = dataclasses.replace(cfg.observations["policy"], delay=DelayCfg(steps=(0, 3)))
    gravity = dataclasses.replace(policy.terms["gravity"], bias=GaussianNoiseCfg(std=0.1))
    policy = dataclasses.replace(policy, terms={**policy.terms, "gravity": gravity})
    return walker_cfg(
        tmp_path,
        scene=scene,
        observations={**cfg.observations, "policy": policy},
        metrics={
            "k": MetricTermCfg(func=counter),
            "in_play": MetricTermCfg(func=one, play_only=True),
        },
        curriculum={
            "fade": CurriculumTermCfg(
                func=curriculums.RewardWeightStages,
                params={"reward": "rate", "stages": ((30, -0.5),)},
            )
        },
        episode_length_s=0.6,
        sim=config.SimCfg(num_threads=1, iterations=4, ls_iterations=8),
    )


def fingerprint(cfg):
    """What comes out of forty steps, and what the engine was built with."""
    env = unilab_gym.make(cfg, 6, backend="mujoco", obs="dict", seed=4)
    spec, parts = env.runtime.backend.spec, {}
    parts["engine"] = (spec.njmax, spec.nconmax, spec.num_threads, spec.decimation)
    option = spec.model.opt
    parts["option"] = (option.solver, option.ls_iterations, option.impratio, option.cone)
    model = spec.model
    parts["sensors"] = [
        getattr(model, f"sensor_{name}").tolist() for name in ("type", "objtype", "objid")
    ]
    parts["sites"] = model.site_bodyid.tolist()
    obs, _ = env.reset()
    trace = [*obs.values()]
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        action = torch.rand(6, 2, generator=generator) * 3 - 1.5  # beyond the box, too
        obs, reward, terminated, truncated, _ = env.step(action)
        trace += [*obs.values(), reward, terminated.float(), truncated.float()]
    parts["trace"] = torch.cat([value.flatten() for value in trace])
    parts["log"] = {name: value.item() for name, value in env.runtime.log().items()}
    env.close()
    return parts


def differ(first, second):
    same_trace = torch.equal(first.pop("trace"), second.pop("trace"))
    return not same_trace or first != second


@pytest.mark.parametrize("field", CHANGES)
def test_a_field_has_an_effect(tmp_path, field):
    cfg = base(tmp_path)
    changed = apply_overrides(cfg, CHANGES[field])
    assert changed != cfg
    assert differ(fingerprint(cfg), fingerprint(changed))


def test_the_measure_is_repeatable(tmp_path):
    assert not differ(fingerprint(base(tmp_path)), fingerprint(base(tmp_path)))


def test_every_field_is_here():
    inherited = {item.name for item in dataclasses.fields(config.TermCfg)}
    fields = {
        f"{cls.__name__}.{item.name}"
        for cls in CLASSES
        for item in dataclasses.fields(cls)
        if cls is config.TermCfg or not (issubclass(cls, config.TermCfg) and item.name in inherited)
    }
    assert len(CLASSES) > 10
    assert fields - {*CHANGES, *ELSEWHERE} == set()
    assert {*CHANGES, *ELSEWHERE} - fields == set()
    assert all(name in globals() for name in ELSEWHERE.values())


def test_another_robot_is_another_model(tmp_path):
    from helpers.probe import probe_cfg

    cfg = probe_cfg(tmp_path)
    assert cfg.scene.robot == write_probe(tmp_path)
    heavy = tmp_path / "heavy.xml"
    heavy.write_text((tmp_path / "probe.xml").read_text().replace('mass="1"', 'mass="2"'))
    masses = []
    for robot in (cfg.scene.robot, str(heavy)):
        env = unilab_gym.make(apply_overrides(cfg, {"scene.robot": robot}), 1, backend="mujoco")
        masses.append(float(env.runtime.backend.nominal("body_mass").sum()))
        env.close()
    assert masses == [1.0, 2.0]


def test_the_kind_of_an_actuator(tmp_path):
    """A motor is no servo: what commands positions refuses it."""
    cfg = base(tmp_path)
    motor = {"kind": "motor", "kp": None, "kd": None, "joints": [".*_hip"]}
    changed = apply_overrides(cfg, {"scene.actuators.hips": motor})
    with pytest.raises(config.ConfigError, match=r"position.*actuator|actuator.*'position'"):
        unilab_gym.make(changed, 1, backend="mujoco")


def test_a_recorder_leaves_files(tmp_path):
    from unilab_gym.mdp.recorders import EpisodeRecorder

    params = {"folder": str(tmp_path / "episodes")}
    recorder = config.RecorderTermCfg(func=EpisodeRecorder, params=params)
    for recorders, files in (({}, 0), ({"episodes": recorder}, 1)):
        fingerprint(dataclasses.replace(base(tmp_path), recorders=recorders))
        assert len(list(tmp_path.glob("episodes/*.npz"))) == files


def test_the_mode_of_an_event(tmp_path):
    """A mode that a class does not fit is refused, so the field cannot be without effect."""
    cfg = base(tmp_path)
    for mode, func, params in (
        ("startup", events.ResetRootUniform, {"xy": (0, 0)}),
        ("reset", events.PushRoot, {"lin_vel_xy": (0, 0)}),
        ("startup", events.PushRoot, {"lin_vel_xy": (0, 0)}),
    ):
        wrong = {"e": EventTermCfg(func=func, mode=mode, params=params)}
        with pytest.raises(config.ConfigError, match=f"events/e: mode '{mode}' takes a "):
            unilab_gym.make(dataclasses.replace(cfg, events=wrong), 1, backend="mujoco")


def test_dumps_of_faults(tmp_path):
    """They change no bit of a run: the files are the effect."""
    cfg, written = base(tmp_path), {}
    changes = {"plain": {}, "short": {"steps": 2}, "one": {"max_files": 1}}
    for name, change in changes.items():
        dump = config.FaultDumpCfg(directory=str(tmp_path / name), **change)
        dumping = dataclasses.replace(cfg, fault_dump=dump)
        env = unilab_gym.make(dumping, 2, backend="mujoco", seed=0)
        env.reset()
        for value in (0.0, 0.0, torch.nan):
            env.step(torch.full((2, 2), value))
        env.close()
        written[name] = sorted((tmp_path / name).iterdir())
    assert [len(files) for files in written.values()] == [2, 2, 1]
    with np.load(written["plain"][0]) as plain, np.load(written["short"][0]) as short:
        assert (len(plain["state"]), len(short["state"])) == (3, 2)


def test_play_keeps_what_says_so(tmp_path):
    cfg = base(tmp_path)
    kept = apply_overrides(cfg, {"events.root.in_play": True})
    assert differ(fingerprint(cfg.for_play()), fingerprint(kept.for_play()))
    assert not differ(fingerprint(cfg), fingerprint(kept))


def test_cpu_ids_reach_the_scheduler(tmp_path, monkeypatch):
    """What they do there: tests/backends/test_placement.py, in a process of its own."""
    from unilab_gym.backends import placement

    given = []
    monkeypatch.setattr(placement, "place", given.append)
    for ids in (None, (0,)):
        env = unilab_gym.make(dataclasses.replace(base(tmp_path), cpu_ids=ids), 1, backend="mujoco")
        env.close()
    assert given == [(0,)]


def test_play_parameters_replace_those_of_training(tmp_path):
    cfg = base(tmp_path)
    still = apply_overrides(cfg, {"commands.twist.play_params": {"standing_fraction": 1.0}})
    assert differ(fingerprint(cfg.for_play()), fingerprint(still.for_play()))
    assert not differ(fingerprint(cfg), fingerprint(still))
    assert still.for_play().commands["twist"].params["standing_fraction"] == 1.0

"""Saving and restoring: what is saved, bitwise resumption, one row for many, other engines."""

import dataclasses
import importlib.util
import pickle
from pathlib import Path

import pytest
import torch
from helpers.memory import memory_cfg
from helpers.probe import (
    CPU,
    build,
    obs_term,
    probe_cfg,
    random_actions,
    started,
    step_counter,
    walker_cfg,
)
from helpers.walk import carriers, rows_of, same_bits, snapshot

from unilab_gym.backends import create_backend
from unilab_gym.backends.base import BackendSpec
from unilab_gym.config import (
    CurriculumTermCfg,
    EventTermCfg,
    FaultDumpCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    RewardTermCfg,
)
from unilab_gym.errors import ConfigError
from unilab_gym.mdp import curriculums, events, observations, rewards
from unilab_gym.registration import owner_config, task_ids
from unilab_gym.runtime.carriers import StateRegistry
from unilab_gym.runtime.env import ManagerBasedRlEnv
from unilab_gym.runtime.reads import EpisodeStep, Sensor
from unilab_gym.runtime.rng import seed_keys
from unilab_gym.runtime.term import Term, term
from unilab_gym.scene import build_scene

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "replay_dump.py"
ELSEWHERE = ("_backend.",)
"""Engine memory: its rows, accelerations and model fields are read through the backend."""
DERIVED = (
    "frame._derived.",
    "frame._bound.",
    "frame.known.",
    "_backend._rows",
    "_backend._packed",
)
"""Computed anew at every boundary, or in every call."""


@term(reads=(EpisodeStep(),))
class Odometer(Term):
    """Counts its own steps per row, and all of them in a buffer that rows share."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.total = ctx.zeros(key="total")
        self.shared = ctx.shared(0.0, key="calls")

    def __call__(self, frame):
        self.total.add_(1.0)
        self.shared.add_(1.0)
        return self.total * self.shared

    def reset(self, mask):
        self.total.masked_fill_(mask, 0.0)


def busy_cfg(folder, **changes):
    """The walker with all memory, a stateful reward and a maximum metric."""
    cfg = memory_cfg(folder, episode_length_s=0.6)
    peak = MetricTermCfg(func=rewards.action_rate_l2, reduce="max")
    rewards_ = {**cfg.rewards, "odometer": RewardTermCfg(func=Odometer, weight=1.0)}
    return dataclasses.replace(cfg, rewards=rewards_, metrics={"peak": peak}, **changes)


def mask_of(env, *rows):
    mask = torch.zeros(env.num_envs, dtype=torch.bool)
    mask[list(rows)] = True
    return mask


def play(env, actions, every=1):
    """What each step publishes and leaves; everything that lasts after every so many steps."""
    played = []
    for number, action in enumerate(actions, start=1):
        state = env.step(action)
        if number % every == 0:
            played.append(snapshot(env))
        else:
            played.append({name: obs.clone() for name, obs in state.obs.items()})
            played[-1] |= {"reward": state.reward.clone(), "state": env.backend.get_state()}
        played[-1]["log"] = torch.stack(list(env.log().values()))
    return played


def assert_rows_equal(left, right, rows, num_envs):
    """Every entry with one row an environment, bit for bit."""
    left, right = rows_of(left, num_envs), rows_of(right, num_envs)
    assert len(left) > 3
    for path, value in left.items():
        if any(part in path for part in DERIVED):
            continue
        assert same_bits(value[rows], right[path][rows]), path


# --- nothing is forgotten -------------------------------------------------------------------------


def unregistered(env):
    """Paths of tensors `[N, ...]` that are neither state nor scratch."""
    registry = env.rt.state
    known = (*registry.rows.values(), *registry.scratch.values(), env.rt.views.qpos)
    known = {tensor.untyped_storage().data_ptr() for tensor in known}
    known |= {read.untyped_storage().data_ptr() for read in env.rt.frame.fixed.values()}
    return sorted(
        path
        for path, tensor in rows_of(carriers(env), env.num_envs).items()
        if not any(part in path for part in (*ELSEWHERE, *DERIVED))
        and tensor.untyped_storage().data_ptr() not in known
    )


def unshared_changes(env, actions):
    """Paths of tensors without rows that changed in some steps and are not registered."""
    state = env.rt.state
    known = (*state.shared.values(), *state.rows.values(), *state.scratch.values())
    known = {tensor.untyped_storage().data_ptr() for tensor in known}
    found = {p: t for p, t in carriers(env).items() if p not in rows_of({p: t}, env.num_envs)}
    found = {p: t for p, t in found.items() if not any(part in p for part in ELSEWHERE)}
    before = {path: tensor.clone() for path, tensor in found.items()}
    for action in actions:
        env.step(action)
    return sorted(
        path
        for path, tensor in found.items()
        if tensor.untyped_storage().data_ptr() not in known and not same_bits(tensor, before[path])
    )


def test_every_carrier_of_a_busy_environment_is_registered(tmp_path):
    env = started(busy_cfg(tmp_path), 7)
    env.commands.hold("twist", [0.1, 0.2, 0.3], mask_of(env, 2))
    actions = random_actions(env, 35)  # over an automatic reset
    assert unshared_changes(env, actions) == []
    assert unregistered(env) == []
    env.close()


@pytest.mark.parametrize("task", task_ids())
def test_every_carrier_of_every_task_is_registered(task):
    cfg = owner_config(task, "mujoco").env
    cfg = dataclasses.replace(cfg, sim=dataclasses.replace(cfg.sim, num_threads=1))
    env = started(cfg, 7)
    env.rt.episode_step.fill_(env.max_episode_steps - 2)
    assert unshared_changes(env, random_actions(env, 4)) == []
    assert unregistered(env) == []
    env.close()


def test_the_walk_finds_what_was_forgotten(tmp_path):
    """A term that allocates by itself, and one that keeps what it computed."""

    @term(reads=(EpisodeStep(),))
    class Careless(Term):
        def __init__(self, ctx):
            super().__init__(ctx)
            self.mine = torch.zeros(ctx.num_envs)
            self.global_count = torch.zeros(3)

        def __call__(self, frame):
            self.kept = frame[EpisodeStep()].float()
            self.global_count.add_(1.0)
            return self.kept

    Careless.__module__ = "tests.careless"
    bad = {"bad": RewardTermCfg(func=Careless, weight=1.0)}
    env = started(probe_cfg(tmp_path, rewards=bad), 7)
    path = "env.rt.rewards._terms.0._call"
    assert unshared_changes(env, random_actions(env, 1)) == [f"{path}.global_count"]
    assert unregistered(env) == [f"{path}.kept", f"{path}.mine"]
    env.close()


def test_names_are_unique_and_numbered_without_a_key():
    registry, one = StateRegistry(), torch.zeros(2)
    registry.add_rows("rewards/x", "", one)
    registry.add_shared("rewards/x", "", one)
    registry.add_scratch("rewards/x", "peak", one)
    assert [*registry.rows, *registry.shared, *registry.scratch] == [
        "rewards/x/0",
        "rewards/x/1",
        "rewards/x/peak",
    ]
    with pytest.raises(ConfigError, match="'rewards/x/peak' is registered twice"):
        registry.add_rows("rewards/x", "peak", one)


# --- resuming -------------------------------------------------------------------------------------


def test_restored_rows_repeat_their_steps_and_the_others_notice_nothing(tmp_path):
    """N16, bitwise on MuJoCo C: 100 steps over resets, pushes and resampling."""
    env, control = started(busy_cfg(tmp_path), 5), started(busy_cfg(tmp_path), 5)
    first, actions = random_actions(env, 13), random_actions(env, 100, seed=1)
    play(env, first)
    chosen = mask_of(env, 1, 3)
    saved = pickle.loads(pickle.dumps(env.get_state(chosen)))
    shared = {k: v for k, v in env.state_dict().items() if k.startswith("shared/")}
    assert {value.shape[0] for value in saved.values()} == {2}
    once = play(env, actions, every=10)
    for name, tensor in env.rt.state.shared.items():  # the odometer is global: wind it back
        tensor.copy_(shared[f"shared/{name}"])
    before = snapshot(env)
    env.set_state(saved, chosen)
    assert_rows_equal(snapshot(env), before, ~chosen, 5)
    again = play(env, actions, every=10)
    for left, right in zip(once, again, strict=True):
        assert_rows_equal(left, right, chosen, 5)
    play(control, first)
    play(control, actions, every=10)
    for name, tensor in control.rt.state.shared.items():
        tensor.copy_(shared[f"shared/{name}"])
    assert_rows_equal(again[-1], play(control, actions, every=10)[-1], ~chosen, 5)
    env.close()
    control.close()


def test_a_state_is_a_copy_and_reading_it_changes_nothing(tmp_path):
    env = started(busy_cfg(tmp_path), 3)
    actions = random_actions(env, 4)
    play(env, actions[:2])
    before = snapshot(env)
    state = env.get_state()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    after = snapshot(env)
    assert all(same_bits(before[path], after[path]) for path in before)
    play(env, actions[2:])
    assert all(same_bits(state[name], kept[name]) for name in kept)
    assert not any(tensor.requires_grad for tensor in state.values())
    storages = {tensor.untyped_storage().data_ptr() for tensor in carriers(env).values()}
    assert not storages & {tensor.untyped_storage().data_ptr() for tensor in state.values()}
    env.close()


def test_the_published_state_comes_back_at_once(tmp_path):
    env = started(busy_cfg(tmp_path), 3)
    play(env, random_actions(env, 5))
    saved = env.get_state()
    state = env.state
    wanted = {name: obs.clone() for name, obs in state.obs.items()}
    reward, step = state.reward.clone(), env.rt.episode_step.clone()
    play(env, random_actions(env, 7, seed=2))
    restored = env.set_state(saved)
    assert restored is env.state
    assert all(torch.equal(restored.obs[name], obs) for name, obs in wanted.items())
    assert torch.equal(restored.reward, reward) and torch.equal(env.rt.episode_step, step)
    env.close()


def test_one_row_goes_to_every_masked_row_and_new_keys_part_them(tmp_path):
    now = walker_cfg(tmp_path).observations  # without latencies new noise shows at once
    env = started(busy_cfg(tmp_path, observations=now), 7)
    play(env, random_actions(env, 6))
    one = env.get_state(mask_of(env, 2))
    chosen = mask_of(env, 0, 2, 3)
    env.set_state(one, chosen)
    same = torch.zeros(7, env.action_size)
    env.step(same)
    rows = snapshot(env)
    for path, value in rows_of(rows, 7).items():
        if not any(part in path for part in DERIVED):
            assert same_bits(value[0], value[2]) and same_bits(value[0], value[3]), path
    assert not torch.equal(rows["engine.state"][1], rows["engine.state"][0])
    env.set_state(one, chosen, keys=seed_keys(5, 7))
    assert torch.equal(env.rt.episode_step[chosen], torch.full((3,), 6))
    walked = env.rt.rng.positions[0] - env.rt.rng.keys[0]  # its counters are the saved ones
    assert torch.equal(walked, (one["rng/positions"] - one["rng/keys"])[0])
    policy = env.step(same).obs["policy"]  # noise differs, the state does not
    assert torch.equal(env.rt.views.qpos[0], env.rt.views.qpos[3])
    assert not torch.equal(policy[0], policy[3])
    env.close()


def test_held_commands_and_pending_pushes_are_part_of_it(tmp_path):
    env = started(busy_cfg(tmp_path), 3)
    env.commands.hold("twist", [0.5, 0.0, 0.0], mask_of(env, 1))
    saved = env.get_state()
    env.commands.release("twist")
    actions = random_actions(env, 40)
    play(env, actions)
    env.set_state(saved)
    play(env, actions)
    assert env.rt.commands.terms["twist"].value[1].tolist() == [0.5, 0.0, 0.0]
    env.commands.release("twist")
    assert torch.equal(saved["commands/twist/held/mask"][:, 0], mask_of(env, 1))
    env.close()


def test_randomized_fields_and_their_constants_come_back(tmp_path):
    env = started(walker_cfg(tmp_path), 3)
    saved, actions = env.get_state(), random_actions(env, 10)
    want = play(env, actions)[-1]
    env.reset(keys=seed_keys(99, 3))  # other masses
    assert not torch.equal(env.backend.get_model_field("body_mass"), saved["model/body_mass"])
    env.set_state(saved)
    assert_rows_equal(play(env, actions)[-1], want, slice(None), 3)
    env.close()


# --- physics only ---------------------------------------------------------------------------------


def test_a_physics_state_begins_a_new_episode_there(tmp_path):
    env = started(busy_cfg(tmp_path), 4)
    play(env, random_actions(env, 8))
    physics = env.get_state(physics_only=True)
    assert set(physics) == {
        "engine/state",
        "engine/acceleration",
        "model/geom_friction",
        "model/body_mass",
        "model/body_inertia",
    }
    play(env, random_actions(env, 5, seed=3))
    chosen = mask_of(env, 0, 2)
    before = snapshot(env)
    env.set_state(physics, chosen)
    assert torch.equal(env.backend.get_state()[chosen], physics["engine/state"][chosen])
    assert env.rt.episode_step[chosen].tolist() == [0, 0]
    assert not env.rt.rewards.sums[chosen].any() and not env.rt.actions.action[chosen].any()
    heights = env.state.obs["critic"][:, 3:]
    assert torch.equal(env.rt.observations.buffers["critic"][:, 3:], heights)
    assert_rows_equal(snapshot(env), before, ~chosen, 4)
    env.close()


def engine_env(name, cfg, num_envs):
    scene = build_scene(cfg.scene, cfg.sim, cfg.sim_dt)
    spec = BackendSpec(
        model=scene.model,
        index=scene.index,
        num_envs=num_envs,
        device=CPU,
        decimation=cfg.decimation,
        num_threads=1,
        nconmax=8,
        njmax=32,
    )
    env = ManagerBasedRlEnv(
        cfg, scene.index, lambda final: create_backend(name, final), spec, seed=3
    )
    env.reset()
    return env


@term(reads=(Sensor("tip_acc"),), width=3)
def tip_acc(frame):
    return frame[Sensor("tip_acc")]


def accelerated_cfg(folder):
    """One hinge, whose observation has an acceleration-stage read."""
    terms = {
        "k": obs_term(step_counter),
        "q": obs_term(observations.joint_pos_rel),
        "acc": obs_term(tip_acc),
    }
    armature = EventTermCfg(
        func=events.RandomizeGains,
        mode="startup",
        params={"kp": (0.5, 2.0), "kd": (0.5, 2.0)},
    )
    group = ObservationGroupCfg(terms=terms)
    return probe_cfg(folder, observations={"policy": group}, events={"gains": armature})


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """The same environment on both engines; it would dump its faults."""
    pytest.importorskip("mujoco_warp")
    folder = tmp_path_factory.mktemp("engines")
    dump = FaultDumpCfg(directory=str(folder / "faults"))
    cfg = dataclasses.replace(accelerated_cfg(folder), fault_dump=dump)
    envs = {name: engine_env(name, cfg, 3) for name in ("mujoco", "mjwarp")}
    yield envs
    for env in envs.values():
        env.close()


@pytest.mark.parametrize(("home", "away"), [("mujoco", "mjwarp"), ("mjwarp", "mujoco")])
def test_a_state_of_one_engine_loads_on_the_other(engines, home, away):
    """N16: the whole state both ways; the next step agrees to the engines' tolerance."""
    here, there = engines[home], engines[away]
    actions = random_actions(here, 6)
    for action in actions:
        here.step(action)
    saved = here.get_state()
    assert saved["engine/acceleration"].shape == (3, 3)
    assert saved["engine/acceleration"].any()
    there.set_state(saved)
    back = there.get_state()
    assert back.keys() == saved.keys()
    for name, value in saved.items():
        assert torch.equal(back[name], value.to(back[name].dtype)), name
    left, right = here.step(actions[0]), there.step(actions[0])
    assert (left.obs["policy"] - right.obs["policy"])[:, :2].abs().max() <= 2e-6
    assert torch.equal(left.reward, right.reward)


def test_warp_repeats_its_steps_on_the_cpu(engines):
    """N16 on mjwarp, others unaffected by the restore."""
    env = engines["mjwarp"]
    env.reset(keys=seed_keys(1, 3))
    actions = random_actions(env, 60)
    chosen = mask_of(env, 1)
    for action in actions[:3]:
        env.step(action)
    saved = env.get_state(chosen)
    once = [env.step(action).obs["policy"][1].clone() for action in actions]
    before = snapshot(env)
    env.set_state(saved, chosen)
    assert_rows_equal(snapshot(env), before, ~chosen, 3)
    for action, obs in zip(actions, once, strict=True):
        assert torch.equal(env.step(action).obs["policy"][1], obs)


def test_warp_dumps_a_fault_that_plain_mujoco_replays(engines):
    """E13 and N01 on mjwarp: the row alone, its file, its next episode."""
    env = engines["mjwarp"]
    env.reset(keys=seed_keys(1, 3))
    actions = random_actions(env, 8) * 0.3
    for action in actions:
        env.step(action)
    env.rt.views.qvel[2] = torch.nan
    state = env.step(actions[0])
    assert state.terminated.tolist() == [False, False, True]
    assert state.reward.isfinite().all() and state.obs["policy"].isfinite().all()
    assert env.step(actions[1]).obs["policy"].isfinite().all()
    spec = importlib.util.spec_from_file_location("replay_dump", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (path,) = env.faults.dumps
    dump, meta = script.load(path)
    assert (meta["env"], meta["backend"]) == (2, "mjwarp")
    assert meta["causes"][0] == "state_nonfinite"
    after, _ = script.replay(script.load_model(dump), dump, meta)
    assert len(after) >= 9
    found = [value for value in script.confirmed(dump, meta, after) if value is not None]
    assert len(found) >= 7 and max(found[-7:]) < 1e-4


# --- training -------------------------------------------------------------------------------------


def test_state_dict_goes_on_as_if_nothing_had_happened(tmp_path):
    """E49 with a stateful term: counters, shared buffers, log and fault totals included."""
    env = started(busy_cfg(tmp_path), 4, seed=1)
    play(env, random_actions(env, 20))
    action = torch.zeros(4, env.action_size)
    action[1] = torch.nan
    env.step(action)
    saved = pickle.loads(pickle.dumps(env.state_dict()))
    actions = random_actions(env, 50, seed=9)
    want, totals = play(env, actions, 10), env.fault_totals()
    env.close()
    fresh = build(busy_cfg(tmp_path), 4, seed=77)  # never reset, another seed
    fresh.load_state_dict(saved)
    got = play(fresh, actions, 10)
    for left, right in zip(want, got, strict=True):
        assert_rows_equal(left, right, slice(None), 4)
        assert torch.equal(left["log"], right["log"])
    assert fresh.rt.state.shared["rewards/odometer/calls"].item() == 72.0
    assert fresh.fault_totals() == totals and totals["action_nonfinite"] == 1
    fresh.close()


def staged_cfg(folder):
    """Commands and a reward weight that change at step 25, and a level that follows the log."""
    ranges = {"command": "twist", "parameter": "lin_vel_x", "stages": [(25, (5.0, 6.0))]}
    weights = {"reward": "track", "stages": [(25, 3.0)]}
    levels = {
        "path": "rewards/rate/weight",
        "key": "episode/length",
        "values": (-0.1, -0.2, -0.3),
        "raise_at": 5.0,
        "lower_below": 2.0,
        "episodes": 3,
    }
    terms = {
        "ranges": CurriculumTermCfg(func=curriculums.CommandRangeStages, params=ranges),
        "weights": CurriculumTermCfg(func=curriculums.RewardWeightStages, params=weights),
        "levels": CurriculumTermCfg(func=curriculums.PerformanceLevels, params=levels),
    }
    return walker_cfg(folder, episode_length_s=0.2, curriculum=terms)


def test_a_curriculum_goes_on_at_its_stage(tmp_path):
    """E49: saved at step 30 of a curriculum that switched at 25; without restoring it is fresh."""
    env = started(staged_cfg(tmp_path), 7, seed=1)
    play(env, random_actions(env, 30))
    saved = pickle.loads(pickle.dumps(env.state_dict()))
    actions = random_actions(env, 50, seed=9)
    fresh = started(staged_cfg(tmp_path), 7, seed=1)
    assert fresh.log()["curriculum/ranges"].item() != env.log()["curriculum/ranges"].item()
    assert unshared_changes(fresh, actions[:8]) == [] and unregistered(fresh) == []
    fresh.load_state_dict(saved)
    assert fresh.rt.curriculum.steps.item() == 30
    assert {k: v.item() for k, v in fresh.log().items()} == {
        k: v.item() for k, v in env.log().items()
    }
    for path, target in env.rt.curriculum.targets.items():
        assert torch.equal(fresh.rt.curriculum.targets[path], target), path
    for left, right in zip(play(env, actions, 10), play(fresh, actions, 10), strict=True):
        assert_rows_equal(left, right, slice(None), 7)
        assert torch.equal(left["log"], right["log"])
    assert env.rt.commands.terms["twist"].value[:, 0].min() >= 5.0
    env.close()
    fresh.close()


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards/sum": torch.zeros(3, 3)}, "no state 'rewards/sum'; did you mean 'rewards/sums'"),
        ({"rewards/sums": None}, "the state lacks rewards/sums$"),
        (
            {"rewards/sums": torch.zeros(3, 2)},
            r"'rewards/sums' is torch.float32 \(3, 2\); expected torch.float32 \(3, 5\)",
        ),
        ({"rng/keys": torch.zeros(3, 1)}, r"'rng/keys' is torch.float32 .* expected torch.int64"),
        ({"rng/keys": [1, 2, 3]}, "'rng/keys' must be a tensor, got list"),
        (
            {"engine/state": torch.zeros(2, 60)},
            r"holds 2 rows; expected 1, 3 \(as many as the mask\) or 3",
        ),
        ({"engine/state": torch.zeros(1, 60)}, r"'\S+' is \S+ \(3, .*; expected \S+ \(1, "),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_nothing_is_written(tmp_path, change, message):
    env = started(busy_cfg(tmp_path), 3)
    play(env, random_actions(env, 3))
    state = env.get_state() | change
    state = {name: value for name, value in state.items() if value is not None}
    before = snapshot(env)
    with pytest.raises(ConfigError, match=message):
        env.set_state(state)
    after = snapshot(env)
    assert all(same_bits(before[path], after[path]) for path in before)
    env.close()


def test_a_state_dict_needs_the_same_size_and_its_shared_part(tmp_path):
    env, larger = started(busy_cfg(tmp_path), 3), build(busy_cfg(tmp_path), 4)
    saved = env.state_dict()
    with pytest.raises(ConfigError, match="holds 3 rows; this environment has 4"):
        larger.load_state_dict(saved)
    with pytest.raises(ConfigError, match="the state lacks shared/faults/total, shared/log/held"):
        env.load_state_dict(env.get_state())
    bad = saved | {"shared/log/held": torch.zeros(2)}
    with pytest.raises(ConfigError, match=r"'shared/log/held' is torch.float32 \(2,\)"):
        env.load_state_dict(bad)
    with pytest.raises(ConfigError, match="the state lacks engine/acceleration, engine/state"):
        env.set_state({})
    with pytest.raises(ConfigError, match=r"mask must be bool \(3,\)"):
        env.get_state(torch.ones(3))
    env.close()
    larger.close()

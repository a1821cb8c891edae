"""Go2 on two engines, in two processes, with one or two threads, in batches of any size.

`mujoco` is bitwise repeatable. `mjwarp` agrees with it within the figures of `PARITY`, measured
on its CPU device; on CUDA its rollouts are not promised to be bitwise equal.
"""

import operator

import mujoco
import pytest
import torch
from helpers.face import ACTIONS, actions, digest, frozen, make_go2, rollout, run_python, same

from unilab_gym.backends.base import MODEL_FIELDS

PARITY = {"observation": 1e-4, "qpos": 2e-6, "qvel": 2e-4, "reward": 1e-3, "height": 5e-3}


# -- one engine against itself ---------------------------------------------------------------------

DETERMINISM = """
import json
import helpers.face as face
env = face.make_go2(32, seed=3, overrides={"sim.num_threads": 1})
print(json.dumps(face.digest(face.rollout(env, 200, scale=2.0))))
"""


def test_200_steps_are_bitwise_equal_across_threads_and_processes():
    digests = {"1 thread in another process": run_python(DETERMINISM)}
    for threads in (2, 8):
        env = make_go2(32, seed=3, overrides={"sim.num_threads": threads})
        results = rollout(env, 200, scale=2.0)
        digests[f"{threads} threads"] = digest(results)
        env.close()
    assert len(set(digests.values())) == 1, digests
    ended = torch.stack([result["[2]"] | result["[3]"] for result in results[1:]])
    assert 10 < ended.sum() < 3200  # episodes ended, and steps without an end were compared


def test_row_i_does_not_depend_on_the_number_of_rows():
    """Every output of 60 steps, bit for bit, with resets in between."""
    runs = {}
    for n in (1, 3, 64):
        env = make_go2(n, max_episode_steps=25)
        runs[n] = rollout(env, 60, reset_seed=5)
        env.close()
    for small in (1, 3):
        for step, (one, many) in enumerate(zip(runs[small], runs[64], strict=True)):
            for path, leaf in one.items():
                assert torch.equal(leaf, many[path][:small]), (small, step, path)


def test_mjwarp_on_the_cpu_repeats_itself(go2):
    env = go2("mjwarp")
    first, again = (rollout(env, 12, reset_seed=2) for _ in range(2))
    for one, two in zip(first, again, strict=True):
        same(one, two)


def test_row_i_on_mjwarp_does_not_depend_on_its_neighbours(go2):
    """Rows 0 and 3 keep their seeds, the others get new ones."""
    env = go2("mjwarp")
    first = rollout(env, 6, reset_seed=2)
    other = rollout(env, 6, reset_seed=[2, 90, 91, 5, 92, 93])
    rows = torch.tensor([True, False, False, True, False, False])
    for one, two in zip(first, other, strict=True):
        same(one, two, rows)
    assert (first[1]["[0]"] != other[1]["[0]"]).any(1).tolist() == (~rows).tolist()


def test_environments_made_and_closed_in_turn_equal_the_first(go2):
    """E58: alternating engines, with the shared environments alive beside them."""
    first = {}
    for turn in range(4):
        backend = ("mujoco", "mjwarp")[turn % 2]
        assert go2(backend).num_envs == 6
        env = make_go2(3, backend=backend)
        results = rollout(env, 3, reset_seed=1)
        env.close()
        for one, two in zip(results, first.setdefault(backend, results), strict=True):
            same(one, two)
    for env in map(go2, first):
        env.reset(seed=0)
        env.step(torch.zeros(6, ACTIONS))


# -- one engine against the other ------------------------------------------------------------------


def test_both_engines_hold_the_same_model(go2):
    """E28: read-back after float32 rounding, every field that can be randomized and the options."""
    wp = pytest.importorskip("warp")
    c, w = go2("mujoco", play=True), go2("mjwarp", play=True)
    model, other = c.runtime.backend.spec.model, w.runtime.backend.model
    for name in (*MODEL_FIELDS, "body_pos", "jnt_range", "geom_size", "geom_solref", "qpos0"):
        got = wp.to_torch(operator.attrgetter(name)(other))[0]
        expected = torch.from_numpy(operator.attrgetter(name)(model).copy()).float()
        assert torch.equal(got.flatten(), expected.flatten()), name
    for name in ("geom_priority", "geom_condim", "geom_contype", "actuator_trnid", "dof_bodyid"):
        got = wp.to_torch(getattr(other, name)).flatten()
        assert got.tolist() == getattr(model, name).flatten().tolist(), name
    options = other.opt
    for name in ("integrator", "cone", "solver", "iterations", "ls_iterations", "disableflags"):
        assert int(getattr(options, name)) == int(getattr(model.opt, name)), name
    assert float(options.tolerance.numpy()[0]) == pytest.approx(model.opt.tolerance)  # not 1e-6
    assert float(options.timestep.numpy()[0]) == pytest.approx(model.opt.timestep)
    assert options.gravity.numpy()[0].tolist() == pytest.approx(model.opt.gravity.tolist())
    assert model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    assert (model.opt.iterations, model.opt.ls_iterations) == (10, 20)


def test_both_engines_start_alike(go2):
    """The same seed: randomized fields, first observation and 10 more first observations."""
    c, w = go2("mujoco"), go2("mjwarp")
    for seed in (3, None, 4):
        left, right = c.reset(seed=seed)[0], w.reset(seed=seed)[0]
        assert (left - right).abs().max() <= PARITY["observation"]
        assert (c.state() - w.state()).abs().max() <= PARITY["observation"]
        for name in c.runtime.backend.spec.model_fields:
            got, want = (env.runtime.backend.get_model_field(name) for env in (w, c))
            assert torch.allclose(got, want, rtol=1e-6, atol=1e-8), name


def test_one_control_step_agrees_in_the_air_and_on_the_ground(go2):
    """From states that the other engine reached, rounded to float32."""
    c, w = go2("mujoco"), go2("mjwarp")
    c.reset(seed=3), w.reset(seed=3)
    every = torch.ones(c.num_envs, dtype=torch.bool)
    touching = []
    for number, action in enumerate(actions(12, c.num_envs, scale=1.5)):
        state = c.runtime.backend.get_state().float()
        if number == 0:
            state[:, c.runtime.index.qpos_offset + 2] += 0.06  # free fall first
        for env in (c, w):
            env.runtime.backend.set_state(state.to(env.runtime.backend.get_state().dtype), every)
            env.step(action)
        left, right = c.runtime.backend.views(), w.runtime.backend.views()
        ended = torch.stack([e.runtime.rt.terminations.done for e in (c, w)]).any(0)
        live = ~ended
        assert live.any()
        assert (left.qpos - right.qpos)[live].abs().max() <= PARITY["qpos"], number
        assert (left.qvel - right.qvel)[live].abs().max() <= PARITY["qvel"], number
        touching.append(bool(c.state()[:, -4:].any()))
    assert not touching[0] and any(touching)


def test_every_reward_term_agrees_at_the_start(go2):
    c, w = go2("mujoco", play=True), go2("mjwarp", play=True)
    for env in (c, w):
        env.reset(seed=4)
        env.step(actions(1, 13, scale=1.0)[0])
    left, right = c.runtime.rt.rewards, w.runtime.rt.rewards
    assert left.names == right.names and len(left.names) == 10
    for column, name in enumerate(left.names):
        a, b = left.values[:, column], right.values[:, column]
        assert torch.allclose(a, b, rtol=PARITY["reward"], atol=1e-6), name
    assert torch.allclose(left.reward, right.reward, rtol=PARITY["reward"], atol=1e-6)


def test_both_engines_stand_at_the_same_height(go2):
    c, w = go2("mujoco", play=True), go2("mjwarp", play=True)
    for env in (c, w):
        env.reset(seed=4)
        for _ in range(100):
            env.step(torch.zeros(13, ACTIONS))
    heights = [env.runtime.backend.views().qpos[:, 2] for env in (c, w)]
    assert (heights[0] - heights[1]).abs().max() <= PARITY["height"]
    assert heights[0].min() > 0.28


def test_both_engines_decide_alike_over_a_short_rollout(go2):
    """Flags, commands, gait and counters over 12 steps do not depend on the engine."""
    c, w = go2("mujoco"), go2("mjwarp")
    results = []
    for env in (c, w):
        env.reset(seed=8)
        env.episode_length_buf = [990, 995, 0, 0, 0, 0]
        steps = actions(12, 6, scale=0.5)
        results.append([frozen((*env.step(a), env.state()[:, 42:49])) for a in steps])
    for left, right in zip(*results, strict=True):
        for path in ("[2]", "[3]", "[4]/final_info/episode/l"):
            assert torch.equal(left[path], right[path]), path
        assert torch.allclose(left["[5]"], right["[5]"], atol=1e-5)
    assert any(result["[3]"].any() for result in results[0])

"""UniLab/G1MotionTracking-v0 and its variant: timeline, targets, rewards, on both backends."""

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from helpers.g1 import (
    TRACKED,
    actions,
    check_column_i_moves_joint_i,
    count_a_step,
    layout,
    observed,
    zeros,
)
from helpers.motion import g1 as g1_robot
from helpers.motion import make_clip, swaying, write_clip

from unilab_gym.contract import contract_hash, resolve, resolve_from
from unilab_gym.errors import ConfigError
from unilab_gym.motion.clip import load_clip, motion_path, save_clip
from unilab_gym.motion.convert import clip_from_qpos
from unilab_gym.registration import load_task, owner_config
from unilab_gym.runtime.rows import RowMask

TRACKING = "G1MotionTracking"
NO_STATE = "G1MotionTrackingNoState"
BOTH = pytest.mark.parametrize("backend", ["mujoco", "mjwarp"])
POLICY = {
    "command": 58,
    "anchor_pos_b": 3,
    "anchor_ori_b": 6,
    "base_lin_vel": 3,
    "base_ang_vel": 3,
    "joint_pos_rel": 29,
    "joint_vel": 29,
    "last_action": 29,
}
WEIGHTS = {
    "anchor_pos": 0.5,
    "anchor_ori": 0.5,
    "body_pos": 1.0,
    "body_ori": 1.0,
    "body_lin_vel": 1.0,
    "body_ang_vel": 1.0,
    "action_rate": -0.1,
    "joint_limits": -10.0,
    "self_collision": -0.1,
}


def tracking(motion, num_envs=4, task=TRACKING, backend="mujoco", **kwargs):
    return gymnasium.make_vec(
        f"UniLab/{task}-v0", num_envs, backend=backend, device="cpu", motion=motion, **kwargs
    )


def command_of(env):
    return env.runtime.rt.commands.terms["motion"]


def put_at(env, frames, motion=0):
    """Puts row i on a frame of a clip, exactly, and shows its next target."""
    command = command_of(env)
    rows = torch.as_tensor(frames) + command.library.first[motion]
    lib, backend, index = command.library, env.runtime.backend, env.runtime.index
    state = backend.get_state()
    q, v = index.qpos_offset, index.qvel_offset
    state[:, q : q + 3] = lib.root_pos[rows].to(state.dtype)
    state[:, q + 3 : q + 7] = lib.root_quat[rows].to(state.dtype)
    state[:, q + 7 : q + 36] = lib.joint_pos[rows].to(state.dtype)
    state[:, v : v + 3] = lib.root_lin_vel_w[rows].to(state.dtype)
    state[:, v + 3 : v + 6] = lib.root_ang_vel_b[rows].to(state.dtype)
    state[:, v + 6 : v + 35] = lib.joint_vel[rows].to(state.dtype)
    everybody = torch.ones(env.num_envs, dtype=torch.bool)
    backend.set_state(state, everybody)
    command.sampler.rows.copy_(rows)
    command.reset(everybody, None)
    env.runtime.rt.frame.advance()


# --- layout ---------------------------------------------------------------------------------------


@BOTH
def test_layout_and_timing(g1, backend):
    env = g1(TRACKING, backend, play=True)
    assert layout(env, "policy") == POLICY
    assert layout(env, "critic") == POLICY | {"body_pos_b": 42, "body_ori_b": 84}
    assert env.single_observation_space.shape == (160,) and env.state_space.shape == (286,)
    assert (env.step_dt, env.max_episode_steps) == (0.02, 500)
    assert command_of(env).library.names == ("squat",)
    bodies = env.cfg.rewards["body_pos"].params["bodies"]
    assert tuple(bodies) == TRACKED


def test_the_variant_sees_no_state_estimate():
    env = tracking("squat", 2, task=NO_STATE)
    assert env.single_observation_space.shape == (154,) and env.state_space.shape == (286,)
    assert set(POLICY) - set(layout(env, "policy")) == {"anchor_pos_b", "base_lin_vel"}
    obs, _ = env.reset(seed=0)
    assert obs.isfinite().all()
    env.close()


@BOTH
def test_play_starts_on_the_first_frame_unmoved(g1, backend):
    env = g1(TRACKING, backend, play=True)
    obs, _ = env.reset(seed=1)
    command = command_of(env)
    assert torch.equal(command.frame, torch.ones(30, dtype=torch.int64))  # target of a start on 0
    clip = load_clip(motion_path("squat"))
    qpos = env.runtime.backend.views().qpos
    want = np.concatenate((clip.body_pos_w[0, 0], clip.body_quat_w[0, 0], clip.joint_pos[0]))
    assert torch.allclose(qpos, torch.tensor(want).expand_as(qpos), atol=1e-5)
    shown = torch.tensor(np.concatenate((clip.joint_pos[1], clip.joint_vel[1])))
    assert torch.allclose(obs[:, :58], shown.expand(30, 58), atol=1e-6)
    assert torch.equal(obs, env.state()[:, :160])


@BOTH
def test_action_column_i_moves_the_joint_of_slot_i(g1, backend):
    check_column_i_moves_joint_i(g1(TRACKING, backend, play=True))


# --- starts ---------------------------------------------------------------------------------------


def test_starts_stay_within_their_ranges_and_joints_within_their_limits():
    env = tracking("squat", 400, sampling_mode="start")
    env.reset(seed=0)
    lib, views = command_of(env).library, env.runtime.backend.views()
    moved = views.qpos[:, :3] - lib.root_pos[0]
    low, high = moved.amin(0), moved.amax(0)
    bound = torch.tensor([0.05, 0.05, 0.01])
    assert (high <= bound + 1e-6).all() and (low >= -bound - 1e-6).all()
    assert (high > 0.95 * bound).all() and (low < -0.95 * bound).all()
    speed = views.qvel[:, :6] - torch.cat((lib.root_lin_vel_w[0], lib.root_ang_vel_b[0]))
    bound = torch.tensor([0.5, 0.5, 0.2, 0.52, 0.52, 0.78])
    assert (speed.abs().amax(0) <= bound + 1e-6).all()
    assert (speed.abs().amax(0) > 0.95 * bound).all()
    quat = views.qpos[:, 3:7]
    assert torch.allclose(quat.norm(dim=1), torch.ones(400), atol=1e-6)
    turn = 2 * quat[:, 1:] * quat[:, :1].sign()  # the first frame is upright
    assert (turn.abs().amax(0) <= torch.tensor([0.105, 0.105, 0.205])).all()
    assert (turn.abs().amax(0) > torch.tensor([0.09, 0.09, 0.18])).all()
    joints = views.qpos[:, 7:] - lib.joint_pos[0]
    assert joints.abs().max() <= 0.1 + 1e-6 and joints.abs().amax(0).min() > 0.09
    limits = torch.tensor([(j.lower, j.upper) for j in env.runtime.index.joints])
    assert (views.qpos[:, 7:] >= limits[:, 0] - 1e-6).all()
    assert (views.qpos[:, 7:] <= limits[:, 1] + 1e-6).all()
    env.close()


@pytest.mark.parametrize("mode", ["start", "uniform", "adaptive", "mixed"])
@pytest.mark.parametrize("frames", [2, 3, 49])
def test_short_clips_run_in_every_mode(tmp_path, mode, frames):
    """E43: shorter than one bin of the sampler."""
    env = tracking(str(write_clip(tmp_path, frames)), 3, sampling_mode=mode)
    env.reset(seed=0)
    command = command_of(env)
    for action in actions(60, 3):
        obs, reward, *_ = env.step(action)
        assert obs.isfinite().all() and reward.isfinite().all()
        assert (command.frame < frames).all() and (command.frame >= 1).all()
    env.close()


# --- timeline -------------------------------------------------------------------------------------


@BOTH
def test_the_target_advances_and_the_last_frame_truncates(tmp_path, backend):
    """E25: 40 and 60 frames; each follows its own clip to the exact last frame."""
    paths = tuple(str(write_clip(tmp_path, n, name=f"c{n}")) for n in (40, 60))
    env = tracking(paths, 6, backend=backend, sampling_mode="start", play=True)
    env.reset(seed=0)
    command, lib = command_of(env), command_of(env).library
    assert command.clip.unique().tolist() == [0, 1]
    ended_at = {0: set(), 1: set()}
    step_of = torch.ones(6, dtype=torch.int64)
    for _ in range(130):
        clip, frame = command.clip.clone(), command.frame.clone()
        assert torch.equal(frame, step_of)  # the step compares with this target
        assert (frame < torch.tensor(lib.lengths)[clip]).all()
        put_on(env)  # follow exactly, so that nothing fails
        *_, terminated, truncated, _ = env.step(zeros(env))
        assert not terminated.any()
        done = truncated
        for row in range(6):
            if done[row]:
                ended_at[int(clip[row])].add(int(frame[row]))
        same = ~done
        assert torch.equal(command.clip[same], clip[same])  # never blends two clips
        step_of = torch.where(done, 1, step_of + 1)
    assert ended_at == {0: {39}, 1: {59}}
    env.close()


def put_on(env):
    """Puts every row on the frame before its target, so that it arrives there."""
    command = command_of(env)
    frame = command.target - 1
    state, index = env.runtime.backend.get_state(), env.runtime.index
    lib, q, v = command.library, index.qpos_offset, index.qvel_offset
    state[:, q : q + 7] = torch.cat((lib.root_pos[frame], lib.root_quat[frame]), 1).to(state.dtype)
    state[:, q + 7 : q + 36] = lib.joint_pos[frame].to(state.dtype)
    state[:, v : v + 35] = 0.0
    env.runtime.backend.set_state(state, torch.ones(env.num_envs, dtype=torch.bool))


@BOTH
def test_a_start_on_the_last_frame_lives_one_step(g1, backend):
    env = g1(TRACKING, backend, play=True)
    env.reset(seed=0)
    last = command_of(env).library.lengths[0] - 1
    put_at(env, [last] * 10 + [last - 1] * 10 + [0] * 10)
    assert command_of(env).frame.tolist() == [last] * 20 + [1] * 10
    *_, terminated, truncated, info = env.step(zeros(env))
    assert truncated.tolist() == [True] * 20 + [False] * 10 and not terminated.any()
    assert info["final_info"]["termination/clip_end"][:20].all()


def test_resetting_some_rows_ticks_nobody_else(tmp_path):
    """E05: envs 0 to 2 advance one frame a step and move as in a run without those resets."""
    path = str(write_clip(tmp_path, 60))
    runs = []
    for manual in (False, True):
        env = tracking(path, 4, sampling_mode="start", play=True)
        env.reset(seed=0)
        runtime, command = env.runtime, command_of(env)
        states = []
        for number, action in enumerate(actions(20, 4, scale=0.1)):
            runtime.step(action, autoreset=False)
            if manual:
                runtime.reset(mask=torch.arange(4) == 3)
            assert command.frame[:3].tolist() == [number + 2] * 3
            states.append(runtime.backend.get_state()[:3].clone())
        assert int(command.frame[3]) == (1 if manual else 21)
        runs.append(torch.stack(states))
        env.close()
    assert torch.equal(*runs)


# --- rewards and terminations ---------------------------------------------------------------------


def matrix(quat):
    result = np.zeros(9)
    mujoco.mju_quat2Mat(result, np.asarray(quat, dtype=float))
    return result.reshape(3, 3)


def angle_between(a, b):
    return np.arccos(np.clip((np.trace(a.T @ b) - 1) / 2, -1, 1))


def yaw_twist(rotation):
    """The twist about z of a rotation, by its matrix."""
    c, s = rotation[0, 0] + rotation[1, 1], rotation[1, 0] - rotation[0, 1]
    c, s = np.array([c, s]) / np.hypot(c, s)
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


def by_hand(env, clip, frame, row, action, last):
    """Every term in float64, from the clip and MuJoCo's own kinematics, by matrices."""
    model, views = env.runtime.backend.spec.model, env.runtime.backend.views()
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = views.qpos[row].numpy(), views.qvel[row].numpy()
    mujoco.mj_forward(model, data)
    anchor = clip.body("torso_link")
    robot_anchor = data.body("torso_link")
    p_ref, r_ref = clip.body_pos_w[frame, anchor], matrix(clip.body_quat_w[frame, anchor])
    p_rob, r_rob = robot_anchor.xpos, robot_anchor.xmat.reshape(3, 3)
    turn = yaw_twist(r_rob @ r_ref.T)
    origin = np.array([p_rob[0], p_rob[1], p_ref[2]])
    pos, ori, lin, ang = [], [], [], []
    for name in TRACKED:
        body = clip.body(name)
        want = origin + turn @ (clip.body_pos_w[frame, body] - p_ref)
        pos.append(((data.body(name).xpos - want) ** 2).sum())
        target = turn @ matrix(clip.body_quat_w[frame, body])
        ori.append(angle_between(target, data.body(name).xmat.reshape(3, 3)) ** 2)
        velocity = np.zeros(6)
        kind = mujoco.mjtObj.mjOBJ_XBODY
        mujoco.mj_objectVelocity(model, data, kind, model.body(name).id, velocity, 0)
        lin.append(((clip.body_lin_vel_w[frame, body] - velocity[3:]) ** 2).sum())
        ang.append(((clip.body_ang_vel_w[frame, body] - velocity[:3]) ** 2).sum())
    low, high = model.jnt_range[1:].T
    middle, half = (low + high) / 2, 0.9 * (high - low) / 2
    beyond = np.maximum(abs(data.qpos[7:] - middle) - half, 0).sum()
    return {
        "anchor_pos": np.exp(-((p_ref - p_rob) ** 2).sum() / 0.3**2),
        "anchor_ori": np.exp(-(angle_between(r_ref, r_rob) ** 2) / 0.4**2),
        "body_pos": np.exp(-np.mean(pos) / 0.3**2),
        "body_ori": np.exp(-np.mean(ori) / 0.4**2),
        "body_lin_vel": np.exp(-np.mean(lin)),
        "body_ang_vel": np.exp(-np.mean(ang) / 3.14**2),
        "action_rate": ((action - last) ** 2).sum(),
        "joint_limits": beyond,
    }


@BOTH
def test_rewards_equal_the_formulas(g1, backend):
    env = g1(TRACKING, backend)
    clip = load_clip(motion_path("squat"))
    env.reset(seed=4)
    rt, last = env.runtime.rt, zeros(env)
    for action in actions(3, 6):
        frames = command_of(env).frame.tolist()
        _, reward, terminated, truncated, _ = env.step(action)
        for row in range(6):
            if terminated[row] or truncated[row]:
                continue
            now, before = (x[row].double().numpy() for x in (action, last))
            got = dict(zip(rt.rewards.names, rt.rewards.values[row].tolist(), strict=True))
            for name, value in by_hand(env, clip, frames[row], row, now, before).items():
                assert got[name] == pytest.approx(value, rel=2e-3, abs=2e-4), (name, row)
            total = 0.02 * sum(WEIGHTS[name] * value for name, value in got.items())
            assert reward[row] == pytest.approx(total, rel=1e-3, abs=1e-5)
        assert not (terminated | truncated).all()
        last = action * ~(terminated | truncated).unsqueeze(1)
    assert tuple(WEIGHTS) == rt.rewards.names


@BOTH
def test_standing_on_the_reference_earns_everything(g1, backend):
    """One step later the pose is almost the target: every tracking term is near 1."""
    env = g1(TRACKING, backend, play=True)
    env.reset(seed=0)
    command = command_of(env)
    ctrl = env.runtime.rt.actions
    action = (command.library.joint_pos[1] - ctrl._offset) / ctrl._scale
    env.step(action.expand(30, 29).contiguous())
    values = dict(zip(env.runtime.rt.rewards.names, env.runtime.rt.rewards.values[0], strict=True))
    for name in ("anchor_pos", "anchor_ori", "body_pos", "body_ori", "body_lin_vel"):
        assert values[name] > 0.97, name
    assert values["self_collision"] == 0.0


@pytest.mark.parametrize(
    ("what", "lift", "roll"),
    [
        ("nothing", 0.2, 0.0),
        ("anchor_height", 0.3, 0.0),
        ("anchor_tilt", 0.0, 1.7),
        ("end_effector_height", 0.2, 0.5),
    ],
)
def test_what_ends_an_episode(g1, what, lift, roll):
    env = g1(TRACKING, "mujoco", play=True)
    env.reset(seed=0)
    backend, offset = env.runtime.backend, env.runtime.index.qpos_offset
    state = backend.get_state()
    state[2, offset + 2] += lift
    state[2, offset + 3 : offset + 7] = torch.tensor([np.cos(roll / 2), np.sin(roll / 2), 0.0, 0.0])
    backend.set_state(state, torch.ones(30, dtype=torch.bool))
    *_, terminated, _, info = env.step(zeros(env))
    assert terminated.tolist() == [i == 2 and what != "nothing" for i in range(30)]
    if what != "nothing":
        assert info["final_info"][f"termination/{what}"][2] == 1


def test_negated_reference_quaternions_change_nothing(tmp_path):
    """E41: q and -q are the same rotation."""
    clip = make_clip(40, yaw=1.0)
    save_clip(tmp_path / "plain.npz", clip)
    clip.body_quat_w[:] *= -1
    save_clip(tmp_path / "negated.npz", clip)
    seen = []
    for name in ("plain", "negated"):
        env = tracking(str(tmp_path / f"{name}.npz"), 2, play=True)
        obs, _ = env.reset(seed=0)
        step = env.step(torch.full((2, 29), 0.1))
        seen.append((obs, step[0], step[1], env.state()))
        env.close()
    for first, second in zip(*seen, strict=True):
        assert torch.allclose(first, second, atol=1e-5)


def test_a_permuted_file_gives_identical_targets_and_rewards(tmp_path):
    """E14: bodies and their names in another order are the same reference."""
    clip = make_clip(40)
    save_clip(tmp_path / "plain.npz", clip)
    order = np.random.default_rng(1).permutation(30)
    import dataclasses

    arrays = {
        k: getattr(clip, k)[:, order] for k in vars(clip) if k.startswith("body_") and "_w" in k
    }
    names = tuple(clip.body_names[i] for i in order)
    save_clip(tmp_path / "mixed.npz", dataclasses.replace(clip, body_names=names, **arrays))
    seen = []
    for name in ("plain", "mixed"):
        env = tracking(str(tmp_path / f"{name}.npz"), 2, play=True)
        env.reset(seed=0)
        step = env.step(torch.full((2, 29), 0.1))
        seen.append((step[0], step[1], command_of(env)._now.clone()))
        env.close()
    for first, second in zip(*seen, strict=True):
        assert torch.equal(first, second)


# --- invariance -----------------------------------------------------------------------------------


def moved(qpos, yaw, shift):
    """The motion turned about the vertical and moved over the ground."""
    c, s = np.cos(yaw), np.sin(yaw)
    result = qpos.copy()
    result[:, 0] = c * qpos[:, 0] - s * qpos[:, 1] + shift[0]
    result[:, 1] = s * qpos[:, 0] + c * qpos[:, 1] + shift[1]
    turn = np.array([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])
    for row in range(len(qpos)):
        mujoco.mju_mulQuat(result[row, 3:7], turn, qpos[row, 3:7])
    return result


@pytest.mark.parametrize("backend", ["mujoco"])
def test_policy_terms_do_not_know_where_the_robot_is_nor_where_it_looks(tmp_path, backend):
    """Robot and reference turned and moved together: every policy and critic term is the same."""
    qpos = swaying(60)
    qpos[:, 3:7] = [np.cos(0.1), np.sin(0.06), np.sin(0.08), 0.0]
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    seen = []
    for number, (yaw, shift) in enumerate([(0.0, (0.0, 0.0)), (2.2, (4.0, -3.0))]):
        clip = clip_from_qpos(
            g1_robot(), moved(qpos, yaw, shift), 50.0, name="m", source="", license=""
        )
        path = tmp_path / f"m{number}.npz"
        save_clip(path, clip)
        env = tracking(str(path), 3, backend=backend, play=True)
        env.reset(seed=0)
        results = []
        for action in actions(4, 3, scale=0.2):
            # A robot that has left its reference: turned, tilted and shifted in the common frame.
            lean(env, yaw, shift)
            obs, reward, *_ = env.step(action)
            results += [obs, reward.unsqueeze(1), env.state()]
        seen.append(torch.cat(results, 1))
        env.close()
    assert torch.allclose(*seen, atol=2e-3)
    assert not torch.allclose(seen[0][0], seen[0][0] * 0, atol=0.1)


def lean(env, yaw, shift):
    """The robot stands off its reference, the same way in the motion's own axes."""
    command = command_of(env)
    lib, rows = command.library, command.target
    state, index = env.runtime.backend.get_state(), env.runtime.index
    q, v = index.qpos_offset, index.qvel_offset
    c, s = np.cos(yaw), np.sin(yaw)
    off = torch.tensor([c * 0.1 - s * 0.05, s * 0.1 + c * 0.05, 0.03])
    state[:, q : q + 3] = (lib.root_pos[rows] + off).to(state.dtype)
    turn = np.array([np.cos(0.2), 0.1, 0.05, np.sin(0.2)])  # in the body's frame, after the yaw
    turn /= np.linalg.norm(turn)
    for row in range(env.num_envs):
        quat = np.zeros(4)
        mujoco.mju_mulQuat(quat, lib.root_quat[rows[row]].double().numpy(), turn)
        state[row, q + 3 : q + 7] = torch.tensor(quat)
    state[:, q + 7 : q + 36] = lib.joint_pos[rows].to(state.dtype)
    state[:, v : v + 35] = 0.0
    env.runtime.backend.set_state(state, torch.ones(env.num_envs, dtype=torch.bool))


# --- several clips, cost, contract ----------------------------------------------------------------


def test_three_clips_in_one_run_report_clip_frame_and_success(tmp_path):
    """N18."""
    lengths = (12, 30, 45)
    paths = tuple(str(write_clip(tmp_path, n, name=f"c{n}")) for n in lengths)
    env = tracking(paths, 64, sampling_mode="uniform")
    env.reset(seed=0)
    command = command_of(env)
    visited = set()
    for action in actions(60, 64, scale=0.05):
        env.step(action)
        for clip, frame in zip(command.clip.tolist(), command.frame.tolist(), strict=True):
            assert 1 <= frame < lengths[clip]
            visited.add((clip, frame))
    assert visited == {(c, f) for c, n in enumerate(lengths) for f in range(1, n)}
    log = env.extras["log"]
    for name in ("c12", "c30", "c45"):
        share = float(log[f"command/motion/success/{name}"])
        assert 0.0 <= share <= 1.0
    assert float(log["command/motion/success/c12"]) > 0.5  # 11 steps at most: hardly time to fall
    env.close()


@BOTH
@pytest.mark.parametrize("mode", ["adaptive", "uniform"])
def test_a_step_dispatches_at_most_290_operations_and_never_waits(g1, backend, mode):
    env = g1(TRACKING, backend) if mode == "adaptive" else g1(TRACKING, backend, sampling_mode=mode)

    def end(rows):
        env.episode_length_buf = torch.where(rows, 499, 5)
        stay = torch.where(rows, 10, 11)
        put_at(env, stay)

    assert count_a_step(env, 265, zeros(env), end) <= 265


def test_both_engines_agree_at_the_start(g1):
    """E28: one control step from one state, the first observation, every reward term."""
    results = []
    for backend in ("mujoco", "mjwarp"):
        env = g1(TRACKING, backend, play=True)
        obs, _ = env.reset(seed=3)
        env.step(actions(1, 30, seed=2)[0])
        views = env.runtime.backend.views()
        values = env.runtime.rt.rewards.values.clone()
        results.append((obs, views.qpos.clone(), views.qvel.clone(), values))
    for first, second, bound in zip(*results, (1e-4, 2e-6, 2e-4, 1e-5), strict=True):
        relative = 1e-3 if first is results[0][-1] else 0.0
        assert torch.allclose(first, second, rtol=relative, atol=bound)


def test_the_contract_names_the_reference(g1):
    task = "UniLab/G1MotionTracking-v0"
    contracts = [resolve(owner_config(task, backend)) for backend in ("mujoco", "mjwarp")]
    assert contract_hash(contracts[0]) == contract_hash(contracts[1])
    motion = contracts[0]["commands"]["motion"]
    assert motion["sampling_mode"] == "adaptive" and motion["anchor"] == "torso_link"
    assert motion["bodies"] == list(TRACKED)
    assert (motion["clips"], motion["frames"], motion["fps"]) == (["squat"], [401], [50.0])
    other = resolve(owner_config(task, "mujoco", motion="arm_wave", sampling_mode="start"))
    assert other["commands"]["motion"]["clips"] == ["arm_wave"]
    assert contract_hash(other) != contract_hash(contracts[0])
    env, cfg = g1(TRACKING, "mujoco"), owner_config(task, "mujoco")
    built = resolve_from(env.cfg, env.runtime.index, task=task, algo=cfg.algo)
    assert built == contracts[0]


def test_task_arguments_are_listed_and_checked():
    task = load_task("UniLab/G1MotionTracking-v0")
    assert task.task_kwargs == {"motion": "squat", "sampling_mode": "adaptive"}
    assert load_task("UniLab/Go2JoystickFlat-v0").task_kwargs == {}
    with pytest.raises(ConfigError, match="no argument 'motoin'; did you mean 'motion'"):
        owner_config(task.id, "mujoco", motoin="squat")
    with pytest.raises(ConfigError, match="no motion file and no packaged motion 'sqat'"):
        tracking("sqat")
    with pytest.raises(ConfigError, match="sampling_mode 'adaptiv'"):
        tracking("squat", sampling_mode="adaptiv")
    with pytest.raises(TypeError, match="motoin"):
        gymnasium.make_vec("UniLab/G1MotionTracking-v0", 1, backend="mujoco", motoin="squat")


def test_observed_errors_are_zero_on_the_reference_frame(g1):
    """The anchor's error terms vanish where the robot stands on its target."""
    env = g1(TRACKING, "mujoco", play=True)
    env.reset(seed=0)
    command = command_of(env)
    last = command.library.lengths[0] - 1
    put_at(env, [last] * 30)  # stands on the last frame, which is its target
    rt = env.runtime.rt
    rt.observations.compute_reset(RowMask(torch.ones(30, dtype=torch.bool)))
    assert torch.allclose(observed(env, "anchor_pos_b"), torch.zeros(30, 3), atol=1e-4)
    identity = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]).expand(30, 6)
    assert torch.allclose(observed(env, "anchor_ori_b"), identity, atol=1e-3)


def test_an_exported_policy_holds_the_motion_that_the_command_follows(tmp_path):
    from unilab_gym.export import export_tracking_policy, load_policy

    pytest.importorskip("onnx")
    paths = tuple(str(write_clip(tmp_path, n, name=f"c{n}")) for n in (12, 20))
    env = tracking(paths, 2, sampling_mode="start", play=True)
    env.reset(seed=0)
    command = command_of(env)
    with pytest.raises(ConfigError, match="several clips: name one of c12, c20"):
        command.reference()
    cfg = owner_config("UniLab/G1MotionTracking-v0", "mujoco", motion=paths)
    report = export_tracking_policy(
        torch.nn.Linear(160, 29),
        resolve(cfg),
        tmp_path / "policy.onnx",
        motion=command.reference("c20"),
        body_names=command.body_names,
        anchor_body_name=command.anchor,
    )
    assert report.verified and report.batch == 1
    policy = load_policy(tmp_path / "policy.onnx")
    clip = make_clip(20)
    for step in (0, 7, 19, 50):
        frame = min(step, 19)
        got = policy.reference(step)
        assert torch.allclose(got["joint_pos"].flatten(), torch.tensor(clip.joint_pos[frame]))
        torso = command.body_names.index("torso_link")
        want = torch.tensor(clip.body_pos_w[frame, clip.body("torso_link")])
        assert torch.allclose(got["body_pos_w"].view(-1, 3)[torso], want, atol=1e-6)
    env.close()

"""The Gymnasium face: surface, spaces, actions in, tensors out."""

import itertools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from helpers.face import ACTIONS, GO2, actions, frozen, leaves, make_go2, same

import unilab_gym
from unilab_gym.tasks import go2_joystick_flat

N = 4
ZEROS = torch.zeros(N, ACTIONS)


@pytest.fixture(scope="module")
def shared():
    env = make_go2(N)
    yield env
    env.close()


@pytest.fixture
def env(shared):
    shared.reset(seed=0)
    return shared


# -- the class and its spaces --------------------------------------------------------------------


def test_it_is_a_vector_env_itself(env):
    assert isinstance(env, VectorEnv)
    assert VectorEnv in type(env).__bases__  # skrl looks at the direct bases only
    assert env.unwrapped is env
    assert type(env) is unilab_gym.UnilabVectorEnv
    assert env.num_envs == N and env.device == torch.device("cpu")
    assert (env.step_dt, env.max_episode_steps, env.max_episode_length) == (0.02, 1000, 1000)
    assert env.spec.id == GO2 and env.backend_name == "mujoco"
    assert make_go2_default().num_envs == 1


def make_go2_default():
    env = gymnasium.make_vec(GO2, device="cpu")
    env.close()
    return env


def test_spaces_are_batched_finite_and_hold_the_observations(env):
    single, box = env.single_observation_space, env.single_action_space
    assert (single.dtype, single.shape) == (np.float32, (49,))
    assert (box.dtype, box.shape) == (np.float32, (ACTIONS,))
    assert np.array_equal(box.high, np.full(ACTIONS, 4.0)) and np.array_equal(box.low, -box.high)
    assert env.observation_space == batch_space(single, N)
    assert env.action_space == batch_space(box, N)
    assert env.state_space.shape == (60,)
    env.action_space.seed(0)
    for _ in range(50):
        action = env.action_space.sample()
        assert action.dtype == np.float32 and env.action_space.contains(action)
        obs, *_ = env.step(action)
        assert env.observation_space.contains(obs.numpy())
        assert all(single.contains(row) for row in obs.numpy())


def test_metadata_belongs_to_the_instance(env):
    other = make_go2(1, overrides={"ctrl_dt": 0.01})
    assert env.metadata["render_fps"] == 50 and other.metadata["render_fps"] == 100
    for one in (env, other):
        assert one.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert one.metadata["render_modes"] == ["rgb_array"]
        assert "torch" not in one.metadata
    assert "autoreset_mode" not in type(env).metadata
    other.close()


@pytest.mark.parametrize("num_envs", [1, 2, 64])
def test_dtypes_shapes_and_devices(num_envs):
    env = make_go2(num_envs, log_in_info=True, max_episode_steps=3)
    first = env.reset(seed=0)
    results = [("reset", first)] + [
        (f"step {i}", env.step(action)) for i, action in enumerate(actions(4, num_envs))
    ]
    mask = torch.zeros(num_envs, dtype=torch.bool)
    mask[0] = True
    results.append(("masked reset", env.reset(options={"reset_mask": mask})))
    for when, (obs, *flags, info) in results:
        assert (obs.dtype, obs.shape) == (torch.float32, (num_envs, 49)), when
        if flags:
            kinds = [(flag.dtype, flag.shape) for flag in flags]
            row = (num_envs,)
            expected = [(torch.float32, row), (torch.bool, row), (torch.bool, row)]
            assert kinds == expected, when
            assert not (flags[1] & flags[2]).any()
        log = info.pop("log")
        assert all(value.shape == () for value in log.values())
        assert "episode/ended" in log
        for path, value in leaves((obs, info, log)):
            assert isinstance(value, torch.Tensor) and value.device == env.device, (when, path)
            assert value.isfinite().all(), (when, path)
    linear = torch.nn.Linear(49, 2)
    obs, reward, terminated, *_ = env.step(actions(1, num_envs)[0])
    assert torch.where(terminated, 0.0, reward).shape == (num_envs,)
    assert linear(obs).shape == (num_envs, 2)
    env.close()


# -- actions -------------------------------------------------------------------------------------


class Dlpack:
    """An array of another library."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack__(self, **kwargs):
        return self._tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


WHOLE = (torch.arange(N * ACTIONS).view(N, ACTIONS) % 7 - 3).float()  # exact in every dtype
ACCEPTED = {
    "float32": WHOLE,
    "float64": WHOLE.double(),
    "float16": WHOLE.half(),
    "bfloat16": WHOLE.bfloat16(),
    "int8": WHOLE.to(torch.int8),
    "int64": WHOLE.long(),
    "requires grad": WHOLE.clone().requires_grad_(),
    "not contiguous": WHOLE.t().contiguous().t(),
    "expanded": WHOLE[:1].expand(N, -1),
    "ndarray float64": WHOLE.double().numpy(),
    "ndarray float16": WHOLE.half().numpy(),
    "ndarray int32": WHOLE.int().numpy(),
    "ndarray reversed": WHOLE.flip(0).numpy()[::-1],
    "list": WHOLE.tolist(),
    "list of int": WHOLE.int().tolist(),
    "list of rows": list(WHOLE.numpy()),
    "dlpack": Dlpack(WHOLE),
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_actions_of_every_kind_mean_the_same(env, kind):
    expected = WHOLE[:1].expand(N, -1).clone() if kind == "expanded" else WHOLE
    want = frozen(env.step(expected))
    env.reset(seed=0)
    before = WHOLE.clone()
    got = env.step(ACCEPTED[kind])
    same(got, want)
    assert torch.equal(WHOLE, before)
    assert not any(leaf.requires_grad for _, leaf in leaves(got))


def test_a_read_only_array_is_taken(env):
    frozen_array = WHOLE.numpy().copy()
    frozen_array.flags.writeable = False
    want = frozen(env.step(WHOLE))
    env.reset(seed=0)
    same(env.step(frozen_array), want)


REFUSED = {
    "one row": (torch.zeros(ACTIONS), r"shape \(4, 12\), got \(12,\)"),
    "transposed": (torch.zeros(ACTIONS, N), r"shape \(4, 12\), got \(12, 4\)"),
    "a column short": (np.zeros((N, 11)), r"shape \(4, 12\), got \(4, 11\)"),
    "a scalar": (0.0, r"shape \(4, 12\), got \(\)"),
    "bool": (torch.zeros(N, ACTIONS, dtype=torch.bool), "floating or integer.*bool"),
    "ndarray bool": (np.zeros((N, ACTIONS), bool), "floating or integer.*bool"),
    "complex": (torch.zeros(N, ACTIONS, dtype=torch.complex64), "floating or integer.*complex"),
    "object": (np.zeros((N, ACTIONS), object), r"numbers of shape \(4, 12\), got ndarray"),
    "text": ([["a"] * ACTIONS] * N, "numbers of shape.*got list"),
    "ragged": ([[0.0] * ACTIONS, [0.0]], "numbers of shape.*got list"),
    "nothing": (None, "numbers of shape.*got NoneType"),
    "a dict": ({"a": 1}, "numbers of shape.*got dict"),
    "sparse": (torch.zeros(N, ACTIONS).to_sparse(), "dense.*sparse"),
    "meta": (torch.zeros(N, ACTIONS, device="meta"), "dense"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_actions_of_a_wrong_kind_are_refused(env, kind):
    value, message = REFUSED[kind]
    with pytest.raises(ValueError, match=message):
        env.step(value)
    assert not env.episode_length_buf.any()  # nothing happened
    env.step(ZEROS)


def test_actions_are_copied(env):
    kept = frozen(env.step(action := WHOLE.clone()))
    action.fill_(torch.nan)
    after = env.get_observations()
    assert torch.equal(after["policy"], kept["[0]"])
    want = frozen(env.step(ZEROS))
    env.reset(seed=0)
    env.step(WHOLE)
    same(env.step(ZEROS), want)


def test_actions_are_clamped_to_the_box(env):
    default = torch.tensor(go2_default())
    env.step(torch.full((N, ACTIONS), 10.0))
    clamped = env.runtime.rt.actions.ctrl.clone()
    assert torch.equal(clamped, (default + 1.0).expand(N, -1))
    assert torch.equal(last_action(env), torch.full((N, ACTIONS), 4.0))
    raw = make_go2(N, clip_actions=False)
    raw.reset(seed=0)
    raw.step(torch.full((N, ACTIONS), 10.0))
    assert torch.equal(raw.runtime.rt.actions.ctrl, (default + 2.5).expand(N, -1))
    assert torch.equal(last_action(raw), torch.full((N, ACTIONS), 10.0))
    raw.close()


def go2_default():
    from unilab_gym.scene import build_scene

    cfg = go2_joystick_flat.env_cfg()
    index = build_scene(cfg.scene, cfg.sim, cfg.sim_dt).index
    return [joint.default for joint in index.joints]


def last_action(env):
    return env.get_observations()["critic"][:, 30:42]


# -- outputs -------------------------------------------------------------------------------------


def everything(env, action):
    return (*env.step(action), env.get_observations(), env.state(), env.episode_length_buf)


def test_outputs_never_change_and_share_no_memory():
    env = make_go2(3, obs="dict", max_episode_steps=3, log_in_info=False)
    held = [env.reset(seed=0)]
    held += [everything(env, action) for action in actions(5, 3)]
    copies = [frozen(result) for result in held]
    for action in actions(6, 3, seed=1):
        env.step(action)
    env.reset(seed=5)
    for result, copy in zip(held, copies, strict=True):
        same(result, copy)
    blocks = []
    for number, result in enumerate(held):
        for path, leaf in leaves(result):
            assert leaf.is_contiguous()
            size = leaf.numel() * leaf.element_size()
            blocks.append((leaf.data_ptr(), leaf.data_ptr() + size, number, path))
    blocks.sort()
    for (_, end, *left), (start, _, *right) in itertools.pairwise(blocks):
        assert end <= start, (left, right)  # no two results share memory
    storages = {leaf.untyped_storage().data_ptr() for r in held for _, leaf in leaves(r)}
    internal = {leaf.untyped_storage().data_ptr() for leaf in env.runtime.state.obs.values()}
    assert internal.isdisjoint(storages)
    env.close()


def test_the_caller_may_overwrite_outputs():
    quiet, scribbled = make_go2(3, max_episode_steps=4), make_go2(3, max_episode_steps=4)
    quiet.reset(seed=1), scribbled.reset(seed=1)
    for action in actions(10, 3):
        result = everything(scribbled, action)
        same(result, everything(quiet, action))
        for _, leaf in leaves((result, scribbled.extras)):
            leaf.fill_(1)
    quiet.close(), scribbled.close()


def test_copy_false_hands_out_the_runtimes_own_memory():
    env, reference = make_go2(3, copy=False), make_go2(3)
    env.reset(seed=0), reference.reset(seed=0)
    first, second = actions(2, 3)
    obs, reward, terminated, truncated, info = env.step(first)
    same(obs, reference.step(first)[0])
    kept = obs.clone()
    again = env.step(second)
    pairs = zip((obs, reward, terminated, truncated), again, strict=False)
    assert all(a.data_ptr() == b.data_ptr() for a, b in pairs)
    assert info["final_obs"].data_ptr() == again[4]["final_obs"].data_ptr()
    assert not torch.equal(obs, kept)  # valid until the next call only
    env.close(), reference.close()


def test_inference_mode_is_safe_and_outputs_are_trainable():
    env, reference = make_go2(3, log_in_info=True), make_go2(3, log_in_info=True)
    with torch.inference_mode():
        results = [env.reset(seed=0)]
        results += [everything(env, action) for action in actions(3, 3)]
    expected = [reference.reset(seed=0)]
    expected += [everything(reference, action) for action in actions(3, 3)]
    for result, other in zip(results, expected, strict=True):
        same(result, other)
        inference = [path for path, leaf in leaves(result) if leaf.is_inference()]
        assert not set(inference) - {"[7]"}  # episode_length_buf alone follows the caller's mode
    linear = torch.nn.Linear(49, 1)
    linear(results[1][0]).sum().backward()
    assert linear.weight.grad.abs().sum() > 0
    policy = torch.nn.Linear(49, ACTIONS)
    obs, *_ = env.step(policy(results[1][0]))  # a graph ends at the environment
    assert not obs.requires_grad
    env.close(), reference.close()


def test_observation_groups_on_request(env):
    policy = env.step(WHOLE)[0]
    critic = env.state()
    every, chosen = make_go2(N, obs="dict"), make_go2(N, obs=("critic", "policy"))
    for other, names in ((every, ["policy", "critic"]), (chosen, ["critic", "policy"])):
        space = other.single_observation_space
        assert list(space.spaces) == names and list(other.observation_space.spaces) == names
        other.reset(seed=0)
        obs, *_, info = other.step(WHOLE)
        assert list(obs) == list(info["final_obs"]) == names
        same(obs["policy"], policy), same(obs["critic"], critic)
        assert other.observation_space.contains({k: v.numpy() for k, v in obs.items()})
        other.close()
    assert torch.equal(env.state(), critic) and env.state_space.shape == critic.shape[1:]


def test_get_observations_is_a_cache():
    asked, silent = make_go2(3), make_go2(3)
    asked.reset(seed=2), silent.reset(seed=2)
    for action in actions(5, 3):
        obs, *rest = asked.step(action)
        same((obs, *rest), silent.step(action))
        for _ in range(3):
            groups = asked.get_observations()
            assert list(groups) == ["policy", "critic"] and torch.equal(groups["policy"], obs)
            assert torch.equal(asked.state(), groups["critic"])
    asked.close(), silent.close()


def test_numpy_output_owns_its_memory_and_equals_torch():
    env = make_go2(3, output="numpy", obs="dict", max_episode_steps=3, log_in_info=True)
    reference = make_go2(3, obs="dict", max_episode_steps=3, log_in_info=True)
    held = [(env.reset(seed=0), frozen(reference.reset(seed=0)))]
    held += [(env.step(a.numpy()), frozen(reference.step(a))) for a in actions(5, 3)]
    for result, expected in held:
        arrays = dict(leaves(result))
        assert arrays.keys() == expected.keys()
        for path, array in arrays.items():
            assert isinstance(array, np.ndarray), path
            assert np.array_equal(array, expected[path].numpy()), path
            assert str(array.dtype) == str(expected[path].dtype).removeprefix("torch."), path
    env.close(), reference.close()


def test_numpy_output_takes_gymnasiums_wrappers():
    from gymnasium.wrappers import vector

    env = make_go2(3, output="numpy", max_episode_steps=3, play=True)
    with pytest.raises(ValueError, match="Expected autoreset_mode"):  # Gymnasium 1.4's own rule
        vector.NormalizeObservation(env)
    sums, wrapped = np.zeros(3), vector.RecordEpisodeStatistics(env)
    wrapped = vector.NormalizeReward(vector.ClipReward(wrapped, -100.0, 100.0))
    wrapped.reset(seed=0)
    for step in range(1, 10):
        obs, reward, terminated, truncated, info = wrapped.step(np.zeros((3, ACTIONS), np.float32))
        sums += env.runtime.state.reward.numpy()
        assert np.isfinite(reward).all() and reward.shape == (3,)
        assert obs.dtype == np.float32 and np.isfinite(obs).all() and not terminated.any()
        assert truncated.all() == (step % 3 == 0)
        if truncated.all():
            episode = info["final_info"]["episode"]
            assert np.allclose(episode["r"], sums, rtol=1e-5) and (episode["l"] == 3).all()
            sums[:] = 0.0
    wrapped.close()


# -- info ----------------------------------------------------------------------------------------


def test_info_holds_the_same_tensors_in_every_step():
    env = make_go2(3, max_episode_steps=3)
    assert env.reset(seed=0)[1] == {}
    structures = set()
    for action in actions(7, 3):
        obs, _, terminated, truncated, info = env.step(action)
        structures.add(tuple(path for path, _ in leaves(info)))
        for path, leaf in leaves(info):
            assert isinstance(leaf, torch.Tensor) and leaf.shape[0] == 3, path
            if path.rpartition("/")[2].startswith("_"):
                assert torch.equal(leaf, terminated | truncated), path
        done = (terminated | truncated).unsqueeze(1)
        assert torch.equal(torch.where(done, 0, obs), torch.where(done, 0, info["final_obs"]))
        assert (info["final_obs"] != obs).any(1).tolist() == done.squeeze(1).tolist()
    (paths,) = structures
    assert list(info) == ["final_obs", "_final_obs", "final_info", "_final_info"]
    assert {"/final_info/episode/r", "/final_info/episode/_l", "/final_info/_episode"} <= set(paths)
    assert "/final_info/reward/track_lin_vel" in paths and "episode" not in info
    env.close()


def test_episode_statistics_equal_the_sums():
    env = make_go2(6, max_episode_steps=7)
    env.reset(seed=3)
    env.episode_length_buf = [0, 1, 2, 3, 4, 5]
    returns, lengths, ended = torch.zeros(6), torch.zeros(6, dtype=torch.int64), 0
    for action in actions(30, 6):
        _, reward, terminated, truncated, info = env.step(action)
        returns += reward
        lengths += 1
        done = terminated | truncated
        episode = info["final_info"]["episode"]
        assert torch.equal(episode["r"][done], returns[done])
        assert torch.equal(episode["l"][done], lengths[done])
        terms = [v for k, v in info["final_info"].items() if k.startswith("reward/")]
        total = torch.stack(terms).sum(0) * lengths * env.step_dt
        assert torch.allclose(total[done], returns[done], rtol=1e-4, atol=1e-5)
        timed_out = info["final_info"]["termination/time_out"]
        assert torch.equal(timed_out[done] > 0, truncated[done])
        log = env.extras["log"]
        assert log["episode/ended"] == done.sum()
        if done.any():
            assert torch.allclose(log["episode/return"], returns[done].mean(), rtol=1e-5)
            assert torch.allclose(log["episode/length"], lengths[done].float().mean())
        returns[done], lengths[done] = 0.0, 0
        ended += int(done.sum())
    assert ended >= 6 * 3
    env.close()


def test_the_log_is_a_new_dict_each_step_and_holds_its_values(env):
    env.step(ZEROS)
    first = env.extras["log"]
    kept = {name: float(value) for name, value in first.items()}
    env.episode_length_buf = [999, 0, 0, 0]
    env.step(ZEROS)
    second = env.extras["log"]
    assert second is not first and {k: float(v) for k, v in first.items()} == kept
    assert second["episode/ended"] == 1 and second["termination/time_out"] == 1
    env.step(ZEROS)
    third = env.extras["log"]
    assert third["episode/ended"] == 0  # none ended: the previous values are held
    assert third["episode/return"] == second["episode/return"]

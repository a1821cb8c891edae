"""The Gymnasium face: what may be asked for, specs, attributes."""

import json
import math
import pickle

import gymnasium
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from helpers.face import ACTIONS, actions, frozen, make_go2, rollout, same

import unilab_gym
from unilab_gym.errors import BackendUnavailableError, ConfigError, FaultError
from unilab_gym.tasks import go2_joystick_flat

N = 4


@pytest.fixture(scope="module")
def shared():
    env = make_go2(N)
    yield env
    env.close()


@pytest.fixture
def env(shared):
    shared.reset(seed=0)
    return shared


# -- arguments -----------------------------------------------------------------------------------

BAD_ARGUMENTS = [
    ({"num_envs": 0}, ValueError, "num_envs must be a positive integer, got 0"),
    ({"num_envs": -1}, ValueError, "num_envs must be a positive integer, got -1"),
    ({"num_envs": True}, ValueError, "num_envs must be a positive integer, got True"),
    ({"num_envs": 1.5}, ValueError, "num_envs must be a positive integer, got 1.5"),
    ({"max_episode_steps": 0}, ValueError, "max_episode_steps must be a positive integer"),
    ({"max_episode_steps": 2.5}, ValueError, "max_episode_steps must be a positive integer"),
    ({"no_such_option": 1}, TypeError, "'no_such_option'"),
    ({"backend": "mujco"}, ValueError, "'mujco'; did you mean 'mujoco'.* auto, mujoco, mjwarp"),
    ({"backend": "mujoco", "device": "cuda"}, ValueError, "'cuda'.*use backend='mjwarp'"),
    ({"backend": "auto", "device": "cuda:77"}, ValueError, "'cuda:77' is not visible; visible"),
    ({"backend": "mjwarp", "device": "cuda:77"}, ValueError, "'cuda:77' is not visible; visible"),
    ({"device": "tpu"}, ValueError, "'tpu' is not a torch device"),
    ({"device": "mps"}, ValueError, "'mps': the engines run on 'cpu' or 'cuda'"),
    ({"obs": "critic"}, ValueError, "obs 'critic'.*policy, dict, or a tuple"),
    ({"obs": ("policy", "critc")}, ValueError, "'critc'; did you mean 'critic'"),
    ({"obs": ()}, ValueError, "tuple of group names"),
    ({"output": "nump"}, ValueError, "'nump'; did you mean 'numpy'"),
    ({"autoreset_mode": "same"}, ValueError, "'same'.*NextStep, SameStep, Disabled"),
    ({"rank": -1}, ValueError, "rank must be an integer of 0 or more, got -1"),
    ({"obs": ("critic", "critic")}, ValueError, "names a group twice"),
    ({"render_mode": "human"}, ValueError, "'human'.*rgb_array"),
    ({"render_env_ids": [4]}, ValueError, r"row 4 is not in 0\.\.3"),
    ({"on_fault": "ignore"}, ValueError, "'ignore'.*quarantine, raise"),
    ({"seed": 1.5}, ValueError, "seed must be an integer or None, got 1.5"),
    ({"seed": True}, ValueError, "seed must be an integer or None, got True"),
    ({"play": "yes"}, ValueError, "play must be True or False, got 'yes'"),
    ({"copy": "no"}, ValueError, "copy must be True or False, got 'no'"),
    ({"clip_actions": "no"}, ValueError, "clip_actions must be True or False, got 'no'"),
    ({"deterministic": "maybe"}, ValueError, "deterministic must be True or False, got 'maybe'"),
    ({"log_in_info": "x"}, ValueError, "log_in_info must be True or False, got 'x'"),
    ({"validate": 3}, ValueError, "validate must be True, False or None, got 3"),
    (
        {"overrides": {"commands.gait.params.frequency": math.inf}},
        ValueError,
        "commands.gait.params.frequency is infinite",
    ),
    (
        {"overrides": {"observations.policy.terms.command.params.width": 1e30}},
        ValueError,
        "observations/policy/command: .*width must be a positive integer, got 1e\\+30",
    ),
    ({"overrides": [1]}, ValueError, "overrides must be"),
    ({"overrides": {"episode_length": 1.0}}, ValueError, "did you mean 'episode_length_s'"),
    ({"overrides": {"rewards.lin_vel_y.weight": 1.0}}, ValueError, "did you mean 'lin_vel_z'"),
    ({"overrides": {"rewards.lin_vel_z.weight": "x"}}, ValueError, "expected float, got str 'x'"),
    ({"overrides": {"ctrl_dt": 0.013}}, ValueError, "not a whole multiple of sim_dt"),
    ({"vector_kwargs": {"shared_memory": True}}, gymnasium.error.Error, "vector_kwargs"),
    ({"wrappers": [lambda env: env]}, gymnasium.error.Error, "wrappers argument"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_refused_by_name(arguments, error, message, capfd):
    with pytest.raises(error, match=message):
        make_go2(**({"num_envs": 4} | arguments))
    assert capfd.readouterr() == ("", "")


def test_overrides_change_the_copy_only():
    cfg = go2_joystick_flat.env_cfg()
    overrides = {"rewards.lin_vel_z.weight": -7.5, "episode_length_s": 0.1, "sim.num_threads": 1}
    env = unilab_gym.make(cfg, 2, overrides=overrides, device="cpu")
    assert env.cfg.rewards["lin_vel_z"].weight == -7.5 and env.max_episode_steps == 5
    assert cfg == go2_joystick_flat.env_cfg() and cfg != env.cfg
    env.close()


def test_an_absent_mjwarp_is_told_by_its_install_line(monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if "warp" in name else real(name, *a)
    )
    with pytest.raises(BackendUnavailableError, match="pip install mujoco-warp warp-lang"):
        make_go2(1, backend="mjwarp")
    env = make_go2(1, backend="auto")
    assert env.backend_name == "mujoco"
    env.close()


def test_a_faulty_row_raises_on_request():
    env = make_go2(3, on_fault="raise")
    env.reset(seed=0)
    action = torch.zeros(3, ACTIONS)
    env.step(action)
    action[1, 4] = torch.nan
    with pytest.raises(FaultError, match=r"1 faulty row\(s\): row 1: action_nonfinite"):
        env.step(action)
    env.reset(seed=0)
    env.step(torch.zeros(3, ACTIONS))
    env.close()


def test_one_seed_one_rollout_whatever_the_face(env):
    """The face adds nothing: the runtime alone gives the same numbers."""
    from unilab_gym.runtime.rng import seed_keys

    want = rollout(env, 5, reset_seed=4)
    runtime = make_go2(N).runtime
    state = runtime.reset(keys=seed_keys(4, N))
    assert torch.equal(state.obs["policy"], want[0]["[0]"])
    for action, expected in zip(actions(5, N), want[1:], strict=True):
        state = runtime.step(action)
        assert torch.equal(state.obs["policy"], expected["[0]"])
        assert torch.equal(state.reward, expected["[1]"])
    with pytest.raises(ConfigError, match=r"float32 \(4, 12\).*got .*float64"):
        runtime.step(action.double())
    runtime.close()


# -- specs -----------------------------------------------------------------------------------------


def test_a_spec_rebuilds_the_environment():
    env = make_go2(3, seed=5, max_episode_steps=6, obs="dict", autoreset_mode="SameStep")
    want = frozen(env.reset())
    text = env.spec.to_json()
    assert json.loads(text)["kwargs"]["obs"] == "dict"
    for spec in (env.spec, EnvSpec.from_json(text), pickle.loads(pickle.dumps(env.spec))):
        again = gymnasium.make_vec(spec)
        assert (again.num_envs, again.max_episode_steps) == (3, 6)
        assert again.single_observation_space == env.single_observation_space
        same(again.reset(), want)
        again.close()
    env.close()


# -- attributes ------------------------------------------------------------------------------------


def test_call_get_attr_set_attr(env):
    assert env.get_attr("step_dt") == (0.02,) * N
    assert env.call("step_dt") == (0.02,) * N
    (groups, *others) = env.call("get_observations")
    assert list(groups) == ["policy", "critic"] and len(others) == N - 1
    env.set_attr("note", "one")
    assert env.note == "one"
    env.set_attr("note", ["two"] * N)
    assert env.note == "two"
    env.set_attr("episode_length_buf", torch.arange(N))
    assert env.episode_length_buf.tolist() == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match=r"'note'\): the environments share it"):
        env.set_attr("note", ["a", "b", "a", "a"])
    with pytest.raises(AttributeError, match="no_such_thing"):
        env.call("no_such_thing")


def test_held_commands_stay_until_released(env):
    env.hold_command("twist", [0.5, 0.0, 0.2], mask=[False, True, False, True])
    free = env.state()[0, 42:45]
    for action in actions(3, N):
        command = env.runtime.rt.commands.terms["twist"].value
        assert torch.equal(command[1], torch.tensor([0.5, 0.0, 0.2]))
        env.step(action * 0.1)
        assert env.state()[3, 42:45].tolist() == pytest.approx([0.5, 0.0, 0.2])
    assert torch.equal(env.state()[0, 42:45], free)
    env.release_command("twist")
    env.reset(seed=1)
    assert (env.state()[:, 42:45] != torch.tensor([0.5, 0.0, 0.2])).any(1).all()
    with pytest.raises(ValueError, match="'twst'; did you mean 'twist'"):
        env.hold_command("twst", [0.0, 0.0, 0.0])

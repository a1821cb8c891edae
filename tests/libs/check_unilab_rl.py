"""unilab-rl 1.4: the adapter and APPO; SAC and FlashSAC want a GPU."""

import pickle

import gymnasium as gym
import pytest
import torch
from common import ID, check_training, example, record, refuses

from unilab_gym.adapters.unilab_rl import UniRlEnv, factory

GO2 = "unilab_gym:UniLab/Go2JoystickFlat-v0"


def test_appo_learns(tmp_path):
    module = example("train_unilab_rl")
    module.ALGORITHM = "appo"
    check_training(module, tmp_path, "unilab-rl", 4.0)


@pytest.mark.parametrize("algorithm", ["sac", "flash_sac"])
def test_off_policy_runners_refuse_the_cpu(algorithm):
    from omegaconf import OmegaConf
    from uni_rl.algos.flash_sac.double_buffer import build_flashsac_double_buffer_runner
    from uni_rl.offpolicy.double_buffer_runner import DoubleBufferOffPolicyRunner

    with pytest.raises(ValueError, match="CUDA or MPS learner device") as refused:
        if algorithm == "sac":
            DoubleBufferOffPolicyRunner(device="cpu")
        else:
            build_flashsac_double_buffer_runner(
                OmegaConf.create(), env_factory=factory(ID), env_cfg_override=None,
                replay_prefetch_mode="one_tick", device="cpu",
            )  # fmt: skip
    record("unilab-rl", algorithm, status="cannot run on a CPU", reason=str(refused.value))


def test_a_step_gives_what_collectors_read():
    make = {"backend": "mujoco", "max_episode_steps": 3, "play": True, "seed": 7}
    env = pickle.loads(pickle.dumps(factory(ID, **make)))(3)
    twin = gym.make_vec(ID, num_envs=3, autoreset_mode="Disabled", **make)
    assert env.obs_groups_spec == {"obs": 4} and env.action_space.shape == (1,)
    assert torch.equal(env.init_state().obs["obs"], twin.reset()[0])
    for step in range(3):
        state = env.step(torch.full((3, 1), 0.5))
        true_next, reward, *_ = twin.step(torch.full((3, 1), 0.5))
        assert torch.equal(state.reward, reward) and not state.terminated.any()
        assert torch.equal(state.final_observation["obs"], true_next)
        assert state.truncated.tolist() == [step == 2] * 3
    assert not torch.equal(state.obs["obs"], true_next)
    env.close(), twin.close()


def test_some_rows_restart_and_overrides_arrive():
    env = factory(ID, backend="mujoco", seed=1)(3, {"episode_length_s": 0.1})
    assert env.env.max_episode_steps == 5 and env.state is None
    env.init_state()
    before = env.step(torch.ones(3, 1)).obs["obs"]
    begins, _ = env.reset(torch.tensor([2]))
    now = env.env.get_observations()["policy"]
    assert begins["obs"].shape == (1, 4) and torch.equal(begins["obs"][0], now[2])
    assert torch.equal(now[:2], before[:2]) and not torch.equal(now[2], before[2])
    env.close()


def test_the_critic_group_comes_with_its_last_observation():
    env = factory(GO2, backend="mujoco", seed=1)(2)
    env.init_state()
    state = env.step(torch.zeros(2, 12))
    assert set(state.obs) == {"obs", "critic"} == set(state.final_observation)
    assert {name: value.shape[1] for name, value in state.obs.items()} == env.obs_groups_spec
    env.close()


def test_the_collector_still_loses_the_observation_after_a_rollout():
    """The reason for long rollouts in the example; if this fails, the page is out of date."""
    import inspect

    from uni_rl.algos.appo import worker
    from uni_rl.ipc import tensor_rollout_ring_buffer

    assert "last_obs" in inspect.getsource(tensor_rollout_ring_buffer)
    assert "last_obs" not in inspect.getsource(worker)


def test_other_modes_and_groups_are_refused():
    refuses(UniRlEnv, "SameStep", autoreset_mode="NextStep", obs="dict")
    refuses(UniRlEnv, "obs='dict'")

"""The tutorial task: what it observes, rewards and ends on, and that it can be balanced."""

import gymnasium
import pytest
import torch

from unilab_gym.contract import resolve
from unilab_gym.tasks import cartpole


def make(num_envs=4, backend="mujoco", **kwargs):
    return gymnasium.make_vec(
        cartpole.ID, num_envs=num_envs, backend=backend, device="cpu", **kwargs
    )


def place(env, cart, pole):
    """Starts every row there, at rest."""
    runtime = env.unwrapped.runtime
    payload = runtime.backend.allocate_reset_payload()
    payload.qpos.copy_(torch.tensor([cart, pole]))
    runtime.backend.reset(payload, torch.ones(env.num_envs, dtype=torch.bool))


def test_both_engines_start_alike():
    first = {}
    for backend in ("mujoco", "mjwarp"):
        env = make(backend=backend)
        first[backend], _ = env.reset(seed=3)
        assert env.single_observation_space.shape == (4,)
        assert env.single_action_space.shape == (1,)
        assert env.unwrapped.max_episode_steps == 500
        env.close()
    torch.testing.assert_close(first["mujoco"], first["mjwarp"], atol=1e-5, rtol=0)


def test_starts_lie_in_their_ranges_and_differ():
    env = make(256)
    obs, _ = env.reset(seed=0)
    cart, pole, *velocities = obs.unbind(1)
    assert 0.4 < cart.abs().max() <= 0.5
    assert 0.15 < pole.abs().max() <= 0.2
    assert all(torch.equal(v, torch.zeros(256)) for v in velocities)
    env.close()


def steer(obs):
    """A hand-made controller: the cart runs to where the pole would fall."""
    return (obs * torch.tensor([0.4, 4.0, 1.4, 3.0])).sum(1, keepdim=True)


@pytest.mark.parametrize(("backend", "steps"), [("mujoco", 500), ("mjwarp", 60)])
def test_a_hand_made_controller_balances_and_doing_nothing_falls(backend, steps):
    env = make(backend=backend, play=True)
    for policy, falls in ((steer, False), (lambda obs: torch.zeros(4, 1), True)):
        obs, _ = env.reset(seed=1)
        fell = torch.zeros(4, dtype=torch.bool)
        for _ in range(steps):
            obs, _, terminated, truncated, _ = env.step(policy(obs))
            fell |= terminated
        assert fell.all() if falls else not fell.any()
        if not falls and steps == 500:
            assert truncated.all()
    env.close()


def test_reward_of_a_start_by_hand():
    env = make(1)
    env.reset(seed=0)
    place(env, 0.3, 0.0)
    action = torch.tensor([[0.15]])  # 1.5 N move the cart by less than half a millimetre
    _, reward, *_ = env.step(action)
    wanted = 0.02 * (1.0 - 0.3 * 0.3 - 0.1 * 0.15**2)
    torch.testing.assert_close(reward, torch.tensor([wanted]), atol=2e-5, rtol=0)
    env.close()


@pytest.mark.parametrize(
    ("cart", "pole", "cause"), [(0.0, 0.6, "fallen"), (2.3, 0.0, "off_rail"), (2.1, 0.4, "")]
)
def test_what_ends_an_episode(cart, pole, cause):
    env = make(1)
    env.reset(seed=0)
    place(env, cart, pole)
    _, _, terminated, truncated, _ = env.step(torch.zeros(1, 1))
    assert terminated.item() is bool(cause) and not truncated.item()
    log = env.unwrapped.extras["log"]
    for name in ("fallen", "off_rail"):
        assert log[f"termination/{name}"].item() == float(name == cause)
    env.close()


def test_the_contract_says_one_action_of_the_cart():
    contract = resolve(cartpole.owner("mujoco"))
    assert contract["actions"]["joints"] == ["slider"]
    assert contract["actions"]["scale"] == [10.0]
    assert [term["kind"] for term in contract["actions"]["terms"]] == ["joint_effort"]
    assert [term["name"] for term in contract["observations"]["policy"]["terms"]] == [
        "joint_pos",
        "joint_vel",
    ]
    assert contract["network"]["actor"]["obs_width"] == 4

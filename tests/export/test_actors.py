"""Policies of learners as plain modules: what is exported is what the library computes."""

import numpy as np
import pytest
import torch
from helpers.actors import TASK, A, D, make_actor
from torch import nn

from unilab_gym.contract import resolve
from unilab_gym.errors import ConfigError
from unilab_gym.export import export_policy, load_policy, sb3_actor, skrl_actor
from unilab_gym.registration import owner_config


@pytest.fixture(scope="module")
def contract():
    return resolve(owner_config(TASK, "mujoco"))


def observations():
    """Inputs of mean 3 and standard deviation 7, which a normalizer that is lost would not fit."""
    return 3.0 + 7.0 * torch.randn(300, D, generator=torch.Generator().manual_seed(0))


class Scaler(nn.Module):
    """A running standardizer with the attributes and arithmetic of skrl's."""

    def __init__(self, obs):
        super().__init__()
        self.register_buffer("running_mean", obs.double().mean(0))
        self.register_buffer("running_variance", obs.double().var(0))
        self.epsilon, self.clip_threshold = 1e-8, 5.0

    def forward(self, x):
        scale = self.running_variance.float().sqrt() + self.epsilon
        return ((x - self.running_mean.float()) / scale).clamp(-5.0, 5.0)


class Gaussian(nn.Module):
    """A policy model as skrl has it: `compute` gives the mean and the rest."""

    def __init__(self, clip):
        super().__init__()
        self.net = make_actor(seed=2, gain=5.0)
        self.log_std = nn.Parameter(torch.zeros(A))
        self._g_clip_mean_actions = clip
        self._g_min_actions, self._g_max_actions = -torch.ones(A), torch.ones(A)

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Agent:
    def __init__(self, policy, scaler=None):
        self.models = {"policy": policy, "value": None}
        self._observation_preprocessor = scaler if scaler is not None else (lambda x, **_: x)


@pytest.mark.parametrize("clip", [False, True])
def test_a_skrl_agent_exports_its_mean_and_its_scaler(contract, tmp_path, clip):
    obs = observations()
    policy, scaler = Gaussian(clip), Scaler(obs)
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    path = tmp_path / "policy.onnx"
    export_policy(skrl_actor(Agent(policy, scaler)), contract, path, observations=obs)
    wanted = policy.net(scaler(obs)).detach()
    assert wanted.abs().max() > 1.0
    if clip:
        wanted = wanted.clamp(-1.0, 1.0)
    assert (load_policy(path)(obs) - wanted).abs().max() <= 1e-5
    assert all(torch.equal(before[key], value) for key, value in policy.state_dict().items())
    alone = skrl_actor(Agent(policy))(obs)
    assert not torch.allclose(alone, wanted, atol=0.1)  # the scaler matters here
    assert torch.equal(skrl_actor(policy)(obs), alone)


def test_a_trained_skrl_policy_that_keeps_its_last_distribution_is_copied_all_the_same():
    policy, obs = Gaussian(False), observations()
    mean = policy.net(obs)
    policy._g_distribution = torch.distributions.Normal(mean, policy.log_std.exp())
    assert torch.equal(skrl_actor(Agent(policy))(obs), mean)
    assert policy._g_distribution.mean is mean  # the learner still has it


class Flatten(nn.Flatten):
    features_dim = D


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy_net = nn.Sequential(nn.Linear(D, 16), nn.Tanh())


class Space:
    low, high = np.full(A, -4.0, np.float32), np.full(A, 4.0, np.float32)


class PpoPolicy(nn.Module):
    """The modules of Stable-Baselines3's ActorCriticPolicy that make the mean."""

    squash_output, action_space = False, Space

    def __init__(self):
        super().__init__()
        self.pi_features_extractor, self.mlp_extractor = Flatten(), Mlp()
        self.action_net = nn.Linear(16, A)

    def _predict(self, obs, deterministic=False):
        return self.action_net(self.mlp_extractor.policy_net(obs))


class SacActor(nn.Module):
    def __init__(self):
        super().__init__()
        self.features_extractor = Flatten()
        self.latent_pi = nn.Sequential(nn.Linear(D, 16), nn.ReLU())
        self.mu = nn.Linear(16, A)


class SacPolicy(nn.Module):
    squash_output, action_space = True, Space

    def __init__(self):
        super().__init__()
        self.actor = SacActor()

    def _predict(self, obs, deterministic=False):
        return torch.tanh(self.actor.mu(self.actor.latent_pi(obs)))


class Normalize:
    """VecNormalize's statistics."""

    epsilon, clip_obs, norm_obs = 1e-8, 10.0, True

    def __init__(self, obs):
        self.obs_rms = type("Rms", (), {"mean": obs.double().mean(0).numpy(),
                                        "var": obs.double().var(0).numpy()})  # fmt: skip


@pytest.mark.parametrize("kind", [PpoPolicy, SacPolicy])
def test_a_stable_baselines_policy_exports_what_predict_gives(contract, tmp_path, kind):
    obs, policy = observations(), kind()
    normalize = Normalize(obs)
    path = tmp_path / "policy.onnx"
    export_policy(sb3_actor(policy, normalize), contract, path, observations=obs)
    scaled = (obs - obs.mean(0)) / (obs.double().var(0) + 1e-8).sqrt().float()
    wanted = policy._predict(scaled.clamp(-10.0, 10.0), deterministic=True).detach()
    if kind is SacPolicy:
        wanted = 4.0 * wanted  # from [-1, 1] to the action space
    assert (load_policy(path)(obs) - wanted).abs().max() <= 1e-5


def test_what_is_no_policy_is_refused():
    with pytest.raises(ConfigError, match="a skrl agent or policy model is needed, got Linear"):
        skrl_actor(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="only RunningStandardScaler"):
        skrl_actor(Agent(Gaussian(False), nn.BatchNorm1d(D)))
    with pytest.raises(ConfigError, match="Stable-Baselines3 model or policy is needed"):
        sb3_actor(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="one observation vector"):
        sb3_actor(PpoPolicy(), type("V", (), {"obs_rms": {"a": 1}})())

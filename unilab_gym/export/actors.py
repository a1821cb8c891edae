"""The deterministic actor of a learner's policy as a plain module, its normalizer inside.

    export_policy(rsl_rl_actor(runner), contract, "policy.onnx")
    export_policy(skrl_actor(agent), contract, "policy.onnx")
    export_policy(sb3_actor(model, vec_normalize), contract, "policy.onnx")

A plain `nn.Module` that maps observations `[B, D]` to actions `[B, A]` needs none of these. Nothing
here imports a learner: what is given is asked for what its library gives it.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from unilab_gym.errors import ConfigError


def rsl_rl_actor(runner_or_policy: Any) -> nn.Module:
    """The deterministic actor of an rsl_rl 5 runner, its observation normalizer inside.

    Args:
        runner_or_policy: A runner, an algorithm, or the actor's model.

    Returns:
        A copy in eval mode that maps observations `[B, D]` to mean actions `[B, A]`; training
        goes on untouched.

    Raises:
        ConfigError: If it is none of these, or takes more than one observation vector.
    """
    algorithm = getattr(runner_or_policy, "alg", runner_or_policy)
    get_policy = getattr(algorithm, "get_policy", None)
    model: Any = algorithm if get_policy is None else get_policy()
    if not hasattr(model, "as_onnx"):
        raise ConfigError(
            f"an rsl_rl runner, algorithm or model is needed, got {type(runner_or_policy).__name__}"
        )
    module: Any = model.as_onnx(verbose=False)
    if module.is_recurrent or module.input_names != ["obs"]:
        raise ConfigError(
            f"{type(model).__name__} takes the inputs {module.input_names}; only models of one "
            "observation vector without memory can be exported"
        )
    return module.eval()


def skrl_actor(agent_or_policy: Any) -> nn.Module:
    """The deterministic actor of a skrl 2 agent with its observation preprocessor inside.

    Args:
        agent_or_policy: An agent (`agent.models["policy"]`, and its preprocessor where it has
            one), or a policy model alone.

    Returns:
        A copy in eval mode that maps observations `[B, D]` to mean actions `[B, A]`, clipped to
        the action space where the model was made with `clip_mean_actions` or, for deterministic
        models, `clip_actions`.

    Raises:
        ConfigError: If it has no policy model of one continuous action vector.
    """
    models: Any = getattr(agent_or_policy, "models", None)
    policy: Any = agent_or_policy
    if isinstance(models, dict):
        policy = cast("dict[str, Any]", models).get("policy")
    if not (isinstance(policy, nn.Module) and callable(getattr(policy, "compute", None))):
        raise ConfigError(
            f"a skrl agent or policy model is needed, got {type(agent_or_policy).__name__}"
        )
    scaler: Any = None
    for name in ("_observation_preprocessor", "_state_preprocessor"):  # skrl 1 knew states alone
        found = getattr(agent_or_policy, name, None)
        if isinstance(found, nn.Module):
            scaler = found
            break
    # A model keeps the distribution that it last sampled from, on the graph of that update: it is
    # no part of the actor, and tensors on a graph cannot be copied.
    sampled = {k: v for k, v in vars(policy).items() if k.endswith("_distribution")}
    memo: dict[int, Any] = {id(value): None for value in sampled.values()}
    return _SkrlActor(copy.deepcopy(policy, memo), copy.deepcopy(scaler)).eval()


class _Standardize(nn.Module):
    """(x - mean) / scale, clamped: what a running normalizer does when it no longer runs."""

    def __init__(self, mean: Tensor, scale: Tensor, threshold: float) -> None:
        super().__init__()
        self.mean = nn.Buffer(mean.float())
        self.scale = nn.Buffer(scale.float())
        self.threshold = threshold

    def forward(self, obs: Tensor) -> Tensor:
        return ((obs - self.mean) / self.scale).clamp(-self.threshold, self.threshold)


class _SkrlActor(nn.Module):
    """`compute` of a Gaussian or deterministic model; its first result is the mean."""

    def __init__(self, policy: Any, scaler: Any) -> None:
        super().__init__()
        self.policy = policy
        self.standardize = nn.Identity() if scaler is None else _skrl_scaler(scaler)
        self.clips = False
        for kind, flag in (("g", "_g_clip_mean_actions"), ("d", "_d_clip_actions")):
            if getattr(policy, flag, False):
                self.clips = True
                self.low = nn.Buffer(torch.as_tensor(getattr(policy, f"_{kind}_min_actions")))
                self.high = nn.Buffer(torch.as_tensor(getattr(policy, f"_{kind}_max_actions")))

    def forward(self, obs: Tensor) -> Tensor:
        obs = self.standardize(obs)
        actions: Tensor = self.policy.compute({"observations": obs, "states": obs}, "policy")[0]
        return torch.clamp(actions, min=self.low, max=self.high) if self.clips else actions


def _skrl_scaler(scaler: Any) -> nn.Module:
    """RunningStandardScaler of skrl: in float32, epsilon beside the root."""
    variance: Any = getattr(scaler, "running_variance", None)
    if not isinstance(variance, Tensor):
        raise ConfigError(
            f"the preprocessor {type(scaler).__name__} is not known, only RunningStandardScaler "
            "is; give the policy model alone and normalizer= to export_policy"
        )
    scale = variance.float().sqrt() + scaler.epsilon
    return _Standardize(scaler.running_mean, scale, float(scaler.clip_threshold))


def sb3_actor(model_or_policy: Any, vec_normalize: Any = None) -> nn.Module:
    """The deterministic actor of a Stable-Baselines3 model, with `VecNormalize` inside.

    Args:
        model_or_policy: A model (PPO, A2C, SAC, TD3, DDPG) or its policy.
        vec_normalize: The `VecNormalize` that it was trained with, or None.

    Returns:
        A copy in eval mode that maps observations `[B, D]` to what `predict(deterministic=True)`
        gives before clipping: the environment clamps to the action box. Squashed actions (SAC,
        TD3) are scaled to the action space.

    Raises:
        ConfigError: If it is no such policy, or observations are not one vector.
    """
    policy: Any = getattr(model_or_policy, "policy", model_or_policy)
    if not (isinstance(policy, nn.Module) and callable(getattr(policy, "_predict", None))):
        raise ConfigError(
            f"a Stable-Baselines3 model or policy is needed, got {type(model_or_policy).__name__}"
        )
    statistics: Any = None
    if vec_normalize is not None and getattr(vec_normalize, "norm_obs", True):
        statistics = getattr(vec_normalize, "obs_rms", None)
        if not hasattr(statistics, "mean"):
            raise ConfigError(
                "vec_normalize must be a VecNormalize over one observation vector, got "
                f"{type(vec_normalize).__name__} with obs_rms {type(statistics).__name__}"
            )
    return _Sb3Actor(policy, vec_normalize, statistics).eval()


class _Sb3Actor(nn.Module):
    """The mean as a chain of modules: `_predict` builds a distribution, which has no ONNX form."""

    def __init__(self, policy: Any, vec_normalize: Any, statistics: Any) -> None:
        super().__init__()
        self.standardize = nn.Identity()
        if statistics is not None:
            mean, variance = (torch.as_tensor(item) for item in (statistics.mean, statistics.var))
            scale = (variance.double() + vec_normalize.epsilon).sqrt()
            self.standardize = _Standardize(mean, scale, float(vec_normalize.clip_obs))
        self.squashed = bool(getattr(policy, "squash_output", False))
        space: Any = policy.action_space
        self.low = nn.Buffer(torch.as_tensor(space.low, dtype=torch.float32))
        self.high = nn.Buffer(torch.as_tensor(space.high, dtype=torch.float32))
        self.chain = copy.deepcopy(nn.Sequential(*_sb3_modules(policy, self.squashed)))

    def forward(self, obs: Tensor) -> Tensor:
        actions: Tensor = self.chain(self.standardize(obs))
        if self.squashed:
            actions = self.low + 0.5 * (actions + 1.0) * (self.high - self.low)
        return actions


def _sb3_modules(policy: Any, squashed: bool) -> list[nn.Module]:
    """From the observation to the mean action, in [-1, 1] where it is squashed."""
    actor: Any = getattr(policy, "actor", None)
    if actor is not None and hasattr(actor, "latent_pi"):  # SAC
        return [actor.features_extractor, actor.latent_pi, actor.mu, nn.Tanh()]
    if actor is not None and hasattr(actor, "mu"):  # TD3, DDPG: mu ends in a tanh
        return [actor.features_extractor, actor.mu]
    latent: Any = getattr(policy, "mlp_extractor", None)
    if hasattr(latent, "policy_net") and hasattr(policy, "action_net"):  # PPO, A2C
        modules = [policy.pi_features_extractor, latent.policy_net, policy.action_net]
        return [*modules, nn.Tanh()] if squashed else modules
    raise ConfigError(f"{type(policy).__name__} is not a policy of PPO, A2C, SAC, TD3 or DDPG")

"""`check_vector_env`: good environments pass, and each seeded fault is told by its own rule."""

import dataclasses
import functools
import re

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorWrapper
from helpers.face import make_probe, make_small

import unilab_gym
from unilab_gym.registration import load_task
from unilab_gym.testing import RULES, VectorEnvCheckError, check_vector_env

EVERY_ENGINE = [(task, name) for task in unilab_gym.task_ids() for name in load_task(task).backends]
SURFACES = {
    "torch": {},
    "next step": {"autoreset_mode": "NextStep"},
    "disabled": {"autoreset_mode": "Disabled"},
    "arrays": {"output": "numpy"},
    "groups": {"obs": "dict", "log_in_info": True, "validate": False},
    "some groups": {"obs": ("critic", "policy"), "output": "numpy", "autoreset_mode": "NextStep"},
    "another rank": {"rank": 3},
    "memory": {"memory": True, "obs": "dict"},
}

# -- what is right ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "backend"), EVERY_ENGINE)
def test_every_task_on_every_engine(task, backend):
    env = gymnasium.make_vec(task, 4, backend=backend, device="cpu")
    assert len(check_vector_env(env, fresh=True)) == len(RULES) > 25
    env.close()


@pytest.mark.parametrize(
    ("surface", "num_envs"),
    [("torch", 1), ("arrays", 1), ("next step", 1), *((surface, 4) for surface in SURFACES)],
)
def test_every_surface(tmp_path, surface, num_envs):
    env = make_small(tmp_path, num_envs, **SURFACES[surface])
    check_vector_env(env, seed=3, fresh=True)
    env.close()


def test_through_wrappers(tmp_path):
    from gymnasium.wrappers import vector

    env = vector.ClipReward(make_small(tmp_path, 3, output="numpy"), -100.0, 100.0)
    check_vector_env(env)
    env.close()


def test_rules_have_names_and_one_line(tmp_path):
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule.text.endswith(".") and "\n" not in rule.text and len(rule.text) < 100
    assert {rule for rule, *_ in FAULTS} == set(names)  # each has a fault below


# -- what is wrong ---------------------------------------------------------------------------------


class Deep(unilab_gym.UnilabVectorEnv):
    """Not directly under VectorEnv."""


class Changed(VectorWrapper):
    """Hands out what `reset` and `step` return after `change(result, self)`."""

    def __init__(self, env, step=None, reset=None, given=None):
        super().__init__(env)
        self._change_step, self._change_reset, self._given = step, reset, given

    def reset(self, *, seed=None, options=None):
        result = self.env.reset(seed=seed, options=options)
        return self._change_reset(*result) if self._change_reset else result

    def step(self, actions):
        actions = self._given(actions) if self._given else actions
        result = self.env.step(actions)
        return self._change_step(*result) if self._change_step else result


class Resets(VectorWrapper):
    """Resets in its own way."""

    def __init__(self, env, how):
        super().__init__(env)
        self._how = how

    def reset(self, *, seed=None, options=None):
        return self._how(self.env, seed, options)


def changed(**changes):
    return lambda env: Changed(env, **changes)


def nothing(env):
    return env


def patched(**values):
    """Sets attributes of the environment itself."""

    def apply(env):
        for name, value in values.items():
            setattr(env, name, value)
        return env

    return apply


def patched_data(**values):
    return lambda env: patched(metadata={**env.metadata, **values})(env)


def bounded_observations(env):
    env.single_observation_space = gymnasium.spaces.Box(-0.5, 0.5, (1,), "float32")
    return env


def other_observations(env):
    env.single_observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), "float64")
    return env


def endless_actions(env):
    env.single_action_space = gymnasium.spaces.Box(-torch.inf, torch.inf, (1,), "float32")
    return env


def one_row_less(env):
    env.observation_space = gymnasium.spaces.Box(-torch.inf, torch.inf, (env.num_envs - 1, 1))
    return env


def only_when_ended(obs, reward, terminated, truncated, info):
    done = terminated | truncated
    return obs, reward, terminated, truncated, info if done.any() else {}


def not_finite(obs, reward, terminated, truncated, info):
    return torch.where(obs > 2, torch.nan, obs), reward, terminated, truncated, info


def with_info(**entries):
    return lambda obs, reward, terminated, truncated, info: (
        obs,
        reward,
        terminated,
        truncated,
        info | entries,
    )


def latest(env):
    """Applies the action object that it got one step before."""
    held = []

    def given(action):
        held.append(action)
        return held[-2] if len(held) > 1 else action

    return Changed(env, given=given)


def clamps_in_place(action):
    return action.clamp_(-0.01, 0.01) if isinstance(action, torch.Tensor) else action


def only_float32(action):
    if isinstance(action, torch.Tensor) and action.dtype == torch.float64:
        raise TypeError("float32 only")
    return action


def first_row_for_all(action):
    action = torch.as_tensor(action).float()
    return action.expand(4, -1) if action.dim() == 1 else action


def ignores_seeds(env, seed, options):
    return env.reset(options=options)


def same_seed_for_all(env, seed, options):
    return env.reset(seed=[seed] * 4 if isinstance(seed, int) else seed, options=options)


def resets_everybody(env, seed, options):
    return env.reset(seed=seed)


def takes_the_mask_out(env, seed, options):
    given = dict(options or {})
    (options or {}).pop("reset_mask", None)
    return env.reset(seed=seed, options=given)


def takes_integers(env, seed, options):
    if options and "reset_mask" in options:
        mask = options["reset_mask"]
        mask = mask.bool() if mask.shape == (4,) else mask
        options = {**options, "reset_mask": mask}
    return env.reset(seed=seed, options=options)


def disabled_but_resets(env):
    """DISABLED in name; each ended row begins anew by itself."""

    def begin_anew(obs, reward, terminated, truncated, info):
        env.reset(options={"reset_mask": terminated | truncated})
        return obs, reward, terminated, truncated, info

    return Changed(env, step=begin_anew)


def counts_twice(env):
    def given(action):
        env.episode_length_buf = env.episode_length_buf + 1
        return action

    return Changed(env, given=given)


def fresh_noise(env):
    asked = []

    def get_observations():
        asked.append(1)
        return {"policy": torch.full((4, 1), float(len(asked)))}

    return patched(get_observations=get_observations)(env)


def starts_by_itself(env):
    env._has_reset = True
    return env


def renders_a_list(env):
    env.render_mode = "rgb_array"
    env.render = lambda: [torch.zeros((8, 8, 3), dtype=torch.uint8)] * 4
    return env


def lambda_in_the_spec(env):
    env._spec = dataclasses.replace(gymnasium.spec(unilab_gym.task_ids()[0]), kwargs={"f": nothing})
    return env


def two_of_one(obs, reward, terminated, truncated, info):
    return obs, reward, terminated, terminated, info


FAULTS = (
    ("vector-env", "UnilabVectorEnv", nothing, {"kind": Deep}),
    ("metadata", "'SameStep'", patched_data(autoreset_mode="SameStep"), {}),
    ("metadata", "a key 'torch'", patched_data(torch=True), {}),
    ("metadata", "None", patched_data(render_modes=[None]), {}),
    ("action-box", "inf", endless_actions, {}),
    ("observation-space", "float64", other_observations, {}),
    ("batched-spaces", "observation_space", one_row_less, {}),
    ("reset-first", "step: no error", starts_by_itself, {"fresh": True}),
    ("reset-returns", "float64", changed(reset=lambda obs, info: (obs.double(), info)), {}),
    (
        "step-returns",
        "reward: torch.float64",
        changed(step=lambda o, r, *x: (o, r.double(), *x)),
        {},
    ),
    (
        "step-returns",
        r"reward: shape \(4, 1\)",
        changed(step=lambda o, r, *x: (o, r[:, None], *x)),
        {},
    ),
    (
        "step-returns",
        "terminated: torch.int32",
        changed(step=lambda o, r, t, *x: (o, r, t.int(), *x)),
        {},
    ),
    ("step-returns", "a tuple|tuple of 4", changed(step=lambda o, r, t, u, i: (o, r, t, i)), {}),
    ("one-kind", "ndarray", changed(step=lambda o, r, t, u, i: (o, r, t, u.numpy(), i)), {}),
    ("finite", "obs is not", changed(step=not_finite), {}),
    ("in-space", "outside", bounded_observations, {}),
    ("exclusive-flags", "both", changed(step=lambda o, r, t, u, i: (o, r, u.clone(), u, i)), {}),
    (
        "trainable",
        "grad|inference",
        changed(step=lambda o, r, *x: (o, r.clone().requires_grad_(), *x)),
        {},
    ),
    ("kept-outputs", "changed", nothing, {"copy": False}),
    ("overwritten-outputs", "change", nothing, {"copy": False, "small": True}),
    ("own-memory", "overlap", changed(step=two_of_one), {}),
    ("kept-actions", "overwriting", latest, {"small": True}),
    ("kept-actions", "was changed", changed(given=clamps_in_place), {"small": True}),
    ("action-kinds", "float32 only", changed(given=only_float32), {}),
    ("action-shape", "one row: no error", changed(given=first_row_for_all), {}),
    ("seed", "differs", lambda env: Resets(env, ignores_seeds), {"small": True}),
    ("seed-list", "differs", lambda env: Resets(env, same_seed_for_all), {"small": True}),
    (
        "global-random-state",
        "advanced",
        changed(step=lambda o, *x: (o + torch.rand(4, 1) * 1e-6, *x)),
        {},
    ),
    ("masked-reset", "all-false mask", lambda env: Resets(env, resets_everybody), {}),
    ("reset-options", "options became", lambda env: Resets(env, takes_the_mask_out), {}),
    ("reset-options", "an integer mask: no error", lambda env: Resets(env, takes_integers), {}),
    ("info", "keys change", changed(step=only_when_ended), {}),
    ("info", "a top-level 'episode'", changed(step=with_info(episode=torch.zeros(4))), {}),
    ("info", "shape", changed(step=with_info(note=torch.zeros(()))), {}),
    (
        "final-obs",
        "show final_obs as obs",
        changed(step=lambda o, r, t, u, i: (i["final_obs"].clone(), r, t, u, i)),
        {},
    ),
    ("episode-statistics", "r ", changed(step=lambda o, r, *x: (o, r * 2, *x)), {}),
    (
        "next-step",
        "a reward or flag",
        changed(step=lambda o, r, *x: (o, r + 1, *x)),
        {"autoreset_mode": "NextStep"},
    ),
    ("disabled", "changed", disabled_but_resets, {"autoreset_mode": "Disabled"}),
    ("time-limit", "early", counts_twice, {}),
    ("cached-observations", "asked twice", fresh_noise, {}),
    ("attributes", "int", patched(get_attr=lambda name: 4), {}),
    ("render", "list", renders_a_list, {}),
    ("spec", "JSON|serializable", lambda_in_the_spec, {}),
)


@pytest.mark.parametrize(
    ("rule", "seen", "fault", "how"), FAULTS, ids=[f"{f[0]}-{n}" for n, f in enumerate(FAULTS)]
)
def test_each_fault_is_told_by_its_rule(tmp_path, rule, seen, fault, how):
    how = dict(how)
    kind, fresh, small = how.pop("kind", None), how.pop("fresh", False), how.pop("small", False)
    env = (make_small if small else functools.partial(make_probe, max_episode_steps=9))(
        tmp_path, 4, **how
    )
    if kind is not None:
        env.__class__ = kind
    with pytest.raises(VectorEnvCheckError) as caught:
        check_vector_env(fault(env), fresh=fresh)
    told = {violation.rule.name: violation for violation in caught.value.violations}
    assert rule in told, str(caught.value)
    assert re.search(seen, told[rule].seen), told[rule].seen
    text = str(caught.value)
    assert f"{rule}: {told[rule].rule.text}" in text and f"seen: {told[rule].seen}" in text
    assert f"expected: {told[rule].expected}" in text and told[rule].expected
    env.close()


def test_all_violations_are_told_at_once(tmp_path):
    env = make_probe(tmp_path, 4, max_episode_steps=9)
    wrong = Changed(env, step=lambda o, r, t, u, i: (o, r * 2, t, t, i))
    with pytest.raises(
        VectorEnvCheckError, match=r"\d rule\(s\) of a vector environment"
    ) as caught:
        check_vector_env(wrong)
    names = [violation.rule.name for violation in caught.value.violations]
    assert {"own-memory", "final-obs", "time-limit"} <= set(names)
    assert isinstance(caught.value, AssertionError)
    env.close()


def test_basic_rules_end_the_check(tmp_path):
    env = make_probe(tmp_path, 4)
    env.metadata["autoreset_mode"] = AutoresetMode
    with pytest.raises(VectorEnvCheckError) as caught:
        check_vector_env(env)
    (only,) = caught.value.violations
    assert only.rule.name == "metadata" and only.rule.basic
    env.close()

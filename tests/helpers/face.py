"""Go2 through the Gymnasium face, and walks over everything that a step returns."""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import torch

import unilab_gym

GO2 = "UniLab/Go2JoystickFlat-v0"
ACTIONS = 12
ROOT = Path(unilab_gym.__file__).resolve().parents[1]


def make_go2(num_envs=4, **kwargs):
    kwargs = {"backend": "mujoco", "device": "cpu"} | kwargs
    return gymnasium.make_vec(GO2, num_envs=num_envs, **kwargs)


def actions(steps, num_envs, seed=0, scale=4.0):
    """Random actions `[steps, N, A]`; row i does not depend on the number of rows."""
    rows = []
    for row in range(num_envs):
        generator = torch.Generator().manual_seed(1000 * seed + row)
        rows.append(torch.rand(steps, ACTIONS, generator=generator) * 2 * scale - scale)
    return torch.stack(rows, 1)


class Frozen(dict):
    """Leaves of a result by path."""


def leaves(value, path=""):
    """Every array of a nested result with its path, in order."""
    if isinstance(value, Frozen):
        for key, item in value.items():
            yield path + key, item
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}/{key}")
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}[{number}]")
    else:
        yield path, value


def frozen(value):
    """Clones of every leaf, by path."""
    return Frozen({path: leaf.clone() for path, leaf in leaves(value)})


def same(left, right, rows=slice(None)):
    """Asserts that two results, or `frozen` ones, are equal bit for bit in the chosen rows."""
    left, right = dict(leaves(left)), dict(leaves(right))
    assert left.keys() == right.keys()
    for path, value in left.items():
        other = right[path]
        if value.dim():
            value, other = value[rows], other[rows]
        assert torch.equal(bits(value), bits(other)), path


def bits(tensor):
    """The bit patterns, so that NaN equals itself and 0.0 differs from -0.0."""
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor


def rollout(env, steps, seed=0, reset_seed=None, scale=4.0):
    """Results of a reset and of each step with `actions`."""
    results = [frozen(env.reset(seed=reset_seed))]
    results.extend(
        frozen((*env.step(action), env.get_observations()))
        for action in actions(steps, env.num_envs, seed, scale)
    )
    return results


def digest(results):
    """One text for a rollout's bits."""
    sha = hashlib.sha256()
    for path, leaf in leaves(results):
        sha.update(path.encode())
        sha.update(leaf.contiguous().numpy().tobytes())
    return sha.hexdigest()


def run_python(source, **variables):
    """Runs a program in a fresh process and returns the JSON of its last line.

    Nothing may be printed to stderr.
    """
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env = {**os.environ, "PYTHONPATH": paths, **variables}
    command = [sys.executable, "-W", "error", "-c", source]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# -- a small task: noise, commands, pushes, randomization, two actions -----------------------------

SMALL_ACTIONS = 2


def make_small(folder, num_envs=4, *, memory=False, **kwargs):
    """The walker of `helpers.probe`; with `memory` its signals have histories and latencies."""
    from helpers.probe import walker_cfg

    kwargs = {"backend": "mujoco", "device": "cpu"} | kwargs
    cfg = walker_cfg(folder)
    return unilab_gym.make(with_memory(cfg) if memory else cfg, num_envs, **kwargs)


def with_memory(cfg):
    """Histories, random latencies and an action delay; the critic's group is `[N, H, D]`."""
    policy, critic = cfg.observations["policy"], cfg.observations["critic"]
    groups = {
        "policy": dataclasses.replace(policy, history=3, delay=(0, 2)),
        "critic": dataclasses.replace(critic, history=2, flatten=False),
    }
    servo = {
        name: dataclasses.replace(action, delay=(0, 2)) for name, action in cfg.actions.items()
    }
    return dataclasses.replace(cfg, observations=groups, actions=servo)


def make_probe(folder, num_envs=4, *, changes=None, **kwargs):
    """One hinge: observation = step counter, reward 1 per second, no randomness."""
    from helpers.probe import probe_cfg

    kwargs = {"backend": "mujoco", "device": "cpu"} | kwargs
    return unilab_gym.make(probe_cfg(folder, **(changes or {})), num_envs, **kwargs)


def small_actions(steps, num_envs, width=SMALL_ACTIONS, seed=0):
    """Random actions `[steps, N, width]` in [-1, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(steps, num_envs, width, generator=generator) * 2 - 1


def mask_of(*rows, n=4):
    """A mask `[n]` that is true in those rows."""
    mask = torch.zeros(n, dtype=torch.bool)
    mask[list(rows)] = True
    return mask


# -- the conformance list --------------------------------------------------------------------------

CONFORM = "UniLab/CartPole-v0"
"""The smallest task: what holds for every environment is tried on it first."""
ENGINES = ("mujoco", "mjwarp")
MODES = ("SameStep", "NextStep", "Disabled")


def make_cartpole(num_envs=4, **kwargs):
    """The tutorial task, on the CPU."""
    kwargs = {"backend": "mujoco", "device": "cpu"} | kwargs
    return gymnasium.make_vec(CONFORM, num_envs=num_envs, **kwargs)


def play(env, table, begin=None):
    """Results of a reset and of each action; in mode DISABLED what ends is reset at once."""
    results = [frozen(env.reset(**(begin or {})))]
    for action in table:
        result = env.step(action)
        results.append(frozen(result))
        done = result[2] | result[3]
        if env.metadata["autoreset_mode"].value == "Disabled":
            results.append(frozen(env.reset(options={"reset_mask": done})))
    return results

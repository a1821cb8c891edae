"""Rules on what a vector environment is, what it returns, and who owns it."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import torch
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from unilab_gym.testing.rules import (
    Rule,
    Step,
    Subject,
    demand,
    demand_error,
    demand_tuple,
    difference,
    leaves,
    rule,
    snapshot,
    tensor,
)

RULES: list[Rule] = []


# --- what it is -----------------------------------------------------------------------------------


@rule(
    RULES,
    "vector-env",
    "It is a gymnasium VectorEnv, and its class stands directly under it.",
    True,
)
def _vector_env(s: Subject) -> None:
    bases = s.base.__class__.__bases__
    demand(isinstance(s.env, VectorEnv), f"bases {bases}", "a subclass of gymnasium's VectorEnv")
    demand(VectorEnv in bases, f"bases {bases}", "VectorEnv among them")
    whole = isinstance(s.env.num_envs, int) and s.n > 0
    demand(whole, f"num_envs {s.env.num_envs!r}", "a positive int")


@rule(
    RULES,
    "metadata",
    "metadata: autoreset_mode is a member, render_modes without None, no 'torch'.",
    True,
)
def _metadata(s: Subject) -> None:
    data = s.env.metadata
    mode = data.get("autoreset_mode")
    demand(isinstance(mode, AutoresetMode), f"autoreset_mode {mode!r}", "an AutoresetMode")
    modes = data.get("render_modes")
    good = isinstance(modes, list) and None not in modes
    demand(good, f"render_modes {modes!r}", "a list without None")
    demand("torch" not in data, "a key 'torch'", "none: Gymnasium's check_env would convert")
    demand(data.get("render_fps", 0) > 0, f"render_fps {data.get('render_fps')!r}", "above 0")


@rule(RULES, "action-box", "single_action_space is a float32 Box with finite bounds.", True)
def _action_box(s: Subject) -> None:
    space = s.env.single_action_space
    demand(isinstance(space, gymnasium.spaces.Box), space, "a Box")
    demand(str(space.dtype) == "float32", f"dtype {space.dtype}", "float32")
    finite = tensor(space.low).isfinite().all() & tensor(space.high).isfinite().all()
    demand(finite, f"bounds {space.low} .. {space.high}", "finite: learners sample and scale it")


@rule(
    RULES,
    "observation-space",
    "Observations are a float32 Box, or a Dict of them, 'policy' first.",
    True,
)
def _observation_space(s: Subject) -> None:
    boxes = s.boxes
    asked = getattr(s.base, "_groups", ())  # a tuple of groups keeps the caller's order
    first = next(iter(boxes), None)
    good = "policy" not in boxes or first == "policy" or tuple(boxes) == asked
    demand(good, list(boxes), "'policy' first")
    for name, box in boxes.items():
        demand(isinstance(box, gymnasium.spaces.Box), f"{name} {box}", "a Box")
        demand(str(box.dtype) == "float32", f"{name} dtype {box.dtype}", "float32")


@rule(
    RULES,
    "batched-spaces",
    "observation_space and action_space are the single ones, batched.",
    True,
)
def _batched_spaces(s: Subject) -> None:
    for name in ("observation_space", "action_space"):
        single, batched = getattr(s.env, f"single_{name}"), getattr(s.env, name)
        demand(batched == batch_space(single, s.n), f"{name} {batched}", f"batch_space of {single}")


@rule(RULES, "reset-first", "A step or a masked reset before the first reset raises ResetNeeded.")
def _reset_first(s: Subject) -> None:
    if s.fresh:
        demand_error(lambda: s.env.step(s.actions(1)[0]), (ResetNeeded,), "step")
        demand_error(lambda: s.restart(s.mask(0)), (ResetNeeded,), "masked reset")


# --- what it returns ------------------------------------------------------------------------------


def _check_obs(s: Subject, obs: Any, what: str) -> None:
    boxes = s.boxes
    groups = {"": obs} if "" in boxes else obs
    demand(isinstance(groups, dict), f"{what}: {type(obs).__name__}", "a dict of groups")
    demand(list(groups) == list(boxes), f"{what}: groups {list(groups)}", f"{list(boxes)}")
    for name, box in boxes.items():
        value = tensor(groups[name])
        wanted = (s.n, *box.shape)
        label = f"{what}{'/' if name else ''}{name}"
        demand(value.shape == wanted, f"{label}: shape {tuple(value.shape)}", f"{wanted}")
        demand(value.dtype == torch.float32, f"{label}: {value.dtype}", "float32")


@rule(
    RULES, "reset-returns", "reset returns (observations, info): float32 (N, ...) and a dict.", True
)
def _reset_returns(s: Subject) -> None:
    result = demand_tuple(s.env.reset(seed=s.seed), 2, "reset")
    _check_obs(s, result[0], "reset")
    demand(isinstance(result[1], dict), f"info {type(result[1]).__name__}", "a dict")


@rule(
    RULES,
    "step-returns",
    "step returns observations, float32 reward and bool flags (N,), a dict.",
    True,
)
def _step_returns(s: Subject) -> None:
    s.env.reset(seed=s.seed)
    result = demand_tuple(s.env.step(s.actions(1)[0]), 5, "step")
    _check_obs(s, result[0], "obs")
    kinds = (("reward", torch.float32), ("terminated", torch.bool), ("truncated", torch.bool))
    for (name, dtype), value in zip(kinds, result[1:4], strict=True):
        given = tensor(value)
        demand(given.shape == (s.n,), f"{name}: shape {tuple(given.shape)}", f"({s.n},)")
        demand(given.dtype == dtype, f"{name}: {given.dtype}", f"{dtype}")
    demand(isinstance(result[4], dict), f"info {type(result[4]).__name__}", "a dict")


@rule(
    RULES,
    "one-kind",
    "Every returned value is a tensor on env.device, or every one an array.",
    True,
)
def _one_kind(s: Subject) -> None:
    results: list[Any] = [s.env.reset(seed=s.seed)]
    results += [step.outputs for step in s.play(4, ends=True)]
    found = [(path, leaf) for result in results for path, leaf in leaves(result)]
    torch_out = isinstance(found[0][1], Tensor)
    for path, leaf in found:
        if torch_out:
            demand(isinstance(leaf, Tensor), f"{path}: {type(leaf).__name__}", "a tensor")
            demand(leaf.device == s.device, f"{path}: on {leaf.device}", f"on {s.device}")
        else:
            fits = hasattr(leaf, "__array_interface__") and not isinstance(leaf, Tensor)
            demand(fits, f"{path}: {type(leaf).__name__}", "an array")


@rule(RULES, "finite", "Observations and rewards are finite.")
def _finite(s: Subject) -> None:
    for number, step in enumerate(s.play(8, ends=True)):
        for path, leaf in leaves({"obs": step.obs, "reward": step.reward}):
            demand(tensor(leaf).isfinite().all(), f"step {number}: {path} is not", "finite values")


@rule(RULES, "in-space", "Observations lie in the observation space.")
def _in_space(s: Subject) -> None:
    boxes = s.boxes
    for step in s.play(4, ends=True):
        for name, box in boxes.items():
            value = tensor(step.obs[name] if name else step.obs).cpu()
            inside = (value >= tensor(box.low)) & (value <= tensor(box.high))
            demand(inside.all(), f"obs {name} outside its bounds", "within low and high")


@rule(RULES, "exclusive-flags", "terminated and truncated are never both true.")
def _exclusive(s: Subject) -> None:
    for step in s.play(8, ends=True):
        both = tensor(step.terminated) & tensor(step.truncated)
        demand(not both.any(), f"{int(both.sum())} row(s) with both", "terminated alone")


@rule(
    RULES,
    "trainable",
    "Outputs carry no graph and are no inference tensors, whatever the caller's mode.",
)
def _trainable(s: Subject) -> None:
    with torch.inference_mode():
        results: list[Any] = [s.env.reset(seed=s.seed), s.env.step(s.actions(1)[0])]
    results.append(s.env.step(s.actions(1)[0].clone().requires_grad_()))
    for path, leaf in (item for result in results for item in leaves(result)):
        if isinstance(leaf, Tensor):
            demand(not leaf.is_inference(), f"{path} is an inference tensor", "an ordinary one")
            demand(not leaf.requires_grad, f"{path} requires grad", "a leaf without a graph")


# --- who owns what --------------------------------------------------------------------------------


@rule(RULES, "kept-outputs", "What was returned never changes afterwards.")
def _kept(s: Subject) -> None:
    kept = [step.outputs for step in s.play(3, ends=True)]
    copies = [snapshot(outputs) for outputs in kept]
    s.play(4, seed=s.seed + 1, ends=True)
    for outputs, copy in zip(kept, copies, strict=True):
        changed = difference(snapshot(outputs), copy)
        demand(not changed, f"a later call changed {changed}", "copies that the caller owns")


@rule(RULES, "own-memory", "No two returned values share memory.")
def _own_memory(s: Subject) -> None:
    spans: list[tuple[int, int, str]] = []
    steps = s.play(3, ends=True)
    for number, step in enumerate(steps):
        for path, leaf in leaves(step.outputs):
            value = tensor(leaf)
            if value.numel():
                start = value.data_ptr()
                dense = sum((d - 1) * k for d, k in zip(value.shape, value.stride(), strict=True))
                stop = start + (dense + 1) * value.element_size()
                spans.append((start, stop, f"step {number} {path}"))
    spans.sort()
    for left, right in itertools.pairwise(spans):
        demand(left[1] <= right[0], f"{left[2]} and {right[2]} overlap", "memory of their own")


@rule(
    RULES, "overwritten-outputs", "Whoever overwrites what was returned does not change what comes."
)
def _overwritten(s: Subject) -> None:
    def scribble(step: Step) -> None:
        seen.append(snapshot(step.obs))
        for _, leaf in leaves((step.obs, step.reward, step.info)):
            tensor(leaf).fill_(1)

    want = [snapshot(step.obs) for step in s.play(4)]
    seen: list[dict[str, Tensor]] = []
    s.play(4, after=scribble)
    for one, two in zip(seen, want, strict=True):
        changed = difference(one, two, close=True)
        demand(not changed, f"observations change: {changed}", "the same as without")


@rule(RULES, "kept-actions", "Actions are neither changed nor kept.")
def _kept_actions(s: Subject) -> None:
    want = [snapshot(step.obs) for step in s.play(4)]
    handed: list[tuple[Tensor, Tensor]] = []

    def give(action: Tensor) -> Tensor:
        own = action.clone()
        handed.append((own, action))
        return own

    def spoil(step: Step) -> None:
        own, action = handed[-1]
        demand(torch.equal(own, action), "the given action was changed", "the action as given")
        own.fill_(torch.nan)

    got = s.play(4, given=give, after=spoil)
    for step, other in zip(got, want, strict=True):
        changed = difference(snapshot(step.obs), other, close=True)
        demand(not changed, f"overwriting a used action changes {changed}", "no effect")

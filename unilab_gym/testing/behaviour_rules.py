"""Rules on what a vector environment does: actions, seeds, resets, autoreset modes, extras."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import torch
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
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


# --- actions --------------------------------------------------------------------------------------


@rule(
    RULES, "action-kinds", "float64, lists, sampled arrays and tensors that require grad are taken."
)
def _action_kinds(s: Subject) -> None:
    kinds: dict[str, Callable[[Tensor], Any]] = {
        "float64": lambda action: action.double(),
        "list": lambda action: cast("Any", action.tolist()),
        "requires grad": lambda action: action.clone().requires_grad_(),
    }
    want = [snapshot(step.obs) for step in s.play(2)]
    for name, convert in kinds.items():
        for step, other in zip(s.play(2, given=convert), want, strict=True):
            changed = difference(snapshot(step.obs), other, close=True)
            demand(not changed, f"{name}: {changed}", "the same as float32 tensors")
    s.env.reset(seed=s.seed)
    s.env.step(s.env.action_space.sample())


@rule(
    RULES, "action-shape", "Actions of a wrong shape or kind raise ValueError, and nothing happens."
)
def _action_shape(s: Subject) -> None:
    s.env.reset(seed=s.seed)
    action = s.actions(1)[0]
    wrong = {
        "one row": action[0],
        "a row more": torch.cat((action, action[:1])),
        "bool": action > 0,
    }
    for name, value in wrong.items():
        demand_error(lambda value=value: s.env.step(value), (ValueError,), name)
    want = s.play(1)[0]
    s.env.reset(seed=s.seed)
    obs, *_ = s.env.step(s.actions(1)[0])
    changed = difference(snapshot(obs), snapshot(want.obs), close=True)
    demand(not changed, f"afterwards {changed}", "a step as if nothing had been given")


# --- seeds ----------------------------------------------------------------------------------------


@rule(RULES, "seed", "One seed gives one rollout, and resets without a seed go on from it.")
def _seed(s: Subject) -> None:
    def rollout() -> list[dict[str, Tensor]]:
        first = snapshot(s.env.reset(seed=s.seed + 5)[0])
        second = snapshot(s.env.reset()[0])
        steps = [snapshot((step.obs, step.reward)) for step in s.play(4, seed=s.seed + 5)]
        return [first, second, *steps]

    one, two = rollout(), rollout()
    for number, (left, right) in enumerate(zip(one, two, strict=True)):
        changed = difference(left, right, close=number > 1)
        where = ("reset(seed)", "reset()")[number] if number < 2 else f"step {number - 1}"
        demand(not changed, f"{where}: {changed}", "equal results for equal seeds")


@rule(RULES, "seed-list", "An integer seed s means [s, s + 1, ...].")
def _seed_list(s: Subject) -> None:
    first = 0 if not getattr(s.base, "rank", 0) else int(s.base.rank) * s.n
    want = snapshot(s.env.reset(seed=s.seed)[0])
    seeds = [s.seed + first + row for row in range(s.n)]
    changed = difference(snapshot(s.env.reset(seed=cast("Any", seeds))[0]), want)
    demand(not changed, f"reset(seed={seeds[:3]} ...) differs: {changed}", f"reset(seed={s.seed})")
    demand_error(lambda: s.env.reset(seed=[s.seed] * (s.n + 1)), (ValueError,), "a seed too many")


@rule(
    RULES,
    "global-random-state",
    "The random states of torch and Python are neither read nor written.",
)
def _global_random(s: Subject) -> None:
    kept = torch.get_rng_state(), random.getstate()
    try:
        seen: list[dict[str, Tensor]] = []
        for number in (1, 2):
            torch.manual_seed(number)
            random.seed(number)
            before = torch.get_rng_state(), random.getstate()
            seen += [snapshot(step.obs) for step in s.play(3, ends=True)]
            written = not torch.equal(before[0], torch.get_rng_state())
            written |= before[1] != random.getstate()
            demand(not written, "a global state was advanced", "streams of its own")
        for one, two in zip(seen[:3], seen[3:], strict=True):
            changed = difference(one, two, close=True)
            demand(not changed, f"results follow a global state: {changed}", "streams of its own")
    finally:
        torch.set_rng_state(kept[0])
        random.setstate(kept[1])


# --- resets of some -------------------------------------------------------------------------------


@rule(RULES, "masked-reset", "reset_mask restarts its rows only and returns the whole batch.")
def _masked_reset(s: Subject) -> None:
    last = snapshot(s.play(3)[-1].obs)
    nobody = s.mask()
    changed = difference(snapshot(s.restart(nobody)), last)
    demand(not changed, f"an all-false mask: {changed}", "the last observations")
    mask = s.mask(0)
    obs = s.restart(mask)
    changed = difference(snapshot(obs), last, rows=~mask)
    demand(not changed, f"rows outside the mask: {changed}", "their last observations")
    if hasattr(s.base, "episode_length_buf"):
        steps = tensor(s.base.episode_length_buf)
        demand(steps[0] == 0, f"row 0 counts {int(steps[0])} steps", "0 after its reset")
        demand((steps[1:] > 0).all(), f"the others count {steps[1:]}", "their steps go on")


@rule(
    RULES, "reset-options", "A wrong mask or key raises, and the caller's options stay as they are."
)
def _reset_options(s: Subject) -> None:
    s.env.reset(seed=s.seed)
    mask = s.mask(0)

    def reset(**options: Any) -> Callable[[], Any]:
        return lambda: s.env.reset(options=options)

    demand_error(reset(reset_mask=mask[:0]), (ValueError,), "an empty mask")
    demand_error(reset(reset_mask=mask.long()), (TypeError,), "an integer mask")
    demand_error(reset(no_such_option=1), (ValueError,), "an unknown key")
    options = {"reset_mask": mask}
    s.env.reset(options=options)
    same = list(options) == ["reset_mask"] and options["reset_mask"] is mask
    demand(same and torch.equal(mask, s.mask(0)), f"options became {options}", "unchanged")


# --- info and modes -------------------------------------------------------------------------------


@rule(
    RULES,
    "info",
    "info holds the same keys in every step, values with leading N, no top 'episode'.",
)
def _info(s: Subject) -> None:
    structures: dict[tuple[str, ...], int] = {}
    for number, step in enumerate(s.play(6, ends=True)):
        info = {name: value for name, value in step.info.items() if name != "log"}
        demand("episode" not in info, "a top-level 'episode'", "it lies in final_info")
        for path, leaf in leaves(info):
            shape = tuple(tensor(leaf).shape)
            demand(shape[:1] == (s.n,), f"{path}: shape {shape}", f"({s.n}, ...)")
        structures.setdefault(tuple(path for path, _ in leaves(info)), number)
    demand(len(structures) == 1, f"keys change in step {list(structures.values())[-1]}", "one set")


@rule(RULES, "final-obs", "SAME_STEP: final_obs is the observation before the reset, of every row.")
def _final_obs(s: Subject) -> None:
    if s.mode is not AutoresetMode.SAME_STEP:
        return
    for number, step in enumerate(s.play(6, ends=True)):
        where = f"step {number}"
        demand("final_obs" in step.info, f"{where}: info {list(step.info)}", "a key final_obs")
        done = step.done
        mask = tensor(step.info["_final_obs"])
        demand(torch.equal(mask, done), f"{where}: _final_obs is another mask", "the ended rows")
        obs, final = snapshot(step.obs), snapshot(step.info["final_obs"])
        changed = difference(obs, final, rows=~done)
        demand(not changed, f"{where}, rows that go on: {changed}", "final_obs equal to obs")
        if bool(done.any()):
            same = not difference(obs, final, rows=done)
            demand(not same, f"{where}: ended rows show final_obs as obs", "a new episode")


@rule(RULES, "episode-statistics", "SAME_STEP: final_info's r and l are the sums over the episode.")
def _statistics(s: Subject) -> None:
    if s.mode is not AutoresetMode.SAME_STEP:
        return
    returns = torch.zeros(s.n, dtype=torch.float64, device=s.device)
    lengths = torch.zeros(s.n, dtype=torch.int64, device=s.device)
    for number, step in enumerate(s.play(8, ends=True)):
        returns += tensor(step.reward).to(s.device)
        lengths += 1
        done = step.done.to(s.device)
        episode = step.info["final_info"]["episode"]
        r, length = (tensor(episode[name]).to(s.device) for name in ("r", "l"))
        close = torch.allclose(r[done].double(), returns[done], rtol=1e-4, atol=1e-4)
        demand(close, f"step {number}: r {r[done].tolist()}", f"{returns[done].tolist()}")
        same = torch.equal(length[done].long(), lengths[done])
        demand(same, f"step {number}: l {length[done].tolist()}", f"{lengths[done].tolist()}")
        returns[done], lengths[done] = 0.0, 0


@rule(
    RULES, "next-step", "NEXT_STEP: the step after an end gives reward 0, no flag, a new episode."
)
def _next_step(s: Subject) -> None:
    if s.mode is not AutoresetMode.NEXT_STEP:
        return

    def wild(action: Tensor) -> Tensor:
        return torch.where(idle[-1].to(action.device).unsqueeze(-1), torch.inf, action)

    idle = [s.mask()]
    steps = s.play(7, ends=True, given=wild, after=lambda step: idle.append(step.done))
    for number, step in enumerate(steps):
        rows = step.idle.to(tensor(step.reward).device)
        quiet = (tensor(step.reward)[rows] == 0).all() & ~step.done[rows].any()
        demand(quiet, f"step {number}: a reward or flag after the end", "reward 0, both false")
    if s.limit is not None:
        demand(any(bool(step.idle.any()) for step in steps), "no row ended", "ends at the limit")


@rule(
    RULES,
    "disabled",
    "DISABLED: an ended row keeps its observation and is not stepped until reset.",
)
def _disabled(s: Subject) -> None:
    if s.mode is not AutoresetMode.DISABLED or s.limit is None:
        return
    s.env.reset(seed=s.seed)
    s.base.episode_length_buf = torch.where(s.mask(0), s.limit - 1, 0)
    obs, _, terminated, truncated, _ = s.env.step(s.actions(1)[0])
    done = tensor(terminated) | tensor(truncated)
    demand(done[0], "row 0 did not end at the limit", "an end")
    changed = difference(snapshot(s.restart(s.mask())), snapshot(obs))
    demand(not changed, f"a reset of nobody changed {changed}", "the terminal observation")

    def twice() -> None:  # without `validate` the error comes one step late
        for action in s.actions(2):
            s.env.step(action)

    error = demand_error(twice, (ResetNeeded,), "stepping an ended row")
    demand("0" in str(error), f"message {str(error)!r}", "the row's number")
    s.env.reset(seed=s.seed)


@rule(RULES, "time-limit", "An episode is truncated exactly at max_episode_steps.")
def _time_limit(s: Subject) -> None:
    if s.limit is None:
        return
    s.env.reset(seed=s.seed)
    left = min(3, s.limit)
    s.base.episode_length_buf = torch.full((s.n,), s.limit - left, device=s.device)
    gone = s.mask()
    for number, action in enumerate(s.actions(left), start=1):
        _, _, terminated, truncated, _ = s.env.step(action)
        late = tensor(truncated).to(s.device) & ~gone
        demand(number == left or not late.any(), f"truncated {left - number} early", "the limit")
        gone |= tensor(terminated).to(s.device) | late
        if s.mode is AutoresetMode.DISABLED and bool(gone.any()):
            s.restart(gone)
    demand(gone.all(), f"{int((~gone).sum())} row(s) go on beyond the limit", "truncated")


# --- beside step and reset ------------------------------------------------------------------------


@rule(
    RULES, "cached-observations", "get_observations() tells the last boundary and computes nothing."
)
def _cached(s: Subject) -> None:
    if not hasattr(s.base, "get_observations"):
        return
    want = [snapshot(step.obs) for step in s.play(3)]

    def ask(step: Step) -> None:
        once, again = (snapshot(s.base.get_observations()) for _ in range(2))
        changed = difference(once, again)
        demand(not changed, f"asked twice: {changed}", "the same answer")
        if not isinstance(step.obs, dict):
            changed = difference({"/policy": once["/policy"]}, {"/policy": tensor(step.obs)})
            demand(s.env is not s.base or not changed, f"policy: {changed}", "what step returned")

    for step, other in zip(s.play(3, after=ask), want, strict=True):
        changed = difference(snapshot(step.obs), other, close=True)
        demand(not changed, f"asking changes what comes: {changed}", "no effect")


@rule(RULES, "attributes", "call and get_attr return a tuple with an entry for each environment.")
def _attributes(s: Subject) -> None:
    for name in ("call", "get_attr"):
        if hasattr(s.base, name):
            demand_tuple(getattr(s.base, name)("num_envs"), s.n, name)


@rule(RULES, "render", "With a render mode, render returns a tuple of uint8 frames (H, W, 3).")
def _render(s: Subject) -> None:
    if s.env.render_mode is None:
        return
    s.env.reset(seed=s.seed)
    frames = s.env.render()
    for frame in demand_tuple(frames, len(frames), "render"):
        fits = str(frame.dtype) == "uint8" and frame.ndim == 3 and frame.shape[2] == 3
        demand(fits, f"{frame.dtype} {frame.shape}", "uint8 (H, W, 3)")


@rule(RULES, "spec", "Its spec, where it has one, survives JSON.")
def _spec(s: Subject) -> None:
    spec: Any = s.base.spec
    if spec is not None:
        same = spec.from_json(spec.to_json()) == spec
        demand(same, f"another spec than {spec}", "the same after to_json and from_json")

"""How far `mjwarp` and `mujoco` are apart, task by task: same states, actions and seeds.

    python benchmarks/run.py parity [--tiny] [--device cpu]

    model       randomized fields read back, relative difference
    first       first observation of the same seed, and every reward in the first step
    one_step    one control step from the same float32 states, contact included: with the task's
                own solver iterations, and with 50, which lets both solvers converge
    standing    base height after 100 steps of the zero action
    policy      episodes of the shipped policy on both engines (Go2)

Every line says what was found, the tolerance, and whether it holds.
"""

import gymnasium
import torch

import unilab_gym
from unilab_gym.assets import asset_path

GO2 = "UniLab/Go2JoystickFlat-v0"
FIRST, QPOS, QVEL, HEIGHT, REWARD = 1e-4, 2e-6, 2e-4, 5e-3, 1e-3
REWARD_FLOOR = 1e-5
LENGTH_RATIO, VELOCITY = 0.95, 0.05
TINY = [
    {
        "tasks": [GO2],
        "num_envs": 4,
        "steps": 6,
        "standing": 10,
        "converged": False,
        "episodes": 0,
        "limit": None,
    }
]
CASES = [
    {
        "tasks": None,
        "num_envs": 32,
        "steps": 12,
        "standing": 100,
        "converged": True,
        "episodes": 64,
        "limit": None,
    }
]
KEYS = {"check", "task", "passed"}


def make(task, backend, num_envs, device, **kwargs):
    where = device if backend == "mjwarp" else "cpu"
    env = gymnasium.make_vec(task, num_envs=num_envs, backend=backend, device=where, **kwargs)
    return env.unwrapped


def pair(task, num_envs, device, **kwargs):
    return [make(task, name, num_envs, device, **kwargs) for name in ("mujoco", "mjwarp")]


def close(*envs):
    for env in envs:
        env.close()


def groups(env):
    return {name: value.cpu() for name, value in env.runtime.state.obs.items()}


def model_and_first(task, num_envs, device):
    c, w = envs = pair(task, num_envs, device, seed=0)
    for env in envs:
        env.reset(seed=3)
    fields = {}
    for name in c.runtime.backend.spec.model_fields:
        a, b = (env.runtime.backend.get_model_field(name).cpu() for env in envs)
        fields[name] = float(((a - b).abs() / a.abs().clamp(min=1e-6)).max())
    yield {
        "check": "model",
        "fields": fields,
        "tolerance": 1e-5,
        "passed": all(value <= 1e-5 for value in fields.values()),
    }
    first = max(
        float((a - b).abs().max())
        for a, b in zip(groups(c).values(), groups(w).values(), strict=True)
    )
    for env in envs:
        env.step(torch.zeros(num_envs, env.single_action_space.shape[0], device=env.device))
    rewards = {}
    tables = [env.runtime.rt.rewards for env in envs]
    for column, name in enumerate(tables[0].names):
        a, b = (table.values[:, column].cpu() for table in tables)
        limit = REWARD * a.abs() + REWARD_FLOOR
        rewards[name] = float(((a - b).abs() / limit).max())
    yield {
        "check": "first",
        "observation": first,
        "rewards_over_tolerance": rewards,
        "tolerance": FIRST,
        "passed": first <= FIRST and all(value <= 1.0 for value in rewards.values()),
    }
    close(*envs)


def one_step(task, num_envs, steps, device, converged):
    """The 99th percentile is judged, the worst row is told: float32 contact onset differs by more.

    With a task's own iterations only Go2 is judged: where the Newton solvers of G1 run out of
    iterations, they stop at different points.
    """
    limits = {"sim.iterations": 50, "sim.ls_iterations": 50} if converged else {}
    envs = pair(task, num_envs, device, seed=0, overrides=limits)
    c = envs[0]
    for env in envs:
        env.reset(seed=3)
    every = torch.ones(num_envs, dtype=torch.bool)
    generator = torch.Generator().manual_seed(5)
    contacts, apart = 0, {"qpos": [], "qvel": []}
    for _ in range(steps):
        action = torch.rand(num_envs, c.single_action_space.shape[0], generator=generator) * 2 - 1
        state = c.runtime.backend.get_state().float()
        for env in envs:
            backend = env.runtime.backend
            like = backend.get_state()
            backend.set_state(state.to(like.device, like.dtype), every.to(like.device))
            env.step(action.to(env.device))
        live = ~(ended(envs[0]) | ended(envs[1]))
        left, right = (env.runtime.backend.views() for env in envs)
        for name, rows in apart.items():
            difference = getattr(left, name) - getattr(right, name).cpu()
            rows.append(difference[live].abs().amax(1))
        contacts = max(contacts, int(c.runtime.backend.budget_use()[0].max()))
    close(*envs)
    found = {"check": "one_step_converged" if converged else "one_step", "contacts": contacts}
    good = True
    for (name, rows), limit in zip(apart.items(), (QPOS, QVEL), strict=True):
        values = torch.cat(rows)
        share = torch.tensor([0.5, 0.99, 1.0])
        found[name] = torch.quantile(values, share).tolist() if values.numel() else []
        found["rows"] = values.numel()
        found[f"{name}_beyond"] = float((values > limit).float().mean())
        good &= values.numel() > 0 and found[name][1] <= limit
    verdict = good if converged or task == GO2 else None
    return found | {"quantiles": [0.5, 0.99, 1.0], "tolerance": [QPOS, QVEL], "passed": verdict}


def ended(env):
    return env.runtime.rt.terminations.done.cpu()


def standing(task, num_envs, steps, device):
    envs = pair(task, num_envs, device, seed=0, play=True)
    if not envs[0].runtime.index.floating:
        close(*envs)
        return None
    for env in envs:
        env.reset(seed=4)
        for _ in range(steps):
            env.step(torch.zeros(num_envs, env.single_action_space.shape[0], device=env.device))
    heights = [env.runtime.backend.views().qpos[:, 2].cpu() for env in envs]
    apart = float((heights[0] - heights[1]).abs().max())
    close(*envs)
    return {
        "check": "standing",
        "steps": steps,
        "height": float(heights[0].mean()),
        "apart": apart,
        "tolerance": HEIGHT,
        "passed": apart <= HEIGHT,
    }


def policy(task, episodes, limit, device):
    from unilab_gym.export.onnx import load_policy

    actor = load_policy(asset_path("policies/go2/policy.onnx"))
    reports = {}
    for name in ("mujoco", "mjwarp"):
        where = device if name == "mjwarp" else "cpu"
        env = gymnasium.make_vec(
            task,
            num_envs=episodes,
            backend=name,
            device=where,
            play=True,
            max_episode_steps=limit,
        )
        reports[name] = unilab_gym.evaluate(env, actor)
        env.close()
    c, w = reports.values()
    errors = {
        key: abs(c.figures[key] - w.figures[key]) for key in ("lin_vel_error", "ang_vel_error")
    }
    ratio = w.mean_length / c.mean_length
    good = ratio >= LENGTH_RATIO and all(value <= VELOCITY for value in errors.values())
    return {
        "check": "policy",
        "episodes": episodes,
        "length_ratio": ratio,
        "figures": {name: dict(report.figures) for name, report in reports.items()},
        "apart": errors,
        "tolerance": [LENGTH_RATIO, VELOCITY],
        "passed": good,
    }


def checks(task, num_envs, steps, device, sizes):
    yield from model_and_first(task, num_envs, device)
    yield one_step(task, num_envs, steps, device, converged=False)
    if sizes["converged"]:
        yield one_step(task, num_envs, steps, device, converged=True)
    yield standing(task, num_envs, sizes["standing"], device)
    if task == GO2 and sizes["episodes"]:
        yield policy(task, sizes["episodes"], sizes["limit"], device)


def run(tasks, num_envs, steps, device="cpu", **sizes):
    for task in tasks or unilab_gym.task_ids():
        for line in checks(task, num_envs, steps, device, sizes):
            if line is not None:
                yield {"task": task, **line}

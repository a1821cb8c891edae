"""Do the default contact and constraint budgets of `mjwarp` hold under random actions?

    python benchmarks/run.py budgets [--tiny]

demand      contacts and constraint rows that MuJoCo C makes, against what `mjwarp` allocates
counters    the same task on `mjwarp` (its CPU device unless --device cuda): its overflow counters
"""

import gymnasium

import unilab_gym
from unilab_gym.backends.sizing import measure

GO2 = "UniLab/Go2JoystickFlat-v0"
CAUSES = ("contact_pool_overflow", "constraint_overflow")
TINY = [{"tasks": [GO2], "num_envs": 4, "steps": 4, "warp_envs": 4, "warp_steps": 4}]
CASES = [{"tasks": None, "num_envs": 4096, "steps": 500, "warp_envs": 64, "warp_steps": 500}]
KEYS = {"check", "task", "passed"}


def demand(task, num_envs, steps, budgets):
    env = gymnasium.make_vec(task, num_envs=num_envs, backend="mujoco").unwrapped
    sizes = measure(env, task, steps, seed=0)
    env.close()
    fits = sizes.contacts.max <= budgets["nconmax"] and sizes.constraints.max <= budgets["njmax"]
    return {
        "check": "demand",
        "contacts": vars(sizes.contacts),
        "constraints": vars(sizes.constraints),
        "pool": sizes.pool,
        "budgets": budgets,
        "passed": fits,
    }


def counters(env, task, steps):
    sizes = measure(env, task, steps, seed=0)
    totals = env.runtime.fault_totals()
    return {
        "check": "counters",
        "device": env.device.type,
        "contacts": vars(sizes.contacts),
        "constraints": vars(sizes.constraints),
        "faults": {name: count for name, count in totals.items() if count},
        "passed": not any(totals[name] for name in CAUSES),
    }


def run(tasks, num_envs, steps, warp_envs, warp_steps, device="cpu"):
    for task in tasks or unilab_gym.task_ids():
        env = gymnasium.make_vec(task, num_envs=warp_envs, backend="mjwarp", device=device)
        env = env.unwrapped
        data = env.runtime.backend.data
        budgets = {"nconmax": int(data.naconmax) // warp_envs, "njmax": int(data.njmax)}
        yield {"task": task, **counters(env, task, warp_steps)}
        env.close()
        yield {"task": task, **demand(task, num_envs, steps, budgets)}

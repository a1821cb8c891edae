"""How a step's cost grows with the number of environments, and how long a start takes.

python benchmarks/run.py scaling [--tiny]

steps       us per environment step and physics share at each N, on `mujoco`
startup     a fresh process at N=1024: import, build, reset and first step; the sum must stay below
            5 s. Beside it the CPU time of the process, which other users of the machine do not move
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import torch

import unilab_gym

ROOT = Path(__file__).resolve().parents[1]
GO2 = "UniLab/Go2JoystickFlat-v0"
STARTUP_BAR_S = 5.0
TINY = [{"tasks": [GO2], "sizes": [2, 8], "env_steps": 64, "startup": True, "bar_s": None}]
CASES = [
    {
        "tasks": None,
        "sizes": [1, 16, 64, 256, 1024, 4096],
        "env_steps": 40_000,
        "startup": True,
        "bar_s": STARTUP_BAR_S,
    }
]
KEYS = {"check", "task"}
START = """
import json, time
begin = time.perf_counter()
import torch
torch_s = time.perf_counter() - begin
import gymnasium, unilab_gym
imported = time.perf_counter()
env = gymnasium.make_vec({task!r}, num_envs=1024, backend="mujoco")
env.reset(seed=0)
built = time.perf_counter()
env.step(torch.zeros(env.action_space.shape))
stepped = time.perf_counter()
print(json.dumps({{"import_s": imported - begin, "build_s": built - imported,
                   "first_step_s": stepped - built, "total_s": stepped - begin,
                   "torch_import_s": torch_s, "cpu_s": time.process_time()}}))
"""


def measure(task, num_envs, env_steps):
    torch.set_num_threads(1)
    env = gymnasium.make_vec(task, num_envs=num_envs, backend="mujoco", seed=0)
    env.reset(seed=0)
    generator = torch.Generator().manual_seed(0)
    steps = max(3, env_steps // num_envs)
    engine = env.unwrapped.runtime.backend
    physics, step = 0.0, engine.step

    def timed(*arguments):
        nonlocal physics
        start = time.perf_counter()
        receipt = step(*arguments)
        physics += time.perf_counter() - start
        return receipt

    engine.step = timed
    for _ in range(3):
        env.step(torch.zeros(env.action_space.shape))
    physics = 0.0
    start = time.perf_counter()
    for _ in range(steps):
        env.step(torch.randn(env.action_space.shape, generator=generator))
    seconds = time.perf_counter() - start
    env.close()
    return {
        "check": "steps",
        "num_envs": num_envs,
        "us_per_env_step": round(1e6 * seconds / steps / num_envs, 3),
        "physics_share": round(physics / seconds, 4),
        "passed": None,
    }


def start(task, bar_s):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", START.format(task=task)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    seconds = {key: round(value, 3) for key, value in json.loads(done.stdout).items()}
    passed = None if bar_s is None else seconds["total_s"] <= bar_s
    return {
        "check": "startup",
        **seconds,
        "bar_s": bar_s,
        "passed": passed,
    }


def run(tasks, sizes, env_steps, startup, bar_s):
    for task in tasks or unilab_gym.task_ids():
        for num_envs in sizes:
            yield {"task": task, **measure(task, num_envs, env_steps)}
        if startup:
            yield {"task": task, **start(task, bar_s)}

"""What only a CUDA machine can show about `mjwarp`, task by task, one JSON line a check.

    python benchmarks/run.py gpu_acceptance --device cuda
    python benchmarks/run.py gpu_acceptance --device cuda --task UniLab/Go2JoystickFlat-v0
    python benchmarks/run.py gpu_acceptance --device cpu --tiny      # does the script run

    build       seconds to build the environment, the first time with kernel compilation where
                this machine has not cached them, and the second time
    tests       `pytest -m cuda`
    no_waiting  `torch.cuda.set_sync_debug_mode("error")` over steps with resets; on the CPU the
                count of operations that would have waited
    speed       environment steps a second beside physics alone (`backend.step`), interleaved
    parity      one control step against `mujoco`, from the same states
    overflow    fault counters over random steps: the default budgets must hold
    memory      bytes in use

Every check runs even if one before it failed; `passed` is false there and says why.
"""

import contextlib
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import torch
from helpers.opcount import count_ops

import unilab_gym

ROOT = Path(__file__).resolve().parents[1]
GO2 = "UniLab/Go2JoystickFlat-v0"
PARITY_QPOS, PARITY_QVEL = 1e-4, 5e-3
"""CUDA orders sums as it likes; on the CPU device `parity` holds the tighter figures."""
OPERATIONS = {GO2: 210, "UniLab/G1WalkFlat-v0": 210, "UniLab/G1MotionTracking-v0": 265}
"""Bars on the operations of a step, resets included."""
NOT_PHYSICS = 0.20
"""Bar on the share of a step that is not physics, on a GPU that is busy."""
CASES = [
    {
        "task": task,
        "device": "cuda",
        "num_envs": 4096,
        "steps": 500,
        "sync_steps": 100,
        "rounds": 10,
        "tests": ["tests"] if task == GO2 else [],
    }
    for task in sorted(unilab_gym.task_ids(), key=lambda name: name != GO2)
]
TINY = [
    {
        "task": GO2,
        "device": "cpu",
        "num_envs": 4,
        "steps": 5,
        "sync_steps": 5,
        "rounds": 2,
        "tests": ["tests/backends/test_mjwarp_cuda.py"],
    }
]
KEYS = {"check", "task", "passed", "seconds"}


class Machine:
    """The environment under test and what differs between devices."""

    def __init__(self, task, device, num_envs):
        self.task = task
        self.device, self.num_envs = torch.device(device), num_envs
        self.cuda = self.device.type == "cuda"
        self.env = None

    def make(self, num_envs=None, **kwargs):
        kwargs = {"backend": "mjwarp", "device": str(self.device), "seed": 0} | kwargs
        return gymnasium.make_vec(self.task, num_envs=num_envs or self.num_envs, **kwargs)

    def actions(self, count, seed=0):
        """Random actions `[count, N, A]` in the box, on the device."""
        generator = torch.Generator().manual_seed(seed)
        box = self.env.unwrapped.runtime.rt.actions.box.cpu()
        values = torch.rand(count, self.num_envs, box.numel(), generator=generator) * 2 - 1
        return (values * box).to(self.device)

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()


def build(machine, **_):
    start = time.perf_counter()
    machine.env = machine.make()
    machine.env.reset(seed=0)
    machine.synchronize()
    first = time.perf_counter() - start
    start = time.perf_counter()
    again = machine.make()
    again.reset(seed=0)
    machine.synchronize()
    second = time.perf_counter() - start
    again.close()
    same = machine.env.unwrapped.device == again.device
    return {"first_s": round(first, 2), "second_s": round(second, 2), "passed": same}


def tests(machine, tests, **_):
    if not tests:
        return {"summary": ["run with another task"], "passed": None}
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    summary = done.stdout.strip().splitlines()[-1:] or done.stderr.strip().splitlines()[-1:]
    return {"summary": summary, "passed": done.returncode == 0}


def no_waiting(machine, sync_steps, **_):
    env, n = machine.env, machine.num_envs
    steps = machine.actions(sync_steps)
    env.step(steps[0])
    # Time limits of some rows in every one of the next steps, of all rows in one of them.
    last = env.unwrapped.runtime.max_episode_steps - 1
    env.episode_length_buf = last - torch.arange(n, device=machine.device) % sync_steps
    ended = torch.zeros((), dtype=torch.int64, device=machine.device)
    machine.synchronize()
    if machine.cuda:
        torch.cuda.set_sync_debug_mode("error")
        try:
            for action in steps:
                _, _, terminated, truncated, _ = env.step(action)
                ended += (terminated | truncated).sum()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return {"steps": sync_steps, "ended": int(ended), "passed": int(ended) > 0}
    counts = []
    for action in steps:
        counts.append(count_ops(lambda action=action: env.step(action)))
        ended += int(env.extras["log"]["episode/ended"])
    waits = sum(c["sync"] + c["host"] + c["upload"] for c in counts)
    most = max(c["nonview"] for c in counts)
    good = waits == 0 and most <= OPERATIONS.get(machine.task, most) and int(ended) > 0
    return {
        "steps": sync_steps,
        "ended": int(ended),
        "waits": waits,
        "operations": most,
        "passed": good,
    }


def speed(machine, rounds, **_):
    """Medians of interleaved rounds of ten steps."""
    env = machine.env
    backend, ctrl = env.runtime.backend, env.runtime.rt.actions.ctrl
    results = []
    for action_set in machine.actions(10 * rounds, seed=1).unflatten(0, (rounds, 10)):
        machine.synchronize()
        start = time.perf_counter()
        for action in action_set:
            env.step(action)
        machine.synchronize()
        middle = time.perf_counter()
        for _ in action_set:
            backend.step(ctrl, None)
        machine.synchronize()
        results.append((middle - start, time.perf_counter() - middle))
        env.reset()
    whole, physics = (statistics.median(column) for column in zip(*results, strict=True))
    rate = 10 * machine.num_envs
    numbers = {
        "env_steps_per_s": round(rate / whole),
        "physics_steps_per_s": round(rate / physics),
        "not_physics_share": round(1 - physics / whole, 4),
    }
    good = 1 - physics / whole <= NOT_PHYSICS if machine.cuda else None
    return numbers | {"bar": NOT_PHYSICS, "passed": good}


def parity(machine, **_):
    """From states of `mujoco` after random steps, in float32; rows that end do not count."""
    n = min(machine.num_envs, 64)
    w = machine.make(num_envs=n)
    c = machine.make(num_envs=n, backend="mujoco", device="cpu")
    c.reset(seed=3), w.reset(seed=3)
    starts = (w.state().cpu() - c.state()).abs().max()
    steps = machine.actions(8, seed=2)[:, :n]
    for action in steps[:-1]:
        c.step(action.cpu() * 0.3)
    state = c.runtime.backend.get_state().float()
    c.runtime.backend.set_state(state.double(), torch.ones(n, dtype=torch.bool))
    every = torch.ones(n, dtype=torch.bool, device=machine.device)
    w.runtime.backend.set_state(state.to(machine.device), every)
    ended = c.step(steps[-1].cpu() * 0.3)[2]
    ended |= w.step(steps[-1] * 0.3)[2].cpu()
    live = ~ended
    left, right = c.runtime.backend.views(), w.runtime.backend.views()
    qpos = float((left.qpos - right.qpos.cpu())[live].abs().max())
    qvel = float((left.qvel - right.qvel.cpu())[live].abs().max())
    fields = max(
        float((a.cpu() - b).abs().max())
        for a, b in (
            (w.runtime.backend.get_model_field(name), c.runtime.backend.get_model_field(name))
            for name in c.runtime.backend.spec.model_fields
        )
    )
    c.close(), w.close()
    good = qpos <= PARITY_QPOS and qvel <= PARITY_QVEL and float(starts) <= 1e-4
    return {
        "rows": int(live.sum()),
        "first_observation": float(starts),
        "qpos": qpos,
        "qvel": qvel,
        "model_fields": fields,
        "passed": good and bool(live.any()),
    }


def overflow(machine, steps, **_):
    env = machine.env
    before = env.runtime.fault_totals()
    for action in machine.actions(steps, seed=3):
        env.step(action)
    counts = {name: total - before[name] for name, total in env.runtime.fault_totals().items()}
    budgets = ("constraint_overflow", "contact_pool_overflow")
    return {
        "steps": steps,
        "faults": {name: count for name, count in counts.items() if count},
        "passed": not any(counts[name] for name in budgets),
    }


def memory(machine, **_):
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    found = {"host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if machine.cuda:
        free, total = torch.cuda.mem_get_info()
        found["device_used_bytes"] = total - free
        found["torch_peak_bytes"] = torch.cuda.max_memory_allocated()
        found["device_bytes_per_env"] = round((total - free) / machine.num_envs)
    return found | {"passed": True}


CHECKS = (build, tests, no_waiting, speed, parity, overflow, memory)


def run(task, device, num_envs, **sizes):
    machine = Machine(task, device, num_envs)
    for check in CHECKS:
        started = time.perf_counter()
        try:
            # The engine's own lines ("no CUDA driver") are not part of the report.
            with contextlib.redirect_stdout(sys.stderr):
                numbers = check(machine, **sizes)
        except Exception as error:  # the other checks still have something to say
            numbers = {"error": f"{type(error).__name__}: {error}"[:500], "passed": False}
        seconds = round(time.perf_counter() - started, 2)
        yield {"task": task, "check": check.__name__, **numbers, "seconds": seconds}
    if machine.env is not None:
        machine.env.close()

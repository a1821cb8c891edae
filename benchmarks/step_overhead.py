"""What a step of Go2 costs beside its physics, per environment step, on the CPU.

Time outside `backend.step` with one torch thread, standard normal actions and resets as they
come, after a warm-up. After each round of steps comes bare physics from the same states with the
same controls:
`step(nstep=4, stage=VEL)` of a shared `mujoco.batch.Batch` of the same model with the same
threads, randomized fields and bound outputs.

    outside_us   reward, observations, resets, the face ...: everything but `backend.step`
    engine_us    `backend.step`: bare physics, copies in and out, fault checks
    bare_us      bare physics alone
    bare_share   bare_us / (outside_us + engine_us): how much of a step is physics

Numbers are medians over rounds; the quartiles show how quiet the machine was.
"""

import statistics
import time

import gymnasium
import mujoco
import numpy as np
import torch
from helpers.opcount import count_ops
from mujoco.batch import MODEL_FIELDS, Batch

import unilab_gym
from unilab_gym.backends.mujoco import usable_cpus

TASK = "UniLab/Go2JoystickFlat-v0"
BAR_US = {1024: 3.0, 4096: 3.5}
"""The bars on `outside_us`."""
OPERATIONS = 210
"""Operations of a step that are not views, resets included."""
KEYS = {
    "outside_us",
    "engine_us",
    "bare_us",
    "bare_share",
    "bar_us",
    "operations",
    "waits",
    "moved",
    "passed",
}
CASES = [
    {"num_envs": 1024, "rounds": 11, "steps": 20, "warmup": 60},
    {"num_envs": 4096, "rounds": 11, "steps": 5, "warmup": 60},
]
TINY = [{"num_envs": 8, "rounds": 2, "steps": 3, "warmup": 3}]


def addresses(env):
    """Where every persistent tensor lies."""
    runtime = env.unwrapped.runtime
    views = runtime.backend.views()
    tensors = {**runtime.rt.state.rows, "qpos": views.qpos, "qvel": views.qvel}
    tensors |= {f"obs/{name}": value for name, value in runtime.state.obs.items()}
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


class Timer:
    """Wraps a callable and adds up its wall time."""

    def __init__(self, call):
        self.call, self.seconds = call, 0.0

    def __call__(self, *args):
        start = time.perf_counter()
        try:
            return self.call(*args)
        finally:
            self.seconds += time.perf_counter() - start

    def take(self):
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def bare_batch(backend, threads):
    """A batch like the backend's own: the same values per environment, the same outputs bound."""
    spec = backend.spec
    batch = Batch(spec.model, spec.num_envs, nthread=threads, persistent=False)
    for name in MODEL_FIELDS:
        values = backend.batch.expanded(name)
        if values is not None:
            batch.expand(name)[:] = values
    for item in backend._plan.step:
        batch.bind(item.field)
    return batch


def run(num_envs, rounds, steps, warmup, threads=None):
    assert unilab_gym  # registers the id
    torch.set_num_threads(1)
    threads = threads or usable_cpus()
    env = gymnasium.make_vec(
        TASK, num_envs=num_envs, backend="mujoco", seed=0, overrides={"sim.num_threads": threads}
    )
    env.reset(seed=0)
    generator = torch.Generator().manual_seed(0)
    # Staggered starts, so that time limits come as they would in a long training.
    env.episode_length_buf = torch.randint(0, 1000, (num_envs,), generator=generator)

    def action():  # what an untrained policy of initial standard deviation 1 sends
        return torch.randn(num_envs, 12, generator=generator)

    places = addresses(env)
    for _ in range(warmup):
        env.step(action())
    backend = env.runtime.backend
    bare = bare_batch(backend, threads)
    engine = backend.step = Timer(backend.step)
    step = Timer(env.step)
    physics = Timer(lambda: bare.step(nstep=4, stage=mujoco.mjtStage.mjSTAGE_VEL))
    state, ctrl = backend.batch.state, env.runtime.rt.actions.ctrl.numpy()
    states, controls = np.empty((steps, *state.shape)), np.empty((steps, *ctrl.shape))
    ended, results = 0, []
    for _ in range(rounds):
        given = [action() for _ in range(steps)]
        for number in range(steps):
            states[number] = state
            step(given[number])
            controls[number] = ctrl
            ended += int(env.extras["log"]["episode/ended"])
        for number in range(steps):
            bare.state[:] = states[number]
            bare.bind("ctrl")[:] = controls[number]
            physics()
        results.append((step.take(), engine.take(), physics.take()))
    micro = 1e6 / (steps * num_envs)
    outside = [(total - inside) * micro for total, inside, _ in results]
    engine_us = [inside * micro for _, inside, _ in results]
    bare_us = [seconds * micro for _, _, seconds in results]
    last = action()
    ops = count_ops(lambda: env.step(last))
    moved = sorted(name for name, place in addresses(env).items() if places.get(name) != place)
    env.close()
    quartiles = statistics.quantiles(outside, n=4)
    numbers = {
        "outside_us": statistics.median(outside),
        "outside_us_quartiles": [quartiles[0], quartiles[2]],
        "engine_us": statistics.median(engine_us),
        "bare_us": statistics.median(bare_us),
        "bare_share": statistics.median(
            bare / (out + inside)
            for out, inside, bare in zip(outside, engine_us, bare_us, strict=True)
        ),
    }
    bar = BAR_US.get(num_envs)
    waits = ops["sync"] + ops["host"] + ops["upload"]
    good = ops["nonview"] <= OPERATIONS and not waits and not moved
    yield {
        **{
            key: [round(x, 4) for x in value] if isinstance(value, list) else round(value, 4)
            for key, value in numbers.items()
        },
        "bar_us": bar,
        "passed": good and (bar is None or numbers["outside_us"] <= bar),
        "operations": ops["nonview"],
        "waits": waits,
        "moved": moved,
        "ended_per_step": round(ended / (rounds * steps), 2),
        "torch_threads": torch.get_num_threads(),
        "physics_threads": threads,
    }

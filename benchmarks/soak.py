"""A long run with faults: does memory stay flat, and does each fault stay in its row?

    make soak MINUTES=30                                    # benchmarks/results/soak.json
    python benchmarks/run.py soak --minutes 0.2

Go2 with random actions, resets as they come, the log read in every step and a video recorder on
where something can draw. Every few steps some random rows get a position or velocity that is
not finite. A run passes if

- exactly the broken rows are quarantined, in that very step, and as many faults are counted;
- every observation, terminal observation and reward is finite, broken rows included;
- memory after the warm-up (a fifth of the time) grows by less than 20 MB on the host, and not at
  all on the GPU.
"""

import math
import resource
import sys
import tempfile
import time

import gymnasium
import torch

import unilab_gym

TASK = "UniLab/Go2JoystickFlat-v0"
GROWTH_MB = 20.0
CASES = [{"minutes": 30.0}]
TINY = [{"minutes": 0.03, "num_envs": 8}]
EVERY = 20
"""Steps between injections."""
FILM = 50
"""Steps between frames of the recorder."""


def resident_mb():
    """Memory of this process now; its peak where there is no /proc."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def slope(samples):
    """Least-squares slope of (hours, MB): MB per hour."""
    count = len(samples)
    if count < 2:
        return 0.0
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0


class Breaker:
    """Makes chosen rows' positions or velocities NaN or infinite, and remembers how many."""

    def __init__(self, runtime, seed):
        self._backend, index = runtime.backend, runtime.index
        self._columns = [*range(index.qpos_offset, index.qpos_offset + index.nq)]
        self._columns += range(index.qvel_offset, index.qvel_offset + index.nv)
        self._generator = torch.Generator().manual_seed(seed)
        self.broken = 0

    def _pick(self, high, count=1):
        return torch.randint(high, (count,), generator=self._generator).tolist()

    def __call__(self):
        """Breaks one to four rows; their mask `[N]`."""
        state = self._backend.get_state()
        mask = torch.zeros(state.shape[0], dtype=torch.bool, device=state.device)
        for row in set(self._pick(state.shape[0], 1 + self._pick(4)[0])):
            column = self._columns[self._pick(len(self._columns))[0]]
            state[row, column] = (math.nan, math.inf, -math.inf)[self._pick(3)[0]]
            mask[row] = True
        self._backend.set_state(state, mask)
        self.broken += int(mask.sum())
        return mask


def finite(*values):
    tensors = [t for v in values for t in (v.values() if isinstance(v, dict) else [v])]
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def recorder(env, folder):
    """Films row 0; None where nothing can draw or encode."""
    from unilab_gym.errors import BackendUnavailableError
    from unilab_gym.render import VideoRecorder
    from unilab_gym.render.gl import gl_available

    try:
        path = f"{folder}/soak.mp4"
        film = VideoRecorder(env, path, width=320, height=240, supersample=1)
    except BackendUnavailableError:
        return None
    return film if gl_available() else None


class Memory:
    """Samples of memory after the warm-up."""

    def __init__(self, device, seconds):
        self._cuda = device.type == "cuda"
        self._seconds = seconds
        self._next = 0.2 * seconds
        self.host, self.gpu = [], []

    def sample(self, passed):
        if passed >= self._next:
            self._next += self._seconds / 50
            self.host.append((passed / 3600, resident_mb()))
            if self._cuda:
                self.gpu.append(torch.cuda.memory_allocated())

    def numbers(self):
        values = [mb for _, mb in self.host] or [resident_mb()]
        return {
            "rss_mb": [round(values[0], 1), round(values[-1], 1), round(max(values), 1)],
            "rss_growth_mb": round(max(values) - values[0], 2),
            "rss_slope_mb_per_hour": round(slope(self.host), 2),
            "gpu_growth_bytes": self.gpu[-1] - self.gpu[0] if self.gpu else 0,
        }


def run(minutes, num_envs=256, backend="mujoco", device=None, seed=0):
    assert unilab_gym  # registers the id
    if device == "cuda":
        backend = "mjwarp"
    env = gymnasium.make_vec(
        TASK,
        num_envs=num_envs,
        backend=backend,
        device=device,
        seed=seed,
        obs="dict",
        log_in_info=True,
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            film = recorder(env, folder)
            yield soak(env, film, minutes, seed) | {"backend": backend, "num_envs": num_envs}
            if film is not None:
                film.close()
    finally:
        env.close()


def soak(env, film, minutes, seed):
    """Steps until the time is up; what was found."""
    num_envs, runtime = env.num_envs, env.runtime
    env.reset(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    env.episode_length_buf = torch.randint(0, 1000, (num_envs,), generator=generator)
    breaker = Breaker(runtime, seed)
    nobody = torch.zeros(num_envs, dtype=torch.bool, device=env.device)
    memory, start = Memory(env.device, 60.0 * minutes), time.monotonic()
    steps = ended = leaks = not_finite = 0
    while (passed := time.monotonic() - start) < 60.0 * minutes or steps < EVERY:
        broken = breaker() if steps % EVERY == EVERY - 1 else nobody
        action = torch.randn(num_envs, 12, generator=generator).to(env.device)
        obs, reward, terminated, _, info = env.step(action)
        bad = runtime.rt.faults.bad
        leaks += int((bad != broken).sum() + (broken & ~terminated).sum())
        not_finite += not finite(obs, reward, info["final_obs"])
        ended += int(info["log"]["episode/ended"])
        if film is not None and steps % FILM == 0:
            film.capture()
        memory.sample(passed)
        steps += 1
    causes = {name: count for name, count in runtime.fault_totals().items() if count}
    quarantined = sum(causes.get(name, 0) for name in ("engine_bad_state", "state_nonfinite"))
    numbers = memory.numbers()
    return {
        "minutes": round((time.monotonic() - start) / 60, 2),
        "steps": steps,
        "env_steps": steps * num_envs,
        "episodes": ended,
        "frames": 0 if film is None else film.frames,
        "injected": breaker.broken,
        "causes": causes,
        "rows_wrong": leaks,
        "steps_not_finite": not_finite,
        **numbers,
        "passed": leaks == 0
        and not_finite == 0
        and quarantined == breaker.broken > 0
        and numbers["rss_growth_mb"] < GROWTH_MB
        and numbers["gpu_growth_bytes"] == 0,
    }

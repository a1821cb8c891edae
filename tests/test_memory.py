"""Memory and threads over many steps and many environments (E35), and after Ctrl-C (E58)."""

import gc
import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from helpers.face import ACTIONS, ROOT, make_go2

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")


def resident_mb():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
def test_two_thousand_steps_with_resets_and_logs_keep_their_memory():
    env = make_go2(8, log_in_info=True, obs="dict", max_episode_steps=50)
    env.reset(seed=0)
    generator = torch.Generator().manual_seed(0)
    ended, levels = 0, []
    for step in range(2000):
        *_, info = env.step(torch.randn(8, ACTIONS, generator=generator))
        ended += int(info["log"]["episode/ended"])
        if step % 300 == 199:
            levels.append(resident_mb())
    assert ended > 300
    assert max(levels) - levels[0] < 20
    env.close()


@pytest.mark.slow
def test_twenty_environments_made_and_closed_leave_nothing():
    levels = []
    for turn in range(20):
        env = make_go2(64)
        env.reset(seed=turn)
        env.step(torch.zeros(64, ACTIONS))
        env.close()
        del env
        levels.append(resident_mb())
    assert levels[-1] - levels[2] < 50


CHILD = """
import json, os, signal, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from helpers.face import ACTIONS, make_go2
threads = len(os.listdir("/proc/self/task"))
env = make_go2(512, overrides={"sim.num_threads": 3})
env.reset(seed=0)
action = torch.zeros(512, ACTIONS)
try:
    print("ready", flush=True)
    for _ in range(10**6):
        env.step(action)
    raise SystemExit("nobody interrupted")
except KeyboardInterrupt:
    env.close()
print(json.dumps(len(os.listdir("/proc/self/task")) - threads))
"""


def test_ctrl_c_in_a_step_leaves_no_thread():
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline().strip() == "ready"
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=120)
    finally:
        child.kill()
    assert child.returncode == 0, errors
    assert json.loads(out) == 0

"""The laptop path (N17): a fresh process imports, makes each task on the CPU and steps it."""

import pytest
from helpers.face import run_python

from unilab_gym.registration import task_ids

STEPS = """
import json, sys
import gymnasium, unilab_gym
env = gymnasium.make_vec("unilab_gym:" + TASK, num_envs=4, backend="mujoco")
obs, _ = env.reset(seed=0)
finite = True
for _ in range(100):
    obs, reward, *_ = env.step(env.action_space.sample())
    finite = finite and bool(obs.isfinite().all()) and bool(reward.isfinite().all())
env.close()
import torch
print(json.dumps([finite, list(obs.shape), "warp" in sys.modules, torch.cuda.is_initialized()]))
"""


@pytest.mark.parametrize("task", task_ids())
def test_a_fresh_process_steps_each_task_without_a_gpu(task):
    finite, shape, warp, cuda = run_python(f"TASK = {task!r}\n{STEPS}", CUDA_VISIBLE_DEVICES="")
    assert finite and shape[0] == 4
    assert not warp and not cuda

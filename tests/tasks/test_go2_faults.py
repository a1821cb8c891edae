"""E13 and N01 on Go2: env 5 of 8 becomes non-finite at step 10, and its dump is written."""

import dataclasses
import json

import numpy as np
import torch
from helpers.face import actions, frozen, leaves, same
from helpers.go2 import put

import unilab_gym
from unilab_gym.config import FaultDumpCfg
from unilab_gym.tasks.go2_joystick_flat import env_cfg

N, BAD, STEP, STEPS = 8, 5, 10, 60


def run(cfg, inject):
    env = unilab_gym.make(cfg, N, backend="mujoco", seed=2, log_in_info=True)
    results, logs = [frozen(env.reset(seed=2))], []
    for number, action in enumerate(actions(STEPS + 1, N, scale=1.0)):
        if inject and number == STEP:
            put(env, BAD, velocity=torch.nan)
        *result, info = env.step(action)
        logs.append({name: value.item() for name, value in info.pop("log").items()})
        results.append(frozen((*result, info, env.get_observations())))
    totals = env.runtime.fault_totals()
    env.close()
    return results, logs, totals


def test_one_bad_row_in_sixty_steps(tmp_path):
    cfg = env_cfg()
    dump = FaultDumpCfg(directory=str(tmp_path), steps=50)
    control, _, none = run(cfg, inject=False)
    got, logs, totals = run(dataclasses.replace(cfg, fault_dump=dump), inject=True)
    assert sum(none.values()) == 0
    others = torch.arange(N) != BAD
    for one, two in zip(control, got, strict=True):
        same(one, two, others)
        assert all(leaf.isfinite().all() for _, leaf in leaves(two))
    result = got[STEP + 1]
    terminated, truncated = result["[2]"], result["[3]"]
    assert terminated[BAD] and not truncated[BAD] and result["[1]"][BAD] == 0.0
    assert sum(totals.values()) == 1 and totals["engine_bad_state"] == 1
    assert logs[STEP]["fault/engine_bad_state"] > 0
    assert not any(result["[2]"][BAD] for result in got[STEP + 2 : STEP + 6])  # a fresh episode
    (path,) = tmp_path.iterdir()
    with np.load(path, allow_pickle=False) as file:
        meta = json.loads(str(file["meta"]))
        assert meta["env"] == BAD and meta["causes"] == ["engine_bad_state"]
        assert len(file["state"]) == STEP + 1

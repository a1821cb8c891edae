"""Resuming in another process (E49): stages, ranges, counters, episodes go on bit by bit."""

import torch
from helpers.face import run_python
from helpers.probe import random_actions, started, walker_cfg

from unilab_gym.config import CurriculumTermCfg
from unilab_gym.mdp import curriculums

RESUME = """
import json, torch
from runtime.test_state_process import ENVS, digest, staged_cfg
from helpers.probe import build, random_actions, started
from pathlib import Path
folder = Path(FOLDER)
env = build(staged_cfg(folder), ENVS, seed=77)
env.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
resumed = digest(env)
env.close()
fresh = started(staged_cfg(folder), ENVS, seed=1)
fresh.step(random_actions(fresh, 1)[0])
print(json.dumps([resumed, fresh.log()["curriculum/ranges"].item()]))
"""
ENVS = 5


def staged_cfg(folder):
    """A command range and a reward weight that change at step 1,000."""
    ranges = {"command": "twist", "parameter": "lin_vel_x", "stages": [(1000, (5.0, 6.0))]}
    weights = {"reward": "track", "stages": [(1000, 3.0)]}
    terms = {
        "ranges": CurriculumTermCfg(func=curriculums.CommandRangeStages, params=ranges),
        "weights": CurriculumTermCfg(func=curriculums.RewardWeightStages, params=weights),
    }
    return walker_cfg(folder, episode_length_s=0.4, curriculum=terms)


def digest(env):
    """Everything of the next 50 steps in float64 sums that a changed bit would change."""
    said = []
    for action in random_actions(env, 50, seed=9):
        state = env.step(action)
        sums = [state.reward, *state.obs.values(), env.commands.terms["twist"].value]
        said.append([tensor.double().sum().item() for tensor in sums])
        said[-1].append(env.rt.episode_step.tolist())
    log = env.log()
    return [said, log["curriculum/ranges"].item(), log["curriculum/weights"].item()]


def test_a_curriculum_of_a_thousand_steps_goes_on_in_another_process(tmp_path):
    env = started(staged_cfg(tmp_path), ENVS, seed=1)
    before = env.log()["curriculum/ranges"].item()
    for action in random_actions(env, 1200):
        env.step(action)
    torch.save(env.state_dict(), tmp_path / "state.pt")
    want = digest(env)
    env.close()
    resumed, fresh = run_python(f"FOLDER = {str(tmp_path)!r}\n{RESUME}")
    assert want[1:] == [6.0, 3.0]
    assert resumed == want
    assert fresh == before != 6.0  # without restoring: from the first stage

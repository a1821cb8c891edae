"""Row i of every task is the same bits whatever their number: short reads lie as columns."""

import gymnasium
import pytest
import torch
from helpers.face import frozen

from unilab_gym.registration import task_ids

ROWS, STEPS = 9, 45


def rollout(task, rows):
    """Everything that 45 steps return in chosen rows, with ends and a masked reset."""
    kwargs = {"sampling_mode": "uniform"} if "Tracking" in task else {}  # adaptive bins are shared
    env = gymnasium.make_vec(
        task, len(rows), backend="mujoco", device="cpu", obs="dict", max_episode_steps=17, **kwargs
    )
    width = env.single_action_space.shape[0]
    generator = torch.Generator().manual_seed(1)
    actions = torch.rand(STEPS, ROWS, width, generator=generator) * 2 - 1
    results = [frozen(env.reset(seed=[100 + row for row in rows]))]
    for step, action in enumerate(actions):
        results.append(frozen(env.step(action[rows])))
        if step == 20:
            mask = torch.tensor([row % 2 == 0 for row in rows])
            results.append(frozen(env.reset(options={"reset_mask": mask})))
    env.close()
    return results


@pytest.mark.parametrize("task", task_ids())
def test_row_i_does_not_depend_on_the_number_of_rows(task):
    many = rollout(task, list(range(ROWS)))
    assert sum(int((result["[2]"] | result["[3]"]).sum()) for result in many if "[2]" in result) > 9
    for rows in ([4], [1, 2], [3, 4, 5, 6, 7]):
        for one, all_rows in zip(rollout(task, rows), many, strict=True):
            for path, value in one.items():
                assert torch.equal(value.nan_to_num(), all_rows[path][rows].nan_to_num()), path

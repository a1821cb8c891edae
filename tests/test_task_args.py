"""A task's own arguments: from the command line to the record, and from there to the replay."""

from dataclasses import replace

import pytest
from helpers.motion import write_clip

from unilab_gym.adapters.rsl_rl_train import run_settings
from unilab_gym.adapters.settings import TrainSettings
from unilab_gym.contract import (
    ExperimentTracker,
    replay_owner,
    resolve_sim2sim_config,
    run_record,
)
from unilab_gym.errors import ConfigError, CrossBackendIncompatibleError
from unilab_gym.registration import owner_config, parse_task_args

TASK = "UniLab/G1MotionTracking-v0"


def test_texts_become_arguments():
    given = parse_task_args(("motion=squat,arm_wave", "sampling_mode=start"))
    assert given == {"motion": ("squat", "arm_wave"), "sampling_mode": "start"}
    for text in ("motion", "motion=", "=squat"):
        with pytest.raises(ConfigError, match=f"a task argument is name=value, got '{text}'"):
            parse_task_args((text,))


def test_a_run_keeps_them_for_replay_and_resume(tmp_path):
    motion = str(write_clip(tmp_path, 30))
    settings = TrainSettings(task=TASK, backend="mujoco", task_args=(f"motion={motion}",))
    owner = run_settings(settings, None)
    assert owner.task_kwargs == {"motion": motion}
    assert owner.env.commands["motion"].params["motion"] == motion
    folder = tmp_path / "run"
    ExperimentTracker(folder, owner)
    record = run_record(folder)
    assert record["task_kwargs"] == {"motion": motion}
    again = run_settings(replace(settings, task_args=()), folder)
    assert again.env == owner.env
    target, _ = replay_owner(TASK, "mjwarp", task_kwargs=record["task_kwargs"])
    assert target.env == owner.env


def test_another_reference_is_another_policy_contract(tmp_path):
    """The guard refuses to replay a policy with starts or bodies of another kind."""
    owner = owner_config(TASK, "mujoco", sampling_mode="uniform")
    ExperimentTracker(tmp_path / "run", owner)
    other, _ = replay_owner(TASK, "mujoco")
    with pytest.raises(CrossBackendIncompatibleError, match="sampling_mode"):
        resolve_sim2sim_config(tmp_path / "run", other)

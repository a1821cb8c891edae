"""Unitree G1 tracks reference motions without state estimation.

As `g1_motion_tracking`, but the policy sees neither the anchor's position error nor the base's
linear velocity.
"""

from __future__ import annotations

from unilab_gym.config import OwnerCfg
from unilab_gym.registration import Task
from unilab_gym.tasks.g1_motion_tracking import OUTCOME, tracking_owner


def owner(
    backend: str, *, motion: str | tuple[str, ...] = "squat", sampling_mode: str = "adaptive"
) -> OwnerCfg:
    """The task's configuration."""
    return tracking_owner(
        TASK.id, backend, motion=motion, sampling_mode=sampling_mode, state_estimation=False
    )


TASK = Task(
    id="UniLab/G1MotionTrackingNoState-v0",
    backends=("mujoco", "mjwarp"),
    owner=owner,
    outcome=OUTCOME,
    summary="Unitree G1 tracks reference motions without state estimation (154 observations)",
)

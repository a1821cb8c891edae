"""What the shipped engines can honour; readable without importing an engine."""

from __future__ import annotations

from collections.abc import Mapping

from unilab_gym.backends.base import Capabilities

CAPABILITIES: Mapping[str, Capabilities] = {
    "mujoco": Capabilities(name="mujoco", device_types=("cpu",), bitwise_deterministic=True),
    "mjwarp": Capabilities(name="mjwarp", device_types=("cuda", "cpu")),
}
"""By name of the backend."""

"""What a training run can be told, apart from the library that trains: importing it is cheap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GO2 = "UniLab/Go2JoystickFlat-v0"


@dataclass(frozen=True)
class TrainSettings:
    """Train a policy with rsl_rl's PPO; ends with a verified ONNX file.

    A run folder RUN_ROOT/<task>/<date>_<seed>/ holds run_config.json (configuration and policy
    contract), model_*.pt (checkpoints), events* (TensorBoard), policy.onnx and run_summary.json.
    """

    task: str = GO2
    """Registered id."""
    backend: str = "auto"
    """auto, mujoco or mjwarp."""
    device: str | None = None
    """cpu, cuda, cuda:1 ...; by default what the backend takes."""
    num_envs: int | None = None
    """Parallel environments; by default the task's."""
    iterations: int | None = None
    """Iterations in all, a resumed run's earlier ones included; by default the task's."""
    seed: int | None = None
    """Seed of environments and learner; by default the task's."""
    task_args: tuple[str, ...] = ()
    """The task's own arguments as name=value (commas make a list), for example
    motion=weight_shift sampling_mode=uniform; a resumed run keeps its own."""
    run_root: Path = Path("runs")
    """Folder of all runs."""
    resume: str | None = None
    """Go on with a run: "latest", its folder or one of its checkpoints; settings are the run's.
    From the newest checkpoint the environments go on, too: counters, curricula, episodes."""
    save_interval: int = 40
    """Iterations between two checkpoints."""

"""Reads the learning curve out of a run folder: JSON of one point for every ten iterations.

python benchmarks/results/curve.py runs/TASK/RUN > benchmarks/results/NAME.json
"""

import json
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TAGS = ("episode/return", "episode/length", "Policy/mean_std")


def curve(run, every=10):
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    found = events.Tags()["scalars"]
    tags = [tag for tag in found if tag in TAGS or tag.startswith(("metric/", "command/"))]
    series = {tag: [point.value for point in events.Scalars(tag)] for tag in tags}
    summary = json.loads((run / "run_summary.json").read_text())
    record = json.loads((run / "run_config.json").read_text())
    training = record["config"]["training"]
    count = min(len(values) for values in series.values())
    steps = summary["totals"]["env_steps"] // summary["totals"]["iterations"]
    points = []
    for end in range(every, count + 1, every):
        window = {tag: values[end - every : end] for tag, values in series.items()}
        means = {tag: round(sum(values) / every, 4) for tag, values in window.items()}
        points.append({"env_steps": end * steps, **means})
    return {
        "task": record["run"]["task"],
        "arguments": record["config"].get("task_kwargs", {}),
        "backend": training["sim_backend"],
        "num_envs": training["num_envs"],
        "seed": training["seed"],
        "totals": summary["totals"],
        "env_steps_per_sec": summary["env_steps_per_sec"],
        "checkpoints": sorted(int(p.stem.split("_")[1]) for p in run.glob("model_*.pt")),
        "hardware": summary["hardware"],
        "versions": summary["versions"],
        "points": points,
    }


if __name__ == "__main__":
    print(json.dumps(curve(Path(sys.argv[1])), indent=1))

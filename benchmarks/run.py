"""Runs one benchmark and prints JSON lines.

    python benchmarks/run.py step_overhead [--tiny]
    python benchmarks/run.py gpu_acceptance --device cuda

A benchmark is a module beside this one: `CASES` and `TINY` are lists of keyword arguments, and
`run(**case)` yields one dict of numbers for each line. Every line names the benchmark, its case,
the versions and the machine. The exit status is 1 where a line says `"passed": false`.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("unilab-gym", "torch", "mujoco", "mujoco-warp", "warp-lang", "gymnasium", "numpy")


def versions():
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    if found["unilab-gym"] is None:  # run from a checkout that is not installed
        import unilab_gym

        found["unilab-gym"] = unilab_gym.__version__
    return found


def hardware():
    import torch

    from unilab_gym.backends.mujoco import usable_cpus

    facts = {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "usable_cpus": usable_cpus(),
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
    if hasattr(os, "getloadavg"):
        facts["load_average"] = round(os.getloadavg()[0], 2)  # of the last minute: who else ran
    return facts


def cpu_name():
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def main():
    names = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem != "run")
    parser = argparse.ArgumentParser(description="Runs a benchmark and prints JSON lines.")
    parser.add_argument("name", choices=names)
    parser.add_argument("--tiny", action="store_true", help="small sizes: does it run at all")
    parser.add_argument("--device", help="where the benchmark takes one: cuda or cpu")
    parser.add_argument("--minutes", type=float, help="where the benchmark takes a time")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/NAME.json")
    arguments = parser.parse_args()
    for folder in (ROOT / "tests", ROOT):  # helpers.opcount; the package, where not installed
        sys.path.insert(0, str(folder))
    module = importlib.import_module(arguments.name)
    common = {"name": arguments.name, "versions": versions(), "hardware": hardware()}
    given = {"device": arguments.device, "minutes": arguments.minutes}
    given = {name: value for name, value in given.items() if value is not None}
    lines = []
    for case in module.TINY if arguments.tiny else module.CASES:
        case = {**case, **given}
        for numbers in module.run(**case):
            lines.append({**common, "case": case, **numbers})
            print(json.dumps(lines[-1]), flush=True)
    if arguments.save:
        folder = ROOT / "benchmarks" / "results"
        folder.mkdir(exist_ok=True)
        (folder / f"{arguments.name}.json").write_text(json.dumps(lines, indent=1) + "\n")
    sys.exit(int(any(line.get("passed") is False for line in lines)))


if __name__ == "__main__":
    main()

"""Runs one benchmark and prints JSON lines.

    python benchmarks/run.py step_overhead [--tiny]
    python benchmarks/run.py gpu_acceptance --device cuda
    python benchmarks/run.py smoke                          # `make bench-smoke`

A benchmark is a module beside this one: `CASES` and `TINY` are lists of keyword arguments,
`KEYS` what every line holds, and `run(**case)` yields one dict of numbers for each line. Every
line names the benchmark, its case, the versions and the machine. The exit status is 1 where a line
says `"passed": false` or lacks a key.

`smoke` runs every benchmark at its tiny size on the CPU. There a line fails for what does not
depend on the machine: operations, waits for the device, tensors that moved; never for seconds.
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
    parser.add_argument("name", choices=[*names, "smoke"])
    parser.add_argument("--tiny", action="store_true", help="small sizes: does it run at all")
    parser.add_argument("--device", help="where the benchmark takes one: cuda or cpu")
    parser.add_argument("--task", help="only this id, where the benchmark runs several")
    arguments = parser.parse_args()
    for folder in (ROOT / "tests", ROOT):  # helpers.opcount; the package, where not installed
        sys.path.insert(0, str(folder))
    tiny, chosen = arguments.tiny, [arguments.name]
    if arguments.name == "smoke":
        tiny, chosen = True, names
    failures = [line for name in chosen for line in run_one(name, tiny, arguments)]
    for line in failures:
        print(f"failed: {line}", file=sys.stderr)
    sys.exit(int(bool(failures)))


def run_one(name, tiny, arguments):
    """Prints the lines of one benchmark; yields what is wrong with them."""
    module = importlib.import_module(name)
    if tiny and not hasattr(module, "TINY"):  # a soak: it has no small form
        return
    common = {"name": name, "versions": versions(), "hardware": hardware()}
    lines = 0
    for case in module.TINY if tiny else module.CASES:
        if arguments.device is not None:
            case = {**case, "device": arguments.device}
        if arguments.task is not None and case.get("task", arguments.task) != arguments.task:
            continue
        if arguments.task is not None and "tasks" in case:
            case = {**case, "tasks": [arguments.task]}
        for numbers in module.run(**case):
            lines += 1
            print(json.dumps({**common, "case": case, **numbers}), flush=True)
            if numbers.get("passed") is False:
                yield f"{name}: {json.dumps(numbers)}"
            if missing := sorted(getattr(module, "KEYS", set()) - numbers.keys()):
                yield f"{name}: a line lacks {missing}"
    if not lines:
        yield f"{name}: printed nothing"


if __name__ == "__main__":
    main()

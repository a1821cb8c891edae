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
    parser.add_argument("--minutes", type=float, help="where the benchmark takes a time")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/NAME.json")
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


def cases(module, tiny, arguments):
    """The module's cases with what was given on the command line."""
    given = {"device": arguments.device, "minutes": arguments.minutes}
    given = {name: value for name, value in given.items() if value is not None}
    for case in module.TINY if tiny else module.CASES:
        case = {**case, **given}
        if arguments.task is not None:
            if case.get("task", arguments.task) != arguments.task:
                continue
            if "tasks" in case:
                case["tasks"] = [arguments.task]
        yield case


def run_one(name, tiny, arguments):
    """Prints the lines of one benchmark; yields what is wrong with them."""
    module = importlib.import_module(name)
    common = {"name": name, "versions": versions(), "hardware": hardware()}
    lines = []
    for case in cases(module, tiny, arguments):
        for numbers in module.run(**case):
            lines.append({**common, "case": case, **numbers})
            print(json.dumps(lines[-1]), flush=True)
            if numbers.get("passed") is False:
                yield f"{name}: {json.dumps(numbers)}"
            if missing := sorted(getattr(module, "KEYS", set()) - numbers.keys()):
                yield f"{name}: a line lacks {missing}"
    if not lines:
        yield f"{name}: printed nothing"
    if arguments.save:
        folder = ROOT / "benchmarks" / "results"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""`doctor`: versions, driver, CUDA, Warp, GL, and what works on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unilab_gym.cli import FAILED, OK, print_json
from unilab_gym.cli.arguments import Doctor
from unilab_gym.cli.text import table

_NEEDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "training with rsl_rl": (("rsl_rl", "tensordict"), "examples"),
    "ONNX export": (("onnx", "onnxscript"), "export"),
    "ONNX replay": (("onnxruntime",), ""),
    "plots": (("matplotlib",), "render"),
}
"""What works -> the modules that it needs and the extra that brings them."""


def doctor(args: Doctor) -> int:
    """Looks at the machine; 1 where the mujoco backend does not work."""
    report = examine()
    if args.json:
        print_json(report)
    else:
        print(_text(report))
    return OK if report["works"]["mujoco backend"]["ok"] else FAILED


def examine() -> dict[str, Any]:
    """Everything that `doctor` says, as plain data."""
    from unilab_gym.contract.tracker import hardware, versions

    works: dict[str, dict[str, Any]] = {
        "mujoco backend": _tried(_step_mujoco),
        "mjwarp backend on the CPU": _tried(_warp_imports),
        "mjwarp backend on CUDA": _tried(_warp_cuda),
        **{name: _modules(*needs) for name, needs in _NEEDS.items()},
        "frames without a display": _tried(_gl),
        "videos": _tried(_ffmpeg),
    }
    return {
        "versions": versions(),
        "machine": hardware(),
        "cuda": _tried(_cuda),
        "warp": _tried(_warp),
        "works": works,
    }


def _tried(probe: Callable[[], Any]) -> dict[str, Any]:
    """A probe's finding; whatever it raises is the answer, not an error."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return {"ok": True, "detail": probe()}
    except Exception as error:  # drivers and libraries fail in every way there is
        return {"ok": False, "detail": f"{error}" or type(error).__name__}


def _modules(names: tuple[str, ...], extra: str) -> dict[str, Any]:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if not missing:
        return {"ok": True, "detail": ", ".join(names)}
    how = f'pip install "unilab_gym[{extra}]"' if extra else f"pip install {' '.join(missing)}"
    return {"ok": False, "detail": f"{', '.join(missing)} not installed: {how}"}


def _step_mujoco() -> str:
    import torch

    from unilab_gym.config import EnvCfg
    from unilab_gym.factory import make
    from unilab_gym.registration import owner_config, task_ids

    task = task_ids()[0]
    cfg: EnvCfg = owner_config(task, "mujoco").env
    env = make(cfg, 2, backend="mujoco")
    try:
        env.reset(seed=0)
        env.step(torch.zeros(env.action_space.shape or ()))
    finally:
        env.close()
    return f"stepped {task}"


def _warp_imports() -> str:
    from unilab_gym.backends import resolve_backend

    resolve_backend("mjwarp", "cpu")
    import mujoco_warp

    del mujoco_warp
    return "installed; right but slow, for tests and comparisons"


def _warp_cuda() -> str:
    from unilab_gym.backends import resolve_backend

    import_warp: Any = _quiet_warp()
    _, device = resolve_backend("mjwarp", "cuda")
    if not import_warp.is_cuda_available():
        raise RuntimeError("torch sees the GPU, Warp does not: is the driver too old for Warp?")
    return f"{device}; not stepped by doctor"


def _cuda() -> dict[str, Any]:
    import torch

    gpus: list[dict[str, Any]] = []
    library: Any = torch.cuda
    for number in range(library.device_count()):
        gpu = library.get_device_properties(number)
        capability = f"{gpu.major}.{gpu.minor}"
        memory = round(gpu.total_memory / 2**30, 1)
        gpus.append({"name": gpu.name, "memory_gib": memory, "compute_capability": capability})
    version: Any = torch.version
    return {"driver": _driver(), "torch_cuda_build": version.cuda, "gpus": gpus}


def _driver() -> str | None:
    """Version of the NVIDIA driver; None where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"Kernel Module\S*(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)", text)
        if found:
            return found.group(1)
    except OSError:
        pass
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split()[0] if done.stdout.split() else None


def _quiet_warp() -> Any:
    import warp

    library: Any = warp
    library.config.quiet = True
    library.init()
    return library


def _warp() -> dict[str, Any]:
    warp = _quiet_warp()
    devices = [
        {"name": str(device), "mempool": bool(device.is_mempool_supported)}
        for device in warp.get_cuda_devices()
    ]
    return {"version": warp.config.version, "cuda_devices": devices}


def _gl() -> str:
    from unilab_gym.render.gl import gl_available, open_context

    name = gl_available()
    context = open_context(64, 64)  # raises with what to install
    context.free()
    return str(name)


def _ffmpeg() -> str:
    import imageio_ffmpeg

    library: Any = imageio_ffmpeg
    return f"ffmpeg {library.get_ffmpeg_version()}"


def _text(report: Mapping[str, Any]) -> str:
    lines = ["versions"]
    versions = report["versions"].items()
    lines.append(table(("package", "version"), [(k, v or "not installed") for k, v in versions]))
    machine = report["machine"]
    lines += ["", f"machine: {machine['platform']} {machine['machine']}, {machine['processor']}"]
    lines[-1] += f", {machine['cpu_count']} CPUs"
    cuda, warp = report["cuda"], report["warp"]
    if cuda["ok"]:
        found = cuda["detail"]
        gpus = ", ".join(
            f"{gpu['name']} ({gpu['memory_gib']} GiB, compute {gpu['compute_capability']})"
            for gpu in found["gpus"]
        )
        lines.append(
            f"CUDA: driver {found['driver'] or 'none'}, torch built for "
            f"{found['torch_cuda_build'] or 'the CPU alone'}, GPUs: {gpus or 'none'}"
        )
    if warp["ok"]:
        devices = ", ".join(
            f"{item['name']} (memory pool {'yes' if item['mempool'] else 'no'})"
            for item in warp["detail"]["cuda_devices"]
        )
        lines.append(f"Warp {warp['detail']['version']}, CUDA devices: {devices or 'none'}")
    else:
        lines.append(f"Warp: {warp['detail']}")
    rows = [
        (name, "yes" if item["ok"] else "no", " ".join(str(item["detail"]).split()))
        for name, item in report["works"].items()
    ]
    return "\n".join([*lines, "", "what works here", table(("", "works", "detail"), rows)])

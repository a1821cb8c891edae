"""What pyproject.toml, constraints.txt and the top of the tree promise."""

import fnmatch
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import unilab_gym

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]

TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "assets",
    "benchmarks",
    "constraints.txt",
    "docs",
    "examples",
    "pyproject.toml",
    "requirements",
    "tests",
    "unilab_gym",
}


def _requirements(texts: list[str]) -> dict[str, str]:
    """Canonical name -> specifier."""
    parsed = [Requirement(text) for text in texts]
    return {canonicalize_name(req.name): str(req.specifier) for req in parsed}


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return _requirements([line for line in lines if line and not line.startswith("#")])


def _installed_closure(name: str, extras: frozenset[str]) -> set[str]:
    """Every distribution that an installed one asks for on this platform, at any depth."""
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(name, extras)]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for text in importlib.metadata.requires(node[0]) or []:
            req = Requirement(text)
            wanted = node[1] or {""}
            if req.marker is None or any(req.marker.evaluate({"extra": e}) for e in wanted):
                todo.append((canonicalize_name(req.name), frozenset(req.extras)))
    return {canonicalize_name(found) for found, _ in seen}


def test_core_dependencies_are_the_agreed_ones():
    assert _requirements(PROJECT["dependencies"]) == {
        "gymnasium": "<2,>=1.4",
        "mujoco": ">=4.0",
        "mujoco-warp": ">=4.0",
        "numpy": "",
        "onnxruntime": "",
        "torch": ">=2.9",
        "tyro": "",
        "warp-lang": "",
    }
    assert PROJECT["requires-python"] == ">=3.11"


@pytest.mark.parametrize(
    ("extra", "brings"),
    [
        ("export", {"onnx", "onnxscript"}),
        ("render", {"imageio", "imageio-ffmpeg", "matplotlib", "pillow"}),
        ("examples", {"rich", "rsl-rl-lib", "tensorboard", "unilab-gym"}),
        (
            "dev",
            {"array-api-compat", "build", "hatchling", "pyright", "pytest", "pytest-xdist", "ruff"},
        ),
    ],
)
def test_extras(extra, brings):
    assert set(_requirements(EXTRAS[extra])) == brings


def test_examples_extra_holds_export_and_render():
    own = [Requirement(text) for text in EXTRAS["examples"] if text.startswith("unilab-gym")]
    assert [req.extras for req in own] == [{"export", "render"}]
    assert _requirements(EXTRAS["examples"])["rsl-rl-lib"] == "<6,>=5"


def test_version_has_one_source():
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "unilab_gym/__init__.py"
    assert importlib.metadata.version("unilab-gym") == unilab_gym.__version__


def test_wheel_carries_assets_and_type_marker():
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"assets": "unilab_gym/_assets"}
    assert "/assets" in PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert (ROOT / "unilab_gym" / "py.typed").is_file()
    assert any(path.is_file() for path in (ROOT / "assets").rglob("*"))


def test_constraints_pin_every_direct_requirement():
    pins = _pins()
    for text in [*PROJECT["dependencies"], *(text for texts in EXTRAS.values() for text in texts)]:
        req = Requirement(text)
        if req.name == "unilab-gym":
            continue
        pin = pins.get(canonicalize_name(req.name), "")
        assert pin.startswith("=="), f"constraints.txt does not pin {req.name}"
        assert req.specifier.contains(pin.removeprefix("==")), f"{req} refuses {pin}"
    assert not [f"{name}{pin}" for name, pin in pins.items() if "+" in pin]  # torch: any index


def test_no_numba_is_named():
    files = [ROOT / "pyproject.toml", ROOT / "constraints.txt", ROOT / "requirements" / "rocm.txt"]
    for folder in ("unilab_gym", "examples", "benchmarks"):
        files += (ROOT / folder).rglob("*.py")
    assert len(files) > 2
    assert not [path for path in files if re.search(r"\bnumba\b", path.read_text())]


def test_the_rocm_profile_is_the_default_without_warp():
    """Same bounds, a ROCm index, and neither Numba nor what needs NVIDIA."""
    lines = (ROOT / "requirements" / "rocm.txt").read_text().splitlines()
    given = [line for line in lines if line and not line.startswith(("#", "--"))]
    profile = {Requirement(line).name: Requirement(line).specifier for line in given}
    default = {
        Requirement(text).name: Requirement(text).specifier for text in PROJECT["dependencies"]
    }
    assert default.keys() - profile.keys() == {"mujoco-warp", "warp-lang"}
    assert profile == {name: default[name] for name in profile}
    options = [line for line in lines if line.startswith("--")]
    assert len(options) == 1 and "download.pytorch.org/whl/rocm" in options[0]
    assert not {"numba", "llvmlite"} & {*profile, *default}


def test_no_numba_is_required():
    closure = _installed_closure("unilab-gym", frozenset({"examples"}))
    assert closure >= {"torch", "mujoco-core", "tensordict", "imageio-ffmpeg", "onnx-ir"}
    assert not closure & {"numba", "llvmlite"}


def test_license_is_apache_2():
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "Apache-2.0"
    title = [line.strip() for line in text.split("\n")[:2]]
    assert title == ["Apache License", "Version 2.0, January 2004"]
    assert "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_top_level_holds_nothing_stray():
    lines = (ROOT / ".gitignore").read_text().splitlines()
    ignored = [line.rstrip("/") for line in lines if line and not line.startswith("#")]
    names = {path.name for path in ROOT.iterdir()} - {".git"}
    stray = [n for n in names if not any(fnmatch.fnmatch(n, pattern) for pattern in ignored)]
    assert not set(stray) - TOP_LEVEL
    assert {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt"} <= names


def test_only_agreed_files_are_typed_loosely():
    package = ROOT / "unilab_gym"
    loose = set()
    for path in package.rglob("*.py"):
        if re.search(r"#\s*pyright:\s*(basic|standard|ignore\s*$)", path.read_text(), re.MULTILINE):
            loose.add(path.relative_to(package).as_posix())
    agreed = re.compile(r"backends/mjwarp\.py|render/.*|adapters/.*")
    assert not [name for name in loose if not agreed.fullmatch(name)]


def test_readme_has_no_placeholder_and_names_its_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not re.search(r"@[A-Z]+@|TODO|FIXME", text)
    assert "make demo" in text and "make test" in text

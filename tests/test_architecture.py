"""What the house rules say of the source: floors, NumPy, sizes, the hot path, silent imports."""

import ast
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import unilab_gym

PACKAGE = Path(unilab_gym.__file__).resolve().parent

FLOORS = (
    r"errors",
    r"math|engine|model_index|serialize|signals|diagnosis|scene_config|learner_config|config|assets"
    r"|registration|io(\..*)?",
    r"backends\.base",
    r"scene|robot|backends(\..*)?|runtime|runtime\.(rng|faults|receipts|rows|carriers|buffers|read_formulas|reads|frame|term)"
    r"|runtime\.(dynamics_reads|command_term|event_term|curriculum_term|recorder_term|fault_ring)"
    r"|motion|motion\.(clip|convert|make|library|sampler)",
    r"runtime\.managers(\..*)?|mdp(\..*)?|motion\.command",
    r"runtime\.(log|step|state|fault_report|env)",
    r"tasks(\..*)?",
    r"contract(\..*)?|export(\..*)?|render(\..*)?|evaluation",
    r"vector_(env|arguments|modes|info)|single_env|factory",
    r"adapters(\..*)?|testing(\..*)?|comparison|cli(\..*)?|__main__",
)
"""Lowest first; a module imports from its own floor or from below."""

UPWARD = {("evaluation", "vector_env")}
"""Imports inside a function that go up: the evaluation asks whether it was given our face."""

TERMS_REST_ON = {
    "term",
    "reads",
    "dynamics_reads",
    "command_term",
    "event_term",
    "curriculum_term",
    "recorder_term",
    "rows",
}
"""What `mdp` and `motion.command` may know of the runtime."""

NUMPY = (
    "backends/mujoco.py",
    "backends/mjwarp.py",
    "backends/_mjwarp_model.py",
    "scene.py",
    "motion/clip.py",
    "motion/convert.py",
    "export/onnx.py",
    "render/*",
    "io/npz.py",
    "io/fault_dump.py",
    "vector_env.py",
    "single_env.py",
    "adapters/sb3.py",
    "adapters/tianshou.py",
)

COLD = {
    # Built once: sizes, names, declarations.
    "runtime/rng.py:_Block._allocate",
    "runtime/rng.py:ManagerRng._add",
    "runtime/term.py:BuildContext.tensor",
    "runtime/reads.py:JointPosRel.build",
    "runtime/reads.py:GeomHeight.build",
    "mdp/actions.py:JointAction.resolve",
    "mdp/distributions.py:check_range",
    # Called between steps.
    "runtime/env.py:ManagerBasedRlEnv._begin",
    "runtime/state.py:full_width",
    "runtime/state.py:holds_everywhere",
    "runtime/env.py:ManagerBasedRlEnv.fault_totals",
    "runtime/rng.py:ManagerRng.set_keys",
    "runtime/managers/commands.py:CommandManager.hold",
    "runtime/managers/commands.py:CommandManager.restored",
    # Reads host memory; the others run after a fault, where a dump was asked for.
    "runtime/faults.py:faulty_rows",
    "runtime/fault_ring.py:FaultRing.history",
    "runtime/fault_report.py:FaultReporter._meta",
}
"""Functions that a step never runs, beside `__init__`: they may copy to the host or upload."""

LONG = {"vector_env.py:__init__": 62}
"""Functions of more than 60 lines: this one is a list of keyword arguments and their checks."""

HOST_CALLS = re.compile(
    r"item|cpu|tolist|numpy|nonzero|is_nonzero|argwhere|masked_select|unique|unique_consecutive"
    r"|bincount|synchronize|cuda"
)
"""Methods (and torch functions) for which the host waits, or whose size depends on data."""
UPLOADS = {"tensor", "as_tensor", "from_numpy", "asarray", "scalar_tensor"}
"""Functions of torch that make a tensor from Python values."""
ROW_DEPENDENT = {"atan2", "matmul", "mm", "bmm", "einsum"}
"""Whose last bit depends on the number of rows."""


def sources():
    return sorted(path for path in PACKAGE.rglob("*.py") if "_assets" not in path.parts)


def relative(path):
    return path.relative_to(PACKAGE).as_posix()


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def tree(path):
    return ast.parse(path.read_text())


@functools.cache
def imports():
    """(importer, imported, at module level) of the package's own modules."""
    modules = {module_name(path) for path in sources()}
    edges = set()

    def target(name):
        name = name.removeprefix("unilab_gym").removeprefix(".")
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name

    def visit(node, importer, top):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            names = []
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{importer}: relative import"
                names = [f"{child.module}.{alias.name}" for alias in child.names]
            for name in names:
                if name.split(".")[0] == "unilab_gym" and target(name) not in ("", importer):
                    edges.add((importer, target(name), top))
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            visit(child, importer, top and not inside)

    for path in sources():
        visit(tree(path), module_name(path), True)
    return edges


def floor(module):
    found = [number for number, names in enumerate(FLOORS) if re.fullmatch(names, module)]
    if module == "backends.base":
        return 2
    return found[0] if found else None


# --- floors ---------------------------------------------------------------------------------------


def test_every_module_has_a_floor():
    assert len(sources()) > 40
    homeless = [module_name(path) for path in sources() if floor(module_name(path)) is None]
    assert homeless == [""]  # the package itself, which only registers


def test_imports_only_go_down():
    assert len(imports()) > 150
    wrong = [
        f"{importer} imports {imported}"
        for importer, imported, _ in imports()
        if importer and floor(imported) > floor(importer) and (importer, imported) not in UPWARD
    ]
    assert wrong == []
    assert {(a, b) for a, b, top in imports() if not top} >= UPWARD


def test_there_is_no_circle():
    """At module level; and lazily only where a deliberate upward import closes it."""
    graph = {}
    for importer, imported, _ in imports():
        if (importer, imported) not in UPWARD:
            graph.setdefault(importer, set()).add(imported)
    state = {}

    def visit(module, path):
        if state.get(module) == "done":
            return
        assert state.get(module) != "open", " -> ".join([*path, module])
        state[module] = "open"
        for other in sorted(graph.get(module, ())):
            visit(other, [*path, module])
        state[module] = "done"

    for module in sorted(graph):
        visit(module, [])
    assert state["vector_env"] == "done"


def test_terms_rest_on_the_term_alone():
    for importer, imported, _ in imports():
        if importer.startswith("mdp") or importer == "motion.command":
            assert imported.startswith(
                ("mdp", "motion", "errors", "math", "model_index", "config", "io")
            ) or (
                imported == "backends.base" or imported.removeprefix("runtime.") in TERMS_REST_ON
            ), f"{importer} imports {imported}"


def test_mujoco_is_imported_in_one_place():
    """There a MUJOCO_GL that names no library is a clear error, see `unilab_gym.engine`."""
    importing = re.compile(r"^(import mujoco|from mujoco[. ])", re.MULTILINE)
    found = [relative(path) for path in sources() if importing.search(path.read_text("utf-8"))]
    assert found == ["engine.py"]


def test_the_runtime_knows_no_engine_and_no_gymnasium():
    for path in sources():
        if relative(path).split("/")[0] not in ("runtime", "mdp"):
            continue
        for node in ast.walk(tree(path)):
            names = [alias.name for alias in getattr(node, "names", []) if hasattr(alias, "name")]
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
            for name in names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
                root = name.split(".")[0]
                assert root not in ("gymnasium", "mujoco", "mujoco_warp", "warp", "numpy"), path
                assert not name.startswith("unilab_gym.backends.") or name.endswith(".base"), path
                assert name not in ("unilab_gym.backends", "unilab_gym.engine"), path


# --- NumPy, sizes ---------------------------------------------------------------------------------


def test_numpy_stays_in_its_files():
    found = set()
    for path in sources():
        for node in ast.walk(tree(path)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Attribute) and node.attr in ("numpy", "from_numpy"):
                names = ["numpy"]
            if any(name.split(".")[0] == "numpy" for name in names):
                found.add(relative(path))
    allowed = {path for path in found if any(Path(path).match(pattern) for pattern in NUMPY)}
    assert found - allowed == set()
    assert {"backends/mujoco.py", "scene.py", "vector_env.py"} <= found


ENVIRONMENT_ADAPTERS = ("rl_games", "rsl_rl", "sb3", "tianshou", "torchrl", "unilab_rl")


@pytest.mark.parametrize("library", ENVIRONMENT_ADAPTERS)
def test_an_adapter_of_a_library_has_fewer_than_100_lines(library):
    path = PACKAGE / "adapters" / f"{library}.py"
    assert len(path.read_text().splitlines()) < 100


def test_files_have_at_most_600_lines_and_functions_60():
    long_files, long_functions = [], []
    for path in sources():
        if len(path.read_text().splitlines()) > 600:
            long_files.append(relative(path))
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = node.body[0]
                documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                start = first.end_lineno if documented else node.body[0].lineno - 1
                label = f"{relative(path)}:{node.name}"
                if node.end_lineno - start > LONG.get(label, 60):
                    long_functions.append(f"{label}: {node.end_lineno - start}")
    assert long_files == []
    assert long_functions == []


# --- the hot path ---------------------------------------------------------------------------------


def functions(path):
    """Qualified name -> node of every function that is not inside another one."""
    found = {}

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[f"{prefix}{child.name}"] = child
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")

    visit(tree(path), "")
    return found


def hot_files():
    return [
        path
        for path in sources()
        if relative(path).split("/")[0] in ("runtime", "mdp", "math.py")
        or relative(path) in ("motion/command.py", "motion/sampler.py")
    ]


def offences(node):
    """Calls that stall the device, upload, or depend on the number of rows."""
    for child in ast.walk(node):
        if isinstance(child, ast.BinOp) and isinstance(child.op, ast.MatMult):
            yield "@"
        if isinstance(child, ast.BinOp) and isinstance(child.op, ast.Pow):
            yield "**"
        if not isinstance(child, ast.Call):
            continue
        func = child.func
        if isinstance(func, ast.Name) and func.id in ("bool", "int", "float"):
            yield f"{func.id}()"
        if isinstance(func, ast.Attribute):
            if HOST_CALLS.fullmatch(func.attr) or func.attr in ROW_DEPENDENT:
                yield f".{func.attr}()"
            if (
                func.attr in UPLOADS
                and isinstance(func.value, ast.Name)
                and func.value.id == "torch"
            ):
                yield f"torch.{func.attr}()"


def test_the_rule_finds_what_it_forbids():
    bad = ast.parse(
        "x.item(); x.cpu(); x.tolist(); x.numpy(); torch.nonzero(x); torch.tensor([1.0]); bool(x);"
        "torch.from_numpy(a); a @ b; x**0.5; torch.atan2(a, b); x.to('cuda').cuda()"
    )
    assert len(list(offences(bad))) == 12
    assert list(offences(ast.parse("torch.where(m, a, b); x.sum(-1); ctx.tensor([1.0])"))) == []


def test_no_function_of_a_step_waits_for_the_device():
    """Everything in runtime and mdp is taken for hot unless it is `__init__` or listed as cold."""
    found, seen = {}, 0
    for path in hot_files():
        for name, node in functions(path).items():
            label = f"{relative(path)}:{name}"
            if name.rpartition(".")[2] == "__init__" or label in COLD:
                continue
            seen += 1
            bad = sorted(set(offences(node)))
            if bad:
                found[label] = bad
    assert found == {}
    assert seen > 120


def test_the_list_of_cold_functions_is_needed():
    names = {f"{relative(path)}:{name}" for path in hot_files() for name in functions(path)}
    assert COLD - names == set()
    idle = {
        label
        for path in hot_files()
        for name, node in functions(path).items()
        if (label := f"{relative(path)}:{name}") in COLD and not list(offences(node))
    }
    assert idle == set()


def test_cold_functions_are_not_called_from_the_step():
    """`step.py` and what the managers do in it name none of them."""
    cold = {label.rpartition(":")[2].rpartition(".")[2] for label in COLD} - {
        "reset",
        "__init__",
        "tensor",
    }
    called = {
        child.func.attr if isinstance(child.func, ast.Attribute) else child.func.id
        for name in ("advance", "masked_reset", "_state")
        for child in ast.walk(functions(PACKAGE / "runtime" / "step.py")[name])
        if isinstance(child, ast.Call) and isinstance(child.func, (ast.Attribute, ast.Name))
    }
    assert len(called) > 8
    assert not called & (cold - {"build"})


# --- imports without side effects -----------------------------------------------------------------

SILENT = """
import json, logging, os, sys, warnings
import gymnasium
before = dict(os.environ), list(warnings.filters), logging.root.level, list(logging.root.handlers)
registered = set(gymnasium.registry)
loaded = set(sys.modules)
import unilab_gym
after = dict(os.environ), list(warnings.filters), logging.root.level, list(logging.root.handlers)
fresh = sorted({name.partition(".")[0] for name in set(sys.modules) - loaded})
print(json.dumps({
    "same": before == after,
    "fresh": fresh,
    "own": sorted(name for name in sys.modules if name.startswith("unilab_gym")),
    "ids": sorted(set(gymnasium.registry) - registered),
    "heavy": [name for name in ("torch", "mujoco", "warp", "mujoco_warp") if name in sys.modules],
    "dir": dir(unilab_gym),
}))
"""


def test_importing_the_package_is_silent_and_light(tmp_path):
    """Only ids are registered: no engine, no torch, no environment variable, filter or handler."""
    code = [sys.executable, "-W", "error", "-c", SILENT]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(code, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["same"]
    assert report["heavy"] == []
    assert report["own"] == ["unilab_gym", "unilab_gym.errors", "unilab_gym.registration"]
    assert set(report["fresh"]) <= {"unilab_gym", *sys.stdlib_module_names}
    assert report["ids"] == sorted(unilab_gym.task_ids())
    assert {"make", "evaluate", "task_ids"} <= set(report["dir"])
    assert list(tmp_path.iterdir()) == []


def test_unknown_attributes_of_the_package():
    with pytest.raises(AttributeError, match="module 'unilab_gym' has no attribute 'mkae'"):
        unilab_gym.mkae  # noqa: B018

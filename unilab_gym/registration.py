"""Ids: registered by string entry points, so that importing the package loads no engine.

Other packages add tasks through the entry-point group `unilab_gym.tasks`::

    [project.entry-points."unilab_gym.tasks"]
    "MyLab/Reach-v0" = "mylab.reach:owner"

The name is the id; the value leads to `owner(backend) -> OwnerCfg`, or to a `Task` that says more.
`import unilab_gym` reads this metadata only; the module is imported when the task is made or
listed. What is wrong with a declaration is told there, and hurts no other task.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import gymnasium
from gymnasium.envs.registration import parse_env_id

from unilab_gym.errors import ConfigError, PluginError, PluginWarning, near

if TYPE_CHECKING:
    from unilab_gym.config import OwnerCfg

GROUP = "unilab_gym.tasks"
"""Entry-point group of tasks in other packages."""

_ENTRY_POINT = "unilab_gym.factory:make_vector_env"
_BACKENDS = ("mujoco", "mjwarp")
_VALUE = re.compile(r"[\w.]+\s*:\s*[\w.]+")


@dataclass(frozen=True)
class Outcome:
    """What a trained policy must reach in `unilab_gym.evaluate`; names are the report's figures."""

    at_most: Mapping[str, float] = field(default_factory=dict[str, float])
    at_least: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Task:
    """A registered task: where its configuration comes from."""

    id: str
    backends: tuple[str, ...]
    owner: Callable[..., OwnerCfg]
    """Returns the configuration for a backend's name; keyword-only arguments are the task's."""
    summary: str = ""
    outcome: Outcome = field(default_factory=Outcome)
    """The bar for a trained policy."""

    @property
    def task_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of `make_vec` that are this task's own, with their defaults."""
        parameters = inspect.signature(self.owner).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


@dataclass(frozen=True)
class _Plugin:
    """What another package's metadata declare."""

    id: str
    value: str
    """`package.module:name`."""
    package: str
    problem: str = ""
    """Why it cannot be used; "" where nothing is known to be wrong."""

    def failed(self, why: str) -> PluginError:
        return PluginError(f"task {self.id!r} of package {self.package!r}: {why}")


_MODULES = {
    "UniLab/CartPole-v0": "unilab_gym.tasks.cartpole",
    "UniLab/Go2JoystickFlat-v0": "unilab_gym.tasks.go2_joystick_flat",
    "UniLab/G1WalkFlat-v0": "unilab_gym.tasks.g1_walk_flat",
    "UniLab/G1MotionTracking-v0": "unilab_gym.tasks.g1_motion_tracking",
    "UniLab/G1MotionTrackingNoState-v0": "unilab_gym.tasks.g1_motion_tracking_no_state",
}
"""Our own ids and the modules that hold their `TASK`."""

_plugins: dict[str, _Plugin] = {}
"""Tasks of other packages by id; filled by `register`."""
_refused: list[_Plugin] = []
"""Declarations that got no id of their own."""


# --- what there is --------------------------------------------------------------------------------


def task_ids() -> tuple[str, ...]:
    """Every registered id, those of other packages last; imports none of them."""
    return (*_MODULES, *_plugins)


def list_tasks() -> tuple[Task, ...]:
    """Every task that loads; imports the modules of all, and asks the owners of other packages.

    A task of another package that cannot be used is left out, with one `PluginWarning`.
    """
    tasks: list[Task] = []
    problems = [plugin.failed(plugin.problem) for plugin in _refused]
    for task_id in task_ids():
        try:
            task = load_task(task_id)
            if task_id in _plugins:
                _ask_owner(task)
            tasks.append(task)
        except PluginError as error:
            problems.append(error)
    for problem in problems:
        warnings.warn(str(problem), PluginWarning, stacklevel=2)
    return tuple(tasks)


def load_task(task_id: str) -> Task:
    """The task of an id; imports its module now.

    Raises:
        ConfigError: If the id is unknown.
        PluginError: An ImportError: if the task is another package's and does not load.
    """
    name = task_id.removeprefix("unilab_gym:")
    if name in _MODULES:
        return cast("Task", importlib.import_module(_MODULES[name]).TASK)
    if name in _plugins:
        return _load_plugin(_plugins[name])
    for plugin in _refused:
        if plugin.id == name:
            raise plugin.failed(plugin.problem)
    raise ConfigError(f"task {near(task_id, task_ids())}")


def is_foreign(task_id: str) -> bool:
    """Whether another package declares this id."""
    return task_id in _plugins


def _ask_owner(task: Task) -> None:
    """Sees to it that a foreign owner answers for its first backend."""
    try:
        owner_config(task.id, task.backends[0])
    except Exception as error:
        why = f"its owner fails: {type(error).__name__}: {error}"
        raise _plugins[task.id].failed(why) from error


def owner_config(task_id: str, backend: str, **task_kwargs: Any) -> OwnerCfg:
    """The configuration of a task for a backend; `training.sim_backend` names it.

    Args:
        task_id: A registered id.
        backend: "mujoco" or "mjwarp".
        **task_kwargs: The task's own arguments, see `Task.task_kwargs`.

    Raises:
        ConfigError: If the id or an argument is unknown, the task does not run on that backend,
            or its owner returns something else than its configuration.
        PluginError: An ImportError: if the task is another package's and does not load.
    """
    from unilab_gym.config import OwnerCfg

    task = load_task(task_id)
    for name in task_kwargs:
        if name not in task.task_kwargs:
            raise ConfigError(f"task {task.id!r} has no argument {near(name, task.task_kwargs)}")
    if backend not in task.backends:
        raise ConfigError(f"task {task.id!r} has no backend {near(backend, task.backends)}")
    cfg = cast("Any", task.owner(backend, **task_kwargs))
    if not isinstance(cfg, OwnerCfg):
        raise ConfigError(f"task {task.id!r}: its owner must return an OwnerCfg, got {cfg!r}")
    if cfg.task != task.id:
        raise ConfigError(f"task {task.id!r}: its owner says task={cfg.task!r}")
    if cfg.training.sim_backend != backend:
        training = dataclasses.replace(cfg.training, sim_backend=backend)
        cfg = dataclasses.replace(cfg, training=training)
    return dataclasses.replace(cfg, task_kwargs=task_kwargs) if task_kwargs else cfg


def parse_task_args(given: Iterable[str]) -> dict[str, Any]:
    """The task's own arguments from `name=value` texts; a comma makes a tuple.

    Raises:
        ConfigError: If a text has no name or no value.
    """
    result: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise ConfigError(f"a task argument is name=value, got {text!r}")
        result[name] = tuple(part for part in value.split(",") if part) if "," in value else value
    return result


def _load_plugin(plugin: _Plugin) -> Task:
    if plugin.problem:
        raise plugin.failed(plugin.problem)
    entry = importlib.metadata.EntryPoint(plugin.id, plugin.value, GROUP)
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:  # whatever a stranger's module does when imported
        why = f"cannot load {plugin.value!r}: {type(error).__name__}: {error}"
        raise plugin.failed(why) from error
    if isinstance(found, Task):
        if found.id != plugin.id:
            raise plugin.failed(f"{plugin.value!r} is the task {found.id!r}")
        return found
    if not callable(found) or isinstance(found, type):
        raise plugin.failed(f"{plugin.value!r} is neither a Task nor a function owner(backend)")
    lines = (getattr(found, "__doc__", None) or "").strip().splitlines()
    owner = cast("Callable[[str], OwnerCfg]", found)  # what it returns is looked at when it is used
    return Task(id=plugin.id, backends=_BACKENDS, owner=owner, summary=lines[0] if lines else "")


# --- registration ---------------------------------------------------------------------------------


def register() -> None:
    """Registers every id with Gymnasium and reads the metadata of other packages.

    A second call registers nothing twice. Nothing is imported, nothing is printed, and whatever
    is wrong with a declaration waits until somebody lists or makes that task.
    """
    for task_id in _MODULES:
        _register(task_id)
    _plugins.clear()
    _refused.clear()
    for plugin in _declared():
        problem = plugin.problem or _clash(plugin)
        if not problem:
            try:
                _register(plugin.id)
            except gymnasium.error.Error as error:
                problem = f"Gymnasium refuses the id: {error}"
        if problem:
            _refused.append(dataclasses.replace(plugin, problem=problem))
            continue
        twin = _plugins.get(plugin.id)
        if twin is not None and twin.value != plugin.value:
            problem = f"package {plugin.package!r} declares this id, too: uninstall one of them"
            _plugins[plugin.id] = dataclasses.replace(twin, problem=problem)
            continue
        if not _VALUE.fullmatch(plugin.value.strip()):
            problem = f"{plugin.value!r} is not of the form 'package.module:owner'"
        _plugins[plugin.id] = dataclasses.replace(plugin, problem=problem)


def _register(task_id: str) -> None:
    if task_id not in gymnasium.registry:
        gymnasium.register(
            id=task_id,
            entry_point="unilab_gym.single_env:UnilabSingleEnv",
            vector_entry_point=_ENTRY_POINT,
            kwargs={"task": task_id},
        )


def _clash(plugin: _Plugin) -> str:
    """Why the id is not free: another version of a foreign id would change how that one warns."""
    try:
        namespace, name, _ = parse_env_id(plugin.id)
    except gymnasium.error.Error:
        return "the id is not of the form 'Namespace/Name-v0'"
    for other, spec in gymnasium.registry.items():
        if (spec.namespace, spec.name) != (namespace, name):
            continue
        if other in _MODULES:
            return f"{other!r} is a task of unilab_gym itself: choose a namespace of your own"
        if spec.vector_entry_point != _ENTRY_POINT or spec.kwargs.get("task") != other:
            return f"{other!r} is registered with Gymnasium by somebody else"
    return ""


def _declared() -> Iterator[_Plugin]:
    """What the metadata of installed packages declare, each package once, by package and id.

    Not `importlib.metadata.entry_points`: one unreadable file would hide everybody's.
    """
    found: dict[str, list[_Plugin]] = {}
    for distribution in importlib.metadata.distributions():
        try:
            if GROUP not in (distribution.read_text("entry_points.txt") or ""):
                continue
            package = str(distribution.metadata["Name"])
        except Exception:  # a stranger's broken metadata, whatever it is
            continue
        if package in found:  # the first one on sys.path is the one that is imported
            continue
        try:
            entries = distribution.entry_points.select(group=GROUP)
            found[package] = [_Plugin(entry.name, entry.value, package) for entry in entries]
        except Exception as error:
            problem = f"entry_points.txt cannot be read: {type(error).__name__}: {error}"
            found[package] = [_Plugin("", "", package, problem)]
    for package in sorted(found):
        yield from sorted(found[package], key=lambda plugin: plugin.id)

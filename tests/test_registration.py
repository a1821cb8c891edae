"""Ids: registered by name, once, without loading an engine."""

import importlib
import sys

import gymnasium
import pytest
from helpers.face import GO2, run_python

import unilab_gym
from unilab_gym import registration
from unilab_gym.errors import ConfigError
from unilab_gym.registration import Task, load_task, owner_config, task_ids

IMPORT = """
import json, logging, os, sys, warnings
import gymnasium
before = (dict(os.environ), list(warnings.filters), list(logging.root.handlers), os.listdir())
import unilab_gym
after = (dict(os.environ), list(warnings.filters), list(logging.root.handlers), os.listdir())
heavy = ("torch", "mujoco", "warp", "mujoco_warp", "onnxruntime")
print(json.dumps({
    "heavy": [name for name in heavy if name in sys.modules],
    "changed": [a != b for a, b in zip(before, after)],
    "logger": logging.getLogger("unilab_gym").handlers,
    "registered": [name for name in gymnasium.registry if name.startswith("UniLab/")],
    "lazy": ["make" in dir(unilab_gym), "make" in vars(unilab_gym)],
    "still": [name for name in heavy if name in sys.modules],
}))
"""


def test_importing_loads_no_engine_and_changes_nothing():
    found = run_python(IMPORT)
    assert found["heavy"] == found["still"] == [] and found["logger"] == []
    assert found["changed"] == [False] * 4
    assert found["registered"] == list(task_ids()) and GO2 in task_ids()
    assert found["lazy"] == [True, False]


PREFIX = """
import json, sys
import gymnasium
try:
    gymnasium.make_vec("unilab_gym:UniLab/Go2JoystickFlat-v0", wrappers=[1])
except gymnasium.error.Error as error:
    message = str(error)
found = [name for name in gymnasium.registry if name.startswith("UniLab/")]
print(json.dumps([message, found, "torch" in sys.modules]))
"""


def test_the_prefix_imports_the_package():
    """Nothing else has: gymnasium has no entry points for plug-ins any more."""
    message, found, torch_loaded = run_python(PREFIX)
    assert "vector_entry_point" in message  # the id was found; wrappers are what it refuses
    assert found == list(task_ids()) and not torch_loaded


ABSENT = """
import json, sys
sys.modules["warp"] = sys.modules["mujoco_warp"] = None
import gymnasium, unilab_gym
env = gymnasium.make_vec("UniLab/Go2JoystickFlat-v0", num_envs=2, device="cpu")
env.reset(seed=0)
env.step(env.action_space.sample())
try:
    gymnasium.make_vec("UniLab/Go2JoystickFlat-v0", backend="mjwarp", device="cpu")
except ImportError as error:
    hint = str(error)
print(json.dumps([env.backend_name, list(unilab_gym.task_ids()), hint]))
"""


def test_without_mujoco_warp_the_other_backend_works():
    name, ids, hint = run_python(ABSENT)
    assert name == "mujoco" and ids == list(task_ids())
    assert "mujoco_warp and warp, not installed" in hint
    assert "pip install mujoco-warp warp-lang" in hint


def test_ids_are_registered_once():
    """Warnings are errors here: an override of an id would raise."""
    before = dict(gymnasium.registry)
    registration.register()
    importlib.reload(unilab_gym)
    gymnasium.register_envs(unilab_gym)
    assert dict(gymnasium.registry) == before
    assert [gymnasium.registry[name].id for name in task_ids()] == list(task_ids())
    spec = gymnasium.spec(GO2)
    assert spec.kwargs == {"task": GO2} and not spec.additional_wrappers
    assert spec.max_episode_steps is None  # it would come back as a keyword: the task decides


@pytest.mark.parametrize("task_id", task_ids())
def test_every_task_says_what_it_is(task_id):
    task = load_task(task_id)
    assert isinstance(task, Task) and task.id == task_id and task.summary
    assert load_task(f"unilab_gym:{task_id}") is task
    for backend in task.backends:
        cfg = owner_config(task_id, backend)
        assert cfg.task == task_id and cfg.training.sim_backend == backend
        assert owner_config(task_id, backend) == cfg
        assert owner_config(task_id, backend).env is not cfg.env


def test_unknown_names_are_answered_with_near_ones():
    with pytest.raises(ConfigError, match="'UniLab/Go2JoystikFlat-v0'; did you mean"):
        load_task("UniLab/Go2JoystikFlat-v0")
    with pytest.raises(ConfigError, match=r"no backend 'mujco'; did you mean 'mujoco'"):
        owner_config(GO2, "mujco")
    with pytest.raises(gymnasium.error.NameNotFound, match="Did you mean: `Go2JoystickFlat`"):
        gymnasium.make_vec("UniLab/Go2JoystikFlat-v0")
    with pytest.raises(gymnasium.error.VersionNotFound, match="v9"):
        gymnasium.make_vec("UniLab/Go2JoystickFlat-v9")
    with pytest.raises(AttributeError, match="'unilab_gym' has no attribute 'mak'"):
        _ = unilab_gym.mak


def test_names_of_the_package_load_on_demand():
    from unilab_gym import factory, vector_env

    assert unilab_gym.make is factory.make
    assert unilab_gym.EvalReport.__module__ == "unilab_gym.evaluation"  # loads the submodule
    assert unilab_gym.evaluate.__qualname__ == "evaluate"
    assert importlib.import_module("unilab_gym.evaluation").evaluate is unilab_gym.evaluate
    assert unilab_gym.UnilabVectorEnv is vector_env.UnilabVectorEnv
    assert set(unilab_gym.__all__) - {"__version__"} <= set(dir(unilab_gym))


def test_a_broken_task_hurts_nobody_else(monkeypatch):
    """Its module is imported when it is made, not before."""
    modules = {**registration._MODULES, "UniLab/Broken-v0": "no_such_package.task"}
    monkeypatch.setattr(registration, "_MODULES", modules)
    try:
        registration.register()
        assert "UniLab/Broken-v0" in task_ids()
        with pytest.raises(ModuleNotFoundError, match="no_such_package"):
            gymnasium.make_vec("UniLab/Broken-v0", device="cpu")
        assert load_task(GO2).id == GO2
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=0)
        env.close()
    finally:
        gymnasium.registry.pop("UniLab/Broken-v0", None)
        sys.modules.pop("no_such_package", None)

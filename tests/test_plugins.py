"""Tasks of other packages: read from metadata, loaded when asked for, harmless when broken."""

import importlib
import os
import sys
import warnings

import gymnasium
import pytest
import torch
from helpers.face import GO2, ROOT, run_python
from helpers.packages import install

import unilab_gym
from unilab_gym import registration
from unilab_gym.cli import show
from unilab_gym.cli.arguments import Audit
from unilab_gym.cli.show import task_facts
from unilab_gym.config import OwnerCfg, from_dict, to_dict
from unilab_gym.contract import build_snapshot, resolve, transfer_matrix
from unilab_gym.errors import ConfigError, PluginError, PluginWarning
from unilab_gym.registration import list_tasks, load_task, owner_config, task_ids

OWN = task_ids()

TASK = """
import dataclasses

from unilab_gym.registration import Task
from unilab_gym.runtime.reads import JointPos
from unilab_gym.runtime.term import term
from unilab_gym.config import RewardTermCfg
from unilab_gym.tasks import cartpole

ID = "MyLab/Swing-v0"


@term(reads=(JointPos(("hinge",)),))
def lean(frame, *, sign):
    return frame[JointPos(("hinge",))][:, 0] * sign


def owner(backend):
    '''Leans the pole to one side.'''
    cfg = cartpole.owner(backend)
    rewards = {**cfg.env.rewards, "lean": RewardTermCfg(func=lean, weight=2.0, params={"sign": 1})}
    return dataclasses.replace(cfg, task=ID, env=dataclasses.replace(cfg.env, rewards=rewards))


TASK = Task(id=ID, backends=("mujoco",), owner=owner, summary="with a bar of its own")
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on sys.path; `rescan` reads what was installed there. Everything is undone."""
    registered, modules = dict(gymnasium.registry), set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    monkeypatch.undo()
    registration.register()
    for name in set(gymnasium.registry) - set(registered):
        del gymnasium.registry[name]
    for name in set(sys.modules) - modules:
        if name.startswith("mylab"):
            del sys.modules[name]


def rescan():
    importlib.invalidate_caches()
    registration.register()


def test_a_task_of_another_package_is_like_ours(site):
    install(site, "my-lab", {"MyLab/Swing-v0": "mylab_swing:owner"}, mylab_swing=TASK)
    rescan()
    assert task_ids() == (*OWN, "MyLab/Swing-v0")
    assert "mylab_swing" not in sys.modules
    listed = {task.id: task for task in list_tasks()}
    assert tuple(listed) == task_ids()
    assert listed["MyLab/Swing-v0"].summary == "Leans the pole to one side."
    assert listed["MyLab/Swing-v0"].backends == ("mujoco", "mjwarp")
    env = gymnasium.make_vec("unilab_gym:MyLab/Swing-v0", num_envs=2, backend="mujoco", seed=1)
    assert env.spec.id == "MyLab/Swing-v0"
    env.reset()
    env.step(torch.zeros(2, 1))
    assert "reward/lean" in env.unwrapped.runtime.log()
    env.close()
    single = gymnasium.make("MyLab/Swing-v0", backend="mujoco")
    assert single.reset(seed=0)[0].shape == (4,)
    single.close()


def test_its_terms_are_stored_resolved_and_recorded_by_name(site):
    install(site, "my-lab", {"MyLab/Swing-v0": "mylab_swing:owner"}, mylab_swing=TASK)
    rescan()
    cfg = owner_config("MyLab/Swing-v0", "mujoco")
    data = to_dict(cfg)
    assert data["env"]["rewards"]["lean"]["func"] == "mylab_swing:lean"
    assert from_dict(OwnerCfg, data) == cfg
    snapshot = build_snapshot(cfg)
    assert snapshot["declared"]["env.rewards"]["lean"]["func"] == "mylab_swing:lean"
    assert snapshot["resolved"] == resolve(cfg)
    assert snapshot["resolved"]["task"] == "MyLab/Swing-v0"


def test_an_entry_point_may_lead_to_a_task(site):
    install(site, "my-lab", {"MyLab/Swing-v0": "mylab_swing:TASK"}, mylab_swing=TASK)
    rescan()
    assert load_task("MyLab/Swing-v0").summary == "with a bar of its own"
    with pytest.raises(ConfigError, match=r"'MyLab/Swing-v0' has no backend 'mjwarp'"):
        owner_config("MyLab/Swing-v0", "mjwarp")


BROKEN = {
    "mylab_raises": ("raise ValueError('no licence')", "ValueError: no licence"),
    "mylab_exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "mylab_imports": ("import no_such_library", "No module named 'no_such_library'"),
    "mylab_syntax": ("def owner(:", "SyntaxError"),
    "mylab_empty": ("", "has no attribute 'owner'"),
    "mylab_number": ("owner = 3", "is neither a Task nor a function owner"),
    "mylab_other": (
        "from unilab_gym.tasks.cartpole import TASK as owner",
        "is the task 'UniLab/CartPole-v0'",
    ),
}


@pytest.mark.parametrize("module", BROKEN)
def test_a_broken_module_is_one_warning_and_an_import_error(site, module):
    source, words = BROKEN[module]
    install(site, "my-lab", {"MyLab/Broken-v0": f"{module}:owner"}, **{module: source})
    install(site, "other-lab", {"MyLab/Swing-v0": "mylab_swing:owner"}, mylab_swing=TASK)
    rescan()
    with pytest.warns(PluginWarning, match="'MyLab/Broken-v0' of package 'my-lab'") as caught:
        listed = list_tasks()
    assert len(caught) == 1 and words in str(caught[0].message)
    assert [task.id for task in listed] == [*OWN, "MyLab/Swing-v0"]
    with pytest.raises(ImportError, match="'MyLab/Broken-v0' of package 'my-lab'") as raised:
        gymnasium.make_vec("MyLab/Broken-v0", num_envs=2)
    assert isinstance(raised.value, PluginError) and words in str(raised.value)
    if module not in ("mylab_number", "mylab_other"):
        assert raised.value.__cause__ is not None
    gymnasium.make("CartPole-v1").close()
    assert load_task(GO2).id == GO2


def test_a_module_that_is_not_there(site):
    install(site, "my-lab", {"MyLab/Gone-v0": "mylab_gone.task:owner"})
    rescan()
    with pytest.raises(PluginError, match="No module named 'mylab_gone'"):
        load_task("MyLab/Gone-v0")


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"MyLab/A-v0": "mylab_swing"}, "'mylab_swing' is not of the form 'package.module:owner'"),
        ({"MyLab/A-v0": "mylab swing:owner"}, "is not of the form"),
        ({"MyLab/A!": "mylab_swing:owner"}, "the id is not of the form 'Namespace/Name-v0'"),
        ({GO2: "mylab_swing:owner"}, f"'{GO2}' is a task of unilab_gym itself"),
        ({"UniLab/CartPole-v7": "mylab_swing:owner"}, "is a task of unilab_gym itself"),
        ({"CartPole-v1": "mylab_swing:owner"}, "is registered with Gymnasium by somebody else"),
        ({"CartPole-v9": "mylab_swing:owner"}, "is registered with Gymnasium by somebody else"),
        ("[unilab_gym.tasks]\nnonsense\n", "entry_points.txt cannot be read"),
    ],
)
def test_a_declaration_that_cannot_be_used(site, declared, words):
    install(site, "my-lab", declared, mylab_swing=TASK)
    before = gymnasium.spec(GO2), gymnasium.spec("CartPole-v1")
    rescan()
    assert before == (gymnasium.spec(GO2), gymnasium.spec("CartPole-v1"))
    with pytest.warns(PluginWarning) as caught:
        assert [task.id for task in list_tasks()] == list(OWN)
    assert len(caught) == 1
    assert words in str(caught[0].message) and "'my-lab'" in str(caught[0].message)
    assert "mylab_swing" not in sys.modules
    for name in declared if isinstance(declared, dict) else ():
        if name not in OWN:
            with pytest.raises(PluginError, match="of package 'my-lab'"):
                load_task(name)


def test_two_packages_with_one_id(site):
    for package, value in (("lab-a", "mylab_swing:owner"), ("lab-b", "mylab_swing:TASK")):
        modules = {"mylab_swing": TASK} if package == "lab-a" else {}
        install(site, package, {"MyLab/Swing-v0": value}, **modules)
    rescan()
    assert task_ids().count("MyLab/Swing-v0") == 1
    with pytest.raises(PluginError, match="'lab-a': package 'lab-b' declares this id, too"):
        load_task("MyLab/Swing-v0")


def test_what_an_owner_returns_is_looked_at(site):
    source = """
    import dataclasses
    from unilab_gym.tasks import cartpole
    def nothing(backend): pass
    def other(backend): return cartpole.owner(backend)
    def plain(backend):
        cfg = cartpole.owner("mujoco")
        return dataclasses.replace(cfg, task="MyLab/Plain-v0")
    """
    names = {f"MyLab/{name.title()}-v0": f"mylab:{name}" for name in ("nothing", "other", "plain")}
    install(site, "my-lab", names, mylab=source)
    rescan()
    with pytest.raises(ConfigError, match="its owner must return an OwnerCfg, got None"):
        owner_config("MyLab/Nothing-v0", "mujoco")
    with pytest.raises(ConfigError, match="its owner says task='UniLab/CartPole-v0'"):
        owner_config("MyLab/Other-v0", "mujoco")
    assert owner_config("MyLab/Plain-v0", "mjwarp").training.sim_backend == "mjwarp"


def test_an_owner_that_fails_hurts_neither_list_nor_audit(site, capsys):
    source = """
    import dataclasses
    from unilab_gym.config import apply_overrides
    from unilab_gym.tasks import cartpole
    def raises(backend): raise KeyError("no robot")
    def gone(backend):
        cfg = dataclasses.replace(cartpole.owner(backend), task="MyLab/Gone-v0")
        return apply_overrides(cfg, {"env.scene.robot": "no/such/robot.xml"})
    """
    names = {"MyLab/Raises-v0": "mylab:raises", "MyLab/Gone-v0": "mylab:gone"}
    install(site, "my-lab", names, mylab=source)
    rescan()
    with pytest.warns(PluginWarning) as caught:
        assert [task["id"] for task in task_facts()] == list(OWN)
    messages = sorted(str(warning.message) for warning in caught)
    assert len(messages) == 2
    assert "'MyLab/Gone-v0' does not build: no file 'no/such/robot.xml'" in messages[0]
    assert "'MyLab/Raises-v0' of package 'my-lab': its owner fails: KeyError" in messages[1]
    with pytest.raises(KeyError, match="no robot"):
        owner_config("MyLab/Raises-v0", "mujoco")
    cells = transfer_matrix(["MyLab/Gone-v0", "MyLab/Raises-v0", "UniLab/CartPole-v0"])
    verdicts = [cell.verdict for cell in cells]
    assert verdicts == ["broken"] * 8 + ["ok"] * 4
    assert cells[0].to_dict()["problem"].startswith("ConfigError: no file 'no/such/robot.xml'")
    assert cells[4].problem == "KeyError: 'no robot'" and not cells[4].same_contract
    assert show.audit(Audit(task=("MyLab/Gone-v0", "UniLab/CartPole-v0"))) == 1
    said = capsys.readouterr().out
    assert said.count("no/such/robot.xml") == 4 and said.count(" broken ") == 4


IMPORT = """
import importlib, json, logging, os, sys, warnings
import gymnasium
before = dict(os.environ), list(warnings.filters), list(logging.root.handlers)
count = len(gymnasium.registry)
import unilab_gym
import unilab_gym
importlib.reload(unilab_gym)
gymnasium.register_envs(unilab_gym)
after = dict(os.environ), list(warnings.filters), list(logging.root.handlers)
heavy = [name for name in ("torch", "mujoco", "warp", "mylab_swing") if name in sys.modules]
count = len(gymnasium.registry) - count
print(json.dumps([before == after, heavy, list(unilab_gym.task_ids()), count]))
"""


def test_importing_reads_metadata_only(tmp_path):
    """Twice, reloaded, with a good and a broken package: warnings are errors there."""
    install(tmp_path, "my-lab", {"MyLab/Swing-v0": "mylab_swing:owner"}, mylab_swing=TASK)
    install(tmp_path, "bad-lab", {GO2: "mylab_swing:owner", "Bad/Bad-v0": "nowhere:owner"})
    paths = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "tests")))
    same, heavy, ids, count = run_python(IMPORT, PYTHONPATH=paths)
    assert same and heavy == []
    assert ids == [*OWN, "Bad/Bad-v0", "MyLab/Swing-v0"]
    assert count == len(ids)


def test_without_plug_ins_a_list_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [task.id for task in unilab_gym.list_tasks()] == list(OWN)

"""What a step of the Manager runtime dispatches: nothing that stalls a GPU, and not much."""

import dataclasses

import pytest
import torch
from helpers.memory import memory_cfg
from helpers.probe import build, random_actions
from torch.utils._python_dispatch import TorchDispatchMode

import unilab_gym
from unilab_gym.config import DelayCfg, GaussianNoiseCfg, UniformNoiseCfg
from unilab_gym.tasks.go2_joystick_flat import env_cfg

BUDGET = 210
"""Operations of a Go2 step through the Gymnasium face: each is a kernel launch on a GPU."""
STALLS = {
    "_local_scalar_dense",
    "bincount",
    "equal",
    "is_nonzero",
    "lift_fresh",  # a tensor made from Python numbers: a copy to the device
    "masked_select",
    "nonzero",
    "_unique2",
    "unique_consecutive",
}
INDEXING = {"index", "index_put_", "_index_put_impl_", "_unsafe_index"}
HOST = ("cpu", "numpy", "tolist", "item", "__bool__", "__int__", "__float__", "__index__")


class Operations(TorchDispatchMode):
    """Names of everything that is dispatched, views apart: about one kernel launch each."""

    def __init__(self):
        super().__init__()
        self.names = []
        self.stalls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[-1]
        if not (func.is_view or name == "_unsafe_view"):
            self.names.append(name)
        masks = name in INDEXING and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if name in STALLS or masks:
            self.stalls.append(name)
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def go2():
    env = unilab_gym.make(env_cfg(), 3, backend="mujoco", overrides={"sim.num_threads": 1})
    env.reset(seed=0)
    yield env
    env.close()


@pytest.fixture
def watched(monkeypatch):
    """Calls that copy a tensor to the host, by the file that makes them."""
    import sys

    calls = []
    for name in HOST:
        original = getattr(torch.Tensor, name)

        def wrapped(self, *args, _name=name, _original=original, **kwargs):
            caller = sys._getframe(1).f_code.co_filename.replace("\\", "/")
            if not caller.endswith("backends/mujoco.py"):  # the host boundary
                calls.append(f"{_name} in {caller.rsplit('unilab_gym', 1)[-1]}")
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, wrapped)
    return calls


def dispatched(call):
    with Operations() as operations:
        call()
    return operations


def test_the_watch_sees_stalls(watched):
    x = torch.arange(4.0)
    operations = dispatched(lambda: [x[x > 1], x.sum().item(), torch.tensor([1.0])])
    assert {"index", "_local_scalar_dense", "lift_fresh"} <= set(operations.stalls)
    if x.sum() > 1:
        x.tolist()
    assert [call.split()[0] for call in watched] == ["item", "__bool__", "tolist"]


def test_a_step_of_go2_stalls_nothing_and_keeps_the_budget(go2, watched):
    action = random_actions(go2.runtime, 1)[0]
    go2.step(action)
    watched.clear()
    operations = dispatched(lambda: go2.step(action))
    assert operations.stalls == []
    assert watched == []
    assert len(operations.names) <= BUDGET


def go2_with_memory(**changes):
    """Go2 whose policy terms all have noise, a bias, a drawn latency and a history of five."""
    cfg = env_cfg()
    policy = cfg.observations["policy"]
    terms = {
        name: dataclasses.replace(term, **{"noise": UniformNoiseCfg(low=-0.1, high=0.1), **changes})
        for name, term in policy.terms.items()
    }
    groups = {**cfg.observations, "policy": dataclasses.replace(policy, terms=terms)}
    cfg = dataclasses.replace(cfg, observations=groups)
    return unilab_gym.make(cfg, 3, backend="mujoco", overrides={"sim.num_threads": 1})


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({"history": 5, "delay": (0, 3)}, 25),
        ({"history": 5, "delay": DelayCfg(steps=(0, 3), redraw=5)}, 25),
        ({"history": 5}, 4),
        ({"delay": 2}, 7),
        ({"noise": GaussianNoiseCfg(std=0.1), "history": 5, "delay": (0, 3)}, 25),
    ],
    ids=str,
)
def test_memory_costs_few_operations_and_only_where_it_is_asked_for(go2, watched, changes, extra):
    action = random_actions(go2.runtime, 1)[0]
    bare = len(dispatched(lambda: go2.step(action)).names)
    env = go2_with_memory(**changes)
    env.reset(seed=0)
    env.step(action)
    watched.clear()
    operations = dispatched(lambda: env.step(action))
    assert operations.stalls == []
    assert watched == []
    assert 0 <= len(operations.names) - bare <= extra
    env.close()


def test_operations_do_not_depend_on_what_happens(go2):
    """A reset of nobody, somebody or everybody is the same list of operations."""
    runtime = go2.runtime
    action = random_actions(runtime, 1)[0]
    lists = []
    for steps in ([0, 0, 0], [10**6, 0, 0], [10**6] * 3):
        runtime.rt.episode_step.copy_(torch.tensor(steps))
        lists.append(dispatched(lambda: go2.step(action)).names)
        assert runtime.state.truncated.tolist() == [step > 0 for step in steps]
    assert lists[0] == lists[1] == lists[2]


def test_a_masked_reset_stalls_nothing(tmp_path, watched):
    env = build(memory_cfg(tmp_path), 4)
    env.reset()
    mask = torch.tensor([True, False, False, True])
    watched.clear()
    operations = dispatched(lambda: env.reset(mask=mask))
    assert operations.stalls == []
    assert watched == []
    env.close()

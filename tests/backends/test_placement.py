"""CPU placement, in processes of its own: an affinity cannot be given back to a test run."""

import os
import textwrap

import pytest
from helpers.face import run_python

from unilab_gym.backends import placement
from unilab_gym.config import EnvCfg
from unilab_gym.errors import ConfigError, UnsupportedCapabilityError

linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")

PLACED = textwrap.dedent("""
    import json, os, threading, warnings
    import torch
    import helpers.face as face

    def cpus():
        return {t: sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")}

    release = threading.Event()
    threading.Thread(target=release.wait, daemon=True).start()
    before = (dict(os.environ), torch.get_num_threads())
    first = sorted(os.sched_getaffinity(0))[0]
    env = face.make_go2(4, overrides={"cpu_ids": [first]})
    env.reset(seed=0)
    env.step(torch.zeros(4, 12))
    allowed = cpus()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        messages = lambda: [str(w.message) for w in told if "cpu_ids" in str(w.message)]
        face.make_go2(1, overrides={"cpu_ids": [first]}).close()
        face.make_go2(1).close()
        quiet = len(messages())
        face.make_go2(1, overrides={"cpu_ids": [first, first + 1]}).close()
    print(json.dumps({
        "first": first,
        "threads": len(allowed),
        "sets": sorted(set(map(tuple, allowed.values()))),
        "pool": env.unwrapped.runtime.backend.batch.nthread,
        "same": before == (dict(os.environ), torch.get_num_threads()),
        "quiet": quiet,
        "told": messages(),
        "after": sorted(os.sched_getaffinity(0)),
    }))
    release.set()
""")


@linux
def test_every_thread_is_confined_and_a_second_set_only_warns():
    found = run_python(PLACED)
    first = found["first"]
    assert found["threads"] >= 2 and found["sets"] == [[first]]
    assert found["pool"] == 1  # threads for the CPUs that are left
    assert found["same"]
    assert found["quiet"] == 0
    (message,) = found["told"]
    assert f"is confined to ({first},)" in message and "is ignored" in message
    assert found["after"] == [first]


@linux
def test_a_cpu_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"cpu_ids \[99999\] are not usable here; usable: \["):
        placement.place((99999,))


def test_other_systems_refuse_by_name(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    monkeypatch.setattr(placement.platform, "system", lambda: "Darwin")
    with pytest.raises(UnsupportedCapabilityError, match=r"CPU placement needs Linux.*Darwin"):
        placement.place((0,))


@pytest.mark.parametrize("ids", [(), (-1,), (0, 0), (0.5,)])
def test_sets_that_are_none(ids):
    with pytest.raises(ConfigError, match="cpu_ids must be different CPU numbers"):
        EnvCfg(scene=None, actions={"a": None}, observations={"policy": None}, cpu_ids=ids)

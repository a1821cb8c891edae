"""Backends of the walker, built once per process: MuJoCo-Warp compiles kernels for each model.

Kernels compile once per machine (about half a minute).
"""

import pytest
import torch
from helpers.walker import (
    DECIMATION,
    N,
    default_payload,
    make_plan,
    make_spec,
    walker_scene,
)

from unilab_gym.backends import create_backend
from unilab_gym.backends.base import RecomputeLevel


@pytest.fixture(scope="session")
def scene(tmp_path_factory):
    return walker_scene(tmp_path_factory.mktemp("mjcf"))


@pytest.fixture(scope="session")
def engines(scene):
    """Name -> (backend, reads), built at the first use."""
    built = {}

    def get(name):
        if name == "mjwarp":
            pytest.importorskip("mujoco_warp")
        if name not in built:
            backend = create_backend(name, make_spec(scene))
            built[name] = backend, backend.compile_reads(make_plan(scene.index))
        return built[name]

    yield get
    for backend, _ in built.values():
        backend.close()


def renewed(engine):
    """A shared backend with nominal fields, every row at the default state."""
    backend, reads = engine
    assert backend.spec.decimation == DECIMATION
    every = torch.ones(N, dtype=torch.bool)
    fields = {
        name: backend.nominal(name).expand(N, *backend.nominal(name).shape)
        for name in backend.spec.model_fields
    }
    backend.set_model_fields(fields, every, RecomputeLevel.ALL)
    backend.reset(default_payload(backend), every)
    return backend, reads


@pytest.fixture(params=["mujoco", "mjwarp"])
def engine(request, engines):
    """Each backend in turn, like new."""
    return renewed(engines(request.param))


@pytest.fixture
def warp_engine(engines):
    return renewed(engines("mjwarp"))


@pytest.fixture
def c_engine(engines):
    return renewed(engines("mujoco"))

"""Go2 on both backends, built once per process: MuJoCo-Warp compiles kernels for each model."""

import pytest
from helpers.face import make_go2


@pytest.fixture(scope="session")
def go2():
    """(backend, play) -> the environment: 6 rows for training, 13 for play."""
    built = {}

    def get(backend, play=False):
        if backend == "mjwarp":
            pytest.importorskip("mujoco_warp")
        if (backend, play) not in built:
            rows = 13 if play else 6  # play: one row at rest and one for each joint
            built[backend, play] = make_go2(rows, backend=backend, play=play)
        return built[backend, play]

    yield get
    for env in built.values():
        env.close()


@pytest.fixture(params=["mujoco", "mjwarp"])
def train_env(request, go2):
    return go2(request.param)


@pytest.fixture(params=["mujoco", "mjwarp"])
def play_env(request, go2):
    return go2(request.param, play=True)

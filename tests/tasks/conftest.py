"""Go2 and G1, built once per process and backend: MuJoCo-Warp compiles kernels for each model."""

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


@pytest.fixture(scope="session")
def g1():
    """(task, backend, play, ...) -> the environment: 6 rows for training, 30 for play."""
    import gymnasium

    built = {}

    def get(task, backend, play=False, **kwargs):
        if backend == "mjwarp":
            pytest.importorskip("mujoco_warp")
        key = (task, backend, play, *sorted(kwargs.items()))
        if key not in built:
            rows = 30 if play else 6  # play: one row at rest and one for each joint
            built[key] = gymnasium.make_vec(
                f"UniLab/{task}-v0", rows, backend=backend, device="cpu", play=play, **kwargs
            )
        return built[key]

    yield get
    for env in built.values():
        env.close()

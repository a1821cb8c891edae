"""The robot of the public conformance suite, for what only one engine has to show."""

import torch

from unilab_gym.backends.base import BackendSpec
from unilab_gym.config import SceneCfg, SimCfg
from unilab_gym.scene import build_scene
from unilab_gym.testing.conformance_bench import DECIMATION, DT, MJCF, block
from unilab_gym.testing.conformance_bench import ROWS as N
from unilab_gym.testing.conformance_bench import walker_plan as make_plan

__all__ = ["DECIMATION", "DT", "MJCF", "N", "block", "make_plan"]

FIELDS = ("geom_friction", "body_mass")


def walker_scene(folder):
    """The compiled scene; its MJCF is written to a folder."""
    path = folder / "walker.xml"
    path.write_text(MJCF)
    return build_scene(SceneCfg(robot=str(path)), SimCfg(), DT)


def make_spec(scene, **changes):
    values = {
        "model": scene.model,
        "index": scene.index,
        "num_envs": N,
        "device": torch.device("cpu"),
        "decimation": DECIMATION,
        "model_fields": FIELDS,
    }
    return BackendSpec(**(values | changes))


def default_payload(backend):
    """A payload of its own for each caller: only the first one allocated is the graph's input."""
    backend.allocate_reset_payload()
    return backend.allocate_reset_payload()


def mask_of(*rows):
    mask = torch.zeros(N, dtype=torch.bool)
    mask[list(rows)] = True
    return mask


def controls(index, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(steps, N, index.nu, generator=generator)
    return torch.tensor(index.default_ctrl) + 0.6 * noise


def snapshot(backend, reads):
    tensors = {str(key): value.clone() for key, value in reads.items()}
    return tensors | {"state": backend.get_state(), "faults": backend.faults().clone()}


def assert_equal(left, right, rows=slice(None)):
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert torch.equal(value[rows], right[key][rows]), key


def run(backend, ctrl):
    for row in ctrl:
        backend.step(row, None)

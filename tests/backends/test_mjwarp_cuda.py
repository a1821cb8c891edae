"""MuJoCo-Warp on CUDA: what only a GPU can show."""

import pytest
import torch
from helpers.walker import (
    N,
    assert_equal,
    controls,
    default_payload,
    make_plan,
    make_spec,
    mask_of,
    run,
    snapshot,
)

from unilab_gym.backends.base import FaultBit, RecomputeLevel, TensorIntervalPayload
from unilab_gym.errors import BackendError

pytest.importorskip("mujoco_warp")

from unilab_gym.backends import mjwarp

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def gpu(scene):
    backend = mjwarp.MjWarpBackend(make_spec(scene, device=torch.device("cuda", 0)))
    yield backend, backend.compile_reads(make_plan(scene.index))
    backend.close()


def restart(backend):
    every = torch.ones(N, dtype=torch.bool, device=backend.device)
    backend.reset(default_payload(backend), every)


def test_cuda_hot_path_never_waits(scene, gpu):
    backend, _ = gpu
    restart(backend)
    ctrl = controls(scene.index, 10).cuda()
    payload, mask = default_payload(backend), mask_of(1, 2).cuda()
    delta = TensorIntervalPayload(torch.zeros(N, scene.index.nv, device="cuda"))
    backend.step(ctrl[0], delta)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for row in ctrl:
            backend.step(row, delta)
            backend.reset(payload, mask)
            backend.set_model_fields({}, mask, RecomputeLevel.ALL)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert backend.views().qpos.isfinite().all()


def test_cuda_agrees_with_the_cpu_device(scene, warp_engine, gpu):
    (cpu, cpu_reads), (backend, reads) = warp_engine, gpu
    restart(backend)
    ctrl = controls(scene.index, 2)
    for row in ctrl:
        cpu.step(row, None)
        backend.step(row.cuda(), None)
    assert (backend.views().qpos.cpu() - cpu.views().qpos).abs().max() <= 1e-5
    assert (backend.views().qvel.cpu() - cpu.views().qvel).abs().max() <= 1e-3
    for item, value in reads.items():
        assert torch.allclose(value.cpu(), cpu_reads[item], rtol=1e-2, atol=5e-2), item
    assert not (backend.faults() & FaultBit.CONTACT_POOL_OVERFLOW).any()


def test_cuda_reset_leaves_other_rows_alone(scene, gpu):
    backend, reads = gpu
    restart(backend)
    start = snapshot(backend, reads)
    run(backend, controls(scene.index, 10).cuda())
    before = snapshot(backend, reads)
    mask = mask_of(0, 3).cuda()
    backend.reset(default_payload(backend), mask)
    after = snapshot(backend, reads)
    assert_equal(before, after, ~mask)
    declared = [str(item) for item in make_plan(scene.index).reset] + ["state"]
    assert_equal({k: after[k] for k in declared}, {k: start[k] for k in declared}, mask)


def test_cuda_orders_work_across_streams(scene, gpu):
    """Steps on alternating side streams, the last state read on a third after `wait`."""
    backend, _ = gpu
    ctrl = controls(scene.index, 8).cuda()
    restart(backend)
    run(backend, ctrl)
    torch.cuda.synchronize()
    expected = backend.views().qpos.clone()
    restart(backend)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    receipt = None
    for i, row in enumerate(ctrl):
        with torch.cuda.stream(streams[i % 2]):
            receipt = backend.step(row, None)
    assert receipt.event is not None
    with torch.cuda.stream(torch.cuda.Stream()):
        receipt.wait()
        got = backend.views().qpos.clone()
    torch.cuda.synchronize()
    assert (got - expected).abs().max() <= 1e-4
    assert len(backend._runner._streams) >= 2


def test_cuda_refuses_launches_without_a_graph(scene):
    with pytest.raises(BackendError, match="CPU device only"):
        mjwarp.MjWarpBackend(make_spec(scene, device=torch.device("cuda", 0)), _uncaptured=True)

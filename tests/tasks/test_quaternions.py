"""E41: wxyz through every door of both engines; q and -q are one orientation."""

import math

import pytest
import torch
from helpers.crate import make_crate

from unilab_gym.config import ObservationTermCfg
from unilab_gym.runtime.reads import BodyQuat, ProjectedGravity, RootQuat
from unilab_gym.runtime.term import term

HALF = math.sqrt(0.5)
POSES = {  # wxyz, and gravity in the base frame
    "identity": ((1.0, 0.0, 0.0, 0.0), (0.0, 0.0, -1.0)),
    "yaw 90": ((HALF, 0.0, 0.0, HALF), (0.0, 0.0, -1.0)),
    "roll 90": ((HALF, HALF, 0.0, 0.0), (0.0, -1.0, 0.0)),
    "pitch 90": ((HALF, 0.0, HALF, 0.0), (1.0, 0.0, 0.0)),
    "minus roll 90": ((-HALF, -HALF, 0.0, 0.0), (0.0, -1.0, 0.0)),
}


@term(reads=(RootQuat(), BodyQuat(("base",)), ProjectedGravity()), width=11)
def orientation(frame):
    parts = (frame[RootQuat()], frame[BodyQuat(("base",))].flatten(1), frame[ProjectedGravity()])
    return torch.cat(parts, 1)


@pytest.mark.parametrize("backend", ["mujoco", "mjwarp"])
def test_every_door_is_wxyz(tmp_path, backend):
    if backend == "mjwarp":
        pytest.importorskip("mujoco_warp")
    terms = {"pose": ObservationTermCfg(func=orientation)}
    env = make_crate(tmp_path, num_envs=len(POSES), backend=backend, observations_=terms)
    engine, index = env.runtime.backend, env.runtime.index
    assert engine.capabilities.quaternion_order == "wxyz"
    assert index.default_qpos[3:7] == (1.0, 0.0, 0.0, 0.0)  # the keyframe's
    quats = torch.tensor([quat for quat, _ in POSES.values()])
    gravity = torch.tensor([down for _, down in POSES.values()])
    state = engine.get_state()
    columns = slice(index.qpos_offset + 3, index.qpos_offset + 7)
    state[:, index.qpos_offset + 2] = 5.0
    state[:, columns] = quats.to(state.dtype)
    engine.set_state(state, torch.ones(len(POSES), dtype=torch.bool))
    assert torch.allclose(engine.get_state()[:, columns].float(), quats)
    assert torch.allclose(engine.views().qpos[:, 3:7], quats)
    for row in range(len(POSES)):
        assert engine.render_state(row)[0][3:7] == pytest.approx(quats[row].tolist())
    obs = env.step(torch.zeros(len(POSES), 1))[0]  # free fall: nothing turns
    assert torch.allclose(obs[:, 0:4], quats, atol=1e-3)
    body = obs[:, 4:8] * (obs[:, 4:8] * quats).sum(1, keepdim=True).sign()
    assert torch.allclose(body, quats, atol=1e-3)
    assert torch.allclose(obs[:, 8:11], gravity, atol=2e-3)
    env.close()

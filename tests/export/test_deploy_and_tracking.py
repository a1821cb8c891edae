"""deploy.yaml for Unitree's runtime, and the tracking variant with its reference inside."""

import copy
import json

import onnxruntime
import pytest
import torch
from helpers.actors import TASK, A, D, make_actor

from unilab_gym.contract import check_replay, resolve
from unilab_gym.errors import ConfigError, ExportMismatchError
from unilab_gym.export import (
    MOTION_KEYS,
    DeploySettings,
    deploy_document,
    export_policy,
    export_tracking_policy,
    load_policy,
    tracking,
    write_deploy_yaml,
)
from unilab_gym.registration import owner_config

RANGES = {"lin_vel_x": (-0.6, 1.0), "lin_vel_y": (-0.4, 0.4), "ang_vel_yaw": (-0.8, 0.8)}


@pytest.fixture(scope="module")
def contract():
    return resolve(owner_config(TASK, "mujoco"))


def sdk_order(contract):
    """Unitree's motors go FR, FL, RR, RL; the policy's joints FL, FR, RL, RR."""
    names = contract["actions"]["joints"]
    return [name for leg in ("FR", "FL", "RR", "RL") for name in names if name.startswith(leg)]


# --- deploy.yaml ----------------------------------------------------------------------------------


def test_motors_stand_in_their_order_and_joints_in_the_policys(contract):
    changed = copy.deepcopy(contract)
    changed["joints"]["kp"][0] = 99.0  # FL_hip: motor 3
    document = deploy_document(changed, DeploySettings("x", sdk_order(contract), RANGES))
    assert document["joint_ids_map"] == [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]
    assert document["stiffness"][3] == 99.0 and document["stiffness"].count(99.0) == 1
    assert document["default_joint_pos"] == contract["joints"]["default"]
    assert document["step_dt"] == 0.02
    ranges = document["commands"]["base_velocity"]["ranges"]
    assert ranges == {"lin_vel_x": [-0.6, 1.0], "lin_vel_y": [-0.4, 0.4], "ang_vel_z": [-0.8, 0.8]}
    names = ["base_ang_vel", "projected_gravity", "joint_pos_rel", "joint_vel_rel", "last_action",
             "velocity_commands", "gait_phase"]  # fmt: skip
    assert list(document["observations"]) == names
    assert document["observations"]["base_ang_vel"]["history_length"] == 1


def test_its_clip_gives_the_environments_targets(contract):
    """That runtime clips offset + scale x raw; this package clamps raw to the box first."""
    action = deploy_document(contract, DeploySettings("x", None, RANGES))["actions"]
    action = action["JointPositionAction"]
    raw = torch.linspace(-9.0, 9.0, 19).unsqueeze(1).expand(-1, A)
    scale, offset = torch.tensor(action["scale"]), torch.tensor(action["offset"])
    low, high = torch.tensor(action["clip"]).unbind(1)
    theirs = (offset + scale * raw).clamp(low, high)
    ours = offset + scale * raw.clamp(-4.0, 4.0)
    assert torch.allclose(theirs, ours, atol=1e-6)
    limited = copy.deepcopy(contract)
    limited["actions"]["target_clip"][0] = [-0.5, 0.25]
    limited["actions"]["box"] = [None] * A
    clip = deploy_document(limited, DeploySettings("x", None, RANGES))["actions"]
    assert clip["JointPositionAction"]["clip"][0] == [-0.5, 0.25]


def test_the_file_is_yaml_and_the_policy_beside_it_has_a_fixed_batch(contract, tmp_path):
    deploy = DeploySettings(tmp_path / "params" / "deploy.yaml", sdk_order(contract), RANGES)
    export_policy(make_actor(), contract, tmp_path / "policy.onnx", deploy=deploy)
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    assert [(item.name, item.shape) for item in session.get_inputs()] == [("obs", [1, D])]
    lines = (tmp_path / "params" / "deploy.yaml").read_text().splitlines()
    assert lines[1] == "step_dt: 0.02"
    assert "    joint_ids: null" in lines
    values = dict(line.strip().split(": ", 1) for line in lines if ": " in line)
    assert json.loads(values["joint_ids_map"])[:3] == [3, 4, 5]
    assert json.loads(values["stiffness"])[0] == 35.0
    assert [path.name for path in (tmp_path / "params").iterdir()] == ["deploy.yaml"]


def test_what_cannot_be_deployed_is_told_before_anything_is_written(contract, tmp_path):
    def fails(changed, words, **settings):
        deploy = DeploySettings(tmp_path / "deploy.yaml", **{"command_ranges": RANGES, **settings})
        with pytest.raises(ConfigError, match=words):
            export_policy(make_actor(), changed, tmp_path / "p.onnx", deploy=deploy)

    fails(contract, "sdk_joints must be .*'FL_hip'; did you mean 'FL_hip_joint'",
          sdk_joints=["FL_hip", *contract["actions"]["joints"][1:]])  # fmt: skip
    fails(contract, "does not say the range of lin_vel_x.*command_ranges", command_ranges=None)
    delayed = copy.deepcopy(contract)
    delayed["observations"]["policy"]["terms"][0]["delay"] = 1
    fails(delayed, "base_ang_vel: that runtime has no observation delay")
    assert list(tmp_path.iterdir()) == []


def test_floats_have_a_point(contract, tmp_path):
    changed = copy.deepcopy(contract)
    changed["joints"]["kd"] = [1e-05] * A
    path = write_deploy_yaml(changed, DeploySettings(tmp_path / "d.yaml", None, RANGES))
    assert "damping: [1.0e-05, " in path.read_text()  # YAML 1.1 takes 1e-05 for text


# --- tracking -------------------------------------------------------------------------------------

T, BODIES = 7, ("base", "FL_calf", "FR_calf")


def motion(length=T, joints=A):
    """Values that encode frame and column, so that a mixed-up axis fails loudly."""
    frames = torch.arange(length, dtype=torch.float32)
    bodies = len(BODIES)
    vectors = frames.view(-1, 1, 1) + 0.01 * torch.arange(bodies * 3.0).view(1, bodies, 3)
    angle = (0.1 * frames.view(-1, 1) + torch.arange(float(bodies))) / 2.0
    zero = torch.zeros_like(angle)
    return {
        "joint_pos": frames.view(-1, 1) + 0.01 * torch.arange(float(joints)),
        "joint_vel": -frames.view(-1, 1) - 0.01 * torch.arange(float(joints)),
        "body_pos_w": vectors,
        "body_quat_w": torch.stack([angle.cos(), zero, zero, angle.sin()], -1),
        "body_lin_vel_w": 2.0 * vectors,
        "body_ang_vel_w": 3.0 * vectors,
    }


@pytest.fixture(scope="module")
def tracker(contract, tmp_path_factory):
    path = tmp_path_factory.mktemp("tracking") / "policy.onnx"
    export_tracking_policy(
        make_actor(seed=4), contract, path,
        motion=motion(), body_names=BODIES, anchor_body_name="base",
    )  # fmt: skip
    return path


def test_inputs_outputs_and_metadata(tracker, contract):
    session = onnxruntime.InferenceSession(str(tracker))
    inputs = {item.name: item.shape for item in session.get_inputs()}
    assert inputs == {"obs": [1, D], "time_step": [1, 1]}
    outputs = {item.name: item.shape for item in session.get_outputs()}
    assert list(outputs) == ["actions", *MOTION_KEYS]
    assert outputs["body_quat_w"] == [1, 3, 4] and outputs["joint_vel"] == [1, A]
    policy = load_policy(tracker)
    assert policy.metadata["anchor_body_name"] == "base"
    assert policy.metadata["body_names"] == "base,FL_calf,FR_calf"
    assert policy.metadata["joint_names"].split(",") == contract["actions"]["joints"]
    assert policy.contract == contract
    assert check_replay(tracker, owner_config(TASK, "mjwarp")).ok


@pytest.mark.parametrize(
    ("step", "frame"), [(-1, 0), (0, 0), (3, 3), (T - 1, T - 1), (T, T - 1), (T + 5, T - 1)]
)
def test_the_reference_is_inside_and_its_index_is_clamped(tracker, step, frame):
    given = load_policy(tracker).reference(step)
    for key, values in motion().items():
        assert torch.equal(given[key], values[frame]), key


def test_actions_are_those_of_the_actor_at_every_step(tracker):
    session = onnxruntime.InferenceSession(str(tracker))
    obs = torch.randn(1, D, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = make_actor(seed=4)(obs)
    for step in (0.0, 5.0):
        feed = {"obs": obs.numpy(), "time_step": torch.full((1, 1), step).numpy()}
        given = torch.from_numpy(session.run(["actions"], feed)[0])
        assert (given - wanted).abs().max() <= 1e-5
    policy = load_policy(tracker)
    assert policy.tracking and (policy(obs.expand(3, -1)) - wanted).abs().max() <= 1e-5


def _without(key):
    data = motion()
    del data[key]
    return data


WRONG = {
    "the motion lacks body_quat_w": lambda: _without("body_quat_w"),
    r"joint_pos must have shape \[7, 12\].*got \[7, 11\]": lambda: motion(joints=A - 1),
    "two frames at the least, got 1": lambda: motion(length=1),
    "unit quaternions wxyz": lambda: {**motion(), "body_quat_w": 2.0 * motion()["body_quat_w"]},
    "body_pos_w holds numbers that are not finite": lambda: {
        **motion(), "body_pos_w": motion()["body_pos_w"] * float("nan")
    },
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG)
def test_a_motion_that_does_not_fit_is_refused(contract, tmp_path, words):
    with pytest.raises(ConfigError, match=words):
        export_tracking_policy(
            make_actor(), contract, tmp_path / "p.onnx",
            motion=WRONG[words](), body_names=BODIES, anchor_body_name="base",
        )  # fmt: skip
    with pytest.raises(ConfigError, match="anchor_body_name 'bse'; did you mean 'base'"):
        export_tracking_policy(
            make_actor(), contract, tmp_path / "p.onnx",
            motion=motion(), body_names=BODIES, anchor_body_name="bse",
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_another_reference_is_not_kept(contract, tmp_path, monkeypatch):
    class Shifted(tracking._Tracker):
        def __init__(self, policy, reference):
            super().__init__(policy, {key: value.roll(1, 0) for key, value in reference.items()})

    monkeypatch.setattr(tracking, "_Tracker", Shifted)
    with pytest.raises(ExportMismatchError, match="time step -1: the file gives another joint_pos"):
        export_tracking_policy(
            make_actor(), contract, tmp_path / "p.onnx",
            motion=motion(), body_names=BODIES, anchor_body_name="base",
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_plain_policy_holds_no_reference(contract, tmp_path):
    export_policy(make_actor(), contract, tmp_path / "p.onnx")
    with pytest.raises(ConfigError, match="no reference motion"):
        load_policy(tmp_path / "p.onnx").reference(0)

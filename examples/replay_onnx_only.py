"""Replays an exported policy with onnxruntime, NumPy and plain MuJoCo: no unilab_gym, no torch.

    python examples/replay_onnx_only.py policy.onnx --command 0.5 0 0

Everything that a deployment has to know is in the file: its metadata key "unilab_gym" holds the
contract as JSON (joint order, default pose, gains, action scale, observation terms, control step).
"""

import argparse
import json
import re
from pathlib import Path

import mujoco
import numpy as np
import onnxruntime

ROBOT = Path(__file__).resolve().parents[1] / "assets" / "robots" / "go2" / "go2.xml"


def load_policy(path):
    """The network and the contract that it was trained under."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session, json.loads(session.get_modelmeta().custom_metadata_map["unilab_gym"])


def load_robot(path, contract):
    """The robot on a floor, with the contract's gains and physics step, in its default pose."""
    spec = mujoco.MjSpec.from_file(str(path))
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    spec.worldbody.add_geom(type=plane, size=[0, 0, 0.05], rgba=[0.4, 0.45, 0.5, 1])
    spec.worldbody.add_light(pos=[0, 0, 4], dir=[0.2, 0.3, -1])
    spec.option.timestep = contract["sim_dt"]
    model = spec.compile()
    joints = contract["joints"]
    for name, kp, kd in zip(joints["actuators"], joints["kp"], joints["kd"], strict=True):
        actuator = model.actuator(name)  # force = kp (ctrl - q) - kd qdot
        actuator.gainprm[0], actuator.biasprm[1:3] = kp, (-kp, -kd)
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)  # height of the base
    for name, position in zip(joints["names"], joints["default"], strict=True):
        data.joint(name).qpos = position
    mujoco.mj_forward(model, data)
    return model, data


def rotation(data):
    """Base frame to world frame."""
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, data.qpos[3:7])
    return matrix.reshape(3, 3)


def trot_gait(contract, command, phase_0, step):
    """The clock that the policy walks to: sine and cosine for each diagonal pair of legs."""
    gait = {"frequency": 2.0, "standing_norm": 0.05} | contract["commands"].get("gait", {})
    if np.linalg.norm(command) < gait["standing_norm"]:
        return np.zeros(4)
    phase = phase_0 + gait["frequency"] * contract["control_dt"] * step
    angles = 2 * np.pi * np.array([phase, phase + 0.5])
    return np.stack([np.sin(angles), np.cos(angles)], 1).ravel()


def measure(term, contract, data, action, commands):
    """The value of one observation term; its function in the contract says which."""
    name, params = term["func"].rpartition(":")[2], term["params"]
    if name == "base_ang_vel":
        return data.qvel[3:6]  # MuJoCo gives it in the base frame
    if name == "projected_gravity":
        return -rotation(data)[2]  # R^T (0, 0, -1)
    if name == "last_action":
        return action
    if name == "command":
        return commands[params["command"]]
    pose = dict(zip(*(contract["joints"][key] for key in ("names", "default")), strict=True))
    hits = (n for pattern in params["joints"] for n in pose if re.fullmatch(pattern, n))
    joints = list(dict.fromkeys(hits))
    if name == "joint_pos_rel":
        return np.array([data.joint(joint).qpos[0] - pose[joint] for joint in joints])
    if name == "joint_vel":
        return np.array([data.joint(joint).qvel[0] for joint in joints])
    raise ValueError(f"this example does not know the observation term {name!r}")


def observation(contract, data, action, commands):
    """The policy's input: every term of its groups, scale x clip(value), in order."""
    parts = []
    network = contract["network"]
    for group in network["obs_groups"]["actor"] if network else ["policy"]:
        for term in contract["observations"][group]["terms"]:
            if term["history"] or term["delay"]:
                raise ValueError(f"this example keeps no history, {term['name']} needs one")
            value = measure(term, contract, data, action, commands)
            low, high = term["clip"] or (-np.inf, np.inf)
            parts.append(np.clip(value, low, high) * term["scale"])
    return np.concatenate(parts).astype(np.float32)


def joint_targets(contract, raw):
    """What the network gives -> the action inside its box, and the targets of the joints."""
    columns = contract["actions"]
    box = np.array([np.inf if bound is None else bound for bound in columns["box"]])
    action = np.clip(raw, -box, box)
    targets = np.array(columns["offset"]) + np.array(columns["scale"]) * action
    for column, clip in enumerate(columns["target_clip"]):
        if clip is not None:
            targets[column] = np.clip(targets[column], *clip)
    return action, targets


def save_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"P6 {pixels.shape[1]} {pixels.shape[0]} 255\n".encode() + pixels.tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy", type=Path, help="the exported .onnx file")
    parser.add_argument("--robot", type=Path, default=ROBOT, help="the robot's MJCF")
    parser.add_argument("--command", type=float, nargs=3, default=(0.5, 0.0, 0.0))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--frames", type=Path, help="folder for one .ppm image each 0.1 s")
    args = parser.parse_args()

    session, contract = load_policy(args.policy)
    model, data = load_robot(args.robot, contract)
    renderer = mujoco.Renderer(model) if args.frames else None
    command, action = np.array(args.command), np.zeros(len(contract["actions"]["scale"]))
    controls = [model.actuator(name).id for name in contract["actions"]["actuators"]]
    velocities = []
    for step in range(round(args.seconds / contract["control_dt"])):
        commands = {"twist": command, "gait": trot_gait(contract, command, 0.0, step)}
        obs = observation(contract, data, action, commands)
        raw = session.run(["actions"], {"obs": obs[None]})[0][0]
        action, data.ctrl[controls] = joint_targets(contract, raw)
        mujoco.mj_step(model, data, contract["decimation"])
        velocities.append([*(rotation(data).T @ data.qvel[:3])[:2], data.qvel[5]])
        if renderer and step % round(0.1 / contract["control_dt"]) == 0:
            renderer.update_scene(data)
            save_image(args.frames / f"{step:05d}.ppm", renderer.render())
    mean = np.mean(velocities[len(velocities) // 10 :], 0)  # without the start
    print(f"walked {np.linalg.norm(data.qpos[:2]):.2f} m, base at {data.qpos[2]:.2f} m in the end")
    for name, wanted, given in zip(("vx m/s", "vy m/s", "wz rad/s"), command, mean, strict=True):
        print(f"{name:9} command {wanted:+.2f}  mean {given:+.2f}  error {given - wanted:+.2f}")


if __name__ == "__main__":
    main()

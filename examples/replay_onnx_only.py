"""Replays an exported policy with onnxruntime, NumPy and plain MuJoCo: no unilab_gym, no torch.

    python examples/replay_onnx_only.py policy.onnx --command 0.5 0 0

Everything that a deployment has to know is in the file: its metadata key "unilab_gym" holds the
contract as JSON (joint order, default pose, gains, action scale, observation terms, control step).
A tracking policy (tracking_CLIP.onnx) holds its reference motion, too: a frame for each time step.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import mujoco
import numpy as np
import onnxruntime

ROBOTS = Path(__file__).resolve().parents[1] / "assets" / "robots"
SCHEMA = "unilab_gym.contract/1"
LAYOUT = "term-major, oldest first"
KINDS = ("joint_position", "relative_joint_position", "joint_velocity", "joint_effort")


class BadFile(Exception):
    """What is wrong with a file, for the user."""


def load_policy(path):
    """The network and the contract that it was trained under."""
    if not Path(path).is_file():
        raise BadFile(f"there is no file {path}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's classes share no other base
        raise BadFile(f"{path} is not an ONNX file that can be run: {error}") from error
    document = session.get_modelmeta().custom_metadata_map.get("unilab_gym")
    if document is None:
        raise BadFile(f"{path} has no metadata key 'unilab_gym': it says nothing of its inputs")
    try:
        contract = json.loads(document)
    except ValueError as error:
        raise BadFile(f"{path}: the contract is not JSON: {error}") from error
    schema = contract.get("schema") if isinstance(contract, dict) else None
    if schema != SCHEMA:
        raise BadFile(f"{path}: the contract has schema {schema!r}, this example reads {SCHEMA!r}")
    check(contract)
    check_graph(path, session, contract)
    if any(is_motion(entry) for entry in contract["commands"].values()) and not tracks(session):
        raise BadFile(f"{path} holds no reference motion: give the run's tracking_CLIP.onnx")
    return session, contract


def is_motion(command):
    """Whether a command of the contract is a reference motion."""
    return "clips" in command


def tracks(session):
    """Whether the file answers a time step with its reference motion."""
    return any(item.name == "time_step" for item in session.get_inputs())


class Reference:
    """The motion inside a tracking policy's file."""

    def __init__(self, session):
        self.session = session
        meta = session.get_modelmeta().custom_metadata_map
        self.bodies, self.anchor = meta["body_names"].split(","), meta["anchor_body_name"]
        self.last = int(meta["time_step_total"]) - 1
        self.keys = [item.name for item in session.get_outputs() if item.name != "actions"]
        self.obs = np.zeros([1, session.get_inputs()[0].shape[-1]], dtype=np.float32)

    def __call__(self, step):
        """Frame of a time step: joints, and position and rotation matrix of every body by name."""
        feed = {"obs": self.obs, "time_step": np.full((1, 1), step, dtype=np.float32)}
        frame = {k: v[0] for k, v in zip(self.keys, self.session.run(self.keys, feed), strict=True)}
        for index, name in enumerate(self.bodies):
            matrix = np.empty(9)
            mujoco.mju_quat2Mat(matrix, frame["body_quat_w"][index].astype(float))
            frame[name] = frame["body_pos_w"][index], matrix.reshape(3, 3)
        return frame


def groups(contract):
    """The observation groups that the policy reads, in order."""
    network = contract["network"]
    names = network["obs_groups"]["actor"] if network else ["policy"]
    return {name: contract["observations"][name] for name in names}


def check(contract):
    """Refuses by name what this example cannot do."""
    signals = list(contract["actions"]["terms"])
    for term in signals:
        if term["kind"] not in KINDS:
            raise BadFile(
                f"this example drives joint positions, the action {term['name']!r} is of kind "
                f"{term['kind']!r}"
            )
    for name, group in groups(contract).items():
        if group["layout"] != LAYOUT:
            raise BadFile(f"group {name!r} is laid out as {group['layout']!r}, not as {LAYOUT!r}")
        signals += group["terms"]
    for term in signals:
        if not isinstance(term["delay"], int):
            raise BadFile(
                f"the delay of {term['name']!r} is drawn, {term['delay']}: this example knows "
                "fixed ones alone"
            )


def check_graph(path, session, contract):
    """The graph's widths must be the contract's."""
    width = sum(group["width"] for group in groups(contract).values())
    inputs = {item.name: item.shape[-1] for item in session.get_inputs()}
    outputs = {item.name: item.shape[-1] for item in session.get_outputs()}
    if inputs.get("obs") != width or outputs.get("actions") != len(contract["actions"]["scale"]):
        raise BadFile(
            f"{path} takes {inputs} and gives {outputs}; its contract says obs {width}, actions "
            f"{len(contract['actions']['scale'])}"
        )


def find_robot(contract):
    """The robot of this checkout that has the contract's joints."""
    for path in sorted(ROBOTS.glob("*/*.xml")):
        model = mujoco.MjSpec.from_file(str(path)).compile()
        if {model.joint(i).name for i in range(model.njnt)} >= set(contract["joints"]["names"]):
            return path
    raise BadFile(f"no robot in {ROBOTS} has the policy's joints: give its MJCF with --robot")


def load_robot(path, contract):
    """The robot on a floor, with the contract's gains and physics step, in its default pose."""
    try:
        spec = mujoco.MjSpec.from_file(str(path))
    except (ValueError, FileNotFoundError) as error:
        raise BadFile(f"{path} is no MJCF: {error}") from error
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    spec.worldbody.add_geom(type=plane, size=[0, 0, 0.05], rgba=[0.4, 0.45, 0.5, 1])
    spec.worldbody.add_light(pos=[0, 0, 4], dir=[0.2, 0.3, -1])
    spec.option.timestep = contract["sim_dt"]
    model = spec.compile()
    joints = contract["joints"]
    try:
        for name, kp, kd in zip(joints["actuators"], joints["kp"], joints["kd"], strict=True):
            if name is None or not (kp or kd):  # a joint that nothing drives, or a motor
                continue
            actuator = model.actuator(name)  # force = kp (ctrl - q) - kd qdot, or kd (ctrl - qdot)
            actuator.gainprm[0], actuator.biasprm[1:3] = kp or kd, (-kp, -kd)
        data = mujoco.MjData(model)
        if model.nkey:
            mujoco.mj_resetDataKeyframe(model, data, 0)  # height of the base
        for name, position in zip(joints["names"], joints["default"], strict=True):
            data.joint(name).qpos = position
    except KeyError as error:
        raise BadFile(f"{path} is not the policy's robot: {error.args[0]}") from error
    mujoco.mj_forward(model, data)
    return model, data


def rotation(data):
    """Base frame to world frame."""
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, data.qpos[3:7])
    return matrix.reshape(3, 3)


def gait_clock(contract, name, command, phase_0, step):
    """The clock that a policy walks to: sine and cosine per leg or pair, half a period apart."""
    gait = contract["commands"][name]
    pairs = len(gait["components"]) // 2
    if np.linalg.norm(command) < gait["standing_norm"]:
        return np.zeros(2 * pairs)
    phase = phase_0 + gait["frequency"] * contract["control_dt"] * step
    angles = 2 * np.pi * (phase + 0.5 * np.arange(pairs))
    return np.stack([np.sin(angles), np.cos(angles)], 1).ravel()


def command_values(contract, command, phase_0, step, frame=None):
    """The value of every command: a velocity is what was asked for, a gait is a clock.

    A reference motion's is the `frame` to reach: positions and velocities of the joints.
    """
    values = {}
    for name, entry in contract["commands"].items():
        if is_motion(entry):
            values[name] = np.concatenate([frame["joint_pos"], frame["joint_vel"]])
        elif "frequency" in entry and "standing_norm" in entry:
            values[name] = gait_clock(contract, name, command, phase_0, step)
        elif len(entry["components"]) == len(command):
            values[name] = command
        else:
            raise BadFile(f"this example does not know the command {entry['func']}")
    return values


def measure(term, contract, data, action, commands, target):
    """The value of one observation term; its function in the contract says which."""
    name, params = term["func"].rpartition(":")[2], term["params"]
    if name in ("anchor_pos_b", "anchor_ori_b"):  # where the reference's anchor is, seen by ours
        anchor = data.body(params["anchor"])
        own, (position, matrix) = anchor.xmat.reshape(3, 3), target[params["anchor"]]
        if name == "anchor_pos_b":
            return own.T @ (position - anchor.xpos)
        return (own.T @ matrix)[:, :2].ravel()
    if name == "base_lin_vel":
        return rotation(data).T @ data.qvel[:3]
    if name == "base_ang_vel":
        return data.qvel[3:6]  # MuJoCo gives it in the base frame
    if name == "projected_gravity":
        return -rotation(data)[2]  # R^T (0, 0, -1)
    if name == "last_action":
        return action
    if name == "command":
        return commands[params["command"]]
    if name == "sensor":
        return data.sensor(params["sensor"]).data
    if name not in ("joint_pos_rel", "joint_vel"):
        raise BadFile(f"this example does not know the observation term {term['func']}")
    pose = dict(zip(*(contract["joints"][key] for key in ("names", "default")), strict=True))
    hits = (n for pattern in params["joints"] for n in pose if re.fullmatch(pattern, n))
    joints = list(dict.fromkeys(hits))
    if name == "joint_pos_rel":
        return np.array([data.joint(joint).qpos[0] - pose[joint] for joint in joints])
    return np.array([data.joint(joint).qvel[0] for joint in joints])


class Observer:
    """The policy's input: every term of its groups in order, scale x clip(value).

    A term shows its frame of `delay` control steps ago, and with a history those before it, too.
    """

    def __init__(self, contract):
        self.contract = contract
        self.terms = [term for group in groups(contract).values() for term in group["terms"]]
        self.reset()

    def reset(self):
        """An episode begins: its first frame will stand for the ones before it."""
        self.frames = [[] for _ in self.terms]

    def __call__(self, data, action, commands, target=None):
        parts = []
        for term, frames in zip(self.terms, self.frames, strict=True):
            value = measure(term, self.contract, data, action, commands, target)
            low, high = (
                bound if bound is not None else sign * np.inf
                for bound, sign in zip(term["clip"] or (None, None), (-1, 1), strict=True)
            )
            frame = np.clip(value, low, high) * term["scale"]
            shown = max(term["history"], 1)
            frames[:] = [*frames[1:], frame] if frames else [frame] * (term["delay"] + shown)
            parts += frames[:shown]  # oldest first
        return np.concatenate(parts).astype(np.float32)


class Driver:
    """What the network gives -> the action inside its box, and the targets of the joints.

    An action takes effect `delay` control steps later; until an episode's first arrives it is 0.
    """

    def __init__(self, contract):
        self.columns = contract["actions"]
        self.reset()

    def reset(self):
        """An episode begins: nothing is on its way."""
        self.waiting = [[np.zeros(term["width"])] * term["delay"] for term in self.columns["terms"]]

    def __call__(self, raw, data):
        columns = self.columns
        box = np.array([np.inf if bound is None else bound for bound in columns["box"]])
        action = np.clip(raw, -box, box)
        effect, base = np.empty(len(box)), np.array(columns["offset"])
        for term, waiting in zip(columns["terms"], self.waiting, strict=True):
            part = slice(term["start"], term["start"] + term["width"])
            waiting.append(action[part])
            effect[part] = waiting.pop(0)
            if term["kind"] == "relative_joint_position":
                base[part] += [data.joint(joint).qpos[0] for joint in columns["joints"][part]]
        targets = base + np.array(columns["scale"]) * effect
        for column, clip in enumerate(columns["target_clip"]):
            if clip is not None:
                low, high = (
                    bound if bound is not None else sign * np.inf
                    for bound, sign in zip(clip, (-1, 1), strict=True)
                )
                targets[column] = np.clip(targets[column], low, high)
        return action, targets


def stand_on(frame, data, model, contract):
    """Puts the robot where a frame of its reference motion has it."""
    data.qvel[:] = 0.0
    for name, *state in zip(contract["joints"]["names"], frame["joint_pos"], frame["joint_vel"],
                            strict=True):  # fmt: skip
        data.joint(name).qpos, data.joint(name).qvel = state
    root = model.body(int(model.jnt_bodyid[0])).name
    if root in frame:
        data.qpos[:3] = frame[root][0]
        mujoco.mju_mat2Quat(data.qpos[3:7], frame[root][1].ravel())
    mujoco.mj_forward(model, data)


def save_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"P6 {pixels.shape[1]} {pixels.shape[0]} 255\n".encode() + pixels.tobytes())


def replay(args):
    session, contract = load_policy(args.policy)
    model, data = load_robot(args.robot or find_robot(contract), contract)
    renderer = mujoco.Renderer(model) if args.frames else None
    command, action = np.array(args.command), np.zeros(len(contract["actions"]["scale"]))
    controls = [model.actuator(name).id for name in contract["actions"]["actuators"]]
    observe, drive = Observer(contract), Driver(contract)
    floating = contract["robot"]["floating"]
    velocities, apart, frame = [], [], None
    reference = Reference(session) if tracks(session) else None
    if reference:
        stand_on(reference(0), data, model, contract)
    steps = round(args.seconds / contract["control_dt"])
    for step in range(min(steps, reference.last) if reference else steps):
        feed = {}
        if reference:
            mujoco.mj_kinematics(model, data)  # mj_step leaves the bodies one physics step behind
            frame = reference(step + 1)  # it stands on one frame and is shown the next
            feed["time_step"] = np.full((1, 1), step + 1, dtype=np.float32)
            apart.append(
                np.linalg.norm(frame[reference.anchor][0] - data.body(reference.anchor).xpos)
            )
        obs = observe(data, action, command_values(contract, command, 0.0, step, frame), frame)
        raw = session.run(["actions"], {"obs": obs[None], **feed})[0][0]
        action, data.ctrl[controls] = drive(raw, data)
        mujoco.mj_step(model, data, contract["decimation"])
        if floating:
            velocities.append([*(rotation(data).T @ data.qvel[:3])[:2], data.qvel[5]])
        if renderer and step % round(0.1 / contract["control_dt"]) == 0:
            renderer.update_scene(data)
            save_image(args.frames / f"{step:05d}.ppm", renderer.render())
    if reference:
        print(f"{len(apart)} frames, {reference.anchor} {np.mean(apart):.3f} m from its reference")
        return
    if not floating:
        print(f"joints in the end: {np.round(data.qpos, 3)}")
        return
    mean = np.mean(velocities[len(velocities) // 10 :], 0)  # without the start
    print(f"walked {np.linalg.norm(data.qpos[:2]):.2f} m, base at {data.qpos[2]:.2f} m in the end")
    for name, wanted, given in zip(("vx m/s", "vy m/s", "wz rad/s"), command, mean, strict=True):
        print(f"{name:9} command {wanted:+.2f}  mean {given:+.2f}  error {given - wanted:+.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy", type=Path, help="the exported .onnx file")
    parser.add_argument("--robot", type=Path, help="the robot's MJCF; else one of this checkout")
    parser.add_argument("--command", type=float, nargs=3, default=(0.5, 0.0, 0.0))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--frames", type=Path, help="folder for one .ppm image each 0.1 s")
    try:
        replay(parser.parse_args())
    except BadFile as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

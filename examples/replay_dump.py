"""Replays the dump of a faulty environment in plain MuJoCo: no unilab_gym, no torch.

    python examples/replay_dump.py faults/fault_step812_env5.npz
    python examples/replay_dump.py faults/fault_step812_env5.npz --video fault.mp4
    python examples/replay_dump.py FILE --task UniLab/Go2JoystickFlat-v0  # of it, or refused
    python examples/replay_dump.py FILE --contract                       # columns and joints

An environment writes such files with `EnvCfg.fault_dump`. Every recorded step starts from its
recorded state, so that the report says which steps plain MuJoCo confirms, and what it makes of
the last one. A dump of the mujoco backend is confirmed to the last bit; one of mjwarp, which
computes in float32, to about 1e-4.
"""

import argparse
import json
import os
import sys

if sys.platform == "linux" and "DISPLAY" not in os.environ:
    os.environ.setdefault("MUJOCO_GL", "egl")  # read when mujoco is imported

import numpy as np

try:
    import mujoco
except RuntimeError as error:  # MUJOCO_GL names no library
    sys.exit(f"error: {error}; unset it, or set it to egl, osmesa or glfw")

STATE = mujoco.mjtState.mjSTATE_INTEGRATION


def load(path):
    """The arrays of a dump and what is known about it."""
    with np.load(path, allow_pickle=False) as file:
        dump = {name: file[name] for name in file.files}
    meta = json.loads(str(dump.pop("meta")))
    if meta.get("schema") != "unilab_gym.fault_dump/1":
        raise ValueError(f"{path} is not a fault dump that this script knows")
    return dump, meta


def load_model(dump):
    """The compiled model with this environment's own randomized fields."""
    model = mujoco.MjModel.from_binary_path("dump.mjb", {"dump.mjb": dump["model"].tobytes()})
    fields = {name[6:]: dump[name] for name in dump if name.startswith("field/")}
    for name, value in fields.items():
        nominal = getattr(model, name)  # a value that was not changed keeps its float64 bits
        nominal[:] = np.where(value == nominal.astype(np.float32), nominal, value)
    if fields:
        mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def replay(model, dump, meta):
    """The row after each step `[T, nstate]`, and MuJoCo's warnings by step."""
    data = mujoco.MjData(model)
    after, warnings = np.empty_like(dump["state"], dtype=np.float64), {}
    saved = mujoco.get_mju_user_warning()
    try:
        for step, row in enumerate(dump["state"]):
            told = warnings.setdefault(step, [])
            mujoco.set_mju_user_warning(told.append)  # and no MUJOCO_LOG.TXT
            mujoco.mj_setState(model, data, row.astype(np.float64), STATE)
            data.qvel += dump["qvel_delta"][step]
            data.ctrl[:] = dump["ctrl"][step]
            for _ in range(meta["decimation"]):
                mujoco.mj_step(model, data)
            mujoco.mj_getState(model, data, after[step], STATE)
    finally:
        mujoco.set_mju_user_warning(saved)
    return after, {step: told for step, told in warnings.items() if told}


def confirmed(dump, meta, after):
    """Largest difference of positions and velocities to the next recorded row, by step.

    None where there is nothing to compare: the next row is another episode's, or not finite.
    """
    start, width = meta["qpos_offset"], meta["qvel_offset"] - meta["qpos_offset"]
    columns = slice(start, start + width + dump["qvel_delta"].shape[1])
    steps, found = dump["episode_step"], []
    for step in range(len(steps)):
        if step + 1 == len(steps) or steps[step + 1] != steps[step] + 1:
            found.append(None)
            continue
        difference = np.abs(after[step, columns] - dump["state"][step + 1, columns]).max()
        found.append(float(difference) if np.isfinite(difference) else None)
    return found


def check_task(meta, task):
    """Refuses the dump of another task, and one that does not say whose it is."""
    found = meta.get("task")
    if task is not None and found != task.removeprefix("unilab_gym:"):
        of = f"of {found}" if found else "of an environment that was made without an id"
        sys.exit(f"error: the dump is {of}, not of {task}")


def show_contract(contract):
    """Which column of observation and action is what."""
    for name, group in contract["observations"].items():
        for term in group["terms"]:
            print(f"  {name} from {term['start']:3d}  {term['name']}, {term['width']} columns")
    for column, joint in enumerate(contract["actions"]["joints"]):
        scale, offset = (contract["actions"][key][column] for key in ("scale", "offset"))
        print(f"  action {column:3d}  {joint}: {offset:g} + {scale:g} a")


def write_video(path, model, rows, meta, camera_distance=1.8):
    """Draws recorded states at real speed; rows that are not finite repeat the last frame."""
    import imageio

    data, frames = mujoco.MjData(model), []
    camera, option = mujoco.MjvCamera(), mujoco.MjvOption()
    option.geomgroup[:] = 1  # the physics model has collision geoms only
    model.vis.headlight.ambient[:], model.vis.headlight.diffuse[:] = 0.45, 0.55
    camera.distance, camera.elevation, camera.azimuth = camera_distance, -17, 145
    with mujoco.Renderer(model, 480, 640) as renderer:
        for row in rows:
            if np.isfinite(row).all():
                mujoco.mj_setState(model, data, row.astype(np.float64), STATE)
                mujoco.mj_forward(model, data)
                camera.lookat[:] = data.subtree_com[0]
                renderer.update_scene(data, camera, option)
                frames.append(renderer.render().copy())
            elif frames:
                frames.append(frames[-1])
    imageio.mimwrite(path, frames, fps=round(1 / meta["ctrl_dt"]))
    return len(frames)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Replays a fault dump in plain MuJoCo.")
    parser.add_argument("dump", help="NPZ file that an environment wrote")
    parser.add_argument("--video", help="draw the recorded steps into this file")
    parser.add_argument("--last", type=int, default=0, help="draw the last so many steps alone")
    parser.add_argument("--task", help="refuse the dump of another task than this id")
    parser.add_argument("--contract", action="store_true", help="print columns and joints")
    given = parser.parse_args(arguments)
    dump, meta = load(given.dump)
    check_task(meta, given.task)
    model = load_model(dump)
    after, warnings = replay(model, dump, meta)
    differences = [d for d in confirmed(dump, meta, after) if d is not None]
    print(f"environment {meta['env']} of {meta['num_envs']} (backend {meta['backend']}):")
    contract = meta.get("contract")
    print(f"  task          {meta.get('task') or 'made without an id'}")
    if contract is not None:
        widths = [f"{name} {group['width']}" for name, group in contract["observations"].items()]
        joints = len(contract["actions"]["joints"])
        print(
            f"  contract      {', '.join(widths)} columns; {joints} joints; {meta['ctrl_dt']:g} s"
        )
    print(f"  causes        {', '.join(meta['causes'])}")
    print(f"  seed, rank    {meta['seed']}, {meta['rank']}")
    print(f"  steps         {len(after)}, the last at episode step {dump['episode_step'][-1] + 1}")
    worst = max(differences, default=0.0)
    print(f"  MuJoCo {mujoco.__version__} (recorded with {meta['mujoco']}) confirms")
    print(f"                {len(differences)} steps to {worst:.1e} (rad, m and their rates)")
    print(f"  last step     starts {'finite' if np.isfinite(dump['state'][-1]).all() else 'NaN'},")
    print(f"                ends {'finite' if np.isfinite(after[-1]).all() else 'NaN'}")
    if given.contract and contract is not None:
        show_contract(contract)
    for step, told in warnings.items():
        print(f"  step {step:3d}      {told[0].splitlines()[0]}")
    if given.video:
        rows = dump["state"][-given.last :]
        print(f"  video         {write_video(given.video, model, rows, meta)} frames")


if __name__ == "__main__":
    main()

"""Frames: their kind, their view, their independence, and how a process ends that drew some."""

import dataclasses
import gc
import math
import threading

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded

from unilab_gym.config import SceneCfg
from unilab_gym.errors import BackendError, ConfigError
from unilab_gym.render import Camera, OffscreenRenderer
from unilab_gym.render.offscreen import _reduce
from unilab_gym.scene import build_scene

ID = "unilab_gym:UniLab/Go2JoystickFlat-v0"
SMALL = {"width": 96, "height": 72, "supersample": 1}


@pytest.fixture(scope="module")
def renderer(cfg):
    with OffscreenRenderer(cfg, **SMALL) as shared:
        yield shared


def moved(home, x=0.0, y=0.0, yaw=0.0):
    qpos = home[0].copy()
    qpos[:2] += x, y
    qpos[3:7] = math.cos(yaw / 2), 0, 0, math.sin(yaw / 2)
    return qpos, home[1]


def difference(one, other):
    return float(np.abs(one.astype(float) - other).mean())


# --- frames ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(640, 480), (900, 600), (33, 47)])
def test_a_frame(cfg, home, width, height):
    """Sizes beyond MuJoCo's default buffer of 640 x 480, and odd ones."""
    with OffscreenRenderer(cfg, width, height) as renderer:
        frame = renderer.draw(*home)
    assert (frame.shape, frame.dtype) == ((height, width, 3), np.uint8)
    assert frame.flags.c_contiguous and frame.flags.owndata and frame.flags.writeable
    assert frame.std() > 20
    sky, floor = frame[: height // 10].mean((0, 1)), frame[-height // 10 :].mean((0, 1))
    assert sky[2] > 200 > 150 > floor[2], "the sky is above"
    middle = frame[height // 3 : 2 * height // 3, width // 3 : 2 * width // 3]
    assert middle.min() < 40 and middle.max() > 220, "black and white robot in the middle"


def test_a_frame_is_a_function_of_the_state(renderer, home):
    first = renderer.draw(*home)
    other = renderer.draw(*moved(home, 41.3, -17.2, 2.0))
    assert difference(first, other) > 3
    assert np.array_equal(renderer.draw(*home), first)
    assert np.array_equal(renderer.draw(*moved(home, 41.3, -17.2, 2.0)), other)


def test_camera_light_and_floor_follow_the_robot(cfg, renderer, home):
    """The checker repeats every metre, so a robot 40 m away looks the same, shadow included."""
    assert difference(renderer.draw(*home), renderer.draw(*moved(home, 40.0, -27.0))) < 0.05
    still = Camera(follow=False)
    with OffscreenRenderer(cfg, camera=still, **SMALL) as fixed:
        frame = fixed.draw(*home)
        assert difference(frame, renderer.draw(*home)) == 0
        assert difference(frame, fixed.draw(*moved(home, 40.0, -27.0))) > 3


def test_a_raised_robot_is_seen_to_rise(renderer, home):
    qpos, qvel = moved(home)
    qpos[2] += 0.1
    assert difference(renderer.draw(*home), renderer.draw(qpos, qvel)) > 3


@pytest.mark.parametrize("yaw", [0.0, math.pi])
def test_shadow_falls_on_the_floor(cfg, home, yaw):
    """On the side away from the sun, which does not turn with the robot."""
    view = Camera(azimuth=0.0, elevation=-89.0, distance=2.5)
    with OffscreenRenderer(cfg, 200, 200, view) as above:
        frame = above.draw(*moved(home, yaw=yaw)).astype(int).sum(2)
    left, right = frame[60:140, 55:80], frame[60:140, 120:145]  # +y is left, the sun comes from -y
    assert (left < 160).sum() > 4 * (right < 160).sum()


def test_camera_settings_change_the_view(cfg, renderer, home):
    views = (Camera(azimuth=60.0), Camera(elevation=-60.0), Camera(distance=4.0))
    for view in (*views, Camera(height=0.6)):
        with OffscreenRenderer(cfg, camera=view, **SMALL) as other:
            assert difference(renderer.draw(*home), other.draw(*home)) > 3


def test_averaging():
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    assert _reduce(image, 1) is image
    halved = _reduce(image, 2)
    assert halved.dtype == np.uint8
    assert halved[0, 0].tolist() == [(0 + 3 + 18 + 21 + 2) // 4, 12, 13]
    assert (_reduce(np.full((9, 9, 3), 255, np.uint8), 3) == 255).all()


def test_a_state_that_blew_up_is_drawn_somehow(renderer, home):
    before = renderer.draw(*home)
    assert renderer.draw(np.full_like(home[0], np.nan), home[1]).shape == before.shape
    assert renderer.draw(np.full_like(home[0], 1e20), home[1]).shape == before.shape
    assert np.array_equal(renderer.draw(*home), before)


# --- life of a renderer ------------------------------------------------------------------------


def test_closing_one_leaves_the_other(cfg, home):
    one, two = OffscreenRenderer(cfg, **SMALL), OffscreenRenderer(cfg, 64, 48)
    first, second = one.draw(*home), two.draw(*home)
    for _ in range(2):
        assert np.array_equal(one.draw(*home), first)
        assert np.array_equal(two.draw(*home), second)
    one.close()
    one.close()
    assert np.array_equal(two.draw(*home), second)
    with pytest.raises(BackendError, match="closed: make a new one"):
        one.draw(*home)
    two.close()


def test_what_is_freed_belongs_to_the_renderer(cfg, home):
    """Also while another context is current, where a wrong one would lose its textures."""
    kept, closed, dropped = (OffscreenRenderer(cfg, **SMALL) for _ in range(3))
    frames = [one.draw(*home) for one in (kept, closed, dropped)]
    dropped._gl.__del__()  # the collector may come to the context first
    with kept._gl.as_current():
        closed.close()
        dropped.itself = dropped
        del dropped
        gc.collect()
    assert np.array_equal(kept.draw(*home), frames[0])
    kept.close()


def test_closing_before_the_first_frame(cfg):
    renderer = OffscreenRenderer(cfg, **SMALL)
    renderer.close()
    renderer.close()


def test_another_thread_may_draw(renderer, home):
    here, there = renderer.draw(*home), []
    thread = threading.Thread(target=lambda: there.append(renderer.draw(*home)))
    thread.start()
    thread.join()
    assert np.array_equal(there[0], here)
    assert np.array_equal(renderer.draw(*home), here)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"width": 0}, "width must be a positive integer, got 0"),
        ({"height": 2.5}, "height must be a positive integer"),
        ({"supersample": True}, "supersample must be"),
    ],
)
def test_sizes_are_checked(cfg, arguments, words):
    with pytest.raises(ConfigError, match=words):
        OffscreenRenderer(cfg, **arguments)


def test_camera_and_state_are_checked(renderer, home):
    with pytest.raises(ConfigError, match="distance must be positive"):
        Camera(distance=-1.0)
    with pytest.raises(ConfigError, match="must be finite"):
        Camera(azimuth=math.nan)
    with pytest.raises(ConfigError, match="19 positions and 18 velocities, got 18 and 18"):
        renderer.draw(home[0][1:], home[1])


SCRIPT = """
import atexit
import unilab_gym.render as render
from unilab_gym.registration import owner_config
from unilab_gym.scene import build_scene

cfg = owner_config("UniLab/Go2JoystickFlat-v0", "mujoco").env
index = build_scene(cfg.scene, cfg.sim, cfg.sim_dt).index
state = index.default_qpos, [0.0] * index.nv
atexit.register(lambda: print("open" if second._mjr else "closed"))  # the last to run
first, second = (render.OffscreenRenderer(cfg, size, size) for size in (64, 96))
frames = [one.draw(*state) for one in (first, second, first)]
assert (frames[0] == frames[2]).all()
first.close()
assert (second.draw(*state) == frames[1]).all()
assert all(frame.std() > 20 for frame in frames)
print(type(second._gl).__mro__[1].__module__)
"""


@pytest.mark.parametrize("asked", ["", "egl", "osmesa"])
def test_a_script_that_does_not_close(run_script, asked):
    """MUJOCO_GL unset (as after importing MuJoCo, which took GLFW), EGL and OSMesa."""
    used, state = run_script(SCRIPT, **({"MUJOCO_GL": asked} if asked else {})).split()
    assert state == "closed", "freed before modules are taken apart"
    assert used == f"mujoco.{asked}" if asked else used in ("mujoco.egl", "mujoco.osmesa")


# --- scene -------------------------------------------------------------------------------------


def test_looks_change_no_motion(cfg):
    states = []
    for visuals in (False, True):
        model = build_scene(cfg.scene, cfg.sim, cfg.sim_dt, visuals=visuals).model
        assert (model.nlight > 0) == (model.ntex > 0) == (model.nmat > 0) == visuals
        data = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
        for step in range(120):
            data.ctrl[:] = model.key("home").ctrl + 0.4 * math.sin(0.3 * step)
            mujoco.mj_step(model, data)
        states.append(np.concatenate([data.qpos, data.qvel, data.sensordata]))
    assert np.array_equal(*states)


def test_a_fixed_robot_without_ground_has_light_too(tmp_path, cfg):
    path = tmp_path / "arm.xml"
    path.write_text(
        '<mujoco><worldbody><body name="arm" pos="0 0 1"><joint name="hinge" axis="0 1 0"/>'
        '<geom name="rod" type="capsule" fromto="0 0 0 0 0 .6" size=".05"/></body></worldbody>'
        '<actuator><position name="hinge" joint="hinge"/></actuator></mujoco>'
    )
    scene = SceneCfg(robot=str(path), ground="none", keyframe=None)
    with OffscreenRenderer(dataclasses.replace(cfg, scene=scene), **SMALL) as renderer:
        up, down = renderer.draw([0.0], [0.0]), renderer.draw([2.0], [0.0])
    assert up.std() > 5 and difference(up, down) > 1


# --- the environment ---------------------------------------------------------------------------


def make(**arguments):
    return gymnasium.make_vec(ID, num_envs=3, backend="mujoco", seed=5, **arguments)


def test_render_gives_the_chosen_environments(home):
    env = make(render_mode="rgb_array", render_env_ids=[0, 2])
    with pytest.raises(ResetNeeded):
        env.render()
    env.reset(seed=0)
    frames = env.render()
    assert isinstance(frames, tuple) and len(frames) == 2
    assert all(frame.shape == (480, 640, 3) and frame.dtype == np.uint8 for frame in frames)
    assert difference(*frames) > 0.5  # they start apart, turned differently
    env.close()
    env.close()


def test_rendering_does_not_change_the_trajectory():
    seen, unseen = make(render_mode="rgb_array", render_env_ids=[1]), make()
    assert unseen.render() is None
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(seen.reset(seed=3)[0], unseen.reset(seed=3)[0])
    for step in range(25):
        action = torch.rand(3, 12, generator=generator) * 2 - 1
        for mine, other in zip(seen.step(action)[:4], unseen.step(action)[:4], strict=True):
            assert torch.equal(mine, other)
        if step % 5 == 0:
            seen.render()
    states = [env.unwrapped.runtime.backend.get_state() for env in (seen, unseen)]
    assert torch.equal(*states)
    seen.close()
    unseen.close()

# pyright: basic
"""Offscreen frames, videos and plots; GL, ffmpeg and matplotlib are loaded when first used."""

from unilab_gym.render.offscreen import Camera, OffscreenRenderer, gl_available
from unilab_gym.render.plot import plot_series, plot_velocity_tracking
from unilab_gym.render.video import VideoRecorder, VideoWriter, write_video

__all__ = [
    "Camera",
    "OffscreenRenderer",
    "VideoRecorder",
    "VideoWriter",
    "gl_available",
    "plot_series",
    "plot_velocity_tracking",
    "write_video",
]

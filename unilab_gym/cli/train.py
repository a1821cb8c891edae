"""`train`: rsl_rl's PPO."""

from __future__ import annotations

import os

from unilab_gym.adapters.settings import TrainSettings


def train(settings: TrainSettings) -> None:
    """Trains, exports, and says where everything lies.

    Raises:
        ImportError: If the extra `examples` is not installed.
    """
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # rsl_rl imports GitPython
    # Torch's worker threads sleep while they wait: spinning beside another busy process made an
    # update take 8 s instead of 0.6 s. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from unilab_gym.adapters.rsl_rl_train import train as run
    except ImportError as error:
        raise ImportError(
            f'training needs rsl_rl ({error}): pip install "unilab_gym[examples]"'
        ) from error
    run(settings)

"""Trains a task with rsl_rl's PPO and ends with a verified ONNX policy.

    python examples/train_rsl_rl.py                                   # Go2, backend by machine
    python examples/train_rsl_rl.py --backend mujoco --iterations 240 --seed 1
    python examples/train_rsl_rl.py --resume latest --iterations 400  # goes on up to 400

The same as `unilab-gym train`. What it does, step by step: unilab_gym/adapters/rsl_rl_train.py,
whose `train` takes these settings from a script of yours, too.
"""

import sys

from unilab_gym.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["train", *sys.argv[1:]]))

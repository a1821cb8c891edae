"""Uses an installed wheel away from the checkout; run by `make wheel-test`."""

import importlib.metadata
import sys
from pathlib import Path

import gymnasium
import torch

import unilab_gym
from unilab_gym.assets import asset_root

package = Path(unilab_gym.__file__).resolve().parent
assert package.is_relative_to(Path(sys.prefix).resolve()), f"imported from {package}"
assert importlib.metadata.version("unilab-gym") == unilab_gym.__version__
assert (package / "py.typed").is_file()
assert asset_root() == package / "_assets", asset_root()
assets = [path for path in asset_root().rglob("*") if path.is_file()]

env = gymnasium.make_vec("unilab_gym:UniLab/Go2JoystickFlat-v0", num_envs=2)
obs, _ = env.reset(seed=0)
for _ in range(2):
    obs, reward, _, _, _ = env.step(torch.zeros(env.action_space.shape))
    assert tuple(obs.shape) == (2, 49), tuple(obs.shape)
    assert tuple(reward.shape) == (2,), tuple(reward.shape)
    assert bool(torch.isfinite(torch.as_tensor(obs)).all())
env.close()
print(f"wheel: unilab_gym {unilab_gym.__version__}, {len(assets)} assets, obs {tuple(obs.shape)}")

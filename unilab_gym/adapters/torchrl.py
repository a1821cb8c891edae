# pyright: basic
# pyright: reportMissingImports=false
"""TorchRL: its `EnvBase` over a vector environment.

Gymnasium's wrapper of TorchRL loses the terminal observations of batched environments; this one
runs in mode DISABLED, where the next observation is the true one, and restarts the rows that
TorchRL asks for.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

from unilab_gym.adapters.base_env import base_env


class TorchRlEnv(EnvBase):
    """What TorchRL's collectors and losses take; batch size `[N]`.

    Keys: "observation" (the policy group), "critic" where there is such a group, "action",
    "reward" `[N, 1]`, "done", "terminated", "truncated" `[N, 1]`.

    Args:
        env: An environment in mode DISABLED; wrappers are looked through.
    """

    def __init__(self, env: VectorEnv) -> None:
        """Checks the mode and declares the specs.

        Raises:
            ConfigError: If the environment is not ours or resets by itself.
        """
        base = base_env(env, "TorchRlEnv", "TorchRL", AutoresetMode.DISABLED)
        super().__init__(device=base.device, batch_size=torch.Size([base.num_envs]))
        self.env = base
        rows = base.num_envs
        widths = {name: group.shape[1] for name, group in self._groups().items()}
        self.observation_spec = Composite(
            {name: Unbounded((rows, width)) for name, width in widths.items()}, shape=(rows,)
        )
        high = torch.as_tensor(cast(Box, base.single_action_space).high).expand(rows, -1)
        self.action_spec = Bounded(-high, high, shape=high.shape, dtype=torch.float32)
        self.reward_spec = Unbounded((rows, 1))
        flag = Binary(1, (rows, 1), dtype=torch.bool)
        self.full_done_spec = Composite(
            {name: flag.clone() for name in ("done", "terminated", "truncated")}, shape=(rows,)
        )
        self.to(base.device)
        self._started = False

    def _groups(self) -> dict[str, Tensor]:
        groups = self.env.get_observations()
        named = {"observation": groups["policy"]}
        return named | ({"critic": groups["critic"]} if "critic" in groups else {})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        asked = None if tensordict is None else tensordict.get("_reset", None)
        options = None
        if asked is not None and self._started:
            options = {"reset_mask": asked.reshape(self.env.num_envs)}
        self.env.reset(options=options)
        self._started = True
        none = torch.zeros((self.env.num_envs, 1), dtype=torch.bool, device=self.device)
        flags = {name: none.clone() for name in ("done", "terminated", "truncated")}
        return TensorDict({**self._groups(), **flags}, self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        _, reward, terminated, truncated, _ = self.env.step(tensordict["action"])
        values = {
            "reward": reward.unsqueeze(1),
            "terminated": terminated.unsqueeze(1),
            "truncated": truncated.unsqueeze(1),
            "done": (terminated | truncated).unsqueeze(1),
        }
        return TensorDict({**self._groups(), **values}, self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self.env.reset(seed=seed)
        self._started = True

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the environment."""
        super().close(raise_if_closed=raise_if_closed)
        self.env.close()

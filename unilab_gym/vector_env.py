"""The Gymnasium face: a `gymnasium.vector.VectorEnv` of torch tensors over the Manager runtime.

Everything that `step` and `reset` return is a copy that the caller owns for ever; with
`copy=False` it is the runtime's own memory, which the next call overwrites.

`step` in mode SAME_STEP, the default::

    obs         observation of this boundary; rows that ended show their new episode
    reward      [N] float32
    terminated  [N] bool: a failure (or a quarantined fault)
    truncated   [N] bool: a time limit, never together with terminated
    info        {"final_obs", "_final_obs", "final_info", "_final_info"}: tensors with leading
                dimension N and dicts of them, the same keys in every step. `final_obs` holds the
                observation of the boundary before any reset, for every row.

In modes NEXT_STEP and DISABLED rows that ended show their terminal observation and `info` is
`{}`; see `unilab_gym.vector_modes`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, cast

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from unilab_gym.backends import create_backend
from unilab_gym.backends.base import BackendSpec
from unilab_gym.config import EnvCfg
from unilab_gym.contract.resolve import resolve_built
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.env import FaultPolicy, ManagerBasedRlEnv, quiet_torch
from unilab_gym.scene import build_scene
from unilab_gym.vector_arguments import (
    RENDER_MODES,
    check_mask,
    check_options,
    check_surface,
    is_integral,
    observation_groups,
    process_rank,
    render_rows,
    reset_keys,
)
from unilab_gym.vector_info import cloned, mapped, step_info
from unilab_gym.vector_modes import EndedRows, alone, to_mode

_RESET_OPTIONS = ("reset_mask", "state")
"""Keys of `reset(options=...)`."""
_PER_ROW = ("episode_length_buf",)
"""Attributes of which each environment has its own value."""


class UnilabVectorEnv(VectorEnv[Any, Any, Any]):
    """N environments on one device; made by `gymnasium.make_vec` or `unilab_gym.make`.

    Args:
        cfg: The environment.
        num_envs: Number of environments.
        backend: "mujoco" or "mjwarp".
        device: The engine's device.
        obs: "policy" for the policy group as one Box, "dict" for a Dict of all groups, or a
            tuple of group names.
        output: "torch", or "numpy" for copies as NumPy arrays.
        autoreset_mode: "SameStep", "NextStep", "Disabled" or the enum's member.
        max_episode_steps: Time limit in control steps; None takes the config's.
        render_mode: None or "rgb_array".
        render_env_ids: Which environments `render` draws; None draws all.
        seed: Seed of the random streams until `reset(seed=...)`; None takes a fresh one.
        rank: Number of this process among several: streams count on from rank x N, here and in
            `reset(seed=...)`. None takes the environment variable RANK, else 0.
        copy: Whether returned tensors are copies; see the module docstring.
        clip_actions: False switches the clamp to the action box off; the contract says so.
        on_fault: "quarantine" ends a faulty row's episode, "raise" raises naming the rows: at
            once on the CPU; on CUDA, where nothing is waited for, in the next step or so.
        deterministic: Bitwise repeatable physics where the engine can give it.
        log_in_info: Whether `info["log"]` holds the episode log, 0-d tensors.
        validate: Checks that read the device: that no ended row is stepped (mode DISABLED), that
            episode lengths are not negative. None: on the CPU yes, on CUDA no; then the first of
            them comes one step late and the second not at all.

    A pickle holds the arguments, not the simulation: unpickling makes a new environment.

    Attributes:
        state_space: Unbatched Box of the critic group (policy group where there is none).
    """

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    _spec: EnvSpec | None

    def __new__(cls, *args: Any, **kwargs: Any) -> UnilabVectorEnv:
        """Keeps the arguments, for `pickle` and `copy.deepcopy`."""
        self = super().__new__(cls)
        self._arguments = (args, kwargs)
        self._spec = None
        return self

    def __reduce__(self) -> tuple[Callable[..., UnilabVectorEnv], tuple[Any, ...]]:
        """By constructor; the spec of `make_vec` comes along."""
        return _rebuild, (*self._arguments, self.spec)

    def __init__(
        self,
        cfg: EnvCfg,
        num_envs: int = 1,
        *,
        backend: str = "mujoco",
        device: torch.device | str = "cpu",
        obs: Literal["policy", "dict"] | Sequence[str] = "policy",
        output: Literal["torch", "numpy"] = "torch",
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        render_env_ids: Sequence[int] | None = None,
        seed: int | None = None,
        rank: int | None = None,
        copy: bool = True,
        clip_actions: bool = True,
        on_fault: FaultPolicy = "quarantine",
        deterministic: bool = False,
        log_in_info: bool = False,
        validate: bool | None = None,
    ) -> None:
        """Checks the arguments, then builds backend and managers."""
        self._runtime: ManagerBasedRlEnv | None = None
        self._pid = os.getpid()
        self.one_thread = threading.RLock()
        check_surface(
            num_envs=num_envs,
            max_episode_steps=max_episode_steps,
            seed=seed,
            output=output,
            render_mode=render_mode,
            validate=validate,
            copy=copy,
            clip_actions=clip_actions,
            deterministic=deterministic,
            log_in_info=log_in_info,
        )
        device = torch.device(device)
        self.autoreset_mode = to_mode(autoreset_mode)
        if not clip_actions:
            cfg = dataclasses.replace(cfg, clip_actions=False)
        self.cfg = cfg
        self.num_envs = int(num_envs)
        self.device = device
        self.rank = process_rank(rank)
        self.backend_name = backend
        self.render_mode = render_mode
        self.max_episode_steps = max_episode_steps or cfg.max_episode_steps
        self.step_dt = cfg.ctrl_dt
        self.validate = device.type == "cpu" if validate is None else validate
        self.metadata = {
            "render_modes": list(RENDER_MODES),
            "render_fps": round(1.0 / cfg.ctrl_dt, 6),
            "autoreset_mode": self.autoreset_mode,
        }
        self._copy, self._output, self._log_in_info = copy, output, log_in_info
        self._quiet = quiet_torch(self.device.type == "cpu")
        self._groups = observation_groups(cfg, obs)
        self._single_group = obs == "policy"
        self._renderer: Any = None
        self._render_ids = render_rows(render_env_ids, self.num_envs)
        self._has_reset = False
        self._extras: dict[str, Any] | None = {}
        self._runtime = self._build(deterministic, seed, on_fault)
        self._ended = EndedRows(self._runtime.pending, self.validate)
        self._set_spaces()

    def _build(
        self, deterministic: bool, seed: int | None, on_fault: FaultPolicy
    ) -> ManagerBasedRlEnv:
        cfg = self.cfg
        scene = build_scene(cfg.scene, cfg.sim, cfg.sim_dt)
        spec = BackendSpec(
            model=scene.model,
            index=scene.index,
            num_envs=self.num_envs,
            device=self.device,
            decimation=cfg.decimation,
            num_threads=cfg.sim.num_threads,
            nconmax=cfg.sim.nconmax,
            njmax=cfg.sim.njmax,
            deterministic=deterministic,
            cpu_ids=cfg.cpu_ids,
            options=dataclasses.asdict(cfg.sim),
        )
        runtime = ManagerBasedRlEnv(
            cfg,
            scene.index,
            lambda final: create_backend(self.backend_name, final),
            spec,
            seed=seed,
            rank=self.rank,
            on_fault=on_fault,
            max_episode_steps=self.max_episode_steps,
        )
        if runtime.faults is not None:
            runtime.faults.contract_of = resolve_built
        return runtime

    def _set_spaces(self) -> None:
        shapes = self.runtime.rt.observations.shapes
        boxes = {name: _box(shape) for name, shape in shapes.items()}
        if self._single_group:
            self.single_observation_space = boxes["policy"]
        else:
            chosen: dict[str, gymnasium.Space[Any]] = {n: boxes[n] for n in self._groups}
            self.single_observation_space = gymnasium.spaces.Dict(chosen, sort_keys=False)
        bounds = [spec.box for spec in self.runtime.rt.actions.specs.values() for _ in spec.joints]
        high = np.array(bounds, dtype=np.float32)
        self.single_action_space = gymnasium.spaces.Box(-high, high, dtype=np.float32)
        self._privileged = "critic" if "critic" in shapes else "policy"
        self.state_space = boxes[self._privileged]

    @functools.cached_property
    def observation_space(self) -> gymnasium.Space[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Batched observations; made when first asked for."""
        return batch_space(self.single_observation_space, self.num_envs)

    @functools.cached_property
    def action_space(self) -> gymnasium.Space[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Batched actions; made when first asked for."""
        return batch_space(self.single_action_space, self.num_envs)

    @property
    def spec(self) -> EnvSpec | None:
        """What `make_vec` made it from; `gymnasium.make_vec(env.spec)` makes another."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if spec is not None:  # the enum and torch's device have no JSON form, their values do
            spec = deepcopy(spec)
            spec.kwargs = {name: _plain(value) for name, value in spec.kwargs.items()}
        self._spec = spec
        if self._runtime is not None and self._runtime.faults is not None:
            self._runtime.faults.task = "" if spec is None else spec.id

    # --- Gymnasium ---------------------------------------------------------------------------

    @property
    def runtime(self) -> ManagerBasedRlEnv:
        """The Manager runtime.

        Raises:
            ClosedEnvironmentError: After `close`, or in a forked child: the physics threads did
                not come along, and the first step would wait for them for ever.
        """
        if os.getpid() != self._pid:
            raise ClosedEnvironmentError(
                "the environment was made in another process; make one in this process "
                "(multiprocessing: start method 'spawn', or make it inside the worker)"
            )
        if self._runtime is None:
            raise ClosedEnvironmentError("the environment is closed: make a new one")
        return self._runtime

    @alone
    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes.

        Args:
            seed: An integer s gives environment i the stream of s + i; a list gives each its
                own (None entries continue theirs); None continues every stream.
            options: `{"reset_mask": [N] bool tensor or ndarray}` restarts those rows only and
                returns the whole batch; all-false restarts nobody. `{"state": saved}` starts
                them from what `get_state` saved: a whole state goes on where it was, a
                physics-only one begins new episodes there.

        Returns:
            Observations and info (`{}`, or `{"log": ...}` with `log_in_info`).

        Raises:
            ConfigError: On an unknown option, a mask of the wrong shape, a bad seed, a state that
                does not fit (named).
            TypeError: On a mask that is not bool.
            ResetNeeded: On a masked reset before the first full one.
        """
        runtime = self.runtime
        given = check_options(options, _RESET_OPTIONS)
        masked = "reset_mask" in given
        mask = self._bool_rows("reset_mask", given["reset_mask"]) if masked else None
        if mask is not None and not self._has_reset:
            raise ResetNeeded("reset_mask needs a full reset() first")
        keys = reset_keys(seed, self.num_envs, self.rank)
        if "state" in given:
            state = runtime.set_state(given["state"], mask, keys=keys)
        else:
            state = runtime.reset(keys=keys, mask=mask)
        self._has_reset = True
        with quiet_torch(self.device.type == "cpu"):
            obs = self._owned(self._chosen(state.obs))
            return self._out((obs, self._logged({})))

    @alone
    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One control step.

        Args:
            actions: `(N, A)` of any floating or integer dtype: tensor on any device, ndarray,
                nested list or DLPack object. Copied; never kept or changed.

        Returns:
            Observations, reward, terminated, truncated, info; see the module docstring.

        Raises:
            ConfigError: If the shape or kind of the actions is wrong (a ValueError).
            ResetNeeded: Before the first reset; in mode DISABLED where rows ended and were not
                reset, at once with `validate`, else in the step after.
            FaultError: With `on_fault="raise"`.
        """
        runtime, mode = self.runtime, self.autoreset_mode
        if not self._has_reset:
            raise ResetNeeded("call reset() before the first step()")
        action = self._action(actions)
        with self._quiet:
            same_step = mode is AutoresetMode.SAME_STEP
            if mode is AutoresetMode.DISABLED:
                self._ended.check()
            state = runtime.step(
                action, autoreset=same_step, restart=mode is AutoresetMode.NEXT_STEP
            )
            flags = (state.reward, state.terminated, state.truncated)
            if not same_step:
                obs, *flags = self._owned((self._chosen(state.obs), *flags))
                return self._out((obs, *flags, self._logged({})))
            groups = (self._chosen(state.obs), self._chosen(state.final_obs))
            obs, final_obs, *flags = self._owned((*groups, *flags))
            info = step_info(runtime.rt.log, final_obs)
            return self._out((obs, *flags, self._logged(info)))

    def render(self) -> tuple[Any, ...] | None:
        """Frames `(H, W, 3)` uint8 of the chosen environments; None without a render mode.

        Raises:
            BackendUnavailableError: If no GL library can draw here; says what to install.
            ResetNeeded: Before the first reset.
        """
        runtime = self.runtime
        if self.render_mode is None:
            return None
        if not self._has_reset:
            raise ResetNeeded("call reset() before render()")
        if self._renderer is None:
            from unilab_gym.render.offscreen import OffscreenRenderer

            self._renderer = OffscreenRenderer(self.cfg)
        states = (runtime.backend.render_state(row) for row in self._render_ids)
        return tuple(self._renderer.draw(qpos, qvel) for qpos, qvel in states)

    def close_extras(self, **kwargs: Any) -> None:
        """Frees renderer and engine."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        if self._runtime is not None:
            _ = self.extras  # the last boundary's can still be read
            self._runtime.close()
            self._runtime = None

    # --- beyond Gymnasium ----------------------------------------------------------------------

    @property
    def extras(self) -> dict[str, Any]:
        """`{"log": {...}}` of the last boundary, a new dict each step of 0-d tensors.

        Made when it is first asked for: a step that nobody logs does not pay for it. `{}` before
        the first reset.
        """
        if self._extras is None:
            with quiet_torch(self.device.type == "cpu"):
                self._extras = {"log": self.runtime.log()}
        return self._extras

    @property
    def max_episode_length(self) -> int:
        """The same as `max_episode_steps`; rsl_rl's name."""
        return self.max_episode_steps

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps since the reset `[N]` int64; assigning staggers the next time limits."""
        return self.runtime.rt.episode_step.clone()

    @episode_length_buf.setter
    def episode_length_buf(self, value: Any) -> None:
        steps = self.runtime.rt.episode_step
        given = torch.as_tensor(value, device=self.device)
        if given.shape != steps.shape or not is_integral(given):
            raise ConfigError(
                f"episode_length_buf takes integers of shape {tuple(steps.shape)}, got "
                f"{given.dtype} {tuple(given.shape)}"
            )
        if self.validate and bool((given < 0).any()):
            raise ConfigError(f"episode_length_buf takes numbers of 0 or more, got {value!r}")
        steps.copy_(given)

    def state(self) -> Any:
        """The privileged observation `[N, D]` of the last boundary; see `state_space`."""
        with quiet_torch(self.device.type == "cpu"):
            buffers = self.runtime.rt.observations.buffers
            return self._out(self._owned(buffers[self._privileged]))

    def get_observations(self) -> dict[str, Any]:
        """Every observation group of the last boundary, from the cache: nothing is recomputed."""
        with quiet_torch(self.device.type == "cpu"):
            return self._out(self._owned(dict(self.runtime.rt.observations.buffers)))

    @alone
    def get_state(self, mask: Any = None, *, physics_only: bool = False) -> dict[str, Tensor]:
        """Copies of all that later steps of the chosen rows depend on; see `docs/state.md`.

        Args:
            mask: `[N]` bool; the copies hold these rows only, in order. None takes all.
            physics_only: The simulation alone: engine rows, accelerations, model fields.
        """
        rows = None if mask is None else self._bool_rows("mask", mask)
        return self.runtime.get_state(rows, physics_only=physics_only)

    def set_state(self, state: Mapping[str, Tensor], mask: Any = None, *, seed: Any = None) -> Any:
        """Puts saved rows back, of either backend; other rows keep their bits.

        The same as `reset(seed=seed, options={"state": state, "reset_mask": mask})`.

        Returns:
            The observations.

        Raises:
            ConfigError: On an unknown, missing or mis-shaped entry, named; nothing is written.
        """
        rows = {} if mask is None else {"reset_mask": mask}
        return self.reset(seed=seed, options={"state": state, **rows})[0]

    @alone
    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the whole environment, curricula and totals included, to resume a training."""
        return self.runtime.state_dict()

    @alone
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where `state_dict` was taken; no reset is needed.

        Raises:
            ConfigError: On an unknown, missing or mis-shaped entry, named; nothing is written.
        """
        self.runtime.load_state_dict(state)
        self._has_reset = True

    def hold_command(self, name: str, value: Any, mask: Any = None) -> None:
        """Pins a command (all rows, or where `mask` is true) until `release_command`."""
        rows = None if mask is None else self._bool_rows("mask", mask)
        self.runtime.commands.hold(name, value, rows)

    def release_command(self, name: str, mask: Any = None) -> None:
        """Lets held rows sample their commands again at their next resampling."""
        rows = None if mask is None else self._bool_rows("mask", mask)
        self.runtime.commands.release(name, rows)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method once and returns its result N times."""
        result = getattr(self, name)
        result = result(*args, **kwargs) if callable(result) else result
        return (result,) * self.num_envs

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute, N times; of `episode_length_buf` each environment's own."""
        value = getattr(self, name)
        return tuple(value) if name in _PER_ROW else (value,) * self.num_envs

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute from one value or N equal ones; `episode_length_buf` from any N.

        Raises:
            ConfigError: If N values are given and differ: there is one runtime for all.
        """
        listed = isinstance(values, (list, tuple)) and name not in _PER_ROW
        if listed and len(cast("Any", values)) == self.num_envs:
            first, *others = cast("Sequence[Any]", values)
            if any(other != first for other in others):
                raise ConfigError(f"set_attr({name!r}): the environments share it; values differ")
            values = first
        setattr(self, name, values)

    # --- conversions ----------------------------------------------------------------------------

    def _chosen(self, groups: Mapping[str, Tensor]) -> Any:
        if self._single_group:
            return groups["policy"]
        return {name: groups[name] for name in self._groups}

    def _owned(self, value: Any) -> Any:
        """Copies of the runtime's tensors; an array is a copy anyway."""
        copies = self._copy and self._output == "torch"
        return cloned(value) if copies else value

    def _logged(self, info: dict[str, Any]) -> dict[str, Any]:
        self._extras = None
        if self._log_in_info:
            info["log"] = self.extras["log"]
        return info

    def _out(self, value: Any) -> Any:
        return _to_host(value) if self._output == "numpy" else value

    def _action(self, actions: Any) -> Tensor:
        wanted = (self.num_envs, self.runtime.action_size)
        try:
            given = actions if isinstance(actions, Tensor) else _as_tensor(actions)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise ConfigError(
                f"actions must be numbers of shape {wanted}, got {type(actions).__name__}: {error}"
            ) from error
        if not (given.is_floating_point() or is_integral(given)):
            raise ConfigError(f"actions must be floating or integer numbers, got {given.dtype}")
        if given.layout is not torch.strided or given.is_meta:
            raise ConfigError(f"actions must be dense and hold data, got {given.layout}")
        if given.shape != wanted:
            raise ConfigError(f"actions must have shape {wanted}, got {tuple(given.shape)}")
        given = given.detach() if given.requires_grad else given
        fits = given.dtype is torch.float32 and given.device == self.device
        return given if fits else given.to(device=self.device, dtype=torch.float32)

    def _bool_rows(self, what: str, given: Any) -> Tensor:
        try:
            mask = given if isinstance(given, Tensor) else _as_tensor(given)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise TypeError(f"{what} must be bool, got {type(given).__name__}") from error
        check_mask(what, mask, self.num_envs)
        return mask.to(self.device)


def _rebuild(args: tuple[Any, ...], kwargs: dict[str, Any], spec: Any) -> UnilabVectorEnv:
    env = UnilabVectorEnv(*args, **kwargs)
    env.spec = spec
    return env


def _plain(value: Any) -> Any:
    if isinstance(value, AutoresetMode):
        return value.value
    return str(value) if isinstance(value, torch.device) else value


def _as_tensor(value: Any) -> Tensor:
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        return torch.from_dlpack(value)
    return torch.from_numpy(np.array(cast("Any", value)))  # a copy: the caller may change theirs


def _to_host(value: Any) -> Any:
    """Every tensor of a nested result as an array of its own: one transfer for all of them."""
    tensors: list[Tensor] = []
    mapped(value, tensors.append)
    ordered = sorted(tensors, key=Tensor.element_size, reverse=True)  # keeps items aligned
    flat = [tensor.contiguous().as_strided((tensor.numel(),), (1,)) for tensor in ordered]
    parts = [tensor.view(torch.uint8) for tensor in flat]
    packed = torch.cat(parts).cpu().numpy()
    arrays: dict[int, Any] = {}
    start = 0
    for tensor, part in zip(ordered, parts, strict=True):
        dtype = str(tensor.dtype).removeprefix("torch.")
        stop = start + part.numel()
        arrays[id(tensor)] = packed[start:stop].view(dtype).reshape(tuple(tensor.shape))
        start = stop
    return mapped(value, lambda tensor: arrays[id(tensor)])


def _box(shape: tuple[int, ...]) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)


__all__ = ["UnilabVectorEnv"]

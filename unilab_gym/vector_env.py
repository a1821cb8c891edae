"""The Gymnasium face: a `gymnasium.vector.VectorEnv` of torch tensors over the Manager runtime.

Everything that `step` and `reset` return is a copy that the caller owns for ever; with
`copy=False` it is the runtime's own memory, which the next call overwrites.

`step` in mode SAME_STEP, the only one so far::

    obs         observation of this boundary; rows that ended show their new episode
    reward      [N] float32
    terminated  [N] bool: a failure (or a quarantined fault)
    truncated   [N] bool: a time limit, never together with terminated
    info        {"final_obs", "_final_obs", "final_info", "_final_info"}: tensors with leading
                dimension N and dicts of them, the same keys in every step. `final_obs` holds the
                observation of the boundary before any reset, for every row.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import gymnasium
import numpy as np
import torch
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from unilab_gym.backends import create_backend, refuse_idle, resolve_backend
from unilab_gym.backends.base import BackendSpec
from unilab_gym.config import EnvCfg, apply_overrides
from unilab_gym.errors import ConfigError, UnsupportedCapabilityError, near
from unilab_gym.registration import owner_config
from unilab_gym.runtime.env import FaultPolicy, ManagerBasedRlEnv, TorchEnvState, quiet_torch
from unilab_gym.runtime.rng import seed_keys
from unilab_gym.scene import build_scene

_RENDER_MODES = ("rgb_array",)
_RESET_OPTIONS = ("reset_mask",)


def make(
    cfg: EnvCfg,
    num_envs: int = 1,
    *,
    device: str | torch.device | None = None,
    backend: str = "auto",
    play: bool = False,
    overrides: Mapping[str, Any] | None = None,
    **surface: Any,
) -> UnilabVectorEnv:
    """Builds a vector environment from a config, without registration.

    Args:
        cfg: The environment; it is not changed.
        num_envs: Number of environments.
        device: None takes CUDA if there is a GPU, else the CPU.
        backend: "auto", "mujoco" or "mjwarp".
        play: Without noise, randomization and pushes.
        overrides: `{dotted path: value}` on the config. A setting that only the other engine reads
            is refused here; a config may hold those of both.
        **surface: Keyword arguments of `UnilabVectorEnv`.

    Raises:
        ConfigError: A ValueError that says what was given, expected and is available.
        TypeError: On an unknown keyword.
    """
    if not isinstance(cast("Any", cfg), EnvCfg):
        raise ConfigError(f"make takes an EnvCfg, got {cfg!r}; for an id use gymnasium.make_vec")
    _check_count("num_envs", num_envs)
    name, resolved = resolve_backend(backend, device)
    if overrides is not None:
        if not isinstance(cast("Any", overrides), Mapping):
            raise ConfigError(f"overrides must be {{dotted path: value}}, got {overrides!r}")
        cfg = apply_overrides(cfg, overrides)
        refuse_idle(overrides, name)
    if play:
        cfg = cfg.for_play()
    return UnilabVectorEnv(cfg, num_envs, backend=name, device=resolved, **surface)


def make_vector_env(task: str, num_envs: int = 1, **kwargs: Any) -> UnilabVectorEnv:
    """Entry point of `gymnasium.make_vec`: the config of a registered task.

    Raises:
        ConfigError: If the task does not run on the asked backend.
        TypeError: On an unknown keyword.
    """
    backend, device = kwargs.pop("backend", "auto"), kwargs.pop("device", None)
    name, resolved = resolve_backend(backend, device)
    cfg = owner_config(task, name).env
    return make(cfg, num_envs, backend=name, device=resolved, **kwargs)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_count(what: str, value: Any) -> None:
    if not _is_integer(value) or value <= 0:
        raise ConfigError(f"{what} must be a positive integer, got {value!r}")


def _autoreset_mode(given: AutoresetMode | str) -> AutoresetMode:
    modes = {mode.value: mode for mode in AutoresetMode}
    mode = given if isinstance(given, AutoresetMode) else modes.get(str(given))
    if mode is None:
        raise ConfigError(f"autoreset_mode {near(str(given), modes)}")
    if mode is not AutoresetMode.SAME_STEP:
        raise UnsupportedCapabilityError(
            f"autoreset_mode {mode.value!r} is not offered by this version; available: SameStep"
        )
    return mode


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
        autoreset_mode: "SameStep" or the enum's member.
        max_episode_steps: Time limit in control steps; None takes the config's.
        render_mode: None or "rgb_array".
        render_env_ids: Which environments `render` draws; None draws all.
        seed: Seed of the random streams until `reset(seed=...)`; None takes a fresh one.
        copy: Whether returned tensors are copies; see the module docstring.
        clip_actions: False switches the clamp to the action box off; the contract says so.
        on_fault: "quarantine" ends a faulty row's episode, "raise" raises naming the rows.
        deterministic: Bitwise repeatable physics where the engine can give it.
        log_in_info: Whether `info["log"]` holds the episode log, 0-d tensors.

    Attributes:
        state_space: Unbatched Box of the critic group (policy group where there is none).
        extras: `{"log": {...}}`, a new dict each step of 0-d tensors.
    """

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
        copy: bool = True,
        clip_actions: bool = True,
        on_fault: FaultPolicy = "quarantine",
        deterministic: bool = False,
        log_in_info: bool = False,
    ) -> None:
        """Checks the arguments, then builds backend and managers."""
        self._runtime: ManagerBasedRlEnv | None = None
        self._pid = os.getpid()
        _check_count("num_envs", num_envs)
        if max_episode_steps is not None:
            _check_count("max_episode_steps", max_episode_steps)
        if seed is not None and not _is_integer(seed):
            raise ConfigError(f"seed must be an integer or None, got {seed!r}")
        if output not in ("torch", "numpy"):
            raise ConfigError(f"output {near(str(output), ('torch', 'numpy'))}")
        if render_mode is not None and render_mode not in _RENDER_MODES:
            raise ConfigError(f"render_mode {near(str(render_mode), _RENDER_MODES)}")
        device = torch.device(device)
        if on_fault == "raise" and device.type == "cuda":
            raise UnsupportedCapabilityError(
                "on_fault='raise' reads the fault word on the host in every step; on cuda use "
                "'quarantine'"
            )
        mode = _autoreset_mode(autoreset_mode)
        if not clip_actions:
            cfg = dataclasses.replace(cfg, clip_actions=False)
        self.cfg = cfg
        self.num_envs = int(num_envs)
        self.device = device
        self.backend_name = backend
        self.render_mode = render_mode
        self.autoreset_mode = mode
        self.max_episode_steps = max_episode_steps or cfg.max_episode_steps
        self.step_dt = cfg.ctrl_dt
        self.metadata = {
            "render_modes": list(_RENDER_MODES),
            "render_fps": round(1.0 / cfg.ctrl_dt, 6),
            "autoreset_mode": mode,
        }
        self._copy, self._output, self._log_in_info = copy, output, log_in_info
        self._groups = _observation_groups(cfg, obs)
        self._single_group = obs == "policy"
        self._renderer: Any = None
        self._render_ids = _render_ids(render_env_ids, self.num_envs)
        self._has_reset = False
        self.extras: dict[str, Any] = {}

        scene = build_scene(cfg.scene, cfg.sim, cfg.sim_dt)
        spec = BackendSpec(
            model=scene.model,
            index=scene.index,
            num_envs=self.num_envs,
            device=device,
            decimation=cfg.decimation,
            num_threads=cfg.sim.num_threads,
            nconmax=cfg.sim.nconmax,
            njmax=cfg.sim.njmax,
            deterministic=deterministic,
        )
        self._runtime = ManagerBasedRlEnv(
            cfg,
            scene.index,
            lambda final: create_backend(backend, final),
            spec,
            seed=seed,
            on_fault=on_fault,
            max_episode_steps=max_episode_steps,
        )
        self._set_spaces()

    def _set_spaces(self) -> None:
        widths = self.runtime.rt.observations.widths
        boxes = {name: _box(width) for name, width in widths.items()}
        if self._single_group:
            self.single_observation_space = boxes["policy"]
        else:
            chosen: dict[str, gymnasium.Space[Any]] = {n: boxes[n] for n in self._groups}
            self.single_observation_space = gymnasium.spaces.Dict(chosen, sort_keys=False)
        bounds = [spec.box for spec in self.runtime.rt.actions.specs.values() for _ in spec.joints]
        high = np.array(bounds, dtype=np.float32)
        self.single_action_space = gymnasium.spaces.Box(-high, high, dtype=np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._privileged = "critic" if "critic" in widths else "policy"
        self.state_space = boxes[self._privileged]

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
                returns the whole batch; all-false restarts nobody.

        Returns:
            Observations and info (`{}`, or `{"log": ...}` with `log_in_info`).

        Raises:
            ConfigError: On an unknown option, a mask of the wrong shape, a bad seed.
            TypeError: On a mask that is not bool.
            ResetNeeded: On a masked reset before the first full one.
        """
        runtime = self.runtime
        mask = self._reset_mask(options)
        if mask is not None and not self._has_reset:
            raise ResetNeeded("reset_mask needs a full reset() first")
        state = runtime.reset(keys=self._seed_keys(seed), mask=mask)
        self._has_reset = True
        with quiet_torch(self.device.type == "cpu"):
            info: dict[str, Any] = {"log": self._log()} if self._log_in_info else {}
            return self._observation(state.obs), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One control step.

        Args:
            actions: `(N, A)` of any floating or integer dtype: tensor on any device, ndarray,
                nested list or DLPack object. Copied; never kept or changed.

        Returns:
            Observations, reward, terminated, truncated, info; see the module docstring.

        Raises:
            ConfigError: If the shape or kind of the actions is wrong (a ValueError).
            ResetNeeded: Before the first reset.
            FaultError: With `on_fault="raise"`.
        """
        runtime = self.runtime
        if not self._has_reset:
            raise ResetNeeded("call reset() before the first step()")
        action = self._action(actions)
        state = runtime.step(action)
        with quiet_torch(self.device.type == "cpu"):
            done = runtime.rt.terminations.done
            info = self._info(state, done)
            return (
                self._observation(state.obs),
                self._give(state.reward),
                self._give(state.terminated),
                self._give(state.truncated),
                info,
            )

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
            self._runtime.close()
            self._runtime = None

    # --- beyond Gymnasium ----------------------------------------------------------------------

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
        if given.shape != steps.shape or not _integral(given):
            raise ConfigError(
                f"episode_length_buf takes integers of shape {tuple(steps.shape)}, got "
                f"{given.dtype} {tuple(given.shape)}"
            )
        steps.copy_(given)

    def state(self) -> Any:
        """The privileged observation `[N, D]` of the last boundary; see `state_space`."""
        with quiet_torch(self.device.type == "cpu"):
            return self._give(self.runtime.rt.observations.buffers[self._privileged])

    def get_observations(self) -> dict[str, Any]:
        """Every observation group of the last boundary, from the cache: nothing is recomputed."""
        with quiet_torch(self.device.type == "cpu"):
            buffers = self.runtime.rt.observations.buffers
            return {name: self._give(buffer) for name, buffer in buffers.items()}

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
        """An attribute, N times."""
        return (getattr(self, name),) * self.num_envs

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute from one value or N equal ones.

        Raises:
            ConfigError: If N values are given and differ: there is one runtime for all.
        """
        if isinstance(values, (list, tuple)) and len(cast("Any", values)) == self.num_envs:
            first, *others = cast("Sequence[Any]", values)
            if any(other != first for other in others):
                raise ConfigError(f"set_attr({name!r}): the environments share it; values differ")
            values = first
        setattr(self, name, values)

    # --- conversions ----------------------------------------------------------------------------

    def _give(self, tensor: Tensor) -> Any:
        if self._output == "numpy":
            return tensor.cpu().numpy().copy()
        return tensor.clone() if self._copy else tensor

    def _observation(self, groups: Mapping[str, Tensor]) -> Any:
        if self._single_group:
            return self._give(groups["policy"])
        return {name: self._give(groups[name]) for name in self._groups}

    def _log(self) -> dict[str, Any]:
        log = self.runtime.log()
        self.extras = {"log": log}
        if self._output == "numpy":
            return {name: value.cpu().numpy() for name, value in log.items()}
        return log

    def _info(self, state: TorchEnvState, done: Tensor) -> dict[str, Any]:
        log = self.runtime.rt.log
        # Two copies, cut into rows that do not overlap: each result can be overwritten.
        columns = log.packed.t().contiguous().unbind(0)
        masks = iter(done.repeat(len(columns) + 5, 1).unbind(0))
        values = dict(zip(log.names, columns, strict=True))
        returns, length = values.pop("episode/return"), values.pop("episode/length").long()
        final: dict[str, Any] = {
            "episode": {"r": returns, "l": length, "_r": next(masks), "_l": next(masks)},
            "_episode": next(masks),
        }
        for name, value in values.items():
            final[name] = value
            final[f"_{name}"] = next(masks)
        info = {
            "final_obs": self._observation(state.final_obs),
            "_final_obs": next(masks),
            "final_info": final,
            "_final_info": next(masks),
        }
        if self._output == "numpy":
            info = _to_numpy(info)
        logged = self._log()
        if self._log_in_info:
            info["log"] = logged
        return info

    def _action(self, actions: Any) -> Tensor:
        wanted = (self.num_envs, self.runtime.action_size)
        try:
            given = actions if isinstance(actions, Tensor) else _as_tensor(actions)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise ConfigError(
                f"actions must be numbers of shape {wanted}, got {type(actions).__name__}: {error}"
            ) from error
        if not (given.is_floating_point() or _integral(given)):
            raise ConfigError(f"actions must be floating or integer numbers, got {given.dtype}")
        if given.layout is not torch.strided or given.is_meta:
            raise ConfigError(f"actions must be dense and hold data, got {given.layout}")
        if given.shape != wanted:
            raise ConfigError(f"actions must have shape {wanted}, got {tuple(given.shape)}")
        return given.detach().to(device=self.device, dtype=torch.float32)

    def _seed_keys(self, seed: Any) -> list[int | None] | None:
        if seed is None:
            return None
        if _is_integer(seed):
            return list(seed_keys(int(seed), self.num_envs))
        if isinstance(seed, (list, tuple)):
            seeds = cast("Sequence[Any]", seed)
            if len(seeds) != self.num_envs:
                raise ConfigError(f"{self.num_envs} seeds are needed, got {len(seeds)}")
            if not all(one is None or _is_integer(one) for one in seeds):
                raise ConfigError(f"seeds must be integers or None, got {seed!r}")
            return [None if one is None else seed_keys(int(one), 1)[0] for one in seeds]
        raise ConfigError(f"seed must be None, an integer or a list of them, got {seed!r}")

    def _reset_mask(self, options: Mapping[str, Any] | None) -> Tensor | None:
        for key in options or {}:
            if key not in _RESET_OPTIONS:
                raise ConfigError(f"reset option {near(str(key), _RESET_OPTIONS)}")
        if not options or options.get("reset_mask") is None:
            return None
        return self._bool_rows("reset_mask", options["reset_mask"])

    def _bool_rows(self, what: str, given: Any) -> Tensor:
        mask = given if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
        if mask.dtype != torch.bool:
            raise TypeError(f"{what} must be bool, got {mask.dtype}")
        if mask.shape != (self.num_envs,):
            raise ConfigError(f"{what} must have shape ({self.num_envs},), got {tuple(mask.shape)}")
        return mask.to(self.device)


def _integral(tensor: Tensor) -> bool:
    kind = tensor.dtype
    return not (kind.is_floating_point or kind.is_complex or kind == torch.bool)


def _as_tensor(value: Any) -> Tensor:
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        return torch.from_dlpack(value)
    return torch.from_numpy(np.array(cast("Any", value)))  # a copy: the caller may change theirs


def _to_numpy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    if isinstance(value, dict):
        return {key: _to_numpy(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _box(width: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)


def _observation_groups(cfg: EnvCfg, obs: Any) -> tuple[str, ...]:
    available = tuple(cfg.observations)
    if obs == "policy":
        return ("policy",)
    if obs == "dict":
        return ("policy", *(name for name in available if name != "policy"))
    if isinstance(obs, str) or not isinstance(obs, Sequence) or not obs:
        raise ConfigError(
            f"obs {near(str(cast('Any', obs)), ('policy', 'dict'))}, or a tuple of group names"
        )
    names = tuple(str(name) for name in cast("Sequence[Any]", obs))
    for name in names:
        if name not in available:
            raise ConfigError(f"observation group {near(name, available)}")
    return names


def _render_ids(given: Sequence[int] | None, num_envs: int) -> tuple[int, ...]:
    ids = tuple(range(num_envs)) if given is None else tuple(int(row) for row in given)
    for row in ids:
        if not 0 <= row < num_envs:
            raise ConfigError(f"render_env_ids: row {row} is not in 0..{num_envs - 1}")
    return ids


__all__ = ["UnilabVectorEnv", "make", "make_vector_env"]

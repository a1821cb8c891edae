"""Terms: what users write, and how configs bind to them.

A term is a function or a class that declares its reads and its width::

    @term(reads=lambda p: (RootLinVelB(), Command(p["command"])))
    def track_lin_vel_xy(frame: Frame, *, command: str, std: float) -> Tensor:  # [N]
        error = frame[Command(command)][:, :2] - frame[RootLinVelB()][:, :2]
        return torch.exp(-error.square().sum(-1) / std**2)

`width` is `()` for one scalar per environment (rewards, terminations), an integer for `[N, d]`,
or a callable of (params, index) that returns one of them. A class with state takes a
`BuildContext` when it is built, is called with the frame, and may have `reset(mask)`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from unilab_gym.config import TermCfg, func_name
from unilab_gym.errors import ConfigError, UnilabGymError, near
from unilab_gym.model_index import ModelIndex
from unilab_gym.runtime.carriers import EpisodeCarriers, StateRegistry
from unilab_gym.runtime.frame import Frame, TermFrame
from unilab_gym.runtime.reads import Command, Read
from unilab_gym.runtime.rng import ManagerRng

__all__ = [
    "ActionSpec",
    "BoundTerm",
    "BuildContext",
    "Term",
    "TermFrame",
    "bind_term",
    "check_idle",
    "check_value",
    "full_params",
    "term",
    "term_width",
    "told",
]

F = TypeVar("F", bound=Callable[..., Any])
Width = tuple[()] | int | Callable[[Mapping[str, Any], ModelIndex], "tuple[()] | int"]


@dataclass(frozen=True)
class TermSpec:
    """What `@term` attaches to a function or class."""

    reads: Callable[[Mapping[str, Any]], tuple[Read, ...]]
    width: Width


@dataclass(frozen=True)
class ActionSpec:
    """A resolved action term: plain numbers, no torch."""

    kind: str
    """What an action means: "joint_position"."""
    joints: tuple[str, ...]
    actuators: tuple[str, ...]
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    box: float
    """Actions lie in [-box, box]."""
    target_clip: tuple[tuple[float, float], ...] | None = None
    """Bounds of each joint's target, or None."""
    clipped: bool = True
    """Whether actions are clamped to the box."""


def term(
    *,
    reads: Callable[[Mapping[str, Any]], tuple[Read, ...]] | tuple[Read, ...] = (),
    width: Width = (),
) -> Callable[[F], F]:
    """Declares what a term reads and how wide its value is.

    Args:
        reads: A tuple of reads, or a callable of the term's parameters that returns one.
        width: `()` for `[N]`, d for `[N, d]`, or a callable of (params, index).
    """

    def declared(params: Mapping[str, Any]) -> tuple[Read, ...]:
        return reads(params) if callable(reads) else reads

    def attach(target: F) -> F:
        target.__term__ = TermSpec(declared, width)  # type: ignore[attr-defined]
        return target

    return attach


def term_spec(func: Callable[..., Any]) -> TermSpec:
    """The declaration of a term.

    Raises:
        ConfigError: If `func` carries none.
    """
    spec = getattr(func, "__term__", None)
    if spec is None:
        raise ConfigError(f"{func_name(func)} is not a term: decorate it with @term(reads=...)")
    return cast("TermSpec", spec)


def full_params(func: Callable[..., Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Given parameters and the defaults of the others.

    Raises:
        ConfigError: On an unknown parameter (with near candidates) or a missing one.
    """
    signature = inspect.signature(func)
    known = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    for name in params:
        if name not in known:
            raise ConfigError(f"{func_name(func)} has no parameter {near(name, known)}")
    result = {
        name: parameter.default
        for name, parameter in known.items()
        if parameter.default is not inspect.Parameter.empty
    }
    result.update(params)
    missing = [name for name in known if name not in result]
    if missing:
        raise ConfigError(f"{func_name(func)} needs the parameters {', '.join(missing)}")
    return result


def term_width(func: Callable[..., Any], params: Mapping[str, Any], index: ModelIndex) -> int:
    """Columns that a term's value takes; a scalar takes one. Needs no environment."""
    width = term_spec(func).width
    if callable(width):
        width = width(full_params(func, params), index)
    return 1 if width == () else cast("int", width)


class BuildContext:
    """What a manager or term gets when it is built: sizes, names, device, random streams.

    It collects every declared read with the phases in which it is read ("step" for Frame A,
    "reset" for Frame B), from which the read plan is compiled.
    """

    def __init__(
        self,
        *,
        num_envs: int,
        device: torch.device,
        index: ModelIndex,
        control_dt: float,
        max_episode_steps: int,
        rng: ManagerRng,
        frame: Frame,
        nominal: Callable[[str], Tensor] | None = None,
    ) -> None:
        """Holds them."""
        self._nominal = nominal
        self.num_envs = num_envs
        self.device = device
        self.index = index
        self.control_dt = control_dt
        self.max_episode_steps = max_episode_steps
        self.rng = rng
        self.frame = frame
        self.owner = ""
        """Name of who is being built, `manager/term`: errors, streams and state carry it."""
        self.state = StateRegistry()
        """Everything that lasts from one call to the next."""
        self.carriers = EpisodeCarriers(num_envs, device, self._own_rows)
        """Columns that every episode starts at 0."""
        self.phase = "startup"
        """Random phase of the event being built: "startup", "reset" or "step"."""

    def nominal(self, name: str) -> Tensor:
        """The immutable nominal value of a model field, without the leading N.

        Raises:
            ConfigError: If there is no engine behind this context.
        """
        if self._nominal is None:
            raise ConfigError(f"{self.owner}: no engine that knows model field {name!r}")
        return self._nominal(name)

    @contextmanager
    def owned(self, owner: str) -> Generator[None]:
        """Names the owner of what is allocated and drawn inside."""
        saved, self.owner = self.owner, owner
        try:
            yield
        finally:
            self.owner = saved

    def _own_rows(self, key: str, tensor: Tensor) -> Tensor:
        return self.state.add_rows(self.owner, key, tensor)

    def tensor(self, values: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        """A constant on the device; what changes later is `shared`."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32, key: str = "") -> Tensor:
        """A carrier `[N, *shape]`, zero, allocated once: part of the environment's state.

        Args:
            *shape: Its shape behind N.
            dtype: Its type.
            key: Its name in a saved state, below the owner's; numbered where it is not given.
        """
        return self._own_rows(key, self._zeros(shape, dtype))

    def scratch(self, *shape: int, dtype: torch.dtype = torch.float32, key: str = "") -> Tensor:
        """Memory `[N, *shape]` that every call writes before it reads it: not saved."""
        return self.state.add_scratch(self.owner, key, self._zeros(shape, dtype))

    def shared(self, values: Any, dtype: torch.dtype = torch.float32, key: str = "") -> Tensor:
        """A device buffer for all environments that changes later, as a curriculum's does.

        `state_dict` saves it, for a training that goes on; `get_state` does not.
        """
        return self.state.add_shared(self.owner, key, self.tensor(values, dtype))

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros((self.num_envs, *shape), dtype=dtype, device=self.device)

    def uniform(
        self,
        width: int,
        on: str,
        low: float | Sequence[float] = 0.0,
        high: float | Sequence[float] = 1.0,
        key: str = "",
    ) -> Callable[[], Tensor]:
        """A stream of uniforms `[N, width]` in [low, high), keyed by the term being built.

        Args:
            width: Numbers per environment and draw.
            on: "step", "reset" or "startup": which counters the draw follows.
            low: Lower bound, one for all columns or one for each.
            high: Upper bound. Bounds cost no operation: scaling is part of the block's draw.
            key: Tells several streams of one term apart.
        """
        name = f"{self.owner}/{key}" if key else self.owner
        return self.rng.uniform(name, width, on, low, high)

    def view(self, name: str, reads: tuple[Read, ...], phases: tuple[str, ...]) -> TermFrame:
        """Declares reads for a term and returns the frame that only it sees.

        Raises:
            ConfigError: If the declaration is not a tuple, or names what the model does not have.
        """
        if not isinstance(cast("Any", reads), tuple):  # a forgotten comma: (JointPos())
            raise ConfigError(f"reads must be a tuple of reads, got {reads!r}")
        for read in reads:
            self.frame.declare(read, phases, self.index, self.device, asker=name)
        return TermFrame(self.frame, name, reads)


class Term:
    """Base of terms with state: allocate in `__init__`, compute in `__call__`, clear in `reset`.

    Subclasses are decorated with `@term(...)`; their parameters are keyword-only. An observation
    is computed at both boundaries of a step, for every row, so a class used there must not
    advance its state when it is called.
    """

    def __init__(self, ctx: BuildContext) -> None:
        """Keeps the sizes."""
        self.num_envs = ctx.num_envs
        self.device = ctx.device

    def __call__(self, frame: TermFrame) -> Tensor:
        """The value at this boundary, `[N]` or `[N, d]`."""
        raise NotImplementedError(type(self).__name__)

    def reset(self, mask: Tensor) -> None:
        """Clears the state of the rows where `mask` `[N]` is true."""


@dataclass
class BoundTerm:
    """A term built from its config."""

    name: str
    width: int
    scalar: bool
    params: dict[str, Any]
    reads: tuple[Read, ...]
    _frame: TermFrame
    _call: Callable[..., Tensor]
    instance: Any = None
    """The object, where the term is a class."""

    def __call__(self) -> Tensor:
        """The value at this boundary, `[N]` or `[N, d]`."""
        return self._call(self._frame)

    def reset(self, mask: Tensor) -> None:
        """Resets the term's state where the mask is true."""
        reset = getattr(self.instance, "reset", None)
        if reset is not None:
            reset(mask)


def bind_term(
    ctx: BuildContext, manager: str, name: str, cfg: TermCfg, phases: tuple[str, ...] = ("step",)
) -> BoundTerm:
    """Builds a term: checks parameters, declares reads, allocates state.

    Args:
        ctx: The build context.
        manager: The manager's name, for errors and random streams.
        name: The term's name in the config.
        cfg: Function or class and parameters.
        phases: In which refreshes its reads must be valid.

    Raises:
        ConfigError: With the term's path in front.
    """
    owner = f"{manager}/{name}"
    with told(owner, cfg.params):
        params = full_params(cfg.func, cfg.params)
        spec = term_spec(cfg.func)
        reads = spec.reads(params)
        frame = ctx.view(owner, reads, phases)
        width = term_width(cfg.func, cfg.params, ctx.index)
        scalar = _is_scalar(spec, params, ctx.index)
        instance = None
        func: Callable[..., Any] = cfg.func
        if inspect.isclass(cfg.func):
            with ctx.owned(owner):
                instance = func(ctx, **params)
            call: Callable[..., Tensor] = instance
        else:
            call = functools.partial(func, **params)
    return BoundTerm(owner, width, scalar, params, reads, frame, call, instance)


@contextmanager
def told(owner: str, params: Mapping[str, Any]) -> Generator[None]:
    """Puts a term's path in front of what is wrong with it, while it is built.

    A parameter of the wrong kind shows in whatever the term does with it first.

    Raises:
        ConfigError: In the place of a ConfigError, TypeError, ValueError or division by zero.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{owner}: {error}") from error
    except UnilabGymError:
        raise
    except (TypeError, ValueError, ZeroDivisionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{owner}: {what} (params {dict(params)})") from error


def check_idle(ctx: BuildContext, manager: str, name: str, cfg: TermCfg) -> None:
    """Checks a term that is configured and not computed: its parameters and every name in it.

    Raises:
        ConfigError: With the term's path in front.
    """
    with told(f"{manager}/{name}", cfg.params):
        scratch = Frame()
        for read in term_spec(cfg.func).reads(full_params(cfg.func, cfg.params)):
            scratch.declare(read, ("step",), ctx.index, ctx.device)
        commands = [read for read in scratch.plan().runtime if isinstance(read, Command)]
        ctx.frame.require(commands)


def check_value(term: BoundTerm, num_envs: int, dtype: torch.dtype | None = None) -> None:
    """Computes a term once, while the environment is built, and compares shape and dtype.

    In a step nobody looks: a wrong width would be broadcast or fail far from its cause.

    Raises:
        ConfigError: Names the term, what it returned and what it declares.
    """
    with told(term.name, term.params):
        value = term()
    columns = value[:1].numel() if value.dim() > 1 or not term.scalar else 1
    fits = value.dim() > 0 and value.shape[0] == num_envs and columns == term.width
    if not fits or (term.scalar and value.dim() != 1):
        declared = "[N]" if term.scalar else f"[N, {term.width}]"
        raise ConfigError(
            f"{term.name}: returns {tuple(value.shape)}, declares {declared}, N = {num_envs}"
        )
    if dtype is not None and value.dtype != dtype:
        raise ConfigError(f"{term.name}: returns {value.dtype}, expected {dtype}")


def _is_scalar(spec: TermSpec, params: Mapping[str, Any], index: ModelIndex) -> bool:
    width = spec.width(params, index) if callable(spec.width) else spec.width
    return width == ()

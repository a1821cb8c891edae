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
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from unilab_gym.runtime.rows import zero_columns

__all__ = [
    "ActionSpec",
    "Adjustables",
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
    adjustable: tuple[str, ...] = ()


@dataclass(frozen=True)
class ActionSpec:
    """A resolved action term: plain numbers, no torch."""

    kind: str
    """What an action means: "joint_position", "relative_joint_position" (the joint's position is
    added), "joint_velocity" or "joint_effort"."""
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
    adjustable: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Declares what a term reads and how wide its value is.

    Args:
        reads: A tuple of reads, or a callable of the term's parameters that returns one.
        width: `()` for `[N]`, d for `[N, d]`, or a callable of (params, index).
        adjustable: Numeric parameters of a function that a curriculum may move: where one does,
            the function gets a 0-d tensor on the device in place of the number.
    """

    def declared(params: Mapping[str, Any]) -> tuple[Read, ...]:
        return reads(params) if callable(reads) else reads

    def attach(target: F) -> F:
        target.__term__ = TermSpec(declared, width, adjustable)  # type: ignore[attr-defined]
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
    """Columns that a term's value takes; a scalar takes one. Needs no environment.

    Raises:
        ConfigError: If the width, which a parameter may say, is no positive integer.
    """
    width = term_spec(func).width
    if callable(width):
        width = width(full_params(func, params), index)
    if width == ():
        return 1
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise ConfigError(f"{func_name(func)}: width must be a positive integer, got {width!r}")
    return width


class Adjustables:
    """Parameters that curricula move while an environment runs, as device tensors by path.

    A path is `<manager>/<term>/<parameter>`. A term asks for its parameters while it is built; it
    gets a tensor only where a curriculum moves that parameter, so that nobody else pays.
    """

    def __init__(self, moved: Iterable[str] = ()) -> None:
        """Notes the paths that curricula of the config move."""
        self.moved = frozenset(moved)
        self.offered: list[str] = []
        """Every parameter that could be moved."""
        self.tensors: dict[str, Tensor] = {}
        """Those that are: 0-d, or `[2, w]` for the bounds of w columns."""

    def offer(self, path: str) -> bool:
        """Notes that a parameter could be moved; whether it is."""
        self.offered.append(path)
        return path in self.moved

    def target(self, path: str) -> Tensor:
        """The tensor of a parameter that some term keeps.

        Raises:
            ConfigError: If no term offers the parameter.
        """
        if path not in self.tensors:
            raise ConfigError(f"no term has an adjustable parameter {near(path, self.offered)}")
        return self.tensors[path]


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
        moved: Iterable[str] = (),
    ) -> None:
        """Holds them; `moved` are the paths of parameters that curricula move."""
        self._nominal = nominal
        self.num_envs = num_envs
        self.device = device
        self.index = index
        self.control_dt = control_dt
        self.max_episode_steps = max_episode_steps
        self.rng = rng
        self.frame = frame
        self.adjustables = Adjustables(moved)
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

    def columns(self, width: int, dtype: torch.dtype = torch.float32, key: str = "") -> Tensor:
        """A carrier of a few scalars per environment, `[N, width]`, zero; a transposed view.

        Its memory is `[width, N]`: work on single columns, and sums over all of them, are then
        several times as fast as in `zeros`. Rows of it are not contiguous.
        """
        return self._own_rows(key, zero_columns(self.num_envs, width, self.device, dtype).t())

    def scratch_columns(
        self, width: int, dtype: torch.dtype = torch.float32, key: str = ""
    ) -> Tensor:
        """As `columns`, for memory that every call writes before it reads it: not saved."""
        columns = zero_columns(self.num_envs, width, self.device, dtype).t()
        return self.state.add_scratch(self.owner, key, columns)

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
        *,
        coarse: bool = False,
    ) -> Callable[[], Tensor]:
        """A stream of uniforms `[N, width]` in [low, high), keyed by the term being built.

        Args:
            width: Numbers per environment and draw.
            on: "step", "reset" or "startup": which counters the draw follows.
            low: Lower bound, one for all columns or one for each.
            high: Upper bound. Bounds cost no operation: scaling is part of the block's draw.
            key: Tells several streams of one term apart.
            coarse: 2^16 values instead of 2^24 at half the cost; for noise.
        """
        return self.rng.uniform(self._stream(key), width, on, low, high, coarse=coarse)

    def normal(
        self,
        width: int,
        on: str,
        mean: float | Sequence[float] = 0.0,
        deviation: float | Sequence[float] = 1.0,
        key: str = "",
    ) -> Callable[[], Tensor]:
        """A stream of normals `[N, width]`; all of an environment cost 3 operations a draw.

        Uniforms, integers and Bernoulli draws are the same bits on every device; normals agree
        to rounding.

        Args:
            width: Numbers per environment and draw.
            on: "step", "reset" or "startup".
            mean: One for all columns, or one for each.
            deviation: Standard deviation, likewise.
            key: Tells several streams of one term apart.
        """
        return self.rng.normal(self._stream(key), width, on, mean, deviation)

    def integers(
        self, width: int, on: str, low: int, high: int, key: str = ""
    ) -> Callable[[], Tensor]:
        """A stream of whole numbers `[N, width]` int64 in [low, high), equally likely.

        Each call of the result costs 4 operations.

        Raises:
            ConfigError: If the range is empty or holds more than 2^24 numbers.
        """
        span = high - low
        if not 0 < span <= 1 << 24:
            raise ConfigError(f"integers in [{low}, {high}): 1 to 2^24 values are possible")
        uniform = self.uniform(width, on, key=key)
        # u x span never rounds up to span: u <= 1 - 2^-24, and floats below span are that close.
        return lambda: uniform().mul(span).floor_().to(torch.int64).add_(low)

    def bernoulli(self, width: int, on: str, p: float, key: str = "") -> Callable[[], Tensor]:
        """A stream of flags `[N, width]` bool, true with probability p: one operation a call.

        Raises:
            ConfigError: If p is not in [0, 1].
        """
        if not 0.0 <= p <= 1.0:
            raise ConfigError(f"a probability must be in [0, 1], got {p}")
        uniform = self.uniform(width, on, key=key)
        return lambda: uniform() < p

    def _stream(self, key: str) -> str:
        return f"{self.owner}/{key}" if key else self.owner

    def adjusted(self, name: str, value: float) -> Tensor | None:
        """A number of the term being built as a 0-d tensor, or None: no curriculum moves it."""
        path = f"{self.owner}/{name}"
        if not self.adjustables.offer(path):
            return None
        self.adjustables.tensors[path] = self.shared(value, key=name)
        return self.adjustables.tensors[path]

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
    advance its state when it is called: it advances in `update`, once a step. Other terms are
    called once a step and advance in `__call__`.
    """

    def __init__(self, ctx: BuildContext) -> None:
        """Keeps the sizes."""
        self.num_envs = ctx.num_envs
        self.device = ctx.device

    def __call__(self, frame: TermFrame) -> Tensor:
        """The value at this boundary, `[N]` or `[N, d]`."""
        raise NotImplementedError(type(self).__name__)

    def update(self, frame: TermFrame) -> None:
        """Observations only: a step has passed; called at Frame A, before `__call__`.

        Of a quarantined row it sees a state that means nothing; `reset` clears that.
        """

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
    compute: Callable[[], Tensor] = field(init=False)
    """The value at this boundary, `[N]` or `[N, d]`."""

    def __post_init__(self) -> None:
        """Binds the frame: a step calls the term and nothing in between."""
        self.compute = functools.partial(self._call, self._frame)

    def __call__(self) -> Tensor:
        """The value at this boundary, `[N]` or `[N, d]`."""
        return self.compute()

    @property
    def has_update(self) -> bool:
        """Whether the term is a class that advances in `update`."""
        return self._own("update") is not None

    def update(self) -> None:
        """Advances the term's state by one step."""
        self.instance.update(self._frame)

    @property
    def reset(self) -> Callable[[Tensor], None] | None:
        """Clears the state where a mask `[N]` is true; None where there is nothing to clear."""
        return self._own("reset")

    def _own(self, method: str) -> Any:
        """A method of the term, unless it has none or only what `Term` offers."""
        own: Any = getattr(cast("Any", type(self.instance)), method, None)
        return (
            None if own is None or own is getattr(Term, method) else getattr(self.instance, method)
        )


def resets_of(terms: Iterable[BoundTerm]) -> list[Callable[[Tensor], None]]:
    """What a reset calls: most terms have no state."""
    return [reset for term in terms if (reset := term.reset) is not None]


def bind_term(
    ctx: BuildContext,
    manager: str,
    name: str,
    cfg: TermCfg,
    phases: tuple[str, ...] = ("step",),
    *,
    updates: bool = False,
) -> BoundTerm:
    """Builds a term: checks parameters, declares reads, allocates state.

    Args:
        ctx: The build context.
        manager: The manager's name, for errors and random streams.
        name: The term's name in the config.
        cfg: Function or class and parameters.
        phases: In which refreshes its reads must be valid.
        updates: Whether the manager calls `update`; a class that has one is refused elsewhere.

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
            with ctx.owned(owner):
                moved = {name: ctx.adjusted(name, params[name]) for name in spec.adjustable}
            tensors = {name: tensor for name, tensor in moved.items() if tensor is not None}
            call = functools.partial(func, **{**params, **tensors})
    bound = BoundTerm(owner, width, scalar, params, reads, frame, call, instance)
    if bound.has_update and not updates:
        raise ConfigError(
            f"{owner}: {func_name(cfg.func)} advances in update(), which only observations "
            "have; here a term is called once a step and advances in __call__"
        )
    return bound


@contextmanager
def told(owner: str, params: Mapping[str, Any]) -> Generator[None]:
    """Puts a term's path in front of what is wrong with it, while it is built.

    A parameter of the wrong kind shows in whatever the term does with it first.

    Raises:
        ConfigError: In the place of a ConfigError, TypeError, ValueError, division by zero, or of
            the RuntimeError with which torch refuses shapes and views.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{owner}: {error}") from error
    except UnilabGymError:
        raise
    except (TypeError, ValueError, ZeroDivisionError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and type(error) is not RuntimeError:
            raise  # out of memory, not implemented: no matter of parameters
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

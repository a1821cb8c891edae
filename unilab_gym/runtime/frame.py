"""The frame: what terms see of one boundary, and the read plan compiled from their declarations.

A boundary is a moment at which the state is defined: after physics (Frame A) and after a reset
(Frame B). `Frame` holds one tensor per declared read. Engine and runtime reads are persistent
tensors; derived reads are computed at most once per boundary and forgotten at the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab_gym.backends.base import ReadPlan
from unilab_gym.errors import ConfigError, UndeclaredRead, near
from unilab_gym.model_index import FieldSlice, ModelIndex, Stage
from unilab_gym.runtime.read_formulas import Bound, Formula
from unilab_gym.runtime.reads import DerivedRead, EngineRead, Read, RuntimeRead


@dataclass(frozen=True)
class SceneTensorReadPlan:
    """Every declared read and what it costs, printable."""

    engine: ReadPlan
    step_reads: tuple[Read, ...]
    reset_reads: tuple[Read, ...]
    derived: tuple[Read, ...]
    runtime: tuple[Read, ...]

    def __str__(self) -> str:
        """One line per phase and kind."""
        plan = self.engine
        lines = [
            f"after a step (stage {Stage(plan.step_stage).name}): " + _listed(self.step_reads),
            f"after a reset (stage {Stage(plan.reset_stage).name}): " + _listed(self.reset_reads),
            "derived: " + _listed(self.derived),
            "runtime: " + _listed(self.runtime),
        ]
        return "\n".join(lines)


def _listed(reads: tuple[Read, ...]) -> str:
    return ", ".join(str(read) for read in reads) or "nothing"


class Frame:
    """Values of every declared read at the current boundary."""

    def __init__(self) -> None:
        """Starts empty; managers declare reads while they are built."""
        self._slices: dict[EngineRead, FieldSlice] = {}
        self._declared: dict[Read, set[str]] = {}
        self._phases: dict[Read, set[str]] = {}
        self._derived: dict[DerivedRead, tuple[Callable[..., Tensor], tuple[Read, ...]]] = {}
        self._runtime: dict[RuntimeRead, Tensor] = {}
        self._asked: dict[RuntimeRead, str] = {}
        self.fixed: dict[Read, Tensor] = {}
        """Reads that are the same tensor at every boundary and need no computation."""
        self.known: dict[Read, Tensor] = {}
        """What is known at this boundary."""
        self._bound: dict[Read, tuple[list[Read], Bound]] = {}
        self._volatile: list[Read] = []
        self._askers: dict[Read, str] = {}

    def declare(
        self,
        read: Read,
        phases: tuple[str, ...],
        index: ModelIndex,
        device: torch.device,
        *,
        asker: str = "",
    ) -> None:
        """Notes a read and whatever it is derived from, and who asked first.

        Raises:
            ConfigError: If it names something that the model does not have.
        """
        self._built_for = (index, device)
        self._declared.setdefault(read, set()).update(phases)
        known = set(self._phases)
        self._follow(read, set(phases), lambda derived: derived)
        for fresh in self._phases.keys() - known:
            self._askers[fresh] = asker

    def _follow(
        self, read: Read, phases: set[str], source: Callable[[DerivedRead], DerivedRead]
    ) -> None:
        """Notes a read and what its source needs."""
        index, device = self._built_for
        self._phases.setdefault(read, set()).update(phases)
        if isinstance(read, EngineRead):
            self._slices.setdefault(read, read.resolve(index))
        elif isinstance(read, DerivedRead):
            chosen = source(read)
            needs = chosen.requires(index)
            for need in needs:
                self._follow(need, phases, source)
            if read not in self._derived:
                self._derived[read] = (chosen.build(index, device), needs)
                if any(isinstance(need, RuntimeRead) or need in self._volatile for need in needs):
                    self._volatile.append(read)
        elif not isinstance(read, RuntimeRead):
            raise ConfigError(f"{read!r} is not a read")

    def _settle(self) -> None:
        """Takes every derived read from the cheapest source that the stages offer anyway."""
        phases = self._phases

        def stage(phase: str) -> Stage:
            slices = self._slices.items()
            return max((s.stage for r, s in slices if phase in phases[r]), default=Stage.NONE)

        stages = {phase: stage(phase) for phase in ("step", "reset")}
        self._slices, self._phases, self._derived, self._volatile = {}, {}, {}, []
        for read, wanted in self._declared.items():
            self._follow(
                read, wanted, lambda d: d.at_stage(min(stages[phase] for phase in phases[d]))
            )

    def provide(self, read: RuntimeRead, tensor: Tensor) -> None:
        """A manager offers one of its persistent tensors."""
        self._runtime[read] = tensor

    def plan(self) -> SceneTensorReadPlan:
        """The plan of every read declared so far."""
        self._settle()

        def pick(phase: str) -> tuple[EngineRead, ...]:
            return tuple(read for read in self._slices if phase in self._phases[read])

        step, reset = pick("step"), pick("reset")
        engine = ReadPlan(
            step=tuple(dict.fromkeys(self._slices[read] for read in step)),
            reset=tuple(dict.fromkeys(self._slices[read] for read in reset)),
        )
        runtime = tuple(read for read in self._phases if isinstance(read, RuntimeRead))
        return SceneTensorReadPlan(engine, step, reset, tuple(self._derived), runtime)

    def bind(self, tensors: Mapping[FieldSlice, Tensor]) -> None:
        """Connects engine reads to the backend's tensors and checks the runtime reads.

        Raises:
            ConfigError: If a runtime read was declared and no manager provides it.
        """
        self.fixed = {read: tensors[item] for read, item in self._slices.items()}
        for read in self._phases:
            if isinstance(read, RuntimeRead):
                self.require((read,))
                self.fixed[read] = self._runtime[read]
        self._bind_formulas()
        self.advance()

    def _bind_formulas(self) -> None:
        """Binds formulas whose needs stay where they are; sources come before what they serve."""
        self._bound = {}
        places = dict(self.fixed)
        for read, (compute, needs) in self._derived.items():
            if isinstance(compute, Formula) and all(need in places for need in needs):
                bound = compute.bind(*[places[need] for need in needs])
                self._bound[read] = ([need for need in needs if need in self._derived], bound)
                places[read] = bound.result

    def require(self, reads: Iterable[RuntimeRead]) -> None:
        """Checks that managers offer these reads.

        Raises:
            ConfigError: If one is not offered; names who asked.
        """
        for read in reads:
            if read not in self._runtime:
                alike = [item for item in self._runtime if type(item) is type(read)]
                asker = self._askers.get(read, "")
                who = f"{asker}: " if asker else ""
                offered = map(str, alike or self._runtime)
                raise ConfigError(f"{who}no manager provides {near(str(read), offered)}")

    def advance(self) -> None:
        """A new boundary: derived values are computed anew when asked for."""
        self.known = dict(self.fixed)

    def commands_changed(self) -> None:
        """Commands moved within the boundary: what was derived from managers is forgotten."""
        for read in self._volatile:
            self.known.pop(read, None)

    def get(self, read: Read) -> Tensor:
        """The value of a declared read."""
        known = self.known
        value = known.get(read)
        if value is None:
            bound = self._bound.get(read)
            if bound is None:
                compute, needs = self._derived[read]  # type: ignore[index]
                # Most needs are known: no call for them.
                value = compute(*[known[n] if n in known else self.get(n) for n in needs])
            else:
                needs, formula = bound
                for need in needs:
                    if need not in known:
                        self.get(need)
                formula.run()
                value = formula.result
            known[read] = value
        return value


class TermFrame(dict[Read, Tensor]):
    """The frame as one term sees it: only the reads that it declared.

    `frame[read]` is the tensor of a declared read. It holds those that stay; the others are
    looked up at every boundary.
    """

    __slots__ = ("_allowed", "_frame", "_name")

    def __init__(self, frame: Frame, name: str, reads: tuple[Read, ...]) -> None:
        """Limits the frame to the declared reads."""
        super().__init__()
        self._frame = frame
        self._name = name
        self._allowed = frozenset(reads)

    def __missing__(self, read: Read) -> Tensor:
        """Looks up a declared read.

        Raises:
            UndeclaredRead: Names the term, the read and what it declared.
        """
        if read not in self._allowed:
            declared = ", ".join(sorted(str(item) for item in self._allowed)) or "nothing"
            raise UndeclaredRead(f"{self._name} reads {read} but declares only: {declared}")
        frame = self._frame
        value = frame.known.get(read)
        if value is None:
            return frame.get(read)
        if read in frame.fixed:
            dict.__setitem__(self, read, value)
        return value

    # What is held so far is nobody's business: these answer for every declared read.

    def __contains__(self, read: object) -> bool:
        """Whether the read was declared."""
        return read in self._allowed

    def __bool__(self) -> bool:
        """A frame is there, whatever it holds."""
        return True

    def get(self, key: Read, default: object = None, /) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The same as `frame[read]`; a declared read is never missing."""
        return self[key]

    def __setitem__(self, read: Read, value: Tensor) -> None:
        """Raises: the tensor would stay in place of the read for ever."""
        raise TypeError(f"{self._name} assigns to {read}: reads cannot be replaced")

"""What happens when a row fails beside its quarantine: a dump that replays, an error, or nothing.

Only an environment that asks for one of them has a reporter, and only then does a step look at
the fault word on the host.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from unilab_gym.config import EnvCfg, to_dict
from unilab_gym.errors import ConfigError, FaultError
from unilab_gym.runtime.fault_ring import FaultRing
from unilab_gym.runtime.faults import FaultWatch, fault_names
from unilab_gym.runtime.step import Runtime

_LOGGER = logging.getLogger("unilab_gym")


def _make_folder(folder: Path) -> None:
    """Finds out before training, not at the first fault, whether dumps can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"fault_dump.directory {str(folder)!r} cannot be written ({error}): name a folder that "
            "can be made, or fault_dump=None"
        ) from error


class FaultReporter:
    """Dumps faulty rows and raises, once the host knows of them."""

    def __init__(
        self,
        rt: Runtime,
        cfg: EnvCfg,
        *,
        action_size: int,
        seed: int,
        rank: int,
        raises: bool,
    ) -> None:
        """Adds the ring of past steps to the runtime where the config asks for dumps.

        Raises:
            ConfigError: If the dumps' folder cannot be written.
        """
        self._rt, self._cfg, self._raises = rt, cfg, raises
        self._seed, self._rank = seed, rank
        self.watch = FaultWatch(rt.backend.num_envs, rt.backend.device)
        self.dumps: list[Path] = []
        """Files written so far."""
        self.task = ""
        """The registered id that the environment was made from, where it was."""
        self.contract_of: Callable[[EnvCfg, Runtime], Mapping[str, Any]] | None = None
        """Says what goes in and out of a policy here, for the dumps; None leaves it out."""
        self._steps = 0
        if cfg.fault_dump is not None:
            _make_folder(Path(cfg.fault_dump.directory))
            rt.ring = FaultRing(rt.backend, action_size, cfg.fault_dump.steps)
            rt.ring.register(rt.state)

    def look(self) -> None:
        """Called at the end of a step, which is complete: who catches the error can go on.

        Raises:
            FaultError: With `on_fault="raise"`, naming rows and causes.
        """
        self._steps += 1
        found = self.watch.look(self._rt.faults.word)
        if not found:
            return
        for row, word in found:
            self._dump(row, word)
        if self._raises:
            causes = "; ".join(f"row {row}: {', '.join(fault_names(w))}" for row, w in found[:8])
            more = f" and {len(found) - 8} more" if len(found) > 8 else ""
            when = " in an earlier step" if self.watch.late else ""
            raise FaultError(f"{len(found)} faulty row(s){when}: {causes}{more}")

    def _dump(self, row: int, word: int) -> None:
        """Writes the last steps of a row; on CUDA this waits for the device, once per file."""
        wanted, rt = self._cfg.fault_dump, self._rt
        if wanted is None or rt.ring is None or len(self.dumps) >= wanted.max_files:
            return
        from unilab_gym.io.fault_dump import write_fault_dump

        arrays = rt.ring.history(row)
        for name in rt.backend.spec.model_fields:
            arrays[f"field/{name}"] = rt.backend.get_model_field(name)[row]
        path = Path(wanted.directory) / f"fault_step{self._steps}_env{row}.npz"
        write_fault_dump(path, arrays, rt.backend.spec.model, self._meta(row, word))
        self.dumps.append(path)
        last = len(self.dumps) == wanted.max_files
        _LOGGER.warning(
            "environment %d failed (%s): %s%s",
            row,
            ", ".join(fault_names(word)),
            path,
            "; no more dumps, max_files is reached" if last else "",
        )

    def _meta(self, row: int, word: int) -> dict[str, Any]:
        rt, spec = self._rt, self._rt.backend.spec
        contract = None
        if self.contract_of is not None:
            contract = {**self.contract_of(self._cfg, rt), "task": self.task}
        return {
            "schema": "unilab_gym.fault_dump/1",
            "env": row,
            "num_envs": spec.num_envs,
            "rank": self._rank,
            "causes": list(fault_names(word)),
            "known_after_steps": self._steps,
            "seed": self._seed,
            "stream_key": cast("int", rt.rng.keys[row, 0].item()),
            "backend": rt.backend.capabilities.name,
            "decimation": spec.decimation,
            "sim_dt": self._cfg.sim_dt,
            "ctrl_dt": self._cfg.ctrl_dt,
            "qpos_offset": spec.index.qpos_offset,
            "qvel_offset": spec.index.qvel_offset,
            "joints": [joint.name for joint in spec.index.joints],
            "actuators": [actuator.name for actuator in spec.index.actuators],
            "config": to_dict(self._cfg),
            "task": self.task or None,
            "contract": contract,
        }

"""Sizes that MuJoCo-Warp fixes when it is built: per-environment fields, contacts, constraints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from unilab_gym.backends.budgets import round_up
from unilab_gym.engine import mujoco

MASS_FIELDS = ("body_mass", "body_inertia", "body_ipos", "dof_armature")
"""Fields from which the engine derives constants (`RecomputeLevel.ALL`)."""

GRAVITY = "opt.gravity"
"""An option, not a model field: its array is replaced before anything is captured."""

_DERIVED = ("body_subtreemass", "body_invweight0", "dof_invweight0", "actuator_acc0")
_SELF_CONTACTS = 32
"""Contacts between moving bodies that the defaults allow for; against the world: all."""

_PLANE_CONTACTS = {"CAPSULE": 2, "CYLINDER": 4, "BOX": 4, "MESH": 4}
_MANY = 8
"""Contacts of a pair that the convex collider handles."""


def batch_sizes(fields: Iterable[str], model: Any, num_envs: int) -> dict[str, int]:
    """Leading sizes for `put_model`: written fields and the constants that follow from them.

    A constant that is not batched would silently stay one shared row when it is recomputed.
    """
    names = [name for name in fields if name != GRAVITY]
    if any(name in MASS_FIELDS for name in names):
        names.extend(_DERIVED)
        if model.ntendon:
            names.append("tendon_invweight0")
    return dict.fromkeys(names, num_envs)


def default_budgets(
    model: Any, pairs: Iterable[tuple[int, int]], fields: tuple[str, ...]
) -> tuple[int, int]:
    """Contacts and constraint rows per environment that do not overflow.

    Every pair of a moving geom and the world counts with the most contacts that the engine makes
    of it; pairs of moving geoms are capped together, because they never all touch at once.

    Args:
        model: The MjModel.
        pairs: Geom pairs that the engine tests, after its filters.
        fields: Model fields that will be written: friction loss may come to every dof.

    Returns:
        nconmax and njmax, multiples of 8.
    """
    contacts, rows = 0, _fixed_rows(model, fields)
    self_contacts, self_rows = 0, 0
    for first, second in pairs:
        count = _pair_contacts(model, first, second)
        per_contact = _contact_rows(model, first, second)
        welds = model.body_weldid[model.geom_bodyid[[first, second]]]
        if (welds == 0).any():
            contacts += count
            rows += count * per_contact
        else:
            self_contacts += count
            self_rows = max(self_rows, per_contact)
    allowed = min(self_contacts, _SELF_CONTACTS)
    contacts += allowed
    rows += allowed * self_rows
    return round_up(contacts), round_up(rows)


def _pair_contacts(model: Any, first: int, second: int) -> int:
    kinds = [mujoco.mjtGeom(int(model.geom_type[i])).name[7:] for i in (first, second)]
    if "HFIELD" in kinds:
        return int(mujoco.mjMAXCONPAIR)
    if "PLANE" in kinds:
        kinds.remove("PLANE")
        return _PLANE_CONTACTS.get(kinds[0], 1)
    if "SPHERE" in kinds or "ELLIPSOID" in kinds:
        return 1
    return 2 if "CAPSULE" in kinds and set(kinds) <= {"CAPSULE", "BOX"} else _MANY


def _contact_rows(model: Any, first: int, second: int) -> int:
    """Rows of one contact: the geom of higher priority gives its dimension, else the larger."""
    priority = model.geom_priority[[first, second]]
    condim = model.geom_condim[[first, second]]
    dim = int(condim.max() if priority[0] == priority[1] else condim[priority.argmax()])
    pyramidal = model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    return 2 * (dim - 1) if pyramidal and dim > 1 else dim


def _fixed_rows(model: Any, fields: tuple[str, ...]) -> int:
    """Equalities, friction losses and limits, as if all were active."""
    equality = {
        int(mujoco.mjtEq.mjEQ_CONNECT): 3,
        int(mujoco.mjtEq.mjEQ_WELD): 6,
    }
    rows = sum(equality.get(int(kind), 1) for kind in model.eq_type)
    everywhere = "dof_frictionloss" in fields
    rows += model.nv if everywhere else int((model.dof_frictionloss > 0).sum())
    rows += int((model.tendon_frictionloss > 0).sum())
    return rows + int(model.jnt_limited.sum()) + int(model.tendon_limited.sum())

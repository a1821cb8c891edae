"""What a call dispatches to torch: names of operations, and those that stall a GPU."""

from torch.utils._python_dispatch import TorchDispatchMode


class _Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[-1]
        if not (func.is_view or name == "_unsafe_view"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


STALLS = {"_local_scalar_dense", "is_nonzero", "lift_fresh", "masked_select", "nonzero", "equal"}


def dispatched(call):
    """Operations of a call in order, views apart."""
    with _Names() as seen:
        call()
    return seen.names


def stalls(names):
    """Those for which the host waits, or which upload."""
    return [name for name in names if name in STALLS]

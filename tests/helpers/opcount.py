"""Counts the torch operators that a callable dispatches, and those that would stall a GPU.

    print(count_ops(lambda: env.step(actions)))

nonview   operators which are not metadata-only views: about one kernel launch each
sync      operators whose result size or value the host must wait for (data-dependent shapes,
          .item(), `if tensor`, boolean-mask indexing)
host      Python calls which copy a tensor to the host: .cpu() .numpy() .tolist()
upload    tensors made from Python numbers or lists (torch.tensor(...)): a copy to the device

Counts depend neither on the device nor on the number of environments, so a CPU run tells how many
launches and stalls a GPU run would have. Not seen: the insides of captured graphs, Warp or NumPy
work, and x.to("cpu") on a tensor that is there already.
"""

import collections

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SYNC = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "equal",
    "bincount",
    "is_nonzero",
}
INDEXING = {
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index",
    "_unsafe_index_put",
}
HOST = ("cpu", "numpy", "tolist")


def _stalls(name, args, kwargs):
    if name in INDEXING:
        masks = [
            index
            for index in args[1]
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
        ]
        # x[mask] = number is a masked_fill and needs no index list
        fill = name.startswith("index_put") and len(args) > 2 and args[2].numel() == 1
        return bool(masks) and not fill
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return name in SYNC


class OpCount(TorchDispatchMode):
    """Counts while it is entered."""

    def __init__(self):
        super().__init__()
        self.nonview, self.sync, self.host = (collections.Counter() for _ in range(3))
        self.upload = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[-1]
        if name == "lift_fresh":
            self.upload += 1
        if not (func.is_view or name == "_unsafe_view"):
            self.nonview[name] += 1
        if _stalls(name, args, kwargs):
            self.sync[name] += 1
        return func(*args, **kwargs)

    def __enter__(self):
        self._saved = {name: getattr(torch.Tensor, name) for name in HOST}
        for name, original in self._saved.items():

            def wrapped(tensor, *args, _name=name, _call=original, **kwargs):
                self.host[_name] += 1
                return _call(tensor, *args, **kwargs)

            setattr(torch.Tensor, name, wrapped)
        return super().__enter__()

    def __exit__(self, *exc):
        for name, original in self._saved.items():
            setattr(torch.Tensor, name, original)
        return super().__exit__(*exc)


def count_ops(call):
    """Numbers of each kind, and the operators behind them."""
    with OpCount() as count:
        call()
    return {
        "nonview": sum(count.nonview.values()),
        "sync": dict(count.sync),
        "host": dict(count.host),
        "upload": count.upload,
        "most": dict(count.nonview.most_common(12)),
    }

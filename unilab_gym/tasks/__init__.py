"""Shipped tasks: each module holds `owner(backend) -> OwnerCfg` and `TASK`."""

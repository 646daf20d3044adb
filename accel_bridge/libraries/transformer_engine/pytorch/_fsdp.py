"""Fully sharded data parallelism around a module."""

from __future__ import annotations

from typing import Any


def _get_module_fsdp_state(module: Any) -> Any:
    """The state of fully sharded data parallelism (torch's second) of the module around it.

    :raises RuntimeError: neither the module nor one around it is sharded.
    """
    if hasattr(module, "_get_fsdp_state"):
        return module._get_fsdp_state()
    known = getattr(module, "_te_cached_parent_fsdp_state", None)
    if known is not None:
        return known
    from torch.distributed._composable_state import _module_state_mapping

    around = [
        (len(members), place, whole)
        for place, whole in enumerate(_module_state_mapping)
        if module in (members := list(whole.modules()))
    ]
    if not around:
        raise RuntimeError(
            "Module is not FSDP-wrapped and does not have any FSDP-wrapped parent modules."
        )
    state = min(around)[2]._get_fsdp_state()  # type: ignore[operator]
    # In __dict__: the state holds modules, which must not become children.
    module.__dict__["_te_cached_parent_fsdp_state"] = state
    return state

"""The main parameters, copied to the model's after each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge.patches._conditions import on_host
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


def _make_copy(context: PatchContext) -> Callable[..., None]:
    import torch

    @torch.no_grad()
    def _multi_tensor_copy_this_to_that(this: Any, that: Any, overflow_buf: Any = None) -> None:
        """Copy every tensor of ``this`` to its counterpart in ``that``, in ``that``'s precision."""
        if overflow_buf is not None:
            overflow_buf.fill_(0)
        if this:
            # PyTorch's FSDP2 has DTensors, for which there is no such operator.
            that, this = (
                [getattr(one, "_local_tensor", one) for one in tensors] for tensors in (that, this)
            )
            torch._foreach_copy_(that, this)

    return _multi_tensor_copy_this_to_that


PATCHES = (
    megatron_patch(
        id="parameter-copy",
        target="megatron.core.optimizer.optimizer:_multi_tensor_copy_this_to_that",
        kind=Kind.REPLACE,
        make=_make_copy,
        why="a launch for every parameter after each step",
        removed_when="upstream uses torch._foreach_copy_",
        loses="each step copies the main parameters one by one",
        # Also with Transformer Engine: upstream always copies bfloat16 one by one.
        skip_when=on_host,
    ),
)

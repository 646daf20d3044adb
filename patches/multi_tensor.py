"""The optimizer's work on lists of tensors, which Apex's ``amp_C`` would do in one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel_bridge.patches._conditions import OWN_KERNELS, first_of, on_host
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext

if TYPE_CHECKING:
    import torch


def _make_scale(context: PatchContext) -> Callable[..., None]:
    import torch

    @torch.no_grad()
    def local_multi_tensor_scale(
        chunk_size: int, noop_flag: Any, tensor_lists: list[list[torch.Tensor]], scale: float
    ) -> None:
        """Set every tensor of the second list to its counterpart in the first, times ``scale``."""
        sources, targets = tensor_lists
        if any(one is not other for one, other in zip(sources, targets, strict=True)):
            torch._foreach_copy_(targets, sources)
        if scale != 1.0:
            torch._foreach_mul_(targets, scale)

    return local_multi_tensor_scale


def _make_copy(context: PatchContext) -> Callable[..., None]:
    import torch

    @torch.no_grad()
    def _multi_tensor_copy_this_to_that(this: Any, that: Any, overflow_buf: Any = None) -> None:
        """Copy every tensor of ``this`` to its counterpart in ``that``, in ``that``'s precision."""
        if overflow_buf is not None:
            overflow_buf.fill_(0)
        if this:
            torch._foreach_copy_(that, this)

    return _multi_tensor_copy_this_to_that


PATCHES = (
    megatron_patch(
        id="gradient-scale",
        target="megatron.core.utils:local_multi_tensor_scale",
        kind=Kind.REPLACE,
        make=_make_scale,
        why="two launches and a temporary for every parameter",
        removed_when="upstream uses torch._foreach_mul_",
        loses="gradient clipping launches two kernels for every parameter",
        skip_when=first_of(OWN_KERNELS, on_host),
    ),
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

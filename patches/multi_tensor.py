"""The optimizer's work on lists of tensors, which Apex's ``amp_C`` would do in one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accel_bridge._host import Host
from accel_bridge.patches._upstream import REQUIRES, SOURCE
from accel_bridge.patching import Kind, Patch, PatchContext


def _make_scale(context: PatchContext) -> Callable[..., None]:
    @torch.no_grad()
    def local_multi_tensor_scale(
        chunk_size: int, noop_flag: Any, tensor_lists: list[list[torch.Tensor]], scale: float
    ) -> None:
        """Every tensor of the second list becomes its fellow of the first, times ``scale``."""
        sources, targets = tensor_lists
        if any(one is not other for one, other in zip(sources, targets, strict=True)):
            torch._foreach_copy_(targets, sources)
        if scale != 1.0:
            torch._foreach_mul_(targets, scale)

    return local_multi_tensor_scale


def _make_copy(context: PatchContext) -> Callable[..., None]:
    @torch.no_grad()
    def _multi_tensor_copy_this_to_that(this: Any, that: Any, overflow_buf: Any = None) -> None:
        """Every tensor of ``that`` becomes its fellow of ``this``, in that's precision."""
        if overflow_buf is not None:
            overflow_buf.fill_(0)
        if this:
            torch._foreach_copy_(that, this)

    return _multi_tensor_copy_this_to_that


def _not_needed(host: Host) -> str | None:
    for library in ("transformer_engine", "amp_C"):
        if host.library(library):
            return f"{library} is installed: Megatron uses its multi-tensor kernels"
    if host.features.tensors_on_host:
        return "on the host nothing is launched"
    return None


def _copy_not_needed(host: Host) -> str | None:
    # Also beside Transformer Engine: for bfloat16 upstream copies one by one whatever is there.
    if host.features.tensors_on_host:
        return "on the host nothing is launched"
    return None


PATCHES = (
    Patch(
        id="gradient-scale",
        target="megatron.core.utils:local_multi_tensor_scale",
        kind=Kind.REPLACE,
        make=_make_scale,
        why="two launches and a temporary for every parameter",
        upstream=f"{SOURCE}/core/utils.py",
        removed_when="upstream uses torch._foreach_mul_",
        loses="gradient clipping launches two kernels for every parameter",
        requires=REQUIRES,
        parameters=("chunk_size", "noop_flag", "tensor_lists", "scale"),
        skip_when=_not_needed,
    ),
    Patch(
        id="parameter-copy",
        target="megatron.core.optimizer.optimizer:_multi_tensor_copy_this_to_that",
        kind=Kind.REPLACE,
        make=_make_copy,
        why="a launch for every parameter after each step",
        upstream=f"{SOURCE}/core/optimizer/optimizer.py",
        removed_when="upstream uses torch._foreach_copy_",
        loses="each step copies the main parameters one by one",
        requires=REQUIRES,
        parameters=("this", "that", "overflow_buf"),
        skip_when=_copy_not_needed,
    ),
)

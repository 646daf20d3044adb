"""Linear layers: the matrix product itself adds the weight gradient to the float32 sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._conditions import beside, first_of, unless_faster
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext

#: Apex's extension, which Megatron's own code is written for.
EXTENSION = "fused_weight_gradient_mlp_cuda"

_NOT_NEEDED = first_of(beside(EXTENSION, uses="it"), unless_faster("weight_gradient"))


def _make(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import WEIGHT_GRADIENT

    upstream = context.original
    kernel = context.host.kernel(WEIGHT_GRADIENT)

    @functools.wraps(upstream)
    def linear_with_grad_accumulation_and_async_allreduce(
        input: Any,
        weight: Any,
        bias: Any,
        gradient_accumulation_fusion: bool,
        allreduce_dgrad: bool,
        sequence_parallel: bool,
        grad_output_buffer: Any = None,
        wgrad_deferral_limit: int | None = 0,
        tp_group: Any = None,
        gtp_remat_size: int = 1,
    ) -> Any:
        """input [s, b, k] times weight [m, k], plus bias [m]: [s, b, m]."""
        from accel_bridge.patches.modules.linear_function import linear

        special = grad_output_buffer is not None or gtp_remat_size > 1
        if special or not gradient_accumulation_fusion or hasattr(weight, "__fsdp_param__"):
            return upstream(
                input,
                weight,
                bias,
                gradient_accumulation_fusion,
                allreduce_dgrad,
                sequence_parallel,
                grad_output_buffer,
                wgrad_deferral_limit,
                tp_group,
                gtp_remat_size,
            )
        return linear(input, weight, bias, kernel, allreduce_dgrad, sequence_parallel, tp_group)

    return linear_with_grad_accumulation_and_async_allreduce


PATCHES = (
    megatron_patch(
        id="weight-gradient",
        target="megatron.core.tensor_parallel.layers:"
        "linear_with_grad_accumulation_and_async_allreduce",
        requires="megatron-core>=0.19,<0.20",
        kind=Kind.REPLACE,
        make=_make,
        why="--gradient-accumulation-fusion, the default, needs Apex's extension; without it every "
        "weight gradient is written in half precision and then added in a separate pass",
        removed_when="upstream accumulates weight gradients by torch.addmm with out_dtype",
        loses="--no-gradient-accumulation-fusion must be given by hand",
        skip_when=_NOT_NEEDED,
        kernels=("weight_gradient",),
    ),
    megatron_patch(
        id="weight-gradient-available",
        target="megatron.core.tensor_parallel.layers:_grad_accum_fusion_available",
        kind=Kind.ATTRIBUTE,
        make=lambda context: True,
        why="layers refuse --gradient-accumulation-fusion where Apex's extension is missing",
        removed_when="weight-gradient is removed",
        loses="--no-gradient-accumulation-fusion must be given by hand",
        skip_when=_NOT_NEEDED,
        kernels=("weight_gradient",),
        # Layers that accept the flag call Apex's extension where the function is Megatron's own.
        after=("weight-gradient",),
        needs=("weight-gradient",),
    ),
)

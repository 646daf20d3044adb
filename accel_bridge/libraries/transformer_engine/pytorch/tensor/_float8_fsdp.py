"""FP8 parameters under torch's fully sharded data parallelism."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState


class Float8Gathering:
    """What fully_shard calls before and after it gathers a parameter."""

    _data: Any
    _scale_inv: Any
    _fp8_dtype: Any
    _quantizer: Any

    def fsdp_pre_all_gather(
        self, mesh: Any, orig_size: Any, contiguous_orig_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[torch.Tensor], tuple[Any, ...]]:
        """((numbers to gather,), what to rebuild the tensor from)."""
        from ..distributed import _get_module_fsdp_state

        if hasattr(self._quantizer, "with_amax_reduction") and mesh is not None:
            # Every shard must have one and the same scale.
            self._quantizer.amax_reduction_group = mesh.get_group()
            self._quantizer.with_amax_reduction = True
        group = _get_module_fsdp_state(module)._fsdp_param_group
        rowwise, columnwise = True, self._quantizer.columnwise_usage
        if group._reshard_after_forward:
            columnwise = group._training_state == TrainingState.PRE_BACKWARD
            rowwise = not columnwise
        return (self._data,), (self._scale_inv, rowwise, columnwise, self._fp8_dtype)

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[torch.Tensor, ...],
        metadata: Any,
        param_dtype: torch.dtype,
        *,
        out: Any = None,
    ) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """(the whole tensor, what it is made of)."""
        (data,) = all_gather_outputs
        scale_inv, rowwise, columnwise, fp8_dtype = metadata
        if out is None:
            out = type(self)(  # type: ignore[call-arg]
                shape=data.shape,
                dtype=param_dtype,
                fp8_scale_inv=scale_inv,
                fp8_dtype=fp8_dtype,
                quantizer=self._quantizer,
                requires_grad=False,
                data=data,
            )
        else:
            out._data = data
        out._quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
        out.update_usage(rowwise_usage=rowwise, columnwise_usage=columnwise)
        return out, all_gather_outputs

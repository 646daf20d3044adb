"""``Linear``: a product with a weight, and a bias.

Source of the interface: transformer_engine/pytorch/module/linear.py of Transformer Engine 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..jit import no_torch_dynamo
from ..quantized_tensor import QuantizedTensor
from ..utils import cast_if_needed
from ._linear_function import linear
from ._parallel import ParallelLinear

__all__ = ["Linear"]


class Linear(ParallelLinear):
    """``y = x A^T + b``.

    :param in_features: size of each input sample.
    :param out_features: size of each output sample.
    :param sequence_parallel: a column-parallel input and a row-parallel output are parts of the
        sequence.
    :param fuse_wgrad_accumulation: add the weight gradient to the weight's ``main_grad``; a weight
        with a true attribute ``overwrite_main_grad`` replaces what that holds.
    :param tp_group: group of tensor parallelism.
    :param tp_size: its size, where the group is set later by ``set_tensor_parallel_group``.
    :param get_rng_state_tracker: returns the tracker that initialisation draws from.
    :param rng_tracker_name: name of its state.
    :param init_method: called with the weight; default: normal, standard deviation 0.023.
    :param return_bias: return the bias instead of adding it.
    :param parallel_mode: ``column``, ``row`` or None.
    :param parameters_split: names, or names with sizes, of parts of the weight and the bias along
        the output, each a parameter of its own.
    :param device: ``meta`` defers allocation to ``reset_parameters``.
    :param ub_overlap_ag: this and the other ``ub_`` arguments are refused where they would act.
    :param delay_wgrad_compute: the weight gradient is computed by ``backward_dw``.
    :param symmetric_ar_type: type of a row-parallel all-reduce through symmetric memory.
    :param save_original_input: keep the input instead of its FP8 copy for the backward pass.
    :raises BridgeError: an overlap by user buffers that would act.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        parameters_split: Sequence[str] | Mapping[str, int] | None = None,
        device: torch.device | str = "cuda",
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        save_original_input: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.use_bias = bias
        self.return_bias = return_bias
        self.apply_bias = bias and not return_bias
        self.get_rng_state_tracker = get_rng_state_tracker
        self.rng_tracker_name = rng_tracker_name
        self.symmetric_ar_type = symmetric_ar_type
        self.save_original_input = save_original_input
        self.ub_name = ub_name
        if torch.device(device).type == "meta":
            assert parameters_split is None, "Cannot split module parameters on 'meta' device."
        self._set_parallelism(
            tp_group, tp_size, sequence_parallel, delay_wgrad_compute, ub_bulk_wgrad
        )
        self._set_sizes(in_features, out_features, parallel_mode)
        self._refuse_overlaps(
            ub_overlap_ag=ub_overlap_ag and parallel_mode in ("column", "row"),
            ub_overlap_rs=ub_overlap_rs and parallel_mode == "row",
            ub_overlap_rs_dgrad=ub_overlap_rs_dgrad and parallel_mode == "column",
            ub_bulk_dgrad=ub_bulk_dgrad and parallel_mode == "column",
            ub_bulk_wgrad=ub_bulk_wgrad and parallel_mode == "column",
        )
        dtype = torch.get_default_dtype() if params_dtype is None else params_dtype
        self._make_parameters(
            out_features, parameters_split, dtype, device, init_method, get_rng_state_tracker
        )
        self._finish(device)

    @no_torch_dynamo()
    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool | None = False,
        fp8_grad: bool | None = False,
    ) -> Any:
        """[..., k] -> [..., m]; with ``return_bias`` also the bias.

        :param is_first_microbatch: whether this is the first microbatch of a step, between which
            weights do not change: FP8 copies of weights are kept, and the first weight gradient
            replaces what ``main_grad`` holds; None for neither.
        :param fp8_output: return an FP8 tensor.
        :param fp8_grad: return the input's gradient as an FP8 tensor.
        """
        inp = self.prepare_forward(inp, allow_non_contiguous=isinstance(inp, QuantizedTensor))
        try:
            weight, bias = self._get_weight_and_bias_tensors()
            added = bias if self.apply_bias and not self.gemm_bias_unfused_add else None
            assert self.activation_dtype is not None
            spread = self._spread(
                self.parallel_mode, is_first_microbatch, self.symmetric_ar_type, self.wgrad_store
            )
            if self.fp8 or self.fp8_calibration:
                from ._quantized_linear import quantized_linear

                out = quantized_linear(
                    self, weight, inp, added, spread, is_first_microbatch, fp8_output, fp8_grad
                )
            else:
                out = linear(weight, inp, added, self.activation_dtype, spread, self._first)
        finally:
            self.end_forward()
        if bias is not None:
            shown: Any = cast_if_needed(bias, self.activation_dtype)
            if self.gemm_bias_unfused_add:
                out = out + shown
            if self.return_bias:
                return out, shown
        elif self.return_bias:
            return out, None
        return out

    def extra_repr(self) -> str:
        """The sizes of this rank."""
        return f"{self.in_features}, {self.out_features}, bias={self.use_bias}, tp={self.tp_size}"

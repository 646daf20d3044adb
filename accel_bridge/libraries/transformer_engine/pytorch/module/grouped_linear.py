"""``GroupedLinear``: the linear layers of several experts at once.

Source of the interface: transformer_engine/pytorch/module/grouped_linear.py of Transformer Engine
2.13.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ..constants import GemmParallelModes
from ..distributed import set_tensor_model_parallel_attributes
from ..jit import no_torch_dynamo
from ..quantization import FP8GlobalStateManager
from ..quantized_tensor import QuantizedTensor, QuantizedTensorStorage
from ..utils import cast_if_needed, divide, init_method_constant
from ._grouped_function import Groups, grouped_linear
from ._parallel import WEIGHT, ParallelModule, exact
from .base import _add_gradient

__all__ = ["GroupedLinear"]

#: Quantizers of each product, forward and backward.
_FORWARD: Final = 3
_BACKWARD: Final = 2
#: What FP8 weights consist of, save single factors, which products read at aligned addresses.
_PARTS: Final = (
    *("_data", "_transpose", "_rowwise_data", "_columnwise_data"),
    *("_rowwise_scale_inv", "_columnwise_scale_inv"),
)


class GroupedLinear(ParallelModule):
    """``y_i = x_i A_i^T + b_i`` for groups i of rows.

    Parameters that :class:`Linear` has too mean the same. The sizes of weights follow ``tp_size``
    and ``parallel_mode``; callers communicate.

    :param num_gemms: number of groups.
    :raises ValueError: a bias with tensor parallelism.
    """

    def __init__(
        self,
        num_gemms: int,
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
        device: torch.device | str = "cuda",
        ub_overlap_rs: bool = False,
        ub_overlap_ag: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        save_original_input: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if ub_overlap_rs or ub_overlap_ag:
            raise AssertionError("GroupedLinear doesn't support Userbuffer overlap.")
        self.params_dtype = torch.get_default_dtype() if params_dtype is None else params_dtype
        self.num_gemms = num_gemms
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.use_bias = bias
        self.return_bias = return_bias
        self.apply_bias = bias and not return_bias
        self.ub_overlap_rs, self.ub_overlap_ag, self.ub_name = ub_overlap_rs, ub_overlap_ag, ub_name
        self.save_original_input = save_original_input
        self.init_method = init_method
        self.get_rng_state_tracker = get_rng_state_tracker
        self.rng_tracker_name = rng_tracker_name
        self._set_parallelism(tp_group, tp_size, sequence_parallel, delay_wgrad_compute)
        if self.tp_size > 1 and bias:
            raise ValueError(
                "GroupedLinear doesn't support bias when TP > 1. "
                "Because the TP communication is handled outside of this module."
            )
        assert parallel_mode in GemmParallelModes, f"parallel_mode {parallel_mode} not supported"
        self.parallel_mode = parallel_mode
        self.in_features, self.out_features = in_features, out_features
        if parallel_mode == "column":
            self.out_features = divide(out_features, self.tp_size)
        elif parallel_mode == "row":
            self.in_features = divide(in_features, self.tp_size)
        self.weight_names = [f"weight{i}" for i in range(num_gemms)]
        self.bias_names = [f"bias{i}" for i in range(num_gemms)]
        self._make_parameters(device)
        if self.primary_weights_in_fp8:
            self.init_fp8_metadata(num_gemms=num_gemms)
        self.reset_parameters(defer_init=torch.device(device).type == "meta")
        self._mark_delayed([*self.weight_names, *self.bias_names])

    def _make_parameters(self, device: torch.device | str) -> None:
        options: dict[str, Any] = {"device": device, "dtype": self.params_dtype}
        # One block, so that one launch can multiply with all of them.
        block = torch.empty(self.num_gemms, self.out_features, self.in_features, **options)
        for index, (weight, bias) in enumerate(
            zip(self.weight_names, self.bias_names, strict=True)
        ):
            self.register_parameter(
                weight,
                # `data`: the parameters must not share a count of writes.
                torch.nn.Parameter(block[index].data),
                init_fn=self.init_method,
                get_rng_state_tracker=self.get_rng_state_tracker,
                fp8_meta_index=WEIGHT + index * _FORWARD,
            )
            if self.use_bias:
                self.register_parameter(
                    bias,
                    torch.nn.Parameter(torch.empty(self.out_features, **options)),
                    init_fn=init_method_constant(0.0),
                )
            else:
                setattr(self, bias, torch.empty(0, **options))

    def reset_parameters(self, defer_init: bool | None = False) -> None:
        """See the base class; marks how tensor parallelism splits the parameters."""
        super().reset_parameters(defer_init=defer_init)
        if not defer_init and os.getenv("NVTE_ALLOC_CONTIGUOUS_GROUPED_LINEAR_WEIGHTS") == "1":
            self._join_weights()
        self.set_tensor_parallel_attributes(defer_init=defer_init)

    def _join_weights(self) -> None:
        """Put the parts of FP8 weights beside each other; plain weights are so from the start."""
        weights: list[Any] = [getattr(self, name) for name in self.weight_names]
        if not isinstance(weights[0], QuantizedTensor):
            return
        for name in _PARTS:
            found = [getattr(weight, name, None) for weight in weights]
            parts = [part for part in found if isinstance(part, torch.Tensor)]
            if len(parts) == len(weights):
                for weight, part in zip(weights, torch.stack(parts), strict=True):
                    setattr(weight, name, part)

    def set_tensor_parallel_attributes(self, defer_init: bool | None = False) -> None:
        """Mark how tensor parallelism splits the parameters."""
        if defer_init:
            return
        for weight, bias in zip(self.weight_names, self.bias_names, strict=True):
            dim = 1 if self.parallel_mode == "row" else 0
            set_tensor_model_parallel_attributes(getattr(self, weight), True, dim, 1)
            if not self.use_bias:
                continue
            if self.parallel_mode == "row":
                getattr(self, bias).sequence_parallel = self.sequence_parallel
            elif self.parallel_mode == "column":
                set_tensor_model_parallel_attributes(getattr(self, bias), True, 0, 1)

    @no_torch_dynamo()
    def forward(
        self,
        inp: torch.Tensor,
        m_splits: Sequence[int],
        is_first_microbatch: bool | None = None,
    ) -> Any:
        """[..., k] -> [..., m]; with ``return_bias`` also the list of biases.

        :param m_splits: rows of each group; they follow each other in ``inp``.
        :param is_first_microbatch: see ``Linear.forward``.
        """
        assert not isinstance(inp, QuantizedTensorStorage), (
            "GroupedLinear doesn't support input tensor in FP8."
        )
        splits = m_splits.tolist() if isinstance(m_splits, torch.Tensor) else list(m_splits)
        assert len(splits) == self.num_gemms, "Number of splits should match number of GEMMs."
        inp = self.prepare_forward(inp, num_gemms=self.num_gemms)
        try:
            if inp.shape[-1] != self.in_features:
                raise ValueError(
                    f"Input tensor (shape={tuple(inp.shape)}) is not compatible with "
                    f"weight tensor (shape={(self.out_features, self.in_features)})"
                )
            weights = self._get_weight_tensors()
            biases = [getattr(self, name) for name in self.bias_names]
            dtype = self.activation_dtype
            assert dtype is not None
            delays = self.wgrad_store if self.need_backward_dw() else None
            replaces = bool(is_first_microbatch) and torch.is_grad_enabled()
            groups = Groups(splits, self.fuse_wgrad_accumulation, replaces, self._first, delays)
            rows = inp if inp.dim() == 2 else inp.reshape(-1, self.in_features)
            added = biases if self.apply_bias else ()
            if self.fp8 or self.fp8_calibration:
                from ._quantized_grouped import quantized_grouped_linear

                out = quantized_grouped_linear(
                    self, rows, groups, weights, added, is_first_microbatch
                )
            else:
                out = grouped_linear(rows, dtype, groups, weights, added)
        finally:
            self.end_forward()
        if inp.dim() != 2:
            out = out.view(-1, *inp.shape[1:-1], self.out_features)
        if self.return_bias:
            return out, [cast_if_needed(bias, dtype) for bias in biases]
        return out

    def backward_dw(self) -> None:
        """Compute the oldest delayed weight gradients."""
        if not self.need_backward_dw():
            return
        assert self.wgrad_store is not None
        (gradients, bias_gradients), _ = self.wgrad_store.pop()
        names = (*self.weight_names, *self.bias_names)
        for name, gradient in zip(names, (*gradients, *bias_gradients), strict=True):
            if gradient is not None:
                _add_gradient(getattr(self, name), gradient)
        self._trigger_wgrad_accumulation_and_reduce_hooks()

    def set_meta_tensor(self, fwd: bool, recipe: Any) -> None:
        """See the base class; sets the recipe's options on the quantizers."""
        super().set_meta_tensor(fwd, recipe)
        if FP8GlobalStateManager.get_fp8_recipe().float8_current_scaling():
            from ._quantized_linear import set_current_scaling

            assert self.tp_size == 1, (
                "GroupedLinear doesn't support TP > 1 with Float8 current scaling. "
                "Because the TP communication is handled outside of this module."
            )
            for index in range(self.num_gemms):
                set_current_scaling(self, fwd, index, None)

    def _get_weight_tensors(self) -> list[torch.Tensor]:
        weights: list[torch.Tensor] = [getattr(self, name) for name in self.weight_names]
        if self.fp8 or not any(isinstance(weight, QuantizedTensor) for weight in weights):
            return weights
        return exact(weights)

    def _get_weight_quantizers(self) -> list[Any]:
        if not (self.fp8 or self.fp8_calibration or self.primary_weights_in_fp8):
            return [None] * self.num_gemms
        quantizers = self.quantizers["scaling_fwd"][WEIGHT::_FORWARD]
        for quantizer in quantizers:
            quantizer.internal = not self.primary_weights_in_fp8
        return list(quantizers)

    def extra_repr(self) -> str:
        """The sizes of this rank."""
        return f"{self.num_gemms} of {self.in_features}, {self.out_features}, bias={self.use_bias}"

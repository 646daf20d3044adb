"""``LayerNormMLP``: a norm, a product, an activation, a product.

Source of the interface: transformer_engine/pytorch/module/layernorm_mlp.py of Transformer Engine
2.13.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._recompute import checkpoint_by_hooks
from ..distributed import set_tensor_model_parallel_attributes
from ..jit import no_torch_dynamo
from ..quantization import FP8GlobalStateManager
from ..quantized_tensor import QuantizedTensor
from ..utils import cast_if_needed, divide, init_method_constant
from ._activations import activation as activation_named
from ._activations import is_gated
from ._linear_function import First, linear
from ._parallel import WEIGHT, NormedModule, exact
from ._sequence import gather_from_sequence
from .base import _add_gradient

__all__ = ["LayerNormMLP"]


class LayerNormMLP(NormedModule):
    """``y = act(norm(x) A1^T + b1) A2^T + b2``.

    Parameters that ``LayerNormLinear`` has too mean the same; ``return_bias`` is about the second
    bias.

    :param hidden_size: size of an input and an output sample.
    :param ffn_hidden_size: size between the products, after a gated activation.
    :param activation: ``gelu``, ``geglu``, ``glu``, ``qgelu``, ``qgeglu``, ``relu``, ``reglu``,
        ``srelu``, ``sreglu``, ``silu``, ``swiglu`` or ``clamped_swiglu``.
    :param activation_params: of ``clamped_swiglu``: ``limit`` and ``alpha``.
    :param seq_length: accepted; nothing needs to be warmed up.
    :param micro_batch_size: accepted, like ``seq_length``.
    :param set_parallel_mode: the first product is column-parallel, the second row-parallel.
    :param checkpoint: keep the input only, and compute the rest again in the backward pass.
    :raises NotImplementedError: an unknown activation, at the first call.
    """

    fc1_weight: Any
    fc1_bias: Any
    fc2_weight: Any
    fc2_bias: Any

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        return_bias: bool = False,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        tp_size: int = 1,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        activation_params: Mapping[str, Any] | None = None,
        output_layer_init_method: Callable[[torch.Tensor], Any] | None = None,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: torch.dtype | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        set_parallel_mode: bool = False,
        zero_centered_gamma: bool = False,
        device: torch.device | str = "cuda",
        ub_overlap_ag: bool = False,
        name: str | None = None,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        checkpoint: bool = False,
    ) -> None:
        super().__init__(name)
        assert normalization in ("LayerNorm", "RMSNorm"), "Unsupported normalization type!"
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.normalization = normalization
        self.use_bias = bias
        self.activation = activation
        self.activation_params = activation_params
        self.return_bias = return_bias
        self.apply_bias = bias and not return_bias
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = (
            return_layernorm_output and return_layernorm_output_gathered
        )
        self.set_parallel_mode = set_parallel_mode
        self.zero_centered_gamma = zero_centered_gamma
        self.symmetric_ar_type = symmetric_ar_type
        self.checkpoint = checkpoint
        self.eps = eps
        self._set_parallelism(
            tp_group, tp_size, sequence_parallel, delay_wgrad_compute, ub_bulk_wgrad
        )
        self._refuse_overlaps(
            ub_overlap_ag=ub_overlap_ag,
            ub_overlap_rs=ub_overlap_rs,
            ub_overlap_rs_dgrad=ub_overlap_rs_dgrad,
            ub_bulk_dgrad=ub_bulk_dgrad,
            ub_bulk_wgrad=ub_bulk_wgrad,
        )
        self._first2 = First()
        self.size_per_partition = divide(ffn_hidden_size, self.tp_size)
        dtype = torch.get_default_dtype() if params_dtype is None else params_dtype
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self._make_norm(hidden_size, options)
        sizes = {
            "fc1": (self.size_per_partition * (1 + is_gated(activation)), hidden_size),
            "fc2": (hidden_size, self.size_per_partition),
        }
        methods = (init_method, output_layer_init_method)
        self.weight_names = ["fc1_weight", "fc2_weight"]
        self.bias_names = ["fc1_bias", "fc2_bias"]
        for index, ((stem, size), method) in enumerate(zip(sizes.items(), methods, strict=True)):
            self.register_parameter(
                f"{stem}_weight",
                torch.nn.Parameter(torch.empty(size, **options)),
                init_fn=method,
                get_rng_state_tracker=get_rng_state_tracker,
                fp8_meta_index=WEIGHT + 3 * index,
            )
            if bias:
                self.register_parameter(
                    f"{stem}_bias",
                    torch.nn.Parameter(torch.empty(size[0], **options)),
                    init_fn=init_method_constant(0.0),
                )
            else:
                setattr(self, f"{stem}_bias", torch.empty(0, **options))
        if self.primary_weights_in_fp8:
            self.init_fp8_metadata(num_gemms=2)
        self.reset_parameters(defer_init=torch.device(device).type == "meta")
        # The bias of a row-parallel product is added once, after the sum over the ranks.
        self.gemm_bias_unfused_add = set_parallel_mode and self.apply_bias
        self._mark_delayed([*self.weight_names, *self.bias_names])
        # Kernels here take no margins; callers read and set them.
        self.fwd_ln_sm_margin = int(os.getenv("NVTE_FWD_LAYERNORM_SM_MARGIN", "0"))
        self.bwd_ln_sm_margin = int(os.getenv("NVTE_BWD_LAYERNORM_SM_MARGIN", "0"))
        self.inf_ln_sm_margin = int(os.getenv("NVTE_INF_LAYERNORM_SM_MARGIN", "0"))

    def reset_parameters(self, defer_init: bool | None = False) -> None:
        """See the base class; marks how parallelism splits the parameters."""
        super().reset_parameters(defer_init=defer_init)
        if defer_init:
            return
        set_tensor_model_parallel_attributes(self.fc1_weight, True, 0, 1)
        set_tensor_model_parallel_attributes(self.fc2_weight, True, 1, 1)
        if self.use_bias:
            set_tensor_model_parallel_attributes(self.fc1_bias, True, 0, 1)
            if self.set_parallel_mode:
                self.fc2_bias.sequence_parallel = self.sequence_parallel

    @no_torch_dynamo()
    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None) -> Any:
        """[..., h] -> [..., h]; then the second bias with ``return_bias``, then the norm's output.

        :param is_first_microbatch: see ``Linear.forward``.
        """
        inp = self.prepare_forward(inp, num_gemms=2)
        try:
            weights = self._get_weight_tensors()
            if self.checkpoint and torch.is_grad_enabled():
                out, normal = self._checkpointed(inp, weights, is_first_microbatch)
            else:
                out, normal = self._compute(inp, weights, is_first_microbatch, True)
        finally:
            self.end_forward()
        assert self.activation_dtype is not None
        bias: Any = cast_if_needed(self.fc2_bias, self.activation_dtype) if self.use_bias else None
        if self.gemm_bias_unfused_add:
            out = out + bias
        results: list[Any] = [out]
        if self.return_bias:
            results.append(bias)
        if self.return_layernorm_output:
            results.append(normal)
        return out if len(results) == 1 else tuple(results)

    def _compute(
        self,
        inp: torch.Tensor,
        weights: list[torch.Tensor],
        is_first_microbatch: bool | None,
        computes: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(output, output of the norm where it is returned).

        What is between is freed as soon as nothing needs it: without gradients, or under
        ``checkpoint``, two of the three wide tensors are alive at once.

        :param computes: the result is needed, not only what is kept for the backward pass.
        """
        dtype = self.activation_dtype
        assert dtype is not None
        normal = self._normalize(inp)
        modes = ("column", "row") if self.set_parallel_mode else (None, None)
        spread = self._spread(modes[0], is_first_microbatch, None, self.wgrad_store)
        if (
            self.return_layernorm_output_gathered
            and spread.mode == "column"
            and spread.sequence_parallel
        ):
            normal = gather_from_sequence(normal, self.tp_group)
            spread = spread._replace(mode=None, sequence_parallel=False)
        returned = normal if self.return_layernorm_output else None
        bias1 = self.fc1_bias if self.use_bias else None
        bias2 = self.fc2_bias if self.apply_bias and not self.gemm_bias_unfused_add else None
        act = activation_named(self.activation, self.activation_params)
        spread2 = self._spread(
            modes[1], is_first_microbatch, self.symmetric_ar_type, self.wgrad_store
        )._replace(computes=computes)
        quantized = self.fp8 or self.fp8_calibration
        if quantized:
            from ._quantized_linear import quantized_linear

            inner = quantized_linear(
                self, weights[0], normal, bias1, spread, is_first_microbatch, cache="fc1_weight"
            )
        else:
            inner = linear(weights[0], normal, bias1, dtype, spread, self._first)
        del normal
        active = act(inner)
        del inner
        if quantized:
            out = quantized_linear(
                self,
                weights[1],
                active,
                bias2,
                spread2,
                is_first_microbatch,
                product=1,
                cache="fc2_weight",
                first=self._first2,
            )
        else:
            out = linear(weights[1], active, bias2, dtype, spread2, self._first2)
        return out, returned

    def _checkpointed(
        self, inp: torch.Tensor, weights: list[torch.Tensor], is_first_microbatch: bool | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        delayed = self.fp8 and self.fp8_meta["recipe"].delayed()
        if delayed:
            FP8GlobalStateManager.copy_forward_fp8_meta_tensors_for_recompute(self.fp8_meta)

        def second() -> None:
            if delayed:
                FP8GlobalStateManager.get_old_fp8_meta_tensors_for_recompute(self.fp8_meta)
            try:
                # The copies of the weights are up to date.
                first = None if is_first_microbatch is None else False
                self._compute(inp, weights, first, False)
            finally:
                if delayed:
                    FP8GlobalStateManager.restore_fp8_meta_tensors(self.fp8_meta)

        result: tuple[torch.Tensor, torch.Tensor | None] = checkpoint_by_hooks(
            lambda: self._compute(inp, weights, is_first_microbatch, True), (), {}, second=second
        )
        return result

    def backward_dw(self) -> None:
        """Compute the oldest delayed weight gradients of both products."""
        if not self.need_backward_dw():
            return
        assert self.wgrad_store is not None
        for weight, bias in reversed(list(zip(self.weight_names, self.bias_names, strict=True))):
            gradients, _ = self.wgrad_store.pop()
            for name, gradient in zip((weight, bias), gradients, strict=True):
                if gradient is not None:
                    _add_gradient(getattr(self, name), gradient)
        self._trigger_wgrad_accumulation_and_reduce_hooks()

    def set_meta_tensor(self, fwd: bool, recipe: Any) -> None:
        """See the base class; sets the recipe's options on the quantizers."""
        super().set_meta_tensor(fwd, recipe)
        if FP8GlobalStateManager.get_fp8_recipe().float8_current_scaling():
            from ._quantized_linear import set_current_scaling

            # The first product gathers its input, the second its output's gradient.
            group = self.tp_group if self.sequence_parallel and self.set_parallel_mode else None
            set_current_scaling(self, fwd, 0, group if fwd else None)
            set_current_scaling(self, fwd, 1, None if fwd else group)

    def _get_weight_tensors(self) -> list[torch.Tensor]:
        weights: list[torch.Tensor] = [self.fc1_weight, self.fc2_weight]
        if self.fp8 or not any(isinstance(weight, QuantizedTensor) for weight in weights):
            return weights
        return exact(weights)

    def _get_weight_quantizers(self) -> list[Any]:
        if not (self.fp8 or self.fp8_calibration):
            return [None, None]
        quantizers = list(self.quantizers["scaling_fwd"][WEIGHT::3])
        for quantizer in quantizers:
            quantizer.internal = True
        return quantizers

    def extra_repr(self) -> str:
        """The sizes of this rank."""
        return (
            f"{self.fc1_weight.shape[1]}, {self.size_per_partition}, {self.activation}, "
            f"bias={self.use_bias}, tp={self.tp_size}, {self.normalization}, eps={self.eps}"
        )

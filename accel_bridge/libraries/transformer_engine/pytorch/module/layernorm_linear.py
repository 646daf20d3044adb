"""``LayerNormLinear``: a norm, then a product with a weight, and a bias.

Source of the interface: transformer_engine/pytorch/module/layernorm_linear.py of Transformer
Engine 2.13.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..jit import no_torch_dynamo
from ..utils import cast_if_needed
from ._linear_function import linear
from ._parallel import NormedModule, ParallelLinear
from ._sequence import gather_from_sequence

__all__ = ["LayerNormLinear"]


class LayerNormLinear(NormedModule, ParallelLinear):
    """``y = norm(x) A^T + b``.

    Parameters that :class:`Linear` has too mean the same.

    :param eps: added to the variance or the mean square.
    :param normalization: ``LayerNorm`` or ``RMSNorm``.
    :param return_layernorm_output: return the norm's output as well.
    :param return_layernorm_output_gathered: of all ranks' parts of the sequence.
    :param zero_centered_gamma: the norm's factor is one plus its weight.
    :raises BridgeError: an overlap by user buffers that would act.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        parameters_split: Sequence[str] | Mapping[str, int] | None = None,
        zero_centered_gamma: bool = False,
        device: torch.device | str = "cuda",
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        assert normalization in ("LayerNorm", "RMSNorm"), "Unsupported normalization type!"
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.normalization = normalization
        self.use_bias = bias
        self.return_bias = return_bias
        self.apply_bias = bias and not return_bias
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = (
            return_layernorm_output and return_layernorm_output_gathered
        )
        self.zero_centered_gamma = zero_centered_gamma
        self.symmetric_ar_type = symmetric_ar_type
        self.ub_name = ub_name
        self.eps = eps
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
        self._make_norm(self.in_features, {"device": device, "dtype": dtype})
        self._make_parameters(
            out_features, parameters_split, dtype, device, init_method, get_rng_state_tracker
        )
        self._finish(device)
        # Kernels here take no margins; callers read and set them.
        self.fwd_ln_sm_margin = int(os.getenv("NVTE_FWD_LAYERNORM_SM_MARGIN", "0"))
        self.bwd_ln_sm_margin = int(os.getenv("NVTE_BWD_LAYERNORM_SM_MARGIN", "0"))
        self.inf_ln_sm_margin = int(os.getenv("NVTE_INF_LAYERNORM_SM_MARGIN", "0"))

    @no_torch_dynamo()
    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool | None = False,
        fp8_grad: bool | None = False,
    ) -> Any:
        """[..., k] -> [..., m]; then the bias with ``return_bias``, then the norm's output.

        Parameters as those of ``Linear.forward``.
        """
        inp = self.prepare_forward(inp)
        try:
            weight, bias = self._get_weight_and_bias_tensors()
            added = bias if self.apply_bias and not self.gemm_bias_unfused_add else None
            dtype = self.activation_dtype
            assert dtype is not None
            normal = self._normalize(inp)
            spread = self._spread(
                self.parallel_mode, is_first_microbatch, self.symmetric_ar_type, self.wgrad_store
            )
            returned = normal
            if (
                self.return_layernorm_output_gathered
                and spread.mode == "column"
                and spread.sequence_parallel
            ):
                # The gathered rows serve the product too: they are gathered once.
                returned = normal = gather_from_sequence(normal, self.tp_group)
                spread = spread._replace(mode=None, sequence_parallel=False)
            if self.fp8 or self.fp8_calibration:
                from ._quantized_linear import quantized_linear

                out = quantized_linear(
                    self, weight, normal, added, spread, is_first_microbatch, fp8_output, fp8_grad
                )
            else:
                out = linear(weight, normal, added, dtype, spread, self._first)
        finally:
            self.end_forward()
        shown: Any = cast_if_needed(bias, dtype)
        if self.gemm_bias_unfused_add:
            out = out + shown
        results = [out]
        if self.return_bias:
            results.append(shown)
        if self.return_layernorm_output:
            results.append(returned.view((-1, *inp.shape[1:])))
        return out if len(results) == 1 else tuple(results)

    def extra_repr(self) -> str:
        """The sizes of this rank."""
        return (
            f"{self.in_features}, {self.out_features}, bias={self.use_bias}, tp={self.tp_size}, "
            f"{self.normalization}, eps={self.eps}"
        )

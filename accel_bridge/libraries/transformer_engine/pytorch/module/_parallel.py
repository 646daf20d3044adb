"""What linear layers have in common: parallelism, split parameters, how a call is spread.

Legend: m output size, k input size of this rank.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from ..constants import GemmParallelModes
from ..distributed import get_distributed_world_size, set_tensor_model_parallel_attributes
from ..quantization import FP8GlobalStateManager
from ..quantized_tensor import QuantizedTensor
from ..utils import divide, init_method_constant
from ._common import WeightGradStore, apply_normalization, noop_cat
from ._linear_function import First, Spread
from .base import TransformerEngineBaseModule, refuse_user_buffers

#: Index of the weight's quantizer among those of one product: input, weight, output.
WEIGHT: Final = 1


class ParallelModule(TransformerEngineBaseModule):
    """A module whose weights may be spread over the ranks of tensor parallelism."""

    def _set_parallelism(
        self,
        tp_group: Any,
        tp_size: int,
        sequence_parallel: bool,
        delay_wgrad_compute: bool,
        ub_bulk_wgrad: bool = False,
    ) -> None:
        self.wgrad_store = WeightGradStore(delay_wgrad_compute, ub_bulk_wgrad)
        self.tp_size = tp_size if tp_group is None else get_distributed_world_size(tp_group)
        if tp_group is not None or self.tp_size == 1:
            self.set_tensor_parallel_group(tp_group)
        self.set_nccl_overlap_warning_if_tp()
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        self._first = First()

    def _refuse_overlaps(self, **asked_for: bool) -> None:
        """:raises BridgeError: one of these overlaps would be used."""
        if self.sequence_parallel:
            for name, value in asked_for.items():
                if value:
                    refuse_user_buffers(f"{name}=True")

    def _mark_delayed(self, names: Sequence[str]) -> None:
        """Frameworks take delayed gradients after ``backward_dw``, not in autograd's hooks."""
        if self.need_backward_dw():
            for name, parameter in self.named_parameters():
                if name in names:
                    parameter.skip_backward_post_hook = True  # type: ignore[attr-defined]

    def _spread(
        self,
        mode: str | None,
        is_first_microbatch: bool | None,
        symmetric: str | None = None,
        store: WeightGradStore | None = None,
    ) -> Spread:
        delays = store is not None and store.enabled
        return Spread(
            mode if self.tp_size > 1 else None,
            self.sequence_parallel,
            self.tp_group,
            symmetric,
            self.fuse_wgrad_accumulation,
            bool(is_first_microbatch) and torch.is_grad_enabled(),
            store if delays else None,
        )


class NormedModule(ParallelModule):
    """A module that begins with a norm."""

    layer_norm_weight: Any
    layer_norm_bias: Any
    eps: float
    normalization: str
    zero_centered_gamma: bool

    def set_activation_dtype(self, inp: torch.Tensor) -> None:
        """See the base class; a float32 residual stream is normalised exactly, rounded once."""
        dtype = self.layer_norm_weight.dtype
        widens = inp.dtype == torch.float32 and dtype != torch.float32
        if widens and not torch.is_autocast_enabled(inp.device.type):
            self.__dict__["activation_dtype"] = dtype
        else:
            super().set_activation_dtype(inp)

    def _normalize(self, inp: torch.Tensor) -> torch.Tensor:
        """The norm's output, in the dtype of this call."""
        dtype = self.activation_dtype
        assert dtype is not None
        if inp.dtype != dtype and self.layer_norm_weight.dtype != dtype:
            inp = inp.to(dtype)
        return apply_normalization(
            inp,
            self.layer_norm_weight,
            self.layer_norm_bias,
            self.eps,
            self.normalization,
            self.zero_centered_gamma,
        )

    def reset_layer_norm_parameters(self) -> None:
        """Set the norm's parameters to the identity (deprecated)."""
        warnings.warn(
            "This method will be deprecated in an upcoming release. "
            f"Update your code to use {type(self).__name__}.reset_parameters() instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        torch.nn.init.constant_(self.layer_norm_weight, float(not self.zero_centered_gamma))
        if self.layer_norm_bias is not None:
            torch.nn.init.zeros_(self.layer_norm_bias)

    def _make_norm(self, size: int, options: dict[str, Any]) -> None:
        """Register the norm's parameters.

        :param options: device and dtype.
        """
        self.register_parameter(
            "layer_norm_weight",
            torch.nn.Parameter(torch.empty(size, **options)),
            init_fn=init_method_constant(float(not self.zero_centered_gamma)),
        )
        if self.normalization == "RMSNorm":
            self.layer_norm_bias = None
        else:
            self.register_parameter(
                "layer_norm_bias",
                torch.nn.Parameter(torch.empty(size, **options)),
                init_fn=init_method_constant(0.0),
            )

    def reset_parameters(self, defer_init: bool | None = False) -> None:
        """See the base class; marks the norm's parameters for sequence parallelism."""
        super().reset_parameters(defer_init=defer_init)
        if not defer_init:
            for parameter in (self.layer_norm_weight, self.layer_norm_bias):
                if parameter is not None:
                    parameter.sequence_parallel = self.sequence_parallel


class ParallelLinear(ParallelModule):
    """A linear layer, with one weight or with several that lie side by side."""

    in_features: int
    out_features: int
    parallel_mode: str | None
    apply_bias: bool
    gemm_bias_unfused_add: bool

    def _set_sizes(self, in_features: int, out_features: int, parallel_mode: str | None) -> None:
        assert parallel_mode in GemmParallelModes, f"parallel_mode {parallel_mode} not supported"
        self.parallel_mode = parallel_mode
        self.in_features, self.out_features = in_features, out_features
        if parallel_mode == "column":
            self.out_features = divide(out_features, self.tp_size)
        elif parallel_mode == "row":
            self.in_features = divide(in_features, self.tp_size)

    def _make_parameters(
        self,
        out_features: int,
        parameters_split: Sequence[str] | Mapping[str, int] | None,
        dtype: torch.dtype,
        device: torch.device | str,
        init_method: Callable[[torch.Tensor], Any] | None,
        get_rng_state_tracker: Callable[[], Any] | None,
    ) -> None:
        """Register weights and biases.

        :param out_features: output size of all ranks.
        :raises ValueError: no parts, or parts that do not add up to the output size.
        :raises RuntimeError: a part that the ranks cannot share.
        """
        self.weight_names, self.bias_names, sizes = _split(out_features, parameters_split)
        if self.parallel_mode == "column":
            for size in sizes:
                if size % self.tp_size:
                    raise RuntimeError(
                        f"Attempting to distribute a parameter with out_features={size} "
                        f"between {self.tp_size} tensor-parallel processes"
                    )
            sizes = [size // self.tp_size for size in sizes]
        self.parameter_split_sizes = sizes
        if len(sizes) > 1 and self.primary_weights_in_fp8:
            raise RuntimeError("Splitting QuantizedTensor into multiple params is not supported")
        weight = torch.empty(self.out_features, self.in_features, device=device, dtype=dtype)
        for name, part in zip(self.weight_names, weight.split(sizes), strict=True):
            self.register_parameter(
                name,
                torch.nn.Parameter(part),
                init_fn=init_method,
                get_rng_state_tracker=get_rng_state_tracker,
                fp8_meta_index=WEIGHT,
            )
        if not self.use_bias:
            for name in self.bias_names:
                setattr(self, name, torch.empty(0, dtype=dtype, device=device))
            return
        bias = torch.empty(self.out_features, device=device, dtype=dtype)
        for name, part in zip(self.bias_names, bias.split(sizes), strict=True):
            self.register_parameter(
                name, torch.nn.Parameter(part), init_fn=init_method_constant(0.0)
            )

    def _finish(self, device: torch.device | str) -> None:
        """Initialise the parameters; the last step of a constructor."""
        if self.primary_weights_in_fp8:
            self.init_fp8_metadata()
        self.reset_parameters(defer_init=torch.device(device).type == "meta")
        # The bias of a row-parallel layer is added once, after the sum over the ranks.
        self.gemm_bias_unfused_add = self.parallel_mode == "row" and self.apply_bias
        self._mark_delayed([*self.weight_names, *self.bias_names])

    def reset_parameters(self, defer_init: bool | None = False) -> None:
        """See the base class; marks how tensor parallelism splits the parameters."""
        super().reset_parameters(defer_init=defer_init)
        if defer_init:
            return
        for name in self.weight_names:
            dim = 1 if self.parallel_mode == "row" else 0
            set_tensor_model_parallel_attributes(getattr(self, name), True, dim, 1)
        if not self.use_bias:
            return
        for name in self.bias_names:
            bias = getattr(self, name)
            if self.parallel_mode == "row":
                bias.sequence_parallel = self.sequence_parallel
            elif self.parallel_mode == "column":
                set_tensor_model_parallel_attributes(bias, True, 0, 1)

    def _get_weight_tensors(self) -> list[torch.Tensor]:
        weights: list[torch.Tensor] = [getattr(self, name) for name in self.weight_names]
        if self.fp8 or not any(isinstance(weight, QuantizedTensor) for weight in weights):
            return weights
        return exact(weights)

    def _get_weight_quantizers(self) -> list[Any]:
        if not (self.fp8 or self.fp8_calibration):
            return [None]
        quantizer = self.quantizers["scaling_fwd"][WEIGHT]
        quantizer.internal = True
        return [quantizer]

    def _get_weight_and_bias_tensors(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = noop_cat(self._get_weight_tensors())
        if not self.use_bias:
            return weight, None
        return weight, noop_cat([getattr(self, name) for name in self.bias_names])

    def set_meta_tensor(self, fwd: bool, recipe: Any) -> None:
        """See the base class; sets the recipe's options on the quantizers."""
        super().set_meta_tensor(fwd, recipe)
        if FP8GlobalStateManager.get_fp8_recipe().float8_current_scaling():
            from ._quantized_linear import set_current_scaling

            spreads = self.sequence_parallel and self.parallel_mode == ("column" if fwd else "row")
            set_current_scaling(self, fwd, 0, self.tp_group if spreads else None)


def exact(weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """FP8 weights outside of an FP8 context, in high precision."""
    warnings.warn(
        "You are using quantized weights without quantized compute. "
        "Please make sure this is intentional.",
        stacklevel=4,
    )
    return [
        weight.dequantize() if isinstance(weight, QuantizedTensor) else weight for weight in weights
    ]


def _split(
    out_features: int, parameters_split: Sequence[str] | Mapping[str, int] | None
) -> tuple[list[str], list[str], list[int]]:
    """Names of weights, names of biases, output sizes over all ranks."""
    if parameters_split is None:
        return ["weight"], ["bias"], [out_features]
    if not parameters_split:
        raise ValueError("Cannot split weight buffer into 0 parameters")
    if isinstance(parameters_split, Mapping):
        sizes = list(parameters_split.values())
    elif all(isinstance(name, str) for name in parameters_split):
        sizes = [out_features // len(parameters_split)] * len(parameters_split)
    else:
        raise TypeError("Invalid configuration for parameters split")
    if sum(sizes) != out_features:
        raise ValueError(
            f"Trying to split weight buffer ({out_features=}) with split sizes {sizes}"
        )
    stems = [name.rstrip("_") for name in parameters_split]
    return [f"{stem}_weight" for stem in stems], [f"{stem}_bias" for stem in stems], sizes

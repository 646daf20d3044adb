"""A linear layer without a bias.

Legend: ... any leading dimensions (tokens), k input size, m output size of this rank.
"""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.libraries.main_grad import placeholder

from ...cpu_offload import is_cpu_offload_enabled, mark_activation_offload, mark_not_offload
from ...module.base import refuse_user_buffers
from ...quantization import FP8GlobalStateManager, Recipe
from ...quantized_tensor import Quantizer
from ...utils import canonicalize_device, canonicalize_dtype, clear_tensor_data
from .._common import check_float, is_quantized_tensor, maybe_autocast_dtype
from .._products import collected
from ..op import BasicOperation, Gradients, OperationContext
from ._linear import Pass, linear_backward, linear_forward
from ._weights import (
    Group,
    RNGTracker,
    TensorParallelism,
    apply_scaling_options,
    configure_weight_quantizer,
    quantized_weight,
    random_values,
)


class BasicLinear(BasicOperation):
    """``x @ weight^T``.

    :param in_features: over all ranks of ``tensor_parallel_group``, as ``out_features``.
    :param device: of the weight; ``meta`` leaves it to the first forward pass.
    :param tensor_parallel_mode: ``column`` divides the outputs among the ranks, ``row`` the inputs.
    :param sequence_parallel: divide the tensor that is not divided by features by its rows.
    :param rng_state_tracker_function: gives the generators that draw the initial values.
    :param accumulate_into_main_grad: add the weight's gradient to ``weight.main_grad``, or
        overwrite that where the weight has ``overwrite_main_grad``.
    :param userbuffers_options: there are none here.
    :raises ValueError: a dtype or a division that is not possible.
    :raises BridgeError: ``userbuffers_options``.
    """

    weight: torch.nn.Parameter

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        tensor_parallel_mode: str | None = None,
        tensor_parallel_group: Group | None = None,
        sequence_parallel: bool = False,
        rng_state_tracker_function: RNGTracker | None = None,
        accumulate_into_main_grad: bool = False,
        userbuffers_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if userbuffers_options is not None:
            refuse_user_buffers("BasicLinear(userbuffers_options=...)")
        self.in_features = in_features
        self.out_features = out_features
        place = canonicalize_device(device)
        kind = check_float(canonicalize_dtype(dtype))
        parallel = TensorParallelism.of(
            tensor_parallel_mode,
            tensor_parallel_group,
            sequence_parallel,
            in_features,
            out_features,
        )
        self.tensor_parallel_mode = parallel.mode
        self.tensor_parallel_group = parallel.group
        self.tensor_parallel_size = parallel.size
        self.sequence_parallel = parallel.sequence_parallel
        self.local_in_features = parallel.local_in_features
        self.local_out_features = parallel.local_out_features
        self._with_quantized_weight: bool = FP8GlobalStateManager.with_fp8_parameters()
        if self._with_quantized_weight:
            self.reset_recipe_state(recipe=FP8GlobalStateManager.get_fp8_recipe())
        shape = (self.local_out_features, self.local_in_features)
        values = torch.empty(shape, device=place, dtype=kind)
        self.register_parameter("weight", torch.nn.Parameter(values))
        self._rng_state_tracker_function = rng_state_tracker_function
        self._accumulate_into_main_grad = accumulate_into_main_grad
        if place.type != "meta":
            self.reset_parameters()

    @classmethod
    def _canonicalize_tensor_parallelism(
        cls,
        *,
        mode: str | None,
        process_group: Group | None,
        sequence_parallel: bool,
        in_features: int,
        out_features: int,
    ) -> tuple[str | None, Group | None, int, bool, int, int]:
        """Mode, group, its size, sequence parallelism, and this rank's inputs and outputs."""
        parallel = TensorParallelism.of(
            mode, process_group, sequence_parallel, in_features, out_features
        )
        return (
            parallel.mode,
            parallel.group,
            parallel.size,
            parallel.sequence_parallel,
            parallel.local_in_features,
            parallel.local_out_features,
        )

    def num_quantizers(self, mode: str) -> int:
        """Input and weight; the output's gradient."""
        return {"forward": 2, "backward": 1}.get(mode, 0)

    def reset_parameters(self) -> None:
        """Draw the weight, on the default device if it is on ``meta``."""
        old = self.weight
        device = canonicalize_device(None) if old.device.type == "meta" else old.device
        if is_quantized_tensor(old) or device != old.device:
            values = torch.empty(old.shape, dtype=old.dtype, device=device)
        else:
            values = old.detach()
        values = random_values(values, self._rng_state_tracker_function)
        if self._with_quantized_weight:
            values = quantized_weight(values, self.get_quantizer("forward", 1))
        elif device == old.device:
            return
        self.weight = torch.nn.Parameter(values)

    def pre_first_fuser_forward(self) -> None:
        """Make a weight that is still on ``meta``."""
        super().pre_first_fuser_forward()
        if self.weight.device.type == "meta":
            self.reset_parameters()

    def pre_fuser_forward(self, *, requires_grad: bool) -> None:
        """Tell the quantizers which layouts the coming products need."""
        super().pre_fuser_forward(requires_grad=requires_grad)
        if not FP8GlobalStateManager.is_fp8_enabled():
            return
        columnwise = requires_grad and self.weight.requires_grad
        for mode, index, columns in (
            ("forward", 0, columnwise),
            ("forward", 1, False),
            ("backward", 0, columnwise),
        ):
            quantizer = self.get_quantizer(mode, index)
            if quantizer is not None:
                quantizer.set_usage(rowwise=True, columnwise=columns)

    def reset_recipe_state(self, *, recipe: Recipe | None) -> None:
        """Also called while the operation is being made, before it has a weight."""
        super().reset_recipe_state(recipe=recipe)
        input: Any = self.get_quantizer("forward", 0)
        weight: Any = self.get_quantizer("forward", 1)
        grad: Any = self.get_quantizer("backward", 0)
        if recipe is None or input is None or weight is None or grad is None:
            return
        gathered = {"column": input, "row": grad}.get(self.tensor_parallel_mode or "")
        if not self.sequence_parallel:
            gathered = None
        for quantizer in (input, grad):
            quantizer.internal = True
            if quantizer is not gathered:
                quantizer.optimize_for_gemm = True
        configure_weight_quantizer(
            weight, getattr(self, "weight", None), self._with_quantized_weight
        )
        apply_scaling_options(recipe, input, weight, grad)
        if gathered is not None and recipe.float8_current_scaling():
            # The ranks' parts are quantized before they are gathered.
            gathered.with_amax_reduction = True
            gathered.amax_reduction_group = self.tensor_parallel_group

    def compute_output(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        output_quantizer: Quantizer | None,
        *,
        bias: torch.Tensor | None = None,
        alpha: float = 1.0,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``alpha * x @ weight^T + bias``, added to ``out`` in place if there is one.

        Fusions with this operation call it too.
        """
        weight = self.weight
        dtype = maybe_autocast_dtype(device_type=weight.device.type, default_dtype=weight.dtype)
        call = Pass(
            dtype=dtype if out is None else out.dtype,
            mode=self.tensor_parallel_mode,
            group=self.tensor_parallel_group,
            sequence_parallel=self.sequence_parallel,
            quantized=FP8GlobalStateManager.is_fp8_enabled(),
            input_quantizer=self.get_quantizer("forward", 0),
            weight_quantizer=self.get_quantizer("forward", 1),
            grad_output_quantizer=self.get_quantizer("backward", 0),
            input_requires_grad=ctx.requires_grad,
            weight_requires_grad=ctx.requires_grad and self.weight.requires_grad,
        )
        output: torch.Tensor
        output, x, w = linear_forward(call, input_, self.weight, bias, alpha, out, output_quantizer)
        if ctx.requires_grad:
            if is_cpu_offload_enabled():
                mark_activation_offload(x)
                mark_not_offload(self.weight, w)
            ctx.save_for_backward(x, w)
            ctx.dtype = dtype
            ctx.with_quantized_compute = call.quantized
            ctx.input_quantizer = call.input_quantizer
            ctx.weight_quantizer = call.weight_quantizer
            ctx.grad_output_quantizer = call.grad_output_quantizer
            ctx.grad_input_quantizer = prev_op_grad_output_quantizer
            ctx.input_requires_grad = call.input_requires_grad
            ctx.weight_requires_grad = call.weight_requires_grad
        return output

    def compute_gradients(
        self,
        ctx: OperationContext,
        grad_output: torch.Tensor,
        *,
        alpha: float = 1.0,
        grad_input: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Gradients of the input and of the weight, both times ``alpha``.

        Fusions with this operation call it too.

        :param grad_input: add the input's gradient to it, in place.
        """
        x, w = ctx.saved_tensors or (None, None)
        main_grad, overwrite = None, False
        if ctx.weight_requires_grad and self._accumulate_into_main_grad:
            main_grad, overwrite = collected(self.weight)
        call = Pass(
            dtype=ctx.dtype if grad_input is None else grad_input.dtype,
            mode=self.tensor_parallel_mode,
            group=self.tensor_parallel_group,
            sequence_parallel=self.sequence_parallel,
            quantized=ctx.with_quantized_compute,
            input_quantizer=ctx.input_quantizer,
            weight_quantizer=ctx.weight_quantizer,
            grad_output_quantizer=ctx.grad_output_quantizer,
            input_requires_grad=ctx.input_requires_grad,
            weight_requires_grad=ctx.weight_requires_grad,
        )
        dx, dw = linear_backward(
            call,
            grad_output,
            x,
            w,
            alpha,
            grad_input,
            main_grad,
            overwrite,
            ctx.grad_input_quantizer,
        )
        clear_tensor_data(x)
        if main_grad is not None:
            dw = placeholder(self.weight, main_grad)
        return dx, dw

    def op_forward(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """[..., k] -> [..., m]."""
        return self.compute_output(
            ctx, input_, prev_op_grad_output_quantizer, next_op_input_quantizer
        )

    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor | None, Gradients]:
        """Gradients of the input and of the weight."""
        dx, dw = self.compute_gradients(ctx, grad_output)
        return dx, [dw]

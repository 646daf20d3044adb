"""Linear layers of several groups, each for its rows of the input.

Legend: t tokens sorted by group, g groups, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch

from accel_bridge.libraries.main_grad import placeholder

from ...quantization import FP8GlobalStateManager, Recipe
from ...quantized_tensor import Quantizer
from ...utils import canonicalize_device, canonicalize_dtype, clear_tensor_data
from .._common import check_float, maybe_autocast_dtype, maybe_dequantize
from .._grouped import GroupedPass, grouped_backward, grouped_forward
from .._products import collected
from ..op import BasicOperation, Gradients, OperationContext
from ._extra_tensors import ExtraTensors
from ._weights import (
    RNGTracker,
    apply_scaling_options,
    configure_weight_quantizer,
    quantized_weight,
    random_values,
)


class GroupedLinear(ExtraTensors, BasicOperation):
    """``x_i @ weight_i^T + bias_i`` for each group i of rows; their numbers are an extra input.

    :param num_groups: g; parameters are ``weight0``, ``bias0``, ``weight1``, ...
    :param device: of the parameters; ``meta`` leaves them to the first forward pass.
    :param rng_state_tracker_function: gives the generators that draw the initial values.
    :param accumulate_into_main_grad: add each weight's gradient to its ``main_grad``.
    :raises ValueError: sizes below one, or a dtype that is not possible.
    """

    num_extra_inputs: int = 1

    def __init__(
        self,
        num_groups: int,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        rng_state_tracker_function: RNGTracker | None = None,
        accumulate_into_main_grad: bool = False,
    ) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.in_features = in_features
        self.out_features = out_features
        if min(num_groups, in_features, out_features) <= 0:
            raise ValueError(f"Invalid sizes ({num_groups=}, {in_features=}, {out_features=})")
        place = canonicalize_device(device)
        kind = check_float(canonicalize_dtype(dtype))
        self._with_quantized_weight: bool = FP8GlobalStateManager.with_fp8_parameters()
        if self._with_quantized_weight:
            self.reset_recipe_state(recipe=FP8GlobalStateManager.get_fp8_recipe())
        self._rng_state_tracker_function = rng_state_tracker_function
        self._accumulate_into_main_grad = accumulate_into_main_grad
        for index in range(num_groups):
            self._register(f"weight{index}", (out_features, in_features), kind)
        for index in range(num_groups):
            self._register(f"bias{index}", (out_features,) if bias else None, kind)
        if place.type != "meta":
            self._make_parameters(place)

    def _register(self, name: str, shape: tuple[int, ...] | None, dtype: torch.dtype) -> None:
        values = None if shape is None else torch.empty(shape, device="meta", dtype=dtype)
        self.register_parameter(name, None if values is None else torch.nn.Parameter(values))

    @property
    def has_bias(self) -> bool:
        """Whether there are biases."""
        return getattr(self, "bias0", None) is not None

    def _all(self, name: str) -> list[torch.nn.Parameter]:
        return [getattr(self, f"{name}{index}") for index in range(self.num_groups)]

    def num_quantizers(self, mode: str) -> int:
        """Input and weight of each group; each group's gradient of the output."""
        return {"forward": 2 * self.num_groups, "backward": self.num_groups}.get(mode, 0)

    def _quantizers_of(self, index: int) -> tuple[Any, Any, Any]:
        """For a group's input, its weight, and the gradient of its output."""
        return (
            self.get_quantizer("forward", 2 * index),
            self.get_quantizer("forward", 2 * index + 1),
            self.get_quantizer("backward", index),
        )

    def reset_parameters(self) -> None:
        """Draw the weights and set the biases to zero, on the default device if on ``meta``."""
        device = self._all("weight")[0].device
        self._make_parameters(canonicalize_device(None) if device.type == "meta" else device)

    def _make_parameters(self, device: torch.device) -> None:
        weights = self._all("weight")
        # Side by side in one buffer: one product can then take them all.
        shape = (self.num_groups, self.out_features, self.in_features)
        packed = torch.empty(shape, dtype=weights[0].dtype, device=device)
        for index, values in enumerate(packed):
            drawn: Any = random_values(values, self._rng_state_tracker_function)
            if self._with_quantized_weight:
                drawn = quantized_weight(drawn, self.get_quantizer("forward", 2 * index + 1))
            setattr(self, f"weight{index}", torch.nn.Parameter(drawn))
        if self.has_bias:
            zeros = torch.zeros(shape[:2], dtype=self._all("bias")[0].dtype, device=device)
            for index, values in enumerate(zeros):
                setattr(self, f"bias{index}", torch.nn.Parameter(values))

    def pre_first_fuser_forward(self) -> None:
        """Make parameters that are still on ``meta``, and compare the groups.

        :raises RuntimeError: the groups' parameters differ in kind.
        """
        super().pre_first_fuser_forward()
        if any(parameter.device.type == "meta" for parameter in self.parameters()):
            self.reset_parameters()
        for name in ("weight", *(["bias"] if self.has_bias else [])):
            kinds = {
                (one.dtype, one.device, one.requires_grad, type(one.data))
                for one in self._all(name)
            }
            if len(kinds) > 1:
                raise RuntimeError(f"the {name}s of the groups differ: {kinds}")

    def pre_fuser_forward(self, *, requires_grad: bool) -> None:
        """Tell the quantizers which layouts the coming products need."""
        super().pre_fuser_forward(requires_grad=requires_grad)
        if not FP8GlobalStateManager.is_fp8_enabled():
            return
        columnwise = requires_grad and self._all("weight")[0].requires_grad
        for index in range(self.num_groups):
            input, weight, grad = self._quantizers_of(index)
            input.set_usage(rowwise=True, columnwise=columnwise)
            weight.set_usage(rowwise=True, columnwise=False)
            grad.set_usage(rowwise=True, columnwise=columnwise)

    def reset_recipe_state(self, *, recipe: Recipe | None) -> None:
        """Also called while the operation is being made, before it has weights."""
        super().reset_recipe_state(recipe=recipe)
        if recipe is None:
            return
        for index in range(self.num_groups):
            input, weight, grad = self._quantizers_of(index)
            input.internal = grad.internal = True
            configure_weight_quantizer(
                weight, getattr(self, f"weight{index}", None), self._with_quantized_weight
            )
            apply_scaling_options(recipe, input, weight, grad)

    def fuser_forward(
        self,
        basic_op_ctxs: list[OperationContext],
        input_: torch.Tensor,
        *,
        basic_op_extra_inputs: list[tuple[torch.Tensor, ...]],
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        basic_op_kwargs: list[dict[str, Any]],
    ) -> tuple[torch.Tensor, Iterable[Iterable[torch.Tensor]]]:
        """:param input_: [t, k]. :param basic_op_extra_inputs: rows of each group: [g].

        :raises ValueError: counts for another number of groups.
        """
        ctx, weights = basic_op_ctxs[0], self._all("weight")
        counts = cast(list[int], basic_op_extra_inputs[0][0].tolist())
        if len(counts) != self.num_groups:
            raise ValueError(f"Expected {self.num_groups} splits, but got {len(counts)}.")
        quantized = FP8GlobalStateManager.is_fp8_enabled()
        device = weights[0].device.type
        dtype = maybe_autocast_dtype(device_type=device, default_dtype=weights[0].dtype)
        call = GroupedPass(
            dtype=dtype,
            counts=counts,
            quantizers=(
                [self._quantizers_of(index) for index in range(self.num_groups)]
                if quantized
                else None
            ),
            input_requires_grad=ctx.requires_grad,
            weight_requires_grad=ctx.requires_grad and weights[0].requires_grad,
        )
        biases = (
            [maybe_dequantize(one, dtype) for one in self._all("bias")] if self.has_bias else None
        )
        output, inputs, used = grouped_forward(call, input_, weights, biases)
        if ctx.requires_grad:
            ctx.save_for_backward(*inputs, *used)
            ctx.call = call
            ctx.num_inputs = len(inputs)
        return output, [()]

    def fuser_backward(
        self,
        basic_op_ctxs: list[OperationContext],
        grad_output: torch.Tensor,
        *,
        basic_op_grad_extra_outputs: list[tuple[torch.Tensor, ...]],
    ) -> tuple[torch.Tensor | None, Iterable[Gradients], Iterable[Gradients]]:
        """Gradients of the input, of the weights and of the biases."""
        ctx = basic_op_ctxs[0]
        call: GroupedPass = ctx.call
        saved = ctx.saved_tensors or ()
        inputs, used = saved[: ctx.num_inputs], saved[ctx.num_inputs :]
        main_grads: Sequence[tuple[torch.Tensor, bool]] | None = None
        if call.weight_requires_grad and self._accumulate_into_main_grad:
            main_grads = [collected(weight) for weight in self._all("weight")]
        grad_input, grads = grouped_backward(call, grad_output, inputs, used, main_grads)
        clear_tensor_data(*inputs)
        if main_grads is not None:
            pairs = zip(self._all("weight"), main_grads, strict=True)
            grads = [placeholder(weight, main_grad) for weight, (main_grad, _) in pairs]
        if self.has_bias:
            rows = maybe_dequantize(grad_output, call.dtype).split(call.counts)
            grads = [*grads, *(part.sum(0) for part in rows)]
        return grad_input, [grads], [(None,)]

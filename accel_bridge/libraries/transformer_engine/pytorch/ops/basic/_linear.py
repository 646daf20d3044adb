"""Forward and backward pass of a linear operation, with its communication.

Legend: ... any leading dimensions (tokens), k input size, m output size of this rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...cpp_extensions import general_gemm
from ...distributed import gather_along_first_dim, reduce_scatter_along_first_dim
from ...quantized_tensor import Quantizer
from ...tensor.float8_tensor import Float8Quantizer
from ...tensor.storage.float8_tensor_storage import Float8TensorStorage
from .. import _products
from .._common import check_float, is_quantized_tensor, maybe_dequantize
from ._weights import Group


@dataclass(frozen=True, slots=True)
class Pass:
    """How a linear operation computes.

    :param dtype: of outputs and gradients.
    :param mode: ``column``, ``row`` or None.
    :param quantized: multiply quantized tensors; every quantizer is there then.
    """

    dtype: torch.dtype
    mode: str | None
    group: Group | None
    sequence_parallel: bool
    quantized: bool
    input_quantizer: Quantizer | None
    weight_quantizer: Quantizer | None
    grad_output_quantizer: Quantizer | None
    input_requires_grad: bool
    weight_requires_grad: bool

    @property
    def gathers_input(self) -> bool:
        """Each rank has some rows of the input."""
        return self.mode == "column" and self.sequence_parallel

    @property
    def gathers_grad_output(self) -> bool:
        """Each rank has some rows of the output."""
        return self.mode == "row" and self.sequence_parallel


def _wait(handle: Any) -> None:
    if handle is not None:
        handle.wait()


def _quantize(
    tensor: Any, quantizer: Quantizer | None, rowwise: bool | None, columnwise: bool
) -> Any:
    """``tensor`` in the layouts that products need; quantized before, it gets what is missing."""
    if is_quantized_tensor(tensor):
        tensor.update_usage(rowwise_usage=rowwise, columnwise_usage=columnwise or None)
        return tensor
    if quantizer is None:
        raise ValueError("Missing quantizer for a tensor of a quantized product")
    quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
    return quantizer(tensor)


def _gathered(
    call: Pass, tensor: Any, quantizer: Quantizer | None, rowwise: bool, columnwise: bool
) -> tuple[Any, Any]:
    """Every rank's rows, and what to wait for."""
    if not call.quantized:
        return gather_along_first_dim(tensor, call.group, async_op=True)
    if quantizer is None:
        raise ValueError("Missing quantizer for a tensor of a quantized product")
    quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
    return gather_along_first_dim(tensor, call.group, async_op=True, quantizer=quantizer)


def _result_quantizer(call: Pass, quantizer: Quantizer | None, reduced: bool) -> Quantizer | None:
    """For results that are handed on in FP8; only per-tensor scaling can do that in a product."""
    if not call.quantized or reduced or quantizer is None:
        return None
    if not isinstance(quantizer, Float8Quantizer):
        raise RuntimeError("Attempting to generate quantized tensor with unsupported quantizer")
    return quantizer


def linear_forward(
    call: Pass,
    input: Any,
    weight: Any,
    bias: torch.Tensor | None,
    alpha: float,
    out: Any,
    output_quantizer: Quantizer | None,
) -> tuple[Any, Any, Any]:
    """``alpha * input @ weight^T + bias``, added to ``out`` in place if there is one.

    :returns: the output, and input and weight as the backward pass needs them, None if it does not.
    :raises ValueError: a dtype that is not possible, or an ``out`` that must be summed over ranks.
    """
    check_float(call.dtype)
    if out is not None and call.mode == "row":
        raise ValueError(
            "Accumulating into output tensor is not supported with row tensor parallelism"
        )
    local, pending = input, None
    if call.quantized:
        if not call.gathers_input:
            local = _quantized_input(call, input)
    else:
        local = maybe_dequantize(input, call.dtype)
    x = local
    if call.gathers_input:
        x, pending = _gathered(call, local, call.input_quantizer, True, False)
    w = weight
    if not call.quantized:
        w = maybe_dequantize(weight, call.dtype)
    elif not is_quantized_tensor(weight):
        w = _quantize(weight, call.weight_quantizer, True, call.input_requires_grad)
    if bias is not None and bias.dtype != call.dtype:
        bias = bias.to(call.dtype)
    _wait(pending)
    if call.quantized:
        quantizer = None if out is not None else output_quantizer
        quantizer = _result_quantizer(call, quantizer, reduced=call.mode == "row")
        if quantizer is not None:
            quantizer.set_usage(rowwise=True, columnwise=False)
        y, *_ = general_gemm(
            w,
            x,
            out_dtype=call.dtype,
            quantization_params=quantizer,
            alpha=alpha,
            accumulate=out is not None,
            out=out,
            bias=bias,
        )
    else:
        y = _products.output(x, w, bias, alpha, out)
    if call.mode == "row":
        if call.sequence_parallel:
            y, _ = reduce_scatter_along_first_dim(y, call.group)
        else:
            torch.distributed.all_reduce(y, group=call.group)
    return y, _kept_input(call, local), _kept_weight(call, w, weight)


def _quantized_input(call: Pass, input: Any) -> Any:
    if is_quantized_tensor(input):
        return input
    return _quantize(input, call.input_quantizer, True, call.weight_requires_grad)


def _kept_input(call: Pass, local: Any) -> Any:
    if not call.weight_requires_grad:
        return None
    # Data of one scale are gathered by rows, and transposed afterwards.
    by_rows = isinstance(local, Float8TensorStorage) and call.gathers_input
    if call.quantized and is_quantized_tensor(local) and not by_rows:
        local.update_usage(rowwise_usage=False, columnwise_usage=True)
    return local


def _kept_weight(call: Pass, w: Any, weight: Any) -> Any:
    if not call.input_requires_grad:
        return None
    if call.quantized and w is not weight:
        w.update_usage(rowwise_usage=False, columnwise_usage=True)
    return w


def linear_backward(
    call: Pass,
    grad_output: Any,
    input: Any,
    weight: Any,
    alpha: float,
    grad_input: torch.Tensor | None,
    main_grad: torch.Tensor | None,
    overwrite: bool,
    grad_input_quantizer: Quantizer | None,
) -> tuple[Any, torch.Tensor | None]:
    """Gradients of input and weight, times ``alpha``.

    :param input: what :func:`linear_forward` returned for this, as ``weight``.
    :param grad_input: add the input's gradient to it, in place.
    :param main_grad: collects the weight's gradient, in place.
    :param overwrite: instead of adding to main_grad.
    :returns: None for the weight if its gradient went into main_grad.
    """
    if grad_input is not None and call.mode == "column":
        raise ValueError(
            "Accumulating into grad input tensor is not supported with column tensor parallelism"
        )
    rowwise, columnwise = call.input_requires_grad, call.weight_requires_grad
    dy, dy_pending = grad_output, None
    if not call.quantized:
        dy = maybe_dequantize(grad_output, call.dtype)
    elif not call.gathers_grad_output:
        dy = _quantize(grad_output, call.grad_output_quantizer, rowwise, columnwise)
    if call.gathers_grad_output:
        dy, dy_pending = _gathered(call, dy, call.grad_output_quantizer, rowwise, columnwise)
    x, x_pending = input, None
    if call.weight_requires_grad:
        if not call.quantized:
            x = maybe_dequantize(input, call.dtype)
        elif not call.gathers_input:
            x = _quantize(input, call.input_quantizer, False, True)
        if call.gathers_input:
            x, x_pending = _gathered(call, x, call.input_quantizer, False, True)
    dx, dx_pending = None, None
    if call.input_requires_grad:
        _wait(dy_pending)
        dy_pending = None
        dx = _input_product(call, dy, weight, alpha, grad_input, grad_input_quantizer)
        # Communication that is issued before the next product runs beside it.
        if call.gathers_input:
            dx, dx_pending = reduce_scatter_along_first_dim(dx, call.group, async_op=True)
        elif call.mode == "column":
            dx_pending = torch.distributed.all_reduce(dx, group=call.group, async_op=True)
    dw = None
    if call.weight_requires_grad:
        _wait(x_pending)
        _wait(dy_pending)
        dw = _weight_product(call, x, dy, alpha, main_grad, overwrite)
    _wait(dx_pending)
    return dx, dw


def _input_product(
    call: Pass,
    dy: Any,
    weight: Any,
    alpha: float,
    grad_input: torch.Tensor | None,
    quantizer: Quantizer | None,
) -> Any:
    if not call.quantized:
        w = maybe_dequantize(weight, call.dtype)
        return _products.grad_input(dy, w, alpha, grad_input)
    result = None if grad_input is not None else quantizer
    dx, *_ = general_gemm(
        _quantize(weight, call.weight_quantizer, None, True),
        dy,
        out_dtype=call.dtype,
        quantization_params=_result_quantizer(call, result, reduced=call.mode == "column"),
        alpha=alpha,
        accumulate=grad_input is not None,
        layout="NN",
        out=grad_input,
        use_split_accumulator=True,
        grad=True,
    )
    return dx


def _weight_product(
    call: Pass,
    x: Any,
    dy: Any,
    alpha: float,
    main_grad: torch.Tensor | None,
    overwrite: bool,
) -> torch.Tensor | None:
    if not call.quantized:
        return _products.grad_weight(x, dy, alpha, main_grad, overwrite)
    dw, *_ = general_gemm(
        x,
        dy,
        out_dtype=call.dtype if main_grad is None else main_grad.dtype,
        alpha=alpha,
        accumulate=main_grad is not None and not overwrite,
        layout="NT",
        out=main_grad,
        use_split_accumulator=True,
        grad=True,
    )
    return dw if main_grad is None else None

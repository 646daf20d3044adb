"""Work on lists of tensors: scaling, norms, the optimizers' steps.

Adam's lists are gradients, parameters, both moments and, where there is a fifth, main parameters.
"""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.kernels.float8 import float8_scale, mx_scale_inv
from accel_bridge.libraries.adam import (
    AdamNumbers,
    adam,
    batches,
    multi_tensor_adam,
    multi_tensor_adam_capturable,
)
from accel_bridge.libraries.tensor_lists import TensorLists
from accel_bridge.libraries.tensor_lists import l2norm as multi_tensor_l2norm
from accel_bridge.libraries.tensor_lists import scale as multi_tensor_scale
from accel_bridge.libraries.tensor_lists import scale_tensor as multi_tensor_scale_tensor
from accel_bridge.libraries.tensor_lists import sgd as multi_tensor_sgd
from accel_bridge.libraries.tensor_lists import unscale_l2norm as multi_tensor_unscale_l2norm
from accel_bridge.libraries.transformer_engine_torch.enums import TORCH_DTYPE

__all__ = [
    "multi_tensor_adam",
    "multi_tensor_adam_capturable",
    "multi_tensor_adam_capturable_master",
    "multi_tensor_adam_fp8",
    "multi_tensor_adam_param_remainder",
    "multi_tensor_compute_scale_and_scale_inv",
    "multi_tensor_compute_scale_inv_e8m0",
    "multi_tensor_l2norm",
    "multi_tensor_scale",
    "multi_tensor_scale_tensor",
    "multi_tensor_sgd",
    "multi_tensor_unscale_l2norm",
]

#: The same with five lists.
multi_tensor_adam_capturable_master = multi_tensor_adam_capturable


@torch.no_grad()
def multi_tensor_adam_param_remainder(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: TensorLists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """As ``multi_tensor_adam``; the fifth list holds what bfloat16 cuts off, as int16.

    The 16 bits of a bfloat16 parameter, rounded to nearest, and the lower 16 bits are a float32
    main parameter: with a negative remainder the parameter was rounded up by one.
    """
    numbers = AdamNumbers(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    for part in batches(tensor_lists[1]):
        gradients, parameters, first, second, remainders = (lists[part] for lists in tensor_lists)
        uppers = [parameter.detach().view(torch.int16) for parameter in parameters]
        bits = [
            ((upper.to(torch.int32) - (remainder < 0).int()) << 16) | (remainder.int() & 0xFFFF)
            for upper, remainder in zip(uppers, remainders, strict=True)
        ]
        adam(gradients, [one.view(torch.float32) for one in bits], first, second, numbers)
        for upper, remainder, main in zip(uppers, remainders, bits, strict=True):
            remainder.copy_((main << 16) >> 16)
            upper.copy_((main >> 16) + (remainder < 0).int())


@torch.no_grad()
def multi_tensor_adam_fp8(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: TensorLists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    fp8_dtype: int,
) -> None:
    """As ``multi_tensor_adam`` for FP8 parameters (uint8) with main parameters.

    :param tensor_lists: three more than the five of Adam: each parameter's scale, amax and
        ``scale_inv``, one element each. The amax grows to the largest magnitude of the parameter.
    :param fp8_dtype: the parameters' ``DType``.
    """
    numbers = AdamNumbers(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    gradients, parameters, first, second, main, scales, amaxes, inverses = tensor_lists
    adam(gradients, main, first, second, numbers)
    dtype = TORCH_DTYPE[fp8_dtype]
    largest = torch.finfo(dtype).max
    for parameter, weight, scale, amax, inverse in zip(
        parameters, main, scales, amaxes, inverses, strict=True
    ):
        scaled = (weight.float() * scale).clamp_(-largest, largest)
        parameter.view(torch.uint8).copy_(scaled.to(dtype).view(torch.uint8))
        amax.copy_(torch.maximum(amax, weight.abs().max().float().reshape(amax.shape)))
        inverse.copy_(scale.reciprocal().reshape(inverse.shape))


@torch.no_grad()
def multi_tensor_compute_scale_and_scale_inv(
    chunk_size: int,
    noop_flag: Any,
    tensor_lists: TensorLists,
    max_fp8: float,
    force_pow_2_scales: bool,
    epsilon: float,
) -> None:
    """Scales and ``scale_inv`` from largest magnitudes.

    :param noop_flag: not read, as in the compiled extension.
    :param tensor_lists: (amax, scale, ``scale_inv``), float32; the latter two are overwritten.
    :param max_fp8: the format's largest number.
    :param force_pow_2_scales: scales are powers of two.
    :param epsilon: least value taken for a largest magnitude.
    """
    e4m3 = torch.finfo(torch.float8_e4m3fn).max
    dtype = torch.float8_e4m3fn if max_fp8 == e4m3 else torch.float8_e5m2
    for amax, scale, scale_inv in zip(*tensor_lists, strict=True):
        new = float8_scale(amax, dtype, power_of_2=force_pow_2_scales, epsilon=epsilon)
        scale.copy_(new)
        scale_inv.copy_(new.reciprocal())


@torch.no_grad()
def multi_tensor_compute_scale_inv_e8m0(
    chunk_size: int, dummy: None, tensor_lists: TensorLists
) -> None:
    """E8M0 scale_inv of E4M3 numbers from largest magnitudes.

    :param tensor_lists: (amax in bfloat16, ``scale_inv`` in uint8); the latter are overwritten.
    """
    for amax, scale_inv in zip(*tensor_lists, strict=True):
        new = mx_scale_inv(amax.float(), torch.float8_e4m3fn)
        scale_inv.copy_(new.view(scale_inv.dtype))

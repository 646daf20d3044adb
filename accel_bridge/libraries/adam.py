"""The arithmetic of Apex's and Transformer Engine's Adam, on the ``adamw`` contract.

Lists hold gradients, parameters and both moments, one tensor each, in any of float32, bfloat16
and float16; the arithmetic is float32. Parameters that are a rounded copy come with main
parameters, which are updated in their stead and then copied.

Source: transformer_engine/common/multi_tensor/adam.cu, apex/csrc/multi_tensor_adam.cu.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import torch

from accel_bridge.kernels import ADAMW, AdamWOptions
from accel_bridge.kernels.active import kernel
from accel_bridge.kernels.adamw import scale_in_place, write_copies
from accel_bridge.libraries.tensor_lists import TensorLists, store

Tensors = Sequence[torch.Tensor]

#: So late a step that both bias corrections are 1.
_UNCORRECTED: Final = 2**60
#: Elements that are widened to float32 at a time, so that the copies stay small.
BATCH: Final = 2**25


class AdamNumbers(NamedTuple):
    """The numbers of one step, in the order of the libraries' operations.

    :param lr: learning rate.
    :param beta1: decay of the first moment per step.
    :param beta2: decay of the second.
    :param epsilon: added to the square root, outside it.
    :param step: number of this step; the first is 1.
    :param mode: 0 adds the weight decay to the gradient, 1 to the update (decoupled).
    :param bias_correction: 1 divides the moments by ``1 - beta^step``.
    :param weight_decay: per unit of ``lr``.
    """

    lr: float
    beta1: float
    beta2: float
    epsilon: float
    step: int
    mode: int
    bias_correction: int
    weight_decay: float


@torch.no_grad()
def adam(
    gradients: Tensors,
    parameters: Tensors,
    first: Tensors,
    second: Tensors,
    numbers: AdamNumbers,
    main: Tensors | None = None,
    scale: torch.Tensor | None = None,
) -> None:
    """One step over many tensors, in place.

    :param main: float32 main parameters, or None when ``parameters`` are their own.
    :param scale: factor of the gradients, which may be left scaled: one float32 element, or None.
    """
    coupled = bool(numbers.weight_decay) and numbers.mode != 1
    options = AdamWOptions(
        step=numbers.step if numbers.bias_correction == 1 else _UNCORRECTED,
        lr=numbers.lr,
        betas=(numbers.beta1, numbers.beta2),
        eps=numbers.epsilon,
        weight_decay=0.0 if coupled else numbers.weight_decay,
    )
    weights = parameters if main is None else main
    step = kernel(ADAMW)
    copies = None if main is None else parameters
    if not coupled and all_float(gradients, weights, first, second):
        step(weights, gradients, first, second, options, scale, copies)
        return
    scale_in_place(gradients, scale)
    for part in batches(weights):
        lists = [tensors[part] for tensors in (weights, gradients, first, second)]
        wide = [[tensor.detach().float() for tensor in tensors] for tensors in lists]
        if coupled:
            wide[1] = list(torch._foreach_add(wide[1], wide[0], alpha=numbers.weight_decay))
        step(wide[0], wide[1], wide[2], wide[3], options)
        for index in (0, 2, 3):
            store(lists[index], wide[index])
    write_copies(weights, copies)


def all_float(*lists: Tensors) -> bool:
    """Whether every tensor is float32."""
    return all(tensor.dtype is torch.float32 for tensors in lists for tensor in tensors)


def batches(tensors: Tensors) -> Iterator[slice]:
    """Slices of the list with at most :data:`BATCH` elements each, or one tensor."""
    start = elements = 0
    for index, tensor in enumerate(tensors):
        if index > start and elements + tensor.numel() > BATCH:
            yield slice(start, index)
            start, elements = index, 0
        elements += tensor.numel()
    if start < len(tensors):
        yield slice(start, len(tensors))


@torch.no_grad()
def adam_capturable(
    gradients: Tensors,
    parameters: Tensors,
    first: Tensors,
    second: Tensors,
    numbers: AdamNumbers,
    *,
    lr: torch.Tensor,
    step: torch.Tensor,
    inv_scale: torch.Tensor,
    noop_flag: torch.Tensor,
    main: Tensors | None = None,
) -> None:
    """As :func:`adam`, with learning rate and step on the device; nothing waits for it.

    :param numbers: its ``lr`` and ``step`` are not read.
    :param inv_scale: [1], factor of the gradients, which are written back scaled.
    :param noop_flag: [1]; when it is 1 nothing changes.
    """
    active = noop_flag.reshape(()) != 1
    beta1, beta2 = numbers.beta1, numbers.beta2
    corrections: tuple[torch.Tensor | float, torch.Tensor | float] = (1.0, 1.0)
    if numbers.bias_correction == 1:
        count = step.reshape(()).to(torch.float64)
        corrections = ((1 - beta1**count).float(), (1 - beta2**count).float())
    rate, factor = lr.reshape(()), inv_scale.reshape(())
    lists = zip(
        gradients, parameters, first, second, parameters if main is None else main, strict=True
    )
    for gradient, parameter, m, v, weight in lists:
        g = gradient.float() * factor
        p = weight.float()
        gradient.copy_(torch.where(active, g, gradient))
        if numbers.mode != 1:
            g = g + numbers.weight_decay * p
        new_m = beta1 * m.float() + (1 - beta1) * g
        new_v = beta2 * v.float() + (1 - beta2) * g * g
        update = (new_m / corrections[0]) / ((new_v / corrections[1]).sqrt() + numbers.epsilon)
        if numbers.mode == 1:
            update = update + numbers.weight_decay * p
        new_p = torch.where(active, p - rate * update, p)
        m.copy_(torch.where(active, new_m, m))
        v.copy_(torch.where(active, new_v, v))
        weight.copy_(new_p)
        if main is not None:
            # A copy of the main parameter, also where nothing else changes.
            parameter.copy_(torch.where(active, new_p, parameter))


def multi_tensor_adam(
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
    """One step of Adam (mode 0) or AdamW (mode 1) over four or five lists of tensors.

    :raises ValueError: not four or five lists.
    """
    if len(tensor_lists) not in (4, 5):
        raise ValueError(f"four or five lists of tensors are needed, not {len(tensor_lists)}")
    numbers = AdamNumbers(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    gradients, parameters, first, second, *main = tensor_lists
    adam(gradients, parameters, first, second, numbers, main[0] if main else None)


def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: TensorLists,
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: torch.Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: torch.Tensor,
) -> None:
    """As :func:`multi_tensor_adam`, with learning rate and step on the device.

    :param inv_scale: [1], factor of the gradients, which are written back scaled.
    """
    numbers = AdamNumbers(0.0, beta1, beta2, epsilon, 0, mode, bias_correction, weight_decay)
    gradients, parameters, first, second, *main = tensor_lists
    adam_capturable(
        gradients,
        parameters,
        first,
        second,
        numbers,
        lr=lr,
        step=step,
        inv_scale=inv_scale,
        noop_flag=noop_flag,
        main=main[0] if main else None,
    )

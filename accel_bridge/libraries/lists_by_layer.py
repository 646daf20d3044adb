"""Optimizers of Apex that scale each tensor's step: LAMB, Adagrad, NovoGrad.

Signatures are those of ``amp_C``: ``(chunk_size, noop_flag, tensor_lists, ...)``, as in
:mod:`.tensor_lists`. The arithmetic is float32; results are rounded to each tensor's dtype.

Source: apex/csrc/multi_tensor_lamb.cu, multi_tensor_lamb_mp.cu, multi_tensor_adagrad.cu and
multi_tensor_novograd.cu.
"""

from __future__ import annotations

import torch

from accel_bridge.libraries.tensor_lists import TensorLists, sums_of_squares

Number = float | torch.Tensor


@torch.no_grad()
def lamb(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: TensorLists,
    lr: Number,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int | torch.Tensor,
    bias_correction: int,
    weight_decay: float,
    grad_averaging: int,
    mode: int,
    global_grad_norm: torch.Tensor,
    max_grad_norm: Number,
    use_nvlamb: bool | None = False,
) -> None:
    """One step of LAMB; values that are not finite spread, whatever ``noop_flag`` says.

    :param tensor_lists: gradients, parameters, first and second moments.
    :param grad_averaging: the first moment takes ``1 - beta1`` of a gradient, otherwise all.
    :param mode: 0 adds the decay to the gradient, 1 to the update.
    :param global_grad_norm: float32 [1]; gradients are divided by what it is above the maximum.
    :param use_nvlamb: scale the step also of tensors without decay.
    """
    _lamb(
        tensor_lists, lr, (beta1, beta2), epsilon, step, bias_correction, weight_decay,
        grad_averaging, mode, global_grad_norm, max_grad_norm, use_nvlamb,
    )  # fmt: skip


@torch.no_grad()
def lamb_mixed(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: TensorLists,
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: torch.Tensor,
    bias_correction: int,
    weight_decay: float,
    grad_averaging: int,
    mode: int,
    global_grad_norm: torch.Tensor,
    max_grad_norm: torch.Tensor,
    use_nvlamb: bool | None,
    found_inf: torch.Tensor,
    inv_scale: torch.Tensor,
) -> None:
    """As :func:`lamb`, with its numbers on the device; nothing changes when ``noop_flag`` is set.

    :param tensor_lists: as there, and rounded copies of the parameters as a fifth list.
    :param inv_scale: float32 [1], factor of the gradients; the norms are of scaled ones.
    """
    _lamb(
        tensor_lists, lr, (beta1, beta2), epsilon, step, bias_correction, weight_decay,
        grad_averaging, mode, global_grad_norm, max_grad_norm, use_nvlamb,
        scale=inv_scale, active=noop_flag.reshape(()) == 0,
    )  # fmt: skip


def _lamb(
    tensor_lists: TensorLists,
    lr: Number,
    betas: tuple[float, float],
    epsilon: float,
    step: int | torch.Tensor,
    bias_correction: int,
    weight_decay: float,
    grad_averaging: int,
    mode: int,
    norm: torch.Tensor,
    largest: Number,
    use_nvlamb: bool | None,
    *,
    scale: Number = 1.0,
    active: torch.Tensor | None = None,
) -> None:
    gradients, parameters, first, second, *copies = tensor_lists
    clip = torch.where(norm > largest, norm / largest, torch.ones_like(norm)).reshape(())
    factor = _scalar(scale) / clip
    corrections = _corrections(betas, step) if bias_correction else (1.0, 1.0)
    share = 1.0 - betas[0] if grad_averaging else 1.0
    for number, (gradient, parameter, m, v) in enumerate(
        zip(gradients, parameters, first, second, strict=True)
    ):
        weight, g = parameter.float(), gradient.float() * factor
        if mode == 0:
            g = g + weight_decay * weight
        new_m = betas[0] * m.float() + share * g
        new_v = betas[1] * v.float() + (1.0 - betas[1]) * g * g
        update = (new_m / corrections[0]) / ((new_v / corrections[1]).sqrt() + epsilon)
        if mode == 1:
            update = update + weight_decay * weight
        rate = _scalar(lr)
        if use_nvlamb or weight_decay:
            size, change = sums_of_squares([weight, update]).sqrt()
            rate = torch.where((size != 0) & (change != 0), rate * size / change, rate)
        moved = weight - rate * update
        targets = [(m, new_m), (v, new_v), (parameter, moved)]
        targets += [(copy[number], moved) for copy in copies]
        for target, value in targets:
            target.copy_(value if active is None else torch.where(active, value, target.float()))


def _scalar(value: Number) -> Number:
    return value.reshape(()) if isinstance(value, torch.Tensor) else value


def _corrections(betas: tuple[float, float], step: int | torch.Tensor) -> tuple[Number, Number]:
    if isinstance(step, torch.Tensor):
        count = step.reshape(()).double()
        return (1 - betas[0] ** count).float(), (1 - betas[1] ** count).float()
    return 1 - betas[0] ** step, 1 - betas[1] ** step


@torch.no_grad()
def adagrad(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: TensorLists,
    lr: float,
    epsilon: float,
    mode: int,
    weight_decay: float,
) -> None:
    """One step of Adagrad.

    :param tensor_lists: gradients, parameters, sums of squared gradients.
    :param mode: 0 adds the decay to the gradient, 1 to the update.
    """
    for gradient, parameter, total in zip(*tensor_lists, strict=True):
        weight, g = parameter.float(), gradient.float()
        if mode == 0:
            g = g + weight_decay * weight
        squares = total.float() + g * g
        update = g / (squares.sqrt() + epsilon)
        if mode == 1:
            update = update + weight_decay * weight
        total.copy_(squares)
        parameter.copy_(weight - lr * update)


@torch.no_grad()
def novograd(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: TensorLists,
    grad_norms: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    bias_correction: int,
    weight_decay: float,
    grad_averaging: int,
    moment_mode: int,
    norm_type: int,
) -> None:
    """One step of NovoGrad; the second moment is one number for each tensor.

    :param tensor_lists: gradients, parameters, first moments.
    :param grad_norms: float32 [tensors], running norms; moves on in place.
    :param moment_mode: 0 normalizes and decays before the first moment, 1 behind it.
    :param norm_type: 2 for L2, 0 for the largest value.
    """
    gradients, parameters, moments = tensor_lists
    if norm_type == 2:
        squares = beta2 * grad_norms.square() + (1.0 - beta2) * sums_of_squares(gradients)
        grad_norms.copy_(squares.sqrt())
    else:
        peaks = torch.stack([gradient.float().abs().amax() for gradient in gradients])
        grad_norms.mul_(beta2).add_(peaks, alpha=1.0 - beta2)
    corrections = (1 - beta1**step, (1 - beta2**step) ** 0.5) if bias_correction else (1.0, 1.0)
    share = 1.0 - beta1 if grad_averaging else 1.0
    for gradient, parameter, moment, norm in zip(
        gradients, parameters, moments, grad_norms / corrections[1] + epsilon, strict=True
    ):
        weight, g = parameter.float(), gradient.float()
        if moment_mode == 0:
            g = g / norm + weight_decay * weight
        new = beta1 * moment.float() + share * g
        update = new / corrections[0]
        if moment_mode == 1:
            update = update / norm + weight_decay * weight
        moment.copy_(new)
        parameter.copy_(weight - lr * update)

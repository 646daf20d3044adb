"""Work on lists of tensors that Apex's ``amp_C`` and Transformer Engine each do in one launch.

Every function has the signature that both libraries give it: ``(chunk_size, noop_flag,
tensor_lists, ...)``. ``chunk_size`` says how their launches divide the work and changes nothing
here. ``noop_flag`` is an int32 tensor of one element, set to 1 when a value is not finite. The
arithmetic is float32; results are rounded to each tensor's dtype.

Source: transformer_engine/common/multi_tensor and apex/csrc/multi_tensor_*.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from accel_bridge.kernels.active import features

TensorLists = Sequence[Sequence[torch.Tensor]]

#: Elements of a block of the real kernels; what callers without an applier pass.
CHUNK: Final = 2048 * 32
#: Elements whose squares are added one after another; the sums of such rows are added pairwise.
ROW: Final = 2048


def sum_of_squares(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of squares in float32, with an error that does not grow with the size.

    ``torch.norm`` on the CPU adds all squares into a few float32 accumulators: measured on 38
    million normal values it is off by 2.6e-3; this is off by 2e-8, in the same time (torch 2.13).
    """
    flat = tensor.reshape(-1)
    whole = flat.numel() // ROW * ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, ROW), dim=-1, dtype=torch.float32)
    total: torch.Tensor = rows.square().sum() + flat[whole:].float().square().sum()
    return total


def sums_of_squares(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum of squares of each tensor, float32, computed in the way that suits the device."""
    if _on_host(tensors[0]):
        return torch.stack([sum_of_squares(tensor) for tensor in tensors])
    return torch.stack(torch._foreach_norm(list(tensors), 2, torch.float32)).square()


@torch.no_grad()
def l2norm(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: TensorLists,
    per_tensor: bool | None = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """L2 norm of all tensors together, and of each.

    :param tensor_lists: one list of tensors, any shapes and float dtypes.
    :param per_tensor: also give every tensor's own norm.
    :returns: float32 [1], and float32 [tensors] or [0].
    """
    return _norms(noop_flag, tensor_lists[0], None, bool(per_tensor))


@torch.no_grad()
def unscale_l2norm(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: TensorLists,
    inv_scale: torch.Tensor,
    per_tensor: bool | None = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`l2norm`, of the tensors times ``inv_scale`` [1]; the tensors stay as they are."""
    return _norms(noop_flag, tensor_lists[0], inv_scale, bool(per_tensor))


def _norms(
    noop_flag: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    factor: torch.Tensor | None,
    per_tensor: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    if not tensors:
        nothing = torch.zeros(1, dtype=torch.float32, device=noop_flag.device)
        return nothing, nothing[:0]
    squares = sums_of_squares(tensors)
    total = squares.sum().sqrt().view(1)
    each = squares.sqrt() if per_tensor else squares[:0]
    if factor is not None:
        total, each = total * factor, each * factor
    _raise_flag(noop_flag, total.isfinite().logical_not())
    return total, each


@torch.no_grad()
def scale(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: TensorLists, scale: float
) -> None:
    """Set every tensor of the second list to its counterpart in the first, times ``scale``.

    :param tensor_lists: sources and targets, of equal sizes, any float dtypes; they may be the
        same tensors. Products are rounded once, to the target's dtype.
    """
    sources, targets = (list(tensors) for tensors in tensor_lists)
    if not sources:
        return
    if scale == 1.0 and not _are_same(sources, targets):
        torch._foreach_copy_(targets, sources)
        _raise_flag(noop_flag, _any_not_finite(sources))
        return
    factor = torch.full((), scale, dtype=torch.float32, device=sources[0].device)
    _scale_by(noop_flag, sources, targets, factor)


@torch.no_grad()
def scale_tensor(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: TensorLists, scale: torch.Tensor
) -> None:
    """As :func:`scale`, with a factor on the device: float32, one element."""
    sources, targets = (list(tensors) for tensors in tensor_lists)
    if sources:
        _scale_by(noop_flag, sources, targets, scale.reshape(()).float())


def _scale_by(
    noop_flag: torch.Tensor,
    sources: list[torch.Tensor],
    targets: list[torch.Tensor],
    factor: torch.Tensor,
) -> None:
    """``targets = sources * factor``; the flag says whether the sources were finite."""
    found = torch.zeros((), dtype=torch.float32, device=factor.device)
    if not _are_same(sources, targets):
        if any(_loses(one, other) for one, other in zip(sources, targets, strict=True)):
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source.float() * factor)
            _raise_flag(noop_flag, _any_not_finite(sources))
            return
        torch._foreach_copy_(targets, sources)
    if any(target.dtype == torch.bfloat16 for target in targets):
        # CUDA's operator that does both in one pass has no bfloat16.
        _raise_flag(noop_flag, _any_not_finite(targets))
        torch._foreach_mul_(targets, factor)
        return
    torch._amp_foreach_non_finite_check_and_unscale_(targets, found, factor)
    _raise_flag(noop_flag, found > 0)


def _are_same(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> bool:
    return all(one is other for one, other in zip(sources, targets, strict=True))


def _loses(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether the target's dtype cannot hold every value of the source's."""
    return torch.promote_types(source.dtype, target.dtype) != target.dtype


@torch.no_grad()
def axpby(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: TensorLists,
    a: float,
    b: float,
    arg_to_check: int,
) -> None:
    """``out = a * x + b * y`` for every triple of the three lists x, y, out, in float32.

    :param arg_to_check: which list must be finite: 0 for x, 1 for y, -1 for both.
    """
    x, y, out = (list(tensors) for tensors in tensor_lists)
    if not x:
        return
    checked = {0: x, 1: y}.get(arg_to_check, [*x, *y])
    _raise_flag(noop_flag, _any_not_finite(checked))
    for one, other, target in zip(x, y, out, strict=True):
        target.copy_(one.float() * a + other.float() * b)


@torch.no_grad()
def sgd(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: TensorLists,
    wd: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: bool,
    first_run: bool,
    wd_after_momentum: bool,
    scale: float,
) -> None:
    """One step of stochastic gradient descent, in float32; nothing when ``noop_flag`` is not 0.

    :param tensor_lists: gradients, parameters, momenta and, as a fourth list, float16 copies of
        the parameters, which are written.
    :param wd: weight decay, added to the gradient before or after the momentum.
    :param first_run: the momenta become the gradients.
    :param scale: factor of the gradients.
    :raises ValueError: not three or four lists.
    """
    if len(tensor_lists) not in (3, 4):
        raise ValueError(f"three or four lists of tensors are needed, not {len(tensor_lists)}")
    if not tensor_lists[0]:
        return
    active = noop_flag.reshape(()) == 0
    gradients, parameters, momenta = (list(tensors) for tensors in tensor_lists[:3])
    copies = tensor_lists[3] if len(tensor_lists) == 4 else [None] * len(parameters)
    for gradient, parameter, moment, copy in zip(
        gradients, parameters, momenta, copies, strict=True
    ):
        weight, update = parameter.float(), gradient.float() * scale
        if wd and not wd_after_momentum:
            update = update + wd * weight
        if momentum:
            speed = update
            if not first_run:
                speed = moment.float() * momentum + update * (1.0 - dampening)
            update = update + momentum * speed if nesterov else speed
            moment.copy_(torch.where(active, speed, moment))
        if wd and wd_after_momentum:
            update = update + wd * weight
        # As the real kernels, which add in the parameter's precision.
        moved = parameter + (update * -lr).to(parameter.dtype)
        parameter.copy_(torch.where(active, moved, parameter))
        if copy is not None:
            copy.copy_(parameter)


def store(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Round values into the tensors that they were widened from; shared memory needs nothing."""
    pairs = [
        (target, value)
        for target, value in zip(targets, values, strict=True)
        if target.data_ptr() != value.data_ptr()
    ]
    if pairs:
        torch._foreach_copy_([target for target, _ in pairs], [value for _, value in pairs])


def _on_host(tensor: torch.Tensor) -> bool:
    # Also beside an accelerator, where optimizers keep states on the host.
    return features().tensors_on_host or tensor.device.type == "cpu"


def _any_not_finite(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Whether any value is infinite or not a number: bool, no dimensions, on the device."""
    filled = [tensor for tensor in tensors if tensor.numel()]
    if not filled:
        return torch.zeros((), dtype=torch.bool, device=tensors[0].device)
    if _on_host(filled[0]):
        # torch's maximum norm takes 25 times as long on the CPU.
        peaks = [peak.float() for tensor in filled for peak in tensor.aminmax()]
    else:
        peaks = [peak.float() for peak in torch._foreach_norm(filled, float("inf"))]
    return torch.stack(peaks).isfinite().all().logical_not()


def _raise_flag(noop_flag: torch.Tensor, condition: torch.Tensor) -> None:
    noop_flag.masked_fill_(condition.reshape(()), 1)


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

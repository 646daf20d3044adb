"""The CPU's kernels: torch's own fused operations where there are any, else the references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.optim.adamw import adamw as torch_adamw

from accel_bridge.backends._linear_cross_entropy import (
    LinearCrossEntropy,
    Steps,
    plain_gradient,
    plain_statistics,
    unsupported,
)
from accel_bridge.backends._sdpa import SDPA
from accel_bridge.backends.cpu import _host
from accel_bridge.kernels import (
    ADAMW,
    ATTENTION,
    CONTRACTS,
    CROSS_ENTROPY,
    LAYER_NORM,
    LINEAR_CROSS_ENTROPY,
    WEIGHT_GRADIENT,
    AdamWOptions,
    AttentionOptions,
    AttentionResult,
    Kernels,
    compute_dtype,
    gamma,
    group_size,
    reference_kernel,
    smoothing_weight,
)
from accel_bridge.kernels.adamw import scale_in_place, write_copies


def layer_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``layer_norm``.

    The input is widened first: torch's kernel for bfloat16 and float16 sums the gradients of
    gamma and beta in that precision (found by the tolerance policy on torch 2.13).
    """
    dtype = compute_dtype(input)
    factor = gamma(weight, zero_centered_gamma, dtype)
    shift = None if bias is None else bias.to(dtype)
    output = functional.layer_norm(input.to(dtype), factor.shape, factor, shift, eps)
    return output.to(input.dtype)


def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The contract ``cross_entropy`` for a whole vocabulary.

    torch refuses most targets outside the vocabulary, and gives -100 no loss: the reference then.
    """
    vocabulary = logits.shape[-1]
    if ((target < 0) | (target >= vocabulary)).any():
        return CROSS_ENTROPY.reference(logits, target, group=group, label_smoothing=label_smoothing)
    loss = functional.cross_entropy(
        logits.reshape(-1, vocabulary).to(compute_dtype(logits)),
        target.reshape(-1),
        reduction="none",
        label_smoothing=smoothing_weight(label_smoothing, vocabulary),
    )
    return loss.view(target.shape)


def _whole_vocabulary(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    label_smoothing: float = 0.0,
) -> str | None:
    if group_size(group) > 1:
        return "torch's cross-entropy does not support a vocabulary split over ranks"
    if smoothing_weight(label_smoothing, logits.shape[-1]) > 1.0:
        return "torch's cross-entropy does not accept a smoothing weight above 1"
    return None


_LOSS_STEPS: Final = Steps(plain_statistics, plain_gradient, WEIGHT_GRADIENT.reference)


def linear_cross_entropy(
    input: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    *,
    token_weight: torch.Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    scale: float = 1.0,
    main_grad: torch.Tensor | None = None,
) -> torch.Tensor:
    """The contract ``linear_cross_entropy``."""
    loss: torch.Tensor = LinearCrossEntropy.apply(
        input, weight, target, token_weight, group, scale, main_grad, _LOSS_STEPS
    )
    return loss


def _loss_supports(
    input: torch.Tensor, weight: torch.Tensor, *_: object, **__: object
) -> str | None:
    return unsupported(input, weight)


@torch.no_grad()
def adamw(
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    first_moments: Sequence[torch.Tensor],
    second_moments: Sequence[torch.Tensor],
    options: AdamWOptions,
    scale: torch.Tensor | None = None,
    copies: Sequence[torch.Tensor] | None = None,
) -> None:
    """The contract ``adamw``."""
    scale_in_place(gradients, scale)
    given = (parameters, gradients, first_moments, second_moments)
    # torch's one pass takes memory as it lies, without a look at strides.
    dense = [[tensor.contiguous() for tensor in tensors] for tensors in given]
    torch_adamw(
        dense[0],
        dense[1],
        dense[2],
        dense[3],
        [],
        # torch counts the step itself, in place.
        [torch.tensor(float(options.step - 1)) for _ in parameters],
        fused=True,
        amsgrad=False,
        beta1=options.betas[0],
        beta2=options.betas[1],
        lr=options.lr,
        weight_decay=options.weight_decay,
        eps=options.eps,
        maximize=False,
    )
    for tensors, updated in zip(given, dense, strict=True):
        for tensor, values in zip(tensors, updated, strict=True):
            if tensor is not values:
                tensor.copy_(values)
    write_copies(parameters, copies)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
) -> AttentionResult:
    """The contract ``attention``; float16 runs in float32, which is faster and no less exact."""
    if query.dtype is not torch.float16 or _host.has_float16():
        return SDPA.function(query, key, value, options)
    output = SDPA.function(query.float(), key.float(), value.float(), options)
    return cast(torch.Tensor, output).to(torch.float16)


#: Every contract's kernel on the CPU.
KERNELS: Final = Kernels(
    *(reference_kernel(c, "torch has nothing faster on the CPU") for c in CONTRACTS.values())
).replaced(
    ATTENTION.kernel(attention, SDPA.why, SDPA.supports, SDPA.source),
    LAYER_NORM.kernel(layer_norm, "fused in torch", source="torch.nn.functional.layer_norm"),
    CROSS_ENTROPY.kernel(
        cross_entropy,
        "fused log-softmax in torch",
        _whole_vocabulary,
        source="torch.nn.functional.cross_entropy",
    ),
    LINEAR_CROSS_ENTROPY.kernel(
        linear_cross_entropy, "no logits of all tokens", _loss_supports, source="torch"
    ),
    ADAMW.kernel(adamw, "one pass over each tensor", source="torch.optim.adamw, fused=True"),
)

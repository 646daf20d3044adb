"""Contracts of weight gradients that are added to main_grad, and of one GEMM per expert.

They are ``weight_gradient`` of a linear layer, ``embedding_gradient``, ``grouped_matmul`` of tokens
sorted by expert, and its ``grouped_weight_gradient``.

Legend: ... any leading dimensions (tokens), t tokens, e experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import torch

from accel_bridge.kernels._contract import Contract


@torch.no_grad()
def weight_gradient_reference(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    main_grad: torch.Tensor,
    *,
    accumulate: bool = True,
) -> None:
    """``main_grad += grad_output^T @ input``, GEMM and sum in main_grad's precision, in place.

    With a float32 main_grad the product of bfloat16 tensors is never rounded to bfloat16.

    :param input: [..., k], any float dtype.
    :param grad_output: [..., m], any float dtype.
    :param main_grad: [m, k]; float32 as a rule; changed in place.
    :param accumulate: if False, the GEMM replaces what ``main_grad`` holds.
    """
    x = input.reshape(-1, input.shape[-1]).to(main_grad.dtype)
    gradient = grad_output.reshape(-1, grad_output.shape[-1]).to(main_grad.dtype)
    main_grad.addmm_(gradient.t(), x, beta=int(accumulate))


WEIGHT_GRADIENT = Contract(
    name="weight_gradient",
    reference=weight_gradient_reference,
    formula="main_grad += grad_output^T @ input",
    source="semantics of Apex's fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32",
)


@torch.no_grad()
def embedding_gradient_reference(
    indices: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> None:
    """``main_grad[indices[t]] += grad_output[t]``, in main_grad's precision, in place.

    Rows of other tensor-parallel ranks lie outside [0, v) and add nothing. The order of the sums
    is free.

    :param indices: [...], int64.
    :param grad_output: [..., h], any float dtype.
    :param main_grad: [v, h]; float32 as a rule; changed in place.
    """
    rows = indices.reshape(-1)
    gradient = grad_output.reshape(-1, grad_output.shape[-1]).to(main_grad.dtype)
    outside = (rows < 0) | (rows >= main_grad.shape[0])
    main_grad.index_add_(
        0, rows.masked_fill(outside, 0), gradient.masked_fill(outside.unsqueeze(-1), 0.0)
    )


EMBEDDING_GRADIENT = Contract(
    name="embedding_gradient",
    reference=embedding_gradient_reference,
    formula="main_grad[index[t]] += grad_output[t]",
    source="the gradient of torch.nn.functional.embedding, added as Megatron's DDP hook does",
)


#: Floating-point operations of an expert's GEMM from which on separate GEMMs are as fast as a
#: grouped one: a launch costs the host about as long as a device takes for them.
MUCH: Final = 5e10


def is_much(rows: int, weight: int, experts: int) -> bool:
    """Whether separate GEMMs of ``rows`` rows of all experts are as fast as a grouped one.

    :param weight: elements of an expert's weight.
    """
    return 2 * rows * weight > MUCH * experts


def grouped_matmul_reference(
    input: torch.Tensor, weight: torch.Tensor, tokens_per_expert: torch.Tensor
) -> torch.Tensor:
    """``output[rows of expert i] = input[rows of expert i] @ weight[i]``.

    :param input: [t, k], any float dtype, rows sorted by expert.
    :param weight: [e, k, m], in the input's dtype; a transposed view is fine.
    :param tokens_per_expert: [e], integer, on any device; sums to t; zeros are allowed.
    :returns: [t, m] in the input's dtype.
    :raises ValueError: counts that do not sum to t.
    """
    counts = cast(list[int], tokens_per_expert.tolist())
    if sum(counts) != input.shape[0] or len(counts) != weight.shape[0]:
        raise ValueError(f"counts {counts} for {input.shape[0]} rows, {weight.shape[0]} experts")
    rows = torch.split(input, counts)
    return torch.cat([part @ weight[expert] for expert, part in enumerate(rows)])


GROUPED_MATMUL = Contract(
    name="grouped_matmul",
    reference=grouped_matmul_reference,
    formula="y[group i] = x[group i] @ W[i]",
    source="Gale et al. 2022, arXiv:2211.15841; semantics of grouped_gemm.ops.gmm",
)


@torch.no_grad()
def grouped_weight_gradient_reference(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
    *,
    accumulate: bool = True,
) -> None:
    """``main_grad_i += grad_output_i^T @ input_i`` for the rows i of each expert, in place.

    GEMMs and sums have main_grad's precision, as in ``weight_gradient``.

    :param input: [t, k], any float dtype.
    :param grad_output: [t, m], any float dtype.
    :param splits: e numbers of rows, on the host.
    :param main_grad: [n], contiguous; float32 as a rule. Experts' sums [m, k] lie in it in any
        order, as in a buffer of gradients.
    :param places: e numbers: where in ``main_grad`` each expert's sums begin.
    :param accumulate: if False, the GEMMs replace what the sums hold; no rows are zeros.
    """
    m, k = grad_output.shape[1], input.shape[1]
    rows = zip(input.split(list(splits)), grad_output.split(list(splits)), places, strict=True)
    for x, gradient, place in rows:
        sums = main_grad[place : place + m * k].view(m, k)
        weight_gradient_reference(x, gradient, sums, accumulate=accumulate)


GROUPED_WEIGHT_GRADIENT = Contract(
    name="grouped_weight_gradient",
    reference=grouped_weight_gradient_reference,
    formula="main_grad_i += grad_output_i^T @ input_i",
    source="semantics of Transformer Engine's GroupedLinear with fused accumulation",
)

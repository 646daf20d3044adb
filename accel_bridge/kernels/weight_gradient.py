"""Contracts ``weight_gradient`` and ``embedding_gradient``: a linear layer's or an embedding's
weight gradient, added to main_grad.

Legend: ... any leading dimensions (tokens), k input size, m output size.
"""

from __future__ import annotations

import torch

from accel_bridge.kernels._contract import Contract


@torch.no_grad()
def weight_gradient_reference(
    input: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> None:
    """``main_grad += grad_output^T @ input``, product and sum in main_grad's precision, in place.

    With a float32 main_grad the product of bfloat16 tensors is never rounded to bfloat16.

    :param input: [..., k], any float dtype.
    :param grad_output: [..., m], any float dtype.
    :param main_grad: [m, k]; float32 as a rule; changed in place.
    """
    x = input.reshape(-1, input.shape[-1]).to(main_grad.dtype)
    gradient = grad_output.reshape(-1, grad_output.shape[-1]).to(main_grad.dtype)
    main_grad.addmm_(gradient.t(), x)


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

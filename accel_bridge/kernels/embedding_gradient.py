"""Contract ``embedding_gradient``: accumulate an embedding's weight gradient into main_grad.

Legend: ... any leading dimensions (tokens), v rows of the embedding on this rank, h hidden size.
"""

from __future__ import annotations

import torch

from accel_bridge.kernels._contract import Contract


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

"""The embedding's weight gradient, added only to the rows that were used.

Legend: t tokens, v rows of the embedding, h hidden size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import not_for_triton
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, power_of_two

#: Tokens and numbers of each that a program holds.
_TOKENS = 16
_BLOCK = 512


@Quick
@triton.jit
def _add(
    rows,
    order,
    gradient,
    total,
    tokens,
    v,
    h,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradients of all tokens of one row, summed in the tokens' order, onto that row.

    ``rows`` is sorted; the program of a row's first token does the work, and the programs of its
    other tokens do nothing. There are no atomic operations, so runs are bitwise reproducible.
    """
    start = tl.program_id(0)
    row = tl.load(rows + start)
    before = tl.load(rows + start - 1, mask=start > 0, other=-1)
    if (row >= 0) & (row < v) & (row != before):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < h
        found = tl.zeros((BLOCK,), dtype=tl.float32)
        more = True
        while more:
            place = start + tl.arange(0, TOKENS)
            same = tl.load(rows + place, mask=place < tokens, other=-1) == row
            token = tl.load(order + place, mask=same, other=0)
            values = tl.load(
                gradient + token[:, None] * h + column[None, :],
                mask=same[:, None] & inside[None, :],
                other=0.0,
            )
            found += tl.sum(values.to(tl.float32), 0)
            more = tl.sum(same.to(tl.int32), 0) == TOKENS
            start += TOKENS
        target = total + row * h + column
        found += tl.load(target, mask=inside, other=0.0).to(tl.float32)
        tl.store(target, found.to(total.dtype.element_ty), mask=inside)


def embedding_gradient(
    indices: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> None:
    """The contract ``embedding_gradient`` for a contiguous main_grad [v, h]."""
    v, h = main_grad.shape
    rows, order = torch.sort(indices.reshape(-1), stable=True)
    gradient = grad_output.reshape(-1, h).contiguous()
    tokens = rows.shape[0]
    block = min(_BLOCK, power_of_two(h))
    if tokens:
        _add[(tokens, blocks(h, block))](
            rows, order, gradient, main_grad, tokens, v, h, TOKENS=_TOKENS, BLOCK=block, num_warps=4
        )


def supports(
    indices: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> str | None:
    """Where :func:`embedding_gradient` applies."""
    if not main_grad.is_contiguous():
        return "a main_grad that is not contiguous"
    return not_for_triton(grad_output, main_grad)

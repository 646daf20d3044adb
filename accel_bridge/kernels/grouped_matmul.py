"""Contract ``grouped_matmul``: one matrix product per expert, tokens sorted by expert.

Legend: t tokens, e experts, k input size, m output size.
"""

from __future__ import annotations

from typing import cast

import torch

from accel_bridge.kernels._contract import Contract


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

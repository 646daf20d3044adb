"""Which experts get a token, with which weights, and the loss that balances them.

As in the real library everything is computed in float32, scores are float32, and weights and
gradients have the logits' dtype.

Legend: t tokens (any leading dimensions), e experts.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional

#: Added to a sum of scores before it divides.
_EPSILON: Final = 1e-20


def fused_topk_with_score_function(
    logits: torch.Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: str,
    expert_bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``topk`` experts with the highest scores, and their weights.

    :param logits: [t, e], float32, bfloat16 or float16.
    :param use_pre_softmax: softmax over all experts; otherwise over the chosen ones.
    :param num_groups: groups of neighbouring experts, of equal sizes.
    :param group_topk: how many groups a token's experts may come from; a group counts by the sum
        of its ``topk // group_topk`` highest scores. None or 0 for no groups.
    :param scaling_factor: factor of the weights, or None.
    :param score_function: ``softmax``, ``sigmoid`` or ``sqrtsoftplus``; weights of the last two
        are divided by their sum when ``topk`` is above 1.
    :param expert_bias: [e], added to the scores of the last two for the choice, not the weights.
    :returns: weights [t, e] in the logits' dtype, 0 for other experts; and which, bool.
    :raises ValueError: float64 logits, or another score function.
    """
    if logits.dtype is torch.float64:
        raise ValueError("the router takes float32, bfloat16 and float16, not float64")
    rows = logits.reshape(-1, logits.shape[-1]).float()
    if score_function == "softmax":
        scores = rows.softmax(-1) if use_pre_softmax else rows
        bias = None
    else:
        scores = _scores(rows, score_function)
        bias = expert_bias
    with torch.no_grad():
        ranked = scores if bias is None else scores + bias.float()
        if group_topk:
            ranked = _in_best_groups(ranked, topk, num_groups or 1, group_topk)
        indices = ranked.topk(topk, dim=-1, sorted=False).indices
    weights = scores.gather(-1, indices)
    if score_function == "softmax":
        if not use_pre_softmax:
            weights = weights.softmax(-1)
    elif topk > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + _EPSILON)
    if scaling_factor:
        weights = weights * scaling_factor
    zeros = torch.zeros_like(rows, dtype=logits.dtype)
    probs = zeros.scatter(-1, indices, weights.to(logits.dtype))
    return probs.view(logits.shape), _routing_map(rows, indices).view(logits.shape)


def fused_compute_score_for_moe_aux_loss(
    logits: torch.Tensor, topk: int, score_function: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every expert's score, whose sum over a token is 1, and the ``topk`` highest.

    :param logits: [t, e], float32, bfloat16 or float16.
    :param score_function: see :func:`fused_topk_with_score_function`.
    :returns: routing map [t, e], bool; scores [t, e], float32.
    :raises ValueError: another score function.
    """
    rows = logits.reshape(-1, logits.shape[-1]).float()
    if score_function == "softmax":
        scores = rows.softmax(-1)
    else:
        scores = _scores(rows, score_function)
        if topk > 1:
            scores = scores / (scores.sum(-1, keepdim=True) + _EPSILON)
    indices = scores.detach().topk(topk, dim=-1, sorted=False).indices
    return _routing_map(rows, indices).view(logits.shape), scores.view(logits.shape)


def fused_moe_aux_loss(
    probs: torch.Tensor,
    tokens_per_expert: torch.Tensor,
    total_num_tokens: int,
    num_experts: int,
    topk: int,
    coeff: float,
) -> torch.Tensor:
    """``coeff * e / (topk * total^2) * sum(probs * tokens_per_expert)``, no dimensions.

    :param probs: [t, e], float32, bfloat16 or float16.
    :param tokens_per_expert: [e], any dtype; no gradient.
    :param total_num_tokens: tokens of all ranks that share the loss.
    :returns: in the dtype of ``probs``; the sums are float32.
    """
    factor = num_experts * coeff / topk / total_num_tokens / total_num_tokens
    sums = probs.sum(0, dtype=torch.float32)
    return ((sums * tokens_per_expert.detach().float()).sum() * factor).to(probs.dtype)


def _scores(rows: torch.Tensor, score_function: str) -> torch.Tensor:
    if score_function == "sigmoid":
        return rows.sigmoid()
    if score_function == "sqrtsoftplus":
        return functional.softplus(rows).sqrt()
    raise ValueError(f"score_function is softmax, sigmoid or sqrtsoftplus, not {score_function!r}")


def _in_best_groups(
    scores: torch.Tensor, topk: int, num_groups: int, group_topk: int
) -> torch.Tensor:
    """The scores, minus infinity outside of each token's best groups."""
    grouped = scores.view(scores.shape[0], num_groups, -1)
    totals = grouped.topk(topk // group_topk, dim=-1).values.sum(-1)
    best = totals.topk(group_topk, dim=-1, sorted=False).indices
    kept = torch.zeros_like(totals, dtype=torch.bool).scatter(-1, best, True)
    return grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).view(scores.shape)


def _routing_map(rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(rows, dtype=torch.bool).scatter(-1, indices, True)

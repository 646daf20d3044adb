"""Experts: the router's scores and auxiliary loss, tokens to their experts and back, padding.

A map of rows is int32 [k * t]: the row of each token's first, second, ... copy, -1 where it was
dropped. Nothing waits for the device.

Legend: t tokens, e experts, h hidden size, k experts per token, m copies.
Source of padding: padding.cpp and multi_tensor_pad_last_dim of Transformer Engine 2.8 to 2.20.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from accel_bridge.libraries.transformer_engine_torch import refuse
from accel_bridge.libraries.transformer_engine_torch._tensors import is_capturing
from accel_bridge.libraries.transformer_engine_torch.enums import NVTERoutingMapFormat

_EPSILON: Final = 1e-20


def fused_topk_with_score_function_fwd(
    logits: torch.Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: str,
    expert_bias: torch.Tensor | None,
    routing_map_format: int = NVTERoutingMapFormat.BYTEMAP,
    topk_indices: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each token's experts and their weights.

    :param logits: [t, e], float32, bfloat16 or float16.
    :param score_function: ``softmax``, ``sigmoid`` or ``sqrtsoftplus``.
    :param use_pre_softmax: softmax over all experts, not over the chosen ones.
    :param num_groups: with ``group_topk``: choose among each token's best groups only.
    :param expert_bias: [e], added for the choice alone; not with ``softmax``.
    :param topk_indices: int [t, k], written: the chosen experts.
    :returns: weights [t, e] in the dtype of the logits, 0 elsewhere; routing map bool [t, e], or
        packed bits; float32 [t, e], from which the backward pass computes: the scores, or the
        chosen experts' softmax where that is taken of them alone.
    """
    x = logits.float()
    of_chosen = score_function == "softmax" and not use_pre_softmax
    scores = x if of_chosen else _scores(x, score_function)
    ranked = scores
    if expert_bias is not None and score_function != "softmax":
        ranked = ranked + expert_bias.float()
    if group_topk:
        ranked = _in_best_groups(ranked, topk, num_groups or 1, group_topk)
    indices = ranked.topk(topk, dim=-1).indices
    if topk_indices is not None:
        topk_indices.copy_(indices)
    weights = scores.gather(-1, indices)
    if of_chosen:
        weights = weights.softmax(-1)
        scores = torch.zeros_like(x).scatter_(-1, indices, weights)
    elif score_function != "softmax" and topk > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + _EPSILON)
    if scaling_factor:
        weights = weights * scaling_factor
    if of_chosen and not scaling_factor:
        made = scores.to(logits.dtype, copy=True)
    else:
        made = torch.zeros_like(x).scatter_(-1, indices, weights).to(logits.dtype)
    chosen = torch.zeros_like(x, dtype=torch.bool).scatter_(-1, indices, True)
    return made, _packed(chosen, routing_map_format), scores


def fused_topk_with_score_function_bwd(*arguments: Any) -> torch.Tensor:
    """Gradient of the logits.

    From 2.14 on ``(routing_map, intermediate, grad_probs, grad_logits, topk, use_pre_softmax,
    scaling_factor, score_function, use_dense_indices=False, routing_map_format=0)`` writes
    ``grad_logits``; from 2.10 on t and e stand before, and before that ``grad_logits`` is missing.
    """
    if isinstance(arguments[0], int):
        arguments = arguments[2:]
    routing_map, saved, grad_probs, *rest = arguments
    target = rest.pop(0) if isinstance(rest[0], torch.Tensor) else torch.empty_like(grad_probs)
    topk, use_pre_softmax, scaling_factor, score_function, *rest = rest
    dense, form = (*rest, False, 0)[:2] if len(rest) != 1 else (rest[0], 0)
    grad = grad_probs.float()
    if scaling_factor:
        grad = grad * scaling_factor
    if score_function == "softmax" and not use_pre_softmax:
        gradient = _of_softmax(grad, saved)
    else:
        if dense:
            chosen = torch.zeros_like(saved, dtype=torch.bool)
            chosen.scatter_(-1, routing_map.long(), True)
        else:
            chosen = _unpacked(routing_map, form, saved.shape[-1])
        grad = torch.where(chosen, grad, 0.0)
        if score_function == "softmax":
            gradient = _of_softmax(grad, saved)
        else:
            gradient = _of_scores(grad, saved, chosen if topk > 1 else None, score_function)
    result: torch.Tensor = target.copy_(gradient)
    return result


def fused_score_for_moe_aux_loss_fwd(
    logits: torch.Tensor,
    topk: int,
    score_function: str,
    routing_map_format: int = NVTERoutingMapFormat.BYTEMAP,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every expert's score, whose sum over a token is 1, and the k highest.

    :returns: scores float32 [t, e], routing map as above, the scores before they were divided by
        their sum.
    """
    saved = scores = _scores(logits.float(), score_function)
    if score_function != "softmax" and topk > 1:
        scores = scores / (scores.sum(-1, keepdim=True) + _EPSILON)
    indices = scores.topk(topk, dim=-1).indices
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, indices, True)
    return scores, _packed(chosen, routing_map_format), saved


def fused_score_for_moe_aux_loss_bwd(
    num_tokens: int | None = None,
    num_experts: int | None = None,
    *,
    intermediate_output: torch.Tensor,
    grad_scores: torch.Tensor,
    topk: int,
    score_function: str,
    grad_logits: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gradient of the logits, written to ``grad_logits`` if it is given.

    :param num_tokens: and ``num_experts``: given before 2.14, not used.
    """
    saved, grad = intermediate_output, grad_scores.float()
    if score_function == "softmax":
        gradient = _of_softmax(grad, saved)
    else:
        every = torch.ones_like(saved, dtype=torch.bool) if topk > 1 else None
        gradient = _of_scores(grad, saved, every, score_function)
    target = torch.empty_like(grad_scores) if grad_logits is None else grad_logits
    return target.copy_(gradient)


def fused_moe_aux_loss_fwd(
    probs: torch.Tensor,
    tokens_per_expert: torch.Tensor,
    total_num_tokens: int | torch.Tensor,
    num_experts: int,
    num_rows: int,
    num_cols: int,
    topk: int,
    coeff: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``coeff * e / (topk * total^2) * sum(probs * tokens_per_expert)``.

    :param probs: [t, e].
    :param tokens_per_expert: [e], any dtype.
    :param total_num_tokens: tokens of all ranks that share the loss; a tensor stays on its device.
    :returns: the loss in the dtype of ``probs``, and the factor before the sum, float32.
    """
    factor = num_experts * coeff / topk / total_num_tokens / total_num_tokens
    if not isinstance(factor, torch.Tensor):
        factor = torch.full((), factor, dtype=torch.float32, device=probs.device)
    factor = factor.float().reshape(())
    sums = probs.sum(0, dtype=torch.float32)
    return ((sums * tokens_per_expert.float()).sum() * factor).to(probs.dtype), factor


fused_moe_aux_loss_fwd_graph_safe = fused_moe_aux_loss_fwd


def fused_moe_aux_loss_bwd(
    Const_buf: torch.Tensor,
    tokens_per_expert: torch.Tensor,
    num_rows: int,
    num_cols: int,
    grad_aux_loss: torch.Tensor,
) -> torch.Tensor:
    """Gradient of ``probs``: [t, e] in the loss's dtype."""
    row = tokens_per_expert.float() * Const_buf * grad_aux_loss.float()
    return row.to(grad_aux_loss.dtype).expand(num_rows, num_cols).contiguous()


def _scores(x: torch.Tensor, score_function: str) -> torch.Tensor:
    if score_function == "softmax":
        return x.softmax(-1)
    if score_function == "sigmoid":
        return x.sigmoid()
    if score_function == "sqrtsoftplus":
        return functional.softplus(x).sqrt()
    raise ValueError(f"score_function is softmax, sigmoid or sqrtsoftplus, not {score_function!r}")


def _of_softmax(grad: torch.Tensor, softmax: torch.Tensor) -> torch.Tensor:
    """The gradient of a softmax's input; experts that were left out have 0 in ``softmax``."""
    return torch._softmax_backward_data(grad, softmax, -1, softmax.dtype)


def _of_scores(
    grad: torch.Tensor, scores: torch.Tensor, divided: torch.Tensor | None, score_function: str
) -> torch.Tensor:
    """The gradient of the logits of single scores.

    :param grad: [t, e], of the weights.
    :param divided: bool [t, e]: the experts whose scores were divided by their sum; None: none.
    """
    if divided is not None:
        chosen = torch.where(divided, scores, 0.0)
        sums = chosen.sum(-1, keepdim=True) + _EPSILON
        mean = (grad * chosen).sum(-1, keepdim=True) / sums
        grad = torch.where(divided, grad - mean, 0.0) / sums
    if score_function == "sigmoid":
        found: torch.Tensor = torch.ops.aten.sigmoid_backward(grad, scores)
        return found
    # d sqrt(softplus(x)) = sigmoid(x) / (2 sqrt(softplus(x))), and sigmoid(x) = 1 - exp(-score^2).
    return grad * -torch.expm1(-scores.square()) / (2 * scores)


def _in_best_groups(
    scores: torch.Tensor, topk: int, num_groups: int, group_topk: int
) -> torch.Tensor:
    """The scores, minus infinity outside of each token's best groups."""
    grouped = scores.view(scores.shape[0], num_groups, -1)
    totals = grouped.topk(topk // group_topk, dim=-1).values.sum(-1)
    best = totals.topk(group_topk, dim=-1).indices
    kept = torch.zeros_like(totals, dtype=torch.bool).scatter_(-1, best, True)
    return grouped.masked_fill(~kept.unsqueeze(-1), -torch.inf).view(scores.shape)


def _packed(chosen: torch.Tensor, form: int) -> torch.Tensor:
    """The map in its format: bool [t, e], or uint8 [t, e / 8] with expert 0 in the lowest bit."""
    if form == NVTERoutingMapFormat.BYTEMAP:
        return chosen
    if form != NVTERoutingMapFormat.BITMAP_U8:
        refuse(f"fused_topk_with_score_function_fwd with routing map format {form}")
    padded = functional.pad(chosen, (0, -chosen.shape[-1] % 8))
    bits = torch.arange(8, device=chosen.device)
    packed: torch.Tensor = (padded.unflatten(-1, (-1, 8)).long() << bits).sum(-1)
    return packed.to(torch.uint8)


def _unpacked(routing_map: torch.Tensor, form: int, experts: int) -> torch.Tensor:
    if form == NVTERoutingMapFormat.BYTEMAP:
        return routing_map.bool()
    bits = torch.arange(8, device=routing_map.device)
    spread: torch.Tensor = (routing_map.unsqueeze(-1).long() >> bits) & 1
    return spread.flatten(-2)[..., :experts].bool()


def moe_permute_fwd(
    input: torch.Tensor,
    dtype: Any,
    indices: torch.Tensor,
    num_out_tokens: int,
    workspace: list[torch.Tensor],
    max_expanded_token_num: int,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Copies of the tokens in the order (expert, token).

    :param input: [t, h], any dtype; bytes of FP8 too.
    :param indices: int32 [t, k], the experts of a token.
    :param num_out_tokens: m; 0 or less: all of t * k.
    :param workspace: of the compiled extension's sort; returned as it is.
    :returns: copies [m, h], the map of rows, the workspace.
    """
    tokens, choices = indices.shape
    order = indices.reshape(-1).argsort(stable=True)
    rows = torch.empty_like(order)
    rows[order] = torch.arange(order.numel(), device=order.device)
    if num_out_tokens > 0:
        order = order[:num_out_tokens]
        rows = rows.masked_fill(rows >= num_out_tokens, -1)
    rows = rows.view(tokens, choices).t().reshape(-1).to(torch.int32)
    return input.index_select(0, order // choices), rows, workspace


def moe_permute_bwd(
    input: torch.Tensor,
    dtype: Any,
    row_id_map: torch.Tensor,
    prob: torch.Tensor,
    num_tokens: int,
    topK: int,
) -> torch.Tensor:
    """The sum [t, h] of each token's copies; with weights [t, k] unless ``prob`` is empty."""
    return moe_unpermute_fwd(input, dtype, row_id_map, prob, num_tokens, topK)


def moe_unpermute_fwd(
    input: torch.Tensor,
    dtype: Any,
    row_id_map: torch.Tensor,
    prob: torch.Tensor,
    num_tokens: int,
    topK: int,
) -> torch.Tensor:
    """The weighted sum [t, h] of each token's copies [m, h], in float32 and rounded once."""
    total: torch.Tensor | None = None
    for choice, rows in enumerate(row_id_map.view(topK, num_tokens)):
        values = input.index_select(0, rows.clamp(min=0)).float()
        values = values.masked_fill_((rows < 0).unsqueeze(-1), 0.0)
        if prob.numel():
            values *= prob[:, choice].float().unsqueeze(-1)
        total = values if total is None else total.add_(values)
    assert total is not None, "a map with no choices"
    return total.to(input.dtype)


def moe_unpermute_bwd(
    input_bwd: torch.Tensor,
    input_fwd: torch.Tensor,
    dtype: Any,
    row_id_map: torch.Tensor,
    prob: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the copies [m, h] and of the weights, float32 [t, k]."""
    tokens, choices = prob.shape if prob.numel() else (row_id_map.numel(), 1)
    gradient, of_copies = input_bwd.float(), torch.zeros_like(input_fwd)
    of_weights = []
    for choice, rows in enumerate(row_id_map.view(choices, tokens)):
        dropped, places = rows < 0, rows.clamp(min=0)
        values = input_fwd.index_select(0, places).float()
        of_weights.append((gradient * values).sum(-1).masked_fill(dropped, 0.0))
        share = gradient * prob[:, choice].float().unsqueeze(-1) if prob.numel() else gradient
        # A row belongs to one token, but for those that were dropped, which add nothing.
        share = share.masked_fill(dropped.unsqueeze(-1), 0.0).to(of_copies.dtype)
        of_copies.index_add_(0, places, share)
    return of_copies, torch.stack(of_weights, -1)


def _parts(
    tensor: torch.Tensor, kept: Sequence[int], groups: Sequence[int]
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """(the first rows of each group, its other rows)."""
    sizes = [size for one, all in zip(kept, groups, strict=True) for size in (one, all - one)]
    parts = tensor.split(sizes)
    return parts[0::2], parts[1::2]


@functools.lru_cache(maxsize=4)  # hidden states, weights and both gradients ask alike
def _places(
    kept: tuple[int, ...], padded: tuple[int, ...], device: torch.device, stream: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(the padded place of each row [t], the row at each padded place [p], the places without).

    :param stream: the current one, which alone has them in order.
    """
    gaps = [all - one for one, all in zip(kept, padded, strict=True)]
    sizes = torch.tensor([kept, padded, gaps], device="cpu")
    rows, places, spare = sizes.cumsum(1) - sizes
    # Each group's rows, and its gap, move by as much.
    moves = torch.stack([places - rows, places + sizes[0] - spare])
    sizes, moves = (one.to(device, non_blocking=True) for one in (sizes, moves))

    def moved(move: torch.Tensor, size: torch.Tensor, count: int) -> torch.Tensor:
        shift = torch.repeat_interleave(move, size, output_size=count)
        return torch.arange(count, device=device) + shift

    place = moved(moves[0], sizes[0], sum(kept))
    row = torch.zeros(sum(padded), dtype=torch.int64, device=device)
    row[place] = torch.arange(len(place), device=device)
    return place, row, moved(moves[1], sizes[2], sum(gaps))


def _in_one_gather(tensor: torch.Tensor) -> bool:
    """Whether rows are moved by their places: a graph that is captured has none on the host."""
    return not isinstance(tensor, FakeTensor) and bool(tensor.numel()) and not is_capturing(tensor)


@torch.no_grad()
def fused_multi_row_padding(
    input: torch.Tensor,
    output: torch.Tensor,
    input_row_list: Sequence[int],
    padded_input_row_list: Sequence[int],
) -> None:
    """Copy groups of rows [t, h] into longer ones, in place.

    :param input_row_list: rows of each group of ``input``.
    :param padded_input_row_list: of ``output``; the rest of each becomes zeros.
    """
    if _in_one_gather(input):
        groups = tuple(input_row_list), tuple(padded_input_row_list)
        _, row, spare = _places(*groups, input.device, torch.cuda.current_stream())
        torch.index_select(input, 0, row, out=output)
        output.index_fill_(0, spare, 0)
        return
    targets, gaps = _parts(output, input_row_list, padded_input_row_list)
    # A launch for all groups: many small copies are slow to launch.
    torch._foreach_copy_(targets, input.split(list(input_row_list)))
    torch._foreach_zero_(gaps)


@torch.no_grad()
def fused_multi_row_unpadding(
    input: torch.Tensor,
    output: torch.Tensor,
    input_row_list: Sequence[int],
    unpadded_input_row_list: Sequence[int],
) -> None:
    """The opposite of :func:`fused_multi_row_padding`."""
    if _in_one_gather(output):
        groups = tuple(unpadded_input_row_list), tuple(input_row_list)
        place, _, _ = _places(*groups, input.device, torch.cuda.current_stream())
        torch.index_select(input, 0, place, out=output)
        return
    rows, _ = _parts(input, unpadded_input_row_list, input_row_list)
    torch.cat(rows, out=output)


def multi_tensor_pad_last_dim(inputs: Sequence[torch.Tensor], alignment: int) -> list[torch.Tensor]:
    """Each [m, k] with zeros after its last dimension, up to a multiple of ``alignment``."""
    return [functional.pad(one, (0, -one.shape[-1] % alignment)) for one in inputs]

"""Mixture of experts: grouped GEMMs, tokens sorted by expert and back, with gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu
from cases import Case, leaf, rand, with_gradients

LENGTHS = (3, 0, 5, 2)


def grouped_rows(list_type: int, dtype: torch.dtype, separate: bool = False) -> Case:
    """Rows of x, each group times a matrix, and with a bias, of its own; all in one, or apart."""

    def case(device: str) -> Any:
        x = rand(device, sum(LENGTHS), 6, dtype=dtype)
        weights = rand(device, len(LENGTHS), 6, 4, dtype=dtype)
        biases = rand(device, len(LENGTHS), 4, dtype=dtype)
        if device == "npu":
            counts = torch.tensor(LENGTHS, device=device)
            groups = counts.cumsum(0) if list_type == 0 else counts
            return torch_npu.npu_grouped_matmul(
                [x],
                list(weights) if separate else [weights],
                bias=list(biases) if separate else [biases],
                group_list=groups,
                group_type=0,
                group_list_type=list_type,
                split_item=3,
            )
        parts = zip(x.float().split(LENGTHS), weights.float(), biases.float(), strict=True)
        return torch.cat([p @ w + b for p, w, b in parts]).to(dtype)

    return case


def grouped_sum(device: str) -> Any:
    """The summed dimension is what is grouped: the gradient of the weights."""
    x, gradient = rand(device, 6, sum(LENGTHS)), rand(device, sum(LENGTHS), 4)
    if device == "npu":
        return torch_npu.npu_grouped_matmul(
            [x],
            [gradient],
            group_list=torch.tensor(LENGTHS, device=device).cumsum(0),
            group_type=2,
            group_list_type=0,
            split_item=3,
        )
    parts = zip(x.split(LENGTHS, 1), gradient.split(LENGTHS), strict=True)
    return torch.stack([a @ b for a, b in parts])


def many(bias: bool, joined: bool = False) -> Case:
    """Several x, a matrix each, and a bias; results apart, or one below the other."""

    def case(device: str) -> Any:
        xs, ws = [rand(device, n, 6) for n in (3, 5)], [rand(device, 6, 4) for _ in range(2)]
        bs = [rand(device, 4) for _ in range(2)]
        if device == "npu":
            return torch_npu.npu_grouped_matmul(
                *(xs, ws),
                bias=bs if bias else None,
                group_type=0 if joined else -1,
                split_item=2 if joined else 0,
            )
        gemms = [x @ w for x, w in zip(xs, ws, strict=True)]
        results = [y + b for y, b in zip(gemms, bs, strict=True)] if bias else gemms
        return [torch.cat(results)] if joined else results

    return case


def sorted_by_expert(experts: torch.Tensor) -> torch.Tensor:
    """For each (token, choice), the row of its copy."""
    order = experts.reshape(-1).sort(stable=True).indices
    rows = torch.empty_like(order)
    rows[order] = torch.arange(order.numel())
    return rows


def permute(dtype: torch.dtype, kept: int | None = None) -> Case:
    def case(device: str) -> Any:
        tokens = leaf(device, 5, 4, dtype=dtype)
        experts = torch.randint(0, 4, (5, 2))
        if device == "npu":
            copies, rows = torch_npu.npu_moe_token_permute(tokens, experts.to(device), kept)
            return *with_gradients(copies, (tokens,)), rows
        rows = sorted_by_expert(experts)
        copies = tokens.repeat_interleave(2, 0)[rows.argsort()]
        copies = copies[: kept or 10]
        return *with_gradients(copies, (tokens,)), rows.int()

    return case


def unpermute(weighted: bool) -> Case:
    def case(device: str) -> Any:
        copies, weights = leaf(device, 10, 4), leaf(device, 5, 2)
        rows = sorted_by_expert(torch.randint(0, 4, (5, 2)))
        choices = 2 if weighted else 1  # without weights, torch_npu takes one choice of a token
        inputs = (copies, weights) if weighted else (copies,)
        if device == "npu":
            y = torch_npu.npu_moe_token_unpermute(
                copies, rows.int().to(device), weights if weighted else None
            )
        else:
            y = copies[rows].view(-1, choices, 4)
            y = (y * weights.unsqueeze(-1) if weighted else y).sum(1)
        return with_gradients(y, inputs)

    return case


def routing_map(device: str) -> Any:
    """By a map of tokens to experts, as Megatron's router gives it."""
    tokens, weights = leaf(device, 6, 4), leaf(device, 6, 4)
    chosen = torch.zeros(6, 4, dtype=torch.bool)
    chosen.scatter_(1, torch.rand(6, 4).topk(2).indices, True)
    if device == "npu":
        y, p, _ = torch_npu.npu_moe_token_permute_with_routing_map(
            tokens, chosen.to(device), probs=weights, num_out_tokens=12
        )
    else:
        expert, token = chosen.t().nonzero(as_tuple=True)
        y, p = tokens[token], weights[token, expert]
    return with_gradients((y, p), (tokens, weights))


CASES: dict[str, Case] = {
    "experts-rows-ends": grouped_rows(0, torch.float32),
    "experts-rows-counts": grouped_rows(1, torch.float32),
    "experts-rows-bfloat16": grouped_rows(0, torch.bfloat16),
    "experts-rows-separate": grouped_rows(0, torch.float32, separate=True),
    "experts-sum": grouped_sum,
    "experts-many": many(False),
    "experts-many-bias": many(True),
    "experts-many-joined": many(True, joined=True),
    "experts-permute": permute(torch.float32),
    "experts-permute-bfloat16": permute(torch.bfloat16),
    "experts-permute-dropped": permute(torch.float32, 8),
    "experts-unpermute": unpermute(False),
    "experts-unpermute-weighted": unpermute(True),
    "experts-routing_map": routing_map,
}

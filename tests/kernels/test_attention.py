"""The attention reference and the CPU kernel: layouts, errors, and a loop as the yardstick."""

from __future__ import annotations

import math

import pytest
import torch

from accel_bridge.backends.cpu.kernels import KERNELS
from accel_bridge.kernels import (
    ATTENTION,
    AttentionMask,
    AttentionOptions,
)
from accel_bridge.kernels.attention import attention_reference

from .support import random


def loop(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    hidden: torch.Tensor | None,
    offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of BNSD tensors, one row after the other."""
    b, n, sq, d = query.shape
    output = torch.zeros(b, n, sq, value.shape[-1], dtype=query.dtype)
    for i in range(b):
        for head in range(n):
            group = head // (n // key.shape[1])
            for row in range(sq):
                scores = key[i, group] @ query[i, head, row] / math.sqrt(d)
                weights = scores.exp()
                if hidden is not None:
                    weights[hidden.expand(b, n, sq, -1)[i, head, row]] = 0.0
                total = weights.sum() + (offset[head].exp() if offset is not None else 0.0)
                if weights.any():
                    output[i, head, row] = weights @ value[i, group] / total
    return output


@pytest.mark.parametrize("offset", [None, torch.tensor([0.0, 0.5, -1.0, 2.0]).double()])
def test_reference_is_the_loop(offset: torch.Tensor | None) -> None:
    query, key, value = random(2, 4, 5, 8), random(2, 2, 7, 8, seed=1), random(2, 2, 7, 6, seed=2)
    masked = random(2, 4, 5, 7, seed=3) > 0.5
    masked[0, 0, 0] = True
    mask = AttentionMask(causal=True, window=(4, None), masked=masked)
    output = attention_reference(
        query, key, value, AttentionOptions(layout="BNSD", mask=mask, softmax_offset=offset)
    )
    expected = loop(query, key, value, mask.hidden(5, 7, "cpu"), offset)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("offset", [False, True])
def test_reference_gradients_are_the_numerical_ones(offset: bool) -> None:
    tensors = [random(1, 2, 3, 4), random(1, 1, 3, 4, seed=1), random(1, 1, 3, 4, seed=2)]
    masked = torch.zeros(1, 1, 3, 3, dtype=torch.bool)
    masked[0, 0, 1] = True  # a row that sees nothing
    if offset:
        tensors.append(random(2, seed=3))

    def call(*leaves: torch.Tensor) -> torch.Tensor:
        sink = leaves[3] if offset else None
        mask = AttentionMask(causal=True, masked=masked)
        options = AttentionOptions(layout="BNSD", mask=mask, softmax_offset=sink)
        output = attention_reference(leaves[0], leaves[1], leaves[2], options)
        assert isinstance(output, torch.Tensor)
        return output

    assert torch.autograd.gradcheck(call, [tensor.requires_grad_() for tensor in tensors])


def test_log_sum_exp_leaves_the_sink_out_and_is_minus_infinity_where_nothing_is_seen() -> None:
    query, key = random(1, 1, 2, 4), random(1, 1, 3, 4, seed=1)
    masked = torch.tensor([[False, False, True], [True, True, True]])
    options = AttentionOptions(
        layout="BNSD",
        mask=AttentionMask(masked=masked),
        softmax_offset=torch.ones(1),
        return_lse=True,
    )
    _, lse = attention_reference(query, key, key, options)
    scores = (query[0, 0, 0] @ key[0, 0].T) / 2
    torch.testing.assert_close(lse[0, 0, 0], scores[:2].logsumexp(0))
    assert lse[0, 0, 1] == -math.inf


@pytest.mark.parametrize("function", [attention_reference, KERNELS[ATTENTION].function])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "SBH"}, "needs heads"),
        ({"layout": "SBH", "heads": 5}, "needs heads"),
        ({"layout": "TND"}, "needs cu_seqlens_q"),
        ({"layout": "TND", "cu_seqlens_q": torch.tensor([0, 3])}, "rise from 0 to 4"),
        ({"layout": "TND", "cu_seqlens_q": torch.tensor([1, 4])}, "rise from 0 to 4"),
        ({"layout": "TND", "cu_seqlens_q": torch.tensor([0, 3, 2, 4])}, "rise from 0 to 4"),
        (
            {
                "layout": "TND",
                "cu_seqlens_q": torch.tensor([0, 2, 4]),
                "cu_seqlens_kv": torch.tensor([0, 4]),
            },
            "2 sequences of queries, 1 of keys",
        ),
        (
            {
                "layout": "TND",
                "cu_seqlens_q": torch.tensor([0, 4]),
                "mask": AttentionMask(masked=torch.zeros(1, 1, 4, 4, dtype=torch.bool)),
            },
            "no explicit mask",
        ),
    ],
)
def test_calls_that_do_not_fit_together_are_refused(
    function: object, options: dict[str, object], message: str
) -> None:
    tensor = random(4, 2, 8)
    with pytest.raises(ValueError, match=message):
        function(tensor, tensor, tensor, AttentionOptions(**options))  # type: ignore[operator, arg-type]


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="3 query heads are not a multiple of 2"):
        attention_reference(
            random(1, 3, 4, 8),
            random(1, 2, 4, 8),
            random(1, 2, 4, 8),
            AttentionOptions(layout="BNSD"),
        )


def test_cpu_kernel_keeps_few_masks() -> None:
    from accel_bridge.backends._sdpa import _visible_band

    tensor = random(1, 1, 30, 8)
    for left in range(20):
        mask = AttentionMask(causal=True, window=(left, 0))
        KERNELS[ATTENTION](tensor, tensor, tensor, AttentionOptions(layout="BNSD", mask=mask))
    info = _visible_band.cache_info()
    assert info.currsize <= (info.maxsize or 0) <= 8

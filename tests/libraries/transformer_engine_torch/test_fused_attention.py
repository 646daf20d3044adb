"""Fused attention of the extension, both ways, and what context parallelism needs of it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from accel_bridge.kernels import ATTENTION, AttentionMask, AttentionOptions
from accel_bridge.libraries.transformer_engine_torch.attention import full_cu_seqlens

BATCH, HEADS, GROUPS, SIZE = 2, 4, 2, 16
#: Lengths of sequences, without and with padding between them.
LENGTHS = torch.tensor([0, 5, 11], dtype=torch.int32)
PADDED = torch.tensor([0, 8, 16], dtype=torch.int32)


def _case(layout: str, kind: str, window: tuple[int, int] = (-1, -1), **more: Any) -> Any:
    return pytest.param(layout, kind, window, more, id="-".join((layout, kind, *more)))


CASES = [
    _case("sbhd_sbhd_sbhd", "causal"),
    _case("bshd_bshd_bshd", "no_mask"),
    _case("bshd_bshd_bshd", "causal_bottom_right", (3, 0)),
    _case("sbhd_sbhd_sbhd", "padding_causal"),
    _case("thd_thd_thd", "padding_causal"),
    _case("thd_thd_thd", "padding", padded=True),
    _case("sbhd_sbhd_sbhd", "causal", softmax_type="learnable"),
    _case("bshd_bshd_bshd", "causal", attn_bias_type="post_scale_bias"),
    _case("bshd_bshd_bshd", "padding", attn_bias_type="post_scale_bias"),
    _case("sbhd_sbhd_sbhd", "causal", dropout=0.3),
]


def _randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda")


def _tensors(form: str, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(3)
    shape = {"sbhd": (8, BATCH), "bshd": (BATCH, 8), "thd": (16,)}[form]
    heads = (HEADS, GROUPS, GROUPS)
    return [_randn(*shape, count, SIZE, dtype=dtype) for count in heads]


def _arguments(layout: str, kind: str, window: tuple[int, int], more: dict[str, Any]) -> Any:
    """Positional tensors, and the named arguments of the forward and of the backward pass."""
    form = layout.partition("_")[0]
    named = {"attn_mask_type": kind, "window_size": window, "qkv_layout": layout} | more
    named["o_format"] = form
    forward, backward = dict(named), named | {"do_format": form, "dqkv_layout": layout}
    lengths = LENGTHS if "padding" in kind else torch.tensor([0, 8, 16], dtype=torch.int32)
    if form == "thd":
        for one in (forward, backward):
            between = PADDED if one.pop("padded", False) else LENGTHS
            one |= {"cu_seqlens_q_padded": between, "cu_seqlens_kv_padded": between}
    if "softmax_type" in more:
        forward["softmax_offset"] = _randn(1, HEADS, 1, 1)
    if "attn_bias_type" in more:
        forward["attn_bias"] = _randn(1, HEADS, 8, 8, dtype=torch.bfloat16)
    return lengths, forward, backward


@pytest.mark.parametrize(("layout", "kind", "window", "more"), CASES)
def test_both_ways_back_agree(
    te: ModuleType, layout: str, kind: str, window: tuple[int, int], more: dict[str, Any]
) -> None:
    """Through the graph that was kept, and through the scores from the log-sum-exp."""
    from transformer_engine.pytorch.cpp_extensions import fused_attn as own

    backend = own.FusedAttnBackend["F16_arbitrary_seqlen"]
    query, key, value = _tensors(layout.partition("_")[0], torch.bfloat16)
    lengths, forward, backward = _arguments(layout, kind, window, dict(more))
    start = (True, 8, 8, lengths, lengths, query, key, value, torch.bfloat16, backend)
    output, kept = own.fused_attn_fwd(*start, **forward)
    gradient = torch.randn_like(output)

    def back(saved: list[torch.Tensor]) -> list[torch.Tensor]:
        found = own.fused_attn_bwd(
            *(8, 8, lengths, lengths, query, key, value, output, gradient, torch.bfloat16),
            *(saved, backend),
            **backward,
        )
        return [one for one in found if one is not None]

    through_scores = back([kept[0].clone(), *kept[1:]])
    through_graph = back(list(kept))
    assert len(through_graph) == 3 + ("softmax_type" in more) + ("attn_bias_type" in more)
    for one, other in zip(through_graph, through_scores, strict=True):
        torch.testing.assert_close(one.float(), other.float(), atol=0.06, rtol=0.03)
    wrong = back([kept[0] + 0.5, *kept[1:]])
    assert (wrong[2] - through_graph[2]).abs().max() > 0.06, "a wrong log-sum-exp must be seen"


def test_log_sum_exp(te: ModuleType) -> None:
    from transformer_engine.pytorch.cpp_extensions import fused_attn as own

    query, key, value = _tensors("sbhd", torch.bfloat16)
    lengths = torch.tensor([0, 8, 16], dtype=torch.int32)
    backend = own.FusedAttnBackend["F16_arbitrary_seqlen"]
    _, kept, largest = own.fused_attn_fwd(
        *(True, 8, 8, lengths, lengths, query, key, value, torch.bfloat16, backend),
        qkv_layout="sbhd_sbhd_sbhd",
        attn_mask_type="causal",
        return_max_logit=True,
    )
    options = AttentionOptions(layout="SBHD", mask=AttentionMask(causal=True), return_lse=True)
    wide = [one.double() for one in (query, key, value)]
    expected = ATTENTION.reference(wide[0], wide[1], wide[2], options)[1]
    torch.testing.assert_close(kept[0].squeeze(-1).double(), expected, atol=1e-4, rtol=1e-4)
    scores = torch.einsum("qbhd,kbhd->bhqk", wide[0], wide[1].repeat_interleave(2, 2)) / 4
    hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(hidden, -torch.inf)
    torch.testing.assert_close(largest.double(), scores.amax((0, 2, 3)), atol=0.05, rtol=0.01)


def test_ring_of_parts(te: ModuleType, tex: ModuleType) -> None:
    """Halves of every sequence, corrected as ring attention does, are the whole."""
    lengths = torch.tensor([0, 4, 16], dtype=torch.int32)
    tokens = _randn(16, 3, 8)
    halves = [tex.thd_read_half_tensor(tokens, lengths, half) for half in (0, 1)]
    assert torch.equal(halves[0], tokens[[0, 1, 4, 5, 6, 7, 8, 9]])
    assert torch.equal(halves[1], tokens[[2, 3, 10, 11, 12, 13, 14, 15]])
    grad = torch.zeros_like(tokens)
    tex.thd_grad_correction(grad, halves[0], lengths, "copy", "none")
    tex.thd_grad_correction(grad, halves[1], lengths, "none", "add")
    assert torch.equal(grad, tokens)
    lse = _randn(3, 16)
    second = tex.thd_read_second_half_lse(lse, lengths, True, 8)
    assert torch.equal(second, lse[:, [2, 3, 10, 11, 12, 13, 14, 15]])
    before = lse.clone()
    tex.thd_second_half_lse_correction(lse, second, lengths, True)
    expected = before.clone()
    expected[:, [2, 3, 10, 11, 12, 13, 14, 15]] += torch.tensor(2.0).log()
    torch.testing.assert_close(lse, expected)
    out = torch.zeros_like(tokens)
    tex.thd_out_correction(out, halves[1], lse, second, lengths, True, True)
    assert not out[[0, 1, 4, 9]].any()
    torch.testing.assert_close(out[[2, 15]], tokens[[2, 15]] / 2)


def test_order_of_ranks(te: ModuleType, tex: ModuleType) -> None:
    lengths = torch.tensor([0, 4, 12], dtype=torch.int32)
    first = tex.thd_get_partitioned_indices(lengths, 12, 2, 0)
    second = tex.thd_get_partitioned_indices(lengths, 12, 2, 1)
    assert first.tolist() == [0, 3, 4, 5, 10, 11]
    assert second.tolist() == [1, 2, 6, 7, 8, 9]
    tokens = torch.arange(12.0)[:, None]
    moved = tex.thd_sequence_order_to_cp_rank_order(tokens, lengths, 2, 12)
    assert moved.flatten().tolist() == [*first.tolist(), *second.tolist()]
    assert torch.equal(tex.thd_cp_rank_order_to_sequence_order(moved, lengths, 2, 12), tokens)


def test_rows_and_packed(te: ModuleType, tex: ModuleType) -> None:
    packed = _randn(12, 2, 4)
    rows = tex.convert_thd_to_bshd(packed, LENGTHS, 2, 8)
    assert torch.equal(rows[0, :5], packed[:5])
    assert not rows[0, 5:].any()
    back = tex.convert_bshd_to_thd(rows, LENGTHS, 12)
    assert torch.equal(back[:11], packed[:11])
    assert not back[11].any()


def test_nothing_waits_for_fake_tensors(te: ModuleType) -> None:
    layer = te.DotProductAttention(HEADS, SIZE, GROUPS, qkv_format="thd")
    with FakeTensorMode():
        query, key, value = (
            torch.empty(16, n, SIZE, device="cuda") for n in (HEADS, GROUPS, GROUPS)
        )
        query.requires_grad_()
        lengths = torch.empty(3, dtype=torch.int32, device="cuda")
        output = layer(
            *(query, key, value),
            cu_seqlens_q=lengths,
            cu_seqlens_kv=lengths,
            max_seqlen_q=8,
            max_seqlen_kv=8,
            attn_mask_type="padding_causal",
        )
        output.sum().backward()
        assert query.grad is not None
        assert output.shape == (16, HEADS * SIZE)


def test_lengths_made_for_inference_serve_training() -> None:
    """Autograd saves no tensor of the inference mode, and nothing is remembered of one."""
    with torch.inference_mode():
        found = full_cu_seqlens(3, 7, torch.device("cpu"))
    assert not found.is_inference()
    assert found.tolist() == [0, 7, 14, 21]

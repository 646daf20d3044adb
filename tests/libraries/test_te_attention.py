"""Transformer Engine's attention, rotary embedding and caches, against plain formulas."""

from __future__ import annotations

import os
import subprocess
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

HEADS, GROUPS, SIZE, VALUE = 4, 2, 8, 6


pytestmark = pytest.mark.usefixtures("on_device")


def plain(
    tensors: list[torch.Tensor],
    hidden: torch.Tensor,
    bias: torch.Tensor | float = 0.0,
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [b, sq, n * dv] of [b, s, heads, d]; largest logit [n]; hidden [b or 1, 1, sq, sk]."""
    q, k, v = tensors
    repeat = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(repeat, 2), v.repeat_interleave(repeat, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * SIZE**-0.5 + bias
    scores = scores.masked_fill(hidden, -torch.inf)
    largest = scores.amax((0, 2, 3))
    total = scores.exp().sum(-1, keepdim=True)
    if sink is not None:
        total = total + sink.exp().view(1, -1, 1, 1)
    weights = (scores.exp() / total).nan_to_num(0.0)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2), largest


def draw(sq: int, sk: int, batch: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(0)
    sizes = ((sq, HEADS, SIZE), (sk, GROUPS, SIZE), (sk, GROUPS, VALUE))
    return [torch.randn(batch, *size, dtype=torch.float32, requires_grad=True) for size in sizes]


def make(te: Any, **options: Any) -> Any:
    return te.DotProductAttention(HEADS, (SIZE, VALUE), num_gqa_groups=GROUPS, **options)


def band(sq: int, sk: int, left: int | None, right: int | None, shift: int) -> torch.Tensor:
    distance = torch.arange(sk)[None] - torch.arange(sq)[:, None] - shift
    hidden = torch.zeros(sq, sk, dtype=torch.bool)
    if left is not None:
        hidden |= distance < -left
    if right is not None:
        hidden |= distance > right
    return hidden[None, None]


MASKS = {
    "no_mask": ({}, (None, None, 4)),
    "causal": ({}, (None, 0, 0)),
    "causal_bottom_right": ({}, (None, 0, 4)),
    "causal, window": ({"window_size": (3, 0)}, (3, 0, 0)),
    "no_mask, window": ({"window_size": (2, 1)}, (2, 1, 4)),
    "no_mask, window from the top left": (
        {"window_size": (2, 1), "bottom_right_diagonal": False},
        (2, 1, 0),
    ),
}


@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
@pytest.mark.parametrize("name", MASKS)
def test_masks_by_position(te: Any, name: str, layout: str) -> None:
    options, (left, right, shift) = MASKS[name]
    tensors = draw(5, 9)
    module = make(te, qkv_format=layout, attn_mask_type=name.partition(",")[0], **options)
    given = [one.transpose(0, 1) if layout == "sbhd" else one for one in tensors]
    output = module(*given)
    output = output.transpose(0, 1) if layout == "sbhd" else output
    expected, _ = plain(tensors, band(5, 9, left, right, shift))
    torch.testing.assert_close(output, expected)
    wrong, _ = plain(tensors, band(5, 9, left, 1 if right is None else right + 1, shift))
    assert not torch.allclose(output, wrong)


@pytest.mark.parametrize("kind", ["padding", "padding_causal", "padding_causal_bottom_right"])
def test_padding_gives_zeros_and_is_not_seen(te: Any, kind: str) -> None:
    tensors = draw(6, 6)
    lengths_q, lengths_k = torch.tensor([4, 6]), torch.tensor([5, 3])
    rows = torch.arange(6) >= lengths_q[:, None]
    columns = torch.arange(6) >= lengths_k[:, None]
    hidden = rows[:, None, :, None] | columns[:, None, None, :]
    if "causal" in kind:
        shifts = (lengths_k - lengths_q) * ("bottom_right" in kind)
        hidden = hidden | torch.stack([band(6, 6, None, 0, int(one))[0] for one in shifts])
    module = make(te, qkv_format="bshd", attn_mask_type=kind)
    ends = [torch.cat((torch.zeros(1), one.cumsum(0))).int() for one in (lengths_q, lengths_k)]
    output = module(*tensors, cu_seqlens_q=ends[0], cu_seqlens_kv=ends[1])
    torch.testing.assert_close(output, plain(tensors, hidden)[0])
    grad = torch.autograd.grad(output.sum(), tensors[2])[0]
    assert float(grad[0, 5:].abs().max()) == 0.0
    assert not torch.allclose(output, plain(tensors, hidden & ~columns[:, None, None])[0])


@pytest.mark.parametrize("kind", ["post_scale_bias", "pre_scale_bias", "alibi"])
def test_biases(te: Any, kind: str) -> None:
    tensors = draw(5, 5)
    module = make(te, qkv_format="bshd")
    bias = None
    if kind == "alibi":
        slopes = 2.0 ** (-8 / HEADS * torch.arange(1, HEADS + 1)).float()
        distance = (torch.arange(5)[:, None] - torch.arange(5)).abs()
        added = -slopes[:, None, None] * distance
    else:
        bias = torch.randn(1, HEADS, 5, 5, dtype=torch.float32, requires_grad=True)
        added = bias if kind == "post_scale_bias" else bias * SIZE**-0.5
    output = module(*tensors, core_attention_bias_type=kind, core_attention_bias=bias)
    hidden = band(5, 5, None, 0, 0)
    expected = plain(tensors, hidden, added)[0]
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(output, plain(tensors, hidden, added / 2)[0], atol=1e-4)
    if bias is not None:
        found, wanted = (torch.autograd.grad(one.sum(), bias)[0] for one in (output, expected))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("kind", ["vanilla", "off-by-one", "learnable"])
@pytest.mark.parametrize("again", [False, True])
def test_sinks_largest_logits_and_recomputation(te: Any, kind: str, again: bool) -> None:
    tensors = draw(5, 5)
    # Recomputed in float32, Transformer Engine's own attention writes over the largest logits.
    module = make(te, qkv_format="bshd", softmax_type=kind, return_max_logit=not again)
    sink = None
    if kind != "vanilla":
        if kind == "learnable":
            torch.nn.init.normal_(module.softmax_offset)
        sink = module.softmax_offset.float()
    found = module(*tensors, checkpoint_core_attention=again)
    output, largest = (found, None) if again else found
    hidden = band(5, 5, None, 0, 0)
    expected = plain(tensors, hidden, sink=sink)
    torch.testing.assert_close(output, expected[0])
    if largest is not None:
        torch.testing.assert_close(largest, expected[1])
    wrong = plain(tensors, hidden, sink=torch.ones(HEADS) if sink is None else sink + 1)
    assert not torch.allclose(output, wrong[0])
    learned = [*tensors, module.softmax_offset] if kind == "learnable" else tensors
    for leaf in learned:
        leaf.grad = None
    output.sum().backward()
    found = [leaf.grad for leaf in learned]
    wanted = torch.autograd.grad(expected[0].sum(), learned)
    torch.testing.assert_close(found, wanted)


def test_dropout_is_for_training_only(te: Any) -> None:
    tensors = draw(32, 32)
    module = make(te, qkv_format="bshd", attention_dropout=0.5)
    exact = plain(tensors, band(32, 32, None, 0, 0))[0]
    assert not torch.allclose(module(*tensors), exact)
    torch.testing.assert_close(module.eval()(*tensors), exact)


@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
def test_fused_rotation_of_queries_keys_and_values(te: Any, layout: str) -> None:
    from transformer_engine.pytorch.attention.rope import (
        apply_fused_qkv_rotary_pos_emb,
        apply_rotary_pos_emb,
    )

    torch.manual_seed(1)
    angles = te.RotaryPositionEmbedding(SIZE)(8)
    shape = (5, 2) if layout == "sbhd" else (2, 5)
    mixed = torch.randn(*shape, GROUPS, 4 * SIZE, requires_grad=True)
    found = apply_fused_qkv_rotary_pos_emb(
        mixed, angles, angles, [2 * SIZE, SIZE, SIZE], tensor_format=layout
    )
    q, k, v = mixed.split([2 * SIZE, SIZE, SIZE], -1)
    q = q.reshape(*shape, -1, SIZE)
    expected = [apply_rotary_pos_emb(one, angles, layout, fused=True) for one in (q, k)]
    torch.testing.assert_close(found, (*expected, v))
    assert not torch.allclose(found[0], q)
    grads = [
        torch.autograd.grad(sum(one.square().sum() for one in outputs), mixed, retain_graph=True)[0]
        for outputs in (found, (*expected, v))
    ]
    torch.testing.assert_close(*grads)


@pytest.mark.filterwarnings("ignore:torch.range")
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("layout", ["bshd", "thd"])
def test_a_cache_gives_what_the_whole_sequence_gives(te: Any, layout: str, paged: bool) -> None:
    tensors = [one.detach() for one in draw(6, 6)]
    module = make(te, qkv_format=layout, attn_mask_type="padding_causal", layer_number=1).eval()
    cache = te.InferenceParams(
        2,
        8,
        GROUPS,
        SIZE,
        torch.float32,
        head_dim_v=VALUE,
        is_paged=paged,
        page_size=4 if paged else None,
        total_num_pages=4 if paged else None,
        max_ctx_len=8,
        qkv_format=layout,
    )
    cache.allocate_memory(1)
    whole = plain(tensors, band(6, 6, None, 0, 0))[0]
    steps = [(4, slice(0, 4)), (1, slice(4, 5)), (1, slice(5, 6))]
    for count, rows in steps:
        cache.pre_step(OrderedDict({7: count, 9: count}))
        new = [one[:, rows] for one in tensors]
        lengths = {"cu_seqlens_q": cache.cu_seqlens_q, "cu_seqlens_kv": cache.cu_seqlens_kv}
        if layout == "thd":
            new = [one.flatten(0, 1) for one in new]
        output = module(*new, inference_params=cache, **lengths).reshape(2, count, -1)
        torch.testing.assert_close(output, whole[:, rows])
    assert not torch.allclose(output, whole[:, :1])


def test_context_parallel_ranks_compute_what_one_computes(warm: str) -> None:
    """And chunks in the wrong order are seen."""
    done = subprocess.run(
        [
            *(warm, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(Path(__file__).with_name("attention_worker.py"))),
        ],
        env={**os.environ, "ACCEL_BRIDGE_LIBRARIES": "transformer_engine"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.rpartition(": ") for line in done.stdout.splitlines() if ": " in line]
    found = {name: float(difference) for name, _, difference in lines}
    right = [value for name, value in found.items() if not name.startswith("wrong")]
    assert len(right) == 32
    assert max(right) < 1e-9
    # Without a mask of positions the order of keys does not matter.
    any_order = ("wrong no_mask None", "wrong packed padding None gap 0")
    wrong = [
        value
        for name, value in found.items()
        if name.startswith("wrong") and not name.startswith(any_order)
    ]
    assert len(wrong) == 26
    assert min(wrong) > 1e-3

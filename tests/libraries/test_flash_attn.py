"""The shim of flash-attn, against plain formulas; each check has an error that it catches."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from ops_support import late

from accel_bridge.kernels import ATTENTION

SHIMS = ("flash_attn",)
_flash_attn_varlen_forward = late("flash_attn.flash_attn_interface:_flash_attn_varlen_forward")
_flash_attn_varlen_backward = late("flash_attn.flash_attn_interface:_flash_attn_varlen_backward")
apply_rotary_emb = late("flash_attn.layers.rotary:apply_rotary_emb")


@pytest.fixture(autouse=True)
def flash_attn(shims: Any) -> Any:
    return shims


def tensors(*lengths: int, heads: int = 4, groups: int = 2) -> tuple[torch.Tensor, ...]:
    """q [b, sq, n, d], k and v [b, sk, g, d] in float64 for ``(b, sq, sk)``."""
    torch.manual_seed(1)
    batch, sq, sk = lengths
    sizes = ((sq, heads), (sk, groups), (sk, groups))
    return tuple(torch.randn(batch, s, n, 8, dtype=torch.float64) for s, n in sizes)


def plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, shift: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp [b, n, sq]; the last query stands ``shift`` behind the last key."""
    repeat = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(repeat, 2), v.repeat_interleave(repeat, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        sq, sk = scores.shape[-2:]
        scores = scores.masked_fill(
            torch.ones(sq, sk, dtype=torch.bool).triu(sk - sq + 1 + shift), -torch.inf
        )
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1)


@pytest.mark.parametrize("causal", [False, True])
def test_causal_masks_end_at_the_bottom_right(flash_attn: Any, causal: bool) -> None:
    q, k, v = tensors(2, 5, 9)
    output, lse, weights = flash_attn.flash_attn_func(
        q, k, v, causal=causal, return_attn_probs=True
    )
    expected = plain(q, k, v, causal)
    torch.testing.assert_close(output, expected[0])
    torch.testing.assert_close(lse, expected[1])
    assert weights is None
    top_left = plain(q, k, v, True, shift=-4)
    assert not torch.allclose(output, top_left[0])


@pytest.mark.parametrize("ends", [[0, 5, 9], [0, 9, 9, 9]])
def test_rows_behind_the_last_document_are_zeros(flash_attn: Any, ends: list[int]) -> None:
    """Inference fills its batches up, and ends its lengths early."""
    q, k, v = (one[0] for one in tensors(1, 12, 12))
    bounds = torch.tensor(ends, dtype=torch.int32)
    output, lse, _ = flash_attn.flash_attn_varlen_func(
        q, k, v, bounds, bounds, 9, 9, causal=True, return_attn_probs=True
    )
    alone = flash_attn.flash_attn_varlen_func(
        q[:9], k[:9], v[:9], bounds, bounds, 9, 9, causal=True
    )
    assert torch.equal(output[:9], alone)
    assert output.shape == q.shape
    assert not output[9:].any()
    assert lse.shape == (4, 12)


def test_packed_tensors_are_taken_apart(flash_attn: Any) -> None:
    q, k, v = tensors(2, 6, 6, heads=2)
    expected = flash_attn.flash_attn_func(q, k, v, causal=True)
    qkv, kv = torch.stack((q, k, v), 2), torch.stack((k, v), 2)
    assert torch.equal(flash_attn.flash_attn_qkvpacked_func(qkv, causal=True), expected)
    assert torch.equal(flash_attn.flash_attn_kvpacked_func(q, kv, causal=True), expected)
    ends = torch.tensor([0, 6, 12], dtype=torch.int32)
    flat = flash_attn.flash_attn_varlen_qkvpacked_func(qkv.flatten(0, 1), ends, 6, causal=True)
    torch.testing.assert_close(flat, expected.flatten(0, 1))


@pytest.mark.parametrize("paged", [False, True])
def test_cached_keys_with_rotation(flash_attn: Any, paged: bool) -> None:
    torch.manual_seed(2)
    q, k, v = tensors(2, 1, 1)
    before = torch.tensor([3, 5], dtype=torch.int32)
    cached = [torch.randn(2, 8, 2, 8, dtype=torch.float64) for _ in range(2)]
    table = None
    caches = [one.clone() for one in cached]
    if paged:
        # Two pages of 4 for each sequence, out of order.
        table = torch.tensor([[2, 0], [3, 1]], dtype=torch.int32)
        caches = [torch.empty(4, 4, 2, 8, dtype=torch.float64) for _ in range(2)]
        for pages, one in zip(caches, cached, strict=True):
            pages[table.long()] = one.unflatten(1, (2, 4))
    angles = torch.outer(torch.arange(16.0), torch.rand(4)).double()
    cos, sin = angles.cos(), angles.sin()
    output = flash_attn.flash_attn_with_kvcache(
        q, *caches, k, v, cos, sin, before, block_table=table, causal=True
    )
    for row, length in enumerate((3, 5)):
        turned = [
            apply_rotary_emb(one[row : row + 1], cos, sin, True, seqlen_offsets=length)
            for one in (q, k)
        ]
        keys = torch.cat((cached[0][row, :length], turned[1][0]))
        values = torch.cat((cached[1][row, :length], v[row]))
        expected, _ = plain(turned[0], keys[None], values[None], True)
        torch.testing.assert_close(output[row], expected[0])
        unrotated = plain(q[row : row + 1], keys[None], values[None], True)[0]
        assert not torch.allclose(output[row], unrotated[0])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("scale_base", [None, 8.0])
def test_rotary_modules_rotate_in_place(interleaved: bool, scale_base: float | None) -> None:
    from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb_torch
    from flash_attn.ops.triton.rotary import apply_rotary

    torch.manual_seed(0)
    qkv = torch.randn(2, 5, 3, 2, 8)
    rotary = RotaryEmbedding(6, interleaved=interleaved, scale_base=scale_base)
    found = rotary(qkv.clone(), seqlen_offset=3)
    angles = torch.outer(torch.arange(8.0), 10000.0 ** -(torch.arange(0, 6, 2) / 6))
    decay = torch.ones_like(angles)
    if scale_base:
        ratios = (torch.arange(0, 6, 2) + 2.4) / 8.4
        decay = ratios ** ((torch.arange(8.0) - 4) / scale_base)[:, None]
    for i, change in enumerate((decay, 1 / decay)):
        cos, sin = angles.cos() * change, angles.sin() * change
        expected = apply_rotary_emb_torch(qkv[:, :, i], cos[3:], sin[3:], interleaved)
        torch.testing.assert_close(found[:, :, i], expected)
        assert not torch.allclose(found[:, :, i], qkv[:, :, i])
        if not scale_base:
            back = apply_rotary(expected, cos, sin, 3, interleaved=interleaved, conjugate=True)
            torch.testing.assert_close(back, qkv[:, :, i])
    assert torch.equal(found[:, :, 2], qkv[:, :, 2])
    assert torch.equal(rotary(qkv.clone(), seqlen_offset=3, num_heads_q=2), found)
    flat = rotary(qkv.flatten(2, 3).clone(), seqlen_offset=3, num_heads_q=2)
    torch.testing.assert_close(flat, found.flatten(2, 3))
    query, kv = rotary(qkv[:, :, 0].clone(), qkv[:, :, 1:].clone(), seqlen_offset=3)
    torch.testing.assert_close(torch.cat((query[:, :, None], kv), 2), found)


def test_padding_is_taken_out_and_put_back() -> None:
    from flash_attn.bert_padding import pad_input, unpad_input

    tokens = torch.randn(3, 4, 2)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]])
    kept, places, ends, longest, used = unpad_input(tokens, mask)
    assert ends.tolist() == [0, 2, 6, 8]
    assert (longest, used.tolist()) == (4, [2, 4, 2])
    back = pad_input(kept, places, 3, 4)
    assert torch.equal(back, tokens * mask[..., None])
    assert not torch.equal(back, tokens)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("square", [0.0, 1e-3])
def test_cross_entropy(smoothing: float, square: float) -> None:
    from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

    torch.manual_seed(3)
    logits = torch.randn(5, 11, requires_grad=True)
    labels = torch.tensor([1, 4, -100, 0, 10])
    losses, squares = cross_entropy_loss(
        logits, labels, label_smoothing=smoothing, logit_scale=0.5, lse_square_scale=square
    )
    scaled = logits * 0.5
    expected = torch.nn.functional.cross_entropy(
        scaled, labels, reduction="none", label_smoothing=smoothing
    )
    added = (square * scaled.logsumexp(-1).square()).masked_fill(labels == -100, 0.0)
    torch.testing.assert_close(losses, expected + added)
    torch.testing.assert_close(squares, added)
    assert not torch.allclose(losses, expected + 1e-3)
    (found,) = torch.autograd.grad(losses.sum(), logits, retain_graph=True)
    (wanted,) = torch.autograd.grad((expected + added).sum(), logits)
    torch.testing.assert_close(found, wanted)


def capped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: float, slopes: torch.Tensor
) -> torch.Tensor:
    """Causal attention of one sequence [s, n, d] by the formula: capped, then shifted by ALiBi."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    scores = cap * torch.tanh(scores / cap) if cap else scores
    sq, sk = scores.shape[-2:]
    distance = torch.arange(sk) - (torch.arange(sq) + sk - sq)[:, None]
    scores = scores - distance.abs() * slopes[:, None, None]
    weights = scores.masked_fill(distance > 0, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


@pytest.mark.parametrize("cap", [0.0, 0.5])
def test_soft_cap_and_alibi(flash_attn: Any, cap: float) -> None:
    """Dense, packed, cached behind padding, and the backward pass that takes a log-sum-exp."""
    lengths, slopes = ((3, 5), (4, 4)), torch.rand(2, 4).double()
    rows = [tensors(1, *one) for one in lengths]
    leaves = [torch.cat(parts, 1)[0].requires_grad_() for parts in zip(*rows, strict=True)]
    split = [
        leaf.split([row[i] for row in ((3, 5, 5), (4, 4, 4))]) for i, leaf in enumerate(leaves)
    ]
    expected = torch.cat(
        [capped(*(one[i] for one in split), cap, slopes[i]) for i in range(len(lengths))]
    )
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, grad)
    form: Any = {"causal": True, "softcap": cap}
    ends = [torch.tensor(one, dtype=torch.int32) for one in ([0, 3, 7], [0, 5, 9])]
    output = flash_attn.flash_attn_varlen_func(*leaves, *ends, 4, 5, alibi_slopes=slopes, **form)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(torch.autograd.grad(output, leaves, grad), wanted)
    first = flash_attn.flash_attn_func(*rows[0], alibi_slopes=slopes[0], **form)
    torch.testing.assert_close(first[0], expected[:3])
    for changed in ({"softcap": cap + 0.1}, {"alibi_slopes": slopes[1]}):
        other = flash_attn.flash_attn_func(
            *rows[0], **{"alibi_slopes": slopes[0], **form, **changed}
        )
        assert not torch.allclose(other[0], expected[:3])

    # The same sequences in a cache, behind one and two rows of padding.
    left, caches = torch.tensor([1, 2], dtype=torch.int32), torch.randn(2, 2, 8, 2, 8).double()
    for row, (pad, length) in enumerate(((1, 5), (2, 4))):
        for i in range(2):
            caches[i, row, pad : pad + length] = rows[row][i + 1][0]
    for row, (q, _, _) in enumerate(rows):
        found = flash_attn.flash_attn_with_kvcache(
            q,
            *caches[:, row : row + 1],
            cache_seqlens=torch.tensor([(6, 6)[row]], dtype=torch.int32),
            cache_leftpad=left[row : row + 1],
            alibi_slopes=slopes[row],
            **form,
        )
        torch.testing.assert_close(found[0], expected[(0, 3)[row] : (3, 7)[row]])

    scale, tail = 8**-0.5, (True, -1, -1, cap, slopes)
    with torch.no_grad():
        values = [leaf.detach() for leaf in leaves]
        found, lse, _, _ = _flash_attn_varlen_forward(*values, *ends, 4, 5, 0.0, scale, *tail)
        into = [torch.zeros_like(one) for one in values]
        _flash_attn_varlen_backward(
            grad, *values, found, lse, *into, *ends, 4, 5, 0.0, scale, *tail, False
        )
    torch.testing.assert_close(into, wanted, atol=1e-5, rtol=1e-5)


def test_keys_that_are_not_used(flash_attn: Any) -> None:
    q, k, v = (one[0] for one in tensors(1, 6, 12))
    ends = [torch.tensor(one, dtype=torch.int32) for one in ([0, 2, 6], [0, 5, 12])]
    left, used = (torch.tensor(one, dtype=torch.int32) for one in ([1, 2], [4, 7]))
    found, *_ = _flash_attn_varlen_forward(
        q, k, v, *ends, 4, 7, 0.0, 8**-0.5, True, leftpad_k=left, seqused_k=used
    )
    for queries, keys in ((slice(0, 2), slice(1, 4)), (slice(2, 6), slice(7, 12))):
        expected, _ = plain(q[None, queries], k[None, keys], v[None, keys], True)
        torch.testing.assert_close(found[queries], expected[0])


@pytest.mark.parametrize("window", [(-1, -1), (2, 0), (1, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_captured_graph_reads_no_number_and_computes_the_same(
    flash_attn: Any, causal: bool, window: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    pages, table = torch.randn(2, 6, 4, 2, 8), torch.tensor([[2, 0], [3, 1], [5, 4]])
    queries = torch.tensor([0, 1, 4, 4], dtype=torch.int32)  # the last sequence has none
    keys = torch.tensor([0, 3, 11, 16], dtype=torch.int32)
    tokens, single = torch.randn(6, 4, 8), torch.randn(3, 1, 4, 8)
    lengths = keys.diff()
    form = {"causal": causal, "window_size": window}

    def results() -> list[torch.Tensor]:
        return [
            flash_attn.flash_attn_varlen_func(
                tokens, *pages, queries, keys, 3, 8, block_table=table.int(), **form
            ),
            flash_attn.flash_attn_varlen_func(
                tokens, *pages.flatten(1, 2)[:, :16], queries, keys, 3, 8, **form
            ),
            flash_attn.flash_attn_with_kvcache(
                single, *pages, cache_seqlens=lengths, block_table=table.int(), **form
            ),
        ]

    with torch.no_grad():
        expected = results()
        for function in (flash_attn.flash_attn_varlen_func, flash_attn.flash_attn_with_kvcache):
            scope = inspect.unwrap(function).__globals__
            monkeypatch.setitem(scope, "capturing", lambda tensor: True)
        monkeypatch.setattr(torch.Tensor, "__int__", lambda self: pytest.fail("a number was read"))
        found = results()
    torch.testing.assert_close(expected, found)
    assert not expected[0][4:].any()
    assert expected[0][:4].any()


def test_sequences_without_tokens_are_not_attended_to(
    flash_attn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megatron's inference fills a batch of few sequences with thousands of such."""
    torch.manual_seed(3)
    scope = inspect.unwrap(flash_attn.flash_attn_with_kvcache).__globals__
    attend, bounds_seen = scope["kernel"], []

    def attend_and_note(*inputs: Any) -> Any:
        bounds_seen.append(inputs[3].cu_seqlens_q)
        return attend(ATTENTION)(*inputs)

    monkeypatch.setitem(scope, "kernel", lambda contract: attend_and_note)
    pages, single = torch.randn(2, 6, 4, 2, 8), torch.randn(9, 1, 4, 8)
    table, lengths = torch.zeros(9, 2, dtype=torch.int32), torch.zeros(9, dtype=torch.int32)
    table[:3], lengths[:3] = torch.tensor([[2, 0], [3, 1], [5, 4]]), torch.tensor([3, 0, 5])
    queries = lengths.clamp(max=1)
    bounds = [torch.nn.functional.pad(one.cumsum(0), (1, 0)).int() for one in (queries, lengths)]
    output, lse = flash_attn.flash_attn_with_kvcache(
        single, *pages, cache_seqlens=lengths, block_table=table, return_softmax_lse=True
    )
    several = flash_attn.flash_attn_varlen_func(
        single[:, 0], *pages, *bounds, 1, 8, block_table=table
    )
    for row, one in ((0, 0), (2, 1)):
        cached = [kv[table[row].long()].flatten(0, 1)[None, : lengths[row]] for kv in pages]
        for found, query in ((output[row], single[row]), (several[one, None], single[one])):
            torch.testing.assert_close(found, plain(query[None], *cached, False)[0][0])
    assert output.shape == several[:, None].shape == single.shape
    assert not output[3:].any()
    assert not several[2:].any()
    assert torch.isinf(lse[3:]).all()
    assert [len(one) for one in bounds_seen] == [4, 4]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("injected", [0.0, 0.01])
def test_passes_apart_are_the_function(flash_attn: Any, causal: bool, injected: float) -> None:
    from flash_attn import flash_attn_interface as interface

    q, k, v = (one.requires_grad_() for one in tensors(2, 5, 9))
    output = flash_attn.flash_attn_func(q, k, v, causal=causal)
    grad = torch.randn_like(output)
    wanted = torch.autograd.grad(output, (q, k, v), grad)
    tail = (0.0, 8**-0.5, causal, -1, -1, 0.0, None)
    found, lse, *_ = interface._wrapped_flash_attn_forward(q, k, v, *tail, False)
    # The gradients' memory is not in order.
    into = [torch.empty_like(one.transpose(1, 2)).transpose(1, 2) for one in (q, k, v)]
    products = interface._wrapped_flash_attn_backward(
        grad, q, k, v, found, lse + injected, *into, *tail, False
    )
    torch.testing.assert_close(found, output)
    torch.testing.assert_close(products, (grad * output).sum(-1).transpose(1, 2))
    for one, other in zip(into, wanted, strict=True):
        assert torch.allclose(one, other) is not bool(injected)
    with pytest.raises(Exception, match="dropout"):
        interface._wrapped_flash_attn_forward(q, k, v, 0.1, *tail[1:], False)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_add_before_they_normalize(rms: bool, dtype: torch.dtype) -> None:
    from flash_attn.ops import layer_norm, rms_norm
    from flash_attn.ops.triton.layer_norm import layer_norm_fn
    from torch.nn import functional

    torch.manual_seed(0)
    x, other, rest = torch.randn(3, 4, 8).to(dtype).unbind(0)
    weight, bias, rowscale = torch.rand(8), torch.randn(8), torch.rand(4)

    def plain(total: torch.Tensor) -> torch.Tensor:
        if not rms:
            return functional.layer_norm(total, (8,), weight, bias, 1e-5)
        return functional.rms_norm(total, (8,), weight, 1e-5) + bias

    options: Any = {"eps": 1e-5, "is_rms_norm": rms}
    found, kept = layer_norm_fn(x, weight, bias, rest, other, prenorm=True, **options)
    total = x.float() + other + rest
    torch.testing.assert_close(found, plain(total).to(dtype))
    torch.testing.assert_close(kept, total.to(dtype))
    assert not torch.allclose(found, plain(total - other).to(dtype))
    found = layer_norm_fn(
        x, weight - 1, bias, rowscale=rowscale, zero_centered_weight=True, **options
    )
    torch.testing.assert_close(found, plain(x.float() * rowscale[:, None]).to(dtype))
    module = rms_norm if rms else layer_norm
    kind = module.dropout_add_rms_norm if rms else module.dropout_add_layer_norm
    found, kept, mask = kind(
        x,
        rest,
        weight,
        bias,
        0.5,
        1e-5,
        prenorm=True,
        residual_in_fp32=True,
        return_dropout_mask=True,
    )
    total = x.float() * mask * 2 + rest
    torch.testing.assert_close(found, plain(total).to(dtype))
    assert kept.dtype is dtype
    assert 0 < int(mask.sum()) < mask.numel()


def test_modules_are_their_formulas(flash_attn: Any) -> None:
    from flash_attn.losses.cross_entropy import CrossEntropyLoss
    from flash_attn.modules import mha, mlp
    from flash_attn.ops import activations
    from torch.nn import functional

    q, k, v = tensors(2, 6, 6, heads=4, groups=4)
    qkv = torch.stack((q, k, v), 2)
    expected = plain(q, k, v, True)[0]
    torch.testing.assert_close(mha.FlashSelfAttention(causal=True)(qkv), expected)
    torch.testing.assert_close(mha.SelfAttention(causal=True)(qkv), expected)
    kv = torch.stack((k, v), 2)
    torch.testing.assert_close(mha.FlashCrossAttention()(q, kv, causal=True), expected)
    seen = torch.arange(6).expand(2, 6) < 4
    found = mha.CrossAttention()(q, kv, key_padding_mask=seen)
    torch.testing.assert_close(found, plain(q, k[:, :4], v[:, :4], False)[0])
    assert not torch.allclose(found, plain(q, k, v, False)[0])
    assert mha.get_alibi_slopes(3) == [2**-4.0, 2**-8.0, 2**-2.0]

    layer, x = mlp.GatedMlp(8, activation=functional.silu, multiple_of=4), torch.randn(3, 8)
    y, gate = layer.fc1(x).chunk(2, -1)
    assert y.shape[-1] == 24
    torch.testing.assert_close(layer(x), layer.fc2(functional.silu(gate) * y))
    assert not torch.allclose(layer(x), layer.fc2(functional.silu(y) * gate))
    fused = mlp.FusedMLP(8)
    tanh = functional.gelu(fused.fc1(x), approximate="tanh")
    torch.testing.assert_close(fused(x), fused.fc2(tanh))
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(activations.gelu_fwd(leaf).sum(), leaf)
    torch.testing.assert_close(activations.gelu_bwd(torch.ones_like(x), x), slope)

    labels = torch.tensor([1, -100, 3])
    loss, square = CrossEntropyLoss(lse_square_scale=0.1, return_z_loss=True)(x, labels)
    squares = 0.1 * x.logsumexp(-1)[[0, 2]].square().mean()
    torch.testing.assert_close(square, squares)
    torch.testing.assert_close(loss, functional.cross_entropy(x, labels) + squares)


@pytest.mark.parametrize("kind", ["emb", "kv", "qkv"])
def test_rotation_in_place_has_a_gradient(kind: str) -> None:
    from flash_attn.layers import rotary

    torch.manual_seed(0)
    cos, sin = torch.randn(5, 3), torch.randn(5, 3)
    parts = {"emb": 1, "kv": 2, "qkv": 3}[kind]
    leaf = torch.randn(2, 5, parts, 4, 8, requires_grad=True)
    before = leaf.detach().clone().requires_grad_()
    turned = [rotary.apply_rotary_emb_torch(one, cos, sin) for one in before.unbind(2)]
    if kind != "emb":
        turned = [*turned[: parts - 1], before.unbind(2)[-1]]
    expected = torch.stack(turned, 2)
    if kind == "emb":
        found = rotary.apply_rotary_emb(leaf[:, :, 0], cos, sin, inplace=True).unsqueeze(2)
    else:
        found = getattr(rotary, f"apply_rotary_emb_{kind}_")(leaf, cos, sin)
    torch.testing.assert_close(found, expected)
    assert torch.equal(leaf, found)
    grad = torch.randn_like(expected)
    (ours,) = torch.autograd.grad(found, leaf, grad)
    (theirs,) = torch.autograd.grad(expected, before, grad)
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(ours, grad)


@pytest.mark.parametrize("fault", [0, 2])
def test_positions_in_a_cache_count_its_left_padding(flash_attn: Any, fault: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 2, 8).unbind(0)
    caches, cos, sin = torch.randn(2, 1, 8, 2, 8), torch.randn(9, 4), torch.randn(9, 4)
    plain_caches = caches.clone()
    found = flash_attn.flash_attn_with_kvcache(
        q, *caches, k, v, cos, sin, torch.tensor([4]), cache_leftpad=torch.tensor([2]), causal=True,
        rotary_interleaved=False,
    )  # fmt: skip
    turned = [apply_rotary_emb(one, cos, sin, seqlen_offsets=4 - fault) for one in (q, k)]
    plain_caches[:, :, 4:6] = torch.stack((turned[1], v))
    expected = plain(turned[0], *(one[:, 2:6] for one in plain_caches), True)[0]
    assert torch.allclose(found, expected, atol=1e-5) is not bool(fault)
    assert torch.allclose(caches, plain_caches, atol=1e-5) is not bool(fault)

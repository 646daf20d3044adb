"""Transformer Engine's permutations and router, against plain loops and formulas."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("on_device")


@pytest.fixture
def router(te: Any) -> Any:
    return importlib.import_module(f"{te.__name__}.router")


def mask(tokens: int = 11, experts: int = 4) -> torch.Tensor:
    torch.manual_seed(0)
    routed = torch.rand(tokens, experts) < 0.5
    routed[2] = False
    return routed


def copies_of(routed: torch.Tensor) -> list[tuple[int, int]]:
    """Token and expert of each copy, in order."""
    tokens, experts = routed.shape
    return [(t, e) for e in range(experts) for t in range(tokens) if routed[t, e]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("align", [None, 4])
@pytest.mark.parametrize("integers", [False, True])
def test_mask_permutation_and_its_gradients(
    te: Any, dtype: torch.dtype, align: int | None, integers: bool
) -> None:
    routed = mask()
    pairs = copies_of(routed)
    hidden = torch.randn(11, 6).to(dtype).requires_grad_()
    probs = (torch.rand(11, 4) * routed).requires_grad_()
    counts = routed.sum(0)
    given = routed.int() if integers else routed
    offsets = None
    if align is None:
        rows, weights, row_map = te.moe_permute_with_probs(hidden, probs, given, len(pairs))
        places = list(range(len(pairs)))
    else:
        rows, weights, row_map, offsets, padded = te.moe_permute_and_pad_with_probs(
            hidden, probs, given, counts, align
        )
        assert padded.tolist() == [-(-int(n) // align) * align for n in counts]
        starts = padded.cumsum(0) - padded
        seen = [0] * 4
        places = []
        for _, e in pairs:
            places.append(int(starts[e]) + seen[e])
            seen[e] += 1
    expected = torch.zeros_like(rows)
    for place, (t, e) in zip(places, pairs, strict=True):
        expected[place] = hidden[t].detach()
        assert weights[place] == probs[t, e]
    assert torch.equal(rows, expected)
    gradient, weight_gradient = torch.randn(rows.shape).to(dtype), torch.randn(weights.shape)
    torch.autograd.backward((rows, weights), (gradient, weight_gradient))
    total, of_probs = torch.zeros(11, 6), torch.zeros(11, 4)
    for place, (t, e) in zip(places, pairs, strict=True):
        total[t] += gradient[place].float()
        of_probs[t, e] = weight_gradient[place]
    assert torch.allclose(hidden.grad.float(), total, rtol=2**-8 if dtype != torch.float32 else 0)
    assert torch.equal(probs.grad, of_probs)
    # Back again, with weights.
    probs.grad = None
    experts_output = rows.detach().requires_grad_()
    if offsets is not None:
        with torch.no_grad():
            blank = torch.ones(len(rows), dtype=torch.bool)
            blank[places] = False
            experts_output[blank] = float("nan")
    merged = te.moe_unpermute(experts_output, row_map, probs, hidden.shape, pad_offsets=offsets)
    gradient = torch.randn(merged.shape).to(dtype)
    merged.backward(gradient)
    total, of_probs = torch.zeros(11, 6), torch.zeros(11, 4)
    of_rows = torch.zeros(rows.shape)
    for place, (t, e) in zip(places, pairs, strict=True):
        total[t] += probs[t, e].detach() * experts_output[place].detach().float()
        of_rows[place] = probs[t, e].detach() * gradient[t].float()
        of_probs[t, e] = (experts_output[place].detach().float() * gradient[t].float()).sum()
    close = {"rtol": 2**-7, "atol": 1e-2} if dtype != torch.float32 else {"atol": 1e-6}
    assert torch.allclose(merged.float(), total, **close)
    assert torch.allclose(experts_output.grad.float(), of_rows, **close)
    assert torch.allclose(probs.grad, of_probs, rtol=1e-5, atol=1e-5)
    # An injected fault: two copies change places.
    swapped = row_map.clone()
    (first, last), (one, other) = (pairs[0], pairs[-1]), (places[0], places[-1])
    swapped[first], swapped[last] = other, one
    wrong = te.moe_unpermute(experts_output, swapped, probs, hidden.shape, pad_offsets=offsets)
    assert not torch.allclose(wrong.float(), total, **close)


def test_chunks_that_are_in_order_are_not_copied(te: Any) -> None:
    rows, probs = torch.randn(5, 3), torch.rand(5)
    sizes = torch.tensor([2, 0, 3])
    in_order, turned = torch.arange(3), torch.tensor([2, 1, 0])
    for call in range(3):
        same, weights = te.moe_sort_chunks_by_index_with_probs(rows, probs, sizes, in_order)
        assert torch.equal(same, rows)
        assert torch.equal(weights, probs)
        assert (same.data_ptr() == rows.data_ptr()) is (call > 0)
        assert torch.equal(te.moe_sort_chunks_by_index(rows, sizes, turned), rows.roll(3, 0))
    # An index that was written to is another one.
    in_order.copy_(turned)
    for _ in range(3):
        assert torch.equal(te.moe_sort_chunks_by_index(rows, sizes, in_order), rows.roll(3, 0))


@pytest.mark.parametrize("kept", [27, 15])
@pytest.mark.parametrize("weighted", [True, False])
def test_index_permutation_and_its_gradients(te: Any, kept: int, weighted: bool) -> None:
    torch.manual_seed(3)
    k = 3 if weighted else 1
    index = torch.stack([torch.randperm(5)[:k] for _ in range(9)]).int()
    hidden = torch.randn(9, 4, requires_grad=True)
    probs = torch.rand(9, k, requires_grad=True) if weighted else None
    order = sorted(range(9 * k), key=lambda i: (int(index.view(-1)[i]), i))
    order = order[: kept if 0 < kept < len(order) else len(order)]
    rows, row_map = te.moe_permute(hidden, index, len(order), map_type="index")
    assert torch.equal(rows, hidden[[i // k for i in order]])
    gradient = torch.randn(rows.shape)
    rows.backward(gradient)
    total = torch.zeros(9, 4)
    for place, i in enumerate(order):
        total[i // k] += gradient[place]
    assert torch.allclose(hidden.grad, total)
    output = torch.randn(rows.shape, requires_grad=True)
    merged = te.moe_unpermute(output, row_map, probs, map_type="index")
    gradient = torch.randn(merged.shape)
    merged.backward(gradient)
    total, of_rows = torch.zeros(9, 4), torch.zeros(rows.shape)
    of_probs = torch.zeros(9, k)
    for place, i in enumerate(order):
        weight = 1.0 if probs is None else probs[i // k, i % k].detach()
        total[i // k] += weight * output[place].detach()
        of_rows[place] = weight * gradient[i // k]
        of_probs[i // k, i % k] = (output[place].detach() * gradient[i // k]).sum()
    assert torch.allclose(merged, total, atol=1e-6)
    assert torch.allclose(output.grad, of_rows, atol=1e-6)
    if probs is not None:
        assert torch.allclose(probs.grad, of_probs, atol=1e-5)
        assert not torch.allclose(probs.grad, of_probs * 1.01, atol=1e-5)


def test_chunks_in_another_order(te: Any) -> None:
    sizes, order = torch.tensor([3, 0, 4, 1]), torch.tensor([2, 3, 0, 1])
    rows = torch.arange(8.0).view(8, 1).requires_grad_()
    probs = torch.arange(8.0).requires_grad_()
    moved, weights = te.moe_sort_chunks_by_index_with_probs(rows, probs, sizes, order.int())
    expected = [3, 4, 5, 6, 7, 0, 1, 2]
    assert moved.flatten().tolist() == weights.tolist() == expected
    gradient = torch.randn(8)
    torch.autograd.backward((moved, weights), (gradient.view(8, 1), gradient))
    assert torch.equal(rows.grad.flatten()[expected], gradient)
    assert torch.equal(probs.grad[expected], gradient)
    assert torch.equal(te.moe_sort_chunks_by_index(rows, sizes, order), moved)


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "sqrtsoftplus"])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    ("groups", "topk", "factor"), [(None, 4, 1.3), (4, 4, 1.3), (None, 4, None), (None, 1, None)]
)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("injected", [0.0, 0.01])
def test_router(
    router: Any,
    function: str,
    before: bool,
    groups: int | None,
    topk: int,
    factor: float | None,
    biased: bool,
    injected: float,
) -> None:
    torch.manual_seed(5)
    logits = torch.randn(6, 8, requires_grad=True)
    bias = torch.randn(8) if biased else None
    probs, chosen = router.fused_topk_with_score_function(
        logits, topk, before, groups, groups and 2, factor, function, bias
    )
    x = logits.detach().double().requires_grad_()
    scores = {
        "softmax": x.softmax(-1) if before else x,
        "sigmoid": x.sigmoid(),
        "sqrtsoftplus": torch.log1p(x.exp()).sqrt(),
    }[function]
    expected = torch.zeros(6, 8, dtype=torch.double)
    for t in range(6):
        ranked = scores[t].detach().clone()
        if bias is not None and function != "softmax":
            ranked += bias
        if groups:
            best = sorted(range(4), key=lambda g: -float(ranked.view(4, 2)[g].sum()))[:2]
            allowed = [e for e in range(8) if e // 2 in best]
        else:
            allowed = list(range(8))
        picked = sorted(allowed, key=lambda e: -float(ranked[e]))[:topk]
        assert sorted(picked) == chosen[t].nonzero().flatten().tolist()
        weights = scores[t, picked]
        if function != "softmax" and topk > 1:
            weights = weights / weights.sum()
        elif function == "softmax" and not before:
            weights = weights.softmax(-1)
        expected[t, picked] = weights * ((factor or 1.0) + injected)
    assert torch.allclose(probs.double(), expected, atol=1e-6) is not bool(injected)
    gradient = torch.randn(6, 8)
    (ours,) = torch.autograd.grad(probs, logits, gradient)
    (theirs,) = torch.autograd.grad(expected, x, gradient.double())
    # One expert's softmax is 1, whatever its logit.
    unmoved = function == "softmax" and not before and topk == 1
    assert torch.allclose(ours.double(), theirs, atol=1e-6) is not (bool(injected) and not unmoved)


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "sqrtsoftplus"])
def test_the_form_of_the_map_changes_no_gradient(router: Any, function: str) -> None:
    logits, gradient = torch.randn(6, 12, requires_grad=True), torch.randn(6, 12)
    found = []
    for form, indices in (("bytemap", None), ("bitmap_u8", None), ("bytemap", torch.zeros(6, 3))):
        dense = None if indices is None else indices.int()
        given = (logits, 3, True, None, None, None, function, None, form, dense)
        probs, _ = router.fused_topk_with_score_function(*given)
        found += torch.autograd.grad(probs, logits, gradient)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert found[0].any()


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "sqrtsoftplus"])
@pytest.mark.parametrize("injected", [0, 1])
def test_balancing_loss(router: Any, function: str, injected: int) -> None:
    logits = torch.randn(10, 6, requires_grad=True)
    chosen, scores = router.fused_compute_score_for_moe_aux_loss(logits, 2, function)
    assert chosen.sum(-1).tolist() == [2] * 10
    assert torch.allclose(scores.sum(-1), torch.ones(10))
    counts = chosen.sum(0)
    loss = router.fused_moe_aux_loss(scores, counts, 10, 6, 2, 0.1)
    x = logits.detach().double().requires_grad_()
    of_scores = {"sigmoid": x.sigmoid(), "sqrtsoftplus": torch.log1p(x.exp()).sqrt()}
    wide = of_scores.get(function, x.exp())
    wide = wide / wide.sum(-1, keepdim=True)
    expected = 0.1 * 6 / (2 * 10 * (10 + injected)) * (wide.sum(0) * counts).sum()
    assert torch.allclose(loss.double(), expected) is not bool(injected)
    (ours,) = torch.autograd.grad(loss, logits)
    (theirs,) = torch.autograd.grad(expected, x)
    assert torch.allclose(ours.double(), theirs, atol=1e-8, rtol=1e-4) is not bool(injected)


def test_unknown_names_are_refused(te: Any, router: Any) -> None:
    with pytest.raises(ValueError, match="float64"):
        router.fused_topk_with_score_function(
            torch.randn(2, 4).double(), 1, False, None, None, None, "softmax", None
        )
    with pytest.raises(ValueError, match="relu"):
        router.fused_compute_score_for_moe_aux_loss(torch.randn(2, 4), 1, "relu")
    with pytest.raises(ValueError, match="mask"):
        te.moe_permute(torch.randn(2, 4), torch.ones(2, 2), 4, map_type="masks")

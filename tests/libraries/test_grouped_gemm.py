"""The shim of grouped_gemm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

SHIMS = ("grouped_gemm",)


@pytest.fixture
def ops(shims: Any) -> Any:
    return shims.ops


@pytest.mark.parametrize("trans_b", [False, True])
def test_one_gemm_per_expert(ops: Any, trans_b: bool) -> None:
    torch.manual_seed(0)
    sizes = torch.tensor([3, 0, 5])
    a = torch.randn(8, 4, requires_grad=True)
    b = torch.randn(3, 6, 4) if trans_b else torch.randn(3, 4, 6)
    b.requires_grad_()
    weight = b.mT if trans_b else b
    expected = torch.cat((a[:3] @ weight[0], a[3:] @ weight[2]))
    found = ops.gmm(a, b, sizes, trans_b=trans_b)
    torch.testing.assert_close(found, expected)
    grad = torch.randn(8, 6)
    ours = torch.autograd.grad(found, (a, b), grad)
    theirs = torch.autograd.grad(expected, (a, b), grad)
    torch.testing.assert_close(ours, theirs)


def test_no_tokens_at_all_are_refused(ops: Any) -> None:
    with pytest.raises(AssertionError, match="all zeros"):
        ops.gmm(torch.randn(0, 4), torch.randn(2, 4, 6), torch.tensor([0, 0]))


def test_gemms_below_it(ops: Any) -> None:
    a, b, sizes = torch.randn(8, 4), torch.randn(8, 6), torch.tensor([3, 0, 5])
    into = torch.ones(3, 4, 6)
    found = ops.backend.gmm(a, b, sizes, trans_a=True, c=into)
    assert found is into
    torch.testing.assert_close(found[2], a[3:].T @ b[3:])
    assert not found[1].any()
    assert not torch.allclose(found[0], a.T @ b)
    weight = torch.randn(3, 6, 4)
    torch.testing.assert_close(
        ops.backend.gmm(a, weight, sizes, trans_b=True), ops.gmm(a, weight, sizes, True)
    )

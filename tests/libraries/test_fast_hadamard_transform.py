"""The shim of fast_hadamard_transform, against Sylvester's matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch

SHIMS = ("fast_hadamard_transform",)


def sylvester(size: int) -> torch.Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    return matrix


@pytest.mark.parametrize("size", [1, 2, 16, 128, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_a_gemm_with_the_matrix(shims: Any, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    matrix = sylvester(size)[:size, :size]
    x = torch.randn(3, 5, size).to(dtype).requires_grad_()
    found = shims.hadamard_transform(x, scale=size**-0.5)
    expected = x.double() @ matrix * size**-0.5
    assert found.dtype is dtype
    # Only the last rounding is the dtype's.
    tolerance = 2e-2 if dtype.itemsize == 2 else 1e-6
    torch.testing.assert_close(found, expected.to(dtype), rtol=tolerance, atol=1e-5)
    grad = torch.randn(3, 5, size).to(dtype)
    (ours,) = torch.autograd.grad(found, x, grad)
    theirs = grad.double() @ matrix.T * size**-0.5
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-2, atol=2e-2)
    injected = x.double() @ matrix.flip(0) * size**-0.5
    assert size == 1 or not torch.allclose(found.double(), injected, rtol=0.1)

"""Scales of delayed scaling, weights cast in parts, lists of tensors, grouped GEMMs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from ops_support import normal

from accel_bridge.kernels.float8 import mxfp8_quantize


@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
def test_delayed_scales(tex: ModuleType, algorithm: str) -> None:
    """Two modules; a value that was not quantized, one too small and one that is not finite."""
    histories = [torch.tensor([[2.0, 0.0], [7.0, 5.0], [3.0, 0.0]]), torch.zeros(3, 2)]
    scales = [torch.ones(2), torch.full((2,), 9.0)]
    newest = torch.tensor([4.0, 0.0, 1e-38, torch.inf])
    e4m3 = tex.DType.kFloat8E4M3
    tex.fused_amax_and_scale_update_after_reduction(newest, histories, scales, algorithm, e4m3, 1)
    first = 224.0 / (7.0 if algorithm == "max" else 4.0)
    assert scales[0].tolist() == [first, 1.0]
    assert scales[1].tolist() == [torch.finfo(torch.float32).max, 9.0]
    assert histories[0].tolist() == [[0.0, 0.0], [3.0, 5.0], [4.0, 0.0]]
    assert histories[1][-1].tolist() == [newest[2].item(), torch.inf]
    with pytest.raises(ValueError, match="median"):
        tex.fused_amax_and_scale_update_after_reduction(newest, [], [], "median", e4m3, 0)


def test_mx_cast_in_parts(tex: ModuleType) -> None:
    h, w, cut = 64, 96, 1000
    weight = normal(h, w).bfloat16()
    parts = [weight.view(-1)[:cut], weight.view(-1)[cut:]]
    rows = [torch.zeros(128, 4, dtype=torch.bfloat16) for _ in parts]
    columns = [torch.zeros(4, 128, dtype=torch.bfloat16) for _ in parts]
    for part, row, column, start in zip(parts, rows, columns, (0, cut), strict=True):
        tex.mxfp8_scaling_compute_partial_amax(part, row, column, h, w, start)
    amaxes = [torch.maximum(*rows), torch.maximum(*columns)]
    factors = [torch.empty(one.shape, dtype=torch.uint8) for one in amaxes]
    tex.multi_tensor_compute_scale_inv_e8m0(0, None, [amaxes, factors])
    made = [torch.empty(h * w, dtype=torch.uint8) for _ in factors]
    for part, start in zip(parts, (0, cut), strict=True):
        outs = [one[start : start + len(part)] for one in made]
        tex.mxfp8_scaling_partial_cast(part, *outs, *factors, h, w, start)
    for one, factor, matrix in ((made[0], factors[0], weight), (made[1], factors[1].T, weight.T)):
        numbers, expected = mxfp8_quantize(matrix, dtype=torch.float8_e4m3fn)
        assert torch.equal(factor[: expected.shape[0], : expected.shape[1]], expected)
        shaped = one.view(h, w) if matrix is weight else one.view(h, w).T
        assert torch.equal(shaped, numbers.view(torch.uint8))


def _steps(function: Any, lists: list[list[torch.Tensor]], *further: Any) -> None:
    for step in range(1, 4):
        numbers = (1e-2, 0.9, 0.95, 1e-8, step, 1, 1, 0.1)
        function(0, torch.zeros(1, dtype=torch.int32), lists, *numbers, *further)


def test_adam_of_remainders_and_fp8(tex: ModuleType) -> None:
    """Both follow the same float32 parameters as plain Adam, bit by bit."""
    start = normal(300).bfloat16()
    moments = [[torch.zeros(300)] for _ in range(6)]
    grad = [normal(300, seed=1)]
    exact = [start.float()]
    _steps(tex.multi_tensor_adam, [grad, exact, moments[0], moments[1]])

    parameter, remainder = [start.clone()], [torch.zeros(300, dtype=torch.int16)]
    lists = [grad, parameter, moments[2], moments[3], remainder]
    _steps(tex.multi_tensor_adam_param_remainder, lists)
    high = parameter[0].view(torch.int16).int() - (remainder[0] < 0).int()
    main = ((high << 16) | (remainder[0].int() & 0xFFFF)).view(torch.float32)
    assert torch.equal(main, exact[0])

    fp8, main_list = [torch.zeros(300, dtype=torch.uint8)], [start.float()]
    meta = [[torch.full((1,), 64.0)], [torch.zeros(1)], [torch.zeros(1)]]
    lists = [grad, fp8, moments[4], moments[5], main_list, *meta]
    _steps(tex.multi_tensor_adam_fp8, lists, tex.DType.kFloat8E4M3)
    assert torch.equal(main_list[0], exact[0])
    numbers = (exact[0] * 64).to(torch.float8_e4m3fn)
    assert torch.equal(fp8[0], numbers.view(torch.uint8))
    assert meta[2][0].item() == 1 / 64
    assert meta[1][0].item() >= exact[0].abs().max().item()


def test_a_weights_gradient_is_the_same_beside_a_biass(tex: ModuleType) -> None:
    """To the last bit: both are added in the GEMM, without a tensor between."""
    x, gradient = (torch.randn(512, k, device="cuda").half() for k in (64, 32))
    sums, biases = torch.rand(32, 64, device="cuda").repeat(2, 1, 1), (None, torch.empty(32))
    for total, bias in zip(sums, biases, strict=True):
        given = (x, False, gradient, True, total, None, None, bias, None, False, None, True)
        _, of_bias, *_ = tex.generic_gemm(*given, None, 0, True, False)
    assert torch.equal(*sums)
    torch.testing.assert_close(of_bias, gradient.float().sum(0))


def test_offsets(tex: ModuleType) -> None:
    sizes, (ends, starts) = tex.splits_to_offsets_multi(
        torch.tensor([2, 0, 3]),
        "cpu",
        strides=[1, 4],
        include_leading_zero=[False, True],
        dtypes=[torch.int32, torch.int64],
    )
    assert sizes.tolist() == [2, 0, 3]
    assert ends.tolist() == [2, 2, 5]
    assert starts.tolist() == [0, 8, 8, 20]
    assert ends.dtype == torch.int32

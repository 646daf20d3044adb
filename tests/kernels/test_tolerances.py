"""The rules themselves: what they let pass and what they stop."""

from __future__ import annotations

import math

import pytest
import torch

from accel_bridge.apps.parity._case import bitwise, by_ratio
from accel_bridge.apps.parity._run import run_case
from accel_bridge.kernels import CONTRACTS, SWIGLU

from .support import CASES, random

EXACT = torch.linspace(1.0, 2.0, 11, dtype=torch.float64)


def off_by(share: float) -> torch.Tensor:
    """EXACT with one element off by ``share``."""
    result = EXACT.clone()
    result[5] += share
    return result.to(torch.bfloat16 if share == 0 else torch.float32)


@pytest.mark.parametrize(("error", "passes"), [(1.9e-3, True), (2.1e-3, False), (1.0, False)])
def test_ratio_is_the_error_over_the_baselines(error: float, passes: bool) -> None:
    found = by_ratio("output", off_by(error), EXACT, off_by(1e-3))
    assert found.passed is passes
    assert found.ratio == pytest.approx(error / 1e-3, rel=5e-3)
    assert found.severity == pytest.approx(found.ratio / 2)


def test_rounding_of_the_largest_value_is_forgiven_even_to_an_exact_baseline() -> None:
    exact = torch.tensor([1.0, 100.0], dtype=torch.float64)
    plain = exact.float()
    ulp = torch.nextafter(plain, plain + 1)
    assert by_ratio("output", ulp, exact, plain).passed
    assert not by_ratio("output", plain + 1e-3, exact, plain).passed


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_result_that_is_no_number_fails(value: float) -> None:
    result = EXACT.float()
    result[3] = value
    assert not by_ratio("output", result, EXACT, EXACT.float()).passed


def test_an_infinity_that_belongs_there_passes() -> None:
    exact = torch.tensor([1.0, -math.inf], dtype=torch.float64)
    assert by_ratio("lse", exact.float(), exact, exact.float()).passed
    assert not by_ratio("lse", -exact.float(), exact, exact.float()).passed


def test_what_the_format_cannot_hold_is_not_compared() -> None:
    exact = torch.tensor([1.0, 1e6], dtype=torch.float64)
    assert by_ratio("output", exact.half(), exact, exact.half()).passed


def test_a_baseline_that_is_far_off_judges_nothing() -> None:
    for plain in (EXACT.float() + 3, EXACT.float() * math.nan):
        found = by_ratio("output", EXACT.float(), EXACT, plain)
        assert not found.passed
        assert "cannot judge" in found.note


def test_shape_and_dtype_count() -> None:
    expected = random(2, 3, dtype=torch.float32)
    for result in (expected[:1], expected.double(), expected.T):
        assert not bitwise("output", result, expected).passed
    assert bitwise("output", expected, expected).passed


def test_bitwise_sees_one_bit() -> None:
    expected = torch.tensor([0.0, 1.0, math.nan])
    assert bitwise("output", expected.clone(), expected).passed
    for index, value in ((0, -0.0), (1, 1.0 + 2**-23), (2, 0.0)):
        result = expected.clone()
        result[index] = value
        assert not bitwise("output", result, expected).passed


def test_every_contract_has_cases_in_every_precision() -> None:
    # Optimizers step in float32; FP8 tensors carry a precision of their own.
    others = {"adamw", "scaled_matmul", "grouped_scaled_matmul", "grouped_scaled_weight_gradient"}
    for contract in set(CONTRACTS) - others:
        dtypes = {case.dtype for case in CASES if case.contract == contract}
        assert dtypes == {torch.float32, torch.float16, torch.bfloat16}


def test_a_kernel_that_raises_fails_with_its_message() -> None:
    def broken(input: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        raise RuntimeError("no such instruction")

    case = next(case for case in CASES if case.contract == "swiglu")
    row = run_case(case, SWIGLU.kernel(broken, "injected"))
    assert row.verdict == "fail"
    assert row.severity == math.inf
    assert row.reason == "raised RuntimeError: no such instruction"

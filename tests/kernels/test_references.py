"""The references against torch, against Megatron, and against numerical differentiation."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from accel_bridge.apps.testing import FinishedRuns
from accel_bridge.kernels import CONTRACTS
from accel_bridge.kernels.float8 import rounded_bits
from accel_bridge.kernels.token_permute import pairs_of_rows

from . import upstream
from .support import CASES, random


def reference(name: str) -> Callable[..., Any]:
    return CONTRACTS[name].reference


@pytest.fixture(scope="module")
def megatron(finished_runs: FinishedRuns, warm: str) -> dict[str, Any]:
    """What Megatron's own functions give, computed in a process of its own."""

    def make(directory: Path) -> None:
        done = subprocess.run(
            [warm, str(Path(upstream.__file__)), str(directory / "results.pt")],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    directory = finished_runs.directory("Megatron's own functions", make)
    found: dict[str, Any] = torch.load(directory / "results.pt")
    return found


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", upstream.DTYPES)
def test_rotary_is_megatrons_bit_by_bit(
    megatron: dict[str, Any], interleaved: bool, dtype: torch.dtype
) -> None:
    x, freqs = upstream.rotary_inputs(dtype)
    output = reference("rotary")(x, freqs.cos(), freqs.sin(), interleaved=interleaved)
    assert torch.equal(output, megatron[f"rotary {dtype} {interleaved}"])


def test_rotary_sizes_that_do_not_fit_are_refused() -> None:
    for size in (3, 12):
        angles = random(2, size)
        with pytest.raises(ValueError, match=f"rotary size {size} must be even and at most 8"):
            reference("rotary")(random(2, 8), angles, angles)


def test_gated_units_are_megatrons(megatron: dict[str, Any]) -> None:
    x, bias = upstream.gated_inputs()
    torch.testing.assert_close(reference("swiglu")(x, bias), megatron["swiglu"])
    # Megatron writes the constants of tanh's approximation with eight digits.
    torch.testing.assert_close(reference("geglu")(x, bias), megatron["geglu"])
    gate, linear = x.chunk(2, -1)
    exact = reference("geglu")(x, approximate="none")
    torch.testing.assert_close(exact, functional.gelu(gate) * linear)


@pytest.mark.parametrize(("activation", "options"), [("silu", {}), ("quick_gelu", upstream.QUICK)])
def test_weighted_gated_units_are_megatrons(
    megatron: dict[str, Any], activation: str, options: dict[str, Any]
) -> None:
    weighted = reference("gated_activation")
    found = upstream.with_gradients(weighted, activation=activation, **options)
    torch.testing.assert_close(found, megatron[f"weighted {activation}"])


def test_a_clamped_unit_has_a_gradient_at_its_bound() -> None:
    x = torch.tensor([1.5, 1.6, -1.5, 1.6], requires_grad=True)  # two gates, two linear parts
    reference("gated_activation")(x, clamp=1.5).sum().backward()
    assert x.grad is not None
    assert x.grad.ne(0).tolist() == [True, False, True, False]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("residual", upstream.RESIDUALS)
@pytest.mark.parametrize("training", [False, True])
def test_bias_dropout_add_is_megatrons_bit_by_bit(
    megatron: dict[str, Any], bias: bool, residual: torch.dtype, training: bool
) -> None:
    inputs = upstream.bias_dropout_add_inputs(bias, residual)
    torch.manual_seed(3)
    output = reference("bias_dropout_add")(*inputs, dropout=0.3, training=training)
    assert torch.equal(output, megatron[f"bda {bias} {residual} {training}"])


def test_grouped_matmul_is_one_gemm_per_group() -> None:
    x, weight = random(6, 3), random(3, 3, 2, seed=1)
    output = reference("grouped_matmul")(x, weight, torch.tensor([2, 0, 4]))
    torch.testing.assert_close(output, torch.cat([x[:2] @ weight[0], x[2:] @ weight[2]]))
    for counts in ([2, 0, 3], [2, 4]):
        with pytest.raises(ValueError, match="counts"):
            reference("grouped_matmul")(x, weight, torch.tensor(counts))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_by_arithmetic_is_torchs_cast(dtype: torch.dtype) -> None:
    """Every number of the format, all that lies halfway, and what is next to it."""
    numbers = torch.arange(256).to(torch.uint8).view(dtype).float()
    numbers = numbers[numbers.isfinite()].sort().values
    halfway = (numbers[1:] + numbers[:-1]) / 2
    beside = [torch.nextafter(halfway, halfway + side) for side in (-1.0, 1.0)]
    small = torch.tensor([-0.0, 0.0, 1e-45, -1e-30, torch.nan])
    x = torch.cat([numbers, halfway, *beside, small])
    expected = x.to(dtype).view(torch.uint8)
    assert rounded_bits(x, dtype).view(torch.uint8).equal(expected)
    cut_off = rounded_bits(x * (1 - 2**-4), dtype).view(torch.uint8)
    assert not cut_off.equal(expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_permutation_is_megatrons_bit_by_bit(megatron: dict[str, Any], weighted: bool) -> None:
    tokens, probs, routing = upstream.routing_inputs()
    given = probs if weighted else None
    permuted, weights, rows = reference("token_permute")(tokens, routing, given, num_out_tokens=14)
    back = reference("token_unpermute")(permuted, rows, given)
    indices = pairs_of_rows(rows, 14) // 5
    expected = megatron[f"permute {weighted}"]
    assert (weights is None) is (not weighted)
    for ours, theirs in zip((permuted, weights, indices, back), expected, strict=True):
        assert theirs is None or torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in CASES
        if case.dtype == torch.float32
        and case.gradients
        and case.contract in ("rms_norm", "layer_norm", "swiglu", "geglu", "rotary")
        and any(word in case.name for word in ("rows=1 ", "s=1 ", "zero-centred"))
    ],
    ids=lambda case: f"{case.contract} {case.name}",
)
def test_gradients_are_the_numerical_ones(case: Any) -> None:
    inputs = {
        name: value.double() if isinstance(value, torch.Tensor) else value
        for name, value in case.inputs().items()
    }
    if "input" in inputs:
        inputs["input"] = inputs["input"][:2]
    leaves = [inputs[name].requires_grad_() for name in case.gradients]

    def call(*tensors: torch.Tensor) -> Any:
        return reference(case.contract)(
            **{**inputs, **dict(zip(case.gradients, tensors, strict=True))}
        )

    assert torch.autograd.gradcheck(call, leaves)

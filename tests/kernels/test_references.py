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


@pytest.mark.parametrize("zero_centered", [False, True])
def test_norms_are_torchs(zero_centered: bool) -> None:
    x, weight, bias = random(4, 9), random(9, seed=1), random(9, seed=2)
    gamma = weight + 1 if zero_centered else weight
    options = {"eps": 1e-3, "zero_centered_gamma": zero_centered}
    torch.testing.assert_close(
        reference("rms_norm")(x, weight, **options), functional.rms_norm(x, (9,), gamma, 1e-3)
    )
    for shift in (bias, None):
        torch.testing.assert_close(
            reference("layer_norm")(x, weight, shift, **options),
            functional.layer_norm(x, (9,), gamma, shift, 1e-3),
        )


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


def test_masked_softmax_is_torchs() -> None:
    scores, mask = random(2, 3, 4, 5), random(2, 1, 4, 5, seed=1) > 1.0
    expected = (scores * 0.5).masked_fill(mask, -torch.inf).softmax(-1)
    output = reference("scaled_masked_softmax")(scores, mask, scale=0.5)
    torch.testing.assert_close(output, expected)
    causal = reference("scaled_masked_softmax")(scores, causal=True)
    hidden = torch.ones(4, 5).triu(2).bool()  # the last query stands at the last key
    torch.testing.assert_close(causal, scores.masked_fill(hidden, -torch.inf).softmax(-1))


def test_label_smoothing_spreads_over_the_wrong_classes() -> None:
    logits, target = random(2, 5), torch.tensor([1, 4])
    share = torch.full((2, 5), 0.1 / 4, dtype=torch.float64)
    share[torch.arange(2), target] = 0.9
    expected = -(share * logits.log_softmax(-1)).sum(-1)
    output = reference("cross_entropy")(logits, target, label_smoothing=0.1)
    torch.testing.assert_close(output, expected)


def test_weight_gradient_adds_in_float32() -> None:
    x, gradient = random(3, 2, 5, dtype=torch.bfloat16), random(3, 2, 4, dtype=torch.bfloat16)
    main_grad = torch.ones(4, 5)
    reference("weight_gradient")(x, gradient, main_grad)
    gemm = gradient.flatten(0, 1).float().t() @ x.flatten(0, 1).float()
    torch.testing.assert_close(main_grad, 1 + gemm)
    assert not torch.equal(main_grad, (1 + gemm).bfloat16().float())


def test_embedding_gradient_is_the_gradient_of_an_embedding() -> None:
    indices, weight = torch.tensor([[2, 0], [2, 3]]), random(4, 5).requires_grad_()
    gradient = random(2, 2, 5, seed=1)
    torch.nn.functional.embedding(indices, weight).backward(gradient)
    main_grad = torch.ones(4, 5, dtype=torch.float64)
    reference("embedding_gradient")(indices, gradient, main_grad)
    torch.testing.assert_close(main_grad, 1 + weight.grad)
    # The same table on two ranks, three rows on the first: the sums of each rank's own rows.
    parts = [torch.ones(rows, 5, dtype=torch.float64) for rows in (3, 1)]
    reference("embedding_gradient")(indices, gradient, parts[0])
    reference("embedding_gradient")(indices - 3, gradient, parts[1])
    torch.testing.assert_close(torch.cat(parts), main_grad)


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

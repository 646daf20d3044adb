"""Experts' FP8 in one launch is what it is one after another."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import pytest
import torch

from accel_bridge.kernels import (
    GROUPED_FLOAT8_BLOCK_TRANSPOSE,
    GROUPED_FLOAT8_QUANTIZE,
    GROUPED_SCALED_MATMUL,
    GROUPED_SCALED_WEIGHT_GRADIENT,
    Contract,
    Kernel,
    active,
)
from accel_bridge.libraries.main_grad import needs_no_placeholder
from accel_bridge.libraries.transformer_engine_torch import moe
from accel_bridge.libraries.transformer_engine_torch.fast import grouped as short_way

SPLITS: Final = [32, 0, 64, 16]
CONTRACTS: Final = (
    GROUPED_FLOAT8_QUANTIZE,
    GROUPED_FLOAT8_BLOCK_TRANSPOSE,
    GROUPED_SCALED_MATMUL,
    GROUPED_SCALED_WEIGHT_GRADIENT,
)


class _Device:
    """Has each contract's reference as its own kernel; counts calls, and may spoil a result."""

    def __init__(self, spoiled: str = "") -> None:
        self.counts: dict[str, int] = {}
        self._spoiled = spoiled
        self._kernels = {one: one.kernel(self._counting(one), "counts") for one in CONTRACTS}

    def kernel(self, contract: Contract[Any, Any]) -> Kernel[Any, Any]:
        return self._kernels.get(contract) or active.kernel(contract)

    def _counting(self, contract: Contract[Any, Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.counts[contract.name] = self.counts.get(contract.name, 0) + 1
            made = contract.reference(*args, **kwargs)
            return made * 2 if self._spoiled == contract.name else made

        return run


def _experts(te: ModuleType, fused: bool = True) -> tuple[Any, torch.Tensor]:
    """(a layer of four, which reads [t, 256]; the weights' ``main_grad`` [4, 128, 256])."""
    te.quantization.FP8GlobalStateManager.reset()
    torch.manual_seed(1)
    layer = te.GroupedLinear(
        4, 256, 128, bias=False, params_dtype=torch.bfloat16, device="cuda",
        fuse_wgrad_accumulation=fused,
    )  # fmt: skip
    sums = torch.zeros(4, 128, 256, device="cuda")
    for weight, total in zip(layer.parameters(), sums, strict=True):
        weight.main_grad = total
    return layer, sums


def _run(te: ModuleType, recipe: Any, unwatched: bool) -> list[torch.Tensor]:
    """Output, gradients of input, weights (``main_grad``), after two steps."""
    layer, sums = _experts(te)
    for weight in layer.parameters() if unwatched else ():
        needs_no_placeholder(weight)
    x = torch.randn(sum(SPLITS), 256, device="cuda").bfloat16().requires_grad_()
    for _ in range(2):
        with te.autocast(enabled=True, recipe=recipe):
            out = layer(x, SPLITS)
        out.float().square().mean().backward()
    assert x.grad is not None
    return [out.detach(), x.grad, sums]


@pytest.mark.parametrize("name", ["DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling"])
def test_the_short_way(te: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps, the first of which makes the layer's quantizers."""
    from transformer_engine.common import recipe

    def run(device: _Device | None) -> list[torch.Tensor]:
        if device is not None:
            monkeypatch.setattr(short_way, "kernel", device.kernel)
        return _run(te, getattr(recipe, name)(), unwatched=device is not None)

    apart, device = run(None), _Device()
    torch.testing.assert_close(apart, run(device))
    blocks = name == "Float8BlockScaling"
    assert device.counts == {
        ("grouped_float8_block_transpose" if blocks else "grouped_float8_quantize"): 4
        if blocks
        else 6,
        "grouped_scaled_matmul": 4,
        "grouped_scaled_weight_gradient": 2,
    }
    spoiled = run(_Device("grouped_scaled_matmul"))
    torch.testing.assert_close(spoiled[0], apart[0] * 2)


@pytest.mark.parametrize("name", ["DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling"])
@pytest.mark.parametrize("short", [True, False])
def test_experts_of_any_rows(
    te: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, short: bool
) -> None:
    """Between the layers that pad and take away, as in Megatron's experts."""
    from transformer_engine.common import recipe

    splits, padded = [17, 0, 64, 3], []
    pad, take_away = te.Fp8Padding(len(splits)), te.Fp8Unpadding(len(splits))

    def run() -> list[torch.Tensor]:
        layer, sums = _experts(te, fused=short)
        x = torch.randn(sum(splits), 256, device="cuda").bfloat16().requires_grad_()
        with te.autocast(enabled=True, recipe=getattr(recipe, name)()):
            rows, counts = pad(x, splits)
            padded.append(counts != splits)
            out = take_away(layer(rows, counts), splits)
        out.float().square().mean().backward()
        found = list(sums) if short else [weight.grad for weight in layer.parameters()]
        return [out.detach(), x.grad, *found]  # type: ignore[list-item]

    apart, device = run(), _Device()
    monkeypatch.setattr(short_way, "kernel", device.kernel)
    torch.testing.assert_close(run(), apart)
    by_block = name == "Float8BlockScaling"
    assert padded == [True, by_block]
    # Blocks of 16 rows for one launch, experts with one factor of any; no launch the long way.
    assert device.counts.get("grouped_scaled_matmul", 0) == 2 * short


@pytest.mark.parametrize("name", ["Float8CurrentScaling", "Float8BlockScaling"])
@pytest.mark.parametrize("short", [True, False])
def test_one_weights_gradient_is_no_copy(
    te: ModuleType, monkeypatch: pytest.MonkeyPatch, short: bool, name: str
) -> None:
    """By both ways through a layer; the first of two microbatches replaces what there was."""
    from transformer_engine.common import recipe

    from accel_bridge.libraries.transformer_engine_torch import gemm

    layer = te.Linear(
        256, 48, bias=False, params_dtype=torch.bfloat16, device="cuda",
        fuse_wgrad_accumulation=True,
    )  # fmt: skip
    forward = te.Linear.forward if short else inspect.unwrap(te.Linear.forward)

    def run() -> torch.Tensor:
        te.quantization.FP8GlobalStateManager.reset()
        torch.manual_seed(2)
        layer.weight.main_grad = torch.ones(48, 256, device="cuda")
        for first in (True, False):
            x = torch.randn(144, 256, device="cuda", dtype=torch.bfloat16)
            with te.autocast(enabled=True, recipe=getattr(recipe, name)()):
                out = forward(layer, x, is_first_microbatch=first)
            out.float().square().mean().backward()
        return layer.weight.main_grad  # type: ignore[no-any-return]

    apart, device = run(), _Device()
    monkeypatch.setattr(gemm, "kernel", device.kernel)
    torch.testing.assert_close(run(), apart)
    assert device.counts["grouped_scaled_weight_gradient"] == 2


@pytest.mark.parametrize("one_gather", [True, False])
@pytest.mark.parametrize("splits", [[2, 0, 5], [0, 3, 0], [4, 8], [0, 0]])
def test_rows_are_padded_and_back(
    tex: ModuleType, monkeypatch: pytest.MonkeyPatch, splits: list[int], one_gather: bool
) -> None:
    if not one_gather:  # as in a graph's capture
        monkeypatch.setattr(moe, "_in_one_gather", lambda _: False)
    padded = [-(-one // 4) * 4 for one in splits]
    x = torch.randn(sum(splits), 3, device="cuda")
    out, back = torch.full((sum(padded), 3), 9.0, device="cuda"), torch.empty_like(x)
    tex.fused_multi_row_padding(x, out, splits, padded)
    for rows, all_rows in zip(x.split(splits), out.split(padded), strict=True):
        assert torch.equal(all_rows[: len(rows)], rows)
        assert not all_rows[len(rows) :].any()
    tex.fused_multi_row_unpadding(out, back, padded, splits)
    assert torch.equal(back, x)

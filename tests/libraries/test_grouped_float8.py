"""Experts in FP8: what is computed for all at once is what is computed for each."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from te_support import inside, recipes

pytestmark = pytest.mark.usefixtures("te")

K, M = 144, 272
#: Rows of the experts in each microbatch.
SPLITS = ([32, 0, 144, 16], [0, 16, 16, 176])


def _experts(te: Any, **options: Any) -> Any:
    torch.manual_seed(3)
    module = te.GroupedLinear(4, K, M, params_dtype=torch.bfloat16, **options)
    # Experts of different magnitudes have different scales.
    for index in range(4):
        getattr(module, f"weight{index}").data.mul_(4.0**index)
    if options.get("fuse_wgrad_accumulation"):
        # The last expert's sums come first, as in the buffers of data parallelism.
        buffer = torch.full((4 * M * K,), 0.5)
        for index in range(4):
            place = slice((3 - index) * M * K, (4 - index) * M * K)
            getattr(module, f"weight{index}").main_grad = buffer[place].view(M, K)
    return module


def _train(te: Any, recipe: Any, **options: Any) -> list[torch.Tensor]:
    """Outputs and gradients of two steps of two microbatches, and what the state is then."""
    module = _experts(te, **options)
    made: list[torch.Tensor] = []
    draw = torch.Generator().manual_seed(4)
    for step, (index, splits) in itertools.product(range(2), enumerate(SPLITS)):
        x = torch.randn(sum(splits), K, generator=draw).bfloat16().requires_grad_()
        with te.autocast(enabled=True, recipe=recipe):
            out = module(x * (step + 1), splits, is_first_microbatch=index == 0)
        out.backward(torch.randn(out.shape, generator=draw).bfloat16())
        made += [out.detach(), x.grad]
        if index == 1:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(1.25)
    for parameter in module.parameters():
        main_grad = getattr(parameter, "main_grad", None)
        made.append((parameter.grad if main_grad is None else main_grad).clone())
    for direction in ("scaling_fwd", "scaling_bwd"):
        state = module.fp8_meta[direction]
        made += [getattr(state, name) for name in ("scale", "amax_history") if hasattr(state, name)]
    return made


def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """One expert after another from now on."""
    grouped = inside("module._quantized_grouped")
    monkeypatch.setattr(grouped, "why_apart", lambda *_: "a test")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["delayed", "tensorwise", "blockwise"])
def test_all_experts_at_once_are_one_after_another(
    te: Any, monkeypatch: pytest.MonkeyPatch, name: str, fused: bool
) -> None:
    options = {"bias": not fused, "fuse_wgrad_accumulation": fused}
    operands = inside("module._grouped_float8")
    launches: list[int] = []
    original = operands.quantize_rows
    monkeypatch.setattr(
        operands, "quantize_rows", lambda *a: launches.append(len(a[2])) or original(*a)
    )
    together = _train(te, recipes()[name], **options)
    assert launches == [4] * 8, "rows and gradients of four microbatches"
    _apart(monkeypatch)
    apart = _train(te, recipes()[name], **options)
    assert len(launches) == 8
    assert len(together) == len(apart) > 11
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_wrong_expert_is_found(te: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted error: the scales of the neighbour."""
    right = _train(te, recipes()["tensorwise"])
    operands = inside("module._grouped_float8")
    original = operands.quantize_rows

    def shifted(*arguments: Any) -> Any:
        made = original(*arguments)
        return made._replace(scale_inv=made.scale_inv.roll(1))

    monkeypatch.setattr(operands, "quantize_rows", shifted)
    wrong = _train(te, recipes()["tensorwise"])
    assert not torch.allclose(right[0], wrong[0], rtol=0.1)


def test_weights_are_cast_once_a_step(te: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = inside("module._grouped_float8")
    calls: list[int] = []
    original = operands.quantize_weights
    monkeypatch.setattr(
        operands, "quantize_weights", lambda *a: calls.append(len(a[1])) or original(*a)
    )
    _train(te, recipes()["tensorwise"])
    assert calls == [4, 4]


def test_kept_inputs_and_delayed_gradients_are_the_same(te: Any) -> None:
    recipe = recipes()["tensorwise"]
    plain = _train(te, recipe)
    for one, other in zip(plain, _train(te, recipe, save_original_input=True), strict=True):
        assert torch.equal(one, other)
    module = _experts(te, delay_wgrad_compute=True, bias=False)
    x = torch.randn(32, K, generator=torch.Generator().manual_seed(4)).bfloat16()
    with te.autocast(enabled=True, recipe=recipe):
        out = module(x, [16, 0, 16, 0])
    out.float().square().sum().backward()
    assert module.weight0.grad is None
    module.backward_dw()
    assert module.weight0.grad.abs().max() > 0
    assert module.weight1.grad.abs().max() == 0


def test_what_cannot_be_done_at_once_is_done_apart(te: Any) -> None:
    why = inside("module._grouped_operands").why_apart
    module = _experts(te, bias=False)
    x = torch.randn(32, K).bfloat16()
    with te.autocast(enabled=True, recipe=recipes()["blockwise"]):
        module(x, [16, 0, 16, 0])
    quantizers = module.quantizers["scaling_fwd"]
    weights = [torch.empty(M, K)]
    assert why(quantizers, [16, 16], weights) is None
    assert "refuses" in str(why(quantizers, [16, 15], weights))
    assert "multiples" in str(why(quantizers, [16, 16], [torch.empty(M, K + 8)]))
    assert "quantizers" in str(why([None], [16], weights))


@pytest.mark.parametrize("name", ["delayed", "tensorwise", "blockwise"])
def test_weights_that_are_fp8_themselves(
    te: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    recipe = recipes()[name]

    def made() -> list[torch.Tensor]:
        torch.manual_seed(5)
        with te.quantized_model_init(enabled=True, recipe=recipe):
            module = te.GroupedLinear(3, K, M, bias=False, params_dtype=torch.bfloat16)
        x = torch.randn(64, K).bfloat16().requires_grad_()
        for _ in range(2):
            with te.autocast(enabled=True, recipe=recipe):
                out = module(x, [16, 0, 48])
            out.float().square().sum().backward()
        return [out.detach(), x.grad, *(one.grad for one in module.parameters())]

    operands = inside("module._grouped_float8")
    calls: list[int] = []
    original = operands.quantize_weights
    monkeypatch.setattr(
        operands, "quantize_weights", lambda *a: calls.append(len(a[1])) or original(*a)
    )
    together = made()
    assert calls == [3, 3]
    _apart(monkeypatch)
    for one, other in zip(together, made(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["tensorwise", "blockwise"])
def test_fp8_weights_beside_each_other(te: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("NVTE_ALLOC_CONTIGUOUS_GROUPED_LINEAR_WEIGHTS", "1")
    with te.quantized_model_init(enabled=True, recipe=recipes()[name]):
        module = te.GroupedLinear(3, K, M, bias=False, params_dtype=torch.bfloat16)
    kind = "_data" if name == "tensorwise" else "_rowwise_data"
    parts = [getattr(getattr(module, f"weight{index}"), kind) for index in range(3)]
    places = [part.data_ptr() - parts[0].data_ptr() for part in parts]
    assert places == [0, K * M, 2 * K * M]
    with te.autocast(enabled=True, recipe=recipes()[name]):
        assert module(torch.randn(32, K).bfloat16(), [16, 0, 16]).isfinite().all()

"""Quantized tensors and their GEMMs, made by NVIDIA's quantizers over the extension."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode

from accel_bridge.kernels.float8 import mx_scale, mx_scale_inv

FORMATS: Final = ("delayed", "current", "blocks", "squares", "mx")
#: Largest error of E4M3, of a number beyond the subnormal ones.
HALF_STEP: Final = 2.0**-4


def _quantizer(te: ModuleType, name: str, **usage: bool) -> Any:
    e4m3 = te.DType.kFloat8E4M3
    if name == "delayed":
        scale, amax = torch.full((1,), 32.0), torch.zeros(1)
        return te.Float8Quantizer(scale, amax, e4m3, **usage)
    if name == "current":
        return te.Float8CurrentScalingQuantizer(e4m3, device=torch.device("cpu"), **usage)
    usage = {"rowwise": True, "columnwise": True} | usage
    if name == "mx":
        return te.MXFP8Quantizer(e4m3, **usage)
    return te.Float8BlockQuantizer(e4m3, block_scaling_dim=1 + (name == "squares"), **usage)


def _buffers(tensor: Any) -> dict[str, torch.Tensor]:
    kept = (kind + way for way in ("data", "scale_inv") for kind in ("_rowwise_", "_columnwise_"))
    names = ("_data", "_transpose", "_scale_inv", *kept)
    found = {name: getattr(tensor, name, None) for name in names}
    return {name: one for name, one in found.items() if one is not None}


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(2, 96, 160, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("way", ["both", "rowwise", "columnwise"])
@pytest.mark.parametrize("name", FORMATS)
def test_round_trip(te: ModuleType, name: str, way: str, x: torch.Tensor) -> None:
    """Every direction gives the numbers back within half a step, and has TE's own shapes."""
    usage = {"rowwise": way != "columnwise", "columnwise": way != "rowwise"}
    quantizer = _quantizer(te, name, **usage)
    if way == "columnwise" and name in ("delayed", "current"):
        with pytest.raises(NotImplementedError, match="Columnwise-only"):
            quantizer(x)
        return
    made = quantizer(x)
    step = HALF_STEP * x.abs().clamp(min=x.abs().max() / 400)
    assert ((made.dequantize() - x).abs() <= step).all()
    empty = quantizer.make_empty(x.shape, dtype=x.dtype, device="cpu")
    shapes = {key: one.shape for key, one in _buffers(made).items()}
    assert shapes == {key: one.shape for key, one in _buffers(empty).items()}


@pytest.mark.parametrize("name", FORMATS)
def test_overwritten_in_place(te: ModuleType, name: str, x: torch.Tensor) -> None:
    """Buffers stay where they are, and all of them as they are while the flag is set."""
    quantizer = _quantizer(te, name)
    made = quantizer(x)
    before = {key: (one.data_ptr(), one.clone()) for key, one in _buffers(made).items()}
    quantizer.update_quantized(x * 3, made, noop_flag=torch.ones(1))
    for key, one in _buffers(made).items():
        assert one.data_ptr() == before[key][0]
        assert torch.equal(one, before[key][1])
    quantizer.update_quantized(x * 3, made, noop_flag=torch.zeros(1))
    fresh = _buffers(quantizer(x * 3))
    for key, one in _buffers(made).items():
        assert one.data_ptr() == before[key][0]
        assert torch.equal(one, fresh[key])


def test_amax_grows(te: ModuleType, x: torch.Tensor) -> None:
    """The amax of delayed scaling is the largest of all that was quantized since it was reset."""
    quantizer = _quantizer(te, "delayed")
    for factor, expected in ((1.0, 1.0), (2.0, 2.0), (0.5, 2.0)):
        quantizer(x * factor)
        assert quantizer.amax.item() == pytest.approx(x.abs().max().item() * expected)
    with torch.inference_mode():
        quantizer.amax = torch.zeros(1)
    quantizer(x)
    assert quantizer.amax.item() == x.abs().max().item()


def test_mx_factors() -> None:
    """The least power of two that brings the largest magnitude into the format's range."""
    amax = torch.tensor([0.0, 2.0**-140, 1e-30, 1.0, 447.9, 448.0, 448.1, 3e38, torch.inf])
    made = mx_scale_inv(amax, torch.float8_e4m3fn)
    exponents = made[:-1].to(torch.int32) - 127
    finite = amax[:-1].double()
    assert (finite <= 448 * 2.0 ** exponents.double()).all()
    smaller = exponents > -127
    assert (finite > 448 * 2.0 ** (exponents.double() - 1))[smaller].all()
    assert torch.equal(mx_scale(made)[:-1].double(), 2.0 ** -exponents.double())
    nan = mx_scale_inv(torch.tensor([torch.nan]), torch.float8_e4m3fn)
    assert mx_scale(nan).isnan().all()


def _operands(te: ModuleType, name: str, layout: str) -> tuple[Any, Any]:
    """A [64, 96] and B of sizes that the layout multiplies along 96 (T) or 64 (N)."""
    generator = torch.Generator().manual_seed(2)
    shapes = {"TN": ((64, 96), (3, 32, 96)), "NN": ((64, 96), (3, 32, 64)), "NT": ((64, 96),) * 2}
    a, b = (torch.randn(shape, generator=generator) for shape in shapes[layout])
    b = torch.randn(64, 32, generator=generator) if layout == "NT" else b
    second = "blocks" if name == "squares" else name
    return _quantizer(te, name)(a), _quantizer(te, second)(b)


def _gemm(te: ModuleType, a: Any, b: Any, layout: str, **options: Any) -> torch.Tensor:
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    out, *_ = general_gemm(a, b, out_dtype=torch.float32, layout=layout, **options)
    return out  # type: ignore[no-any-return]


def _plain(a: torch.Tensor, b: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "TN":
        return b @ a.T
    return b @ a if layout == "NN" else b.T @ a


@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
@pytest.mark.parametrize("name", FORMATS)
def test_gemm(te: ModuleType, name: str, layout: str) -> None:
    """A GEMM of quantized operands against that of their numbers; a wrong factor is noticed."""
    a, b = _operands(te, name, layout)
    exact = name in ("delayed", "current", "squares")
    rtol, atol = (1e-4, 1e-4) if exact else (0.1, 2.0)
    expected = _plain(a.dequantize(), b.dequantize(), layout)
    made = _gemm(te, a, b, layout, use_split_accumulator=True)
    torch.testing.assert_close(made, expected, rtol=rtol, atol=atol)
    into = torch.ones_like(made)
    _gemm(te, a, b, layout, out=into, accumulate=True, use_split_accumulator=True)
    torch.testing.assert_close(into, made + 1)
    for one in _buffers(a):
        if one.endswith("scale_inv"):
            buffer = getattr(a, one)
            setattr(a, one, buffer + 1 if buffer.dtype == torch.uint8 else buffer * 2)
    wrong = _gemm(te, a, b, layout, use_split_accumulator=True)
    torch.testing.assert_close(wrong, made * 2)


def test_gemm_refuses_one_quantized(te: ModuleType, tex: ModuleType) -> None:
    a, b = _operands(te, "current", "TN")
    with pytest.raises(RuntimeError, match="two quantized operands or none"):
        _gemm(te, a, b.dequantize(), "TN")


@pytest.mark.parametrize("name", FORMATS)
def test_fake(te: ModuleType, name: str) -> None:
    """All of it runs without numbers, as rehearsing does."""
    with FakeTensorMode():
        one, other = (_quantizer(te, name) for _ in range(2))
        other = _quantizer(te, "blocks") if name == "squares" else other
        a, b = one(torch.empty(64, 96)), other(torch.empty(3, 32, 96))
        one.update_quantized(torch.empty(64, 96), a, noop_flag=torch.zeros(1))
        assert _gemm(te, a, b, "TN").shape == (3, 32, 64)
        assert a.dequantize().shape == (64, 96)


def test_a_rehearsal_takes_the_attention_of_a_training(te: ModuleType) -> None:
    from transformer_engine.pytorch.attention.dot_product_attention import utils

    asked = utils.AttentionParams(qkv_type=FakeTensor)
    choose = utils.get_attention_backend
    assert choose(asked)[-1][1]
    assert not inspect.unwrap(choose)(asked)[-1][1]


def test_the_default_recipe_is_the_capabilitys(te: ModuleType) -> None:
    """Hopper's, although MXFP8 is served where it is asked for: it wants other sizes."""
    assert te.quantization.check_mxfp8_support()[0]
    assert te.quantization.get_default_fp8_recipe().delayed()


def test_other_formats_are_refused(te: ModuleType, tex: ModuleType, x: torch.Tensor) -> None:
    class Unknown(te.Quantizer):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__(rowwise=True, columnwise=True)

    with pytest.raises(NotImplementedError, match="Unknown: its format is not served"):
        tex.quantize(x, Unknown())


@pytest.fixture
def recipes(te: ModuleType) -> Iterator[Any]:
    from transformer_engine.common import recipe

    yield recipe
    te.quantization.FP8GlobalStateManager.reset()


@pytest.mark.parametrize(
    "name",
    ["DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling"],
)
def test_layers_learn(te: ModuleType, recipes: Any, name: str) -> None:
    """Two layers and experts (one without rows) have the gradients of bfloat16, nearly."""
    x = torch.randn(128, 256, generator=torch.Generator().manual_seed(3)).bfloat16().cuda()

    def gradients(recipe: Any) -> list[torch.Tensor]:
        torch.manual_seed(4)
        options = {"params_dtype": torch.bfloat16, "device": "cuda"}
        layer = te.LayerNormLinear(256, 384, **options)
        experts = te.GroupedLinear(3, 384, 256, **options)
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            for _ in range(2):  # the second with the scales of the first
                layer.zero_grad(), experts.zero_grad()
                experts(layer(x), [32, 96, 0]).float().square().mean().backward()
        parameters = [*layer.parameters(), *experts.parameters()]
        return [parameter.grad.float() for parameter in parameters]

    for plain, quantized in zip(gradients(None), gradients(getattr(recipes, name)()), strict=True):
        assert (plain - quantized).norm() <= 0.1 * plain.norm()
        assert plain.norm() == 0 or not torch.equal(plain, quantized)


def test_memory_of_fake_parameters(te: ModuleType) -> None:
    """Rehearsing counts a quantized parameter by its parts: it has no memory itself."""
    from accel_bridge.apps.rehearse.replaced import swap
    from accel_bridge.apps.rehearse.session import _storages

    with FakeTensorMode():
        one, other = (_quantizer(te, "squares")(torch.empty(256, 128)) for _ in range(2))
        sizes = sorted(storage.nbytes() for storage in _storages(one))
        assert sizes == [16, 32, 256 * 128, 256 * 128]
        data = other._rowwise_data
        swap(one, other)
        assert one._rowwise_data is data

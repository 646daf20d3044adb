"""Quantized tensors and their GEMMs, made by NVIDIA's quantizers over the extension."""

from __future__ import annotations

import contextlib
import inspect
import pickle
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from ops_support import normal
from torch._subclasses import FakeTensor, FakeTensorMode

from accel_bridge.kernels.float8 import mx_scale, mx_scale_inv

FORMATS: Final = ("delayed", "current", "blocks", "squares", "mx")
#: Largest error of each dtype, of a number beyond the subnormal ones.
HALF_STEP: Final = {"kFloat8E4M3": 2.0**-4, "kFloat8E5M2": 2.0**-3}


def _quantizer(te: ModuleType, name: str, dtype: str = "kFloat8E4M3", **usage: bool) -> Any:
    kind = getattr(te.DType, dtype)
    if name == "delayed":
        scale, amax = torch.full((1,), 32.0), torch.zeros(1)
        return te.Float8Quantizer(scale, amax, kind, **usage)
    if name == "current":
        return te.Float8CurrentScalingQuantizer(kind, device=torch.device("cpu"), **usage)
    usage = {"rowwise": True, "columnwise": True} | usage
    if name == "mx":
        return te.MXFP8Quantizer(kind, **usage)
    return te.Float8BlockQuantizer(kind, block_scaling_dim=1 + (name == "squares"), **usage)


def _buffers(tensor: Any) -> dict[str, torch.Tensor]:
    kept = (kind + way for way in ("data", "scale_inv") for kind in ("_rowwise_", "_columnwise_"))
    names = ("_data", "_transpose", "_scale_inv", *kept)
    found = {name: getattr(tensor, name, None) for name in names}
    return {name: one for name, one in found.items() if one is not None}


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return normal(2, 96, 160, seed=1)


@pytest.mark.parametrize("dtype", HALF_STEP)
@pytest.mark.parametrize("way", ["both", "rowwise", "columnwise"])
@pytest.mark.parametrize("name", FORMATS)
def test_round_trip(te: ModuleType, name: str, way: str, dtype: str, x: torch.Tensor) -> None:
    """Every direction gives the numbers back within half a step, and has TE's own shapes."""
    usage = {"rowwise": way != "columnwise", "columnwise": way != "rowwise"}
    quantizer = _quantizer(te, name, dtype, **usage)
    if way == "columnwise" and name in ("delayed", "current"):
        with pytest.raises(NotImplementedError, match="Columnwise-only"):
            quantizer(x)
        return
    made = quantizer(x)
    step = HALF_STEP[dtype] * x.abs().clamp(min=x.abs().max() / 400)
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
    b = normal(*{"TN": (3, 32, 96), "NN": (3, 32, 64), "NT": (64, 32)}[layout], seed=3)
    second = "blocks" if name == "squares" else name
    return _quantizer(te, name)(normal(64, 96, seed=2)), _quantizer(te, second)(b)


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


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({}, ""),
        ({"grad": True, "gelu": True, "gelu_in": torch.zeros(32, 48)}, ""),
        ({"gelu": True}, "Epilogue requested"),
        ({"grad": True, "bias": torch.zeros(48)}, "Epilogue requested"),
        ({"out_dtype": torch.float32, "grad": True, "gelu": True}, "unsupported value"),
        ({"rows": 30}, "Outer dimension requirement .8."),
        ({"columns": 44}, "Outer dimension requirement .8."),
        ({"k": 56}, "Leading dimension requirement .16."),
    ],
)
def test_block_scaled_gemms_that_cublas_lacks(
    te: ModuleType, change: dict[str, Any], error: str
) -> None:
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    call = {"out_dtype": torch.bfloat16, "use_split_accumulator": True, **change}
    rows, columns, k = (call.pop(*size) for size in (("rows", 32), ("columns", 48), ("k", 64)))
    operands = (
        _quantizer(te, "squares")(normal(columns, k)),
        _quantizer(te, "blocks")(normal(rows, k)),
    )
    with pytest.raises(RuntimeError, match=error) if error else contextlib.nullcontext():
        assert general_gemm(*operands, **call)[0].shape == (rows, columns)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gemms_of_plain_tensors(te: ModuleType, dtype: torch.dtype) -> None:
    from torch.nn import functional
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    x, weight = normal(3, 5, 16).to(dtype), normal(24, 16, seed=1).to(dtype)
    gradient, bias = normal(3, 5, 24, seed=2).to(dtype), normal(24, seed=3).to(dtype)
    assert torch.equal(general_gemm(weight, x, bias=bias)[0], functional.linear(x, weight, bias))
    assert torch.equal(general_gemm(weight, gradient, layout="NN", grad=True)[0], gradient @ weight)
    main_grad = torch.ones(24, 16)
    result, grad_bias, _, _ = general_gemm(
        x, gradient, layout="NT", out=main_grad, accumulate=True, grad=True, bias=bias
    )
    rows, inputs = gradient.reshape(-1, 24).float(), x.reshape(-1, 16).float()
    assert result is main_grad
    # Never rounded to the operands' dtype.
    torch.testing.assert_close(main_grad, 1 + rows.t() @ inputs)
    torch.testing.assert_close(grad_bias, rows.sum(0), rtol=1e-5, atol=1e-5)
    wide = general_gemm(weight, x, out_dtype=torch.float32)[0]
    torch.testing.assert_close(wide, x.float() @ weight.float().t())
    activated, _, before, _ = general_gemm(weight, x, gelu=True)
    assert torch.equal(activated, functional.gelu(before, approximate="tanh"))
    with pytest.raises(ValueError, match="contiguous"):
        general_gemm(weight, x, out=torch.empty(24, 3, 5).permute(1, 2, 0))


@pytest.mark.parametrize("name", FORMATS[:4])
def test_quantized_tensors_are_tensors(te: ModuleType, name: str) -> None:
    quantized = _quantizer(te, name)(normal(128, 128).cuda())
    plain = quantized.dequantize()
    assert torch.equal(quantized + 1, plain + 1)
    assert torch.equal(pickle.loads(pickle.dumps(quantized)).dequantize(), plain)
    other = torch.empty_like(quantized)
    other.copy_(quantized)
    assert torch.equal(other.dequantize(), plain)
    other.mul_(0.5)
    torch.testing.assert_close(other.dequantize(), plain * 0.5, rtol=0, atol=1e-2)
    parameter = torch.nn.Parameter(quantized)
    parameter.sum().backward()
    assert parameter.grad is not None
    assert torch.equal(parameter.grad, torch.ones(128, 128))
    # Megatron's optimizer sorts parameters by this name.
    assert parameter.type() == torch.ones(1, device="cuda").type() == "torch.cuda.FloatTensor"
    module = torch.nn.Module()
    module.weight = parameter
    assert type(module.bfloat16().weight.data) is type(quantized)
    # Megatron's FSDP moves them into memory of its own, and refuses a view.
    numbers = [one for name, one in _buffers(quantized).items() if "scale" not in name]
    assert all(one._base is None for one in numbers)


@pytest.fixture
def group() -> Iterator[None]:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield None
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["delayed", "current", "squares"])
def test_master_weights_give_the_weights_that_a_cast_gives(
    te: ModuleType, name: str, group: None
) -> None:
    """In two parts, as an optimizer that is spread over ranks would."""
    from transformer_engine.pytorch.tensor.utils import (
        post_all_gather_processing,
        quantize_master_weights,
        replace_raw_data,
    )

    weight = _quantizer(te, name)(normal(256, 130))
    buffer = torch.zeros(256 * 130, dtype=torch.uint8)
    replace_raw_data(weight, buffer.view(256, 130))
    new = normal(256, 130, seed=5) * 3
    expected = _quantizer(te, name)(new)
    if name == "delayed":
        quantize_master_weights([weight], [new.view(-1)[7:]], [7], None)
        quantize_master_weights([weight], [new.view(-1)[:7]], [0], None)
    else:
        # The scale needs every part: the other rank's are its own call in a real run.
        quantize_master_weights([weight], [new.view(-1)], [0], None)
    assert torch.equal(weight.get_data_tensors()[0], expected.get_data_tensors()[0])
    assert weight.get_data_tensors()[0].data_ptr() == buffer.data_ptr()
    post_all_gather_processing([weight, torch.ones(2)])
    assert torch.equal(weight.get_data_tensors()[1], expected.get_data_tensors()[1])
    torch.testing.assert_close(weight.dequantize(), expected.dequantize(), rtol=0, atol=0)


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

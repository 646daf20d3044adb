"""FP8 of Transformer Engine over the extension: tensors, GEMMs, weights, optimizers."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.usefixtures("on_device")


@pytest.fixture
def tex() -> Any:
    import transformer_engine_torch as module

    return module


def numbers(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def quantizers(te: Any, tex: Any, dtype: str = "kFloat8E4M3") -> dict[str, Any]:
    """One of each kind, with good scales for normally distributed numbers."""
    kind = getattr(tex.DType, dtype)
    one, zero = torch.full((1,), 64.0), torch.zeros(1)
    both = {"rowwise": True, "columnwise": True}
    return {
        "delayed": te.Float8Quantizer(one, zero, kind),
        "current": te.Float8CurrentScalingQuantizer(kind, device="cpu"),
        "rows": te.Float8BlockQuantizer(kind, **both, block_scaling_dim=1),
        "squares": te.Float8BlockQuantizer(kind, **both, block_scaling_dim=2),
    }


KINDS = ("delayed", "current", "rows", "squares")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["kFloat8E4M3", "kFloat8E5M2"])
def test_numbers_come_back_within_half_a_step(te: Any, tex: Any, kind: str, dtype: str) -> None:
    x = numbers(130, 200)
    quantized = quantizers(te, tex, dtype)[kind](x)
    step = 2.0**-3 if dtype == "kFloat8E4M3" else 2.0**-2
    error = (quantized.dequantize() - x).abs()
    assert (error <= x.abs() * step / 2 + 1e-3).all()
    assert error.max() > 0, "nothing was quantized"
    for part in quantized.get_data_tensors():
        assert part.dtype == torch.uint8


@pytest.mark.parametrize("kind", KINDS)
def test_both_copies_hold_the_same_tensor(te: Any, tex: Any, kind: str) -> None:
    x = numbers(128, 256)
    quantized = quantizers(te, tex)[kind](x)
    rows, columns = quantized.get_data_tensors()
    if kind != "rows":  # whose copies have scales of their own
        assert torch.equal(rows.t(), columns)
    storage = quantizers(te, tex)[kind]
    storage.internal = True
    inner = storage(x)
    assert not isinstance(inner, torch.Tensor)
    tensors, owner = te.prepare_for_saving(inner, x)
    assert inner.get_data_tensors() == (None, None)
    restored, plain = te.restore_from_saved(owner, tensors)
    assert torch.equal(restored.dequantize(), quantized.dequantize())
    assert plain is x


@pytest.mark.parametrize("kind", KINDS)
def test_gemms_of_quantized_tensors(te: Any, tex: Any, kind: str) -> None:
    """All three layouts; exact for the dequantized numbers, close for the original ones."""
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    x, weight, gradient = numbers(128, 256), numbers(384, 256, seed=1), numbers(128, 384, seed=2)
    made = quantizers(te, tex)
    maker = made[kind if kind != "squares" else "rows"]
    qx, qg = maker(x), maker(gradient)
    qw = made["squares" if kind == "rows" else kind](weight)
    calls = {
        "TN": (qw, qx, x @ weight.t()),
        "NN": (qw, qg, gradient @ weight),
        "NT": (qx, qg, gradient.t() @ x),
    }
    for layout, (a, b, exact) in calls.items():
        precise = {"layout": layout, "use_split_accumulator": True}
        output = general_gemm(a, b, out_dtype=torch.float32, **precise)[0]
        assert output.shape == exact.shape
        distance = (output - exact).norm() / exact.norm()
        assert 1e-4 < distance < 0.06, layout
        total = torch.ones_like(exact)
        general_gemm(a, b, out=total, accumulate=True, **precise)
        torch.testing.assert_close(total, output + 1)


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
    te: Any, tex: Any, change: dict[str, Any], error: str
) -> None:
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    call = {"out_dtype": torch.bfloat16, "use_split_accumulator": True, **change}
    rows, columns, k = (call.pop(*size) for size in (("rows", 32), ("columns", 48), ("k", 64)))
    made = quantizers(te, tex)
    operands = made["squares"](numbers(columns, k)), made["rows"](numbers(rows, k))
    with pytest.raises(RuntimeError, match=error) if error else contextlib.nullcontext():
        assert general_gemm(*operands, **call)[0].shape == (rows, columns)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gemms_of_plain_tensors(te: Any, dtype: torch.dtype) -> None:
    from torch.nn import functional
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    x, weight = numbers(3, 5, 16).to(dtype), numbers(24, 16, seed=1).to(dtype)
    gradient, bias = numbers(3, 5, 24, seed=2).to(dtype), numbers(24, seed=3).to(dtype)
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
    with pytest.raises(AssertionError, match="layout"):
        general_gemm(weight, x, layout="TT")


@pytest.mark.parametrize("together", [False, True])
def test_grouped_gemms_are_single_ones(te: Any, together: bool) -> None:
    """Weights in one buffer take one launch, others take one each."""
    from transformer_engine.pytorch.cpp_extensions import general_gemm, general_grouped_gemm

    counts = [4, 0, 7]
    buffer = numbers(3, 8, 16, seed=1)
    weights = list(buffer) if together else [weight.clone() for weight in buffer]
    x, gradient = numbers(11, 16), numbers(11, 8, seed=2)
    biases = [torch.full((8,), float(i)) for i in range(3)]
    output = torch.empty(11, 8)
    general_grouped_gemm(
        weights,
        list(x.split(counts)),
        [output],
        [None] * 3,
        torch.float32,
        m_splits=counts,
        single_output=True,
        bias=biases,
        use_bias=True,
    )
    parts = zip(x.split(counts), weights, biases, strict=True)
    singles = [general_gemm(weight, rows, bias=bias)[0] for rows, weight, bias in parts]
    torch.testing.assert_close(output, torch.cat(singles))
    grads = [torch.full((8, 16), 2.0) for _ in counts]
    general_grouped_gemm(
        list(x.split(counts)),
        list(gradient.split(counts)),
        grads,
        [None] * 3,
        torch.float32,
        layout="NT",
        m_splits=counts,
        grad=True,
        accumulate=True,
    )
    for grad, rows, inputs in zip(grads, gradient.split(counts), x.split(counts), strict=True):
        torch.testing.assert_close(grad, 2 + rows.t() @ inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_tensors_are_tensors(te: Any, tex: Any, kind: str) -> None:
    x = numbers(128, 128).cuda()
    quantized = quantizers(te, tex)[kind](x)
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
    assert torch.equal(parameter.grad, torch.ones(128, 128))
    # Megatron's optimizer sorts parameters by this name.
    assert parameter.type() == torch.ones(1, device="cuda").type() == "torch.cuda.FloatTensor"
    module = torch.nn.Module()
    module.weight = parameter
    assert type(module.bfloat16().weight.data) is type(quantized)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_no_view_of_other_memory(te: Any, tex: Any, kind: str) -> None:
    quantized = quantizers(te, tex)[kind](numbers(2, 64, 128))
    names = ("_rowwise_data", "_columnwise_data", "_data", "_transpose")
    parts = [part for name in names if (part := getattr(quantized, name, None)) is not None]
    assert parts
    # Megatron's FSDP moves them into memory of its own, and refuses a view.
    assert all(part._base is None for part in parts)


def test_a_noop_flag_leaves_everything_as_it_is(te: Any, tex: Any) -> None:
    for kind, maker in quantizers(te, tex).items():
        quantized = maker(numbers(128, 128))
        before = quantized.dequantize()
        quantized.quantize_(numbers(128, 128, seed=1), noop_flag=torch.ones(1))
        assert torch.equal(quantized.dequantize(), before), kind
        quantized.quantize_(numbers(128, 128, seed=1), noop_flag=torch.zeros(1))
        assert not torch.equal(quantized.dequantize(), before), kind


def test_scales_of_delayed_scaling_follow_the_history(tex: Any) -> None:
    history = torch.tensor([[0.0, 9.0], [2.0, 8.0], [4.0, 0.0]])
    scale = torch.tensor([1.0, 3.0])
    tex.fused_amax_and_scale_update_after_reduction(
        torch.tensor([1.0, 0.0]), [history], [scale], "max", tex.DType.kFloat8E4M3, 1
    )
    expected = torch.tensor([448 / 2 / 4, 448 / 2 / 9])
    assert torch.equal(scale, expected)
    assert history.tolist() == [[0.0, 0.0], [4.0, 0.0], [1.0, 9.0]]
    # Nothing was quantized: history and scale stay.
    still = history.clone()
    still[0] = 0
    tex.fused_amax_and_scale_update_after_reduction(
        torch.zeros(2), [history], [scale], "most_recent", tex.DType.kFloat8E4M3, 0
    )
    assert torch.equal(history, still)
    assert torch.equal(scale, expected)


@pytest.fixture
def group() -> Iterator[None]:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield None
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["delayed", "current", "squares"])
def test_master_weights_give_the_weights_that_a_cast_gives(
    te: Any, tex: Any, kind: str, group: None
) -> None:
    """In two parts, as an optimizer that is spread over ranks would."""
    from transformer_engine.pytorch.tensor.utils import (
        post_all_gather_processing,
        quantize_master_weights,
        replace_raw_data,
    )

    weight = quantizers(te, tex)[kind](numbers(256, 130))
    buffer = torch.zeros(256 * 130, dtype=torch.uint8)
    replace_raw_data(weight, buffer.view(256, 130))
    new = numbers(256, 130, seed=5) * 3
    expected = quantizers(te, tex)[kind](new)
    if kind == "delayed":
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


def test_parts_of_a_weight_share_the_scales_of_its_blocks(tex: Any) -> None:
    weight = numbers(200, 150)
    whole, start = torch.zeros(2, 4), 1234
    tex.fp8_block_scaling_compute_partial_amax(weight, whole, 200, 150, 0, 128)
    assert whole[1, 1] == weight[128:, 128:].abs().max()
    assert whole[0, 2] == 0
    flat = weight.view(-1)
    parts = [torch.zeros(2, 4) for _ in range(2)]
    pieces = (flat[:start], 0), (flat[start:], start)
    for amax, (piece, offset) in zip(parts, pieces, strict=True):
        tex.fp8_block_scaling_compute_partial_amax(piece, amax, 200, 150, offset, 128)
    assert torch.equal(torch.maximum(*parts), whole)


def test_packed_sequences_are_shared_fairly(tex: Any) -> None:
    starts = torch.tensor([0, 8, 24], dtype=torch.int32)
    found = [tex.thd_get_partitioned_indices(starts, 24, 2, rank).tolist() for rank in (0, 1)]
    assert found[0] == [0, 1, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23]
    assert sorted(found[0] + found[1]) == list(range(24))

"""Which attention serves a call, and the band that is handed over."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from accel_bridge.apps.cli.backends import kernel_rows
from accel_bridge.backends.cuda._backend import CudaBackend
from accel_bridge.backends.cuda.kernels import (
    _attention_rules,
    _flash4,
    _frontend,
    attention,
    weight_gradient,
)
from accel_bridge.backends.cuda.kernels._choice import may_compile
from accel_bridge.backends.cuda.kernels._flash import Band, Packing, filled_up
from accel_bridge.backends.cuda.kernels.attention import Call, choose
from accel_bridge.backends.cuda.kernels.norms import choose as choose_norm
from accel_bridge.kernels import (
    ATTENTION,
    CONTRACTS,
    WEIGHT_GRADIENT,
    AttentionMask,
    AttentionOptions,
    Layout,
)

CAUSAL = Call(torch.bfloat16, 64, 64, False, 4096, 4096, "causal")
HOPPER = (9, 0)


#: What is installed -> the call that the rows change, and (change, compute, name of the choice).
CHOICES: dict[str, tuple[Call, list[tuple[dict[str, object], tuple[int, int], str]]]] = {
    "": (
        CAUSAL,
        [
            ({}, HOPPER, "cudnn"),
            ({"dropout": True}, HOPPER, "cudnn"),
            ({"grouped": True}, HOPPER, "cudnn"),
            ({}, (8, 0), "flash"),
            ({}, (7, 5), "sdpa"),
            ({"d": 256, "dv": 256}, HOPPER, "cudnn"),
            ({"d": 256, "dv": 256}, (8, 0), "flash"),
            ({"d": 192, "dv": 128}, HOPPER, "cudnn"),
            ({"d": 192, "dv": 128, "dropout": True}, HOPPER, "cudnn"),
            ({"d": 192, "dv": 128}, (8, 0), "flash"),
            ({"d": 192, "dv": 128, "packed": True, "kind": "band"}, HOPPER, "flash"),
            ({"d": 128, "dv": 64, "kind": "band"}, HOPPER, "flash"),
            ({"d": 192, "dv": 128, "extras": True}, HOPPER, "flash"),
            ({"d": 192, "dv": 128, "kind": "explicit"}, HOPPER, "sdpa"),
            ({"d": 576, "dv": 512}, HOPPER, "sdpa"),
            ({"d": 40, "dv": 40}, HOPPER, "cudnn"),
            ({"d": 24, "dv": 24}, HOPPER, "flash"),
            ({"d": 100, "dv": 100}, HOPPER, "flash"),
            ({"sq": 1, "kind": "full"}, HOPPER, "flash"),
            ({"d": 36, "dv": 36}, HOPPER, "flash"),
            ({"d": 64, "dv": 32}, HOPPER, "cudnn"),
            ({"dtype": torch.float32}, HOPPER, "sdpa"),
            ({"kind": "explicit"}, HOPPER, "sdpa"),
            ({"kind": "band"}, HOPPER, "flex"),
            ({"kind": "band", "window": True}, HOPPER, "flex"),
            ({"kind": "band", "dropout": True}, HOPPER, "flash"),
            ({"kind": "band", "sq": 1000, "sk": 1000}, HOPPER, "flash"),
            ({"extras": True}, HOPPER, "flash"),
            ({"packed": True, "kind": "band"}, HOPPER, "flash"),
        ],
    ),
    "without_frontend": (
        replace(CAUSAL, kind="band", window=True),
        [
            ({}, HOPPER, "frontend"),
            ({"grouped": True, "d": 128, "dv": 128}, HOPPER, "frontend"),
            ({}, (8, 0), "flex"),
            ({"window": False}, HOPPER, "flex"),
            ({"dropout": True}, HOPPER, "flash"),
            ({"extras": True}, HOPPER, "flash"),
            ({"sk": 8192}, HOPPER, "flash"),
            ({"packed": True}, HOPPER, "flash"),
        ],
    ),
    "without_flash4": (
        CAUSAL,
        [
            ({}, HOPPER, "flash4"),
            ({"kind": "full", "d": 128, "dv": 128, "grouped": True}, HOPPER, "flash4"),
            ({}, (10, 0), "cudnn"),
            ({"dropout": True}, HOPPER, "cudnn"),
            ({"d": 256, "dv": 256}, HOPPER, "cudnn"),
            ({"d": 128}, HOPPER, "cudnn"),
            ({"sk": 8192, "kind": "full"}, HOPPER, "cudnn"),
            ({"sq": 1024, "sk": 1024}, HOPPER, "cudnn"),
            ({"extras": True}, HOPPER, "flash"),
            ({"dtype": torch.float32}, HOPPER, "sdpa"),
        ],
    ),
}


@pytest.mark.parametrize(
    ("installed", "call", "change", "compute", "name"),
    [(one, call, *row) for one, (call, rows) in CHOICES.items() for row in rows],
)
def test_choice(
    installed: str,
    call: Call,
    change: dict[str, object],
    compute: tuple[int, int],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for one in ("without_frontend", "without_flash4"):
        why = None if one == installed else "it is not installed"
        monkeypatch.setattr(_attention_rules, one, lambda why=why: why)
    choose.cache_clear()
    choice = choose(replace(call, **change), compute)  # type: ignore[arg-type]
    choose.cache_clear()
    assert choice.name == name
    assert choice.why


@pytest.mark.parametrize("layout", ["SBHD", "BSHD", "BNSD"])
@pytest.mark.parametrize(("return_lse", "captured"), [(False, False), (True, False), (False, True)])
def test_flash_attention_4_gets_the_call(
    layout: Layout, return_lse: bool, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes, scale and mask, for a function of its signature; no log-sum-exp, in no graph."""
    calls = []

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: object) -> object:
        calls.append((q.shape, k.shape, given["deterministic"]))
        bnsd = (one.transpose(1, 2) for one in (q, k, v))
        result = torch.nn.functional.scaled_dot_product_attention(
            *bnsd,
            is_causal=bool(given["causal"]),
            scale=given["softmax_scale"],  # type: ignore[arg-type]
            enable_gqa=True,
        )
        return result.transpose(1, 2), None

    def cudnn(tensors: tuple[torch.Tensor, ...], *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        return tensors[0], tensors[0][..., 0]

    monkeypatch.setattr(_attention_rules, "without_flash4", lambda: None)
    monkeypatch.setattr(attention, "capability", lambda device: HOPPER)
    monkeypatch.setattr(attention, "_cudnn", cudnn)
    monkeypatch.setattr(_flash4, "_function", lambda: function)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured)
    choose.cache_clear()
    sizes = {"b": 2, "s": 2048, "n": 4, "d": 64}
    order = {"SBHD": "sbnd", "BSHD": "bsnd", "BNSD": "bnsd"}[layout]

    def made(heads: int) -> torch.Tensor:
        return torch.randn([{**sizes, "n": heads}[one] for one in order], dtype=torch.bfloat16)

    query, key, value = made(4), made(2), made(2)
    options = AttentionOptions(
        layout=layout, mask=AttentionMask(causal=True), scale=0.3, return_lse=return_lse
    )
    result = attention.attention(query, key, value, options)
    choose.cache_clear()
    if return_lse or captured:
        assert not calls
        return
    assert calls == [((2, 2048, 4, 64), (2, 2048, 2, 64), False)]
    expected = ATTENTION.reference(query, key, value, options)
    assert isinstance(result, torch.Tensor)
    assert isinstance(expected, torch.Tensor)
    assert (result - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize(
    ("tokens", "dtype", "taken"),
    [(64, torch.float32, True), (32, torch.float32, False), (64, torch.bfloat16, False)],
)
def test_large_weight_gradients_are_quacks(
    accumulate: bool, tokens: int, dtype: torch.dtype, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above its size, and only where the sum has 32 bits; both ways give the reference's sum."""
    calls = []

    def gemm(
        a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *sizes: object, **given: object
    ) -> None:
        assert given["b_kn"]
        calls.append(sizes)
        out.copy_(a.float() @ b.float() + (out if given["add_to_output"] else 0.0))

    def addmm(
        sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, **given: object
    ) -> None:
        sums.mul_(given["beta"]).add_(a.float() @ b.float())  # type: ignore[arg-type]

    monkeypatch.setattr(weight_gradient, "capability", lambda device: HOPPER)
    monkeypatch.setattr(weight_gradient, "without_quack", lambda: None)
    monkeypatch.setattr(weight_gradient, "_quack_gemm", lambda: gemm)
    monkeypatch.setattr(weight_gradient, "_ADDMM", addmm)
    monkeypatch.setattr(weight_gradient, "_LARGE", 64 * 24 * 16)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    x, gradient = (torch.randn(tokens, size, dtype=torch.bfloat16) for size in (24, 16))
    sums = torch.randn(16, 24).to(dtype)
    expected = sums.clone()
    weight_gradient.weight_gradient(x, gradient, sums, accumulate=accumulate)
    WEIGHT_GRADIENT.reference(x, gradient, expected, accumulate=accumulate)
    assert len(calls) == taken
    torch.testing.assert_close(sums, expected, atol=0.1, rtol=1e-2)


def test_a_rehearsal_runs_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_gradient, "capability", lambda device: HOPPER)
    monkeypatch.setattr(weight_gradient, "without_quack", lambda: None)
    with FakeTensorMode():
        tensor = torch.empty(8192, 8192, dtype=torch.bfloat16)
        assert not weight_gradient._is_for_quack(tensor, tensor, tensor.float())
        assert not may_compile(tensor)


def test_rows_that_are_not_side_by_side_are_no_quacks() -> None:
    wide = torch.empty(64, 48, dtype=torch.bfloat16)
    assert weight_gradient._is_aligned(wide)
    assert weight_gradient._is_aligned(wide.t())
    assert weight_gradient._is_aligned(wide[:, 8:32])
    for other in (wide[:, 4:28], wide[:, ::2], wide[:60], wide[:, :12]):
        assert not weight_gradient._is_aligned(other)


def test_only_a_band_up_to_the_query_is_a_causal_window() -> None:
    tensor = torch.empty(1, 1, 2048, 64, dtype=torch.bfloat16)
    tensors = (tensor, tensor, tensor)
    windows = {(1023, 0): True, (0, 0): True, (None, 0): False, (1023, 5): False}
    for window, expected in windows.items():
        options = AttentionOptions(layout="BNSD", mask=AttentionMask(window=window))
        form = attention._form(options, 2048, 2048)
        assert attention._dense_call(tensors, form, 0.0).window == expected


@pytest.mark.parametrize(
    ("installed", "said"),
    [(None, "not installed"), ("1.99.0", "1.99.0 was never measured"), ("", "be loaded")],
)
@pytest.mark.parametrize(
    ("missing", "module", "tested", "extra"),
    [
        (_frontend.missing, "cudnn", "1.15.0", "windows"),
        (_flash4.missing, "flash_attn.cute.interface", "4.0.0b36", "hopper"),
        (weight_gradient.without_quack, "quack.gemm", "0.6.5", "hopper"),
    ],
)
def test_why_an_optional_package_is_not_used(
    missing: functools._lru_cache_wrapper[str | None],
    module: str,
    tested: str,
    extra: str,
    installed: str | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed or tested

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setitem(sys.modules, module, None)  # its import fails
    missing.cache_clear()
    reason = missing()
    missing.cache_clear()
    assert reason is not None
    assert said in reason
    # Who has installed a release wants it to be used: a line says that it is not.
    told = capsys.readouterr().err
    assert (f".[{extra}]" in told) == (installed == "1.99.0")
    assert ("is not used" in told) == (installed is not None)


@pytest.mark.parametrize(
    ("mask", "sq", "sk", "expected"),
    [
        (AttentionMask(), 8, 8, ("full", Band())),
        (AttentionMask(causal=True), 8, 8, ("causal", Band(-1, 0))),
        (AttentionMask(causal=True, window=(3, 0)), 8, 8, ("band", Band(3, 0))),
        (AttentionMask(causal=True), 4, 8, ("band", Band(-1, 0))),
        (AttentionMask(causal=True, alignment="top_left"), 8, 12, ("explicit", Band())),
        # FlashAttention would take 9 >= 3 keys for no limit at all.
        (AttentionMask(causal=True, alignment="top_left"), 12, 3, ("explicit", Band())),
        (AttentionMask(window=(5, -2)), 8, 8, ("explicit", Band())),
    ],
)
def test_band_of_a_mask(mask: AttentionMask, sq: int, sk: int, expected: object) -> None:
    assert attention._form(AttentionOptions(layout="SBHD", mask=mask), sq, sk) == expected


@pytest.mark.parametrize(
    "mask",
    [
        AttentionMask(causal=True, window=(3, 0)),
        AttentionMask(window=(2, 4)),
        AttentionMask(window=(3, 1), alignment="top_left"),
        AttentionMask(window=(None, 2)),
    ],
)
@pytest.mark.parametrize(("sq", "sk"), [(8, 8), (5, 9), (9, 5)])
def test_a_band_hides_what_its_mask_hides(mask: AttentionMask, sq: int, sk: int) -> None:
    kind, band = attention._form(AttentionOptions(layout="SBHD", mask=mask), sq, sk)
    if kind != "band":
        return
    hidden = mask.hidden(sq, sk, "cpu")
    for row in range(sq):
        for key in range(sk):
            offset = key - (row + sk - sq)
            seen = (band.left < 0 or -offset <= band.left) and (
                band.right < 0 or offset <= band.right
            )
            assert seen != (hidden is not None and bool(hidden[row, key])), (row, key)


def test_packed_sequences_of_unequal_lengths_keep_a_right_end_that_counts() -> None:
    lengths = torch.tensor([0, 4, 6], dtype=torch.int32)
    packing = Packing(lengths, lengths, 4, 2)
    mask = AttentionMask(window=(None, 2))
    assert attention._packed_form(mask, packing, square=True) == ("band", Band(-1, 2))
    assert attention._packed_form(mask, packing, square=False)[0] == "explicit"


def test_lengths_are_read_once_until_they_change() -> None:
    lengths = torch.tensor([0, 2, 5], dtype=torch.int32)
    rows = torch.zeros(5, 1, 8)
    options = AttentionOptions(layout="TND", cu_seqlens_q=lengths)
    first = attention._packing(rows, rows, lengths, options)
    assert attention._packing(rows, rows, lengths, options)[0] is first[0]
    lengths[1] = 1
    again = attention._packing(rows, rows, lengths, options)
    assert again[0].longest_query == 4
    lengths[2] = 4
    with pytest.raises(ValueError, match="must rise from 0 to 5"):
        attention._packing(rows, rows, lengths, options)


def test_gradients_reach_cudnn_in_the_outputs_strides() -> None:
    arrange = attention._strides_of((64, 32, 16, 1))
    whole = torch.randn(2, 2, 2, 16)
    assert arrange(whole) is whole
    part = torch.randn(2, 2, 2, 40)[..., :16]
    arranged = arrange(part)
    assert arranged.stride() == (64, 32, 16, 1)
    assert torch.equal(arranged, part)


@pytest.mark.parametrize(("d", "dv", "width"), [(192, 128, 192), (64, 128, 128), (36, 36, 40)])
def test_zeros_behind_a_head_change_nothing(d: int, dv: int, width: int) -> None:
    shapes = ((1, 2, 5, d), (1, 2, 5, d), (1, 2, 5, dv))
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    filled, size = filled_up(*tensors)
    assert size == dv
    assert {one.shape[-1] for one in filled} == {width}
    attend = torch.nn.functional.scaled_dot_product_attention
    output = attend(*filled, scale=d**-0.5)[..., :dv]
    expected = attend(*tensors, scale=d**-0.5)
    torch.testing.assert_close(output, expected)
    gradient = torch.randn_like(expected)
    ours = torch.autograd.grad(output, tensors, gradient)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, tensors, gradient))
    kept, _ = filled_up(*(torch.zeros(1, 1, 1, 64) for _ in range(3)))
    assert kept[0].shape[-1] == 64


def test_small_norms_stay_with_torch() -> None:
    assert choose_norm(2048 * 768, 768, torch.bfloat16).name == "torch"
    assert choose_norm(16384 * 768, 768, torch.float64).name == "torch"
    assert choose_norm(7 * 96, 96, torch.bfloat16, shifted=True).name == "triton"
    assert choose_norm(7 * 96, 96, torch.float32, shifted=True).name == "torch"
    assert choose_norm(2**24, 32768, torch.bfloat16).name == "torch"


def test_the_command_shows_every_kernel_with_its_reason() -> None:
    rows = kernel_rows(CudaBackend())
    assert {row[0] for row in rows if row[0]} == set(CONTRACTS)
    assert all(row[2] and row[3] for row in rows)
    assert ["", "band window"] in [row[:2] for row in rows]

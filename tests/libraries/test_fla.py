"""The shim of flash-linear-attention: chunks against single tokens."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from pkgutil import resolve_name as load
from typing import Any

import pytest
import torch
from ops_support import late
from torch.nn import functional

SHIMS = ("fla",)
pytestmark = pytest.mark.usefixtures("shims")


chunked = late("fla.ops.gated_delta_rule:chunk_gated_delta_rule")
recurrent = late("fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule")


def inputs(batch: int = 2, length: int = 70) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "q": torch.randn(batch, length, 2, 6),
        "k": torch.randn(batch, length, 2, 6),
        "v": torch.randn(batch, length, 4, 5),
        "g": -torch.rand(batch, length, 4),
        "beta": torch.randn(batch, length, 4).sigmoid(),
        "use_qk_l2norm_in_kernel": True,
    }


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"scale": 0.5},
    {"use_beta_sigmoid_in_kernel": True},
    {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
    {"use_gate_in_kernel": True, "A_log": torch.zeros(4), "dt_bias": torch.ones(4)},
)


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_chunks_are_the_recurrence(options: dict[str, Any], v_first: bool) -> None:
    given = inputs()
    state = torch.randn(2, 4, 5, 6) if v_first else torch.randn(2, 4, 6, 5)
    given |= {"initial_state": state, "output_final_state": True, "state_v_first": v_first}
    expected = recurrent(**given, **options)
    assert expected[1].shape == state.shape
    assert_same(chunked(**given, **options), expected)


def test_the_former_name_of_the_states_layout() -> None:
    given = inputs() | {"output_final_state": True}
    expected = chunked(**given, state_v_first=True)
    for rule in (chunked, recurrent):
        with pytest.warns(DeprecationWarning, match="renamed to `state_v_first`"):
            found = rule(**given, transpose_state_layout=True)
        assert_same(found, expected)
        with pytest.raises(ValueError, match="both"):
            rule(**given, state_v_first=True, transpose_state_layout=True)


@pytest.mark.parametrize("states", [False, True])
def test_packed_sequences(states: bool) -> None:
    given, ends = inputs(1, 103), [0, 7, 7, 64, 100]  # a batch may be filled up behind the last
    initial = torch.randn(4, 4, 6, 5) if states else None
    options = {"initial_state": initial, "output_final_state": states}
    cu_seqlens = torch.tensor(ends)
    found = chunked(**given, **options, cu_seqlens=cu_seqlens)
    by_step = recurrent(**given, **options, cu_seqlens=cu_seqlens)
    assert found[0].shape == by_step[0].shape == given["v"].shape
    tensors = ("q", "k", "v", "g", "beta")
    for index in (0, 2, 3):
        part = slice(ends[index], ends[index + 1])
        own = {name: given[name][:, part] for name in tensors}
        state = None if initial is None else initial[index : index + 1]
        alone = recurrent(**{**given, **own}, initial_state=state, output_final_state=states)
        torch.testing.assert_close(found[0][:, part], alone[0], rtol=1e-4, atol=1e-4)
        if states:
            torch.testing.assert_close(found[1][index : index + 1], alone[1])
    if not states:
        assert found[1] is None
    with pytest.raises(ValueError, match="batch size is expected to be 1"):
        chunked(**inputs(), cu_seqlens=cu_seqlens)
    with pytest.raises(ValueError, match="number of initial states"):
        chunked(**given, initial_state=torch.randn(3, 4, 6, 5), cu_seqlens=cu_seqlens)


def test_refusals() -> None:
    given = inputs()
    with pytest.raises(NotImplementedError, match="no context parallel"):
        chunked(**given, cp_context=object())
    with pytest.raises(ValueError, match="evenly divisible"):
        chunked(**{**given, "v": given["v"][:, :, :3]})
    with pytest.raises(ValueError, match="requires `use_beta_sigmoid"):
        chunked(**given, allow_neg_eigval=True)
    with pytest.raises(ModuleNotFoundError, match=r"has no fla\.ops\.cp"):
        import_module("fla.ops.cp")


@pytest.mark.parametrize("cu_seqlens", [None, [0, 5, 20]])
@pytest.mark.parametrize("reverse", [False, True])
def test_simple_gla(reverse: bool, cu_seqlens: list[int] | None) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 20, 2, 6), torch.randn(1, 20, 2, 6), torch.randn(1, 20, 2, 5)
    g, ends = -torch.rand(1, 20, 2), cu_seqlens or [0, 20]
    initial = torch.randn(len(ends) - 1, 2, 6, 5)
    output, final = load("fla.ops.simple_gla.fused_recurrent:fused_recurrent_simple_gla")(
        q,
        k,
        v,
        g,
        initial_state=initial,
        output_final_state=True,
        reverse=reverse,
        cu_seqlens=None if cu_seqlens is None else torch.tensor(cu_seqlens),
    )
    for index, (first, last) in enumerate(pairwise(ends)):
        state = initial[index]
        for t in range(first, last)[:: -1 if reverse else 1]:
            state = state * g[0, t].exp()[:, None, None] + k[0, t, :, :, None] * v[0, t, :, None]
            expected = (state * q[0, t, :, :, None]).sum(-2) * 6**-0.5
            torch.testing.assert_close(output[0, t], expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(final[index], state, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gated", [True, False])
def test_the_other_simple_glas_are_the_chunked_one(gated: bool) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 9, 2, 6), torch.randn(2, 9, 2, 6), torch.randn(2, 9, 2, 5)
    g, initial = (-torch.rand(2, 9, 2) if gated else None), torch.randn(2, 2, 6, 5)
    chunked = load("fla.ops.simple_gla:chunk_simple_gla")
    fused = load("fla.ops:fused_chunk_simple_gla")
    given = {"initial_state": initial, "output_final_state": True}
    torch.testing.assert_close(fused(q, k, v, g, **given), chunked(q, k, v, g, **given))
    parallel = load("fla.ops.simple_gla.parallel:parallel_simple_gla")
    output, scores = parallel(q, k, v, g, output_attentions=True)
    torch.testing.assert_close(output, chunked(q, k, v, g)[0])
    torch.testing.assert_close(torch.einsum("bhij,bjhd->bihd", scores, v), output)
    packed = torch.tensor([0, 9])
    assert parallel(q[:1], k[:1], v[:1], cu_seqlens=packed)[1] is None
    with pytest.raises(ValueError, match="variable-length"):
        parallel(q[:1], k[:1], v[:1], output_attentions=True, cu_seqlens=packed)


def test_the_gate_of_the_delta_rule() -> None:
    g, A_log, bias = torch.randn(2, 3, 4), torch.rand(4), torch.randn(4)
    found = load("fla.ops.gated_delta_rule.gate:fused_gdn_gate")(g, A_log, bias, torch.bfloat16)
    expected = -A_log.exp() * functional.softplus(g + bias)
    torch.testing.assert_close(found, expected.bfloat16())


@pytest.mark.parametrize("cu_seqlens", [None, [0, 5, 30]])
def test_the_delta_product_writes_several_times(cu_seqlens: list[int] | None) -> None:
    torch.manual_seed(0)
    q, g = torch.randn(1, 30, 2, 6), -torch.rand(1, 30, 2)
    k = functional.normalize(torch.randn(1, 90, 2, 6), dim=-1)
    v, beta = torch.randn(1, 90, 2, 5), torch.rand(1, 90, 2)
    output, final = load("fla.ops.gated_delta_product:chunk_gated_delta_product")(
        q,
        k,
        v,
        g,
        beta,
        3,
        output_final_state=True,
        cu_seqlens=None if cu_seqlens is None else torch.tensor(cu_seqlens),
    )
    ends = cu_seqlens or [0, 30]
    for index, (first, last) in enumerate(pairwise(ends)):
        state = torch.zeros(2, 6, 5)
        for t in range(first, last):
            state = state * g[0, t].exp()[:, None, None]
            for j in range(3 * t, 3 * t + 3):
                known = (state * k[0, j, :, :, None]).sum(-2)
                change = (v[0, j] - known) * beta[0, j, :, None]
                state = state + k[0, j, :, :, None] * change[:, None]
            expected = (state * q[0, t, :, :, None]).sum(-2) * 6**-0.5
            torch.testing.assert_close(output[0, t], expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(final[index], state, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("states", [False, True])
def test_the_convolution_of_packed_sequences(states: bool) -> None:
    torch.manual_seed(0)
    convolution = load("fla.modules.convolution:causal_conv1d")
    x, weight, bias = torch.randn(1, 23, 6), torch.randn(6, 4), torch.randn(6)
    residual, ends = torch.randn(1, 23, 6), [0, 2, 2, 13, 20]
    initial = torch.randn(4, 6, 4) if states else None
    options = {"activation": "silu", "output_final_state": states}
    output, final = convolution(
        x,
        weight,
        bias,
        residual,
        initial,
        cu_seqlens=torch.tensor(ends),
        **options,
    )
    for index, (first, last) in enumerate(pairwise(ends)):
        past = torch.zeros(6, 4) if initial is None else initial[index]
        whole = torch.cat((past, x[0, first:last].T), -1)
        for t in range(first, last):
            seen = whole[:, t - first + 1 : t - first + 5]
            expected = functional.silu((seen * weight).sum(-1) + bias) + residual[0, t]
            torch.testing.assert_close(output[0, t], expected, rtol=1e-5, atol=1e-5)
        if states:
            torch.testing.assert_close(final[index], whole[:, -4:])
    assert states == (final is not None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("convolution:causal_conv1d", "causal_conv1d:causal_conv1d"),
        ("conv.short_conv:ShortConvolution", "causal_conv1d.ops:ShortConvolution"),
        ("fused_norm_gate:rms_norm_gated", "norm.fused_norm_gate:rms_norm_gated"),
        ("l2norm:l2norm", "norm.l2norm:l2norm"),
        ("l2norm:L2Norm", "norm:L2Norm"),
    ],
)
def test_the_modules_of_0_5_and_of_0_6_have_the_same(old: str, new: str) -> None:
    assert load(f"fla.modules.{old}") is load(f"fla.modules.{new}")


def test_l2norm() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 7, dtype=torch.bfloat16)
    expected = (x.float() / (x.float().square().sum(-1, keepdim=True) + 1e-6).sqrt()).bfloat16()
    for name in ("l2norm", "l2_norm"):
        assert torch.equal(load(f"fla.modules.l2norm:{name}")(x), expected)
    assert load("fla.modules:L2Norm")(output_dtype=torch.float32)(x).dtype == torch.float32


@pytest.mark.parametrize("activation", ["swish", "silu", "sigmoid"])
@pytest.mark.parametrize("centred", [False, True])
def test_gated_norms(activation: str, centred: bool) -> None:
    torch.manual_seed(0)
    x, g, residual = torch.randn(3, 2, 5, 8, dtype=torch.float64)
    name = "FusedLayerNormGated" if centred else "FusedRMSNormGated"
    norm = load(f"fla.modules:{name}")(8, eps=1e-3, activation=activation, dtype=x.dtype)
    torch.nn.init.normal_(norm.weight)
    total = x + residual
    wide = total - total.mean(-1, keepdim=True) if centred else total
    wide = wide / (wide.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    gate = g.sigmoid() if activation == "sigmoid" else g * g.sigmoid()
    found, kept = norm(x, g, residual=residual, prenorm=True)
    torch.testing.assert_close(found, wide * norm.weight * gate)
    torch.testing.assert_close(kept, total)
    torch.testing.assert_close(norm(total, g), found)


def test_the_short_convolution_goes_on_where_it_stopped() -> None:
    """All tokens at once, and a part of them with the rest one by one from the cache."""
    torch.manual_seed(0)
    layer = load("fla.modules:ShortConvolution")(6, 4, bias=True)
    x, residual = torch.randn(2, 2, 9, 6)
    whole, none = layer(x, residual=residual)
    assert none is None
    padded = functional.pad(x.transpose(1, 2), (3, 0))
    expected = functional.conv1d(padded, layer.weight, layer.bias, groups=6).transpose(1, 2)
    torch.testing.assert_close(whole, functional.silu(expected) + residual)
    part, cache = layer(x[:, :5], residual=residual[:, :5], output_final_state=True)
    parts = [part]
    for t in range(5, 9):
        one, cache = layer(x[:, t : t + 1], residual[:, t : t + 1], None, cache, True)
        parts.append(one)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    packed, _ = layer(x.flatten(0, 1)[None], cu_seqlens=torch.tensor([0, 9, 18]))
    torch.testing.assert_close(packed[0], (whole - residual).flatten(0, 1))
    masked, _ = layer(x, mask=torch.arange(9).lt(4).long()[None].expand(2, -1))
    torch.testing.assert_close(masked[:, :4], (whole - residual)[:, :4])

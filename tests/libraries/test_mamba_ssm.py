"""The shims of mamba_ssm and causal_conv1d: sequences against their own single steps."""

from __future__ import annotations

from functools import partial
from pkgutil import resolve_name as load
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ops_support import late
from torch.nn import functional

from accel_bridge.kernels import active
from accel_bridge.process import log

SHIMS = ("mamba_ssm", "selective_scan_cuda", "causal_conv1d")
pytestmark = pytest.mark.usefixtures("shims")


scan = late("mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined")
update = late("mamba_ssm.ops.triton.selective_state_update:selective_state_update")
selective_scan = late("mamba_ssm.ops.selective_scan_interface:selective_scan_fn")
convolution = late("causal_conv1d:causal_conv1d_fn")
conv_update = late("causal_conv1d:causal_conv1d_update")


# --- convolution ------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [None, "silu", "swish"])
def test_the_convolution_is_torchs(activation: str | None) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 6, 9), torch.randn(6, 4), torch.randn(6)
    expected = functional.conv1d(x, weight.unsqueeze(1), bias, padding=3, groups=6)[..., :9]
    if activation:
        expected = functional.silu(expected)
    torch.testing.assert_close(convolution(x, weight, bias, activation=activation), expected)
    with pytest.raises(NotImplementedError, match="activation must be"):
        convolution(x, weight, activation="gelu")


@pytest.mark.parametrize("name", ["causal_conv1d_fn", "causal_conv1d_ref"])
def test_a_convolutions_initial_state_belongs_to_a_rows_first_sequence(name: str) -> None:
    torch.manual_seed(0)
    x, weight, before = torch.randn(2, 6, 9), torch.randn(6, 4), torch.randn(2, 6, 3)
    ids = torch.tensor([[3, 3, 5, 5, 5, 5, 5, 5, 5], [4, 4, 4, 4, 4, 4, 4, 4, 7]])
    convolve = load(f"causal_conv1d.causal_conv1d_interface:{name}")
    found = convolve(x, weight, seq_idx=ids, initial_states=before)
    for row, end in enumerate((2, 8)):
        parts = (x[row : row + 1, :, :end], x[row : row + 1, :, end:])
        first = convolve(parts[0], weight, initial_states=before[row : row + 1])
        alone = torch.cat((first, convolve(parts[1], weight)), -1)
        torch.testing.assert_close(found[row : row + 1], alone)


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("state_len", [3, 5])
def test_updates_go_on_where_the_sequence_ended(ring: bool, state_len: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 6, 12), torch.randn(6, 4), torch.randn(6)
    whole = convolution(x, weight, bias, activation="silu")
    first, final = convolution(x[..., :7], weight, bias, None, None, True, activation="silu")
    torch.testing.assert_close(first, whole[..., :7])
    torch.testing.assert_close(final, x[..., 4:7])
    state = torch.zeros(2, 6, state_len)
    place = torch.tensor([7, 7], dtype=torch.int32) if ring else None
    if ring:
        for position in range(7 - state_len, 7):
            state[..., position % state_len] = x[..., position]
    else:
        state.copy_(x[..., 7 - state_len : 7])
    several = conv_update(x[..., 7:9], state, weight, bias, "silu", cache_seqlens=place)
    torch.testing.assert_close(several, whole[..., 7:9])
    for t in range(9, 12):
        place = torch.tensor([t, t], dtype=torch.int32) if ring else None
        one = conv_update(x[..., t], state, weight, bias, "silu", cache_seqlens=place)
        torch.testing.assert_close(one, whole[..., t])


def test_updates_choose_rows_and_leave_padding_alone() -> None:
    torch.manual_seed(0)
    x, weight, cache = torch.randn(3, 6), torch.randn(6, 4), torch.randn(5, 6, 4)
    before = cache.clone()
    rows = torch.tensor([4, -1, 0], dtype=torch.int32)
    output = conv_update(x, cache, weight, conv_state_indices=rows)
    assert not output[1].any()
    assert torch.equal(cache[1:4], before[1:4])
    own = before[[4, 0]]
    expected = conv_update(x[[0, 2]], own, weight)
    torch.testing.assert_close(output[[0, 2]], expected)
    torch.testing.assert_close(cache[[4, 0]], own)


def test_states_of_packed_sequences() -> None:
    states = load("causal_conv1d.causal_conv1d_varlen:causal_conv1d_varlen_states")
    x = torch.arange(1.0, 10.0).unsqueeze(1).expand(9, 2)
    found = states(x, torch.tensor([0, 2, 3, 9]), 4)
    assert found.shape == (3, 2, 4)
    assert found[:, 0].tolist() == [[0, 0, 1, 2], [0, 0, 0, 3], [6, 7, 8, 9]]


# --- scan -------------------------------------------------------------------------------------


def inputs(length: int = 70, seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "x": torch.randn(2, length, 4, 8),
        "dt": torch.randn(2, length, 4),
        "A": -torch.rand(4) * 4 - 0.1,
        "B": torch.randn(2, length, 2, 5),
        "C": torch.randn(2, length, 2, 5),
        "D": torch.randn(4),
        "z": torch.randn(2, length, 4, 8),
        "dt_bias": torch.randn(4),
    }


def stepwise(given: dict[str, torch.Tensor], state: torch.Tensor) -> torch.Tensor:
    """Every position by ``selective_state_update``, which knows nothing of chunks."""
    outputs = []
    for t in range(given["x"].shape[1]):
        outputs.append(
            update(
                state,
                given["x"][:, t],
                given["dt"][:, t, :, None].expand(-1, -1, 8),
                given["A"][:, None, None].expand(4, 8, 5),
                given["B"][:, t],
                given["C"][:, t],
                given["D"][:, None].expand(4, 8),
                given["z"][:, t],
                given["dt_bias"][:, None].expand(4, 8),
                dt_softplus=True,
            )
        )
    return torch.stack(outputs, 1)


def test_the_scan_is_its_own_steps() -> None:
    given = inputs()
    initial = torch.randn(2, 4, 8, 5)
    state = initial.clone()
    expected = stepwise(given, state)
    output, final = scan(
        **given, chunk_size=16, initial_states=initial, dt_softplus=True, return_final_states=True
    )
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(final, state, rtol=1e-4, atol=1e-4)
    wrong = scan(**given, chunk_size=16, initial_states=initial * 1.01, dt_softplus=True)
    assert not torch.allclose(wrong, expected, rtol=1e-4, atol=1e-4)


def test_limits_of_the_step() -> None:
    given = inputs()
    clamped = {**given, "dt": functional.softplus(given["dt"] + given["dt_bias"]).clamp(0.2, 0.9)}
    del clamped["dt_bias"]
    found = scan(**given, chunk_size=16, dt_softplus=True, dt_limit=(0.2, 0.9))
    torch.testing.assert_close(found, scan(**clamped, chunk_size=16))


def test_packed_sequences_and_their_last_states() -> None:
    given = inputs(100)
    packed = {name: value[:1] if value.dim() > 2 else value for name, value in given.items()}
    ends = [0, 7, 64, 100]
    ids = torch.repeat_interleave(torch.arange(3), torch.tensor(ends).diff())[None]
    output, states = scan(
        **packed,
        chunk_size=16,
        dt_softplus=True,
        seq_idx=ids.int(),
        cu_seqlens=torch.tensor(ends),
        return_varlen_states=True,
    )
    for index in range(3):
        part = slice(ends[index], ends[index + 1])
        own = {name: value[:, part] if value.dim() > 2 else value for name, value in packed.items()}
        alone, state = scan(**own, chunk_size=16, dt_softplus=True, return_final_states=True)
        torch.testing.assert_close(output[:, part], alone, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(states[index], state[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_between_chunks_are_kept_wide_whatever_is_asked(dtype: torch.dtype) -> None:
    """Megatron's --mamba-training-ssm-states-dtype looks for the parameter in both functions."""
    split = load("mamba_ssm.ops.triton.ssd_combined:mamba_split_conv1d_scan_combined")
    torch.manual_seed(0)
    x, step = torch.randn(1, 300, 2, 4), torch.rand(1, 300, 2)
    write, read, decay = torch.randn(1, 300, 1, 8), torch.randn(1, 300, 1, 8), -torch.rand(2)
    plain = scan(x, step, decay, write, read, 128)
    assert torch.equal(scan(x, step, decay, write, read, 128, state_dtype=dtype), plain)
    mixed, bias, skip = torch.randn(1, 300, 34), torch.zeros(2), torch.ones(2)
    split = partial(split, mixed, torch.randn(24, 4), None, bias, decay, skip, 128, headdim=4)
    assert torch.equal(split(state_dtype=dtype), split())


def test_an_initial_state_belongs_to_sequence_0() -> None:
    given: dict[str, Any] = {**inputs(), "chunk_size": 16, "dt_softplus": True}
    initial = torch.randn(2, 4, 8, 5)
    first = torch.zeros(2, 70, dtype=torch.int32)
    first[1] = 1
    found = scan(**given, initial_states=initial, seq_idx=first)
    torch.testing.assert_close(found[0], scan(**given, initial_states=initial)[0])
    torch.testing.assert_close(found[1], scan(**given)[1])


@pytest.mark.parametrize("norm_before_gate", [None, True, False])
@pytest.mark.parametrize("mlp", [0, 6])
def test_everything_around_the_scan(norm_before_gate: bool | None, mlp: int) -> None:
    """By its parts, gradients included."""
    torch.manual_seed(0)
    heads, p, groups, n, length = 4, 8, 2, 5, 33
    dim, filtered = heads * p, heads * p + 2 * groups * n
    width = 2 * mlp + dim + filtered + heads
    leaves = {
        "zxbcdt": torch.randn(2, length, width),
        "conv1d_weight": torch.randn(filtered, 4),
        "conv1d_bias": torch.randn(filtered),
        "dt_bias": torch.randn(heads),
        "A": -torch.rand(heads) - 0.1,
        "D": torch.randn(heads),
        "outproj_weight": torch.randn(7, mlp + dim),
        "outproj_bias": torch.randn(7),
    }
    if norm_before_gate is not None:
        leaves["rmsnorm_weight"] = torch.randn(dim)
    for leaf in leaves.values():
        leaf.requires_grad_()
    found = load("mamba_ssm.ops.triton.ssd_combined:mamba_split_conv1d_scan_combined")(
        **leaves,
        chunk_size=16,
        headdim=p,
        ngroups=groups,
        norm_before_gate=bool(norm_before_gate),
    )
    zx, z, xbc, dt = leaves["zxbcdt"].split([2 * mlp, dim, filtered, heads], -1)
    xbc = convolution(xbc.mT, leaves["conv1d_weight"], leaves["conv1d_bias"], activation="silu").mT
    x, b, c = xbc.split([dim, groups * n, groups * n], -1)
    output = scan(
        x.unflatten(-1, (heads, p)),
        dt,
        leaves["A"],
        b.unflatten(-1, (groups, n)),
        c.unflatten(-1, (groups, n)),
        16,
        D=leaves["D"],
        dt_bias=leaves["dt_bias"],
        dt_softplus=True,
    ).flatten(2)
    gate = functional.silu(z)
    if norm_before_gate is None:
        output = output * gate
    else:
        output = output if norm_before_gate else output * gate
        output = functional.rms_norm(output.unflatten(-1, (groups, -1)), (dim // groups,), eps=1e-6)
        output = output.flatten(-2) * leaves["rmsnorm_weight"]
        output = output * gate if norm_before_gate else output
    gated, linear = zx.chunk(2, -1)
    output = torch.cat((functional.silu(gated) * linear, output), -1)
    expected = functional.linear(output, leaves["outproj_weight"], leaves["outproj_bias"])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    weights = torch.randn_like(found)
    ours = torch.autograd.grad(found, list(leaves.values()), weights)
    theirs = torch.autograd.grad(expected, list(leaves.values()), weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


# --- gated norms ------------------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [None, 4])
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_gated_norms(name: str, group_size: int | None) -> None:
    torch.manual_seed(0)
    norm = load(f"mamba_ssm.ops.triton.layernorm_gated:{name}")(12, group_size=group_size)
    assert sorted(dict(norm.named_parameters())) == (
        ["bias", "weight"] if name == "LayerNorm" else ["weight"]
    )
    assert "bias" in dir(norm)
    x, z = torch.randn(3, 12), torch.randn(3, 12)
    size = group_size or 12
    own = functional.layer_norm if name == "LayerNorm" else functional.rms_norm

    def plain(value: torch.Tensor) -> torch.Tensor:
        return own(value.view(3, -1, size), (size,), eps=1e-5).flatten(1)

    torch.testing.assert_close(norm(x), plain(x))
    torch.testing.assert_close(norm(x, z), plain(x) * functional.silu(z))
    norm.norm_before_gate = False
    torch.testing.assert_close(norm(x, z), plain(x * functional.silu(z)))
    low = norm(x.bfloat16(), z.bfloat16())
    assert low.dtype == torch.bfloat16


# --- Mamba-1 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [None, 0, 2])
@pytest.mark.parametrize("gated", [False, True])
def test_the_selective_scan_is_its_own_steps(groups: int | None, gated: bool) -> None:
    """``selective_state_update`` walks the same sequence; B by state, by step, and by group."""
    torch.manual_seed(0)
    b, d, s, n = 2, 4, 7, 3
    u, delta, gate = torch.randn(3, b, d, s, dtype=torch.float64)
    z = gate if gated else None
    sizes = {None: (d, n), 0: (b, n, s), 2: (b, 2, n, s)}[groups]
    A, D, bias = -torch.rand(d, n).double(), torch.randn(d).double(), torch.randn(d).double()
    B, C = torch.randn(2, *sizes, dtype=torch.float64)
    output, last = selective_scan(
        u, delta, A, B, C, D, z, bias, delta_softplus=True, return_last_state=True
    )
    step = functional.softplus(delta + bias[:, None])
    wide = [
        one[None, :, :, None].expand(b, d, n, s)
        if one.dim() == 2
        else (one[:, None] if one.dim() == 3 else one).repeat_interleave(d // (groups or 1), 1)
        for one in (B, C)
    ]
    state, expected = torch.zeros(b, d, n, dtype=torch.float64), []
    for t in range(s):
        moved = (step * u)[:, :, t, None] * wide[0][..., t]
        state = (step[:, :, t, None] * A).exp() * state + moved
        found = (state * wide[1][..., t]).sum(-1) + u[:, :, t] * D
        expected.append(found * functional.silu(gate[:, :, t]) if gated else found)
    torch.testing.assert_close(output, torch.stack(expected, -1))
    torch.testing.assert_close(last, state)
    assert not torch.allclose(output, torch.stack(expected, -1).roll(1, -1))


@pytest.mark.parametrize("shared", [False, True])
def test_a_complex_scan_gives_twice_the_real_part(shared: bool) -> None:
    torch.manual_seed(0)
    b, d, s, n = 2, 4, 7, 3
    u, delta = torch.randn(2, b, d, s, dtype=torch.float64)
    A = torch.complex(-torch.rand(d, n).double(), torch.randn(d, n).double())
    B, C = torch.randn(2, *((d, n) if shared else (b, n, s)), dtype=A.dtype)
    pairs = [one if shared else torch.view_as_real(one).flatten(-2) for one in (B, C)]
    output, last = selective_scan(u, delta, A, *pairs, return_last_state=True)
    wide = [
        (one[None, :, :, None] if shared else one[:, None]).expand(b, d, n, s) for one in (B, C)
    ]
    state, expected = A.new_zeros(b, d, n), []
    for t in range(s):
        moved = (delta * u)[:, :, t, None] * wide[0][..., t]
        state = (delta[:, :, t, None] * A).exp() * state + moved
        expected.append(2 * (state * wide[1][..., t]).sum(-1).real)
    torch.testing.assert_close(output, torch.stack(expected, -1))
    torch.testing.assert_close(last, state)


@pytest.mark.parametrize("normed", [False, True])
def test_a_mamba_layer_is_its_parts(normed: bool) -> None:
    torch.manual_seed(0)
    b, d, s, n, r, h = 2, 4, 6, 3, 2, 5
    xz, conv, conv_bias = torch.randn(b, 2 * d, s), torch.randn(d, 1, 4), torch.randn(d)
    x_proj, dt_proj, out_proj = torch.randn(r + 2 * n, d), torch.randn(d, r), torch.randn(h, d)
    A, D, bias = -torch.rand(d, n), torch.randn(d), torch.randn(d)
    weights = {"b_rms_weight": torch.ones(n), "c_rms_weight": torch.ones(n) * 2}
    options = {**weights, "dt_rms_weight": torch.ones(d), "b_c_dt_rms_eps": 1e-3} if normed else {}
    xz.requires_grad_()
    found = load("mamba_ssm.ops.selective_scan_interface:mamba_inner_fn")(
        xz, conv, conv_bias, x_proj, dt_proj, out_proj, None, A, D=D, delta_bias=bias, **options
    )
    x, z = xz.chunk(2, 1)
    x = functional.silu(functional.conv1d(x, conv, conv_bias, padding=3, groups=d)[..., :s])
    dt, B, C = (x_proj @ x).split((r, n, n), 1)
    dt = dt_proj @ dt
    if normed:
        dt, B, C = (
            functional.rms_norm(one.transpose(1, 2), one.shape[1:2], eps=1e-3).transpose(1, 2)
            for one in (dt, B, C)
        )
        C = C * 2
    scanned = selective_scan(x, dt, A, B, C, D, z, bias, True)
    expected = (out_proj @ scanned).transpose(1, 2)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), xz)
    assert gradient.abs().min() > 0


@pytest.mark.parametrize("gated", [False, True])
def test_the_extension_under_the_scan_gives_its_gradients(gated: bool) -> None:
    import selective_scan_cuda  # type: ignore[import-not-found]

    torch.manual_seed(0)
    b, d, s, n = 2, 4, 6, 3
    u, delta, z = torch.randn(3, b, d, s).unbind(0)
    leaves = [u, delta, -torch.rand(d, n), *torch.randn(2, b, 1, n, s), torch.randn(d)]
    leaves += [z] if gated else []
    leaves = [one.clone().requires_grad_() for one in leaves]
    gate = leaves[6] if gated else None
    expected, state = selective_scan(*leaves[:6], gate, None, True, True)
    arguments = (*leaves[:6], gate, None)
    found = selective_scan_cuda.fwd(*arguments, True)
    torch.testing.assert_close(found[2 if gated else 0], expected)
    torch.testing.assert_close(found[1][:, :, -1, 1::2], state)
    grad = torch.randn_like(expected)
    *gradients, last = selective_scan_cuda.bwd(
        *arguments, grad, found[1], found[0], None, True, gated
    )
    wanted = torch.autograd.grad(expected, leaves, grad)
    given = [*gradients[:6], *gradients[7:]] if gated else [*gradients, last][:6]
    torch.testing.assert_close(given, wanted)
    assert not gated or torch.equal(last, found[2])


def test_what_the_real_mamba_ssm_calls_of_the_convolution() -> None:
    """It writes the gradient of x into a slice of a longer one, and takes the others."""
    forward, backward, step = (
        load(f"causal_conv1d.cpp_functions:causal_conv1d_{name}_function")
        for name in ("fwd", "bwd", "update")
    )
    torch.manual_seed(0)
    rows = torch.randn(2, 6, 9)[:, :, 2:6].transpose(1, 2)
    leaves = [one.requires_grad_() for one in (rows, torch.randn(4, 3), torch.randn(4))]
    expected = convolution(*leaves, activation="silu")
    found = forward(*leaves, None, None, None, True)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()
    assert not found.requires_grad
    grad = torch.randn_like(expected)
    longer = torch.zeros(2, 6, 9)
    place = longer[:, :, 2:6].transpose(1, 2)
    gradients = backward(*leaves, grad, None, None, None, place, False, True)
    torch.testing.assert_close(gradients[:3], torch.autograd.grad(expected, leaves, grad))
    assert gradients[0] is place
    assert gradients[3] is None
    assert torch.equal(backward(*leaves, grad, None, None, None, None, False, True)[0], place)
    states = [torch.zeros(2, 4, 2), torch.zeros(2, 4, 2)]
    stepped = step(rows, states[0], *leaves[1:], True, None, None)
    assert torch.equal(stepped, conv_update(rows, states[1], *leaves[1:], activation="silu"))
    assert torch.equal(*states)


@pytest.mark.parametrize("triton", [False, True])
def test_a_slow_scan_names_the_library_that_is_faster(
    triton: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where Triton has a device, once."""
    monkeypatch.setattr(active, "features", lambda: SimpleNamespace(triton=triton))
    log.warn_once.cache_clear()
    x, dt, A = torch.randn(1, 8, 2, 4), torch.rand(1, 8, 2), -torch.rand(2)
    B, C = torch.randn(2, 1, 8, 1, 3)
    for _ in range(2):
        scan(x, dt, A, B, C, 4)
    assert capsys.readouterr().err.count("mamba_ssm's own Triton kernels") == int(triton)

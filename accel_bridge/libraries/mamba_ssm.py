"""mamba_ssm's interface on the active backend's kernels: what Mamba-1 and Mamba-2 compute with.

Mamba-1's scan is in torch's operators.

Legend: ... any leading dimensions, b batch, s sequence length; Mamba-1: d channels, n state size,
g groups, r rank of the step; Mamba-2: h heads, p head size, g groups, n state size, w width of the
convolution. Hidden size of norms h.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, cast

import torch
from torch.nn import functional

from accel_bridge.kernels import (
    CAUSAL_CONVOLUTION,
    NORM_FORWARD,
    STATE_SPACE_SCAN,
    SWIGLU,
    compute_dtype,
)
from accel_bridge.kernels.active import kernel, kernel_or_warning
from accel_bridge.libraries._library import LIBRARIES

__version__ = LIBRARIES["mamba_ssm"].version

_SLOW = (
    "Mamba-2's scan runs in PyTorch's GEMMs; on an H200, mamba_ssm's own Triton kernels take a "
    "sixth of the time. docs/libraries.md installs them without a compiler"
)

#: Public module -> the module that implements it, here this one, and its names.
MODULES = {
    "mamba_ssm.ops.selective_scan_interface": (
        "",
        "mamba_inner_fn mamba_inner_ref selective_scan_fn selective_scan_ref",
    ),
    "mamba_ssm": ("", "mamba_inner_fn selective_scan_fn"),
    "mamba_ssm.ops.triton.layer_norm": ("", "_layer_norm_fwd"),
    "mamba_ssm.ops.triton.layernorm_gated": ("", "LayerNorm RMSNorm layernorm_fn rmsnorm_fn"),
    "mamba_ssm.ops.triton.selective_state_update": ("", "selective_state_update"),
    "mamba_ssm.ops.triton.ssd_combined": (
        "",
        "mamba_chunk_scan_combined mamba_split_conv1d_scan_combined rmsnorm_fn",
    ),
}


def selective_scan_fn(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``S_t = exp(delta_t A) S_{t-1} + delta_t u_t B_t``, ``y_t = S_t C_t + D u_t``, gated by z.

    Computed in float32, step by step (Gu and Dao 2023, arXiv:2312.00752, algorithm 2).

    :param u: [b, d, s]; delta and z too.
    :param A: [d, n]; if it is complex, the output is twice the real part.
    :param B: [d, n], [b, n, s] or [b, g, n, s], where A is complex [.., 2 s] of pairs; C too.
    :param D: [d]; ``delta_bias`` too, added before the softplus.
    :returns: [b, d, s] in u's dtype; with ``return_last_state`` also [b, d, n], float32 or complex.
    """
    dtype = compute_dtype(u)
    step, values = delta.to(dtype), u.to(dtype)
    if delta_bias is not None:
        step = step + delta_bias.to(dtype)[:, None]
    if delta_softplus:
        step = functional.softplus(step)
    A = A.to(torch.promote_types(A.dtype, dtype))
    if A.is_complex():
        B, C = (_of_pairs(one.to(dtype)) if one.dim() > 2 else one for one in (B, C))
    write, read = (_by_step(one.to(A.dtype), u.shape) for one in (B, C))
    decays = torch.exp(step.unsqueeze(-1) * A[:, None])  # [b, d, s, n]
    added = (step * values).unsqueeze(-1) * write
    state = added.new_zeros(added.shape[0], added.shape[1], added.shape[3])
    states = []
    for decay, more in zip(decays.unbind(2), added.unbind(2), strict=True):
        state = decay * state + more
        states.append(state)
    output = (torch.stack(states, 2) * read).sum(-1) if states else torch.zeros_like(values)
    if output.is_complex():
        output = output.real * 2
    if D is not None:
        output = output + values * D.to(dtype)[:, None]
    if z is not None:
        output = output * functional.silu(z.to(dtype))
    output = output.to(u.dtype)
    return (output, state) if return_last_state else output


def _of_pairs(numbers: torch.Tensor) -> torch.Tensor:
    """[.., s] complex of [.., 2 s]."""
    return torch.view_as_complex(numbers.unflatten(-1, (-1, 2)).contiguous())


def _by_step(matrix: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """[b or 1, d or 1, s or 1, n] of B or C."""
    if matrix.dim() == 2:
        return matrix[None, :, None]
    if matrix.dim() == 3:
        return matrix.transpose(1, 2).unsqueeze(1)
    return matrix.repeat_interleave(size[1] // matrix.shape[1], 1).transpose(2, 3)


def mamba_inner_fn(
    xz: torch.Tensor,
    conv1d_weight: torch.Tensor,
    conv1d_bias: torch.Tensor | None,
    x_proj_weight: torch.Tensor,
    delta_proj_weight: torch.Tensor,
    out_proj_weight: torch.Tensor,
    out_proj_bias: torch.Tensor | None,
    A: torch.Tensor,
    B: torch.Tensor | None = None,
    C: torch.Tensor | None = None,
    D: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    B_proj_bias: torch.Tensor | None = None,
    C_proj_bias: torch.Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: torch.Tensor | None = None,
    c_rms_weight: torch.Tensor | None = None,
    dt_rms_weight: torch.Tensor | None = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> torch.Tensor:
    """Convolution, projections, scan and output projection of a Mamba-1 layer.

    :param xz: [b, 2 d, s], the values and their gate.
    :param conv1d_weight: [d, 1, w].
    :param x_proj_weight: [r + 2 n, d]; twice as many n where A is complex.
    :param delta_proj_weight: [d, r].
    :param out_proj_weight: [h, d].
    :param A: [d, n].
    :param B: as of :func:`selective_scan_fn`; None to project it from the values. C too.
    :param b_rms_weight: [n], of an RMSNorm of B; ``c_rms_weight`` of C, ``dt_rms_weight`` [d] of
        the projected steps (FalconMamba).
    :returns: [b, s, h].
    """
    x, z = xz.chunk(2, dim=1)
    x = kernel(CAUSAL_CONVOLUTION)(x, conv1d_weight.squeeze(1), conv1d_bias, silu=True)
    projected = functional.linear(x.transpose(1, 2), x_proj_weight)  # [b, s, r + 2 n]
    n, rank = A.shape[1] * (2 if A.is_complex() else 1), delta_proj_weight.shape[1]
    step, write, read = projected[..., :rank], projected[..., rank : rank + n], projected[..., -n:]

    def normed(values: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        if weight is None:
            return values
        wide = values.to(compute_dtype(values))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + b_c_dt_rms_eps)
        return (wide * weight.to(wide.dtype)).to(values.dtype)

    def by_state(values: torch.Tensor) -> torch.Tensor:
        """[b, n, s], or [b, n, 2 s] of [b, s, 2 n]."""
        if not A.is_complex():
            return values.transpose(1, 2)
        pairs: torch.Tensor = values.unflatten(-1, (-1, 2))
        return pairs.transpose(1, 2).flatten(-2)

    delta = normed(functional.linear(step, delta_proj_weight), dt_rms_weight).transpose(1, 2)
    if B is None:
        B = write if B_proj_bias is None else write + B_proj_bias.to(write.dtype)
        B = by_state(normed(B, b_rms_weight))
    if C is None:
        C = read if C_proj_bias is None else read + C_proj_bias.to(read.dtype)
        C = by_state(normed(C, c_rms_weight))
    output = selective_scan_fn(x, delta, A, B, C, D, z, delta_bias, delta_softplus)
    assert isinstance(output, torch.Tensor)
    return functional.linear(output.transpose(1, 2), out_proj_weight, out_proj_bias)


selective_scan_ref, mamba_inner_ref = selective_scan_fn, mamba_inner_fn


def _layer_norm_fwd(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    is_rms_norm: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """Output, mean, inverse deviation (float32 [rows]) and x plus ``residual``, of rows [m, h]."""
    added = x if residual is None else (x.float() + residual.float()).to(residual_dtype or x.dtype)
    output, mean, rstd = kernel(NORM_FORWARD)(
        added, weight, bias, eps=eps, centered=not is_rms_norm
    )
    return output.to(out_dtype or x.dtype), mean, rstd, added


def layernorm_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    z: torch.Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
) -> torch.Tensor:
    """``norm(x) * silu(z)``, or ``norm(x * silu(z))``, in float32, rounded once at the end.

    :param x: [..., h].
    :param weight: [h].
    :param bias: [h].
    :param z: like ``x``; no gate without it.
    :param eps: added to the variance, or to the mean square.
    :param group_size: channels that are normalised together; default h.
    :param norm_before_gate: the first formula, else the second.
    :param is_rms_norm: no mean is taken off.
    """
    dtype = compute_dtype(x)
    wide = x.to(dtype)
    gate = None if z is None else functional.silu(z.to(dtype))
    if gate is not None and not norm_before_gate:
        wide = wide * gate
    groups: torch.Tensor = wide.unflatten(-1, (-1, group_size or x.shape[-1]))
    if not is_rms_norm:
        groups = groups - groups.mean(-1, keepdim=True)
    normal = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)
    output: torch.Tensor = normal.flatten(-2) * weight.to(dtype)
    if bias is not None:
        output = output + bias.to(dtype)
    if gate is not None and norm_before_gate:
        output = output * gate
    return output.to(x.dtype)


def rmsnorm_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    z: torch.Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
) -> torch.Tensor:
    """:func:`layernorm_fn` with the root of the mean square."""
    return layernorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate, True)


class _Gated(torch.nn.Module):
    """A norm of groups of channels, with a gate.

    :param hidden_size: h.
    :param group_size: channels that are normalised together; default h.
    :param norm_before_gate: ``norm(x) * silu(z)``, else ``norm(x * silu(z))``.
    """

    is_rms_norm: ClassVar[bool]
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        absent = self.is_rms_norm
        self.register_parameter(
            "bias", None if absent else torch.nn.Parameter(torch.empty_like(self.weight))
        )
        self.group_size = group_size
        self.norm_before_gate = norm_before_gate
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ones, and zeros for the bias."""
        torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        """[..., h], as ``x`` and ``z``."""
        form = self.eps, self.group_size, self.norm_before_gate, self.is_rms_norm
        return layernorm_fn(x, self.weight, self.bias, z, *form)


class LayerNorm(_Gated):
    """A layer norm of groups of channels, with a gate."""

    is_rms_norm = False


class RMSNorm(_Gated):
    """A norm of groups of channels by their root mean square, with a gate."""

    is_rms_norm = True


@torch.no_grad()
def selective_state_update(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """``S = exp(dt A) S + dt x B^T``, in place; the result is ``(S C + D x) * silu(z)``.

    Everything may lack the dimension h; computed in float32.

    :param state: [b, h, p, n], or [more, h, p, n] with ``state_batch_indices``.
    :param x: [b, h, p]; ``dt`` and ``z`` too.
    :param A: [h, p, n].
    :param B: [b, g, n]; ``C`` too.
    :param D: [h, p]; ``dt_bias`` too.
    :param dt_softplus: dt is the softplus of what is given, bias included.
    :param state_batch_indices: [b], the row of every batch element; a negative one is padding: it
        changes nothing and gives zeros.
    :returns: like ``x``.
    """
    heads = state.dim() == 4
    states = state if heads else state.unsqueeze(1)
    dtype = compute_dtype(state)

    def wide(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return (tensor if heads else tensor.unsqueeze(dim)).to(dtype)

    live = torch.arange(x.shape[0], device=x.device)
    at = live
    if state_batch_indices is not None:
        live = (state_batch_indices >= 0).nonzero()[:, 0]
        at = state_batch_indices[live].long()
    count = states.shape[1]
    new, step = wide(x, 1)[live], wide(dt, 1)[live]
    write, read = (
        group.repeat_interleave(count // group.shape[1], 1)
        for group in (wide(B, 1)[live], wide(C, 1)[live])
    )
    if dt_bias is not None:
        step = step + wide(dt_bias, 0)
    if dt_softplus:
        step = functional.softplus(step)
    decay = (step.unsqueeze(-1) * wide(A, 0)).exp()
    moved = states[at].to(dtype) * decay + (step * new).unsqueeze(-1) * write.unsqueeze(2)
    states[at] = moved.to(state.dtype)
    found = (moved * read.unsqueeze(2)).sum(-1)  # no product that autocast would round
    if D is not None:
        found = found + new * wide(D, 0)
    if z is not None:
        found = found * functional.silu(wide(z, 1)[live])
    output = torch.zeros_like(x)
    output[live] = found.to(x.dtype).view(-1, *x.shape[1:])
    return output


_NO_LIMIT = (0.0, float("inf"))


def mamba_chunk_scan_combined(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = _NO_LIMIT,
    return_final_states: bool = False,
    return_varlen_states: bool = False,
    state_dtype: torch.dtype | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """The contract ``state_space_scan`` with ``log_decay = dt A``.

    :param x: [b, s, h, p].
    :param dt: [b, s, h].
    :param A: [h], negative.
    :param B: [b, s, g, n]; ``C`` too.
    :param chunk_size: of the real library's kernels; the backend's kernel chooses its own.
    :param D: [h] or [h, p].
    :param z: [b, s, h, p].
    :param dt_bias: [h], added to ``dt`` first.
    :param initial_states: [b, h, p, n]; with ``seq_idx``, the state of sequence 0.
    :param seq_idx: [b, s], numbers of packed sequences.
    :param cu_seqlens: [sequences + 1], where packed sequences begin; for ``return_varlen_states``.
    :param dt_softplus: the softplus of ``dt`` comes after the bias.
    :param dt_limit: ``dt`` is cut to this range last.
    :param return_final_states: also return the last state, [b, h, p, n] in float32.
    :param return_varlen_states: also return the last state of every packed sequence,
        [sequences, h, p, n], without gradients; b is 1.
    :param state_dtype: how the real library's next release keeps the states between chunks, which
        a product reads in C's dtype. Here they are float32 for any.
    :returns: [b, s, h, p], or that and the states.
    """
    dtype = compute_dtype(x)
    step = dt.to(dtype)
    if dt_bias is not None:
        step = step + dt_bias.to(dtype)
    if dt_softplus:
        step = functional.softplus(step)
    if tuple(dt_limit) != _NO_LIMIT:
        step = step.clamp(*dt_limit)
    if initial_states is not None and seq_idx is not None:
        initial_states = initial_states * (seq_idx[:, 0] == 0)[:, None, None, None]
    log_decay = step * A.to(dtype)
    scan = kernel_or_warning(STATE_SPACE_SCAN, _SLOW)
    output, state = scan(
        x,
        log_decay,
        B,
        C,
        step=step,
        skip=D,
        gate=z,
        initial_state=initial_states,
        sequence_ids=seq_idx,
    )
    found = [output.contiguous()]  # as the real one's; callers take views of it
    if return_final_states:
        found.append(state)
    if return_varlen_states:
        assert cu_seqlens is not None, "cu_seqlens must be provided if return_varlen_states is True"
        ends = cast(list[int], cu_seqlens.tolist())
        with torch.no_grad():
            last = [
                scan(x[:, a:e], log_decay[:, a:e], B[:, a:e], C[:, a:e], step=step[:, a:e])[1]
                for a, e in pairwise(ends)
            ]
        found.append(torch.cat(last))
    return found[0] if len(found) == 1 else tuple(found)


def mamba_split_conv1d_scan_combined(
    zxbcdt: torch.Tensor,
    conv1d_weight: torch.Tensor,
    conv1d_bias: torch.Tensor | None,
    dt_bias: torch.Tensor,
    A: torch.Tensor,
    D: torch.Tensor,
    chunk_size: int,
    initial_states: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    dt_limit: tuple[float, float] = _NO_LIMIT,
    return_final_states: bool = False,
    activation: str | None = "silu",
    rmsnorm_weight: torch.Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: torch.Tensor | None = None,
    outproj_bias: torch.Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
    state_dtype: torch.dtype | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Convolution, scan, gated norm and output projection.

    :param zxbcdt: [b, s, 2 m + 2 h p + 2 g n + h]: an MLP's halves (m may be 0), the gate z, then
        x, B and C, which pass the convolution, and dt.
    :param conv1d_weight: [h p + 2 g n, w].
    :param conv1d_bias: [h p + 2 g n].
    :param dt_bias: [h]; the softplus comes after it.
    :param A: [h].
    :param D: [h] or [h, p].
    :param chunk_size: see :func:`mamba_chunk_scan_combined`, as for the next four.
    :param activation: of the convolution: None, ``silu`` or ``swish``.
    :param rmsnorm_weight: [h p]; without it the scan is gated, and nothing is normalised.
    :param rmsnorm_eps: added to the mean square.
    :param outproj_weight: [out, m + h p].
    :param outproj_bias: [out].
    :param headdim: p, needed if ``D`` is [h].
    :param ngroups: g.
    :param norm_before_gate: see :func:`layernorm_fn`.
    :param state_dtype: see :func:`mamba_chunk_scan_combined`.
    :returns: [b, s, m + h p], or [b, s, out]; with ``return_final_states`` also the last state.
    """
    assert activation in (None, "silu", "swish")
    nheads = D.shape[0]
    headdim = D.shape[1] if D.dim() == 2 else headdim
    assert headdim is not None
    assert nheads % ngroups == 0
    dim = nheads * headdim
    dstate = (conv1d_weight.shape[0] - dim) // ngroups // 2
    mlp = (zxbcdt.shape[-1] - 2 * dim - 2 * ngroups * dstate - nheads) // 2
    assert mlp >= 0
    sizes = [2 * mlp, dim, dim + 2 * ngroups * dstate, nheads]
    zx0, z, xBC, dt = torch.split(zxbcdt, sizes, dim=-1)
    xBC = kernel(CAUSAL_CONVOLUTION)(
        xBC.transpose(1, 2),
        conv1d_weight,
        conv1d_bias,
        silu=activation is not None,
        sequence_ids=seq_idx,
    ).transpose(1, 2)
    x, B, C = torch.split(xBC, [dim, ngroups * dstate, ngroups * dstate], dim=-1)
    found = mamba_chunk_scan_combined(
        x.unflatten(-1, (nheads, headdim)),
        dt,
        A,
        B.unflatten(-1, (ngroups, dstate)),
        C.unflatten(-1, (ngroups, dstate)),
        chunk_size,
        D=D,
        z=z.unflatten(-1, (nheads, headdim)) if rmsnorm_weight is None else None,
        dt_bias=dt_bias,
        initial_states=initial_states,
        seq_idx=seq_idx,
        dt_softplus=True,
        dt_limit=dt_limit,
        return_final_states=True,
        state_dtype=state_dtype,
    )
    output, state = found[0].flatten(2), found[1]
    if rmsnorm_weight is not None:
        output = rmsnorm_fn(
            output, rmsnorm_weight, None, z, rmsnorm_eps, dim // ngroups, norm_before_gate
        )
    if mlp:
        output = torch.cat((kernel(SWIGLU)(zx0), output), -1)
    if outproj_weight is not None:
        output = functional.linear(output, outproj_weight, outproj_bias)
    else:
        assert outproj_bias is None
    return (output, state) if return_final_states else output

"""Mamba-2's scan, alone and with everything around it.

Legend: b batch, s sequence length, h heads, p head size, g groups, n state size, w width of the
convolution.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch.nn import functional

from accel_bridge.kernels import CAUSAL_CONVOLUTION, STATE_SPACE_SCAN, SWIGLU, compute_dtype
from accel_bridge.kernels.active import kernel

from .layernorm_gated import rmsnorm_fn

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
    scan = kernel(STATE_SPACE_SCAN)
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
    :param norm_before_gate: see :func:`.layernorm_gated.layernorm_fn`.
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

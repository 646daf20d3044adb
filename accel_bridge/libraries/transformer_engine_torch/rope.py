"""Rotary position embedding, both ways, on the contract ``rotary``.

Legend: s sequence, b batch, n heads, d head size, r rotated size, t tokens of packed sequences,
cp context parallel ranks. Formats: SBHD [s, b, n, d], BSHD [b, s, n, d], THD [t, n, d].
"""

from __future__ import annotations

from typing import Any, Final

import torch

from accel_bridge.kernels import ROTARY, TensorCache
from accel_bridge.kernels.active import kernel
from accel_bridge.libraries.transformer_engine_torch.enums import NVTE_QKV_Format

#: Cosines, sines and negative sines, which every layer and step needs again.
_ANGLES: Final[TensorCache[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = TensorCache()


def fused_rope_forward(
    input: torch.Tensor,
    freqs: torch.Tensor,
    start_positions: torch.Tensor | None,
    qkv_format: Any,
    interleaved: bool,
    cu_seqlens: torch.Tensor | None,
    cp_size: int,
    cp_rank: int,
) -> torch.Tensor:
    """``input`` with its first r dimensions rotated; computed in float32, rounded once.

    :param input: in ``qkv_format``, any float dtype.
    :param freqs: float32 [positions, 1, 1, r], the angles.
    :param start_positions: int [b], position of each sequence's first token.
    :param cu_seqlens: int32 [b + 1], THD only; those of all ranks.
    :param cp_size: ranks that hold two chunks of each sequence, one from either end.
    """
    return _rotated(
        input, freqs, start_positions, qkv_format, interleaved, cu_seqlens, cp_size, cp_rank
    )


def fused_rope_backward(
    output_grads: torch.Tensor, freqs: torch.Tensor, *places: Any
) -> torch.Tensor:
    """Gradient of the input: a rotation by the opposite angles.

    :param places: the arguments of :func:`fused_rope_forward` behind ``freqs``; before 2.9 without
        ``start_positions``.
    """
    if len(places) == 5:
        places = (None, *places)
    return _rotated(output_grads, freqs, *places, back=True)


def fused_qkv_rope_forward(
    qkv_input: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    start_positions: torch.Tensor | None,
    qkv_split_arg_list: list[int],
    qkv_format: Any,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and keys rotated, and values, out of one tensor.

    :param qkv_input: [s, b, g, q + k + v] or [b, s, g, q + k + v] for g key heads.
    :param qkv_split_arg_list: q, k and v; q is a multiple of the head size k.
    :returns: [.., g * q / k, k], [.., g, k], [.., g, v]; contiguous.
    """
    query, key, value = torch.split(qkv_input, qkv_split_arg_list, dim=-1)
    query = query.reshape(*query.shape[:2], -1, qkv_split_arg_list[1])
    rest = (start_positions, qkv_format, interleaved, None, cp_size, cp_rank)
    return _rotated(query, q_freqs, *rest), _rotated(key, k_freqs, *rest), value.contiguous()


def fused_qkv_rope_backward(
    q_grad_out: torch.Tensor,
    k_grad_out: torch.Tensor,
    v_grad_out: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    *places: Any,
) -> torch.Tensor:
    """Gradient of ``qkv_input``.

    :param places: ``qkv_split_arg_list`` and what follows it in :func:`fused_qkv_rope_forward`,
        possibly behind ``start_positions``.
    """
    start_positions = None
    if len(places) == 6:
        start_positions, *places = places  # type: ignore[assignment]
    sizes, qkv_format, interleaved, cp_size, cp_rank = places
    rest = (start_positions, qkv_format, interleaved, None, cp_size, cp_rank)
    query = _rotated(q_grad_out, q_freqs, *rest, back=True)
    key = _rotated(k_grad_out, k_freqs, *rest, back=True)
    query = query.reshape(*key.shape[:3], sizes[0])
    return torch.cat((query, key, v_grad_out), dim=-1)


@torch.no_grad()
def _rotated(
    input: torch.Tensor,
    freqs: torch.Tensor,
    start_positions: torch.Tensor | None,
    qkv_format: Any,
    interleaved: bool,
    cu_seqlens: torch.Tensor | None,
    cp_size: int,
    cp_rank: int,
    *,
    back: bool = False,
) -> torch.Tensor:
    packed = qkv_format == NVTE_QKV_Format.NVTE_THD
    batch_first = qkv_format == NVTE_QKV_Format.NVTE_BSHD
    tokens = input.shape[1 if batch_first else 0]

    def angles() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        table = freqs.reshape(freqs.shape[0], -1).float()
        if packed:
            assert cu_seqlens is not None, "THD needs cu_seqlens"
            rows = _packed_positions(cu_seqlens, start_positions, tokens, cp_size, cp_rank)
            found = table[rows][:, None, None]
        else:
            rows = _positions(tokens, cp_size, cp_rank, table.device)
            if start_positions is not None:
                rows = rows[:, None] + start_positions[None, :]
            found = table[rows]
            found = found[:, None, None] if found.dim() == 2 else found[:, :, None]
            found = found.transpose(0, 1) if batch_first else found
        sines = found.sin()
        return found.cos(), sines, -sines

    state = (packed, batch_first, tokens, cp_size, cp_rank)
    cos, sin, negative = _ANGLES.get((freqs, cu_seqlens, start_positions), state, angles)
    rotate = kernel(ROTARY)
    wide = rotate.is_reference and input.dtype in (torch.float16, torch.bfloat16)
    # The reference rounds after every step; the extension rounds once.
    x = input.float() if wide else input
    x = x.unsqueeze(1) if packed else x  # the contract's [t, 1, n, d]
    rotated = rotate(x, cos, negative if back else sin, interleaved=interleaved)
    return rotated.to(input.dtype).contiguous().view(input.shape)


def _positions(tokens: int, cp_size: int, cp_rank: int, device: torch.device) -> torch.Tensor:
    """int64 [s]: the positions of this rank's tokens in their sequence."""
    if cp_size == 1:
        return torch.arange(tokens, device=device)
    half = tokens // 2
    chunks = (cp_rank, 2 * cp_size - 1 - cp_rank)
    return torch.cat([torch.arange(c * half, (c + 1) * half, device=device) for c in chunks])


def _packed_positions(
    cu_seqlens: torch.Tensor,
    start_positions: torch.Tensor | None,
    tokens: int,
    cp_size: int,
    cp_rank: int,
) -> torch.Tensor:
    """int64 [t]: each token's position in its sequence, 0 behind the last one."""
    ends = cu_seqlens.long() // cp_size
    row = torch.arange(tokens, device=ends.device)
    sequence = torch.searchsorted(ends[1:].contiguous(), row, right=True)
    place = row - ends[sequence]
    known = sequence.clamp(max=ends.numel() - 2)
    if cp_size > 1:
        half = ends.diff()[known] // 2
        second = place + (2 * cp_size - 2 - cp_rank) * half
        place = torch.where(place < half, place + cp_rank * half, second)
    if start_positions is not None:
        place = place + start_positions[known]
    return place.masked_fill(sequence > known, 0)

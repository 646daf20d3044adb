"""Rotary position embedding on the active backend's rotary kernel.

Legend: s sequence, b batch, n heads, d head size, r rotated size, t tokens of packed sequences,
cp context parallel ranks. Formats: sbhd [s, b, n, d], bshd [b, s, n, d], thd [t, n, d].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from accel_bridge.kernels import ROTARY, TensorCache
from accel_bridge.kernels.active import kernel

__all__ = ["RotaryPositionEmbedding", "apply_fused_qkv_rotary_pos_emb", "apply_rotary_pos_emb"]

#: The kernel, or what stands for it.
Rotate = Callable[..., torch.Tensor]
#: Cosines and sines, which every layer and step needs again.
_ANGLES: Final[TensorCache[tuple[torch.Tensor, torch.Tensor]]] = TensorCache()


class RotaryPositionEmbedding(torch.nn.Module):
    """Angles of every position (Su et al. 2021, arXiv:2104.09864).

    :param dim: size of the heads; ``rotary_percent`` of it is rotated.
    :param seq_len_interpolation_factor: positions are divided by it (arXiv:2306.15595), together
        with ``pretrained_max_position_embeddings``; beyond their product the division is such that
        the longest position becomes the longest pretrained one.
    :param interleaved: pairs are (2i, 2i + 1), not (i, i + r / 2).
    """

    def __init__(
        self,
        dim: int,
        rotary_percent: float = 1.0,
        seq_len_interpolation_factor: int | None = None,
        pretrained_max_position_embeddings: int | None = None,
        rotary_base: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        if rotary_percent < 1.0:
            dim = int(dim * rotary_percent)
        self.seq_len_interpolation_factor = seq_len_interpolation_factor
        self.pretrained_max_position_embeddings = pretrained_max_position_embeddings
        self.rotary_base = rotary_base
        self.interleaved = interleaved
        device = torch.cuda.current_device()
        steps = torch.arange(0, dim, 2, dtype=torch.float32, device=device)
        self.inv_freq: torch.Tensor
        self.register_buffer("inv_freq", 1.0 / rotary_base ** (steps / dim))

    def forward(self, max_seq_len: int, offset: int = 0) -> torch.Tensor:
        """[max_seq_len, 1, 1, r]: the angles of positions from ``offset`` on."""
        with torch.autocast(enabled=False, device_type="cuda"):
            frequencies = self.inv_freq
            place = torch.arange(max_seq_len, device=frequencies.device, dtype=frequencies.dtype)
            place = place + offset
            pretrained = self.pretrained_max_position_embeddings
            factor = self.seq_len_interpolation_factor
            if pretrained is not None and factor is not None:
                longer = max_seq_len > pretrained * factor
                place = place * (1 / (max_seq_len / pretrained if longer else factor))
            angles = torch.outer(place, frequencies)
        pairs = (angles, angles)
        whole = torch.stack(pairs, -1).flatten(-2) if self.interleaved else torch.cat(pairs, -1)
        return whole[:, None, None, :]


def apply_rotary_pos_emb(
    t: torch.Tensor,
    freqs: torch.Tensor,
    tensor_format: str = "sbhd",
    start_positions: torch.Tensor | None = None,
    interleaved: bool = False,
    fused: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> torch.Tensor:
    """``t`` with its first r dimensions rotated.

    :param t: in ``tensor_format``, any float dtype.
    :param freqs: [positions, 1 or b, 1, r], the angles.
    :param start_positions: int [b], position of each sequence's first token.
    :param fused: compute in float32 whatever the dtype, as the backend's kernel does. Without it,
        angles that require a gradient get one, through the kernel's reference.
    :param cu_seqlens: int [b + 1], thd only; those of all ranks.
    :param cp_size: ranks that hold two chunks of each sequence.
    :raises AssertionError: thd without lengths, or sequences longer than the angles.
    :raises ValueError: another format.
    """
    if tensor_format not in ("sbhd", "bshd", "thd"):
        raise ValueError(f"Unsupported tensor_format: {tensor_format}.")
    if tensor_format == "thd":
        assert cu_seqlens is not None, "cu_seqlens must not be None when tensor_format is 'thd'."
        tokens = t.shape[0]
        tensors: tuple[torch.Tensor | None, ...] = (freqs, cu_seqlens, start_positions)
        place: Callable[[], torch.Tensor | slice] = _packed_positions(
            cu_seqlens, start_positions, tokens, cp_size, cp_rank
        )
    else:
        tokens = t.shape[1] if tensor_format == "bshd" else t.shape[0]
        tensors = (freqs, start_positions)
        place = _positions(freqs, start_positions, tokens, cp_size, cp_rank)
    state = (tensor_format, tokens, cp_size, cp_rank)

    def look_up() -> tuple[torch.Tensor, torch.Tensor]:
        angles = _at(freqs, place())
        if tensor_format == "bshd":
            angles = angles.transpose(0, 1)
        angles = angles.float()
        return angles.cos(), angles.sin()

    rotate: Rotate = _rotate if fused else kernel(ROTARY)
    if freqs.requires_grad and not fused:
        rotate = ROTARY.reference
        cos, sin = look_up()
    else:
        with torch.no_grad():
            cos, sin = _ANGLES.get(tensors, state, look_up)
    if tensor_format == "thd":
        return rotate(t.unsqueeze(1), cos, sin, interleaved=interleaved).squeeze(1)
    return rotate(t, cos, sin, interleaved=interleaved)


def _rotate(
    t: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool
) -> torch.Tensor:
    """The backend's kernel, contiguous; float32 inside, also where that is the reference."""
    rotate = kernel(ROTARY)
    if rotate.is_reference and t.dtype in (torch.float16, torch.bfloat16):
        turned = rotate(t.float(), cos, sin, interleaved=interleaved).to(t.dtype)
    else:
        turned = rotate(t, cos, sin, interleaved=interleaved)
    return turned.contiguous()


def apply_fused_qkv_rotary_pos_emb(
    qkv: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    qkv_split_arg_list: list[int],
    tensor_format: str = "sbhd",
    start_positions: torch.Tensor | None = None,
    interleaved: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and keys rotated, and values, out of one tensor.

    :param qkv: [s, b, g, q + k + v] or [b, s, g, q + k + v] for g key heads.
    :param qkv_split_arg_list: q, k and v; q is a multiple of the head size k.
    :returns: [.., g * q / k, k], [.., g, k], [.., g, v].
    :raises AssertionError: thd, or start positions with context parallelism.
    """
    assert cp_size == 1 or start_positions is None, (
        "start_positions != None with CP SIZE > 1 is not supported!"
    )
    assert tensor_format != "thd", "'thd' tensor_format not supported currently."
    if tensor_format not in ("sbhd", "bshd"):
        raise ValueError(f"Unsupported tensor_format: {tensor_format}.")
    first, second = qkv.shape[:2]
    size = qkv_split_arg_list[1]
    tokens, batch = (first, second) if tensor_format == "sbhd" else (second, first)

    def turned(part: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        place = _positions(freqs, start_positions, tokens, cp_size, cp_rank)

        def look_up() -> tuple[torch.Tensor, torch.Tensor]:
            angles = _at(freqs, place()).float().expand(-1, batch, -1, -1)
            angles = angles if tensor_format == "sbhd" else angles.transpose(0, 1)
            angles = angles.flatten(0, 1)[:, None]
            return angles.cos(), angles.sin()

        state = (tensor_format, tokens, batch, cp_size, cp_rank)
        with torch.no_grad():
            cos, sin = _ANGLES.get((freqs, start_positions), state, look_up)
        # One row for each token, so that the heads of a group stay a view of qkv.
        heads = part.flatten(0, 1).unflatten(-1, (-1, size))
        output = _rotate(heads, cos, sin, interleaved=interleaved)
        return output.reshape(first, second, -1, size)

    query, key, value = torch.split(qkv, qkv_split_arg_list, dim=-1)
    return turned(query, q_freqs), turned(key, k_freqs), value


def _at(freqs: torch.Tensor, place: torch.Tensor | slice) -> torch.Tensor:
    """Angles [s, 1 or b, 1, r] at positions: a slice, [s], or [s, b] with one for each sequence."""
    if isinstance(place, slice):
        return freqs[place]
    if place.dim() == 1:
        return freqs.index_select(0, place)
    return freqs[place, 0, 0][:, :, None]


def _local(tokens: int, cp_size: int, cp_rank: int, device: torch.device) -> torch.Tensor:
    """int64 [s]: positions of a rank's two chunks, one from either end."""
    half = tokens // 2
    chunks = (cp_rank, 2 * cp_size - 1 - cp_rank)
    return torch.cat([torch.arange(c * half, (c + 1) * half, device=device) for c in chunks])


def _positions(
    freqs: torch.Tensor,
    start_positions: torch.Tensor | None,
    tokens: int,
    cp_size: int,
    cp_rank: int,
) -> Callable[[], torch.Tensor | slice]:
    """The positions of sequences that are all ``tokens`` long here."""

    def look_up() -> torch.Tensor | slice:
        assert freqs.shape[0] >= tokens * cp_size, (
            f"Rotary Embeddings only supported up to {freqs.shape[0]} sequence length!"
        )
        if cp_size == 1 and start_positions is None:
            return slice(0, tokens)
        if cp_size == 1:
            place = torch.arange(tokens, device=freqs.device)
        else:
            place = _local(tokens, cp_size, cp_rank, freqs.device)
        if start_positions is None:
            return place
        assert int(start_positions.max()) + tokens * cp_size <= freqs.shape[0], (
            f"Rotary Embeddings only supported up to {freqs.shape[0]} sequence length!"
        )
        return place[:, None] + start_positions[None, :]

    return look_up


def _packed_positions(
    cu_seqlens: torch.Tensor,
    start_positions: torch.Tensor | None,
    tokens: int,
    cp_size: int,
    cp_rank: int,
) -> Callable[[], torch.Tensor]:
    """Each token's position in its sequence, 0 behind the last one; waits for nothing."""

    def look_up() -> torch.Tensor:
        ends = cu_seqlens.long() // cp_size
        row = torch.arange(tokens, device=ends.device)
        sequence = torch.searchsorted(ends[1:].contiguous(), row, right=True)
        place = row - ends.index_select(0, sequence)
        known = sequence.clamp(max=ends.numel() - 2)
        if cp_size > 1:
            half = ends.diff().index_select(0, known) // 2
            second = place + (2 * cp_size - 2 - cp_rank) * half
            place = torch.where(place < half, place + cp_rank * half, second)
        if start_positions is not None:
            place = place + start_positions.index_select(0, known)
        return place.masked_fill(sequence > known, 0)

    return look_up

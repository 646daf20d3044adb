"""Preparing packed batches for context parallelism.

Legend: cp ranks; each holds chunks r and 2 * cp - 1 - r of the 2 * cp chunks of every sequence.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.distributed as dist

__all__ = [
    "generate_positional_ids_for_cp",
    "get_batch_on_this_cp_rank",
    "get_cu_seqlens_on_cp_rank",
    "pad_thd_sequences_for_cp",
]


def get_cu_seqlens_on_cp_rank(
    cu_seqlens: torch.Tensor,
    cu_seqlens_padded_on_cp_rank: torch.Tensor,
    cp_size: int,
    cp_rank: int,
    first_half: bool,
    second_half: bool,
) -> torch.Tensor:
    """[b + 1]: cumulative numbers of real tokens that a rank holds.

    :param cu_seqlens: of all ranks, without padding.
    :param cu_seqlens_padded_on_cp_rank: of one rank, with padding.
    :param first_half: count the rank's first chunk; likewise the second.
    """
    lengths = cu_seqlens.diff()
    chunk = cu_seqlens_padded_on_cp_rank.diff() // 2
    held = torch.zeros_like(lengths)
    for counted, number in ((first_half, cp_rank), (second_half, 2 * cp_size - cp_rank - 1)):
        if counted:
            held = held + (lengths - number * chunk).clamp(torch.zeros_like(chunk), chunk)
    return torch.nn.functional.pad(held.cumsum(0), (1, 0)).to(cu_seqlens.dtype)


def _room(cu_seqlens: torch.Tensor, divisibility_factor: int) -> torch.Tensor:
    """Lengths rounded up."""
    return -(-cu_seqlens.diff() // divisibility_factor) * divisibility_factor


def pad_thd_sequences_for_cp(
    input_ids: torch.Tensor,
    labels: torch.Tensor,
    cu_seqlens: torch.Tensor,
    divisibility_factor: int,
    padding_token_id: int = 0,
    padding_label_id: int = -100,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens [t'], labels [t'] and cumulative lengths with each sequence padded at its end.

    :param input_ids: [t] or [1, t].
    :param divisibility_factor: lengths become multiples of it.
    """
    room = _room(cu_seqlens, divisibility_factor)
    bounds = torch.nn.functional.pad(room.cumsum(0), (1, 0)).to(cu_seqlens.dtype)
    lengths = cu_seqlens.diff()
    place = torch.arange(int(cu_seqlens[-1]), device=cu_seqlens.device)
    place = place + torch.repeat_interleave(bounds[:-1] - cu_seqlens[:-1], lengths)

    def padded(values: torch.Tensor, filling: int) -> torch.Tensor:
        values = values.squeeze(0) if values.dim() == 2 else values
        whole = values.new_full((int(bounds[-1]),), filling)
        whole[place.to(values.device)] = values[: place.numel()]
        return whole

    return padded(input_ids, padding_token_id), padded(labels, padding_label_id), bounds


def generate_positional_ids_for_cp(
    cu_seqlens: torch.Tensor, divisibility_factor: int, dtype: torch.dtype = torch.long
) -> torch.Tensor:
    """[t']: each token's position in its padded sequence, counted on through the padding."""
    room = _room(cu_seqlens, divisibility_factor)
    starts = torch.repeat_interleave(room.cumsum(0) - room, room)
    return (torch.arange(int(room.sum()), device=cu_seqlens.device) - starts).to(dtype)


def get_batch_on_this_cp_rank(
    cu_seqlens_padded: torch.Tensor,
    input_ids_padded: torch.Tensor | None,
    labels_padded: torch.Tensor | None,
    position_ids_padded: torch.Tensor | None,
    cp_group: dist.ProcessGroup | None = None,
    qvk_format: str = "thd",
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """This rank's two chunks of each sequence.

    :param input_ids_padded: [t] or [1, t], as the others.
    :raises ValueError: another format, or tensors that do not have t tokens.
    """
    if qvk_format != "thd":
        raise ValueError(f"Unsupported qvk_format: {qvk_format}!")
    size = dist.get_world_size(group=cp_group)
    if size == 1:
        return input_ids_padded, labels_padded, position_ids_padded
    rank = dist.get_rank(group=cp_group)
    bounds = cu_seqlens_padded.tolist()
    places = []
    for start, end in pairwise(bounds):
        chunk = (end - start) // (2 * size)
        for number in (rank, 2 * size - rank - 1):
            places.append(torch.arange(start + number * chunk, start + (number + 1) * chunk))
    held = torch.cat(places)

    def cut(values: torch.Tensor | None) -> torch.Tensor | None:
        if values is None:
            return None
        for dim in (1, 0) if values.dim() > 1 else (0,):
            if values.dim() > dim and values.shape[dim] == bounds[-1]:
                return values.index_select(dim, held.to(values.device))
        raise ValueError("Make sure the inputs are in THD format and padded correctly.")

    return cut(input_ids_padded), cut(labels_padded), cut(position_ids_padded)

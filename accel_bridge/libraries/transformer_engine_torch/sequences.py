"""Packed sequences: over context parallel ranks, as rows of a batch, into a cache.

Every rank of cp holds two chunks of a sequence, one from either end; ``cu_seqlens`` are those of
what the tensor holds, unless said otherwise. Nothing waits for the device.

Legend: t tokens, b sequences, s longest, n heads, d head size, h the rest of a token's shape.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from accel_bridge.libraries.transformer_engine_torch.enums import NVTE_QKV_Format


class _Places(NamedTuple):
    """Of each of t tokens: its sequence, its place there, the sequence's length, whether it is one.

    Tokens behind the last sequence count to it.
    """

    sequence: torch.Tensor
    place: torch.Tensor
    length: torch.Tensor
    real: torch.Tensor


def _places(tokens: int, cu_seqlens: torch.Tensor) -> _Places:
    ends = cu_seqlens.long()
    row = torch.arange(tokens, device=ends.device)
    sequence = torch.searchsorted(ends[1:].contiguous(), row, right=True)
    sequence = sequence.clamp_(max=ends.numel() - 2)
    return _Places(sequence, row - ends[sequence], ends.diff()[sequence], row < ends[-1])


def _halves(tokens: int, cu_seqlens: torch.Tensor) -> tuple[_Places, torch.Tensor, torch.Tensor]:
    """The places; which tokens are of a second half; each token's place among its half's."""
    found = _places(tokens, cu_seqlens)
    half = found.length // 2
    second = found.place >= half
    within = (cu_seqlens.long() // 2)[found.sequence] + found.place - half * second
    return found, second, within


def thd_read_half_tensor(
    tensor: torch.Tensor, cu_seqlens: torch.Tensor, half_idx: int
) -> torch.Tensor:
    """The first (0) or second (1) half of every sequence of [t, n, d] or [2, t, n, d]."""
    dim = tensor.dim() - 3
    tokens = tensor.shape[dim]
    halves = cu_seqlens // 2
    found = _places(tokens // 2, halves)
    row = torch.arange(tokens // 2, device=tensor.device)
    index = row + halves.long()[found.sequence + half_idx]
    return tensor.index_select(dim, index.clamp(max=tokens - 1))


def thd_get_partitioned_indices(
    cu_seqlens: torch.Tensor, total_tokens: int, world_size: int, rank: int
) -> torch.Tensor:
    """Which tokens of the whole sequences a rank holds: int32 [t / world_size].

    :param cu_seqlens: int32 [b + 1], of whole sequences; multiples of 2 * ``world_size``.
    """
    own = cu_seqlens // world_size
    found = _places(total_tokens // world_size, own)
    half = found.length // 2
    skipped = torch.where(found.place < half, rank, 2 * (world_size - 1) - rank)
    start = own.long()[found.sequence] * world_size
    return (start + found.place + half * skipped).to(torch.int32)


def _rank_order(cu_seqlens: torch.Tensor, cp_size: int, total_tokens: int) -> torch.Tensor:
    ranks = range(cp_size)
    parts = [thd_get_partitioned_indices(cu_seqlens, total_tokens, cp_size, r) for r in ranks]
    return torch.cat(parts).long()


def thd_sequence_order_to_cp_rank_order(
    inp: torch.Tensor, cu_seqlens: torch.Tensor, cp_size: int, total_tokens: int
) -> torch.Tensor:
    """[t, h] of whole sequences in the order of the ranks that hold the tokens."""
    return inp.index_select(0, _rank_order(cu_seqlens, cp_size, total_tokens))


def thd_cp_rank_order_to_sequence_order(
    inp: torch.Tensor, cu_seqlens: torch.Tensor, cp_size: int, total_tokens: int
) -> torch.Tensor:
    """The way back."""
    index = _rank_order(cu_seqlens, cp_size, total_tokens)
    return torch.empty_like(inp).index_copy_(0, index, inp)


def thd_copy_valid_tokens_from_per_split_to_rank_local(
    out: torch.Tensor, inp: torch.Tensor, cu_seqlens_padded: torch.Tensor, cu_seqlens: torch.Tensor
) -> None:
    """Writes the tokens [t, h] that are no padding to ``out``, where they are."""
    found = _places(inp.shape[0], cu_seqlens_padded)
    valid = cu_seqlens.long().diff()[found.sequence]
    kept = (found.place >= 0) & (found.place < valid)
    out.copy_(torch.where(_beside(kept, inp), inp, out))


def thd_read_second_half_lse(
    lse: torch.Tensor, cu_seqlens: torch.Tensor, lse_packed: bool, second_half_lse_seqlen: int
) -> torch.Tensor:
    """Log-sum-exps of every sequence's second half.

    :param lse: float32 [n, t] if packed, else [b, n, s].
    :returns: [n, second_half_lse_seqlen] or [b, n, second_half_lse_seqlen], zeros behind.
    """
    if lse_packed:
        halves = cu_seqlens // 2
        found = _places(second_half_lse_seqlen, halves)
        row = torch.arange(second_half_lse_seqlen, device=lse.device)
        index = (row + halves.long()[found.sequence + 1]).clamp(max=lse.shape[1] - 1)
        return lse.index_select(1, index).masked_fill(~found.real, 0.0)
    half = (cu_seqlens.diff() // 2).long()[:, None]
    column = torch.arange(second_half_lse_seqlen, device=lse.device)
    index = (column + half).clamp(max=lse.shape[2] - 1)
    result = lse.gather(2, index[:, None].expand(-1, lse.shape[1], -1))
    return result.masked_fill((column >= half)[:, None], 0.0)


def thd_second_half_lse_correction(
    lse: torch.Tensor, lse_per_step: torch.Tensor, cu_seqlens: torch.Tensor, lse_packed: bool
) -> None:
    """Adds a step's log-sum-exps to those of every sequence's second half, in place.

    :param lse: float32 [n, t] if packed, else [b, n, s].
    :param lse_per_step: the same of the second halves alone.
    """
    if lse_packed:
        found, second, within = _halves(lse.shape[1], cu_seqlens)
        changed = second & found.real
        step = lse_per_step.index_select(1, within.clamp(0, lse_per_step.shape[1] - 1))
    else:
        length = cu_seqlens.diff().long()[:, None]
        column = torch.arange(lse.shape[2], device=lse.device)
        changed = ((column >= length // 2) & (column < length))[:, None]
        index = (column - length // 2).clamp(0, lse_per_step.shape[2] - 1)
        step = lse_per_step.gather(2, index[:, None].expand(-1, lse.shape[1], -1))
    lse.copy_(torch.where(changed, torch.logaddexp(lse, step), lse))


def _of_rows(lse: torch.Tensor, found: _Places) -> torch.Tensor:
    """[b, n, s] as [t, n]."""
    return lse[found.sequence, :, found.place.clamp(max=lse.shape[2] - 1)]


def thd_out_correction(
    out: torch.Tensor,
    out_per_step: torch.Tensor,
    *arguments: Any,
) -> None:
    """Adds a step's output, weighed by ``exp(lse_per_step - lse)``, in place.

    :param out: [t, n, d]; ``out_per_step`` has every sequence or only its second half.
    :param arguments: from 2.20 on the log-sum-exp that ``out`` had, which is weighed anew; then
        that of the whole so far, float32 [n, t] if packed, else [b, n, s]; the step's; cu_seqlens;
        whether only second halves change; whether they are packed.
    """
    *before, lse, lse_per_step, cu_seqlens, only_second_half, lse_packed = arguments
    found, second, within = _halves(out.shape[0], cu_seqlens)
    changed, index = found.real, torch.arange(out.shape[0], device=out.device)
    place = found.place
    if only_second_half:
        changed, index = changed & second, within
        place = place - found.length // 2
    index = index.clamp(0, out_per_step.shape[0] - 1)
    if lse_packed:
        whole = lse[:, : out.shape[0]]
        step = lse_per_step.index_select(1, index)
        factor = (step - whole).exp().t()
    else:
        whole = _of_rows(lse, found)
        step = lse_per_step[found.sequence, :, place.clamp(0, lse_per_step.shape[2] - 1)]
        factor = (step - whole).exp()
    values = out_per_step.index_select(0, index).float()
    # A row that sees nothing in a step has no log-sum-exp there.
    share = torch.where(values == 0.0, 0.0, values * factor.unsqueeze(-1)).to(out.dtype)
    kept = out
    if before:
        (old,) = before
        old = old[:, : out.shape[0]].t() if lse_packed else _of_rows(old, found)
        weight = (old - (whole.t() if lse_packed else whole)).exp().unsqueeze(-1)
        kept = torch.where(out == 0.0, 0.0, out * weight).to(out.dtype)
    out.copy_(torch.where(changed[:, None, None], kept + share, out))


def thd_grad_correction(
    grad: torch.Tensor,
    grad_per_step: torch.Tensor,
    cu_seqlens: torch.Tensor,
    first_half: str,
    second_half: str,
) -> None:
    """Adds a step's gradient to each half of every sequence, copies it there, or leaves it.

    :param grad: [t, n, d] or [2, t, n, d], changed in place.
    :param grad_per_step: the same; of one half only where the other's word is ``none``.
    :param first_half: and ``second_half``: ``add``, ``copy``, ``zero`` or ``none``.
    """
    dim = grad.dim() - 3
    tokens = grad.shape[dim]
    found, second, within = _halves(tokens, cu_seqlens)
    step = grad_per_step
    if grad_per_step.shape[dim] != tokens:
        step = grad_per_step.index_select(dim, within.clamp(0, grad_per_step.shape[dim] - 1))

    def changed(what: str) -> torch.Tensor:
        if what == "zero":
            return torch.zeros_like(grad)
        return {"add": grad + step, "copy": step, "none": grad}[what]

    halves = torch.where(
        _beside(second, grad[0] if dim else grad), changed(second_half), changed(first_half)
    )
    grad.copy_(torch.where(_beside(found.real, grad[0] if dim else grad), halves, grad))


def _beside(tokens: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """[t] that broadcasts over [t, h]."""
    return tokens.view(-1, *[1] * (tensor.dim() - 1))


def convert_thd_to_bshd(
    tensor: torch.Tensor, cu_seqlens: torch.Tensor, b: int, max_seq_len: int
) -> torch.Tensor:
    """[t, n, d] as [b, s, n, d], zeros behind each sequence."""
    column = torch.arange(max_seq_len, device=tensor.device)
    index = (cu_seqlens[:b, None] + column).clamp(max=tensor.shape[0] - 1)
    blank = column >= cu_seqlens.diff()[:b, None]
    return tensor[index].masked_fill(blank[:, :, None, None], 0)


def convert_bshd_to_thd(tensor: torch.Tensor, cu_seqlens: torch.Tensor, t: int) -> torch.Tensor:
    """[b, s, n, d] as [t, n, d], zeros behind the last sequence."""
    found = _places(t, cu_seqlens)
    rows = tensor[found.sequence, found.place.clamp(max=tensor.shape[1] - 1)]
    return rows.masked_fill(~found.real[:, None, None], 0)


def copy_to_kv_cache(
    new_k: torch.Tensor,
    new_v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    cu_new_lens: torch.Tensor,
    cu_cached_lens: torch.Tensor,
    kv_format: Any,
    b: int,
    max_ctx_len: int,
    max_seq_len: int,
    max_pages_per_seq: int,
    is_non_paged: bool,
) -> None:
    """Writes each sequence's new keys and values behind those that are cached.

    :param new_k: in ``kv_format``: BSHD, SBHD or THD.
    :param k_cache: [b, s, n, d], or pages [pages, page size, n, d].
    :param page_table: int32 [b, pages of a sequence]; without pages int [b], the row of each
        sequence.
    :param cu_new_lens: int32 [b + 1]; ``cu_cached_lens`` counts the new tokens too.
    :param is_non_paged: ``page_table`` says where each sequence was before: rows move first.
    """
    new, cached = cu_new_lens.diff()[:b].long(), cu_cached_lens.diff()[:b].long()
    page_size = max_seq_len // max_pages_per_seq
    for tensor, cache in ((new_k, k_cache), (new_v, v_cache)):
        if is_non_paged:
            cache[:b] = cache[page_table.reshape(-1)[:b].long()]
        if kv_format == NVTE_QKV_Format.NVTE_THD:
            sequence, place, _, _ = _places(tensor.shape[0], cu_new_lens[: b + 1])
            starts, rows = cu_new_lens.long()[sequence], tensor
        else:
            rows = tensor.transpose(0, 1) if kv_format == NVTE_QKV_Format.NVTE_SBHD else tensor
            sequence = torch.arange(b, device=tensor.device).repeat_interleave(rows.shape[1])
            place = torch.arange(rows.shape[1], device=tensor.device).repeat(b)
            starts, rows = sequence * rows.shape[1], rows[:b].flatten(0, 1)
        # Padding writes what the last new token writes; where there is none, what is there already.
        place = torch.minimum(place, (new[sequence] - 1).clamp(min=0))
        target = (cached - new)[sequence] + place
        page = sequence
        if not is_non_paged:
            number = (target // page_size).clamp(max=max_pages_per_seq - 1)
            page = page_table.view(-1, max_pages_per_seq)[sequence, number]
        flat = cache.flatten(0, 1)
        index = (page.long() * page_size + target % page_size).clamp(0, flat.shape[0] - 1)
        values = rows[(starts + place).clamp(max=rows.shape[0] - 1)]
        values = torch.where((new[sequence] > 0)[:, None, None], values, flat[index])
        cache.view(flat.shape)[index] = values

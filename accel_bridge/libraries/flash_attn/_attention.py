"""flash-attn's functions: FlashAttention-2's semantics on the active backend's attention kernel.

Legend: b batch, sq and sk lengths of queries and keys, s cached length, n query heads, g key heads
(n a multiple of g), d head size, t tokens of packed sequences. Causal masks and windows are aligned
to the bottom right: the last query stands at the last key. ``window_size`` is (left, right), -1
for no limit.

Where ``return_attn_probs`` is asked for, the results are (output, log-sum-exp, None): the weights
themselves, which the real library returns for its tests, are not computed.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import torch
from torch.nn.functional import pad

from accel_bridge.errors import BridgeError
from accel_bridge.kernels import (
    ATTENTION,
    AttentionOptions,
    attention_bias,
    compute_dtype,
    options_of_sequence,
    sequence_lengths,
)
from accel_bridge.kernels.active import kernel

from ._options import cached, capturing, options_of, packed
from ._rotary import apply_rotary_emb

Window = tuple[int, int]


def _run(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
) -> Any:
    """The output, or output, log-sum-exp and None."""
    result = kernel(ATTENTION)(query, key, value, options)
    return (*result, None) if isinstance(result, tuple) else result


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q [b, sq, n, d] over k, v [b, sk, g, d].

    :param alibi_slopes: float32 [n] or [b, n].
    :returns: [b, sq, n, d]; with ``return_attn_probs`` also float32 [b, n, sq] and None.
    """
    options = options_of(
        "BSHD",
        scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        dropout=dropout_p,
        alibi_slopes=alibi_slopes,
        return_lse=return_attn_probs,
    )
    return _run(q, k, v, options)


def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *options: Any, **named: Any) -> Any:
    """:func:`flash_attn_func` with kv [b, sk, 2, g, d]; its other parameters follow."""
    k, v = kv.unbind(2)
    return flash_attn_func(q, k, v, *options, **named)


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *options: Any, **named: Any) -> Any:
    """:func:`flash_attn_func` with qkv [b, s, 3, n, d]; its other parameters follow."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, *options, **named)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Any:
    """Attention within packed sequences: q [t, n, d], k, v [t', g, d].

    Rows behind the last sequence, with which inference fills its batches, come back as zeros.

    :param cu_seqlens_q: int32 [sequences + 1], cumulative lengths with the leading 0.
    :param block_table: int32 [sequences, pages]: k and v are pages [pages, size, g, d].
    :returns: [t, n, d]; with ``return_attn_probs`` also float32 [n, t] and None.
    """
    if capturing(q) and not (dropout_p or softcap or alibi_slopes is not None):
        form: Any = {"causal": causal, "window": window_size, "scale": softmax_scale}
        form["return_lse"] = return_attn_probs
        answer = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, block_table, **form)
        return (*answer, None) if return_attn_probs else answer
    rows = q.shape[0]
    # Training on a GPU has no such rows, and must not wait for the numbers.
    reads = q.device.type != "cuda" or not torch.is_grad_enabled()
    if reads:
        count = _filled(cu_seqlens_q.diff())
        cu_seqlens_q, cu_seqlens_k = (ends[: count + 1] for ends in (cu_seqlens_q, cu_seqlens_k))
        block_table = None if block_table is None else block_table[:count]
    if block_table is not None:
        k, v = (_from_pages(pages, block_table, cu_seqlens_k) for pages in (k, v))
    if reads:
        q = q[: int(cu_seqlens_q[-1])]
        k, v = (tokens[: int(cu_seqlens_k[-1])] for tokens in (k, v))
    options = options_of(
        "TND",
        scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        dropout=dropout_p,
        alibi_slopes=alibi_slopes,
        return_lse=return_attn_probs,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
    )
    result = _run(q, k, v, options)
    rest = rows - q.shape[0]
    if not rest:
        return result
    if not return_attn_probs:
        return pad(result, (0, 0, 0, 0, 0, rest))
    output, lse, weights = result
    return pad(output, (0, 0, 0, 0, 0, rest)), pad(lse, (0, rest)), weights


def _filled(lengths: torch.Tensor) -> int:
    """How many sequences there are up to the last with tokens; inference adds thousands without.

    The first counts always: a kernel wants one.
    """
    places = lengths[1:].nonzero()
    return int(places[-1]) + 2 if len(places) else min(len(lengths), 1)


def _from_pages(
    pages: torch.Tensor, block_table: torch.Tensor, cu_seqlens: torch.Tensor
) -> torch.Tensor:
    """The sequences' tokens [t, g, d], one after the other."""
    lengths = cu_seqlens.diff()
    rows = pages[block_table.long()].flatten(1, 2)
    real = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
    return rows[real]


def _used(
    cu_seqlens: torch.Tensor, leftpad: torch.Tensor | None, seqused: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [t']: the rows of keys that are used, and their cumulative lengths."""
    starts, stops = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    first = starts if leftpad is None else starts + leftpad
    last = stops if seqused is None else starts + seqused
    rows = torch.arange(int(stops[-1]), device=cu_seqlens.device)[:, None]
    used = ((rows >= first) & (rows < last)).any(-1).nonzero().squeeze(-1)
    return used, pad((last - first).cumsum(0), (1, 0)).to(torch.int32)


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor, kv: torch.Tensor, *options: Any, **named: Any
) -> Any:
    """:func:`flash_attn_varlen_func` with kv [t', 2, g, d]; its other parameters follow."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(q, k, v, *options, **named)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, *options: Any, **named: Any
) -> Any:
    """:func:`flash_attn_varlen_func` with qkv [t, 3, n, d]; its parameters from dropout follow."""
    q, k, v = qkv.unbind(1)
    ends, longest = cu_seqlens, max_seqlen
    return flash_attn_varlen_func(q, k, v, ends, ends, longest, longest, *options, **named)


def _flash_attn_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    return_softmax: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output [b, sq, n, d], log-sum-exp [b, n, sq], and two empty: weights and random state.

    :raises BridgeError: dropout, whose mask the backward pass could not repeat.
    """
    _without_dropout(dropout_p)
    with torch.no_grad():
        output, lse, _ = flash_attn_func(
            q,
            k,
            v,
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=(window_size_left, window_size_right),
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            return_attn_probs=True,
        )
    return output, lse, q.new_empty(0), torch.empty(2, dtype=torch.int64, device=q.device)


def _flash_attn_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
    rng_state: torch.Tensor | None = None,
) -> torch.Tensor:
    """As :func:`_flash_attn_varlen_backward`, of batches: all [b, s, n, d].

    :param softmax_lse: float32 [b, n, sq].
    :returns: float32 [b, n, sq], ``sum(dout * out)``.
    """
    (batch, sq), sk = q.shape[:2], k.shape[1]
    starts = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    into = [torch.empty_like(one).flatten(0, 1) for one in (q, k, v)]
    given = [one.flatten(0, 1) for one in (q, k, v, out)]
    products = _flash_attn_varlen_backward(
        dout.flatten(0, 1),
        given[0],
        given[1],
        given[2],
        given[3],
        softmax_lse.transpose(0, 1).flatten(1),
        into[0],
        into[1],
        into[2],
        starts * sq,
        starts * sk,
        sq,
        sk,
        dropout_p,
        softmax_scale,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        alibi_slopes,
        deterministic,
    )
    for target, gradient in zip((dq, dk, dv), into, strict=True):
        target.copy_(gradient.view(target.shape))
    return products.view(-1, batch, sq).transpose(0, 1)


def _without_dropout(dropout_p: float) -> None:
    """:raises BridgeError: dropout."""
    if dropout_p:
        raise BridgeError(
            "Forward and backward passes of flash_attn apart from each other take no dropout here.",
            evidence=f"dropout {dropout_p}",
            next="use flash_attn_func or flash_attn_varlen_func, which have both in one",
        )


def _flash_attn_varlen_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    return_softmax: bool = False,
    block_table: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    zero_tensors: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output [t, n, d], log-sum-exp [n, t], and two empty: weights and random state.

    :param leftpad_k: int32 [sequences], rows before the first key of each.
    :param seqused_k: int32 [sequences], where the keys of each end, counted with ``leftpad_k``.
    :raises BridgeError: dropout, whose mask the backward pass could not repeat.
    """
    _without_dropout(dropout_p)
    with torch.no_grad():
        if leftpad_k is not None or seqused_k is not None:
            if block_table is not None:
                k, v = (_from_pages(pages, block_table, cu_seqlens_k) for pages in (k, v))
                block_table = None
            used, cu_seqlens_k = _used(cu_seqlens_k, leftpad_k, seqused_k)
            k, v = k[used], v[used]
        output, lse, _ = flash_attn_varlen_func(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            max_seqlen_q,
            max_seqlen_k,
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=(window_size_left, window_size_right),
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            return_attn_probs=True,
            block_table=block_table,
        )
    return output, lse, q.new_empty(0), torch.empty(2, dtype=torch.int64, device=q.device)


def _flash_attn_varlen_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
    rng_state: torch.Tensor | None = None,
    zero_tensors: bool = False,
) -> torch.Tensor:
    """Write the gradients into dq, dk and dv.

    ``out`` and ``softmax_lse`` may be those of more keys than k, as in ring attention.

    :param softmax_lse: float32 [n, t].
    :returns: float32 [n, t], ``sum(dout * out)``.
    :raises BridgeError: dropout.
    """
    _without_dropout(dropout_p)
    options = options_of(
        "TND",
        scale=softmax_scale,
        causal=causal,
        window=(window_size_left, window_size_right),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
    )
    return gradients(dout, (q, k, v), out, softmax_lse, (dq, dk, dv), options)


# The real ones are registered with torch; callers that split the passes use them by these names.
_wrapped_flash_attn_forward = _flash_attn_forward
_wrapped_flash_attn_backward = _flash_attn_backward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward


@torch.no_grad()
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Store new keys and values, rotate new queries and keys, and attend to all that is cached.

    :param q: [b, sq, n, d].
    :param k_cache: [batches, s, g, d], or pages [pages, size, g, d] with ``block_table``; written
        in place where ``k`` is given. v_cache likewise.
    :param k: [b, new, g, d], stored behind ``cache_seqlens`` tokens; v likewise.
    :param rotary_cos: [positions, r / 2]; positions count rows of the cache, left padding too.
    :param cache_seqlens: int32 [b] or a number, cached before this call; default all.
    :param cache_batch_idx: int32 [b], each sequence's row of the cache.
    :param cache_leftpad: int32 [b], rows before a sequence's first token; ``cache_seqlens`` counts
        them.
    :param block_table: int32 [b, pages of a sequence].
    :param alibi_slopes: float32 [n] or [b, n].
    :returns: [b, sq, n, d]; with ``return_softmax_lse`` also float32 [b, n, sq].
    """
    batch, new_queries = q.shape[:2]
    rows = _rows(k_cache, batch, cache_batch_idx, block_table)
    before = _lengths(cache_seqlens, batch, rows.shape[1], q.device)
    left = torch.zeros_like(before) if cache_leftpad is None else cache_leftpad.long()
    if rotary_cos is not None and rotary_sin is not None:
        moving = causal or window_size != (-1, -1)
        q = _rotated(q, rotary_cos, rotary_sin, before, rotary_interleaved, moving)
        if k is not None:
            k = _rotated(k, rotary_cos, rotary_sin, before, rotary_interleaved, True)
    after = before
    if k is not None and v is not None:
        place = before[:, None] + torch.arange(k.shape[1], device=q.device)
        target = rows.gather(1, place)
        for cache, tokens in ((k_cache, k), (v_cache, v)):
            # Not by a flat view: of a cache whose memory is not in order, that is a copy.
            cache[target // cache.shape[1], target % cache.shape[1]] = tokens.to(cache.dtype)
        after = before + k.shape[1]
    if capturing(q) and not softcap and alibi_slopes is None and cache_leftpad is None:
        keys, values = (cache.flatten(0, 1)[rows] for cache in (k_cache, v_cache))
        form: Any = {"causal": causal, "window": window_size, "scale": softmax_scale}
        return cached(q, keys, values, after, return_lse=return_softmax_lse, **form)
    count = _filled(after - left)
    rows, left, after = rows[:count], left[:count], after[:count]
    ends = pad((after - left).cumsum(0), (1, 0)).to(torch.int32)
    place = torch.arange(rows.shape[1], device=q.device)
    real = (place >= left[:, None]) & (place < after[:, None])
    keys, values = (cache.flatten(0, 1)[rows[real]] for cache in (k_cache, v_cache))
    starts = torch.arange(count + 1, dtype=torch.int32, device=q.device) * new_queries
    options = options_of(
        "TND",
        scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        return_lse=return_softmax_lse,
        cu_seqlens_q=starts,
        cu_seqlens_k=ends,
    )
    result = kernel(ATTENTION)(q[:count].flatten(0, 1), keys, values, options)
    output, *sums = (result,) if isinstance(result, torch.Tensor) else result
    shape, rest = (count, new_queries), batch - count
    output = pad(output.unflatten(0, shape), (0, 0, 0, 0, 0, 0, 0, rest))
    if not sums:
        return output
    lse = sums[0].unflatten(-1, shape).transpose(0, 1)
    return output, pad(lse, (0, 0, 0, 0, 0, rest), value=-math.inf)


def _rows(
    cache: torch.Tensor,
    batch: int,
    batch_idx: torch.Tensor | None,
    block_table: torch.Tensor | None,
) -> torch.Tensor:
    """int64 [b, s]: where each sequence's tokens are in the cache's rows."""
    size = cache.shape[1]
    inside = torch.arange(size, device=cache.device)
    if block_table is not None:
        return (block_table.long()[:, :, None] * size + inside).flatten(1)
    first = torch.arange(batch, device=cache.device) if batch_idx is None else batch_idx.long()
    return first[:, None] * size + inside


def _lengths(
    given: int | torch.Tensor | None, batch: int, longest: int, device: torch.device
) -> torch.Tensor:
    if isinstance(given, torch.Tensor):
        return given.long()
    return torch.full((batch,), longest if given is None else given, device=device)


def _rotated(
    tokens: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    offsets: torch.Tensor,
    interleaved: bool,
    moving: bool,
) -> torch.Tensor:
    """Tokens at ``offsets`` and on; all at the offset itself if not ``moving``."""
    if moving:
        return apply_rotary_emb(tokens, cos, sin, interleaved, seqlen_offsets=offsets)
    batch = tokens.shape[0]
    together = tokens.reshape(batch, 1, -1, tokens.shape[-1])
    rotated = apply_rotary_emb(together, cos, sin, interleaved, seqlen_offsets=offsets)
    return rotated.reshape(tokens.shape)


Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@torch.no_grad()
def gradients(
    grad: torch.Tensor,
    tensors: Tensors,
    output: torch.Tensor,
    lse: torch.Tensor,
    into: Tensors,
    options: AttentionOptions,
) -> torch.Tensor:
    """Write the gradients of query [t, n, d], key and value [t', g, d] into ``into``.

    ``P = exp(S - lse)`` and ``dS = P * (grad V^T - sum(grad * output))`` (Dao et al. 2022,
    arXiv:2205.14135, appendix B), at least in float32, one sequence and key head at a time. A soft
    cap's derivative is ``1 - tanh^2``.

    :param lse: float32 [n, t].
    :returns: float32 [n, t], ``sum(grad * output)``.
    """
    query, key, value = tensors
    assert options.scale is not None
    dtype = compute_dtype(query)
    products = (grad.to(dtype) * output.to(dtype)).sum(-1).transpose(0, 1)
    repeat = query.shape[1] // key.shape[1]
    start_q = start_k = 0
    for number, (sq, sk) in enumerate(sequence_lengths(query, key, options)):
        rows, columns = slice(start_q, start_q + sq), slice(start_k, start_k + sk)
        start_q, start_k = rows.stop, columns.stop
        hidden = options.mask.hidden(sq, sk, query.device)
        bias = attention_bias(options_of_sequence(options, number), sq, sk)  # [1, n, sq, sk]
        for group in range(key.shape[1]):
            heads = slice(group * repeat, (group + 1) * repeat)
            # [repeat, sq, d] against [sk, d].
            q, dout = (one[rows, heads].transpose(0, 1).to(dtype) for one in (query, grad))
            k, v = (one[columns, group].to(dtype) for one in (key, value))
            logits, slope = q @ k.T * options.scale, None
            if options.softcap:
                capped = torch.tanh(logits / options.softcap)
                logits, slope = options.softcap * capped, 1.0 - capped.square()
            if bias is not None:
                logits = logits + bias[0, heads]
            weights = torch.exp(logits - lse[heads, rows, None])
            if hidden is not None:
                weights = weights.masked_fill(hidden, 0.0)
            # Rows that see nothing have no finite log-sum-exp.
            weights = weights.nan_to_num(0.0, 0.0, 0.0)
            scores = weights * (dout @ v.T - products[heads, rows, None])
            scores = (scores if slope is None else scores * slope) * options.scale
            into[0][rows, heads] = (scores @ k).transpose(0, 1).to(into[0].dtype)
            into[1][columns, group] = torch.einsum("hqk,hqd->kd", scores, q).to(into[1].dtype)
            into[2][columns, group] = torch.einsum("hqk,hqd->kd", weights, dout).to(into[2].dtype)
    return products


def rearrange(*args: Any, **kwargs: Any) -> Any:
    """einops' function, which callers import from ``flash_attn.bert_padding``."""
    return import_module("einops").rearrange(*args, **kwargs)


def index_first_axis(input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows [t, ..] of [rows, ..]."""
    return input.index_select(0, indices)


def index_put_first_axis(
    values: torch.Tensor, indices: torch.Tensor, first_axis_dim: int
) -> torch.Tensor:
    """[first_axis_dim, ..] with rows [t, ..] at ``indices`` and zeros elsewhere."""
    whole = values.new_zeros(first_axis_dim, *values.shape[1:])
    return whole.index_copy(0, indices, values)


def unpad_input(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    unused_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """The tokens of [b, s, ..] that ``attention_mask`` [b, s] keeps (1 = keep).

    :param unused_mask: [b, s], tokens that are kept without being used.
    :returns: tokens [t, ..], their places in [b * s], cumulative lengths int32 [b + 1], the longest
        length, and used lengths int32 [b].
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    places = torch.nonzero(kept.flatten()).flatten()
    ends = pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    tokens = index_first_axis(hidden_states.flatten(0, 1), places)
    used = attention_mask.sum(-1, dtype=torch.int32)
    return tokens, places, ends, int(lengths.max()), used


def pad_input(
    hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int
) -> torch.Tensor:
    """[b, s, ..] with the tokens [t, ..] at ``indices`` and zeros elsewhere."""
    whole = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return torch.unflatten(whole, 0, (batch, seqlen))

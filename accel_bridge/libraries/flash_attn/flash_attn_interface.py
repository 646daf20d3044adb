"""flash-attn's functions: FlashAttention-2's semantics on the active backend's attention kernel.

Legend: b batch, sq and sk lengths of queries and keys, n query heads, g key heads (n a multiple of
g), d head size, t tokens of packed documents. Causal masks and windows are aligned to the bottom
right: the last query stands at the last key. ``window_size`` is (left, right), -1 for no limit.

Where ``return_attn_probs`` is asked for, the results are (output, log-sum-exp, None): the weights
themselves, which the real library returns for its tests, are not computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

from accel_bridge.errors import BridgeError
from accel_bridge.kernels import ATTENTION, AttentionOptions
from accel_bridge.kernels.active import kernel

from ._backward import gradients
from ._cache import flash_attn_with_kvcache
from ._captured import capturing, packed
from ._options import options_of

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

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


def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As :func:`flash_attn_func`, with kv [b, sk, 2, g, d]."""
    k, v = kv.unbind(2)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As :func:`flash_attn_func`, with qkv [b, s, 3, n, d]."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


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
    """Attention within packed documents: q [t, n, d], k, v [t', g, d].

    Rows behind the last document, with which inference fills its batches, come back as zeros.

    :param cu_seqlens_q: int32 [documents + 1], cumulative lengths with the leading 0.
    :param block_table: int32 [documents, pages]: k and v are pages [pages, size, g, d].
    :returns: [t, n, d]; with ``return_attn_probs`` also float32 [n, t] and None.
    """
    if capturing(q) and not (dropout_p or softcap or alibi_slopes is not None):
        form: Any = {"causal": causal, "window": window_size, "scale": softmax_scale}
        form["return_lse"] = return_attn_probs
        answer = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, block_table, **form)
        return (*answer, None) if return_attn_probs else answer
    if block_table is not None:
        k, v = (_from_pages(pages, block_table, cu_seqlens_k) for pages in (k, v))
    rows = q.shape[0]
    # Training on a GPU has no such rows, and must not wait for the numbers.
    if q.device.type != "cuda" or not torch.is_grad_enabled():
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


def _from_pages(
    pages: torch.Tensor, block_table: torch.Tensor, cu_seqlens: torch.Tensor
) -> torch.Tensor:
    """The documents' tokens [t, g, d], one after the other."""
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
    q: torch.Tensor,
    kv: torch.Tensor,
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
) -> Any:
    """As :func:`flash_attn_varlen_func`, with kv [t', 2, g, d]."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As :func:`flash_attn_varlen_func`, with qkv [t, 3, n, d]."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


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

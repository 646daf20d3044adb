"""Attention on the implementation that :mod:`._attention_rules` chooses for a call.

Legend: b batch, s sequence (sq queries, sk keys), n query heads, g key/value heads, d head size,
dv of values, t tokens of packed sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final, cast

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from accel_bridge.backends._sdpa import SDPA, attend
from accel_bridge.backends.cuda.kernels._attention_rules import (
    Call,
    Kind,
    choose,
    examples,
    shape_of,
)
from accel_bridge.backends.cuda.kernels._choice import Choice, capability, may_compile
from accel_bridge.backends.cuda.kernels._flash import Band, Packing, filled_up, flash_attention
from accel_bridge.backends.cuda.kernels._flash4 import flash4_attention
from accel_bridge.backends.cuda.kernels._frontend import window_attention
from accel_bridge.kernels import (
    ATTENTION,
    AttentionMask,
    AttentionOptions,
    AttentionResult,
    TensorCache,
    from_bnsd,
    sequence_lengths,
    to_bnsd,
)

#: SDPA if a call is left to torch. Not cuDNN's: see
#: :func:`~accel_bridge.backends.cuda.kernels._attention_rules.choose`.
_SDPA_BACKENDS: Final = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def _form(options: AttentionOptions, sq: int, sk: int) -> tuple[Kind, Band]:
    mask = options.mask
    explicit = mask.masked is not None or options.alibi_slopes is not None
    if explicit or options.bias is not None:
        return "explicit", Band()
    return shape_of(mask.causal, mask.window, mask.alignment, sq, sk)


#: Cumulative lengths that were checked: reading them waits for the device.
_CHECKED: Final[TensorCache[tuple[Packing, bool]]] = TensorCache()


def _packing(
    query: torch.Tensor,
    key: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    options: AttentionOptions,
) -> tuple[Packing, bool]:
    """The sequences' lengths, checked; and whether each has as many queries as keys."""
    cu_seqlens_kv = options.cu_seqlens_kv

    def read() -> tuple[Packing, bool]:
        lengths = sequence_lengths(query, key, options)
        queries = _copy(cu_seqlens_q, query.device)
        keys = queries
        if cu_seqlens_kv is not None and cu_seqlens_kv is not cu_seqlens_q:
            keys = _copy(cu_seqlens_kv, query.device)
        packing = Packing(
            queries,
            keys,
            max((q for q, _ in lengths), default=0),
            max((k for _, k in lengths), default=0),
        )
        return packing, all(q == k for q, k in lengths)

    sizes = (query.shape[0], key.shape[0], query.device)
    return _CHECKED.get((cu_seqlens_q, cu_seqlens_kv), sizes, read)


def packing_of(query: torch.Tensor, key: torch.Tensor, options: AttentionOptions) -> Packing:
    """The checked lengths of a call's packed sequences.

    :raises ValueError: as the contract ``attention``.
    """
    if options.cu_seqlens_q is None or options.mask.masked is not None:
        sequence_lengths(query, key, options)  # raises the contract's error
    assert options.cu_seqlens_q is not None
    return _packing(query, key, options.cu_seqlens_q, options)[0]


def _copy(cu_seqlens: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Lengths as FlashAttention reads them; the cache must not hold the tensors themselves."""
    return cu_seqlens.to(device=device, dtype=torch.int32, copy=True)


def _packed_form(mask: AttentionMask, packing: Packing, square: bool) -> tuple[Kind, Band]:
    """As :func:`_form`, for sequences of any lengths."""
    if mask.masked is not None or not (square or mask.alignment == "bottom_right"):
        return "explicit", Band()
    left, right = mask.window if mask.window is not None else (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    if (left is not None and left < 0) or (right is not None and right < 0):
        return "explicit", Band()
    if right is not None and right >= packing.longest_key and not square:
        return "explicit", Band()
    return "band", Band(-1 if left is None else left, -1 if right is None else right)


def _dense_call(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    form: tuple[Kind, Band],
    dropout: float,
) -> Call:
    """The call's form for BNSD tensors, without extras."""
    kind, band = form
    query, key, value = tensors
    return Call(
        query.dtype,
        query.shape[3],
        value.shape[3],
        query.shape[1] != key.shape[1],
        query.shape[2],
        key.shape[2],
        kind,
        window=kind == "band" and band.right == 0 and band.left >= 0,
        dropout=dropout > 0.0,
    )


def _cudnn(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    causal: bool,
    scale: float,
    dropout: float,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """BNSD; torch's operator itself, so that no other backend can be picked silently.

    :returns: the output, and the log-sum-exp [b, n, sq] if it was asked for.
    """
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    results = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *tensors, None, learns or return_lse, dropout, causal, False, scale=scale
    )
    output = cast(torch.Tensor, results[0])
    if learns:
        output.register_hook(_strides_of(output.stride()))
    lse = results[1].detach().reshape(output.shape[:3]) if return_lse else results[1]
    return output, lse


@lru_cache(maxsize=64)
def _strides_of(strides: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A hook that gives a gradient the output's strides.

    cuDNN's backward pass assumes them: for a gradient that was a slice of a wider tensor, its
    result was off by several times its size, at every head size (torch 2.11, cuDNN 9.19).
    """

    def arrange(gradient: torch.Tensor) -> torch.Tensor:
        if gradient.stride() == strides:
            return gradient
        arranged = gradient.new_empty_strided(gradient.shape, strides)
        return arranged.copy_(gradient)

    return arrange


def _flash(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    causal: bool,
    scale: float,
    dropout: float,
) -> torch.Tensor:
    """BNSD; full or plain causal."""
    tensors, dv = filled_up(*tensors)
    results = torch.ops.aten._scaled_dot_product_flash_attention(
        *tensors, dropout, causal, False, scale=scale
    )
    return cast(torch.Tensor, results[0])[..., :dv]


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
) -> AttentionResult:
    """The contract ``attention``, on views of the inputs."""
    mask, scale, dropout = options.mask, options.scale, options.dropout
    extras = options.softmax_offset is not None or options.return_lse
    if options.layout == "TND":
        cu_seqlens_q = options.cu_seqlens_q
        one_by_one = mask.masked is not None or options.alibi_slopes is not None
        if cu_seqlens_q is not None and not one_by_one:
            packing, square = _packing(query, key, cu_seqlens_q, options)
            if _is_even(query, key, packing, cu_seqlens_q) and not options.return_lse:
                return _as_rows(query, key, value, options, cu_seqlens_q.numel() - 1)
            kind, band = _packed_form(mask, packing, square)
            call = _packed_call(query, key, value, kind, dropout, extras)
            if choose(call, capability(query.device)).name == "flash":
                output, lse = flash_attention(
                    query,
                    key,
                    value,
                    offset=options.softmax_offset,
                    packing=packing,
                    band=band,
                    scale=1.0 / math.sqrt(query.shape[-1]) if scale is None else scale,
                    dropout=dropout,
                )
                return (output, lse) if options.return_lse else output
        with sdpa_kernel(_SDPA_BACKENDS):
            return SDPA.function(query, key, value, options)
    layout = options.layout
    tensors = to_bnsd(query, key, value, layout, options.heads)
    kind, band = _form(options, tensors[0].shape[2], tensors[1].shape[2])
    call = _dense_call(tensors, (kind, band), dropout)
    chosen = _choice(call, options, capability(query.device)).name
    if chosen == "sdpa":
        with sdpa_kernel(_SDPA_BACKENDS):
            output = attend(tensors, options)
        return from_bnsd(output, layout)
    if scale is None:
        scale = 1.0 / math.sqrt(tensors[0].shape[3])
    if chosen == "frontend":
        return from_bnsd(window_attention(tensors, band.left, scale), layout)
    if chosen == "flex":
        from accel_bridge.backends.cuda.kernels._flex import band_attention

        return from_bnsd(band_attention(tensors, band.left, band.right, scale), layout)
    if chosen == "flash4":
        if not options.return_lse and may_compile(query):
            return from_bnsd(flash4_attention(tensors, kind == "causal", scale), layout)
        chosen = "cudnn"
    if chosen == "cudnn":
        output, lse = _cudnn(tensors, kind == "causal", scale, dropout, options.return_lse)
        output = from_bnsd(output, layout)
        return (output, lse) if options.return_lse else output
    if kind == "band" or extras:
        bsnd = (tensor.transpose(1, 2) for tensor in tensors)
        output, lse = flash_attention(
            *bsnd, offset=options.softmax_offset, band=band, scale=scale, dropout=dropout
        )
        output = from_bnsd(output.transpose(1, 2), layout)
        return (output, lse) if options.return_lse else output
    return from_bnsd(_flash(tensors, kind == "causal", scale, dropout), layout)


def _choice(call: Call, options: AttentionOptions, compute: tuple[int, int]) -> Choice:
    """What serves a dense call with the options' extras; cuDNN returns a log-sum-exp too."""
    if options.softmax_offset is None:
        plain = choose(call, compute)
        if plain.name in ("cudnn", "flash4") or not options.return_lse:
            return plain
    return choose(replace(call, extras=True), compute)


def _is_even(
    query: torch.Tensor, key: torch.Tensor, packing: Packing, cu_seqlens_q: torch.Tensor
) -> bool:
    """Whether all sequences have one length of queries and one of keys."""
    sequences = cu_seqlens_q.numel() - 1
    lengths = (packing.longest_query, packing.longest_key)
    return min(lengths) > 0 and (query.shape[0], key.shape[0]) == tuple(
        sequences * length for length in lengths
    )


def _as_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
    sequences: int,
) -> torch.Tensor:
    """Sequences of one length are rows of a batch, for which there are faster implementations."""
    query, key, value = (one.unflatten(0, (sequences, -1)) for one in (query, key, value))
    options = replace(options, layout="BSHD", cu_seqlens_q=None, cu_seqlens_kv=None)
    return cast(torch.Tensor, attention(query, key, value, options)).flatten(0, 1)


def _packed_call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kind: Kind,
    dropout: float,
    extras: bool,
) -> Call:
    return Call(
        query.dtype,
        query.shape[2],
        value.shape[2],
        query.shape[1] != key.shape[1],
        query.shape[0],
        key.shape[0],
        kind,
        packed=True,
        extras=extras,
        dropout=dropout > 0.0,
    )


def supports(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
) -> str | None:
    """Why the reference must serve a call: a sink or log-sum-exp outside FlashAttention's range."""
    if options.softcap:
        return "a soft cap of the scores: no kernel of torch's or cuDNN's that is used here has it"
    if options.softmax_offset is None and not options.return_lse:
        return None
    mask = options.mask
    if options.layout == "TND":
        if options.alibi_slopes is not None:
            return "ALiBi of packed sequences: SDPA gives neither a sink nor a log-sum-exp"
        if options.cu_seqlens_q is None or mask.masked is not None:
            return None  # the call raises the contract's error
        packing, square = _packing(query, key, options.cu_seqlens_q, options)
        kind, _ = _packed_form(mask, packing, square)
        choice = choose(_packed_call(query, key, value, kind, 0.0, True), capability(query.device))
    else:
        tensors = to_bnsd(query, key, value, options.layout, options.heads)
        form = _form(options, tensors[0].shape[2], tensors[1].shape[2])
        choice = _choice(_dense_call(tensors, form, 0.0), options, capability(query.device))
    if choice.name in ("flash", "flash4", "cudnn"):
        return None
    what = "sink in the softmax" if options.softmax_offset is not None else "log-sum-exp"
    return f"{what}: {choice.why}"


KERNELS: Final = (
    ATTENTION.kernel(
        attention,
        "chosen per call among torch's cuDNN, FlashAttention-2 and memory-efficient kernels",
        supports,
        source="torch",
        choices=examples,
    ),
)

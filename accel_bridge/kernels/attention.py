"""Contract ``attention``: softmax(scale * Q K^T, masked) V; its layouts and masks, and the
contract of the largest logits beside it.

Legend: b batch, sq and sk sequence lengths of queries and keys, n query heads, g key/value heads
(n a multiple of g), d head size of queries and keys, dv of values, t tokens of packed sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, cast, get_args

import torch

from accel_bridge.kernels._contract import Contract, compute_dtype

#: SBH [s, b, h]; BSH [b, s, h]; SBHD [s, b, n, d]; BSHD [b, s, n, d]; BNSD [b, n, s, d];
#: TND [t, n, d] with cumulative sequence lengths.
Layout = Literal["SBH", "BSH", "SBHD", "BSHD", "BNSD", "TND"]

LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
#: Dimensions that turn a four-dimensional layout into b, n, s, d, and back.
_TO_BNSD: Final = {"SBHD": (1, 2, 0, 3), "BSHD": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}
_FROM_BNSD: Final = {"SBHD": (2, 0, 1, 3), "BSHD": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}


def to_bnsd(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    heads: int | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views of query [b, n, sq, d], key [b, g, sk, d] and value [b, g, sk, dv]; copies nothing.

    :param heads: number of query heads, needed for SBH and BSH, which have no heads dimension.
    :raises ValueError: for TND, for missing ``heads``, or for sizes that do not divide.
    """
    if layout in ("SBH", "BSH"):
        if heads is None or query.shape[-1] % heads:
            raise ValueError(f"layout {layout} of {list(query.shape)} needs heads, not {heads}")
        head_dim = query.shape[-1] // heads
        if key.shape[-1] % head_dim:
            raise ValueError(f"key width {key.shape[-1]} is not a multiple of head size {head_dim}")
        kv_heads = key.shape[-1] // head_dim
        query = torch.unflatten(query, -1, (heads, head_dim))
        key = torch.unflatten(key, -1, (kv_heads, head_dim))
        value = torch.unflatten(value, -1, (kv_heads, -1))
        layout = "SBHD" if layout == "SBH" else "BSHD"
    if layout not in _TO_BNSD:
        raise ValueError(f"layout {layout} has no batch dimension")
    order = _TO_BNSD[layout]
    return query.permute(order), key.permute(order), value.permute(order)


def from_bnsd(output: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Attention's output [b, n, sq, dv] in ``layout``; SBH and BSH copy when they must."""
    if layout in ("SBH", "BSH"):
        return output.permute(_FROM_BNSD["SBHD" if layout == "SBH" else "BSHD"]).flatten(-2)
    return output.permute(_FROM_BNSD[layout])


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """Which keys a query may see: the AND of causality, a band and an explicit mask.

    Query i of sq and key j of sk are compared by position. With ``bottom_right`` alignment the
    last query is at the position of the last key (i counts from ``sk - sq``, as in flash-attn and
    in Megatron's sliding window); with ``top_left`` the first query is at that of the first key.
    With packed sequences (TND) each sequence has its own positions.

    A row without any visible key gives an output of zeros and a log-sum-exp of -inf.

    :param causal: j <= i only.
    :param window: ``(left, right)``: ``i - left <= j <= i + right``, both ends inclusive; None on
        a side is unlimited. The same pair as flash-attn's and Megatron's ``window_size`` (where
        -1 is unlimited) and CANN's ``pre_tockens, next_tockens``.
    :param alignment: where queries stand when sq != sk.
    :param masked: bool, broadcastable to [b, n, sq, sk]; **True = hidden**, as in Megatron and
        CANN and the reverse of torch's ``scaled_dot_product_attention``. Not for TND.
    """

    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    alignment: Literal["top_left", "bottom_right"] = "bottom_right"
    masked: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.masked is not None and self.masked.dtype != torch.bool:
            raise TypeError(f"masked must be bool with True = hidden, not {self.masked.dtype}")

    @classmethod
    def from_documents(cls, sequences: torch.Tensor, causal: bool) -> AttentionMask:
        """A mask that keeps sequences apart in a batch of packed rows.

        :param sequences: [b, s], the sequence number of every token.
        """
        apart = sequences[:, None, :, None] != sequences[:, None, None, :]
        return cls(causal=causal, masked=apart)

    def bounds(self, sq: int, sk: int) -> tuple[int | None, int | None]:
        """The band including causality: keys ``i + low <= j <= i + high`` for query row i.

        Rows count from 0 whatever the alignment; None where nothing in sq x sk is cut off.
        """
        left, right = self.window if self.window is not None else (None, None)
        if self.causal:
            right = 0 if right is None else min(right, 0)
        shift = sk - sq if self.alignment == "bottom_right" else 0
        low = None if left is None else shift - left
        high = None if right is None else shift + right
        # The smallest j - i in the matrix is -(sq - 1), the largest sk - 1.
        if low is not None and low <= 1 - sq:
            low = None
        if high is not None and high >= sk - 1:
            high = None
        return low, high

    def is_plain_causal(self, sq: int, sk: int) -> bool:
        """True when the mask is exactly the square lower triangle, however it was specified."""
        return self.masked is None and sq == sk and sq > 1 and self.bounds(sq, sk) == (None, 0)

    def is_full(self, sq: int, sk: int) -> bool:
        """True when every query sees every key."""
        return self.masked is None and self.bounds(sq, sk) == (None, None)

    def hidden(self, sq: int, sk: int, device: torch.device | str) -> torch.Tensor | None:
        """Bool tensor, True = hidden, broadcastable to [b, n, sq, sk]; None when all is visible."""
        band = hidden_band(self.bounds(sq, sk), sq, sk, device)
        if band is None or self.masked is None:
            return self.masked if band is None else band
        return band | self.masked


def hidden_band(
    bounds: tuple[int | None, int | None], sq: int, sk: int, device: torch.device | str
) -> torch.Tensor | None:
    """Bool tensor [sq, sk], True outside ``i + low <= j <= i + high``; None without bounds."""
    low, high = bounds
    if low is None and high is None:
        return None
    distance = torch.arange(sk, device=device)[None, :] - torch.arange(sq, device=device)[:, None]
    hidden = torch.zeros(sq, sk, dtype=torch.bool, device=device)
    if low is not None:
        hidden |= distance < low
    if high is not None:
        hidden |= distance > high
    return hidden


#: The output, or the output and the log-sum-exp if that was requested.
AttentionResult = torch.Tensor | tuple[torch.Tensor, torch.Tensor]

_EVERYTHING_VISIBLE = AttentionMask()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionOptions:
    """The options of an attention call, in addition to its three tensors.

    :param layout: see :data:`Layout`; the output has the query's layout, with dv for d.
    :param heads: n; needed for SBH and BSH.
    :param mask: see :class:`AttentionMask`. Rows that see nothing give zeros.
    :param scale: factor of the scores; default ``1 / sqrt(d)``.
    :param bias: added to the scaled scores, broadcastable to [b, n, sq, sk], any float dtype; not
        for TND. It may require a gradient.
    :param softcap: limit of the scaled scores before the bias, ``softcap * tanh(S / softcap)``; 0
        for none.
    :param alibi_slopes: float32 [n] or [b, n] (TND: [sequences, n]): adds
        ``-slope * |i + sk - sq - j|`` to the score of query i and key j.
    :param dropout: probability of dropping a weight, drawn from the device's current generator.
    :param softmax_offset: [n], logit of a sink that takes weight and contributes nothing; zeros
        mean softmax off-by-one, a parameter means the learnable sink.
    :param cu_seqlens_q: int [sequences + 1], TND only: cumulative lengths with the leading 0.
    :param cu_seqlens_kv: the same for keys; default ``cu_seqlens_q``.
    :param return_lse: also return ``log(sum_j exp(S_ij))`` without the offset, in float32 (float64
        for float64), detached: [b, n, sq], or [n, t] for TND.
    """

    layout: Layout
    heads: int | None = None
    mask: AttentionMask = _EVERYTHING_VISIBLE
    scale: float | None = None
    bias: torch.Tensor | None = None
    softcap: float = 0.0
    alibi_slopes: torch.Tensor | None = None
    dropout: float = 0.0
    softmax_offset: torch.Tensor | None = None
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_kv: torch.Tensor | None = None
    return_lse: bool = False


def attention_reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
) -> AttentionResult:
    """Scaled dot-product attention with the whole score matrix.

    ``P = exp(S) / (sum_j exp(S_ij) + exp(offset))`` with ``S = cap(scale * Q K^T) + bias`` over
    visible keys; the output is ``dropout(P) V``. The softmax runs in float32 (float64 for float64),
    the GEMMs in the tensors' dtype.

    :param query: [.., n, d] in ``options.layout``; float16, bfloat16, float32 or float64.
    :param key: like query, with g heads: grouped-query attention if g < n; query head i reads key
        head ``i // (n / g)``.
    :param value: like key; its head size dv may differ.
    :param options: see :class:`AttentionOptions`.
    :raises ValueError: head counts that do not divide, or layout and lengths that do not agree.
    """
    if options.layout == "TND":
        return _packed_reference((query, key, value), options)
    if options.cu_seqlens_q is not None or options.cu_seqlens_kv is not None:
        raise ValueError(f"cumulative lengths belong to layout TND, not {options.layout}")
    tensors = to_bnsd(query, key, value, options.layout, options.heads)
    output, lse = _bnsd_reference(*tensors, options)
    output = from_bnsd(output, options.layout)
    return (output, lse) if options.return_lse else output


def sequence_lengths(
    query: torch.Tensor, key: torch.Tensor, options: AttentionOptions
) -> list[tuple[int, int]]:
    """Lengths (queries, keys) of the packed sequences of a TND call.

    :raises ValueError: lengths that are missing, do not start at 0, do not end at t, or decrease;
        an explicit mask or a bias, which packed sequences cannot have.
    """
    if options.cu_seqlens_q is None:
        raise ValueError("layout TND needs cu_seqlens_q")
    if options.mask.masked is not None:
        raise ValueError("layout TND takes no explicit mask: sequences are its mask")
    if options.bias is not None:
        raise ValueError("layout TND takes no bias: it has no matrix of scores to add it to")
    queries = keys = cast(list[int], options.cu_seqlens_q.tolist())
    if options.cu_seqlens_kv is not None:
        keys = cast(list[int], options.cu_seqlens_kv.tolist())
    for name, ends, total in (("q", queries, query.shape[0]), ("kv", keys, key.shape[0])):
        if ends[0] != 0 or ends[-1] != total or sorted(ends) != ends:
            raise ValueError(f"cu_seqlens_{name} must rise from 0 to {total}, not {ends}")
    if len(queries) != len(keys):
        raise ValueError(f"{len(queries) - 1} sequences of queries, {len(keys) - 1} of keys")
    return [(queries[i + 1] - queries[i], keys[i + 1] - keys[i]) for i in range(len(queries) - 1)]


def options_of_sequence(options: AttentionOptions, number: int) -> AttentionOptions:
    """The options of one packed sequence, which has its own ALiBi slopes where [b, n] are given."""
    slopes = options.alibi_slopes
    if slopes is None or slopes.dim() == 1:
        return options
    return replace(options, alibi_slopes=slopes[number : number + 1])


def attention_bias(options: AttentionOptions, sq: int, sk: int) -> torch.Tensor | None:
    """What is added to the scores [b, n, sq, sk]: the bias, and ALiBi's distances in float32."""
    slopes = options.alibi_slopes
    if slopes is None:
        return options.bias
    place = torch.arange(sq, device=slopes.device)[:, None] + (sk - sq)
    distance = (place - torch.arange(sk, device=slopes.device)).abs()
    rows = (slopes if slopes.dim() == 2 else slopes[None]).to(compute_dtype(slopes))
    alibi = -distance * rows[:, :, None, None]
    return alibi if options.bias is None else options.bias + alibi


def _packed_reference(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], options: AttentionOptions
) -> AttentionResult:
    """One sequence after the other, each as a batch of one."""
    lengths = sequence_lengths(tensors[0], tensors[1], options)
    query_lengths, key_lengths = [q for q, _ in lengths], [k for _, k in lengths]
    sequences = zip(
        torch.split(tensors[0], query_lengths),
        torch.split(tensors[1], key_lengths),
        torch.split(tensors[2], key_lengths),
        strict=True,
    )
    outputs, sums = [], []
    for number, sequence in enumerate(sequences):
        query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in sequence)
        output, lse = _bnsd_reference(query, key, value, options_of_sequence(options, number))
        outputs.append(output.squeeze(0).transpose(0, 1))
        sums.append(lse.squeeze(0))
    output = torch.cat(outputs)
    return (output, torch.cat(sums, dim=-1)) if options.return_lse else output


def _bnsd_reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [b, n, sq, dv] and log-sum-exp [b, n, sq] of BNSD tensors."""
    batch, heads, sq, head_dim = query.shape
    kv_heads, sk = key.shape[1], key.shape[2]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads are not a multiple of {kv_heads} key heads")
    key = key.repeat_interleave(heads // kv_heads, dim=1)
    value = value.repeat_interleave(heads // kv_heads, dim=1)
    # As in Megatron, the scale is applied before rounding: fp16 scores would overflow without it.
    scores = torch.baddbmm(
        query.new_zeros(1, 1, 1),
        query.flatten(0, 1),
        key.flatten(0, 1).transpose(1, 2),
        beta=0.0,
        alpha=1.0 / math.sqrt(head_dim) if options.scale is None else options.scale,
    )
    scores = torch.unflatten(scores, 0, (batch, heads)).to(compute_dtype(query))
    if options.softcap:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    bias = attention_bias(options, sq, sk)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    hidden = options.mask.hidden(sq, sk, query.device)
    weights, lse = _masked_softmax(scores, hidden, options.softmax_offset)
    weights = weights.to(query.dtype)
    if options.dropout > 0.0:
        weights = torch.nn.functional.dropout(weights, p=options.dropout, training=True)
    return weights @ value, lse


def _masked_softmax(
    scores: torch.Tensor, hidden: torch.Tensor | None, offset: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and detached log-sum-exp; rows without a visible key are zeros and -inf."""
    visible = scores
    if hidden is not None:
        # A finite lowest value, not -inf, keeps gradients of fully hidden rows free of NaN.
        visible = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    lse_input = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
    lse = lse_input.detach().logsumexp(-1)
    if offset is None:
        weights = visible.softmax(-1)
    else:
        sink = offset.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.cat([visible, sink], dim=-1).softmax(-1)[..., :-1]
    if hidden is not None:
        weights = weights.masked_fill(hidden, 0.0)
    return weights, lse


ATTENTION = Contract(
    name="attention",
    reference=attention_reference,
    formula="softmax(cap(scale * Q K^T) + bias + mask) V, with an optional sink in the denominator",
    source="Vaswani et al. 2017, arXiv:1706.03762; sink: evanmiller.org attention-is-off-by-one; "
    "semantics of Megatron's DotProductAttention",
)


def max_logit_reference(
    query: torch.Tensor, key: torch.Tensor, options: AttentionOptions
) -> torch.Tensor:
    """``max_ij S_ij`` of each head over the visible pairs, ``S = scale * Q K^T + bias``.

    :param query: [.., n, d] in ``options.layout``; float16, bfloat16, float32 or float64.
    :param key: like query, with g heads.
    :param options: those of the attention call; dropout, sink and ``return_lse`` do not matter.
    :returns: [n], float32 (float64 for float64), detached; -inf for a head that sees nothing.
    :raises ValueError: as the contract ``attention``; a soft cap, or ALiBi.
    """
    if options.softcap or options.alibi_slopes is not None:
        raise ValueError("the largest logit is that of attention without a soft cap and ALiBi")
    query, key = query.detach(), key.detach()
    if options.layout != "TND":
        query, key, _ = to_bnsd(query, key, key, options.layout, options.heads)
        return _largest(query, key, options)
    lengths = sequence_lengths(query, key, options)
    sequences = zip(
        torch.split(query, [sq for sq, _ in lengths]),
        torch.split(key, [sk for _, sk in lengths]),
        strict=True,
    )
    largest = query.new_full((query.shape[1],), -torch.inf, dtype=compute_dtype(query))
    for one, other in sequences:
        found = _largest(one.transpose(0, 1)[None], other.transpose(0, 1)[None], options)
        largest = torch.maximum(largest, found)
    return largest


def _largest(query: torch.Tensor, key: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
    """[n] of query [b, n, sq, d] and key [b, g, sk, d]; a matrix of scores for one head a time."""
    batch, heads, sq, head_dim = query.shape
    kv_heads, sk = key.shape[1], key.shape[2]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads are not a multiple of {kv_heads} key heads")
    dtype = compute_dtype(query)
    largest = query.new_full((heads,), -torch.inf, dtype=dtype)
    if not batch * sq * sk:
        return largest
    scale = 1.0 / math.sqrt(head_dim) if options.scale is None else options.scale
    hidden = options.mask.hidden(sq, sk, query.device)
    for head in range(heads):
        one, other = query[:, head].to(dtype), key[:, head // (heads // kv_heads)].to(dtype)
        scores = (one @ other.transpose(1, 2)) * scale
        if options.bias is not None:
            scores = scores + _of_head(options.bias.detach(), head).to(dtype)
        if hidden is not None:
            scores = scores.masked_fill(_of_head(hidden, head), -torch.inf)
        largest[head] = scores.amax()
    return largest


def _of_head(matrix: torch.Tensor, head: int) -> torch.Tensor:
    """One head's part of something broadcastable to [b, n, sq, sk]."""
    if matrix.dim() < 3:
        return matrix
    return matrix.select(-3, head if matrix.shape[-3] > 1 else 0)


ATTENTION_MAX_LOGIT = Contract(
    name="attention_max_logit",
    reference=max_logit_reference,
    formula="max over visible i, j of scale * Q K^T + bias, for each head",
    source="Muon with qk-clip: Kimi K2, arXiv:2507.20534; semantics of Transformer Engine's "
    "return_max_logit",
)

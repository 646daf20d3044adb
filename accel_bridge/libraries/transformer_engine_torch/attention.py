"""Fused attention, both ways, on the contract ``attention``; and what its callers need of THD.

Legend: b batch, sq and sk lengths of queries and keys, n query heads, g key and value heads, d head
size, dv of values, t tokens of packed sequences. Formats: SBHD [s, b, n, d], BSHD [b, s, n, d],
THD [t, n, d], BHSD [b, n, s, d].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from accel_bridge.errors import BridgeError
from accel_bridge.kernels import (
    ATTENTION,
    Attend,
    AttentionMask,
    AttentionOptions,
    Layout,
    Sequences,
    SequenceSplit,
    context_parallel_attention,
    packed_attention,
    packed_context_parallel_attention,
)
from accel_bridge.kernels.active import kernel
from accel_bridge.kernels.context_parallel import split_parts
from accel_bridge.kernels.packed import packed_parts
from accel_bridge.libraries.transformer_engine_torch import _scores
from accel_bridge.libraries.transformer_engine_torch.enums import (
    DType,
    NVTE_Bias_Type,
    NVTE_Fused_Attn_Backend,
    NVTE_QKV_Format,
    NVTE_Softmax_Type,
)
from accel_bridge.process import log

#: The kernel's name of a format.
LAYOUTS: Final[dict[str, Layout]] = {"SBHD": "SBHD", "BSHD": "BSHD", "THD": "TND", "BHSD": "BNSD"}
#: Query, key and value.
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_WHOLE: Final = SequenceSplit()


@lru_cache(maxsize=256)
def mask_of(causal: bool, window: tuple[int, int], bottom_right: bool) -> AttentionMask:
    """The kernel's mask, without padding.

    :param window: ``(left, right)``, -1 for no limit.
    :param bottom_right: the last query stands at the last key, not the first at the first.
    """
    left, right = (None if end < 0 else end for end in window)
    band = None if left is None and (right is None or causal) else (left, right)
    return AttentionMask(
        causal=causal, window=band, alignment="bottom_right" if bottom_right else "top_left"
    )


@lru_cache(maxsize=256)
def options_of(
    layout: Layout, mask: AttentionMask, scale: float, dropout: float
) -> AttentionOptions:
    """Options without tensors, which every layer and step needs again."""
    return AttentionOptions(layout=layout, mask=mask, scale=scale, dropout=dropout)


@lru_cache(maxsize=64)
def full_cu_seqlens(batch: int, length: int, device: torch.device) -> torch.Tensor:
    """int32 [b + 1]: cumulative lengths of sequences that are all ``length`` long."""
    with torch.inference_mode(False):  # training takes it, too
        return torch.arange(batch + 1, dtype=torch.int32, device=device) * length


def split_of(
    group: dist.ProcessGroup | list[dist.ProcessGroup] | None, communication: str
) -> SequenceSplit | None:
    """How context parallel ranks share the sequence; None for one rank.

    ``p2p`` and ``all_gather`` name two ways to bring keys and values to every rank; here they are
    gathered.
    """
    if group is None:
        return None
    if isinstance(group, (list, tuple)):
        split = SequenceSplit(heads=group[0], keys=group[1])
    elif communication == "a2a":
        split = SequenceSplit(heads=group)
    else:
        split = SequenceSplit(keys=group)
    return split if split.size > 1 else None


@dataclass(frozen=True, slots=True)
class Padding:
    """Where the tokens are, where a format does not say it.

    :param cu_seqlens: cumulative lengths of queries and keys, without padding.
    :param padded: the same with padding between sequences (THD only), or None.
    """

    cu_seqlens: tuple[torch.Tensor, torch.Tensor]
    padded: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)

    def sequences(self) -> Sequences:
        """The sequences of a THD call."""
        return Sequences(*self.cu_seqlens, *self.padded)

    def of_rows(self, batch: int, sq: int, sk: int, device: torch.device) -> Sequences:
        """Rows [b, s] as sequences of ``s`` tokens with padding at their ends."""
        padded = full_cu_seqlens(batch, sq, device)
        keys = padded if sk == sq else full_cu_seqlens(batch, sk, device)
        return Sequences(*self.cu_seqlens, padded, keys)


def attend(
    kernel: Attend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
    padding: Padding | None,
    split: SequenceSplit | None = None,
) -> torch.Tensor:
    """Attention in the options' layout; padding gives zeros.

    Fake tensors have no lengths: their call has the same shapes, without padding.

    :returns: as the query with dv for d.
    """
    tensors = (query, key, value)
    if padding is not None and isinstance(query, FakeTensor):
        return _without_lengths(kernel, tensors, options, split)
    if options.layout == "TND":
        assert padding is not None, "THD needs cu_seqlens"
        return _packed(kernel, tensors, options, padding.sequences(), split)
    if padding is not None:
        return _padded_rows(kernel, tensors, options, padding, split)
    if split is not None:
        return _split(kernel, tensors, options, split)
    return cast(torch.Tensor, kernel(query, key, value, options))


def _without_lengths(
    kernel: Attend, tensors: Tensors, options: AttentionOptions, split: SequenceSplit | None
) -> torch.Tensor:
    if options.layout != "TND":
        return attend(kernel, *tensors, options, None, split)
    query, key, value = (tensor.unsqueeze(0) for tensor in tensors)
    options = replace(options, layout="BSHD")
    return attend(kernel, query, key, value, options, None, split).squeeze(0)


def _packed(
    kernel: Attend,
    tensors: Tensors,
    options: AttentionOptions,
    sequences: Sequences,
    split: SequenceSplit | None,
) -> torch.Tensor:
    if split is None:
        return packed_attention(kernel, *tensors, options, sequences)
    return packed_context_parallel_attention(kernel, *tensors, options, sequences, split)


def _padded_rows(
    kernel: Attend,
    tensors: Tensors,
    options: AttentionOptions,
    padding: Padding,
    split: SequenceSplit | None,
) -> torch.Tensor:
    """Only real tokens reach the kernel, as packed sequences."""
    swapped = options.layout == "SBHD"
    rows, sequences = _rows(tensors, swapped, padding, split)
    options = replace(options, layout="TND")
    output = packed_context_parallel_attention(kernel, *rows, options, sequences, split or _WHOLE)
    output = torch.unflatten(output, 0, (sequences.queries.numel() - 1, -1))
    return output.transpose(0, 1) if swapped else output


def _rows(
    tensors: Tensors, swapped: bool, padding: Padding, split: SequenceSplit | None
) -> tuple[Tensors, Sequences]:
    """[b, s, n, d], or [s, b, n, d] if swapped, as sequences with padding at their ends."""
    if swapped:
        tensors = cast(Tensors, tuple(one.transpose(0, 1) for one in tensors))
    ranks = 1 if split is None else split.size
    batch, sq = tensors[0].shape[:2]
    sequences = padding.of_rows(batch, sq * ranks, tensors[1].shape[1] * ranks, tensors[0].device)
    return cast(Tensors, tuple(one.flatten(0, 1) for one in tensors)), sequences


def _split(
    kernel: Attend, tensors: Tensors, options: AttentionOptions, split: SequenceSplit
) -> torch.Tensor:
    if options.layout == "SBHD":
        return context_parallel_attention(kernel, *tensors, options, split)
    swapped = cast(Tensors, tuple(one.transpose(0, 1) for one in tensors))
    options = replace(options, layout="SBHD")
    return context_parallel_attention(kernel, *swapped, options, split).transpose(0, 1)


def largest_logit(
    kernel: Callable[[torch.Tensor, torch.Tensor, AttentionOptions], torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    options: AttentionOptions,
    padding: Padding | None,
    split: SequenceSplit | None,
) -> torch.Tensor:
    """[n] in the query's dtype: the largest score of each head, over all ranks of a split."""
    with torch.no_grad():
        tensors = (query.detach(), key.detach(), key.detach()[..., :1])
        if padding is not None and not isinstance(query, FakeTensor):
            sequences = padding.sequences()
            if options.layout != "TND":
                tensors, sequences = _rows(tensors, options.layout == "SBHD", padding, split)
                options = replace(options, layout="TND")
            parts, _ = packed_parts(*tensors, options, sequences, split or _WHOLE)
        elif split is not None:
            if options.layout == "BSHD":
                tensors = cast(Tensors, tuple(one.transpose(0, 1) for one in tensors))
                options = replace(options, layout="SBHD")
            parts, _ = split_parts(*tensors, options, split)
        else:
            return kernel(query, key, options).to(query.dtype)
        found = [kernel(part.query, part.key, part.options) for part in parts]
        largest = torch.stack(found).amax(0)
        if split is not None:
            largest = _over_ranks(largest, split)
        return largest.to(query.dtype)


def _over_ranks(largest: torch.Tensor, split: SequenceSplit) -> torch.Tensor:
    if split.keys is not None:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=split.keys)
    if split.heads is not None and split.neighbours > 1:
        heads = largest.new_empty(split.neighbours * largest.shape[0])
        dist.all_gather_into_tensor(heads, largest, group=split.heads)
        return heads
    return largest


_16_BITS: Final = (DType.kFloat16, DType.kBFloat16)
_NEITHER: Final = (NVTE_Bias_Type.NVTE_NO_BIAS, NVTE_Bias_Type.NVTE_ALIBI)
#: Arguments of :func:`fused_attn_fwd` in 2.20.
_FORWARD: Final = (
    *("max_seqlen_q", "max_seqlen_kv", "is_training", "attn_scale", "dropout", "set_zero"),
    *("qkv_layout", "o_format", "qkv_scale_inv_format", "bias_type", "mask_type", "softmax_type"),
    *("window_size", "bottom_right", "cu_seqlens_q", "cu_seqlens_kv", "q", "k", "v", "fake_dtype"),
    *("cu_seqlens_q_padded", "cu_seqlens_kv_padded", "page_table_k", "page_table_v"),
    *("s_quantizer", "o_quantizer", "bias", "softmax_offset", "rng_gen", "rng_elts_per_thread"),
    *("return_max_logit", "cuda_graph"),
)
#: Those of :func:`fused_attn_bwd`; before 2.16 ``dqkv_dtype`` stood before ``aux``.
_BACKWARD: Final = (
    *("max_seqlen_q", "max_seqlen_kv", "attn_scale", "dropout", "set_zero", "qkv_layout"),
    *("o_format", "do_format", "dqkv_layout", "qkv_scale_inv_format", "do_scale_inv_format"),
    *("bias_type", "mask_type", "softmax_type", "window_size", "bottom_right", "deterministic"),
    *("cu_seqlens_q", "cu_seqlens_kv", "q", "k", "v", "o", "d_o", "fake_dtype", "dqkv_dtype"),
    *("aux", "cu_seqlens_q_padded", "cu_seqlens_kv_padded", "s_quantizer", "dp_quantizer"),
    *("dqkv_quantizer", "cuda_graph"),
)
_FORMATS: Final = {"o_format", "qkv_scale_inv_format"}
_SINCE_2_13: Final = {"bottom_right", "return_max_logit", "cuda_graph"}
_GRADIENT_FORMATS: Final = _FORMATS | {"do_format", "dqkv_layout", "do_scale_inv_format"}


def _by_count(names: tuple[str, ...], *missing: set[str]) -> dict[int, tuple[str, ...]]:
    """Names of arguments by their number, for each release's set of missing ones."""
    orders = [tuple(name for name in names if name not in without) for without in missing]
    return {len(order): order for order in orders}


#: 2.16 and later, 2.13, 2.8: no two have the same number of arguments.
_FORWARDS: Final = _by_count(_FORWARD, set(), _FORMATS, _FORMATS | _SINCE_2_13)
_BACKWARDS: Final = _by_count(
    _BACKWARD, {"dqkv_dtype"}, _GRADIENT_FORMATS, _GRADIENT_FORMATS | _SINCE_2_13
)


class _Graph(NamedTuple):
    """A forward pass that its backward pass goes through: kept on the log-sum-exp's tensor."""

    output: torch.Tensor
    leaves: list[torch.Tensor | None]
    #: Where the output that was returned lies: whoever merged several brings another one.
    place: int


def get_fused_attn_backend(*arguments: Any) -> Any:
    """The one backend there is, for tensors of 16 bits without ALiBi; else none.

    :param arguments: until 2.16 one for each property of a call; from 2.20 on an object that has
        them all: then the answer is a pair with a reason.
    """
    if len(arguments) == 1:
        asked = arguments[0]
        dtypes, bias = (asked.qkv_dtype,), asked.bias_type
    else:
        dtypes, bias = arguments[1:3], arguments[4]
    answer, why = NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen, ""
    if any(dtype not in _16_BITS for dtype in dtypes):
        answer, why = NVTE_Fused_Attn_Backend.NVTE_No_Backend, "tensors that are not of 16 bits"
    elif bias == NVTE_Bias_Type.NVTE_ALIBI:
        answer, why = NVTE_Fused_Attn_Backend.NVTE_No_Backend, "ALiBi"
    return (answer, why) if len(arguments) == 1 else answer


def fused_attn_fwd(*arguments: Any) -> list[torch.Tensor]:
    """The output, and what the backward pass needs.

    :param arguments: see :data:`_FORWARDS`.
    :returns: the output in ``o_format``; the log-sum-exp float32 [b, n, sq, 1], or [t, n, 1] for
        THD; with ``return_max_logit`` the largest score of each row (before 2.16: largest score and
        sum of exponentials instead); int64 [2], the state of the dropout; bias and sink if given.
    """
    call = _Call(dict(zip(_FORWARDS[len(arguments)], arguments, strict=True)))
    dropout = call.dropout if call.training else 0.0
    state = _scores.seed(call.query.device) if dropout else torch.zeros(2, dtype=torch.int64)
    leaves = whole = most = None
    if call.needs_scores or dropout:
        why = "dropout" if dropout else "a bias of padded or packed sequences"
        log.fall_back(f"attention: all scores instead of a kernel, for {why}")
        with torch.no_grad():
            made, lse, most = _scores.forward(call.scores(), *call.tensors, dropout, state)
        output = call.queries.back(made, call.like_output())
    else:
        leaves = [_leaf(one) for one in (*call.tensors, call.bias, call.offset)]
        with torch.set_grad_enabled(call.training):
            output, found = call.attend(leaves)
        whole = output
        output = output.detach()
        if found is None or call.with_max_logit:
            found, most = call.log_sum_exp()
        lse = found
    lse = call.packed_rows(lse)
    kept = [state, *(one for one in (call.given_bias, call.given_offset) if one is not None)]
    output = call.in_output_format(output).contiguous()
    if leaves is not None and whole is not None and call.training:
        lse._accel_bridge_graph = _Graph(whole, leaves, output.data_ptr())  # type: ignore[attr-defined]
    if not call.with_max_logit:
        return [output, lse, *kept]
    assert most is not None
    most = call.packed_rows(most)
    if call.sums:
        return [output, most, (lse - most).exp(), *kept]
    return [output, lse, most, *kept]


def fused_attn_bwd(*arguments: Any) -> list[torch.Tensor | None]:
    """Gradients of query, key, value, bias and sink; None for what was not given.

    Goes back through the forward pass where its log-sum-exp and output are given; else, as for a
    part of a sequence under the log-sum-exp of the whole, through the matrix of scores.
    """
    named = dict(zip(_BACKWARDS[len(arguments)], arguments, strict=True))
    call = _Call(named)
    lse, state = call.saved[:2]
    graph: _Graph | None = getattr(lse, "_accel_bridge_graph", None)
    gradient = call.from_output_format(named["d_o"])
    output = call.from_output_format(named["o"])
    if graph is not None and named["o"].data_ptr() == graph.place:
        wanted = [leaf for leaf in graph.leaves if leaf is not None]
        found = iter(torch.autograd.grad(graph.output, wanted, gradient.view_as(graph.output)))
        made = [None if leaf is None else next(found) for leaf in graph.leaves]
    else:
        rows = call.queries.rows(lse) if lse.dim() == 3 else lse
        with torch.no_grad():
            made = list(
                _scores.backward(
                    call.scores(), *call.tensors, output, gradient, rows, call.dropout, state
                )
            )
    of_bias, of_offset = made[3:]
    if of_bias is not None and named["bias_type"] == NVTE_Bias_Type.NVTE_PRE_SCALE_BIAS:
        of_bias = of_bias * call.scale
    if call.softmax != NVTE_Softmax_Type.NVTE_LEARNABLE_SOFTMAX:
        of_offset = None
    if of_offset is not None:
        of_offset = of_offset.float().view(1, -1, 1, 1)
    return [*made[:3], of_bias, of_offset]


class _Call:
    """The arguments of a call by name, as the kernel contract has them."""

    def __init__(self, named: dict[str, Any]) -> None:
        self.query, self.key, self.value = named["q"], named["k"], named["v"]
        self.scale, self.softmax = named["attn_scale"], named["softmax_type"]
        self.training, self.dropout = named.get("is_training", True), named["dropout"]
        self.saved: list[torch.Tensor] = list(named.get("aux", ()))
        if named.get("rng_gen") is not None and self.dropout:
            raise BridgeError(
                "fused attention draws its dropout from the device's own generator",
                evidence="rng_gen is given",
                next="leave rng_gen out",
            )
        self.with_max_logit = named.get("return_max_logit", False)
        self.sums = "o_format" not in named
        mask = named["mask_type"].name
        self.causal = "CAUSAL" in mask
        self.window = tuple(named["window_size"])
        # Before 2.13 windows without a causal mask stood at the bottom right.
        self.bottom_right = named.get("bottom_right", "BOTTOM_RIGHT" in mask or not self.causal)
        layout = named["qkv_layout"].name.removeprefix("NVTE_")
        paged = layout.startswith("Paged_KV_")
        parts = layout.removeprefix("Paged_KV_").split("_")
        self.form, kv_form = (part.translate(_NO_DIGITS) for part in (parts[0], parts[-1]))
        self.o_form = _format(named.get("o_format"), self.form)
        if paged:
            self.key = _pages(self.key, named["page_table_k"])
            self.value = _pages(self.value, named["page_table_v"])
            kv_form = "BSHD"
        elif kv_form != self.form and kv_form == "SBHD":
            self.key, self.value = self.key.transpose(0, 1), self.value.transpose(0, 1)
            kv_form = "BSHD"
        self.mixed = kv_form != self.form
        self.lengths = (named["cu_seqlens_q"], named["cu_seqlens_kv"])
        self.padded = (named["cu_seqlens_q_padded"], named["cu_seqlens_kv_padded"])
        self.is_padded = "PADDING" in mask
        batch = self.lengths[0].numel() - 1
        self.queries = self._side(self.query, self.form, 0, batch, named["max_seqlen_q"])
        self.keys = self._side(self.key, kv_form, 1, batch, named["max_seqlen_kv"])
        bias, offset = named.get("bias"), named.get("softmax_offset")
        if self.saved:
            further = self.saved[2:]
            bias = further.pop(0) if named["bias_type"] not in _NEITHER else None
            offset = further.pop(0) if further else None
        self.given_bias = self.bias = bias if named["bias_type"] not in _NEITHER else None
        if self.bias is not None and named["bias_type"] == NVTE_Bias_Type.NVTE_PRE_SCALE_BIAS:
            self.bias = self.bias * self.scale
        vanilla = self.softmax == NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX
        self.given_offset = None if vanilla else offset
        self.offset = None
        if self.softmax == NVTE_Softmax_Type.NVTE_OFF_BY_ONE_SOFTMAX and offset is None:
            heads = self.query.shape[1 if self.form == "BHSD" else -2]
            self.offset = torch.zeros(heads, device=self.query.device)
        elif offset is not None and not vanilla:
            self.offset = offset.flatten()

    def _side(
        self, tensor: torch.Tensor, form: str, number: int, batch: int, longest: int
    ) -> _scores.Side:
        if form == "THD":
            return _scores.Side(form, batch, longest, self.lengths[number], self.padded[number])
        lengths = self.lengths[number] if self.is_padded else None
        return _scores.Side(form, batch, tensor.shape[_LENGTH[form]], lengths)

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.query, self.key, self.value

    @property
    def needs_scores(self) -> bool:
        """Whether the contract has no name for the call."""
        return self.bias is not None and (self.is_padded or self.form == "THD")

    def scores(self) -> _scores.Scores:
        return _scores.Scores(
            self.queries,
            self.keys,
            self.scale,
            self.causal,
            self.window,
            self.bottom_right,
            self.bias,
            self.offset,
        )

    def attend(self, leaves: list[torch.Tensor | None]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The kernel's output, and its log-sum-exp with the sink if it tells it."""
        query, key, value, bias, offset = leaves
        assert query is not None
        assert key is not None
        assert value is not None
        mask = mask_of(self.causal, self.window, self.bottom_right)
        options = options_of(LAYOUTS[self.form], mask, self.scale, 0.0)
        if bias is not None or offset is not None:
            options = replace(options, bias=bias, softmax_offset=offset)
        served = kernel(ATTENTION)
        if self.mixed:
            return self._mixed(query, key, value, replace(options, layout="TND")), None
        if self.form == "THD" or self.is_padded:
            padding = Padding(self.lengths, self.padded)
            return attend(served, query, key, value, options, padding), None
        with_lse = replace(options, return_lse=True)
        if served.supports(query, key, value, with_lse) is not None:
            return attend(served, query, key, value, options, None), None
        output, lse = served(query, key, value, with_lse)
        lse = lse.unsqueeze(-1)
        if offset is not None:
            lse = torch.logaddexp(lse, offset.detach().float().view(1, -1, 1, 1))
        return output, lse

    def _mixed(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: Any
    ) -> torch.Tensor:
        """Queries in one format over cached keys and values in rows [b, s, g, d]."""
        batch, room = key.shape[:2]
        padded = self.padded[0]
        rows = query
        if self.form != "THD":
            rows = query.transpose(0, 1) if self.form == "SBHD" else query
            padded = full_cu_seqlens(batch, rows.shape[1], query.device)
            rows = rows.flatten(0, 1)
        padding = Padding(self.lengths, (padded, full_cu_seqlens(batch, room, query.device)))
        output = attend(
            kernel(ATTENTION), rows, key.flatten(0, 1), value.flatten(0, 1), options, padding
        )
        if self.form == "THD":
            return output
        output = torch.unflatten(output, 0, (batch, -1))
        return output.transpose(0, 1) if self.form == "SBHD" else output

    def log_sum_exp(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each row, and its largest score: float32 [b, n, sq, 1]."""
        call = self.scores()
        with torch.no_grad():
            query = self.queries.rows(self.query)
            key = _scores.repeated(self.keys.rows(self.key), query.shape[1])
            scores = call.matrix(query, key)
            return call.log_sum_exp(scores), scores.amax(-1, keepdim=True)

    def packed_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """[b, n, sq, 1] as it is, or [t, n, 1] for THD."""
        if self.form != "THD":
            return rows.contiguous()
        like = rows.new_empty(self.query.shape[0], 0)
        return self.queries.back(rows, like)

    def like_output(self) -> torch.Tensor:
        """An empty tensor in the output's shape and dtype, in the query's format."""
        empty: torch.Tensor = self.query.new_empty(*self.query.shape[:-1], self.value.shape[-1])
        return empty

    def in_output_format(self, output: torch.Tensor) -> torch.Tensor:
        if self.o_form == self.form:
            return output
        order = _BETWEEN[self.form, self.o_form]
        return output.permute(order)

    def from_output_format(self, output: torch.Tensor) -> torch.Tensor:
        if self.o_form == self.form:
            return output
        permuted: torch.Tensor = output.permute(_BETWEEN[self.o_form, self.form])
        return permuted


_NO_DIGITS: Final = str.maketrans("", "", "23")
#: The dimension of s.
_LENGTH: Final = {"SBHD": 0, "BSHD": 1, "BHSD": 2}
_ORDERS: Final = {form: form.replace("HD", "NV") for form in ("SBHD", "BSHD")} | {"BHSD": "BNSV"}
_BETWEEN: Final = {
    (one, other): tuple(map(_ORDERS[one].index, _ORDERS[other]))
    for one in _ORDERS
    for other in _ORDERS
}


def _format(form: Any, default: str) -> str:
    if form is None or form == NVTE_QKV_Format.NVTE_QKV_Format_NOT_SET:
        return default
    name: str = form.name
    return name.removeprefix("NVTE_")


def _leaf(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().requires_grad_()


def _pages(cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """[b, s, g, d] of pages [pages, page size, g, d] and a table [b, pages of a sequence]."""
    return cache[table.long()].flatten(1, 2)


def fa_prepare_fwd(qkvi: torch.Tensor) -> torch.Tensor:
    """[s, b, n, 3 * d], the query's view into interleaved tensors, as [3, b, s, n, d].

    :param qkvi: its last dimension is d wide; its storage goes on with key and value.
    """
    s, b, n, d = qkvi.shape
    whole = qkvi.as_strided((s, b, n, 3, d), (*qkvi.stride()[:3], d, 1))
    return whole.permute(3, 1, 0, 2, 4).contiguous()


def fa_prepare_bwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[b, s, n, d] of each as [s, b, n, 3 * d], interleaved."""
    return torch.stack((q, k, v), dim=3).transpose(0, 1).flatten(-2).contiguous()


def multi_tensor_transpose_to_bhsd(
    inputs: list[torch.Tensor | None],
    original_format: str,
    outputs: list[torch.Tensor | None] | None = None,
) -> list[torch.Tensor | None]:
    """Each [s, b, n, d] or [b, s, n, d] as [b, n, s, d], written to ``outputs`` if given."""
    order = {"sbhd": (1, 2, 0, 3), "bshd": (0, 2, 1, 3)}[original_format]
    results: list[torch.Tensor | None] = []
    for tensor, target in zip(inputs, outputs or [None] * len(inputs), strict=True):
        made = None if tensor is None else tensor.permute(order).contiguous()
        if made is not None and target is not None:
            made = target.copy_(made.view(target.shape))
        results.append(made)
    return results

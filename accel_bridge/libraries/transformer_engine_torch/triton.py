"""Transformer Engine's Triton kernels in torch's operators, where Triton has no device.

:mod:`._loader` says which names stand in which module of ``transformer_engine.pytorch.triton``.

Cross entropy leaves the logits as they are, whatever the caller allows to be written over them. A
map of rows is int32 [t, 2 * e + 1], as the kernels write it: of each token the rows of its copies,
the highest first and -1 behind them; their experts in the same order; their number.

Legend: b batch, s sequence, v vocabulary, p ranks that share it; t tokens, e experts, h hidden
size, m rows of copies, c chunks, g groups.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.nn import functional

from accel_bridge.kernels import TOKEN_UNPERMUTE, group_size
from accel_bridge.kernels.active import kernel
from accel_bridge.kernels.token_permute import pairs_of_rows, rows_of_map
from accel_bridge.libraries.transformer_engine_torch import NotServedError


def cross_entropy_forward(
    _input: torch.Tensor,
    target: torch.Tensor,
    label_smoothing: float,
    reduce_loss: bool,
    dist_process_group: dist.ProcessGroup | None,
    ignore_idx: int,
    *overwrite_input: bool,
) -> tuple[Any, ...]:
    """The loss of each token, or their mean, in float32; and what the backward pass needs.

    :param _input: [b, s, v / p], any float dtype: this rank's slice of the logits.
    :param target: ids in [0, v), one for each row, or ``ignore_idx``: loss and gradient 0.
    :param label_smoothing: probability spread evenly over all v classes.
    :param overwrite_input: given from 2.20 on.
    :returns: loss [b, s] or [1], and the gradient of a loss of 1 as the logits; from 2.20 on the
        loss, the logits, their log-sum-exp [b, s], ``target``, the number of rows that count, rank
        and ranks.
    """
    ranks = group_size(dist_process_group)
    rank = 0 if dist_process_group is None else dist_process_group.rank()
    x = _input.detach().float()
    index, here, ignored = _targets(x, target, ignore_idx, rank)
    peak = x.amax(-1)
    if ranks > 1:
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=dist_process_group)
    sums = [
        (x - peak.unsqueeze(-1)).exp().sum(-1),
        x.gather(-1, index).squeeze(-1).masked_fill(~here, 0.0),
        x.sum(-1),
    ]
    if ranks > 1:
        whole = torch.stack(sums)
        dist.all_reduce(whole, group=dist_process_group)
        sums = list(whole)
    lse = peak + sums[0].log()
    mean = lse - sums[2] / (x.shape[-1] * ranks)
    losses = (1.0 - label_smoothing) * (lse - sums[1]) + label_smoothing * mean
    losses = losses.masked_fill(ignored, 0.0)
    count = ignored.logical_not().sum().clamp(min=1).reshape(1)
    loss = losses.sum() / count if reduce_loss else losses
    if overwrite_input:
        return loss, _input, lse, target, count, rank, ranks
    gradient = _gradient(x, lse, target, label_smoothing, ignore_idx, rank, ranks)
    if reduce_loss:
        gradient = gradient / count
    return loss, gradient.to(_input.dtype)


def cross_entropy_backward(saved_input: torch.Tensor, *rest: Any) -> torch.Tensor:
    """The gradient of the logits, from what the forward pass gave.

    :param rest: the loss's gradient and a flag; from 2.20 on log-sum-exp, ``target``, the number
        of rows that count or None, the loss's gradient, smoothing, whether the loss is a mean,
        rank, ranks and ``ignore_idx``.
    """
    if len(rest) == 2:
        gradient, of_loss = saved_input, rest[0]
    else:
        lse, target, count, of_loss, label_smoothing, reduce_loss, rank, ranks, ignore_idx = rest
        gradient = _gradient(
            saved_input.float(), lse, target, label_smoothing, ignore_idx, rank, ranks
        )
        if reduce_loss:
            of_loss = of_loss / count
    if of_loss.numel() > 1:
        of_loss = of_loss.reshape(*saved_input.shape[:-1], 1)
    result: torch.Tensor = gradient * of_loss
    return result.to(saved_input.dtype)


def _targets(
    x: torch.Tensor, target: torch.Tensor, ignore_idx: int, rank: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Index of each row's class here [b, s, 1], whether it is here, whether it is ignored."""
    wanted = target.reshape(x.shape[:-1]).long()
    local = wanted - rank * x.shape[-1]
    here = (local >= 0) & (local < x.shape[-1])
    return local.clamp(0, x.shape[-1] - 1).unsqueeze(-1), here, wanted == ignore_idx


def _gradient(
    x: torch.Tensor,
    lse: torch.Tensor,
    target: torch.Tensor,
    label_smoothing: float,
    ignore_idx: int,
    rank: int,
    ranks: int,
) -> torch.Tensor:
    """float32, as the logits: of a loss of 1 in each row."""
    index, here, ignored = _targets(x, target, ignore_idx, rank)
    gradient = (x - lse.unsqueeze(-1)).exp_()
    gradient -= label_smoothing / (x.shape[-1] * ranks)
    gradient.scatter_add_(-1, index, here.unsqueeze(-1) * (label_smoothing - 1.0))
    return gradient.masked_fill_(ignored.unsqueeze(-1), 0.0)


def compute_grouped_dbias(
    dy: torch.Tensor, offsets: torch.Tensor, num_groups: int, dbias: torch.Tensor | None = None
) -> torch.Tensor:
    """float32 [g, h]: the sum of each group's rows of ``dy`` [t, h], added to ``dbias``.

    :param offsets: int64 [g + 1], cumulative rows with the leading 0.
    """
    if dbias is None:
        dbias = dy.new_zeros(num_groups, dy.shape[1], dtype=torch.float32)
    return dbias.index_add_(0, _groups(dy, offsets), dy.float())


def compute_grouped_dbias_dscales(
    dy: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor,
    offsets: torch.Tensor,
    dbias: torch.Tensor | None = None,
    dscales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of biases [g, h] and of the rows' scales [t], both float32, added to those given.

    :param scales: float32 [t], the factor of each row's bias.
    """
    wide = dy.float()
    dbias = compute_grouped_dbias(wide * scales.unsqueeze(-1), offsets, bias.shape[0], dbias)
    products = (wide * bias.float().index_select(0, _groups(dy, offsets))).sum(-1)
    return dbias, products if dscales is None else dscales.add_(products)


def _groups(dy: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """int64 [t]: the group of each row."""
    row = torch.arange(dy.shape[0], device=dy.device)
    found = torch.searchsorted(offsets[1:].contiguous(), row, right=True)
    return found.clamp_(max=offsets.numel() - 2)


def pad_columnwise_scale_inv(inp: torch.Tensor) -> torch.Tensor:
    """[m, n] with zeros behind: rows to a multiple of 128, columns to one of 4."""
    return functional.pad(inp, (0, -inp.shape[1] % 4, 0, -inp.shape[0] % 128))


def make_row_id_map(routing_map: torch.Tensor, num_tokens: int, num_experts: int) -> torch.Tensor:
    """The map of rows of a routing map [t, e], bool or integers."""
    rows = rows_of_map(routing_map, num_tokens * num_experts)
    ordered, experts = rows.sort(dim=1, descending=True)
    count = (rows >= 0).sum(1, keepdim=True)
    return torch.cat((ordered, experts.to(torch.int32), count.to(torch.int32)), dim=1)


def permute_with_mask_map(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    probs: torch.Tensor | None,
    scale: torch.Tensor | None,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Copies [m, h] sorted by expert; their scales [m, ...] and weights [m], or None.

    :param inp: [t, h], any dtype; bytes of FP8 too.
    :param rest: rows of padding before each expert's [e] or None (not in 2.8), t, e, m, h and the
        width of the scales.
    """
    pad_offsets = _offsets(rest)
    rows = _rows(row_id_map, rest[-3], pad_offsets)
    experts = rows.shape[1]
    pairs = pairs_of_rows(rows, rest[-3])

    def chosen(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        if pad_offsets is None:  # every row has a source; those beyond the last copy hold anything
            return tensor.index_select(0, index.clamp(max=tensor.shape[0] - 1))
        # What has no source reads zeros behind the last one.
        padding = (0, 0) * (tensor.dim() - 1) + (0, 1)
        return functional.pad(tensor, padding).index_select(0, index)

    sources = pairs // experts
    return (
        chosen(inp, sources),
        None if scale is None else chosen(scale, sources),
        None if probs is None else chosen(probs.reshape(-1), pairs),
    )


def unpermute_with_mask_map(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    merging_probs: torch.Tensor | None,
    permuted_probs: torch.Tensor | None,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The sum [t, h] of each token's copies [m, h], weighted or not; and weights [m] as [t, e].

    :param merging_probs: [t, e].
    :param rest: the rows of padding or None (not in 2.8), t, e and h.
    """
    rows = _rows(row_id_map, inp.shape[0], _offsets(rest))
    output = kernel(TOKEN_UNPERMUTE)(inp, rows, merging_probs)
    if permuted_probs is None:
        return output, None
    found = permuted_probs.index_select(0, rows.clamp(min=0).reshape(-1)).view(rows.shape)
    return output, found.masked_fill(rows < 0, 0.0)


def unpermute_with_mask_map_bwd_with_merging_probs(
    fwd_output_grad: torch.Tensor,
    row_id_map: torch.Tensor,
    fwd_input: torch.Tensor,
    merging_probs: torch.Tensor,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the copies [m, h] and of the weights [t, e].

    :param rest: the rows of padding or None (not in 2.8), t, e, m and h.
    """
    pad_offsets, copies = _offsets(rest), rest[-2]
    rows = _rows(row_id_map, copies, pad_offsets)
    tokens, experts = rows.shape
    pairs = pairs_of_rows(rows, copies)
    real = (pairs < tokens * experts).unsqueeze(-1)
    pairs = pairs.clamp(max=tokens * experts - 1)
    gradient = fwd_output_grad.index_select(0, pairs // experts).float()
    weights = merging_probs.reshape(-1).index_select(0, pairs).float().unsqueeze(-1)
    of_copies = (gradient * weights).masked_fill_(~real, 0.0).to(fwd_output_grad.dtype)
    products = (gradient * fwd_input.float()).masked_fill_(~real, 0.0).sum(-1)
    of_weights = products.new_zeros(tokens * experts).index_add_(0, pairs, products)
    return of_copies, of_weights.view(tokens, experts).to(merging_probs.dtype)


def make_chunk_sort_map(
    split_sizes: torch.Tensor, sorted_indices: torch.Tensor, num_tokens: int, num_splits: int
) -> torch.Tensor:
    """Where each row goes as chunks change their order: int32 [t].

    :param split_sizes: [c], integers: rows of each chunk.
    :param sorted_indices: [c], integers: which chunk comes first, second, ...
    """
    sizes, order = split_sizes.long(), sorted_indices.long()
    ends = sizes.cumsum(0)
    wanted = sizes.index_select(0, order)
    starts = torch.empty_like(ends).scatter_(0, order, wanted.cumsum(0) - wanted)
    row = torch.arange(num_tokens, device=sizes.device)
    chunk = torch.searchsorted(ends, row, right=True).clamp_(max=num_splits - 1)
    return (row + (starts - ends + sizes).index_select(0, chunk)).to(torch.int32)


def sort_chunks_by_map(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    probs: torch.Tensor | None,
    num_tokens: int,
    hidden_size: int,
    is_forward: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows [t, h] and weights [t] in the new order, or back in the old one."""
    index = row_id_map.long()
    if is_forward:
        index = torch.empty_like(index).scatter_(
            0, index, torch.arange(num_tokens, device=index.device)
        )
    weights = None if probs is None else probs.index_select(0, index)
    return inp.index_select(0, index), weights


def _offsets(rest: tuple[Any, ...]) -> torch.Tensor | None:
    return rest[0] if isinstance(rest[0], torch.Tensor) else None


def _rows(row_id_map: torch.Tensor, copies: int, pad_offsets: torch.Tensor | None) -> torch.Tensor:
    """The row of each token's copy for each expert: int32 [t, e], -1 without one."""
    experts = row_id_map.shape[1] // 2
    ordered, numbers = row_id_map[:, :experts], row_id_map[:, experts : 2 * experts]
    rows = torch.empty_like(ordered).scatter_(1, numbers.long(), ordered)
    if pad_offsets is not None:
        rows = torch.where(rows < 0, rows, rows + pad_offsets.to(torch.int32))
    return rows.masked_fill(rows >= copies, -1)


def refused(module: str, name: str) -> Any:
    """A function of ``module`` that says what it needs: of hyper-connections, the export to ONNX.

    :raises AttributeError: the module has no such name.
    """
    exports = module.endswith("onnx_extensions")
    if name.startswith("__") or not (exports or name.startswith("mhc_")):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        if exports:
            raise NotServedError(
                f"Transformer Engine's export to ONNX ({name}) needs onnxscript",
                evidence="onnxscript is not installed",
                next="pip install onnxscript",
            )
        raise NotServedError(
            f"Transformer Engine's hyper-connections ({name}) are not served by accel_bridge",
            evidence="they are Triton kernels, and Triton has no device here",
            next="run on a CUDA device",
        )

    return refuse

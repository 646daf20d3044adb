"""FP8 weights under optimizers with master weights.

Source: transformer_engine/pytorch/tensor/utils.py of Transformer Engine 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from accel_bridge.kernels import float8_scale

from ..constants import TE_DType_To_Torch
from ..cpp_extensions._quantize import compute_amax
from ..cpp_extensions._scales import (
    fp8_block_scaling_compute_partial_amax,
    fp8_block_scaling_partial_cast,
)
from ..quantized_tensor import QuantizedTensor, QuantizedTensorStorage, Quantizer
from ..utils import is_non_tn_fp8_gemm_supported
from .float8_blockwise_tensor import Float8BlockQuantizer, Float8BlockwiseQTensor
from .float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer, Float8Tensor


def _raw_name(tensor: Any) -> str:
    if isinstance(tensor, Float8Tensor):
        return "_data"
    if isinstance(tensor, Float8BlockwiseQTensor):
        return "_rowwise_data"
    raise ValueError(f"replace_raw_data for {type(tensor)} is not supported yet")


def replace_raw_data(tensor: QuantizedTensor, new_raw_data: torch.Tensor) -> None:
    """Move a quantized tensor's numbers to another place, e.g. a buffer of all parameters.

    :param new_raw_data: in the shape and dtype of the numbers; they are copied there.
    :raises AssertionError: another dtype.
    :raises ValueError: a tensor of another kind.
    """
    name = _raw_name(tensor)
    old = getattr(tensor, name)
    assert old.dtype == new_raw_data.dtype, "The data types of raw data don't match"
    new_raw_data.detach().copy_(old)
    setattr(tensor, name, new_raw_data)


class _Part(NamedTuple):
    """A weight, this rank's part of its master weight and where it begins, and its shard."""

    weight: Any
    master: torch.Tensor | None
    start: int | None
    shard: Any


def quantize_master_weights(
    model_weights: Sequence[Any],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: Any,
    fsdp_shard_model_weights: Sequence[Any] | None = None,
    manual_post_all_gather_processing: bool = False,
) -> None:
    """Quantize master weights into FP8 weights; every rank of ``group`` has a part of each.

    :param model_weights: FP8 weights, whole on every rank.
    :param master_weights: this rank's part of each, flat; None where it has none.
    :param start_offsets: where the part begins in the flat weight.
    :param group: the ranks that have the other parts.
    :param fsdp_shard_model_weights: where parts are stored if weights are sharded.
    :param manual_post_all_gather_processing: the caller calls :func:`post_all_gather_processing`.
    :raises ValueError: weights of another kind.
    """
    shards = fsdp_shard_model_weights
    if shards is None:
        shards = [None] * len(model_weights)
    by_kind: dict[type, list[_Part]] = {kind: [] for kind in _CASTS}
    for weight, master, start, shard in zip(
        model_weights, master_weights, start_offsets, shards, strict=True
    ):
        # Master weights exist now: the first values in high precision are of no more use.
        if hasattr(weight, "clear_high_precision_init_val"):
            weight.clear_high_precision_init_val()
        # Rounded as weights without FP8 would be.
        rounded = None if master is None else master.to(weight.dtype)
        kind = type(weight._get_quantizer())
        if kind not in by_kind:
            raise ValueError(f"cast_master_weights_to_fp8 for {kind} is not supported yet")
        by_kind[kind].append(_Part(weight, rounded, start, shard))
    for kind, parts in by_kind.items():
        if parts:
            _CASTS[kind](parts, group, not manual_post_all_gather_processing)


def cast_master_weights_to_fp8(
    model_weights: Sequence[Any],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: Any,
    fsdp_shard_model_weights: Sequence[Any] | None = None,
    manual_post_all_gather_processing: bool = False,
) -> None:
    """The former name of :func:`quantize_master_weights`."""
    quantize_master_weights(
        model_weights,
        master_weights,
        start_offsets,
        group,
        fsdp_shard_model_weights,
        manual_post_all_gather_processing,
    )


def _reduce(amaxes: torch.Tensor, group: Any) -> None:
    torch.distributed.all_reduce(amaxes, op=torch.distributed.ReduceOp.MAX, group=group)


def _cast_delayed(parts: list[_Part], group: Any, reset: bool) -> None:
    """Quantize with the scales of earlier steps, then share the new magnitudes."""
    quantizers = [part.weight._get_quantizer() for part in parts]
    for part, quantizer in zip(parts, quantizers, strict=True):
        if reset:
            part.weight._reset_caches()
        if part.master is None:
            continue
        raw = part.shard
        if raw is None:
            assert part.start is not None
            end = part.start + part.master.numel()
            assert 0 <= part.start <= end <= part.weight.numel()
            raw = part.weight._data.view(-1)[part.start : end]
        # Numbers only: a transpose would be made anew for each part.
        rows = quantizer.copy()
        rows.set_usage(rowwise=True, columnwise=False)
        if not isinstance(raw, Float8Tensor):
            raw = rows.create_tensor_from_data(raw.view(1, -1), part.weight.dtype)
        rows.update_quantized(part.master.view(raw.shape), raw)
    amaxes = [quantizer.amax.view(1) for quantizer in quantizers]
    packed = torch.cat(amaxes)
    _reduce(packed, group)
    torch._foreach_copy_(amaxes, list(packed.split(1)))
    factors = torch.cat([quantizer.scale.view(1) for quantizer in quantizers]).reciprocal_()
    places = [part.weight._scale_inv.view(1) for part in parts]
    torch._foreach_copy_(places, list(factors.split(1)))


def _same_options(parts: list[_Part], *names: str) -> Any:
    """The quantizer of all weights, which must agree in what decides numbers."""
    first = parts[0].weight._get_quantizer()
    for part in parts:
        other = part.weight._get_quantizer()
        assert all(getattr(other, name) == getattr(first, name) for name in names)
    return first


def _cast_current(parts: list[_Part], group: Any, reset: bool) -> None:
    """Find each weight's largest magnitude over all ranks, then quantize with its scale."""
    options = _same_options(parts, "dtype", "force_pow_2_scales", "amax_epsilon")
    packed = torch.zeros(len(parts), dtype=torch.float32, device=parts[0].weight.device)
    for part, amax in zip(parts, packed.split(1), strict=True):
        if part.master is not None:
            compute_amax(part.master, amax)
    _reduce(packed, group)
    scales = float8_scale(
        packed,
        TE_DType_To_Torch[options.dtype],
        power_of_2=options.force_pow_2_scales,
        epsilon=options.amax_epsilon,
    )
    factors = scales.reciprocal()
    for index, (part, scale) in enumerate(zip(parts, scales.split(1), strict=True)):
        part.weight._get_quantizer().scale.view(1).copy_(scale)
        part.weight._scale_inv.view(1).copy_(factors[index : index + 1])
        if reset:
            part.weight._reset_caches()
        if part.master is None:
            continue
        quantizer = Float8Quantizer(
            scale, torch.empty(0, device=scale.device), part.weight._fp8_dtype, columnwise=False
        )
        raw = part.shard
        if raw is None:
            assert part.start is not None
            raw = part.weight._data.view(-1)[part.start : part.start + part.master.numel()]
        if not isinstance(raw, Float8Tensor):
            raw = quantizer.create_tensor_from_data(raw.view(-1), part.weight.dtype)
        quantizer.update_quantized(part.master.view(raw.shape), raw)


def _cast_blocks(parts: list[_Part], group: Any, reset: bool) -> None:
    """Find each block's largest magnitude over all ranks, then quantize with its scale."""
    options = _same_options(parts, "block_len", "dtype", "force_pow_2_scales", "amax_epsilon")
    shapes = [part.weight._rowwise_scale_inv.shape for part in parts]
    sizes = [shape.numel() for shape in shapes]
    device = parts[0].weight.device
    packed = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
    for part, amax, shape in zip(parts, packed.split(sizes), shapes, strict=True):
        if part.master is not None:
            assert part.start is not None
            h, w = part.weight.shape
            fp8_block_scaling_compute_partial_amax(
                part.master, amax.view(shape), h, w, part.start, options.block_len
            )
    _reduce(packed, group)
    scales = float8_scale(
        packed,
        TE_DType_To_Torch[options.dtype],
        power_of_2=options.force_pow_2_scales,
        epsilon=options.amax_epsilon,
    )
    for part, scale, shape in zip(parts, scales.split(sizes), shapes, strict=True):
        part.weight._rowwise_scale_inv.copy_(scale.reciprocal().view(shape))
        if reset:
            # The other copy is made when it is needed, after the weights were gathered.
            part.weight.update_usage(rowwise_usage=True, columnwise_usage=False)
        if part.master is None:
            continue
        assert part.start is not None
        raw = part.shard
        if raw is None:
            end = part.start + part.master.numel()
            raw = part.weight._rowwise_data.view(-1)[part.start : end]
        h, w = part.weight.shape
        fp8_block_scaling_partial_cast(
            part.master,
            raw,
            scale.view(shape),
            h,
            w,
            part.start,
            options.block_len,
            options.dtype,
        )


_CASTS: dict[type, Any] = {
    Float8Quantizer: _cast_delayed,
    Float8CurrentScalingQuantizer: _cast_current,
    Float8BlockQuantizer: _cast_blocks,
}


def post_all_gather_processing(model_weights: Any) -> None:
    """Make the copies that products read by columns, after weights were gathered.

    :param model_weights: a weight or a list of them; plain ones are left alone.
    :raises ValueError: a quantized weight of another kind.
    """
    weights = model_weights if isinstance(model_weights, list) else [model_weights]
    for weight in weights:
        if isinstance(weight, Float8Tensor):
            if not is_non_tn_fp8_gemm_supported():
                weight._create_transpose()
        elif isinstance(weight, Float8BlockwiseQTensor):
            weight._create_columnwise()
        elif isinstance(weight, QuantizedTensor):
            raise ValueError(f"post_processing for {type(weight)} is not supported")


def is_custom(x: Any = None) -> bool:
    """Whether a quantizer or storage is of the user's own making.

    :raises AssertionError: neither of the two, nor a tensor.
    """
    if x is None or isinstance(x, torch.Tensor):
        return False
    if not isinstance(x, (Quantizer, QuantizedTensorStorage)):
        raise AssertionError("Object must be a Quantizer or QuantizedTensorStorage instance")
    return bool(getattr(x, "custom", False))

"""Initial weights that depend on nothing but a parameter's global name and shape.

Megatron draws weights per rank, so layouts and machines start differently, and parity between them
would require copying a checkpoint around. Here every rank draws a parameter's *global* tensor from
a generator seeded with its checkpoint key, and takes its own part: the same bits on every machine
and in every layout.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy
import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import (
    ShardedTensor,
    apply_factories,
    is_main_replica,
)

#: Smallest magnitude drawn; with 8 significant bits, all larger values are exact in float32,
#: bfloat16 and float16, so runs in any precision start from the same numbers.
SMALLEST: Final = 2.0**-17
#: Weights of these layers add to the residual stream: divided by sqrt(2 * layers), as Megatron's
#: ``output_layer_init_method`` does.
RESIDUAL: Final = ("linear_proj.weight", "linear_fc2.weight")
#: Queries and keys of about unit size make attention far from uniform, so that a wrong scale or
#: mask shows at the first step; Megatron's 0.02 would hide 10% of scale in the fourth digit.
ATTENTION: Final = ("linear_qkv.weight",)
#: Vectors that Megatron draws too (Mamba, gated delta nets): mean, standard deviation, bounds.
RANDOM: Final = {"A_log": (1.9, 0.6, 0.0, 2.75), "dt_bias": (-4.6, 1.0, -6.75, -2.25)}
_WORD: Final = 1 << 64


def shards(chunk: torch.nn.Module) -> Iterator[ShardedTensor]:
    """Every parameter of an (unwrapped) model chunk as part of its global tensor."""
    # Megatron 0.16 reads the group from the metadata where a pipeline has multi-token prediction.
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    state = chunk.sharded_state_dict(metadata={"dp_cp_group": group})  # type: ignore[operator]
    apply_factories(state)
    buffers = {buffer.data_ptr() for buffer in chunk.buffers()}
    for item in _leaves(state):
        if (
            isinstance(item, ShardedTensor)
            and item.data is not None
            and item.data.is_floating_point()
            and item.data.data_ptr() not in buffers
        ):
            yield item


@torch.no_grad()
def draw_weights(chunks: list[torch.nn.Module], std: float, layers: int) -> None:
    """Draw every weight anew.

    Matrices are normal with standard deviation ``std``. Vectors (biases, norms) keep their usual
    initial value plus the same noise, so that a dropped bias shows from the first step on; those
    that Megatron draws are drawn from about its distribution.

    :param std: ``--init-method-std``.
    :param layers: ``--num-layers``.
    """
    for chunk in chunks:
        for item in shards(chunk):
            assert item.data is not None
            normal = _part(item)
            drawn = normal * _scale(item, std, layers)
            drawn = torch.where(drawn.abs() < SMALLEST, 0.0, drawn).bfloat16().float()
            vector = RANDOM.get(str(item.key).rpartition(".")[2])
            if vector is not None:
                mean, deviation, least, most = vector
                drawn = (mean + deviation * normal).clamp(least, most).bfloat16().float()
            elif drawn.dim() == 1:
                usual = item.data.float().cpu()
                # One that is not the same everywhere was drawn: by this rank, unlike others.
                if bool((usual == usual[:1]).all()):
                    drawn = (usual + drawn).bfloat16().float()
            item.data.copy_(drawn)


def fingerprint(chunks: list[torch.nn.Module]) -> int:
    """A number for all weights on this rank; the sum over ranks (modulo 2^64) is the model's.

    Sums of the values' bit patterns as float32 are exact in any order, so the layout does not
    matter; only the first of several copies counts.
    """
    found = 0
    for chunk in chunks:
        for item in shards(chunk):
            if not is_main_replica(item.replica_id):
                continue
            assert item.data is not None
            bits = item.data.detach().float().cpu().contiguous().view(torch.int32).long()
            value = int((bits + 31 * bits * bits).sum())
            found += value * (_hash(_key(item)) | 1)
    return found % _WORD


def _scale(item: ShardedTensor, std: float, layers: int) -> float:
    """Standard deviation of a parameter."""
    key = str(item.key)
    if key.endswith(RESIDUAL):
        return std / math.sqrt(2 * layers)
    if key.endswith(ATTENTION):
        return 1.0 / math.sqrt(item.global_shape[-1])
    return std


def _part(item: ShardedTensor) -> torch.Tensor:
    """This rank's part of the standard normal global tensor."""
    skip = item.prepend_axis_num
    shape, offset = item.global_shape[skip:], item.global_offset[skip:]
    generator = numpy.random.Generator(numpy.random.Philox(_hash(_key(item))))
    whole = generator.standard_normal(shape, dtype=numpy.float32)
    own = tuple(
        slice(start, start + size)
        for start, size in zip(offset, item.local_shape[-len(shape) :], strict=True)
    )
    return torch.from_numpy(whole[own].copy()).reshape(item.local_shape)


def _key(item: ShardedTensor) -> str:
    """Checkpoint key, with the place on axes that were prepended for layers and experts."""
    return f"{item.key}|{tuple(item.global_offset[: item.prepend_axis_num])}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _leaves(state: Any) -> Iterator[Any]:
    if isinstance(state, dict):
        for value in state.values():
            yield from _leaves(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _leaves(value)
    else:
        yield state

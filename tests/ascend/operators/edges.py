"""Walks both sides of every edge in the table of limits, through the real torch_npu.

Started under ``accel-bridge emulate-ascend`` with a chip, a CANN release and the report's file, and
with ASCEND_EMULATOR_LOOKS=1: operators look at their arguments and compute nothing.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch_npu
from attention import triangle
from refusals import Call, attention, gathered, group, mask, packed, softmax

from accel_bridge.backends.ascend.limits import Limit, Rules

#: Makes the call that has the value, or None where no call can have it.
Maker = Callable[[Any], Call | None]
ONE_RANK = "number of ranks is"


def zeros(*sizes: int, dtype: str = "float16") -> torch.Tensor:
    return torch.zeros(sizes, dtype=getattr(torch, dtype)).npu()


def sized(make: Callable[[int], Call]) -> Maker:
    """No tensor has a size below 1."""
    return lambda size: make(size) if size > 0 else None


def fused(*shape: int, heads: int = 1, dtype: str = "float16", **options: Any) -> Call:
    def call() -> Any:
        x = zeros(*shape, dtype=dtype)
        return torch_npu.npu_fusion_attention(x, x, x, heads, "BNSD", **options)

    return call


def in_layout(layout: str) -> Call:
    shapes = {"TND": (8, 2, 8), "BSH": (1, 8, 16), "SBH": (8, 1, 16), "BNSD": (1, 2, 8, 8)}
    ends = {"actual_seq_qlen": [8], "actual_seq_kvlen": [8]} if layout == "TND" else {}
    return attention(shape=shapes.get(layout, (1, 8, 2, 8)), layout=layout, **ends)


def rectangle() -> torch.Tensor:
    lower = torch.zeros(1024, 2048, dtype=torch.bool)
    lower[:, 1024:] = True
    return torch.cat((torch.ones(2048, 2048).triu(1).bool(), lower)).npu()


def of_mode(mode: Any) -> Call | None:
    if int(mode) < 0:
        return None
    hidden = rectangle if int(mode) == 6 else mask(8, 8, allow=True)
    return attention(sparse_mode=int(mode), atten_mask=hidden, prefix=[2])


def of_packed_mode(mode: Any) -> Call:
    number = 17 if mode == "another" else int(mode)
    hidden = {0: mask(8, 8, allow=True), 1: mask(8, 8, allow=True), 6: rectangle}
    prefix = {"prefix": [2]} if number == 6 else {}
    band = {"pre_tockens": 8, "next_tockens": 0} if number in (4, 7, 8) else {}
    mask_of = hidden.get(number, triangle)
    return packed([8], [8], sparse_mode=number, atten_mask=mask_of, **prefix, **band)


def narrower(by: int) -> Call | None:
    if by > 767:
        return None
    width = 768 if by > 100 else 8

    def call() -> Any:
        q, v = zeros(1, 1, 4, width), zeros(1, 1, 4, width - by)
        return torch_npu.npu_fusion_attention(q, q, v, 1, "BNSD")

    return call


def tokens(count: int, sequences: int = 1) -> Call:
    ends = [count - sequences + i + 1 for i in range(sequences)]

    def call() -> Any:
        x = zeros(count, 1, 1)
        return torch_npu.npu_fusion_attention(
            x, x, x, 1, "TND", actual_seq_qlen=ends, actual_seq_kvlen=ends
        )

    return call


def prefixes(count: int) -> Call:
    return attention(
        shape=(count, 2, 8, 8),
        sparse_mode=5,
        prefix=[2] * count,
        atten_mask=mask(count, 1, 8, 8, allow=True),
    )


def sinks(count: int) -> Call | None:
    if count not in (0, 1):
        return None
    given = {"sink": lambda: torch.zeros(2).npu()} if count else {}
    return attention(shape=(1, 2, 8, 8), **given)


def packed_softmax(count: int) -> Call | None:
    if count not in (0, 1):
        return None
    return packed([8], [8], **({"softmax_layout": "TND"} if count else {}))


def rotary(*shape: int, mode: str = "half", dtype: str = "float16") -> Call:
    def call() -> Any:
        x, angles = zeros(*shape, dtype=dtype), zeros(1, shape[1], 1, shape[3], dtype=dtype)
        return torch_npu.npu_rotary_mul(x, angles, angles, mode)

    return call


def groups(count: int) -> Call:
    def call() -> Any:
        return torch_npu.npu_grouped_matmul(
            [zeros(count, 1)],
            [zeros(count, 1, 1)],
            group_list=torch.arange(1, count + 1).npu(),
            group_type=0,
            group_list_type=0,
            split_item=3,
        )

    return call


def grouped_of(inner: int = 4, dtype: str = "float16") -> Call | None:
    if dtype == "int8" or inner < 1:  # quantized products take scales, too
        return None

    def call() -> Any:
        return torch_npu.npu_grouped_matmul(
            [zeros(1, inner, dtype=dtype)],
            [zeros(1, inner, 1, dtype=dtype)],
            group_list=torch.ones(1, dtype=torch.int64).npu(),
            group_type=0,
            group_list_type=0,
            split_item=3,
        )

    return call


def sums(
    count: int = 1, inner: int = 2, dtype: str = "bfloat16", sum_dtype: str = "float32"
) -> Call | None:
    if count < 1 or inner < 1:
        return None

    def call() -> Any:
        return torch_npu.npu_grouped_matmul_add_(
            zeros(count * inner, 2, dtype=sum_dtype),
            zeros(count, inner, dtype=dtype),
            zeros(count, 2, dtype=dtype),
            torch.arange(1, count + 1).npu(),
        )

    return call


def scattered(inner: int = 256, dtype: str = "bfloat16", **options: Any) -> Call:
    def call() -> Any:
        x, weight = zeros(4, inner, dtype=dtype), zeros(inner, 4, dtype=dtype)
        return torch_npu.npu_mm_reduce_scatter_base(x, weight, group(), 2, **options)

    return call


def reduced(dtype: str = "bfloat16", operation: str = "sum") -> Call:
    def call() -> Any:
        x = zeros(256, 256, dtype=dtype)
        return torch_npu.npu_mm_all_reduce_base(x, x, group(), reduce_op=operation)

    return call


def entropy(rows: int) -> Call:
    return lambda: torch_npu.npu_cross_entropy_loss(
        zeros(rows, 2), torch.zeros(rows, dtype=torch.int64).npu()
    )


_FA, _GATHER, _SCATTER = (
    "npu_fusion_attention",
    "npu_all_gather_base_mm",
    "npu_mm_reduce_scatter_base",
)
_GROUPED, _SUMS, _REDUCE = "npu_grouped_matmul", "npu_grouped_matmul_add_", "npu_mm_all_reduce_base"
_SOFTMAX = "npu_scaled_masked_softmax"
MAKERS: dict[tuple[str, str], Maker] = {
    (_FA, "dtype"): lambda name: fused(1, 2, 8, 8, heads=2, dtype=name),
    (_FA, "layout"): in_layout,
    (_FA, "mode"): of_mode,
    (_FA, "packed_mode"): of_packed_mode,
    (_FA, "mask_dtype"): lambda name: attention(
        sparse_mode=1, atten_mask=mask(8, 8, dtype=getattr(torch, name), allow=True)
    ),
    (_FA, "batch"): sized(lambda size: fused(size, 1, 1, 1)),
    (_FA, "sequence"): sized(lambda size: fused(1, 1, size, 1)),
    (_FA, "heads"): sized(lambda size: fused(1, size, 4, 8, heads=size)),
    (_FA, "head_size"): sized(lambda size: fused(1, 1, 4, size)),
    (_FA, "value_size"): narrower,
    (_FA, "packed_tokens"): sized(tokens),
    (_FA, "documents"): sized(lambda size: tokens(2000, size)),
    (_FA, "prefixes"): sized(prefixes),
    (_FA, "sink"): sinks,
    (_FA, "packed_softmax"): packed_softmax,
    ("npu_rotary_mul", "dtype"): lambda name: rotary(1, 2, 2, 8, dtype=name),
    ("npu_rotary_mul", "size"): sized(lambda size: rotary(1, 2, 2, size)),
    ("npu_rotary_mul", "product"): sized(lambda size: rotary(size, 2, 1, 8, mode="interleave")),
    ("npu_rotary_mul", "side"): sized(lambda size: rotary(1, 2, size, 8)),
    (_SOFTMAX, "dtype"): lambda name: (
        lambda: torch_npu.npu_scaled_masked_softmax(
            zeros(1, 1, 32, 32, dtype=name), zeros(1, 1, 32, 32, dtype="bool"), 1.0, False
        )
    ),
    (_SOFTMAX, "side"): sized(lambda size: softmax(1, 1, size, 32)),
    (_GROUPED, "dtype"): lambda name: grouped_of(dtype=name),
    (_GROUPED, "groups"): sized(groups),
    (_GROUPED, "inner"): grouped_of,
    (_SUMS, "dtype"): lambda name: sums(dtype=name),
    (_SUMS, "sum_dtype"): lambda name: sums(sum_dtype=name),
    (_SUMS, "groups"): sums,
    (_SUMS, "inner"): lambda size: sums(inner=size),
    ("npu_rms_norm", "dtype"): lambda name: (
        lambda: torch_npu.npu_rms_norm(zeros(2, 8, dtype=name), zeros(8, dtype=name))
    ),
    ("npu_swiglu", "dtype"): lambda name: lambda: torch_npu.npu_swiglu(zeros(2, 8, dtype=name)),
    ("npu_cross_entropy_loss", "rows"): sized(entropy),
    (_GATHER, "dtype"): lambda name: gathered(256, getattr(torch, name)),
    (_GATHER, "inner"): gathered,
    (_GATHER, "comm_turn"): lambda turn: gathered(256, comm_turn=turn),
    (_SCATTER, "dtype"): lambda name: scattered(dtype=name),
    (_SCATTER, "inner"): scattered,
    (_SCATTER, "comm_turn"): lambda turn: scattered(comm_turn=turn),
    (_REDUCE, "dtype"): lambda name: reduced(dtype=name),
    (_REDUCE, "operation"): lambda name: reduced(operation="sum" if name == "sum" else "max"),
    # A process has one rank here; collectives_worker.py has two, and tries biases, too.
    **{
        (name, "ranks"): lambda ranks, call=call: call if ranks in ("1", "another") else None
        for name, call in ((_GATHER, gathered(256)), (_SCATTER, scattered()), (_REDUCE, reduced()))
    },
    **{(name, "bias"): lambda _: None for name in (_GATHER, _SCATTER)},
}


def said(call: Call) -> str:
    """What the call raises; empty when it is accepted."""
    try:
        call()
        torch.npu.synchronize()
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def walk(row: Limit, stream: Any) -> None:
    for side, values in zip(("inside", "outside"), row.edges(), strict=True):
        for value in values:
            if row.key == "ranks" and side == "outside" and "1" in row.names:
                continue
            call = MAKERS[row.operator, row.key](value)
            if call is not None:
                found = {"row": [row.operator, row.key], "side": side, "value": value}
                stream.write(json.dumps({**found, "text": row.text, "said": said(call)}) + "\n")


def main() -> int:
    warnings.simplefilter("ignore")
    chip, cann, report = sys.argv[1:]
    with open(report, "w") as stream:
        for row in Rules(chip, cann).limits.values():
            walk(row, stream)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Both sides of every edge in the table of limits, on this NPU.

A call that the table allows must be taken, and one just beyond it refused: what the device says
otherwise contradicts the table, or the public page that it is from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import torch

from accel_bridge.backends.ascend.limits import Limit, Rules
from accel_bridge.errors import BridgeError

#: Makes the call that has a value, or None where no call can have it.
Maker = Callable[[Any], Callable[[], Any] | None]
#: Rows whose largest value takes minutes: not tried, unless the emulator only looks at arguments.
LONG: Final = frozenset(
    ("npu_fusion_attention", key) for key in ("sequence", "packed_tokens", "batch")
)
LOOKS_VARIABLE: Final = "ASCEND_EMULATOR_LOOKS"


@dataclass(frozen=True, slots=True)
class Step:
    """One call beside the table.

    :param side: ``inside``, where the table allows it, or ``outside``.
    :param said: the device's refusal; empty where it took the call.
    :param contradicts: whether the device and the table disagree.
    """

    operator: str
    key: str
    rule: str
    source: str
    side: str
    value: int | str
    said: str
    contradicts: bool

    @property
    def text(self) -> str:
        """The call and what the device said, in words."""
        said = self.said.splitlines()[-1] if self.said else "it took the call"
        return f"{self.operator}: {self.rule}; with {self.value}: {said} ({self.source})"


def walk(rules: Rules) -> Iterator[Step]:
    """Every edge that a call can have, in the table's order."""
    for row in rules.limits.values():
        if (row.operator, row.key) in LONG and LOOKS_VARIABLE not in os.environ:
            continue
        for side, values in zip(("inside", "outside"), row.edges(), strict=True):
            for value in values:
                call = _call(row, side, value)
                if call is not None:
                    said = _said(call)
                    wrong = bool(said) == (side == "inside") and not _alone(row, said)
                    fields = (row.operator, row.key, row.text, row.source)
                    yield Step(*fields, side, value, said, wrong)
                    _healthy(row, value)


def _call(row: Limit, side: str, value: int | str) -> Callable[[], Any] | None:
    if row.key == "ranks" and side == "outside" and "1" in row.names:
        return None  # this process is alone
    return _MAKERS[row.operator, row.key](value)


def _alone(row: Limit, said: str) -> bool:
    """A GEMM with a collective goes as far as its ranks: there is one."""
    return "number of ranks is" in said and row.key != "ranks"


def _said(call: Callable[[], Any]) -> str:
    try:
        call()
        _npu().synchronize()
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _healthy(row: Limit, value: int | str) -> None:
    try:
        assert torch.ones(2, device="npu").sum().item() == 2
    except Exception as error:
        raise BridgeError(
            f"the NPU does not answer after {row.operator} with {row.key} {value}",
            evidence=str(error).splitlines()[:3],
            next="npu-smi info; the table's other rows were not tried",
            exit_code=1,
        ) from error


def _npu() -> Any:
    return vars(torch)["npu"]


def _zeros(*sizes: int, dtype: str = "float16") -> torch.Tensor:
    return torch.zeros(sizes, dtype=getattr(torch, dtype)).to("npu")


def _sized(make: Callable[[int], Callable[[], Any]]) -> Maker:
    """No tensor has a size below 1."""
    return lambda size: make(size) if size > 0 else None


@cache
def _group() -> str:
    """The name of a group of this rank alone."""
    import torch.distributed as dist

    if not dist.is_initialized():
        store = vars(dist)["HashStore"]()
        dist.init_process_group("hccl", store=store, rank=0, world_size=1)
    dist.all_reduce(torch.ones(1, device="npu"))
    backend: Any = dist.group.WORLD
    return str(backend._get_backend(torch.device("npu")).get_hccl_comm_name(0))


def _triangle(rows: int = 2048) -> torch.Tensor:
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    if rows > 2048:
        lower = torch.zeros(rows - 2048, 2048, dtype=torch.bool)
        lower[:, 1024:] = True
        mask = torch.cat((mask, lower))
    return mask.to("npu")


def _attention(
    *shape: int, heads: int = 2, layout: str = "BNSD", dtype: str = "float16", **options: Any
) -> Callable[[], Any]:
    def call() -> Any:
        x = _zeros(*(shape or (1, 2, 8, 8)), dtype=dtype)
        made = {key: value() if callable(value) else value for key, value in options.items()}
        value = made.pop("value", x)
        return torch.ops.npu.npu_fusion_attention(x, x, value, heads, layout, **made)

    return call


def _packed(count: int = 8, sequences: int = 1, **options: Any) -> Callable[[], Any]:
    ends = [count - sequences + i + 1 for i in range(sequences)]
    return _attention(
        *(count, 1, 8 if count == 8 else 1),
        heads=1,
        layout="TND",
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
        **options,
    )


def _of_layout(layout: str) -> Callable[[], Any]:
    if layout == "TND":
        return _packed()
    shapes = {"BSH": (1, 8, 16), "SBH": (8, 1, 16), "BSND": (1, 8, 2, 8)}
    return _attention(*shapes.get(layout, (1, 2, 8, 8)), layout=layout)


def _nothing_hidden(*sizes: int, dtype: str = "bool") -> Callable[[], torch.Tensor]:
    return lambda: _zeros(*sizes, dtype=dtype)


def _of_mode(mode: int) -> Callable[[], Any] | None:
    if mode < 0:
        return None
    mask = (lambda: _triangle(3072)) if mode == 6 else _nothing_hidden(8, 8)
    return _attention(sparse_mode=mode, atten_mask=mask, prefix=[2])


def _of_packed_mode(mode: str) -> Callable[[], Any]:
    number = 17 if mode == "another" else int(mode)
    masks = {0: _nothing_hidden(8, 8), 1: _nothing_hidden(8, 8), 6: lambda: _triangle(3072)}
    options: dict[str, Any] = {"prefix": [2]} if number == 6 else {}
    if number in (4, 7, 8):
        options |= {"pre_tockens": 8, "next_tockens": 0}
    return _packed(sparse_mode=number, atten_mask=masks.get(number, _triangle), **options)


def _narrower(by: int) -> Callable[[], Any] | None:
    width = 768 if by > 100 else 8
    if by >= width:
        return None
    return _attention(1, 1, 4, width, heads=1, value=lambda: _zeros(1, 1, 4, width - by))


def _rotary(*shape: int, mode: str = "half", dtype: str = "float16") -> Callable[[], Any]:
    def call() -> Any:
        angles = _zeros(1, shape[1], 1, shape[3], dtype=dtype)
        return torch.ops.npu.npu_rotary_mul(_zeros(*shape, dtype=dtype), angles, angles, mode)

    return call


def _softmax(size: int = 32, dtype: str = "float16") -> Callable[[], Any]:
    x = (1, 1, size, 32)
    return lambda: torch.ops.npu.npu_scaled_masked_softmax(
        _zeros(*x, dtype=dtype), _zeros(*x, dtype="bool"), 1.0, False
    )


def _grouped(groups: int = 1, inner: int = 4, dtype: str = "float16") -> Callable[[], Any] | None:
    if dtype == "int8" or inner < 1 or groups < 1:  # quantized GEMMs take scales, too
        return None
    return lambda: torch.ops.npu.npu_grouped_matmul(
        [_zeros(groups, inner, dtype=dtype)],
        [_zeros(groups, inner, 1, dtype=dtype)],
        group_list=torch.arange(1, groups + 1).to("npu"),
        group_type=0,
        group_list_type=0,
        split_item=3,
    )


def _sums(
    groups: int = 1, inner: int = 2, dtype: str = "bfloat16", sum_dtype: str = "float32"
) -> Callable[[], Any] | None:
    if groups < 1 or inner < 1:
        return None
    return lambda: torch.ops.npu.npu_grouped_matmul_add_(
        _zeros(groups * inner, 2, dtype=sum_dtype),
        _zeros(groups, inner, dtype=dtype),
        _zeros(groups, 2, dtype=dtype),
        torch.arange(1, groups + 1).to("npu"),
    )


def _gemm(
    name: str, inner: int = 256, dtype: str = "bfloat16", **options: Any
) -> Callable[[], Any]:
    # torch_npu looks at the number of ranks that it is told, and CANN at the group's.
    ranks = () if name == "npu_mm_all_reduce_base" else (2,)
    return lambda: getattr(torch.ops.npu, name)(
        _zeros(4, inner, dtype=dtype), _zeros(inner, 4, dtype=dtype), _group(), *ranks, **options
    )


def _of_gemms() -> Iterator[tuple[tuple[str, str], Maker]]:
    for name in ("npu_all_gather_base_mm", "npu_mm_reduce_scatter_base", "npu_mm_all_reduce_base"):
        yield (name, "dtype"), partial(_with, name, "dtype")
        yield (name, "ranks"), partial(_of_one_rank, name)
        yield (name, "inner"), partial(_with, name, "inner")
        yield (name, "comm_turn"), partial(_with, name, "comm_turn")
        yield (name, "bias"), _cannot  # it is looked at behind the ranks
    yield ("npu_mm_all_reduce_base", "operation"), _of_operation


def _with(name: str, key: str, value: Any) -> Callable[[], Any]:
    return _gemm(name, **{key: value})


def _of_one_rank(name: str, ranks: str) -> Callable[[], Any] | None:
    return _gemm(name) if ranks in ("1", "another") else None


def _of_operation(name: str) -> Callable[[], Any]:
    return _gemm("npu_mm_all_reduce_base", reduce_op="sum" if name == "sum" else "max")


def _cannot(_value: Any) -> None:
    """No call of one process comes to it."""


def _of_two(make: Callable[[], Callable[[], Any]], **given: Any) -> Maker:
    """0 and 1 of something that is there or not."""
    calls = {0: make(), 1: make(**given)}
    return calls.get


_FA: Final = "npu_fusion_attention"
_MAKERS: Final[dict[tuple[str, str], Maker]] = {
    (_FA, "dtype"): lambda dtype: _attention(dtype=dtype),
    (_FA, "layout"): _of_layout,
    (_FA, "mode"): _of_mode,
    (_FA, "packed_mode"): _of_packed_mode,
    (_FA, "mask_dtype"): lambda dtype: _attention(
        sparse_mode=1, atten_mask=_nothing_hidden(8, 8, dtype=dtype)
    ),
    (_FA, "batch"): _sized(lambda size: _attention(size, 1, 1, 1, heads=1)),
    (_FA, "sequence"): _sized(lambda size: _attention(1, 1, size, 1, heads=1)),
    (_FA, "heads"): _sized(lambda size: _attention(1, size, 4, 8, heads=size)),
    (_FA, "head_size"): _sized(lambda size: _attention(1, 1, 4, size, heads=1)),
    (_FA, "value_size"): _narrower,
    (_FA, "packed_tokens"): _sized(_packed),
    (_FA, "documents"): _sized(lambda size: _packed(2000, size)),
    (_FA, "prefixes"): _sized(
        lambda size: _attention(
            *(size, 2, 8, 8),
            sparse_mode=5,
            prefix=[2] * size,
            atten_mask=_nothing_hidden(size, 1, 8, 8),
        )
    ),
    (_FA, "sink"): _of_two(_attention, sink=lambda: _zeros(2, dtype="float32")),
    (_FA, "packed_softmax"): _of_two(_packed, softmax_layout="TND"),
    ("npu_rotary_mul", "dtype"): lambda dtype: _rotary(1, 2, 2, 8, dtype=dtype),
    ("npu_rotary_mul", "size"): _sized(lambda size: _rotary(1, 2, 2, size)),
    ("npu_rotary_mul", "product"): _sized(lambda size: _rotary(size, 2, 1, 8, mode="interleave")),
    ("npu_rotary_mul", "side"): _sized(lambda size: _rotary(1, 2, size, 8)),
    ("npu_scaled_masked_softmax", "dtype"): lambda dtype: _softmax(dtype=dtype),
    ("npu_scaled_masked_softmax", "side"): _sized(_softmax),
    ("npu_grouped_matmul", "dtype"): lambda dtype: _grouped(dtype=dtype),
    ("npu_grouped_matmul", "groups"): _grouped,
    ("npu_grouped_matmul", "inner"): lambda inner: _grouped(inner=inner),
    ("npu_grouped_matmul_add_", "dtype"): lambda dtype: _sums(dtype=dtype),
    ("npu_grouped_matmul_add_", "sum_dtype"): lambda dtype: _sums(sum_dtype=dtype),
    ("npu_grouped_matmul_add_", "groups"): _sums,
    ("npu_grouped_matmul_add_", "inner"): lambda inner: _sums(inner=inner),
    ("npu_rms_norm", "dtype"): lambda dtype: (
        lambda: torch.ops.npu.npu_rms_norm(_zeros(2, 8, dtype=dtype), _zeros(8, dtype=dtype))
    ),
    ("npu_swiglu", "dtype"): lambda dtype: (
        lambda: torch.ops.npu.npu_swiglu(_zeros(2, 8, dtype=dtype))
    ),
    ("npu_cross_entropy_loss", "rows"): _sized(
        lambda rows: (
            lambda: torch.ops.npu.npu_cross_entropy_loss(
                _zeros(rows, 2), _zeros(rows, dtype="int64")
            )
        )
    ),
    **dict(_of_gemms()),
}

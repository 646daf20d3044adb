"""Products fused with the collective beside them: CANN's MC2 operators.

Legend: p ranks, s rows of this rank, k summed size, m columns of this rank's factor.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist

from accel_bridge.backends.ascend.kernels import limits
from accel_bridge.kernels.comm_gemm_overlap import CommGemmOverlap

_OPERATORS: Final = {
    "gathered": "npu_all_gather_base_mm",
    "scattered": "npu_mm_reduce_scatter_base",
    "summed": "npu_mm_all_reduce_base",
}
#: Ranks that an Atlas A2 connects each with each; an A3 has more.
_RANKS: Final = (2, 4, 8)


def _communicator(group: Any) -> str:
    """HCCL's name of the group."""
    group = group or dist.group.WORLD
    name: str = group._get_backend(torch.device("npu")).get_hccl_comm_name(dist.get_rank())
    return name


def gathered(
    rows: torch.Tensor, factor: torch.Tensor, group: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :class:`CommGemmOverlap`."""
    out, whole = torch.ops.npu.npu_all_gather_base_mm(
        rows.contiguous(), factor, _communicator(group), dist.get_world_size(group)
    )[:2]
    return out, whole


def scattered(rows: torch.Tensor, factor: torch.Tensor, group: Any) -> torch.Tensor:
    """See :class:`CommGemmOverlap`."""
    out: torch.Tensor = torch.ops.npu.npu_mm_reduce_scatter_base(
        rows.contiguous(), factor, _communicator(group), dist.get_world_size(group)
    )
    return out


def summed(rows: torch.Tensor, factor: torch.Tensor, group: Any) -> torch.Tensor:
    """See :class:`CommGemmOverlap`."""
    out: torch.Tensor = torch.ops.npu.npu_mm_all_reduce_base(
        rows.contiguous(), factor, _communicator(group)
    )
    return out


def objection(name: str, rows: torch.Tensor, factor: torch.Tensor, group: Any) -> str | None:
    """The documented rule that a call breaks, or None."""
    operator = _OPERATORS[name]
    if rows.dtype not in limits.HALVES or factor.dtype != rows.dtype:
        return f"{operator}: float16 or bfloat16, not {rows.dtype} and {factor.dtype}"
    if (ranks := dist.get_world_size(group)) not in _RANKS:
        return f"{operator}: 2, 4 or 8 ranks, not {ranks}"
    if name == "summed":
        return None
    limit = limits.GATHERED_INNER if name == "gathered" else limits.SCATTERED_INNER
    return limit.objection(rows.shape[1])


PRODUCTS: Final = CommGemmOverlap(gathered, scattered, summed, objection)

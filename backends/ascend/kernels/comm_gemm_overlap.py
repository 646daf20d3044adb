"""GEMMs fused with the collective beside them: CANN's MC2 operators.

Legend: p ranks, s rows of this rank, k summed size, m columns of this rank's factor.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist

from accel_bridge.backends.ascend import limits
from accel_bridge.kernels.comm_gemm_overlap import CommGemmOverlap

_OPERATORS: Final = {
    "gathered": "npu_all_gather_base_mm",
    "scattered": "npu_mm_reduce_scatter_base",
    "summed": "npu_mm_all_reduce_base",
}


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
    if factor.dtype != rows.dtype:
        return f"{operator}: one dtype, not {rows.dtype} and {factor.dtype}"
    return limits.here().objection(
        operator,
        ("dtype", rows.dtype),
        ("ranks", dist.get_world_size(group)),
        ("inner", rows.shape[-1]),
    )


GEMMS: Final = CommGemmOverlap(gathered, scattered, summed, objection)

"""Communication-GEMM overlap: GEMMs with a sharded weight, fused with the collective beside them.

No contract: a device may have them, and the collective and the GEMM one after the other are the
reference. With them a linear layer overlaps its communication with its own GEMM.

Legend: p ranks, s rows of this rank, k summed size, m columns of this rank's shard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

#: Key of :class:`OverlapChoice` for ``Host.once``.
CHOICE: Final = "comm-gemm-overlap"


@dataclass
class OverlapChoice:
    """Whether linear layers use the device's fused GEMMs; set by the program's arguments."""

    fused: bool = False


@dataclass(frozen=True, slots=True)
class CommGemmOverlap:
    """A device's operators; each takes rows, a shard [k, m] of the weight and the ranks' group.

    :param gathered: rows [s, k] of each rank -> (all rows [p s, k] times the shard, all rows).
    :param scattered: rows [p s, k] -> this rank's rows [s, m] of the sum over ranks.
    :param summed: rows [s, k] -> the sum over ranks [s, m].
    :param objection: takes a name of the three, and the same; why a call is outside its range.
    """

    gathered: Callable[[torch.Tensor, torch.Tensor, Any], tuple[torch.Tensor, torch.Tensor]]
    scattered: Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]
    summed: Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]
    objection: Callable[[str, torch.Tensor, torch.Tensor, Any], str | None]

    def linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        group: Any,
        *,
        row: bool,
        sequence: bool,
    ) -> torch.Tensor:
        """A layer's forward GEMM with its communication; the bias is added afterwards.

        :param x: [.., k], this rank's; a column's is a part of the sequence.
        :param weight: [m, k], this rank's.
        :param bias: [m] or None.
        :param row: the weight's input is split, else its output.
        :param sequence: a row's output is a part of the sequence, not the whole.
        :returns: [.., m].
        """
        rows, shard = x.reshape(-1, x.shape[-1]), weight.t()
        if not row:
            out = self.gathered(rows, shard, group)[0]
        else:
            out = (self.scattered if sequence else self.summed)(rows, shard, group)
        if bias is not None:
            out = out + bias
        return out.view(-1, *x.shape[1:-1], weight.shape[0])


def gathered_reference(
    rows: torch.Tensor, shard: torch.Tensor, group: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``gathered`` means: gather, then multiply."""
    whole = rows.new_empty((rows.shape[0] * dist.get_world_size(group), rows.shape[1]))
    dist.all_gather_into_tensor(whole, rows.contiguous(), group=group)
    return whole @ shard, whole


def scattered_reference(rows: torch.Tensor, shard: torch.Tensor, group: Any) -> torch.Tensor:
    """What ``scattered`` means: multiply, then sum and scatter."""
    gemm = rows @ shard
    part = gemm.new_empty((gemm.shape[0] // dist.get_world_size(group), gemm.shape[1]))
    dist.reduce_scatter_tensor(part, gemm, group=group)
    return part


def summed_reference(rows: torch.Tensor, shard: torch.Tensor, group: Any) -> torch.Tensor:
    """What ``summed`` means: multiply, then sum."""
    gemm = rows @ shard
    dist.all_reduce(gemm, group=group)
    return gemm


def chosen_overlap(host: Any) -> CommGemmOverlap | None:
    """The backend's, with the reference outside of their range; None if nobody asked for them.

    :param host: the active bridge's.
    """
    if not host.once(CHOICE, OverlapChoice).fused:
        return None
    overlap: CommGemmOverlap | None = host.once("comm-gemm-overlap-checked", lambda: _checked(host))
    return overlap


def _checked(host: Any) -> CommGemmOverlap | None:
    own = host.backend.comm_gemm_overlap()
    return None if own is None else checked(own, host.say_once)


def checked(overlap: CommGemmOverlap, say: Callable[[str], None]) -> CommGemmOverlap:
    """``overlap``, with the reference where a call is outside of their range.

    :param say: shows each reason, once.
    """

    def within(name: str, rows: torch.Tensor, shard: torch.Tensor, group: Any) -> bool:
        found = overlap.objection(name, rows, shard, group)
        if found is not None:
            say(f"the GEMM and its communication run one after the other: {found}")
        return found is None

    def gathered(
        rows: torch.Tensor, shard: torch.Tensor, group: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        serves = within("gathered", rows, shard, group)
        return (overlap.gathered if serves else gathered_reference)(rows, shard, group)

    def scattered(rows: torch.Tensor, shard: torch.Tensor, group: Any) -> torch.Tensor:
        serves = within("scattered", rows, shard, group)
        return (overlap.scattered if serves else scattered_reference)(rows, shard, group)

    def summed(rows: torch.Tensor, shard: torch.Tensor, group: Any) -> torch.Tensor:
        serves = within("summed", rows, shard, group)
        return (overlap.summed if serves else summed_reference)(rows, shard, group)

    return CommGemmOverlap(gathered, scattered, summed, overlap.objection)

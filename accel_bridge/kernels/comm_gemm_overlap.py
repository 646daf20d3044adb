"""Products with a weight that is spread over ranks, fused with the collective beside them.

No contract: a device may have them, and the collective and the product one after the other are the
reference. With them a linear layer overlaps its communication with its own product.

Legend: p ranks, s rows of this rank, k summed size, m columns of this rank's factor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

#: Key of :class:`ProductChoice` for ``Host.once``.
CHOICE: Final = "spread-products"


@dataclass
class ProductChoice:
    """Whether linear layers use the device's fused products; set by the program's arguments."""

    fused: bool = False


@dataclass(frozen=True, slots=True)
class CommGemmOverlap:
    """A device's operators; each takes rows, a factor [k, m] and the ranks' group.

    :param gathered: rows [s, k] of each rank -> (all rows [p s, k] times the factor, all rows).
    :param scattered: rows [p s, k] -> this rank's rows [s, m] of the sum of the ranks' products.
    :param summed: rows [s, k] -> the sum of the ranks' products [s, m].
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
        """A layer's forward product with its communication; the bias is added afterwards.

        :param x: [.., k], this rank's; a column's is a part of the sequence.
        :param weight: [m, k], this rank's.
        :param bias: [m] or None.
        :param row: the weight's input is split, else its output.
        :param sequence: a row's output is a part of the sequence, not the whole.
        :returns: [.., m].
        """
        rows, factor = x.reshape(-1, x.shape[-1]), weight.t()
        if not row:
            out = self.gathered(rows, factor, group)[0]
        else:
            out = (self.scattered if sequence else self.summed)(rows, factor, group)
        if bias is not None:
            out = out + bias
        return out.view(-1, *x.shape[1:-1], weight.shape[0])


def gathered_reference(
    rows: torch.Tensor, factor: torch.Tensor, group: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``gathered`` means: gather, then multiply."""
    whole = rows.new_empty((rows.shape[0] * dist.get_world_size(group), rows.shape[1]))
    dist.all_gather_into_tensor(whole, rows.contiguous(), group=group)
    return whole @ factor, whole


def scattered_reference(rows: torch.Tensor, factor: torch.Tensor, group: Any) -> torch.Tensor:
    """What ``scattered`` means: multiply, then sum and scatter."""
    product = rows @ factor
    part = product.new_empty((product.shape[0] // dist.get_world_size(group), product.shape[1]))
    dist.reduce_scatter_tensor(part, product, group=group)
    return part


def summed_reference(rows: torch.Tensor, factor: torch.Tensor, group: Any) -> torch.Tensor:
    """What ``summed`` means: multiply, then sum."""
    product = rows @ factor
    dist.all_reduce(product, group=group)
    return product


def chosen_overlap(host: Any) -> CommGemmOverlap | None:
    """The backend's, with the reference outside of their range; None if nobody asked for them.

    :param host: the active bridge's.
    """
    if not host.once(CHOICE, ProductChoice).fused:
        return None
    products: CommGemmOverlap | None = host.once("spread-products-checked", lambda: _checked(host))
    return products


def _checked(host: Any) -> CommGemmOverlap | None:
    own = host.backend.comm_gemm_overlap()
    return None if own is None else checked(own, host.say_once)


def checked(products: CommGemmOverlap, say: Callable[[str], None]) -> CommGemmOverlap:
    """``products``, with the reference where a call is outside of their range.

    :param say: shows each reason, once.
    """

    def within(name: str, rows: torch.Tensor, factor: torch.Tensor, group: Any) -> bool:
        found = products.objection(name, rows, factor, group)
        if found is not None:
            say(f"the product and its communication run one after the other: {found}")
        return found is None

    def gathered(
        rows: torch.Tensor, factor: torch.Tensor, group: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        serves = within("gathered", rows, factor, group)
        return (products.gathered if serves else gathered_reference)(rows, factor, group)

    def scattered(rows: torch.Tensor, factor: torch.Tensor, group: Any) -> torch.Tensor:
        serves = within("scattered", rows, factor, group)
        return (products.scattered if serves else scattered_reference)(rows, factor, group)

    def summed(rows: torch.Tensor, factor: torch.Tensor, group: Any) -> torch.Tensor:
        serves = within("summed", rows, factor, group)
        return (products.summed if serves else summed_reference)(rows, factor, group)

    return CommGemmOverlap(gathered, scattered, summed, products.objection)

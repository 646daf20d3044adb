"""Several sequences in a row of tokens, with pipeline stages and context-parallel ranks.

Legend: b micro batch, s sequence, h hidden size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import DISTRIBUTION, megatron_arguments, megatron_patch
from accel_bridge.patching import Kind, PatchContext, around
from accel_bridge.patching.host import ArgumentError, written


def packs_sequences(args: Any) -> bool:
    """Whether rows of tokens hold several sequences, by Megatron's arguments."""
    names = ("dataloader_inter_document_masking", "sft")
    return any(getattr(args, name, False) for name in names)


def _schedule(_context: PatchContext, call: Callable[[], Any]) -> Callable[..., Any]:
    """Upstream's schedule; with packed sequences, for the one sequence that the rows form."""
    schedule: Callable[..., Any] = call()
    if not packs_sequences(megatron_arguments()):
        return schedule

    @functools.wraps(schedule)
    def packed_schedule(*, seq_length: int, micro_batch_size: int, **rest: Any) -> Any:
        """The schedule for [b * s, 1, h]; it uses both sizes for shapes between stages only."""
        return schedule(seq_length=seq_length * micro_batch_size, micro_batch_size=1, **rest)

    return packed_schedule


def _partition(
    _context: PatchContext, call: Callable[..., Any], batch: Any, cp_group: Any, by_row: bool
) -> Any:
    """Upstream's; a rank gets its parts of each document, as its layers take them."""
    boundaries = batch.get("cu_seqlens")
    if by_row and boundaries is not None:
        ranks = _size(cp_group)
        if ranks > 1:
            check_divisible(boundaries, ranks)
            return call(use_per_sequence_balancing=False)
    return call()


def _size(group: Any) -> int:
    if group is None:
        from megatron.core.parallel_state import get_context_parallel_group

        group = get_context_parallel_group()
    size: int = group.size()
    return size


def check_divisible(boundaries: Any, ranks: int) -> None:
    """
    :param boundaries: [1, documents + 1], where documents begin, and the last one's end.
    :raises ArgumentError: a document is not two equal parts for each context-parallel rank.
    """
    lengths = boundaries.flatten().diff()
    uneven = lengths[lengths % (2 * ranks) != 0]
    if uneven.numel():
        raise ArgumentError(
            "Context-parallel ranks cannot divide a document.",
            evidence=f"a document, or what a row has of it, is {int(uneven[0])} tokens long; each "
            f"of {ranks} ranks computes with two equal parts",
            next=f"make every document and --seq-length a multiple of {2 * ranks} tokens, or train "
            f"without {written('context_parallel_size', ranks)} or without "
            "--dataloader-inter-document-masking",
        )


PATCHES = (
    megatron_patch(
        id="packed-stages",
        target="megatron.core.pipeline_parallel.schedules:get_forward_backward_func",
        kind=Kind.WRAP,
        make=around(_schedule),
        why="the rows of a micro batch of packed sequences become one sequence [b * s, 1, h], but "
        "stages expect [s, b, h] from one another",
        removed_when="upstream's schedules know the shape of packed micro batches",
        loses="packed sequences with pipeline stages and a micro batch above 1 hit a shape error",
    ),
    megatron_patch(
        id="packed-context",
        target="megatron.core.utils:get_batch_on_this_cp_rank",
        kind=Kind.WRAP,
        make=around(_partition),
        why="with --dataloader-inter-document-masking a context-parallel rank gets parts of the "
        "whole row of tokens, but attention, state-space and delta layers take them for parts of "
        "each document",
        removed_when="upstream's layers and its batches divide documents in one way",
        loses="trainings with --dataloader-inter-document-masking and --context-parallel-size "
        "above 1 mix up their tokens and learn something else",
        requires=f"{DISTRIBUTION}>=0.19",
        elsewhere="before 0.19 Megatron does not mask documents so",
        uses=("batch", "cp_group", "use_per_sequence_balancing"),
    ),
)

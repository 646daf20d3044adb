"""Several sequences in a row of tokens, with pipeline stages.

Legend: b micro batch, s sequence, h hidden size.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


def packs_sequences(args: Any) -> bool:
    """Whether rows of tokens hold several sequences, by Megatron's arguments."""
    names = ("dataloader_inter_document_masking", "sft")
    return any(getattr(args, name, False) for name in names)


def _arguments() -> Any:
    """Megatron's arguments; None where only megatron.core is used."""
    loaded = sys.modules.get("megatron.training.global_vars")
    return getattr(loaded, "_GLOBAL_ARGS", None)


def _make(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original

    def get_forward_backward_func(*args: Any, **options: Any) -> Callable[..., Any]:
        """Upstream's schedule; with packed sequences, for the one sequence that the rows form."""
        schedule: Callable[..., Any] = upstream(*args, **options)
        if not packs_sequences(_arguments()):
            return schedule

        @functools.wraps(schedule)
        def packed_schedule(*, seq_length: int, micro_batch_size: int, **rest: Any) -> Any:
            """The schedule for [b * s, 1, h]; it uses both sizes for shapes between stages only."""
            return schedule(seq_length=seq_length * micro_batch_size, micro_batch_size=1, **rest)

        return packed_schedule

    return get_forward_backward_func


PATCHES = (
    megatron_patch(
        id="packed-stages",
        target="megatron.core.pipeline_parallel.schedules:get_forward_backward_func",
        kind=Kind.WRAP,
        make=_make,
        why="the rows of a micro batch of packed sequences become one sequence [b * s, 1, h], but "
        "stages expect [s, b, h] from one another",
        removed_when="upstream's schedules know the shape of packed micro batches",
        loses="packed sequences with pipeline stages and a micro batch above 1 hit a shape error",
    ),
)

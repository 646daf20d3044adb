"""The job's number of micro-batches, and models in lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.nn.parallel import DistributedDataParallel

from ..microbatches import NumMicroBatchesCalculator, build_num_microbatches_calculator

_calculator: NumMicroBatchesCalculator | None = None


def setup_microbatch_calculator(
    rank: int,
    rampup_batch_size: Sequence[int] | None,
    global_batch_size: int,
    micro_batch_size: int,
    data_parallel_size: int,
) -> None:
    """Make the job's calculator, as :func:`build_num_microbatches_calculator` does.

    :raises AssertionError: it is there.
    """
    assert _calculator is None, "num microbatches calculator is already initialized."
    _reconfigure_microbatch_calculator(
        rank, rampup_batch_size, global_batch_size, micro_batch_size, data_parallel_size
    )


def _reconfigure_microbatch_calculator(
    rank: int,
    rampup_batch_size: Sequence[int] | None,
    global_batch_size: int,
    micro_batch_size: int,
    data_parallel_size: int,
) -> None:
    """Make the job's calculator anew."""
    global _calculator
    _calculator = build_num_microbatches_calculator(
        rank, rampup_batch_size, global_batch_size, micro_batch_size, data_parallel_size
    )


def _current() -> NumMicroBatchesCalculator:
    assert _calculator is not None, "num microbatches calculator is not initialized."
    return _calculator


def get_micro_batch_size() -> int:
    """Samples of a micro-batch."""
    return _current().micro_batch_size


def get_num_microbatches() -> int:
    """Micro-batches of the current step."""
    return _current().get()


def get_current_global_batch_size() -> int:
    """Samples of the current step."""
    return _current().get_current_global_batch_size()


def update_num_microbatches(consumed_samples: int, consistency_check: bool = True) -> None:
    """Go on to the step behind ``consumed_samples``."""
    _current().update(consumed_samples, consistency_check)


def get_kth_microbatch(batch: Any, k: int) -> Any:
    """Samples of the ``k``-th micro-batch of each tensor of a list; anything else as it is."""
    if not isinstance(batch, (list, tuple)):
        return batch
    size = get_micro_batch_size()
    assert batch
    assert all(len(one) >= (k + 1) * size for one in batch)
    return [one[k * size : (k + 1) * size] for one in batch]


def listify_model(model: torch.nn.Module | list[torch.nn.Module]) -> list[torch.nn.Module]:
    """The model in a list, if it is not one."""
    return model if isinstance(model, list) else [model]


def unwrap_model(
    model: Any, module_instances: type | tuple[type, ...] = (DistributedDataParallel,)
) -> Any:
    """The model, or list of models, below wrappers of the given classes."""
    found = []
    for one in listify_model(model):
        while isinstance(one, module_instances):
            one = cast(Any, one).module
        found.append(one)
    return found if isinstance(model, list) else found[0]

"""Numbers of micro-batches, constant or growing with the batch size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from .log_util import get_transformer_logger

_logger = get_transformer_logger(__name__)


class NumMicroBatchesCalculator(ABC):
    """How many micro-batches a step of the optimizer takes."""

    num_micro_batches: int
    current_global_batch_size: int
    micro_batch_size: int

    def get(self) -> int:
        """Micro-batches of the current step."""
        return self.num_micro_batches

    def get_current_global_batch_size(self) -> int:
        """Samples of the current step."""
        return self.current_global_batch_size

    @abstractmethod
    def update(self, consumed_samples: int, consistency_check: bool) -> None:
        """Go on to the step behind ``consumed_samples``."""


class ConstantNumMicroBatches(NumMicroBatchesCalculator):
    """The same number in each step.

    :raises AssertionError: the batch is not a whole number of micro-batches of all ranks.
    """

    def __init__(
        self, global_batch_size: int, micro_batch_size: int, data_parallel_size: int
    ) -> None:
        together = micro_batch_size * data_parallel_size
        assert global_batch_size % together == 0, (
            f"global batch size {global_batch_size} is no multiple of micro batch size "
            f"{micro_batch_size} times data parallel size {data_parallel_size}"
        )
        self.num_micro_batches = global_batch_size // together
        assert self.num_micro_batches >= 1
        self.current_global_batch_size = global_batch_size
        self.micro_batch_size = micro_batch_size

    def update(self, consumed_samples: int, consistency_check: bool) -> None:
        pass


class RampupBatchsizeNumMicroBatches(NumMicroBatchesCalculator):
    """A batch size that grows in equal steps, over ``ramup_samples`` samples.

    :raises AssertionError: the growth is no multiple of ``batch_size_increment``.
    """

    def __init__(
        self,
        start_batch_size: int,
        batch_size_increment: int,
        ramup_samples: int,
        global_batch_size: int,
        micro_batch_size: int,
        data_parallel_size: int,
    ) -> None:
        growth = global_batch_size - start_batch_size
        assert min(micro_batch_size * data_parallel_size, start_batch_size) > 0
        assert growth >= 0
        assert batch_size_increment > 0
        assert ramup_samples >= 0
        assert growth % batch_size_increment == 0, (
            f"the growth of the batch size, {growth}, is no multiple of {batch_size_increment}"
        )
        self.micro_batch_size = micro_batch_size
        self.data_parallel_size = data_parallel_size
        self.micro_batch_times_data_parallel_size = micro_batch_size * data_parallel_size
        self.start_batch_size = start_batch_size
        self.global_batch_size = global_batch_size
        self.batch_size_increment = batch_size_increment
        self.ramup_samples = ramup_samples
        self.rampup_samples_per_increment = ramup_samples / (growth // batch_size_increment)
        self.update(0, False)

    def update(self, consumed_samples: int, consistency_check: bool) -> None:
        """Go on; ``consistency_check`` asserts a whole number of micro-batches of all ranks."""
        self.current_global_batch_size = self.global_batch_size
        if consumed_samples <= self.ramup_samples:
            steps = int(consumed_samples / self.rampup_samples_per_increment)
            self.current_global_batch_size = (
                self.start_batch_size + steps * self.batch_size_increment
            )
            assert self.current_global_batch_size <= self.global_batch_size
        together = self.micro_batch_times_data_parallel_size
        if consistency_check:
            assert self.current_global_batch_size % together == 0, (
                f"current global batch size {self.current_global_batch_size} is no multiple of "
                f"{together}, the micro batch size times the data parallel size"
            )
        self.num_micro_batches = self.current_global_batch_size // together


def build_num_microbatches_calculator(
    rank: int,
    rampup_batch_size: Sequence[int] | None,
    global_batch_size: int,
    micro_batch_size: int,
    data_parallel_size: int,
) -> NumMicroBatchesCalculator:
    """The calculator of a job.

    :param rank: 0 logs what was chosen.
    :param rampup_batch_size: first batch size, increment and samples until the last one; None for a
        constant size.
    """
    found: NumMicroBatchesCalculator
    sizes = global_batch_size, micro_batch_size, data_parallel_size
    if rampup_batch_size is None:
        found = ConstantNumMicroBatches(*sizes)
    else:
        assert len(rampup_batch_size) == 3, "first batch size, increment and samples are expected"
        first, increment, samples = map(int, rampup_batch_size)
        found = RampupBatchsizeNumMicroBatches(first, increment, samples, *sizes)
    if rank == 0:
        _logger.info("%s: %s micro-batches at first", type(found).__name__, found.get())
    return found

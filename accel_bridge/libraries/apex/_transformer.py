"""Apex's functions for transformers: enumerations, rotary embedding, micro-batches.

Legend: s sequence, b batch, n heads, d head size, r rotated size, t tokens of all sequences.
Source of the enumerations: apex/transformer/enums.py, as of 25.09.
"""

from __future__ import annotations

import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, cast

import torch
from torch.nn.parallel import DistributedDataParallel

from accel_bridge.kernels import ROTARY, TensorCache
from accel_bridge.kernels.active import kernel


class LayerType(enum.Enum):
    """Which half of a model a layer belongs to."""

    encoder = 1
    decoder = 2


class AttnType(enum.Enum):
    """What attention looks at."""

    self_attn = 1
    cross_attn = 2


class AttnMaskType(enum.Enum):
    """What attention does not see."""

    padding = 1
    causal = 2


class ModelType(enum.Enum):
    """Whether a model has one half or both."""

    encoder_or_decoder = 1
    encoder_and_decoder = 2


#: Cosines and sines of the angles that every layer of a step uses.
_TURNS: Final[TensorCache[tuple[torch.Tensor, torch.Tensor]]] = TensorCache()


def fused_apply_rotary_pos_emb(
    t: torch.Tensor, freqs: torch.Tensor, transpose_output_memory: bool = False
) -> torch.Tensor:
    """Turn each pair (i, i + r/2) by its angle.

    :param t: [s, b, n, d], any float dtype.
    :param freqs: [at least s, 1, 1, r], float32 angles.
    :param transpose_output_memory: lay the result out as [b, s, n, d].
    :returns: [s, b, n, d] in the dtype of ``t``.
    """
    cos, sin = _TURNS.get((freqs,), None, lambda: (freqs.cos(), freqs.sin()))
    rotated = kernel(ROTARY)(t, cos[: t.shape[0]], sin[: t.shape[0]])
    if not transpose_output_memory:
        return rotated
    return rotated.transpose(0, 1).contiguous().transpose(0, 1)


def fused_apply_rotary_pos_emb_thd(
    t: torch.Tensor, cu_seqlens: torch.Tensor, freqs: torch.Tensor
) -> torch.Tensor:
    """The same for sequences one after another, each of which starts at position 0.

    :param t: [t, n, d].
    :param cu_seqlens: [sequences + 1], int32: where each begins.
    :param freqs: [at least the longest sequence, 1, 1, r], float32 angles.
    :returns: [t, n, d] in the dtype of ``t``.
    """

    def turns() -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(t.shape[0], device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        sequence = torch.searchsorted(cu_seqlens, rows, right=True) - 1
        angles = freqs[:, 0].index_select(0, rows - cu_seqlens[sequence])
        return angles.cos(), angles.sin()

    cos, sin = _TURNS.get((freqs, cu_seqlens), t.shape[0], turns)
    return kernel(ROTARY)(t, cos, sin)


def get_transformer_logger(name: str) -> logging.Logger:
    """The logger of a module or file ``name``."""
    return logging.getLogger(name.rpartition(".")[0] or name)


def set_logging_level(verbosity: int | str) -> None:
    """Set the level of all of Apex's loggers."""
    logging.getLogger("apex").setLevel(verbosity)


_logger = get_transformer_logger("apex.transformer.microbatches")


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

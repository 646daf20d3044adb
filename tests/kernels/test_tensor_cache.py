"""Answers about tensors: kept while they hold, and no longer than their tensors."""

from __future__ import annotations

import weakref

import pytest
import torch

from accel_bridge.backends.ascend.kernels import attention as ascend
from accel_bridge.backends.cuda.kernels import attention as cuda
from accel_bridge.kernels import AttentionMask, AttentionOptions, TensorCache


class Answer:
    """Something that can be referred to weakly."""


def test_an_answer_is_kept_until_something_changes() -> None:
    cache: TensorCache[Answer] = TensorCache()
    first, second = torch.zeros(3), torch.zeros(3)
    answer = cache.get((first, second), 1, Answer)
    assert cache.get((first, second), 1, Answer) is answer
    second[0] = 1
    written = cache.get((first, second), 1, Answer)
    assert written is not answer
    assert cache.get((first, second.clone()), 1, Answer) is not written
    unlike = cache.get((first, None), 1, Answer)
    assert cache.get((first, None), 1, Answer) is unlike
    assert cache.get((first, None), 2, Answer) is not unlike
    assert cache.get((first,), 2, Answer) is not cache.get((first, None), 2, Answer)


def test_another_tensor_in_a_dead_ones_place_is_not_the_same() -> None:
    cache: TensorCache[Answer] = TensorCache()
    first = torch.zeros(3)
    known = cache.get((first, torch.zeros(2)), 1, Answer)
    assert all(cache.get((first, torch.zeros(2)), 1, Answer) is not known for _ in range(20))


def test_nothing_is_kept_of_tensors_that_count_no_writes() -> None:
    cache: TensorCache[Answer] = TensorCache()
    with torch.inference_mode():
        lengths = torch.zeros(3)
    assert cache.get((lengths,), 1, Answer) is not cache.get((lengths,), 1, Answer)


def packed(
    lengths: torch.Tensor, keys: torch.Tensor | None, mask: AttentionMask
) -> AttentionOptions:
    return AttentionOptions(layout="TND", cu_seqlens_q=lengths, cu_seqlens_kv=keys, mask=mask)


def packing(lengths: torch.Tensor, keys: torch.Tensor | None, mask: AttentionMask) -> object:
    rows = torch.zeros(5, 1, 8)
    return cuda._packing(rows, rows, lengths, packed(lengths, keys, mask))


def sequence_lengths(
    lengths: torch.Tensor, keys: torch.Tensor | None, mask: AttentionMask
) -> object:
    rows = torch.zeros(5, 1, 8)
    return ascend._sequence_lengths(rows, rows, packed(lengths, keys, mask))


@pytest.mark.parametrize("read", [packing, sequence_lengths])
@pytest.mark.parametrize("keys", ["queries'", "own", "the other way round", "none"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_lengths_die_with_their_batch(read: object, keys: str, dtype: torch.dtype) -> None:
    """Megatron hands the same tensor over twice."""
    assert callable(read)
    lengths = torch.tensor([0, 2, 5], dtype=dtype)
    others = {"queries'": lengths, "none": None}.get(keys, torch.tensor([0, 1, 5], dtype=dtype))
    answer = read(lengths, others, AttentionMask())
    assert read(lengths, others, AttentionMask()) is answer
    if keys == "the other way round":
        read(others, lengths, AttentionMask())
    alive = [weakref.ref(tensor) for tensor in (lengths, others) if tensor is not None]
    del lengths, others
    assert [reference() for reference in alive] == [None] * len(alive)

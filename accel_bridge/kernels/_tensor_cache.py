"""Results computed from tensors that every layer of a step needs again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Known(Generic[Answer]):
    """An answer with what it was computed from."""

    others: tuple[TensorWeakRef | None, ...]
    state: Hashable
    answer: Answer


class TensorCache(Generic[Answer]):
    """The last answer about each tensor, recomputed after a tensor was written to.

    Reading the lengths of packed sequences waits for the device, and cosines are passes over
    memory; every layer needs the same ones. An answer lives as long as the first tensor, so it
    must not hold any of the tensors it is about: none of them would ever be freed.
    """

    def __init__(self) -> None:
        self._known = WeakIdKeyDictionary()

    def get(
        self,
        tensors: Sequence[torch.Tensor | None],
        options: Hashable,
        compute: Callable[[], Answer],
    ) -> Answer:
        """What ``compute()`` gave for these very tensors, unchanged since, and equal options.

        :param tensors: the first is not None. Inference tensors do not count writes, so nothing is
            kept for them.
        """
        if any(tensor is not None and tensor.is_inference() for tensor in tensors):
            return compute()
        first, *others = tensors
        versions = tuple(None if tensor is None else tensor._version for tensor in tensors)
        state = (versions, options)
        known: _Known[Answer] | None = self._known.get(first)
        if known is None or known.state != state or not _same(known.others, others):
            references = tuple(None if other is None else TensorWeakRef(other) for other in others)
            known = self._known[first] = _Known(references, state, compute())
        return known.answer


def _same(
    references: tuple[TensorWeakRef | None, ...], tensors: Sequence[torch.Tensor | None]
) -> bool:
    """Whether the references are to exactly these tensors, in this order."""
    return all(
        (None if reference is None else reference()) is tensor
        for reference, tensor in zip(references, tensors, strict=True)
    )

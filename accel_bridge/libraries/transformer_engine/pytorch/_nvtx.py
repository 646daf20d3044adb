"""Named ranges for a profiler, if ``NVTE_NVTX_ENABLED`` asks for them."""

from __future__ import annotations

import functools
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

_open: Final[list[str]] = []


@functools.cache
def _nvtx_enabled() -> bool:
    return bool(int(os.getenv("NVTE_NVTX_ENABLED", "0")))


def get_nvtx_range_context(msg: str) -> AbstractContextManager[Any]:
    """A range named ``msg``."""
    if not _nvtx_enabled():
        return nullcontext()
    named: AbstractContextManager[Any] = torch.cuda.nvtx.range(msg)
    return named


def nvtx_range_push(msg: str) -> None:
    """Open a range."""
    if _nvtx_enabled():
        _open.append(msg)
        torch.cuda.nvtx.range_push(msg)


def nvtx_range_pop(msg: str | None = None) -> None:
    """Close the range that was opened last.

    :raises RuntimeError: none is open.
    :raises ValueError: it is not the one named ``msg``.
    """
    if not _nvtx_enabled():
        return
    if not _open:
        raise RuntimeError("Attempted to pop NVTX range from empty stack")
    last = _open.pop()
    if msg is not None and msg != last:
        raise ValueError(
            f"Attempted to pop NVTX range from stack with msg={msg}, but last range has msg={last}"
        )
    torch.cuda.nvtx.range_pop()

"""Profilers: NVIDIA's annotations and switches, and the CUDA activity of torch's own profiler."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.autograd.profiler

from accel_bridge.device._context import Context


@contextlib.contextmanager
def _range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    yield


#: ``torch.cuda.nvtx``, with nobody to read the annotations.
NVTX: Final[dict[str, Callable[..., Any]]] = {
    "mark": lambda msg: None,
    "range": _range,
    "range_end": lambda range_id: None,
    "range_pop": lambda: 0,
    "range_push": lambda msg: 0,
    "range_start": lambda msg: 0,
}

#: ``torch.cuda.profiler``, with nothing to switch.
PROFILER: Final[dict[str, Callable[..., Any]]] = {
    "start": lambda: None,
    "stop": lambda: None,
}


def redirect_profiler(context: Context) -> None:
    """Silence NVIDIA's profiler and let torch's record the host."""
    for module, answers in ((torch.cuda.nvtx, NVTX), (torch.cuda.profiler, PROFILER)):
        for name, answer in answers.items():
            context.answer(module, name, answer)
    context.wrap(torch.autograd.profiler.profile, "__init__", _without_cuda)


def _without_cuda(original: Callable[..., None]) -> Callable[..., None]:
    """``torch.profiler`` ends up here too, with its translation of ``ProfilerActivity.CUDA``."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_device") == "cuda":
            kwargs["use_device"] = None
        kwargs.pop("use_cuda", None)
        original(self, *args, **kwargs)

    return __init__

"""Compiled functions, and functions that stay outside of compilation.

Source of the names: transformer_engine/pytorch/jit.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from accel_bridge.libraries.serving import features

P = ParamSpec("P")
R = TypeVar("R")


def lazy_compile(func: Callable[P, R]) -> Callable[P, R]:
    """``func`` compiled by torch at its first call; as it is on devices without a compiler."""
    compiled: Callable[P, R] | None = None

    @functools.wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal compiled
        if compiled is None:
            compiled = torch.compile(func) if features().torch_compile else func
        return compiled(*args, **kwargs)

    return wrapper


def _as_it_is(func: Callable[P, R]) -> Callable[P, R]:
    return func


_COMPILES = bool(int(os.getenv("NVTE_TORCH_COMPILE", "1")))

#: Decorator of element-wise functions; ``NVTE_TORCH_COMPILE=0`` leaves them as they are.
jit_fuser = lazy_compile if _COMPILES else _as_it_is
dropout_fuser = jit_fuser


def no_torch_dynamo(recursive: bool = True) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: ``torch.compile`` of a caller leaves this function out.

    :param recursive: leave out what the function calls as well.
    """

    def decorator(function: Callable[P, R]) -> Callable[P, R]:
        left_out: Callable[P, R] | None = None

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            # torch's own decorator imports its compiler, and takes time in every call.
            if not torch.compiler.is_dynamo_compiling():
                return function(*args, **kwargs)
            nonlocal left_out
            if left_out is None:
                left_out = torch.compiler.disable(function, recursive=recursive)
            return left_out(*args, **kwargs)

        return wrapper

    return decorator


def set_jit_fusion_options() -> None:
    """Nothing: torch 2 has no such options."""

"""Finds neighbouring operations of given types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..op import FusibleOperation

Types = type | tuple[type, ...]


def replace_runs(
    ops: Sequence[FusibleOperation],
    types: Sequence[Types],
    make: Callable[..., FusibleOperation | None],
) -> list[FusibleOperation]:
    """``ops`` with each run of ``types`` replaced by what ``make`` returns for it.

    :param make: takes the run's operations; None leaves them alone.
    """
    out: list[FusibleOperation] = []
    rest: list[Any] = list(ops)
    while rest:
        run = rest[: len(types)]
        fits = len(run) == len(types)
        fits = fits and all(isinstance(op, kind) for op, kind in zip(run, types, strict=True))
        fused = make(*run) if fits else None
        if fused is None:
            out.append(rest.pop(0))
        else:
            out.append(fused)
            del rest[: len(types)]
    return out

"""Hints of Megatron that are not true here: what they call slow or missing, the bridge serves."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, TextIO

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext, around

#: How the hint ends that 0.12 to 0.15 print and 0.16 warns of.
SOFTMAX: Final = "We default back to unfused kernel invocations."


def _without_hint(_context: PatchContext, call: Callable[[], Any]) -> Any:
    with _silenced(SOFTMAX):
        return call()


@contextlib.contextmanager
def _silenced(hint: str) -> Iterator[None]:
    """Neither print nor warn of anything that ends so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f".*{hint}")
        with contextlib.redirect_stdout(_Without(hint, sys.stdout)):
            yield


class _Without:
    """A stream that leaves out what ``print`` writes with the hint, and the end of that line."""

    def __init__(self, hint: str, stream: TextIO) -> None:
        self._hint = hint
        self._stream = stream
        self._left_out = False

    def write(self, text: str) -> int:
        """Pass on all but the hint."""
        if self._hint in text:
            self._left_out = True
        elif self._left_out and text == "\n":
            self._left_out = False
        else:
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


PATCHES = (
    megatron_patch(
        id="softmax-hint",
        target="megatron.training.initialize:_compile_dependencies",
        requires="megatron-core>=0.12,<0.17",
        elsewhere="since 0.17 Megatron gives no such hint",
        kind=Kind.WRAP,
        make=around(_without_hint),
        why="Megatron says that it falls back to an unfused softmax, whose place the attention "
        "kernel has taken",
        removed_when="never: it is a hint, not a change",
        loses="nothing; an untrue line stays in the log",
    ),
)

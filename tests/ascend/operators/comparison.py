"""How runners on the emulated NPU compare what it computed with the CPU's results.

Every check becomes one line of JSON: its name, ``passed``, ``different`` or ``refused``, the
reason, and the aclnn functions that ran.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.utils._pytree import tree_leaves

#: Relative and absolute: the NPU's rows round once where the CPU rounds at every step, and sum in
#: another order.
TOLERANCES = {
    torch.float32: (1e-5, 3e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 2e-3),
}
#: Of the largest element: some units in float32's last place.
CANCELLATION = 2e-6


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in nested lists, tuples and dictionaries."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def difference(got: Any, want: Any) -> str:
    """What differs between two nests of tensors, or nothing. Values, shapes and dtypes count."""
    ours, theirs = tensors(got), tensors(want)
    if len(ours) != len(theirs):
        return f"{len(ours)} tensors, not {len(theirs)}"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one.dtype != other.dtype or one.shape != other.shape:
            mine, its = f"{one.dtype} {tuple(one.shape)}", f"{other.dtype} {tuple(other.shape)}"
            return f"tensor {number}: {mine}, not {its}"
        relative, absolute = TOLERANCES.get(one.dtype, (0.0, 0.0))
        if one.dtype == torch.float32 and other.numel():
            # What is left of big terms that cancel is as wrong as the terms were.
            largest = other.detach().abs().nan_to_num(0, 0, 0).max().item()
            absolute = max(absolute, CANCELLATION * largest)
        try:
            torch.testing.assert_close(
                one.cpu(), other.cpu(), rtol=relative, atol=absolute, equal_nan=True
            )
        except AssertionError as error:
            return f"tensor {number}: " + " ".join(str(error).split())[:200]
    return ""


class Report:
    """Runs checks and writes their lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._trace = Path(os.environ["ASCEND_EMULATOR_TRACE"])

    def run(self, name: str, check: Callable[[], str]) -> None:
        """One check: it returns what is different, or nothing, or raises."""
        self._trace.write_text("")
        start = time.perf_counter()
        try:
            reason = check()
            torch.npu.synchronize()
            status = "different" if reason else "passed"
        except Exception as error:
            status, reason = "refused", f"{type(error).__name__}: {error}"
        seconds = round(time.perf_counter() - start, 3)
        line = {"name": name, "status": status, "reason": reason, "seconds": seconds}
        line["ran"] = sorted(set(self._trace.read_text().split()))
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

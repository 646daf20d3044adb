"""The NPU's kernels on the policy's cases, by the real torch_npu; run on an emulated NPU.

Prints one JSON object: ``kernels``, contracts -> rows of [case, verdict, reason]; ``holds``, what
else must be, wrong calls of attention that are noticed among it -> whether it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch_npu  # noqa: F401
from case_sample import sample
from torch.nn import functional

from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._run import check_kernel
from accel_bridge.backends.ascend.kernels import KERNELS, attention_mask, gated
from accel_bridge.kernels import ATTENTION

#: What `attention_mask` chooses, made wrong -> words of the cases that must show it.
WRONG: tuple[tuple[dict[str, int], str], ...] = (
    ({"mode": 2}, "causal bottom right"),
    ({"mode": 3}, "causal top left"),
    ({"pre": 9}, "legacy 8,0"),
    ({"next": 1}, "causal, window 8,0"),
)


@contextmanager
def injected(change: dict[str, int]) -> Iterator[None]:
    """Attention is called with something wrong."""
    choose = attention_mask.choose

    def wrong(*arguments: Any) -> Any:
        right = choose(*arguments)
        return right if isinstance(right, str) or right.full else replace(right, **change)

    with mock.patch.object(attention_mask, "choose", wrong):
        yield


def main() -> None:
    """Every kernel that calls an operator, then the wrong calls."""
    # A thousand tokens in float32 only: half precision is slow on a CPU, and shorter ones show it.
    every = [
        case
        for case in all_cases()
        if case.dtype is torch.float32 or not re.search(r" s=102[45]\b", case.name)
    ]
    found, holds = {}, {}
    for kernel in (one for one in KERNELS if not one.is_reference):
        name = kernel.contract.name
        own = [case for case in every if case.contract == name]
        # Attention's table is long.
        rows = check_kernel(kernel, sample(own, 7) if name == "attention" else own, "npu")
        found[name] = [(row.case.name, row.verdict, row.reason) for row in rows]
    for change, words in WRONG:
        cases = [case for case in every if words in case.name and case.dtype is torch.float32]
        with injected(change):
            rows = (
                row for case in cases for row in check_kernel(KERNELS[ATTENTION], [case], "npu")
            )
            holds[words] = any(row.verdict == "fail" for row in rows)
    x = torch.linspace(-4, 4, 101)
    for form in ("none", "tanh"):
        here, there = functional.gelu(x, approximate=form), gated.gelu(x.npu(), approximate=form)
        holds[f"gelu {form}"] = torch.allclose(here, there.cpu(), atol=3e-5)
    print(json.dumps({"kernels": found, "holds": holds}), flush=True)


main()

"""The NPU's kernels on the policy's cases, by the real torch_npu; run on an emulated NPU.

Prints one JSON object: ``kernels``, contracts -> rows of [case, verdict, reason]; ``holds``, what
else must be -> whether it is.
"""

from __future__ import annotations

import json
import re

import torch
import torch_npu  # noqa: F401
from case_sample import sample
from torch.nn import functional

from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._run import check_kernel
from accel_bridge.backends.ascend.kernels import KERNELS, gated


def main() -> None:
    """Every kernel that calls an operator, and gelu."""
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
    x = torch.linspace(-4, 4, 101)
    for form in ("none", "tanh"):
        here, there = functional.gelu(x, approximate=form), gated.gelu(x.npu(), approximate=form)
        holds[f"gelu {form}"] = torch.allclose(here, there.cpu(), atol=3e-5)
    print(json.dumps({"kernels": found, "holds": holds}), flush=True)


main()

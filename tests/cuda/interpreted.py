"""Every Triton kernel on the tolerance policy, on the host: run with ACCEL_BRIDGE_BACKEND=cpu.

    ACCEL_BRIDGE_BACKEND=cpu python tests/cuda/interpreted.py [--all] [KERNEL...]

The bridge interprets launches there, with bfloat16 and FP8 as hardware has them. A sample of each
kernel's cases runs with the tests, all of them with --all.

Prints one line for each kernel, and one for each case that fails.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import torch

import accel_bridge.auto  # noqa: F401 - before the kernels
from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._run import check_kernel

#: Cases of a kernel in the sample; more where each has something new.
MOST = 8
#: Contracts with many large cases -> those of them that run in float16 too.
FLOAT16 = {"attention_max_logit": "full", "token_unpermute": "padded"}
#: Shapes of several blocks, in float32 only: what kernels do with another dtype they do in one.
BLOCKS = re.compile("rows=64|s=33|t=64|v=100|packed|channels last|w=3|s=64")
#: Cases that others prove. A layout is brought into one before the kernel: BSHD and TND have every
#: mask, the others one that all rows share and one that differs from row to row.
REPEATED = re.compile(r"attention_max_logit: (SBH|BSH|SBHD|BNSD) (?!full|padding|.*bias)")


def main() -> int:
    """Run the kernels that are named on the command line; 1 when a case fails."""
    sys.path.append(str(Path(__file__).parents[1]))
    from case_sample import sample
    from triton.runtime import interpreter
    from triton_kernels import triton_kernels

    # Triton makes a table for each operation, in a tenth of the time.
    of_any = interpreter._get_np_dtype
    of_element = functools.cache(of_any)
    vars(interpreter)["_get_np_dtype"] = lambda kind: (
        of_any(kind) if kind.scalar.is_ptr() else of_element(kind.scalar)
    )

    # The interpreter is slow, and bfloat16 tells nothing that float16 does not.
    slow = ("50257", "4096", "s=130", "s=1025", "t=300")
    cases = [
        case
        for case in all_cases()
        if case.dtype != torch.bfloat16
        and not any(word in case.name for word in slow)
        and not REPEATED.match(f"{case.contract}: {case.name}")
        and (
            case.dtype == torch.float32
            or (FLOAT16.get(case.contract, "") in case.name and not BLOCKS.search(case.name))
        )
    ]
    failed, names = 0, [word for word in sys.argv[1:] if word != "--all"]
    kernels = {kernel.contract.name: kernel for kernel in triton_kernels()}
    if unknown := set(names) - set(kernels):
        raise SystemExit(f"no Triton kernel of {', '.join(unknown)}; of: {', '.join(kernels)}")
    for name in names or kernels:
        kernel = kernels[name]
        own = [case for case in cases if case.contract == name]
        # An odd step, since dtypes take turns.
        tried = own if "--all" in sys.argv else sample(own, len(own) // MOST | 1)
        rows = check_kernel(kernel, tried)
        bad = [row for row in rows if row.verdict == "fail"]
        failed += len(bad)
        print(f"{name}: {len(rows)} cases, {len(bad)} failed")
        for row in bad:
            print(f"  {row.case.name} {row.case.dtype}: {row.reason} {row.worst}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())

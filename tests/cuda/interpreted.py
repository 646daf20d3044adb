"""Every Triton kernel on the parity ladder, on the host: run with ACCEL_BRIDGE_BACKEND=cpu.

The bridge interprets launches there, with bfloat16 and FP8 as hardware has them.

Prints one line for each kernel, and one for each case that fails.
"""

from __future__ import annotations

import re
import sys

import torch

import accel_bridge.auto  # noqa: F401 - before the kernels
from accel_bridge.apps.parity import check_kernel
from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.backends.cuda.fused import (
    bias_dropout_add,
    convolution,
    cross_entropy,
    embedding,
    experts,
    float8,
    float8_products,
    gated,
    gelu,
    grouped,
    grouped_float8,
    grouped_products,
    norms,
    rotary,
)
from accel_bridge.backends.cuda.kernels import max_logit
from accel_bridge.kernels import CONTRACTS, Kernel

KERNELS = {
    "layer_norm": norms.layer_norm,
    "rms_norm": norms.rms_norm,
    "rotary": rotary.rotary,
    "swiglu": gated.swiglu,
    "geglu": gated.geglu,
    "bias_gelu": gelu.bias_gelu,
    "bias_dropout_add": bias_dropout_add.bias_dropout_add,
    "cross_entropy": cross_entropy.cross_entropy,
    "embedding_gradient": embedding.embedding_gradient,
    "float8_quantize": float8.quantize,
    "float8_current_quantize": float8.current_quantize,
    "float8_block_quantize": float8.block_quantize,
    "scaled_matmul": float8_products.scaled_matmul,
    "attention_max_logit": max_logit.KERNELS[0],
    "grouped_weight_gradient": grouped.grouped_weight_gradient,
    "grouped_float8_quantize": grouped_float8.grouped_quantize,
    "grouped_float8_block_turn": grouped_float8.grouped_block_turn,
    "grouped_scaled_matmul": grouped_products.grouped_scaled_matmul,
    "grouped_scaled_weight_gradient": grouped_products.grouped_scaled_weight_gradient,
    "token_permute": experts.token_permute,
    "token_unpermute": experts.token_unpermute,
    "causal_convolution": convolution.causal_convolution,
}
#: Contracts with many large cases -> those of them that run in float16 too.
FLOAT16 = {"attention_max_logit": "full", "token_unpermute": "padded"}
#: Cases that others prove. A layout is brought into one before the kernel: BSHD and TND have every
#: mask, the others one that all rows share and one that differs from row to row.
REPEATED = re.compile(r"attention_max_logit: (SBH|BSH|SBHD|BNSD) (?!full|padding|.*bias)")


def main() -> int:
    """Run the kernels that are named on the command line; 1 when a case fails."""
    # The interpreter is slow, and bfloat16 tells nothing that float16 does not.
    slow = ("50257", "4096", "s=130", "s=1025", "t=300")
    cases = [
        case
        for case in all_cases()
        if case.dtype != torch.bfloat16
        and not any(word in case.name for word in slow)
        and not REPEATED.match(f"{case.contract}: {case.name}")
        and (case.dtype == torch.float32 or FLOAT16.get(case.contract, "") in case.name)
    ]
    failed = 0
    for name in sys.argv[1:] or KERNELS:
        found = KERNELS[name]
        whole = isinstance(found, Kernel)
        kernel = found if whole else CONTRACTS[name].kernel(found, "for a test")
        rows = check_kernel(kernel, cases)
        bad = [
            row for row in rows if row.verdict == "fail" or (row.verdict != "pass" and not whole)
        ]
        failed += len(bad)
        print(f"{name}: {len(rows)} cases, {len(bad)} failed")
        for row in bad:
            print(f"  {row.case.name} {row.case.dtype}: {row.reason} {row.worst}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())

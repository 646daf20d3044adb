"""The NPU's kernels: within the tolerance policy, and what they choose and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_bridge.apps.parity._run import signature_difference
from accel_bridge.backends.ascend.kernels import KERNELS, attention_mask
from accel_bridge.kernels import (
    ATTENTION,
    CONTRACTS,
    ROTARY,
    AttentionMask,
    AttentionOptions,
    Kernel,
)

from .conftest import Emulate

WORKER = Path(__file__).with_name("kernels_worker.py")
#: Calls that torch_npu's documented rules exclude; everything else must run on the operator.
OUTSIDE = {
    "attention": (
        *("sink", "TND's softmax sums", "(pse) is not used for a bias", "is above Dk"),
        "no soft cap",
    ),
    "scaled_masked_softmax": ("queries, and keys is 32 to 4096",),
    "grouped_matmul": ("without tokens is not supported",),
    "grouped_weight_gradient": (
        *("dtype of the sum is float32", "one dtype on both sides", "contiguous operands"),
        "dtype is float16 or bfloat16",
    ),
}


def test_kernels_pass_on_the_real_operators(emulate: Emulate) -> None:
    """And gelu keeps its form."""
    tests = str(Path(__file__).parents[1])
    ended = emulate(WORKER, warm=True, PYTHONPATH=tests, OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.output[-3000:]
    found = json.loads(ended.output.splitlines()[-1])
    assert all(found["holds"].values()), found["holds"]
    for name, rows in found["kernels"].items():
        assert [row for row in rows if row[1] == "fail"] == []
        reasons = {reason for _, verdict, reason in rows if verdict == "outside"}
        expected = OUTSIDE.get(name, ())
        assert {r for r in reasons if not any(word in r for word in expected)} == set(), name
        assert sum(verdict == "pass" for _, verdict, _ in rows) > len(rows) // 4, name


@pytest.mark.parametrize("kernel", list(KERNELS), ids=lambda kernel: kernel.contract.name)
def test_signature_is_the_contracts(kernel: Kernel[Any, Any]) -> None:
    assert signature_difference(kernel) is None
    assert CONTRACTS[kernel.contract.name] is kernel.contract


def _legacy(pre: int, after: int) -> AttentionMask:
    """What the 2023 adaptor's flags --pre-tockens and --next-tockens mean."""
    return AttentionMask(causal=True, window=(pre, after), alignment="top_left")


@pytest.mark.parametrize(
    ("mask", "lengths", "expected"),
    [
        (AttentionMask(), (8, 8), (0, None, None)),
        (AttentionMask(causal=True), (8, 8), (3, None, None)),
        (AttentionMask(causal=True, alignment="top_left"), (8, 5), (2, None, None)),
        # The legacy commands: everything, and the band of the last 2048 + 1 positions.
        (_legacy(65536, 65536), (4096, 4096), (2, None, None)),
        (_legacy(2048, 0), (4096, 4096), (4, 2048, 0)),
        (_legacy(2048, 0), (2048, 2048), (2, None, None)),
        (AttentionMask(window=(5, 3)), (8, 20), (4, 5, 3)),
        (AttentionMask(window=(5, 3), alignment="top_left"), (8, 10), (4, 7, 1)),
        (AttentionMask(window=(None, 2)), (8, 8), (4, None, 2)),
        (AttentionMask(window=(5, 3), alignment="top_left"), (8, 20), "whole"),
    ],
)
def test_sparse_mode(mask: AttentionMask, lengths: tuple[int, int], expected: Any) -> None:
    chosen = attention_mask.choose(mask, [lengths], packed=False)
    assert isinstance(chosen, attention_mask.Sparsity)
    if expected == "whole":
        assert chosen.mode == 0
        assert chosen.whole
        return
    mode, pre, after = expected
    assert chosen.mode == mode
    unlimited = attention_mask.UNLIMITED
    assert (chosen.pre, chosen.next) == (
        unlimited if pre is None else pre,
        unlimited if after is None else after,
    )


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"dtype": torch.float64}, "not float64"),
        ({"dropout": 1.0}, "keep_prob"),
        ({"value_size": 20}, "Dv 20 is above Dk 8"),
    ],
)
def test_what_is_outside_of_the_rules(inputs: dict[str, Any], reason: str) -> None:
    options = {"value_size": 8, "dtype": torch.float32, "dropout": 0.0, **inputs}
    query = torch.zeros(4, 1, 2, 8, dtype=options["dtype"])
    value = torch.zeros(4, 1, 2, options["value_size"], dtype=options["dtype"])
    found = KERNELS[ATTENTION].supports(
        query, query, value, AttentionOptions(layout="SBHD", dropout=options["dropout"])
    )
    assert found is not None
    assert reason in found


def test_rotary_looks_at_the_range_once() -> None:
    x, cos = torch.zeros(4, 1, 2, 8), torch.full((4, 1, 1, 8), 1.2)
    found = KERNELS[ROTARY].supports(x, cos, torch.zeros_like(cos))
    assert found is not None
    assert "[-1, 1]" in found
    cos.mul_(0.5)
    assert KERNELS[ROTARY].supports(x, cos, torch.zeros_like(cos)) is None

"""The NPU's kernels within the tolerance policy, on a model of torch_npu's operators.

The emulator's tests run them on the real torch_npu. Here a wrong mode, mask, layout or
gradient shows without a compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from case_sample import sample

from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._run import check_kernel, signature_difference
from accel_bridge.backends.ascend.kernels import KERNELS, attention_mask, gated
from accel_bridge.kernels import (
    ATTENTION,
    CONTRACTS,
    ROTARY,
    AttentionMask,
    AttentionOptions,
    Kernel,
)

from . import model

#: A thousand tokens in float32 only: half precision is slow on a CPU, and shorter ones show it.
CASES = [
    case
    for case in all_cases()
    if case.dtype is torch.float32 or not re.search(r" s=102[45]\b", case.name)
]
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
#: torch's own operator: on a CPU it is the CPU's, which sums in low precision.
NOT_MODELLED = ("layer_norm",)


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    library = model.register()
    yield
    library._destroy()


@pytest.mark.parametrize(
    "name", [kernel.contract.name for kernel in KERNELS if kernel.contract.name not in NOT_MODELLED]
)
def test_kernel_passes(name: str) -> None:
    own = [case for case in CASES if case.contract == name]
    # Attention's table is long.
    rows = check_kernel(KERNELS[CONTRACTS[name]], sample(own, 7) if name == "attention" else own)
    assert [row for row in rows if row.verdict == "fail"] == []
    reasons = {row.reason for row in rows if row.verdict == "outside"}
    expected = OUTSIDE.get(name, ())
    assert {r for r in reasons if not any(word in r for word in expected)} == set()
    assert sum(row.verdict == "pass" for row in rows) > len(rows) // 4


@pytest.mark.parametrize("kernel", list(KERNELS), ids=lambda kernel: kernel.contract.name)
def test_signature_is_the_contracts(kernel: Kernel[Any, Any]) -> None:
    assert signature_difference(kernel) is None
    assert CONTRACTS[kernel.contract.name] is kernel.contract


def fails(monkeypatch: pytest.MonkeyPatch, wanted: str, **change: Any) -> bool:
    """Whether a case of that name fails when the operator is called with something wrong."""
    choose = attention_mask.choose

    def injected(*arguments: Any) -> Any:
        right = choose(*arguments)
        return right if isinstance(right, str) or right.full else replace(right, **change)

    monkeypatch.setattr(attention_mask, "choose", injected)
    cases = [
        case
        for case in CASES
        if case.dtype is torch.float32 and case.contract == "attention" and wanted in case.name
    ]
    return any(row.verdict == "fail" for row in check_kernel(KERNELS[ATTENTION], cases))


@pytest.mark.parametrize(
    ("change", "case"),
    [
        ({"mode": 2}, "causal bottom right"),
        ({"mode": 3}, "causal top left"),
        ({"pre": 9}, "legacy 8,0"),
        ({"next": 1}, "causal, window 8,0"),
    ],
)
def test_a_wrong_mode_or_band_fails(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, int], case: str
) -> None:
    assert fails(monkeypatch, case, **change)


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
        ({"head_size": 769}, "head size is 1 to 768, not 769"),
        ({"heads": 257}, "number of query heads is 1 to 256, not 257"),
        ({"dtype": torch.float64}, "not float64"),
        ({"dropout": 1.0}, "keep_prob"),
        ({"value_size": 20}, "Dv 20 is above Dk 8"),
    ],
)
def test_what_is_outside_of_the_rules(inputs: dict[str, Any], reason: str) -> None:
    options = {"heads": 2, "head_size": 8, "dtype": torch.float32, "dropout": 0.0, **inputs}
    heads, size = options["heads"], options["head_size"]
    query = torch.zeros(4, 1, heads, size, dtype=options["dtype"])
    value = torch.zeros(4, 1, heads, options.get("value_size", size), dtype=options["dtype"])
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


def test_gelu_keeps_its_form() -> None:
    x = torch.linspace(-4, 4, 101)
    for form in ("none", "tanh"):
        assert torch.equal(
            gated.gelu(x, approximate=form), torch.nn.functional.gelu(x, approximate=form)
        )

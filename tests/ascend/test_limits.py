"""The table of limits: its rows, who reads it, and the edges as the backend's kernels see them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlparse

import pytest
import torch

from accel_bridge.backends.ascend import limits
from accel_bridge.backends.ascend.kernels import KERNELS
from accel_bridge.backends.ascend.limits import CHIPS, LIMITS, RELEASES, Rules
from accel_bridge.kernels import (
    ATTENTION,
    GROUPED_MATMUL,
    ROTARY,
    SCALED_MASKED_SOFTMAX,
    AttentionOptions,
)


def attention(heads: int = 1, size: int = 8, batch: int = 1, length: int = 4) -> str | None:
    query = torch.empty(batch, heads, length, size, device="meta")
    return KERNELS[ATTENTION].supports(query, query, query, AttentionOptions(layout="BNSD"))


def rotary(size: int = 8, batch: int = 1, *, interleaved: bool = False) -> str | None:
    x, cos = (
        torch.empty(batch, 2, 1, size, device="meta"),
        torch.empty(1, 2, 1, size, device="meta"),
    )
    return KERNELS[ROTARY].supports(x, cos, cos, interleaved=interleaved)


def grouped(groups: int = 1, inner: int = 4) -> str | None:
    x, weight = torch.empty(4, inner, device="meta"), torch.empty(groups, inner, 4, device="meta")
    return KERNELS[GROUPED_MATMUL].supports(x, weight, torch.empty(groups, device="meta"))


#: How a kernel comes to a row's value, in another case than the operator's own.
CALLS: dict[tuple[str, str], Any] = {
    ("npu_fusion_attention", "batch"): lambda n: attention(batch=n),
    ("npu_fusion_attention", "sequence"): lambda n: attention(length=n),
    ("npu_fusion_attention", "heads"): lambda n: attention(heads=n),
    ("npu_fusion_attention", "head_size"): lambda n: attention(size=n),
    ("npu_rotary_mul", "size"): rotary,
    ("npu_rotary_mul", "side"): lambda n: rotary(batch=n),
    ("npu_rotary_mul", "product"): lambda n: rotary(batch=n, interleaved=True),
    ("npu_scaled_masked_softmax", "side"): lambda n: KERNELS[SCALED_MASKED_SOFTMAX].supports(
        torch.empty(1, 1, n, 32, device="meta")
    ),
    ("npu_grouped_matmul", "groups"): grouped,
    ("npu_grouped_matmul", "inner"): lambda n: grouped(inner=n),
}


@pytest.mark.parametrize("machine", ["910B:8.5.0", "910B:8.0.0", "910C:8.5.0", "950:8.5.0"])
@pytest.mark.parametrize(("operator", "key"), list(CALLS))
def test_kernels_keep_to_the_edges(
    monkeypatch: pytest.MonkeyPatch, machine: str, operator: str, key: str
) -> None:
    rules = Rules(*machine.split(":"))
    monkeypatch.setattr(limits, "here", lambda: rules)
    row = rules.limits.get((operator, key))
    if row is None:  # the chip has no such limit
        assert CALLS[operator, key](2000 if key != "inner" else 70_000) is None
        return
    inside, outside = row.edges()
    assert [CALLS[operator, key](value) for value in inside] == [None] * len(inside)
    for value in outside:
        if int(value) > 0:
            assert row.text in CALLS[operator, key](value)


def test_every_row_has_a_public_page() -> None:
    for row in LIMITS:
        assert urlparse(row.source).netloc in ("gitcode.com", "hiascend.com"), row
        assert row.since in RELEASES
        assert set(row.chips) <= set(CHIPS)
        assert row.names or row.low <= row.high


@pytest.mark.parametrize("condition", limits.CONDITIONS, ids=lambda one: one.text[:40])
def test_other_rules_are_refused_or_say_why_not(condition: limits.Condition) -> None:
    """The names are those of calls that the emulator's tests see refused."""
    import ast
    from pathlib import Path

    tree = ast.parse((Path(__file__).parent / "operators/refusals.py").read_text())
    names = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    names |= {f"mask_of_mode_{mode}" for mode in (2, 3, 4)}
    why = condition.refused
    assert why in names or (why.startswith("- ") and len(why) > 10)


def test_a_later_release_replaces_a_row() -> None:
    before, after = (Rules("910B", cann).limits for cann in ("8.1.RC1", "8.2.RC1"))
    key = ("npu_fusion_attention", "head_size")
    assert (before[key].high, after[key].high) == (512, 768)


@pytest.mark.parametrize(
    ("text", "chip"),
    [("910B:8.2.RC1", ("910B", "8.2.RC1")), ("950", ("950", "")), ("", ("", ""))],
)
def test_the_variable_names_a_chip(text: str, chip: tuple[str, str]) -> None:
    assert limits.CHIP.read({"ACCEL_BRIDGE_ASCEND_CHIP": text}) == chip


def test_what_the_emulator_reads_is_the_table() -> None:
    rules = Rules("910C", "8.3.RC1")
    lines = [line.split("\t") for line in rules.as_file().splitlines()]
    assert {(line[0], line[1]) for line in lines} == set(rules.limits)
    assert all(len(line) == 8 and "910C, CANN 8.3.RC1" in line[7] for line in lines)

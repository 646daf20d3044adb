"""docs/kernels.md says what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_bridge.backends.cpu.kernels import KERNELS
from accel_bridge.kernels import CONTRACTS, LAYOUTS, AttentionMask

PAGE = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(CONTRACTS))
def test_every_contract_stands_there_with_its_formula(name: str) -> None:
    assert f"| `{name}` | {CONTRACTS[name].formula} |" in PAGE


def test_no_contract_stands_there_that_does_not_exist() -> None:
    table = PAGE.split("## Contracts")[1].split("\n\n")[1]
    assert table.count("\n| `") == len(CONTRACTS)


def test_layouts_and_mask_fields_stand_there() -> None:
    for word in (*LAYOUTS, *AttentionMask.__dataclass_fields__):
        assert f"`{word}" in PAGE or f"({word}" in PAGE or f" {word}" in PAGE, word


def test_every_cpu_kernel_that_is_no_reference_stands_there() -> None:
    part = PAGE.split("## What the CPU uses")[1].split("## ")[0]
    for name, kernel in KERNELS.items():
        assert (f"| `{name}` |" in part) != kernel.is_reference, name

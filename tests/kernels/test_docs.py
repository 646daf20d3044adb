"""docs/kernels.md says what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
    for kernel in KERNELS:
        name = kernel.contract.name
        assert (f"| `{name}` |" in part) != kernel.is_reference, name


def test_the_first_example_runs() -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    found: dict[str, object] = {}
    exec(compile(code, "docs/kernels.md", "exec"), found)
    output = found["output"]
    assert isinstance(output, torch.Tensor)
    assert output.shape == (128, 2, 4, 64)


FIRST = dict(
    re.findall(
        r"^`(\w+\.py)`\n\n(?:<!--[^\n]*-->\n)?```python\n(.*?)```",
        PAGE.split("## Your first kernel")[1],
        re.DOTALL | re.MULTILINE,
    )
)


@pytest.mark.slow
def test_your_first_kernel_is_proven_and_its_error_caught(tmp_path: Path) -> None:
    assert list(FIRST) == ["my_kernels.py", "my_backend.py", "prove.py"]
    for name, source in FIRST.items():
        (tmp_path / name).write_text(source)
    done = subprocess.run(
        [sys.executable, "prove.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    good, bad = done.stdout.splitlines()
    assert good.startswith("PASS: 27 rows on mine")
    assert bad.startswith("FAIL: 27 rows on mine")
    assert " 0 passed" not in good

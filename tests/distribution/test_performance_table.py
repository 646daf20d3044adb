"""The table of measured speed: only rows of one lease are compared."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def row(
    model: str, way: str, time: float | None, lease: str = "one", **more: object
) -> dict[str, object]:
    return {
        "model": model,
        "way": way,
        "milliseconds": time,
        "spread": 0.01,
        "tflops": 500.0,
        "gigabytes": 20.0,
        "losses": [3.0, 2.0],
        "error": "" if time else "no memory",
        "lease": lease,
        **more,
    }


def test_rows_are_merged_and_compared_within_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "benchmarks"))
    bench = load("bench", ROOT / "tests" / "benchmarks" / "bench_training.py", monkeypatch)
    table = load("performance_table", ROOT / "tools" / "performance_table.py", monkeypatch)
    data = tmp_path / "performance.json"
    monkeypatch.setattr(bench, "COMMITTED", data)
    monkeypatch.setattr(table, "DATA", data)
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    rows = [row("mla-moe", "te", 300.0), row("mla-moe", "bridge", 200.0)]
    first.write_text(json.dumps([*rows, row("mla-moe", "local", None)]))
    bench.merge([first])
    text = table.performance_table()
    assert (
        "| `mla-moe` (a) | 200.0 ms, 20.0 GB | 1.0% | 500 | 300.0 ms, 20.0 GB |  | stops |" in text
    )
    assert "**1.50x**, 1.00x memory" in text
    assert "(a) one." in text
    # A newer row of another lease has nothing to be compared with.
    second.write_text(json.dumps([row("mla-moe", "bridge", 100.0, "two")]))
    bench.merge([second])
    assert "x**" not in table.performance_table()
    assert "losses" not in data.read_text()


def test_layouts_have_a_table_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = load("performance_table", ROOT / "tools" / "performance_table.py", monkeypatch)
    data = tmp_path / "performance.json"
    monkeypatch.setattr(table, "DATA", data)
    rows = [
        row("llama-8b", "bridge", 100.0),
        row("llama-8b", "te", 120.0),
        row("llama-8b", "beside", 96.0),
        row("llama-8b-tp4-sp", "bridge", 110.0, tflops=450.0, gpus=4),
        row("llama-8b-dp4", "bridge", 100.0, "two", gpus=4),
    ]
    data.write_text(json.dumps(rows))
    assert "tp4" not in table.performance_table()
    assert "96.0 ms, 20.0 GB, 1.25x" in table.performance_table()
    text = table.layouts_table()
    assert "| `llama-8b-tp4-sp` (a) | 4 | 90% | 110.0 ms" in text
    # What another lease measured stands in a table of its own.
    assert "dp4" not in text
    text = table.earlier_table()
    assert "| `llama-8b-dp4` (a) | 4 | 100.0 ms" in text
    assert "(a) two." in text
    assert "tp4" not in text


def test_asked_numbers_are_explained_by_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load("performance_table", ROOT / "tools" / "performance_table.py", monkeypatch)
    data = tmp_path / "performance.json"
    monkeypatch.setattr(table, "DATA", data)
    kernels = {"device": 430.0, "products": 320.0, "attention": 50.0, "casts": 0.0}
    kernels |= {"optimizer": 17.0, "communication": 0.0, "rest": 43.0, "launches": 900}
    theirs = kernels | {"products": 310.0, "attention": 45.0}
    made = {"kernels": kernels, "operations": {"products": 232.0, "attention": 20.0}}
    rows = [
        row("l4-h4096", "bridge", 450.0, **made),
        row("l4-h4096", "te", 500.0, kernels=theirs),
        row("l4-h4096", "before", 460.0),
        row("l4-h4096", "products", 300.0, tflops=773.0),
        row("qwen3", "bridge", 300.0),
        row("qwen3", "te", 360.0),
        row("qwen3", "before", 250.0, "two"),
        row("gpt-1.3b-no-dropout", "bridge", 300.0),
        row("gpt-1.3b-no-dropout", "te", 300.0, gigabytes=10.0),
    ]
    data.write_text(json.dumps(rows))
    text = table.asked_table()
    assert "| `l4-h4096` | 1.15x | 1.11x | not reached: 435 ms are needed." in text
    assert (
        "Products and attention take 370; everything else takes 80 (20 of it the host), "
        "65 are left for it; 145 in the other |" in text
    )
    assert "| `qwen3` | 1.15x | 1.20x | reached |" in text
    assert "| `gpt-1.3b-no-dropout` | 1.15x | 1.00x | not reached |" in text
    assert "most `gpt-1.3b-no-dropout` | at most 1.00x | 1.00 to 2.00x | not reached |" in text
    assert "| 450.0 | 430.0 | 20.0 | 320.0 (725) | 50.0 (400) |" in table.parts_table()
    assert "| 900 | 300.0 (773) |" in table.parts_table()
    # The tree before was measured in another lease for one of them.
    text = table.before_table()
    assert "| `l4-h4096` | 460.0 ms, 20.0 GB (1.0%) | 450.0 ms, 20.0 GB (1.0%) | 0.978x |" in text
    assert "qwen3" not in text

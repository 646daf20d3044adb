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
    # One GPU was not measured in the other lease.
    assert "| `llama-8b-dp4` (b) | 4 |  | 100.0 ms" in text
    assert "(b) two." in text

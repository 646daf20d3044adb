"""The tables of measured speed: only rows of one session are compared."""

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


def row(model: str, way: str, time: float, lease: str = "one") -> dict[str, object]:
    return {
        "model": model,
        "way": way,
        "milliseconds": time,
        "spread": 0.01,
        "tflops": 500.0,
        "gigabytes": 20.0,
        "losses": [3.0, 2.0],
        "error": "",
        "lease": lease,
    }


def test_rows_are_merged_and_compared_within_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmarks = ROOT / "tests/conformance/benchmarks"
    monkeypatch.syspath_prepend(str(benchmarks))
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    bench = load("bench", benchmarks / "bench_training.py", monkeypatch)
    page = load("results_page", ROOT / "tools/results_page.py", monkeypatch)
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(bench, "COMMITTED", tmp_path / "docs/performance.json")
    monkeypatch.setattr(page, "ROOT", tmp_path)
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps([row("mla-moe", "te", 300.0), row("mla-moe", "bridge", 200.0)]))
    bench.merge([first])
    assert [model for model, *_ in page._pairs()] == ["mla-moe"]
    assert "| 200 ms, 20.0 GB | 300 ms, 20.0 GB | 1.50x |" in page.pip_speed_table()
    # A newer row of another session has nothing to be compared with.
    second.write_text(json.dumps([row("mla-moe", "bridge", 100.0, "two")]))
    bench.merge([second])
    assert page._pairs() == []
    assert "losses" not in (tmp_path / "docs/performance.json").read_text()

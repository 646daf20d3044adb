"""Memory does not grow with the input or with its documents."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .support import TEXTS

pytestmark = pytest.mark.slow  # gigabytes of text

LIMIT_MEGABYTES = 600


def peak_megabytes(argv: list[str]) -> float:
    """Highest sum over the process tree, pages that are shared counted once."""
    process = subprocess.Popen([sys.executable, "-m", "accel_bridge.pretrain.preprocess", *argv])
    peak = 0.0
    while process.poll() is None:
        total = 0
        try:
            root = psutil.Process(process.pid)
            for member in (root, *root.children(recursive=True)):
                total += member.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
        peak = max(peak, total / 1e6)
        time.sleep(0.1)
    assert process.returncode == 0
    return peak


def large_texts() -> list[str]:
    """Two of 10 MB, and one of 3 MB that the exact engine must take in pieces."""
    text = " ".join(TEXTS[:6]) * 22_000
    return [text, text[: len(text) // 3] + "\U000323b0's", text]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_documents_of_ten_megabytes(tmp_path, gpt2, name):
    rows = [{"text": text} for text in large_texts()]
    assert len(rows[0]["text"].encode()) > 10_000_000
    if name == "a.jsonl":
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    argv = ["--input", tmp_path / name, "--output-prefix", tmp_path / "x", *gpt2.flags]
    assert peak_megabytes([*map(str, argv), "--workers", "2"]) < LIMIT_MEGABYTES


def test_many_documents(tmp_path, gpt2):
    line = json.dumps({"text": " ".join(TEXTS)}, ensure_ascii=False) + "\n"
    (tmp_path / "a.jsonl").write_text(line * 120_000, encoding="utf-8")
    assert (tmp_path / "a.jsonl").stat().st_size > 80_000_000
    argv = ["--input", tmp_path / "a.jsonl", "--output-prefix", tmp_path / "x", *gpt2.flags]
    assert peak_megabytes([*map(str, argv), "--workers", "2"]) < LIMIT_MEGABYTES

"""Byte identity with Megatron 0.19's tokenizers and index builder."""

from __future__ import annotations

import random
import sys

import pytest

from .support import TEXTS, write_jsonl


def documents(count=400):
    rng = random.Random(7)
    return [
        {"id": i, "text": " ".join(rng.choices(TEXTS, k=rng.randint(1, 9)))} for i in range(count)
    ]


@pytest.mark.parametrize("eod", [True, False])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_mixed_corpus(tmp_path, agree, eod, ascii_only):
    rows = [*({"text": text} for text in TEXTS), *documents()]
    source = write_jsonl(tmp_path / "a.jsonl", rows, ensure_ascii=ascii_only)
    assert "gigatoken" in agree(source, "--workers", 2, "--block-bytes", 5000, eod=eod).out


@pytest.mark.parametrize("engine", ["auto", "exact"])
def test_every_unicode_plane(tmp_path, agree, engine):
    """Assigned and unassigned code points: samples of every 256 and all that engines differ on."""
    from accel_bridge.pretrain.preprocess.guard import UNICODE_DIFFERENCES

    points = [p for p in range(0, sys.maxunicode + 1, 97) if not 0xD800 <= p < 0xE000]
    points += [p for first, last in UNICODE_DIFFERENCES for p in range(first, last + 1)]
    # Whether 's is a word of its own depends on the class of the character before it.
    texts = [f"{chr(p)}'s a{chr(p)}'d {chr(p)}{chr(p)}1 {chr(p)}!" for p in points]
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": t} for t in texts], ensure_ascii=False)
    agree(source, "--tokenizer-engine", engine, "--workers", 2)


def test_without_the_guard_the_bytes_differ(tmp_path, agree, monkeypatch):
    """The injected difference: the fast engine alone is not exact, and the comparison sees it."""
    from accel_bridge.pretrain.preprocess import build as build_module

    monkeypatch.setattr(build_module, "UNICODE_DIFFERENCES", ())
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "\U000323b0's \U000323b1'd"}])
    with pytest.raises(AssertionError, match="reference"):
        agree(source)


def test_empty_file(tmp_path, agree):
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"")
    agree(source)


@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize("keep", [True, False])
def test_partitions_order_documents_as_megatron_does(tmp_path, agree, partitions, keep):
    rows = [{"text": [f"document {i}", "two"] if i % 3 else ""} for i in range(50)]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    words = ["--workers", 2, "--block-bytes", 100, "--partitions", partitions]
    dealt = rows if keep else [row for p in range(partitions) for row in rows[p::partitions]]
    agree(source, *words, *(["--keep-sequential-samples"] if keep else []), records=dealt)
    assert len(list(tmp_path.glob("ours*"))) == 2


def test_megatron_reads_it(tmp_path, megatron_gpt2, prepare):
    source = write_jsonl(tmp_path / "a.jsonl", documents(20))
    prefix = tmp_path / "ours"
    assert prepare(source, "--append-eod").code == 0
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    dataset = IndexedDataset(f"{prefix}_text_document")
    assert len(dataset) == 20
    assert dataset[3].tolist()[-1] == megatron_gpt2.eod

"""Byte identity with Megatron 0.19's tokenizers and index builder."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from .support import TEXTS, assert_same_pair, reference_lines, write_jsonl, write_reference


def documents(count=400):
    rng = random.Random(7)
    return [
        {"id": i, "text": " ".join(rng.choices(TEXTS, k=rng.randint(1, 9)))} for i in range(count)
    ]


@pytest.mark.parametrize("eod", [True, False])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_mixed_corpus(tmp_path, gpt2, megatron_gpt2, run, eod, ascii_only):
    source = write_jsonl(
        tmp_path / "a.jsonl",
        [*({"text": text} for text in TEXTS), *documents()],
        ensure_ascii=ascii_only,
    )
    flags = ["--append-eod"] if eod else []
    result = run(
        "--input", source, "--output-prefix", tmp_path / "ours", *gpt2.flags, *flags,
        "--workers", 2, "--block-bytes", 5000,
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "gigatoken" in result.out
    records = list(reference_lines(source))
    write_reference(tmp_path / "ref", records, megatron_gpt2, append_eod=eod)
    assert_same_pair(tmp_path / "ours", tmp_path / "ref")


@pytest.mark.parametrize("engine", ["auto", "exact"])
def test_every_unicode_plane(tmp_path, gpt2, megatron_gpt2, run, engine):
    """Assigned and unassigned code points: samples of every 256 and all that engines differ on."""
    from accel_bridge.pretrain.preprocess.guard import UNICODE_DIFFERENCES

    points = [p for p in range(0, sys.maxunicode + 1, 97) if not 0xD800 <= p < 0xE000]
    points += [p for first, last in UNICODE_DIFFERENCES for p in range(first, last + 1)]
    # Whether 's is a word of its own depends on the class of the character before it.
    texts = [f"{chr(p)}'s a{chr(p)}'d {chr(p)}{chr(p)}1 {chr(p)}!" for p in points]
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": t} for t in texts], ensure_ascii=False)
    result = run(
        "--input", source, "--output-prefix", tmp_path / "ours", *gpt2.flags, "--append-eod",
        "--tokenizer-engine", engine, "--workers", 2,
    )  # fmt: skip
    assert result.code == 0, result.err
    write_reference(tmp_path / "ref", list(reference_lines(source)), megatron_gpt2)
    assert_same_pair(tmp_path / "ours", tmp_path / "ref")


def test_without_the_guard_the_bytes_differ(tmp_path, gpt2, megatron_gpt2, run, monkeypatch):
    """The injected difference: the fast engine alone is not exact, and the comparison sees it."""
    from accel_bridge.pretrain.preprocess import build as build_module

    monkeypatch.setattr(build_module, "UNICODE_DIFFERENCES", ())
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "\U000323b0's \U000323b1'd"}])
    assert run("--input", source, "--output-prefix", tmp_path / "ours", *gpt2.flags).code == 0
    write_reference(
        tmp_path / "ref", list(reference_lines(source)), megatron_gpt2, append_eod=False
    )
    with pytest.raises(AssertionError):
        assert_same_pair(tmp_path / "ours", tmp_path / "ref")


def test_line_ends(tmp_path, gpt2, megatron_gpt2, run):
    lines = [json.dumps({"text": text}).encode() for text in TEXTS]
    ends = [b"\n", b"\r\n", b"\r"]
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"".join(line + ends[i % 3] for i, line in enumerate(lines * 5)))
    for size in (1, 64, 333, 1 << 20):
        result = run(
            "--input", source, "--output-prefix", tmp_path / "ours", *gpt2.flags, "--append-eod",
            "--workers", 2, "--block-bytes", size,
        )  # fmt: skip
        assert result.code == 0, result.err
        write_reference(tmp_path / "ref", list(reference_lines(source)), megatron_gpt2)
        assert_same_pair(tmp_path / "ours", tmp_path / "ref")


def test_only_carriage_returns(tmp_path, gpt2, megatron_gpt2, run):
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"\r".join(json.dumps({"text": text}).encode() for text in TEXTS * 20))
    result = run(
        "--input", source, "--output-prefix", tmp_path / "ours", *gpt2.flags, "--append-eod",
        "--workers", 2, "--block-bytes", 300,
    )  # fmt: skip
    assert result.code == 0, result.err
    write_reference(tmp_path / "ref", list(reference_lines(source)), megatron_gpt2)
    assert_same_pair(tmp_path / "ours", tmp_path / "ref")


def test_lists_empty_documents_and_several_keys(tmp_path, gpt2, megatron_gpt2, run):
    rows = [
        {"text": ["one sentence.", "", "another one."], "title": "a title"},
        {"text": [], "title": ""},
        {"text": "", "title": ["", ""]},
        {"text": ["", ""], "title": "x"},
        {"text": "plain", "title": ["a", "b", "<|endoftext|>"]},
    ] * 7
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    result = run(
        "--input", source, "--output-prefix", tmp_path / "ours", *gpt2.flags, "--append-eod",
        "--workers", 2, "--block-bytes", 200, "--json-keys", "text", "title",
    )  # fmt: skip
    assert result.code == 0, result.err
    for key in ("text", "title"):
        write_reference(tmp_path / "ref", rows, megatron_gpt2, key=key)
        assert_same_pair(tmp_path / "ours", tmp_path / "ref", f"{key}_document")


def test_empty_file(tmp_path, gpt2, megatron_gpt2, run):
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"")
    assert run("--input", source, "--output-prefix", tmp_path / "ours", *gpt2.flags).code == 0
    write_reference(tmp_path / "ref", [], megatron_gpt2)
    assert_same_pair(tmp_path / "ours", tmp_path / "ref")


@pytest.mark.slow
def test_a_document_longer_than_several_blocks(tmp_path, gpt2, megatron_gpt2, run):
    text = " ".join(TEXTS) * 1500
    assert len(text.encode()) > 1_000_000
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "short"}, {"text": text}, {"text": "x"}])
    result = run(
        "--input", source, "--output-prefix", tmp_path / "ours", *gpt2.flags, "--append-eod",
        "--workers", 2, "--block-bytes", 1 << 17,
    )  # fmt: skip
    assert result.code == 0, result.err
    write_reference(tmp_path / "ref", list(reference_lines(source)), megatron_gpt2)
    assert_same_pair(tmp_path / "ours", tmp_path / "ref")


@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize("keep", [True, False])
def test_partitions_order_documents_as_megatron_does(
    tmp_path, gpt2, megatron_gpt2, run, partitions, keep
):
    rows = [{"text": [f"document {i}", "two"] if i % 3 else ""} for i in range(50)]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    flags = ["--keep-sequential-samples"] if keep else []
    result = run(
        "--input", source, "--output-prefix", tmp_path / "ours", *gpt2.flags, "--append-eod",
        "--workers", 2, "--block-bytes", 100, "--partitions", partitions, *flags,
    )  # fmt: skip
    assert result.code == 0, result.err
    dealt = rows if keep else [row for p in range(partitions) for row in rows[p::partitions]]
    write_reference(tmp_path / "ref", dealt, megatron_gpt2)
    assert_same_pair(tmp_path / "ours", tmp_path / "ref")
    assert sorted(path.name for path in tmp_path.glob("ours*")) == [
        "ours_text_document.bin",
        "ours_text_document.idx",
    ]


def test_megatron_reads_it(tmp_path, gpt2, megatron_gpt2, run):
    source = write_jsonl(tmp_path / "a.jsonl", documents(20))
    prefix = tmp_path / "ours"
    assert run("--input", source, "--output-prefix", prefix, *gpt2.flags, "--append-eod").code == 0
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    dataset = IndexedDataset(f"{prefix}_text_document")
    assert len(dataset) == 20
    assert dataset[3].tolist()[-1] == megatron_gpt2.eod


def test_the_comparison_can_fail(tmp_path: Path):
    for name, data in (("a", b"1"), ("b", b"2")):
        for suffix in (".bin", ".idx"):
            (tmp_path / f"{name}_text_document{suffix}").write_bytes(data)
    with pytest.raises(AssertionError):
        assert_same_pair(tmp_path / "a", tmp_path / "b")

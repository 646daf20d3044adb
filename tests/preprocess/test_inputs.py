"""Formats and compressions: all give the bytes that the same records give as JSON lines."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import os
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from accel_bridge.pretrain.preprocess import main
from accel_bridge.pretrain.preprocess import planner as planner_module

from .support import TEXTS, assert_same_pair, write_jsonl

#: CSV has no NUL; everything else of the corpus fits every format.
RECORDS = [{"id": str(i), "text": text} for i, text in enumerate(TEXTS * 9) if "\x00" not in text]
FLAGS = ["--append-eod", "--workers", 2, "--block-bytes", 1500]


def csv_bytes(delimiter=",") -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, ["id", "text"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(RECORDS)
    return stream.getvalue().encode()


def jsonl_bytes(directory) -> bytes:
    return write_jsonl(directory / "plain.jsonl", RECORDS).read_bytes()


def parquet_bytes(**options) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(RECORDS), stream, **options)
    return stream.getvalue()


def zstd_frames(data: bytes) -> bytes:
    half = len(data) // 2
    return b"".join(zstandard.compress(part) for part in (data[:half], data[half:]))


def gzip_members(data: bytes) -> bytes:
    half = len(data) // 2
    return b"".join(gzip.compress(part) for part in (data[:half], data[half:]))


@pytest.fixture(scope="module")
def plain(tmp_path_factory, gpt2):
    """The reference: the same records as plain JSON lines."""
    directory = tmp_path_factory.mktemp("plain")
    source = write_jsonl(directory / "a.jsonl", RECORDS)
    argv = ["--input", source, "--output-prefix", directory / "out", *gpt2.flags, *FLAGS]
    assert main([str(word) for word in argv]) == 0
    return directory / "out"


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.jsonl.gz", lambda d: gzip_members(jsonl_bytes(d))),
        ("a.json.zst", lambda d: zstd_frames(jsonl_bytes(d))),
        ("a.bz2", lambda d: bz2.compress(jsonl_bytes(d))),
        ("a.unknown", jsonl_bytes),
        ("a.csv", lambda d: csv_bytes()),
        ("a.csv.gz", lambda d: gzip.compress(csv_bytes())),
        ("a.csv.zst", lambda d: zstandard.compress(csv_bytes())),
        ("a.tsv", lambda d: csv_bytes("\t")),
        ("a.tsv.bz2", lambda d: bz2.compress(csv_bytes("\t"))),
        ("bom.csv", lambda d: b"\xef\xbb\xbf" + csv_bytes()),
        ("a.parquet", lambda d: parquet_bytes(row_group_size=10)),
        ("dictionary.parquet", lambda d: parquet_bytes(use_dictionary=True, compression="zstd")),
        ("a.parquet.gz", lambda d: gzip.compress(parquet_bytes())),
    ],
)
def test_formats(tmp_path, plain, name, make, prepare):
    source = tmp_path / name
    source.write_bytes(make(tmp_path))
    result = prepare(source, *FLAGS)
    assert result.code == 0, result.err
    assert_same_pair(tmp_path / "ours", plain)


def test_a_directory_is_read_by_name_to_any_depth(tmp_path, prepare):
    directory = tmp_path / "in"
    (directory / "deep").mkdir(parents=True)
    write_jsonl(directory / "b.jsonl", RECORDS[:3])
    write_jsonl(directory / "deep" / "c.jsonl", RECORDS[3:5])
    write_jsonl(directory / "a.jsonl", RECORDS[5:9])
    (directory / "README.md").write_text("not data")
    assert prepare(directory, *FLAGS).code == 0
    merged = write_jsonl(tmp_path / "all.jsonl", RECORDS[5:9] + RECORDS[:5])
    assert prepare(merged, *FLAGS, prefix="ref").code == 0
    assert_same_pair(tmp_path / "ours", tmp_path / "ref")


def test_standard_input(tmp_path, plain, monkeypatch, prepare):
    reader, writer = os.pipe()

    def feed():
        with os.fdopen(writer, "wb") as stream:
            stream.write(jsonl_bytes(tmp_path))

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(reader, "rb") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        result = prepare("-", *FLAGS)
    thread.join()
    assert result.code == 0, result.err
    assert_same_pair(tmp_path / "ours", plain)


def test_standard_input_cannot_be_resumed(prepare):
    result = prepare("-", *FLAGS, "--resume", prefix="o")
    assert result.code == 2
    assert "cannot be read again" in result.err


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.jsonl.bz2", "a.parquet"])
def test_files_that_are_truncated_or_not_what_they_say(tmp_path, name, prepare):
    data = jsonl_bytes(tmp_path)
    make = {".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress}
    whole = make[os.path.splitext(name)[1]](data) if "parquet" not in name else parquet_bytes()
    source = tmp_path / name
    for content in (whole[:-20], b"this is just text\n" * 10):
        source.write_bytes(content)
        result = prepare(source, *FLAGS)
        assert result.code == 2
        assert str(source) in result.err
        assert "cannot be read" in result.err
        assert not list(tmp_path.glob("ours*.idx"))


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_missing_column_is_named(tmp_path, name, prepare):
    source = tmp_path / name
    source.write_bytes(csv_bytes() if name == "a.csv" else parquet_bytes())
    result = prepare(source, "--json-keys", "body")
    assert result.code == 2
    assert "no column 'body'" in result.err
    assert "'id', 'text'" in result.err


def test_bad_rows_are_named(tmp_path, prepare):
    (tmp_path / "a.csv").write_text("id,text\n1,x\n2\n")
    result = prepare(tmp_path / "a.csv", prefix="o")
    assert result.code == 2
    assert f"{tmp_path / 'a.csv'} row 2" in result.err
    table = pa.table({"text": pa.array(["a", None, "b"])})
    pq.write_table(table, tmp_path / "a.parquet")
    result = prepare(tmp_path / "a.parquet", prefix="o")
    assert result.code == 2
    assert f"{tmp_path / 'a.parquet'} row 2" in result.err
    assert "not text but null" in result.err


def test_parquet_lists_of_sentences(tmp_path, prepare):
    rows = [{"text": ["a b", "c"]}, {"text": []}, {"text": ["", "d"]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    for path, prefix in ((tmp_path / "a.parquet", "ours"), (source, "ref")):
        assert prepare(path, "--append-eod", prefix=prefix).code == 0
    assert_same_pair(tmp_path / "ours", tmp_path / "ref")


def test_a_file_that_shrinks_while_it_is_read(tmp_path, monkeypatch, prepare):
    from accel_bridge.pretrain.preprocess import inputs as inputs_module
    from accel_bridge.pretrain.preprocess import run as run_module

    source = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    found = inputs_module.find_sources([str(source)])
    longer = [type(found[0])(str(source), "jsonl", None, found[0].size + 5000, 0)]
    monkeypatch.setattr(run_module, "find_sources", lambda *_: longer)
    result = prepare(source, *FLAGS)
    assert result.code == 2
    assert "changed" in result.err


def test_a_row_with_more_cells_than_columns_is_a_bad_record(tmp_path, run):
    """Text with a delimiter that is not quoted would be cut off there, silently."""
    table = tmp_path / "a.csv"
    table.write_text("text,id\n1 2,a\n3 4,5 6,b\n7 8,c,,\n")
    words = ("--input", table, "--output-prefix", tmp_path / "o")
    words += ("--tokenizer-type", "NullTokenizer", "--vocab-size", 100, "--workers", 1)
    refused = run(*words)
    assert refused.code == 2
    assert f"{table} row 2: 3 cells in a table of 2 columns" in refused.err
    skipped = run(*words, "--on-error", "skip")
    assert skipped.code == 0
    assert "documents  2" in skipped.out


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_line_without_an_end_is_refused_and_not_read(tmp_path, run, monkeypatch, name):
    """A disk of zeros, or a small archive of them, would fill the memory."""
    monkeypatch.setattr(planner_module, "_LONGEST_LINE", 9 << 20)
    text = b'{"text": "1 2"}\n' + bytes(30 << 20)
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    null = ["--tokenizer-type", "NullTokenizer", "--vocab-size", "9"]
    done = run("--input", tmp_path / name, "--output-prefix", tmp_path / "x", *null)
    assert done.code == 2
    assert "a line is longer than 9 MiB" in done.err
    assert f"{tmp_path / name}: no line ends in" in done.err

"""Input that Megatron's tool hangs on: here an error that says where, or the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .support import reference_lines, write_jsonl, write_reference

GOOD = b'{"text": "good"}'


def outputs(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("ours*"))


#: A line that the reference fails on, and what the message must say.
BAD_LINES = {
    "malformed": (b'{"text": "x"', "not JSON"),
    "two objects": (b'{"text": "x"}{"text": "y"}', "not JSON"),
    "blank": (b"", "empty line"),
    "spaces": (b"   ", "empty line"),
    "missing key": (b'{"body": "x"}', "no key 'text'; the record's keys: body"),
    "no object": (b'["text"]', "not an object but a list"),
    "a string": (b'"text"', "not an object but a string"),
    "null": (b'{"text": null}', "not text but null"),
    "number": (b'{"text": 12}', "not text but a number"),
    "boolean": (b'{"text": true}', "not text but a boolean"),
    "object": (b'{"text": {"a": "b"}}', "not text but an object"),
    "list with a number": (b'{"text": ["a", 1]}', "a list with a number in it"),
    "nested list": (b'{"text": [["a"]]}', "a list with a list in it"),
    "lone surrogate": (b'{"text": "a\\ud800b"}', "a lone surrogate \\ud800"),
    "invalid UTF-8": (b'{"text": "a\xff"}', "not UTF-8"),
    "surrogate in UTF-8": (b'{"text": "\xed\xa0\x80"}', "not UTF-8"),
    "raw control character": (b'{"text": "a\tb"}', "not JSON"),
    "raw NUL": (b'{"text": "a\x00b"}', "not JSON"),
    "byte order mark": (b'\xef\xbb\xbf{"text": "x"}', "not JSON"),
    "huge integer": (b'{"n": ' + b"1" * 5000 + b', "text": "x"}', "Exceeds the limit"),
    "deep nesting": (b'{"a": ' + b"[" * 200000 + b', "text": "x"}', "Recursion"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_named_and_nothing_is_left(tmp_path, name, prepare):
    line, reason = BAD_LINES[name]
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"\n".join([GOOD, GOOD, line, GOOD]) + b"\n")
    result = prepare(source)
    assert result.code == 2
    assert f"{source}:3" in result.err
    assert reason in result.err
    assert "next:" in result.err
    assert outputs(tmp_path) == []


@pytest.mark.parametrize("name", BAD_LINES)
def test_the_reference_fails_on_it_too(tmp_path, megatron_gpt2, name):
    """So none of the errors above is this tool's own invention."""
    source = tmp_path / "a.jsonl"
    source.write_bytes(BAD_LINES[name][0] + b"\n")
    with pytest.raises(Exception):  # noqa: B017, PT011 (whatever the reference raises)
        write_reference(tmp_path / "ref", list(reference_lines(source)), megatron_gpt2)


def test_skipping_counts_and_lists(tmp_path, agree):
    source, log = tmp_path / "a.jsonl", tmp_path / "errors.jsonl"
    lines = [line for bad, _ in BAD_LINES.values() for line in (GOOD, bad)]
    source.write_bytes(b"\n".join(lines) + b"\n")
    good = [json.loads(GOOD)] * len(BAD_LINES)
    done = agree(source, "--on-error", "skip", "--error-log", log, records=good)
    assert f"skipped    {len(BAD_LINES)}" in done.out
    entries = [json.loads(entry) for entry in log.read_text().splitlines()]
    assert [entry["line"] for entry in entries] == list(range(2, len(lines) + 1, 2))
    for entry, (_, reason) in zip(entries, BAD_LINES.values(), strict=True):
        assert entry["file"] == str(source)
        assert reason in entry["reason"]


#: Lines that only some parsers take; the reference does, so the bytes must be its own.
ODD_LINES = {
    "NaN": b'{"n": NaN, "text": "x"}',
    "Infinity": b'{"n": [Infinity, -Infinity], "text": "x"}',
    "duplicate keys": b'{"text": "first", "text": "last"}',
    "duplicate keys, first bad": b'{"text": null, "text": "last"}',
    "long integer": b'{"n": ' + b"1" * 4000 + b', "text": "x"}',
    "digits in text": b'{"text": "' + b"1" * 9000 + b'"}',
    "escaped NUL": b'{"text": "a\\u0000b"}',
    "escaped pair": b'{"text": "\\ud83d\\ude00"}',
    "noncharacters": '{"text": "\ufffe\uffff\U0010ffff"}'.encode(),
    "white space around": b' \t {"text" : "x"} \t ',
    "line separators": '{"text": "a\u2028b\u2029c\x85d"}'.encode(),
    "vertical tab and form feed escapes": b'{"text": "a\\u000bb\\fc"}',
    "delete": b'{"text": "a\x7fb"}',
    "list text": b'{"text": ["a", "b"]}',
    "empty list": b'{"text": []}',
    "big float": b'{"n": 1e999, "text": "x"}',
    "deep but legal": b'{"a": ' + b"[" * 500 + b"]" * 500 + b', "text": "x"}',
}


def test_odd_lines_are_read_as_the_reference_reads_them(tmp_path, agree):
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"\n".join(line for odd in ODD_LINES.values() for line in (GOOD, odd)))
    agree(source)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("absent.jsonl", "no such input"),
        ("*.nothing", "no such input"),
        ("empty", "no file of a known format"),
    ],
)
def test_missing_input(tmp_path, given, said, prepare):
    (tmp_path / "empty").mkdir()
    result = prepare(tmp_path / given)
    assert result.code == 2
    assert said in result.err
    assert outputs(tmp_path) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tokenizer-type", "GPT2BPETokenizer", "--merge-file", "M"], "needs --vocab-file"),
        (
            ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", "X", "--merge-file", "M"],
            "no such",
        ),
        (["--tokenizer-type", "NullTokenizer"], "needs --vocab-size"),
        (
            ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "gpt2/nothing"],
            "no such",
        ),
        (["--tokenizer-type", "MultimodalTokenizer"], "makes no data"),
        (
            ["--tokenizer-type", "NullTokenizer", "--vocab-size", "9", "--workers", "0"],
            "'0' is no whole number from 1",
        ),
        (
            ["--tokenizer-type", "NullTokenizer", "--vocab-size", "9", "--error-log", "e"],
            "--on-error skip",
        ),
        (
            ["--tokenizer-type", "NullTokenizer", "--vocab-size", "9", "--json-keys", "a", "a"],
            "names a key twice",
        ),
    ],
)
def test_wrong_calls(tmp_path, run, flags, said):
    source = tmp_path / "a.jsonl"
    source.write_bytes(GOOD)
    result = run("--input", source, "--output-prefix", tmp_path / "ours", *flags)
    assert result.code == 2
    assert said in result.err
    assert "next:" in result.err


def test_the_same_bytes_whatever_the_glob_order(tmp_path, agree):
    for name in ("c", "a", "b"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": f"file {name}"}])
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    agree(tmp_path / "*.jsonl", records=list(reference_lines(*paths)))


#: A pattern that Oniguruma gives up on, which panics in Rust.
HOSTILE = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {
        "type": "Split",
        "pattern": {"Regex": "((((a+)+)+)+)+$"},
        "behavior": "Isolated",
        "invert": False,
    },
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
}


@pytest.mark.parametrize("skip", [True, False])
def test_a_pattern_that_gives_up_is_a_refusal(tmp_path, run, skip):
    (tmp_path / "tokenizer.json").write_text(json.dumps(HOSTILE))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "ab"}\n{"text": "' + "a" * 60 + 'b"}\n')
    argv = ["--input", source, "--output-prefix", tmp_path / "o"]
    argv += ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tmp_path]
    result = run(*argv, *(["--on-error", "skip"] if skip else []))
    assert "Traceback" not in result.err
    if skip:
        assert result.code == 0, result.err
        assert "skipped    1" in result.out
    else:
        assert result.code == 2
        assert "the tokenizer refuses it: its library gave up" in result.err

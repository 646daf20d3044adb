"""``accel-bridge tokenizer train``: its files serve this tool and Megatron's own classes alike."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from accel_bridge.pretrain.preprocess import tokenizer_main

from .support import TEXTS, assert_same_pair, write_jsonl, write_reference

ROWS = [{"text": text} for text in (*TEXTS * 4, *(" ".join(TEXTS[i:]) for i in range(4)))]
#: Kind -> Megatron's name of the class, and its files below the directory.
CLASSES = {
    "bpe": ("GPT2BPETokenizer", {"vocab_file": "vocab.json", "merge_file": "merges.txt"}),
    "wordpiece": ("BertWordPieceLowerCase", {"vocab_file": "vocab.txt"}),
    "sentencepiece": ("Llama2Tokenizer", {"tokenizer_model": "tokenizer.model"}),
}
#: What Megatron's classes find beside the files of a kind.
CONFIGURATIONS = {"bpe": ("gpt2", "GPT2Tokenizer"), "wordpiece": ("bert", "BertTokenizer")}

ROOT = Path(__file__).parents[2]

Train = Callable[..., SimpleNamespace]


@pytest.fixture
def train(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Train:
    """Train on ``rows`` (JSON lines) or ``given`` paths; ``code``, ``out``, ``err``."""

    def call(*words: object, given: list[Path] | None = None) -> SimpleNamespace:
        inputs = given or [write_jsonl(tmp_path / "rows.jsonl", ROWS)]
        capfd.readouterr()
        code = tokenizer_main(["train", "--input", *map(str, inputs), *map(str, words)])
        out, err = capfd.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return call


def flags_of(done: SimpleNamespace) -> list[str]:
    """The flags that the command says the tokenizer is used with."""
    (line,) = (line for line in done.out.splitlines() if line.startswith("use "))
    return line.split()[1:]


@pytest.mark.parametrize("kind", CLASSES)
def test_its_flags_work_here_and_in_megatron(
    kind: str, tmp_path: Path, train: Train, run, megatron_tokenizer
) -> None:
    # The names that Megatron's classes look for.
    directory = tmp_path / ("bert-large-uncased" if kind == "wordpiece" else "gpt2")
    size = {"bpe": 600, "wordpiece": 350, "sentencepiece": 500}[kind]
    done = train("--output", directory, "--vocab-size", size, "--kind", kind)
    assert done.code == 0, done.err
    assert f"tokens     {size}" in done.out
    words = ["--input", tmp_path / "rows.jsonl", "--output-prefix", tmp_path / "ours"]
    assert run(*words, *flags_of(done)).code == 0
    name, files = CLASSES[kind]
    assert flags_of(done)[1] == name
    if kind in CONFIGURATIONS:
        model, tokenizer_class = CONFIGURATIONS[kind]
        (directory / "config.json").write_text(f'{{"model_type": "{model}"}}')
        (directory / "tokenizer_config.json").write_text(
            f'{{"tokenizer_class": "{tokenizer_class}"}}'
        )
    paths = {flag: str(directory / file) for flag, file in files.items()}
    tokenizer = megatron_tokenizer(tokenizer_type=name, directory=tmp_path, **paths)
    write_reference(tmp_path / "reference", ROWS, tokenizer, append_eod=False)
    assert_same_pair(tmp_path / "ours", tmp_path / "reference")


def test_its_directory_is_a_huggingface_tokenizer(tmp_path: Path, train: Train, run) -> None:
    """The same ids, and the end of a document is known."""
    directory = tmp_path / "tokenizer"
    done = train("--output", directory, "--vocab-size", 600)
    words = ["--input", tmp_path / "rows.jsonl", "--append-eod", "--output-prefix"]
    assert run(*words, tmp_path / "a", *flags_of(done)).code == 0
    flags = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", directory]
    assert run(*words, tmp_path / "b", *flags).code == 0
    assert_same_pair(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_every_text_comes_back(kind: str, tmp_path: Path, train: Train) -> None:
    """Of scripts that it never saw, too."""
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer

    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "only plain words here. " * 20}] * 20)
    assert train("--output", tmp_path / "t", "--vocab-size", 275, "--kind", kind, given=[source])
    unseen = "你好 😀\tΓειά  σου"
    if kind == "bpe":
        tokenizer = Tokenizer.from_file(str(tmp_path / "t" / "tokenizer.json"))
        assert tokenizer.decode(tokenizer.encode(unseen).ids) == unseen
    else:
        processor = SentencePieceProcessor(model_file=str(tmp_path / "t" / "tokenizer.model"))
        assert processor.decode(processor.encode(unseen)) == unseen


def test_the_same_text_makes_the_same_files(tmp_path: Path, train: Train) -> None:
    for name in ("a", "b"):
        assert train("--output", tmp_path / name, "--vocab-size", 500).code == 0
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_every_input_that_preprocess_takes(tmp_path: Path, train: Train) -> None:
    """Plain text, JSON lines, CSV and compressed ones make the same tokenizer of the same text."""
    text = " ".join(TEXTS[:5])
    directory = tmp_path / "plain"
    directory.mkdir()
    (directory / "a.txt").write_text(text, encoding="utf-8", newline="")
    table = tmp_path / "a.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "body"], ["1", text]])
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps({"body": [text[:40], text[40:]]}).encode()))
    inputs = {
        "text": (directory, ["--input-format", "text"]),
        "csv": (table, ["--json-keys", "body"]),
        "json": (write_jsonl(tmp_path / "a.jsonl", [{"text": text}]), []),
        "gzip": (packed, ["--json-keys", "body"]),
    }
    made = {}
    for name, (path, words) in inputs.items():
        out = tmp_path / f"out-{name}"
        done = train("--output", out, "--vocab-size", 300, *words, given=[path])
        assert done.code == 0, done.err
        made[name] = (out / "merges.txt").read_bytes()
    assert made["text"] == made["csv"] == made["json"]
    assert made["gzip"].startswith(b"#version")


def test_nothing_is_written_over(tmp_path: Path, train: Train) -> None:
    directory = tmp_path / "t"
    directory.mkdir()
    (directory / "vocab.json").write_text("mine")
    done = train("--output", directory, "--vocab-size", 500)
    assert done.code == 2
    assert "holds files already" in done.err
    assert [path.name for path in directory.iterdir()] == ["vocab.json"]
    assert (directory / "vocab.json").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    assert train("--output", tmp_path / "file", "--vocab-size", 500).code == 2
    assert (tmp_path / "file").read_text() == "mine"


BAD_ROWS = {
    "not JSON": ('{"text": "a"}\nnot json\n', ":2: not JSON"),
    "no key": ('{"text": "a"}\n{"body": "a"}\n', ":2: no key 'text'; the record's keys: body"),
    "a surrogate": ('{"text": "\\ud800"}\n', "a lone surrogate '\\ud800' is not text"),
    "no text": ('{"text": ""}\n', "the input holds no text"),
    "empty": ("", "the input holds no text"),
    "plain text": ("Once upon a time\n", "if it is plain text: --input-format text"),
}


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_input_ends_in_three_parts_and_leaves_nothing(
    case: str, kind: str, tmp_path: Path, train: Train
) -> None:
    content, said = BAD_ROWS[case]
    source = tmp_path / "bad.jsonl"
    source.write_text(content)
    done = train("--output", tmp_path / "t", "--vocab-size", 500, "--kind", kind, given=[source])
    assert done.code == 2
    if not (kind == "sentencepiece" and case in ("no text", "empty")):
        assert said in done.err
    assert "evidence:" in done.err
    assert "next:" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--vocab-size", "256"], "256 bytes and the end of a document alone are 257"),
        (["--vocab-size", "0"], "is no whole number from 1"),
        (["--vocab-size", "10", "--kind", "wordpiece"], "is too small"),
        (["--vocab-size", str(2**31 - 1)], "is too large"),
        (["--vocab-size", "9" * 400], "is no whole number from 1"),
        (["--vocab-size", "90000", "--kind", "sentencepiece"], "next:     --vocab-size "),
        (["--kind", "bpe"], "required: --vocab-size"),
        (["--vocab-size", "500", "--input-format", "text", "--json-keys", "a", "b"], "no keys"),
    ],
)
def test_what_cannot_be_trained_is_said(
    words: list[str], said: str, tmp_path: Path, train: Train
) -> None:
    done = train("--output", tmp_path / "t", *words)
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "t").exists()


def test_plain_text_is_one_document_a_file(tmp_path: Path, run, gpt2, prepare) -> None:
    directory = tmp_path / "plain"
    directory.mkdir()
    texts = ["\ufeffFirst file.\n\nIts second paragraph.\n", "Second file.\r\n", ""]
    for number, text in enumerate(texts):
        (directory / f"{number}.txt").write_text(text, encoding="utf-8", newline="")
    words = ["--input-format", "text", "--output-prefix", tmp_path / "plain-out", *gpt2.flags]
    done = run("--input", directory, *words, "--append-eod")
    assert done.code == 0, done.err
    rows = [{"text": texts[0][1:]}, {"text": texts[1]}]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert prepare(source, "--append-eod", prefix="b")
    assert_same_pair(tmp_path / "plain-out", tmp_path / "b")


def test_plain_text_that_is_none(tmp_path: Path, run, gpt2, monkeypatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    words = ["--input-format", "text", "--output-prefix", tmp_path / "out", *gpt2.flags]
    done = run("--input", tmp_path / "a.txt", *words)
    assert done.code == 2
    assert "not UTF-8" in done.err
    assert "at byte 4" in done.err
    monkeypatch.setattr("accel_bridge.pretrain.preprocess.planner.MAX_BYTES", 3)
    assert "too long for one document" in run("--input", tmp_path / "a.txt", *words).err

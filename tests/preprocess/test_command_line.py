"""Flags, imports, notes, progress, and the summary."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_examples import examples

from accel_bridge.pretrain.preprocess import main
from accel_bridge.pretrain.preprocess._arguments import build_parser

from .support import write_jsonl

#: All flags of Megatron 0.19's tools/preprocess_data.py, its tokenizer arguments included.
MEGATRON_FLAGS = """
--vocab-size --padded-vocab-size --no-pad-vocab-size --disable-pad-vocab-size --vocab-file
--merge-file --vocab-extra-ids --tokenizer-type --tokenizer-model --tokenizer-metadata
--tokenizer-special-tokens --tiktoken-pattern --tiktoken-num-special-tokens
--tokenizer-sentencepiece-legacy --no-tokenizer-sentencepiece-ignore-extra-whitespaces
--disable-tokenizer-sentencepiece-ignore-extra-whitespaces --tokenizer-hf-no-use-fast
--tokenizer-hf-no-include-special-tokens --trust-remote-code --null-tokenizer-eod-id
--null-tokenizer-pad-id --chat-template
--input --json-keys --split-sentences --keep-newlines --append-eod --lang --output-prefix
--workers --find-optimal-num-workers --workers-to-check --max-documents --partitions
--log-interval --keep-sequential-samples
""".split()


def test_every_flag_of_megatrons_tool_is_known():
    known = {option for action in build_parser()._actions for option in action.option_strings}
    assert set(MEGATRON_FLAGS) <= known


@pytest.mark.megatron
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Megatron asks for names that are old
def test_the_tokenizer_flags_are_those_of_the_installed_megatron():
    import argparse

    from megatron.training.arguments import _add_tokenizer_args

    theirs = _add_tokenizer_args(argparse.ArgumentParser())
    options = {option for action in theirs._actions for option in action.option_strings}
    assert options - {"-h", "--help"} <= set(MEGATRON_FLAGS)


FAST_PATH = """
import sys
from accel_bridge.pretrain.preprocess import main, inspect_main
code = main(sys.argv[2:]) or inspect_main([sys.argv[1]])
heavy = {"torch", "megatron", "transformers", "awkward", "pandas", "ray", "nltk", "rich"}
print(sorted(heavy & set(sys.modules)))
sys.exit(code)
"""


def test_the_fast_path_imports_nothing_heavy(tmp_path, gpt2):
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    argv = ["--input", source, "--output-prefix", tmp_path / "x", *gpt2.flags, "--append-eod"]
    found = subprocess.run(
        [sys.executable, "-c", FAST_PATH, tmp_path / "x_text_document", *map(str, argv)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "how",
    [["-m", "accel_bridge.pretrain.preprocess"], ["-m", "accel_bridge.pretrain.preprocess_data"]],
)
def test_both_ways_to_call_it(tmp_path, gpt2, how):
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    argv = ["--input", source, "--output-prefix", tmp_path / "out" / "x", *gpt2.flags]
    found = subprocess.run(
        [sys.executable, *how, *map(str, argv)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "out" / "x_text_document.idx").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--dataset-impl", "mmap"], "--dataset-impl mmap has no effect"),
        (["--tokenizer-metadata", "x"], "--tokenizer-metadata has no effect"),
        (["--partitions", "2"], "round-robin"),
    ],
)
def test_notes(tmp_path, flags, said, prepare):
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    result = prepare(source, *flags, prefix="x")
    assert result.code == 0
    assert said in result.err


def test_find_optimal_num_workers(tmp_path, prepare):
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "a b c"}] * 50)
    words = "--partitions 2 --find-optimal-num-workers --workers-to-check 1 2 4 "
    words += "--max-documents 20 --block-bytes 100"
    result = prepare(source, *words.split(), prefix="x")
    assert result.code == 0, result.err
    assert "The most optimal num of workers is" in result.out
    assert "1 workers:" not in result.out
    assert not list(tmp_path.glob("x*"))


NULL = ["--tokenizer-type", "NullTokenizer", "--vocab-size", 100, "--workers", 1]


def test_an_output_prefix_from_a_variable_that_is_not_set(tmp_path, run):
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "1 2"}])
    result = run("--input", source, "--output-prefix", "", *NULL)
    assert result.code == 2
    assert "--output-prefix is empty" in result.err


def test_a_prefix_cannot_drive_the_terminal(tmp_path, run):
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "1 2"}])
    result = run("--input", source, "--output-prefix", tmp_path / "\x1b[31m", *NULL)
    assert result.code == 0
    assert "\x1b" not in result.out + result.err


#: What words may stand after a flag, besides those that make sense.
ODD = st.one_of(
    st.sampled_from(
        "-1 0 1 2 1.5 nan x y 1e9 99999999999999999999 /dev/null /dev/full . .. a/b/c in.jsonl - "
        "--append-eod \x1b[31m utf-16 english text id".split()
    ),
    st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), max_size=8),
)
#: Every flag that neither starts a cluster nor measures for minutes.
ANY_FLAG = st.sampled_from(
    sorted(
        flag
        for action in build_parser()._actions
        for flag in action.option_strings
        if flag not in ("--engine", "--ray-address", "--find-optimal-num-workers", "--input")
    )
)


@given(st.lists(st.tuples(ANY_FLAG, st.lists(ODD, max_size=2)), max_size=3))
@examples(60)
def test_any_command_line_is_answered(flags):
    """A pair that is whole, or an error in three parts and nothing written."""
    words = ["--input", "in.jsonl", "--output-prefix", "out", "--workers", "1"]
    words += ["--tokenizer-type", "NullTokenizer", "--vocab-size", "100"]
    for flag, values in flags:
        # A prefix may be anywhere; this test writes in its own directory only.
        anywhere = flag == "--output-prefix"
        words += [flag, *(value.lstrip("/") if anywhere else value for value in values)]
    said = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.chdir(directory),
        mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        Path("in.jsonl").write_text('{"text": "1 2 3", "id": "4"}\n' * 3)
        try:
            status = main(words)
        except SystemExit as end:  # --help
            status = end.code
            if status == 0:
                return
        made = {path for path in Path(directory).rglob("*") if path.is_file()}
        made.discard(Path(directory, "in.jsonl"))
        if status == 0:
            assert {path.suffix for path in made} >= {".bin", ".idx"}
        else:
            assert status == 2
            assert "accel-bridge: error: " in said.getvalue()
            assert "\n  next:     " in said.getvalue()
            assert not made

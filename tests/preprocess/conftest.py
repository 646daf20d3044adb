"""A small tokenizer, made on the spot, and Megatron's tokenizers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from .support import (
    TEXTS,
    assert_same_pair,
    reference_lines,
    tokenizer_arguments,
    write_reference,
)


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A GPT-2 style tokenizer of 600 tokens: ``vocab``, ``merges``, ``flags``, ``directory``."""
    from tokenizers import ByteLevelBPETokenizer

    home = tmp_path_factory.mktemp("tokenizer")
    directory = home / "gpt2"
    directory.mkdir()
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        list(TEXTS) * 3, vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.save_model(str(directory))
    (directory / "config.json").write_text('{"model_type": "gpt2"}')
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    flags = [
        "--tokenizer-type",
        "GPT2BPETokenizer",
        "--vocab-file",
        str(vocab),
        "--merge-file",
        str(merges),
    ]
    return SimpleNamespace(home=home, directory=directory, vocab=vocab, merges=merges, flags=flags)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """Call :func:`main` in this process; returns ``code``, ``out`` and ``err``."""
    from accel_bridge.pretrain.preprocess import main

    def call(*argv: object) -> SimpleNamespace:
        capfd.readouterr()
        code = main([str(item) for item in argv])
        out, err = capfd.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return call


@pytest.fixture
def prepare(
    tmp_path: Path, gpt2: SimpleNamespace, run: Callable[..., SimpleNamespace]
) -> Callable[..., SimpleNamespace]:
    """``prepare(source, *words, prefix="ours")``: as ``run``, with the small vocabulary."""

    def call(source: object, *words: object, prefix: str = "ours") -> SimpleNamespace:
        sources = source if isinstance(source, list) else [source]
        return run("--input", *sources, "--output-prefix", tmp_path / prefix, *gpt2.flags, *words)

    return call


@pytest.fixture(scope="session")
def megatron_tokenizer(gpt2: SimpleNamespace) -> Callable[..., Any]:
    """Build one of Megatron 0.19's tokenizers, offline.

    Its GPT2BPETokenizer looks for a directory ``gpt2`` in the working directory.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer

    def build(directory: Path = gpt2.home, **given: Any) -> Any:
        with contextlib.chdir(directory):
            return build_tokenizer(tokenizer_arguments(**given))

    return build


@pytest.fixture(scope="session")
def megatron_gpt2(megatron_tokenizer: Callable[..., Any], gpt2: SimpleNamespace) -> Any:
    """Megatron 0.19's GPT2BPETokenizer on the small vocabulary."""
    return megatron_tokenizer(
        tokenizer_type="GPT2BPETokenizer",
        vocab_file=str(gpt2.vocab),
        merge_file=str(gpt2.merges),
    )


@pytest.fixture
def agree(
    tmp_path: Path, megatron_gpt2: Any, prepare: Callable[..., SimpleNamespace]
) -> Callable[..., SimpleNamespace]:
    """``agree(source, *flags)``: the bytes of the small vocabulary are Megatron's own.

    ``records`` are what Megatron is given: those of the source, read as its tool reads them, unless
    some are named. Returns what the command printed.
    """

    def call(
        source: Path,
        *flags: object,
        records: Sequence[Any] | None = None,
        keys: Sequence[str] = ("text",),
        eod: bool = True,
    ) -> SimpleNamespace:
        words = ["--json-keys", *keys, *flags, *(["--append-eod"] if eod else [])]
        done = prepare(source, *words)
        assert done.code == 0, done.err
        records = list(reference_lines(source)) if records is None else records
        for key in keys:
            write_reference(tmp_path / "ref", records, megatron_gpt2, key=key, append_eod=eod)
            assert_same_pair(tmp_path / "ours", tmp_path / "ref", f"{key}_document")
        return done

    return call

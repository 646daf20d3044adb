"""The corpus of these tests, and the reference: Megatron's own code."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TEXTS = (
    "The quick brown fox jumps over the lazy dog. It's what we'd call a pangram!",
    "def f(x):\n    return {'a': x[0] != 1, \"b\": x ** 2}  # comment\n\tpass\r\n",
    "你好，世界。深度学习需要很多数据！机器学习与自然语言处理。",
    "Привет мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया",
    "emoji 😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 and ∑∫√ € ™",
    "numbers 1 12 123 1234567 3.14159 0xff ½ Ⅷ",
    "   leading, trailing and    inner spaces   ",
    "nul \x00 and other controls \x01\x7f\x85",
    "<|endoftext|>literal special<|endoftext|>tokens<|endoftext|>",
    "line one\nline two\rline three\r\nline four\u2028line five",
    "a",
    "",
)


def tokenizer_arguments(**given: Any) -> Namespace:
    """Megatron's tokenizer arguments at their defaults, but for ``given``."""
    defaults = {
        "special_tokens": None,
        "tokenizer_hf_no_use_fast": False,
        "trust_remote_code": False,
        "tokenizer_hf_no_include_special_tokens": False,
        "chat_template": None,
        "tokenizer_model": None,
        "vocab_file": None,
        "merge_file": None,
        "metadata_path": None,
        "pad_vocab_size": False,
        "tokenizer_sentencepiece_legacy": False,
        "tokenizer_sentencepiece_ignore_extra_whitespaces": True,
        "tiktoken_pattern": None,
        "tiktoken_num_special_tokens": 1000,
        "vocab_size": None,
    }
    return Namespace(**{**defaults, **given})


def reference_lines(*paths: Path) -> Iterator[Any]:
    """Records as Megatron's tool reads them."""
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


def write_reference(
    prefix: Path,
    records: Sequence[Any],
    tokenizer: Any,
    *,
    key: str = "text",
    append_eod: bool = True,
    level: str = "document",
) -> None:
    """An .idx/.bin pair by Megatron's own tokenizer and builder, fed as its tool feeds them."""
    from megatron.core.datasets import indexed_dataset

    stem = f"{prefix}_{key}_{level}"
    builder = indexed_dataset.IndexedDatasetBuilder(
        stem + ".bin", dtype=indexed_dataset.DType.optimal_dtype(tokenizer.vocab_size)
    )
    for record in records:
        value = record[key]
        ids: list[int] = []
        lengths: list[int] = []
        for sentence in value if isinstance(value, list) else [value]:
            sentence_ids = tokenizer.tokenize(sentence)
            if len(sentence_ids) > 0:
                ids.extend(sentence_ids)
                lengths.append(len(sentence_ids))
        if ids and append_eod:
            ids.append(tokenizer.eod)
            lengths[-1] += 1
        builder.add_document(ids, lengths)
    builder.finalize(stem + ".idx")


def assert_same_pair(ours: Path, reference: Path, stem: str = "text_document") -> None:
    """Both files are the same, byte for byte."""
    for suffix in (".bin", ".idx"):
        left = Path(f"{ours}_{stem}{suffix}").read_bytes()
        right = Path(f"{reference}_{stem}{suffix}").read_bytes()
        assert left == right, f"{suffix}: {len(left)} bytes, reference {len(right)}"


def write_jsonl(path: Path, records: Sequence[object], **dumps: Any) -> Path:
    """Records as JSON lines."""
    lines = [json.dumps(record, **dumps) for record in records]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path

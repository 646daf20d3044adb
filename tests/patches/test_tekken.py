"""Mistral's tekken.json becomes the vocabulary of Megatron's TikTokenizer."""

from __future__ import annotations

import base64
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from accel_bridge.patches.mindspeed.choices import _PATTERN_V2, read_tekken, settle_choices
from accel_bridge.patching.host import ArgumentError

#: Byte pairs after the 256 bytes, and special tokens with a gap among them.
PAIRS = (b"th", b"the", b" a", "é".encode())
SPECIAL = {0: "<unk>", 1: "<s>", 2: "</s>", 3: "[INST]", 11: "<pad>"}
COUNT = 20


def write(directory: Path, **changes: Any) -> Path:
    tokens = [bytes([i]) for i in range(256)] + list(PAIRS) + [b"beyond the size"]
    document: dict[str, Any] = {
        "config": {
            "pattern": _PATTERN_V2,
            "default_vocab_size": 256 + len(PAIRS) + COUNT,
            "default_num_special_tokens": COUNT,
        },
        "vocab": [
            {"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for i, token in enumerate(tokens)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": text, "is_control": True} for rank, text in SPECIAL.items()
        ],
    }
    for key, value in changes.items():
        (document if key in document else document["config"])[key] = value
    path = directory / "tekken.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.megatron
def test_megatron_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    from megatron.core.tokenizers.text.libraries.tiktoken_tokenizer import TikTokenTokenizer

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path)
    args = Namespace(
        tokenizer_type="MagistralTokenizer",
        tokenizer_model=str(tmp_path),
        special_tokens=None,
        vocab_size=None,
    )
    (line,) = settle_choices(args)
    assert args.tokenizer_type == "TikTokenizer"
    assert "280 tokens" in line
    ours = TikTokenTokenizer(
        args.tokenizer_model,
        special_tokens=args.special_tokens,
        num_special_tokens=args.tiktoken_num_special_tokens,
        pattern=args.tiktoken_pattern,
        vocab_size=args.vocab_size,
    )
    ranks = {bytes([i]): i for i in range(256)} | {pair: 256 + i for i, pair in enumerate(PAIRS)}
    mistral = tiktoken.Encoding("t", pat_str=_PATTERN_V2, mergeable_ranks=ranks, special_tokens={})
    text = "the cat at 2026 sat\nwith a Café — 中文"
    expected = [COUNT + rank for rank in mistral.encode(text)]
    assert ours.text_to_ids(text) == expected
    assert ours.text_to_ids(text) != [COUNT + 1 + rank for rank in mistral.encode(text)]
    assert (ours.bos_id, ours.eos_id, ours.pad_id, ours.vocab_size) == (1, 2, 11, 280)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pattern": r"\w+"}, "cannot become"),
        ({"vocab": [{"rank": 3}]}, "cannot become"),
        ({"default_num_special_tokens": "many"}, "is not Mistral's"),
        ({"special_tokens": None}, "is not Mistral's"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        read_tekken(write(tmp_path, **changes))
    assert said in str(caught.value)
    assert caught.value.evidence
    assert caught.value.next

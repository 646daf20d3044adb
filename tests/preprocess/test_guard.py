"""The fast engine is used only where it is proven equal, and every doubt goes to the exact one."""

from __future__ import annotations

import re

import numpy as np
import orjson
import pytest

from accel_bridge.pretrain.preprocess import build as build_module
from accel_bridge.pretrain.preprocess import guard as guard_module
from accel_bridge.pretrain.preprocess.engines import GigatokenEngine, HuggingFaceEngine
from accel_bridge.pretrain.preprocess.guard import UNICODE_DIFFERENCES, Guard
from accel_bridge.pretrain.preprocess.tokenizer_flags import TokenizerArguments
from accel_bridge.pretrain.preprocess.tokenizers import TokenizerSpec, read_tokenizer

DIFFERENT = [code for first, last in UNICODE_DIFFERENCES for code in range(first, last + 1)]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture
def spec(gpt2) -> TokenizerSpec:
    arguments = TokenizerArguments(
        "GPT2BPETokenizer", vocab_file=str(gpt2.vocab), merge_file=str(gpt2.merges)
    )
    return read_tokenizer(arguments)


def with_pattern(spec: TokenizerSpec, pattern: str) -> TokenizerSpec:
    document = orjson.loads(spec.payload)
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    bytes_only = {**document["pre_tokenizer"], "use_regex": False}
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_only]}
    return TokenizerSpec("huggingface", orjson.dumps(document), 600, 0, spec.options)


def test_exactly_the_listed_code_points_differ(spec):
    """All of the listed ones do, and of the others none in a sample of every 61st does.

    The full sweep over 1,112,064 code points takes 40 s; run it with another step after any
    change of :data:`VERIFIED_VERSIONS`.
    """
    fast = GigatokenEngine(spec.payload)
    exact = HuggingFaceEngine(spec.payload, add_special_tokens=True)
    sample = [p for p in range(0, 0x110000, 61) if not 0xD800 <= p < 0xE000]
    points = sorted({*sample, *DIFFERENT})
    texts = [f"{chr(p)}'s a{chr(p)}'d 1{chr(p)}1 {chr(p)}! {chr(p)}  {chr(p)}the" for p in points]
    ours = fast.encode_utf8([text.encode() for text in texts])
    found = [
        point
        for point, one, other in zip(points, ours, exact.encode(texts), strict=True)
        if not np.array_equal(one, other)
    ]
    assert found == DIFFERENT


def test_the_guard_flags_exactly_the_texts_with_such_code_points():
    guard = Guard(UNICODE_DIFFERENCES)
    pattern = re.compile("[" + "".join(map(chr, DIFFERENT)) + "]")
    texts = [f"x{chr(p)}" for p in range(0x100, 0x34000, 7) if not 0xD800 <= p < 0xE000]
    texts += [f"y{chr(p)}" for p in DIFFERENT]
    flagged = guard.flagged(texts, [text.encode() for text in texts])
    assert flagged == [i for i, text in enumerate(texts) if pattern.search(text)]
    assert len(flagged) >= len(DIFFERENT)


def test_a_failed_self_check_keeps_the_fast_engine_out(spec, monkeypatch):
    """A fast engine that is injected wrong on one probe is not used, and the probe is named."""

    class Wrong(GigatokenEngine):
        def encode_utf8(self, texts):
            return [ids[:-1] if "Straße".encode() in t else ids
                    for t, ids in zip(texts, super().encode_utf8(texts), strict=True)]  # fmt: skip

    monkeypatch.setattr(build_module, "GigatokenEngine", Wrong)
    built = build_module.build_engine(spec)
    assert isinstance(built.engine, HuggingFaceEngine)
    assert "differs from the reference on" in built.reason
    assert "Straße" in built.reason


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ({"gigatoken": "0.0.1"}, "gigatoken is 0.10.0, and 0.0.1 was verified"),
        ({"no-such-engine": "1.0"}, "no-such-engine is not installed; pip install"),
    ],
)
def test_another_version_or_none_keeps_the_fast_engine_out(spec, monkeypatch, versions, reason):
    monkeypatch.setattr(guard_module, "VERIFIED_VERSIONS", versions)
    built = build_module.build_engine(spec)
    assert isinstance(built.engine, HuggingFaceEngine)
    assert reason in built.reason


def test_known_patterns_use_the_fast_engine_and_others_do_not(spec):
    known = build_module.build_engine(with_pattern(spec, LLAMA3))
    assert isinstance(known.engine, guard_module.GuardedEngine), known.reason
    unknown = build_module.build_engine(with_pattern(spec, LLAMA3.replace("{1,3}", "{1,2}")))
    assert isinstance(unknown.engine, HuggingFaceEngine)
    assert "word pattern" in unknown.reason


@pytest.mark.parametrize("pattern", [None, LLAMA3])
def test_long_texts_in_pieces_are_the_same(spec, monkeypatch, pattern):
    from accel_bridge.pretrain.preprocess import engines as engines_module

    chosen = with_pattern(spec, pattern) if pattern else spec
    exact = HuggingFaceEngine(chosen.payload, add_special_tokens=True)
    monkeypatch.setattr(engines_module, "_EXACT_GROUP_CHARACTERS", 50)
    text = "It's  a \n\n text, with 12345 (brackets) \t你好，世界。 <|endoftext|>\r\n😀 end! " * 40
    pieces = exact.encode_in_pieces(text, guard_module._CUTS)
    assert pieces.tolist() == exact.encode([text])[0].tolist()


def test_special_tokens_with_spaces_are_never_cut(spec):
    assert build_module.build_engine(spec).engine._can_cut
    document = orjson.loads(spec.payload)
    document["added_tokens"][0]["content"] = "<end of text>"
    other = TokenizerSpec("huggingface", orjson.dumps(document), 600, 0, spec.options)
    engine = build_module.build_engine(other).engine
    assert isinstance(engine, guard_module.GuardedEngine)
    assert not engine._can_cut


def test_a_long_text_with_such_a_code_point(spec, monkeypatch):
    monkeypatch.setattr(guard_module, "_LONG_CHARACTERS", 100)
    engine = build_module.build_engine(spec).engine
    exact = HuggingFaceEngine(spec.payload, add_special_tokens=True)
    text = "\U000323b0's own words and more of them, 你好，世界 " * 30
    assert engine.encode([text])[0].tolist() == exact.encode([text])[0].tolist()

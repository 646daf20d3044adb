"""From a :class:`TokenizerSpec` to a running engine, fast where that is proven exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import orjson

from ._exact_engines import LiteralGpt2Engine, NullEngine, SentencePieceEngine, TiktokenEngine
from ._tiktoken import PATTERNS, ranks
from .engines import Engine, GigatokenEngine, HuggingFaceEngine, id_type
from .errors import accepted
from .guard import (
    UNICODE_DIFFERENCES,
    VERIFIED_PATTERNS,
    Guard,
    GuardedEngine,
    first_difference,
    unverified,
)
from .tokenizers import TokenizerSpec


@dataclass(frozen=True)
class BuiltEngine:
    """An engine and why it was chosen."""

    engine: Engine
    reason: str


def build_engine(spec: TokenizerSpec, choice: str = "auto") -> BuiltEngine:
    """Build the engine for ``spec``.

    :param choice: ``auto`` takes the fast engine where it is exact, ``exact`` never does.
    :raises TokenizerError: the tokenizer's files do not make a tokenizer.
    """
    with accepted(spec.family):
        return _BUILDERS[spec.family](spec, choice)


def _build_huggingface(spec: TokenizerSpec, choice: str) -> BuiltEngine:
    exact = _exact_huggingface(spec)
    if choice == "exact":
        return BuiltEngine(exact, "asked for with --tokenizer-engine exact")
    obstacle = _fast_obstacle(orjson.loads(spec.payload))
    if obstacle:
        return BuiltEngine(exact, f"the fast engine is not used: {obstacle}")
    try:
        fast = GigatokenEngine(spec.payload, *exact.affixes())
    except ImportError as error:
        return BuiltEngine(exact, f"the fast engine cannot be imported: {error}")
    except ValueError as error:
        return BuiltEngine(exact, f"the fast engine does not take this tokenizer: {error}")
    difference = first_difference(fast, exact)
    if difference is not None:
        return BuiltEngine(exact, f"the fast engine differs from the reference on {difference!r}")
    guard = Guard(UNICODE_DIFFERENCES)
    return BuiltEngine(GuardedEngine(fast, exact, guard), "equal to tokenizers in the self-check")


def _exact_huggingface(spec: TokenizerSpec) -> HuggingFaceEngine:
    return HuggingFaceEngine(
        spec.payload, add_special_tokens=bool(spec.options["add_special_tokens"])
    )


def _fast_obstacle(document: dict[str, object]) -> str | None:
    """Why this tokenizer.json is outside what the guard was proven on, or ``None``."""
    obstacle = unverified()
    if obstacle:
        return obstacle
    model = document["model"]
    assert isinstance(model, dict)
    if model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
        return "it is not byte-level BPE"
    if not _has_known_pattern(document.get("pre_tokenizer")):
        return "its word pattern is none of those that were verified"
    if document.get("normalizer"):
        return "it has a normalizer"
    if document.get("truncation") or document.get("padding") or model.get("dropout"):
        return "it truncates, pads or drops out"
    return None


def _has_known_pattern(pre_tokenizer: object) -> bool:
    """Whether words are cut by GPT-2's pattern, or by one of :data:`VERIFIED_PATTERNS`."""
    if not isinstance(pre_tokenizer, dict):
        return False
    if pre_tokenizer["type"] == "ByteLevel":
        return bool(pre_tokenizer["use_regex"]) and not pre_tokenizer["add_prefix_space"]
    parts = pre_tokenizer.get("pretokenizers") or []
    if [part["type"] for part in parts] != ["Split", "ByteLevel"]:
        return False
    split, byte_level = parts
    return (
        split["pattern"].get("Regex") in VERIFIED_PATTERNS
        and split["behavior"] == "Isolated"
        and not split["invert"]
        and not byte_level["use_regex"]
        and not byte_level["add_prefix_space"]
    )


def _build_literal_gpt2(spec: TokenizerSpec, choice: str) -> BuiltEngine:
    return BuiltEngine(LiteralGpt2Engine(spec.payload), "special tokens are plain text (0.12)")


def _build_sentencepiece(spec: TokenizerSpec, choice: str) -> BuiltEngine:
    engine = SentencePieceEngine(spec.payload, **spec.options)
    return BuiltEngine(engine, "sentencepiece is the reference itself")


def _build_tiktoken(spec: TokenizerSpec, choice: str) -> BuiltEngine:
    special = spec.options["special_tokens"]
    engine = TiktokenEngine(
        PATTERNS[spec.options["pattern"]],
        ranks(orjson.loads(spec.payload), first=len(special)),
        {token: identifier for identifier, token in enumerate(special)},
        literal=spec.options["literal"],
    )
    return BuiltEngine(engine, "tiktoken is the reference itself")


def _build_null(spec: TokenizerSpec, choice: str) -> BuiltEngine:
    return BuiltEngine(
        NullEngine(id_type(spec.vocab_size), spec.vocab_size), "numbers in the text are the ids"
    )


_BUILDERS: dict[str, Callable[[TokenizerSpec, str], BuiltEngine]] = {
    "huggingface": _build_huggingface,
    "gpt2-0.12": _build_literal_gpt2,
    "sentencepiece": _build_sentencepiece,
    "tiktoken": _build_tiktoken,
    "null": _build_null,
}

"""TikTokenizer's vocabulary file and patterns, as Megatron reads them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from .errors import TokenizerError
from .tokenizer_flags import TokenizerArguments

#: Word patterns by the names that ``--tiktoken-pattern`` has for them.
PATTERNS: Mapping[str, str] = {
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": "|".join(
        (
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            r"\p{N}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
}

_SPECIAL_TOKENS = {
    "0.19": ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"),
    "0.12": ("<unk>", "<s>", "</s>"),
}


def special_tokens(arguments: TokenizerArguments) -> list[str]:
    """All special tokens in the order of their ids, which come before all others.

    :raises TokenizerError: those given are too many, doubled, or lack a required one.
    """
    needed = _SPECIAL_TOKENS[arguments.compat]
    given = arguments.special_tokens or needed
    count = arguments.tiktoken_num_special_tokens
    absent = [token for token in needed if token not in given]
    if absent or len(set(given)) != len(given) or len(given) > count:
        raise TokenizerError(
            "TikTokenizer's special tokens do not fit together",
            evidence=[
                f"given: {' '.join(given)}; room for {count}",
                f"missing: {' '.join(absent) or 'none'}",
            ],
            next="give each once with --tokenizer-special-tokens, and those above among them",
        )
    return [*given, *(f"<SPECIAL_{i}>" for i in range(len(given), count))]


def vocabulary(path: Path, size: int) -> list[str]:
    """The first ``size`` tokens of the file, base64.

    :raises TokenizerError: the file is no such vocabulary, or is smaller.
    """
    try:
        entries = orjson.loads(path.read_bytes())
        tokens = [entry["token_bytes"] for entry in entries[:size]]
        sound = all(entry["rank"] == rank for rank, entry in enumerate(entries[:size]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TokenizerError(
            "TikTokenizer's vocabulary file cannot be read",
            evidence=f"{path}: {type(error).__name__}: {error}",
            next="give a JSON list of objects with rank, token_bytes and token_str",
        ) from error
    if not sound or len(tokens) < size:
        raise TokenizerError(
            "TikTokenizer's vocabulary file does not fit",
            evidence=f"{path}: {len(tokens)} tokens for {size} ids, ranks in order: {sound}",
            next="give --vocab-size the number of tokens and special tokens together",
        )
    return tokens


def ranks(tokens: Sequence[str], first: int) -> dict[bytes, int]:
    """tiktoken's table of token to id, ids from ``first`` on."""
    return {base64.b64decode(token): first + rank for rank, token in enumerate(tokens)}

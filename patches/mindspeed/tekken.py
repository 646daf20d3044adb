"""Mistral's tekken.json as the vocabulary of Megatron's TikTokenizer.

Both are tiktoken's byte pairs with special tokens before them, split by the same pattern. Megatron
reads a plain list of the pairs and is told the special tokens apart, so the list is written to the
user's cache. Sources: mistral-common's ``tekken.py`` (1.13), Megatron's ``tiktoken_tokenizer.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accel_bridge.patching.arguments import ArgumentError
from accel_bridge.process.cache import cache_folder

#: How Megatron calls the special tokens of earlier releases, and of this one.
_SPECIAL: Final = ("special_tokens", "tokenizer_special_tokens", "tiktoken_special_tokens")
#: Tokens that Megatron's tokenizer must have; those that Mistral lacks take unused places.
_NEEDED: Final = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
#: Megatron's pattern v2 of words, which is Mistral's.
_PATTERN_V2: Final = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)


@dataclass(frozen=True, slots=True)
class Tekken:
    """A tekken.json.

    :param pairs: its byte pairs, as Megatron reads them: rank, token_bytes, token_str.
    :param special: every special token in the order of their ids, which come first.
    """

    pairs: list[dict[str, Any]]
    special: tuple[str, ...]

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self.special) + len(self.pairs)


def read_tekken(file: Path) -> Tekken:
    """Read Mistral's file.

    :raises ArgumentError: it is no such file, or splits words in another way than Megatron can.
    """
    try:
        document = json.loads(file.read_bytes())
        config = document["config"]
        pattern = str(config["pattern"])
        count = int(config["default_num_special_tokens"])
        size = int(config["default_vocab_size"])
        pairs = document["vocab"][: size - count]
        names = {int(one["rank"]): str(one["token_str"]) for one in document["special_tokens"]}
        ranks_are_sound = [one["rank"] for one in pairs] == list(range(len(pairs)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            "--tokenizer-model is not Mistral's tekken.json.",
            evidence=f"{file}: {type(error).__name__}: {error}",
            next="give the tekken.json of the model, from its Hugging Face folder",
        ) from error
    special = _fill(names, count)
    if not (pattern == _PATTERN_V2 and ranks_are_sound and set(_NEEDED) <= set(special)):
        raise ArgumentError(
            "This tekken.json cannot become a vocabulary of Megatron's TikTokenizer.",
            evidence=f"{file}: pattern {pattern[:60]}..., ranks in order: {ranks_are_sound}, "
            f"room for {count} special tokens, {len(names)} are named",
            next="use the model's Hugging Face tokenizer: --tokenizer-type HuggingFaceTokenizer",
        )
    return Tekken(pairs, special)


def _fill(names: dict[int, str], count: int) -> tuple[str, ...]:
    """Names for all ``count`` places; the last free ones get what Megatron needs besides."""
    special = [names.get(i, f"<SPECIAL_{i}>") for i in range(count)]
    free = [i for i in range(count) if special[i] == f"<SPECIAL_{i}>"]
    for token in _NEEDED:
        if token not in special and free:
            special[free.pop()] = token
    return tuple(special)


def use_tekken(args: argparse.Namespace) -> str:
    """Point Megatron's arguments at the vocabulary in ``--tokenizer-model``.

    A path that does not exist is left to the check of paths, which names it.
    """
    file = Path(args.tokenizer_model or "")
    if file.is_dir():
        file = file / "tekken.json"
    if not file.is_file():
        return f"tokenizer_type = TikTokenizer; {file} is not there yet"
    tekken = read_tekken(file)
    for name in _SPECIAL:
        if hasattr(args, name):
            setattr(args, name, list(tekken.special))
    args.tiktoken_num_special_tokens = len(tekken.special)
    args.tiktoken_pattern = "v2"
    args.vocab_size = tekken.vocab_size
    args.tokenizer_model = str(_cached(tekken))
    return (
        f"tokenizer_type = TikTokenizer with the {tekken.vocab_size} tokens of {file}, "
        f"as {args.tokenizer_model}"
    )


def _cached(tekken: Tekken) -> Path:
    """The byte pairs as a file of their own; every rank may write it at the same time."""
    data = json.dumps(tekken.pairs, separators=(",", ":")).encode()
    folder = cache_folder("tokenizers")
    path = folder / f"tekken-{hashlib.sha256(data).hexdigest()[:16]}.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as partial:
            partial.write(data)
        os.replace(partial.name, path)
    return path

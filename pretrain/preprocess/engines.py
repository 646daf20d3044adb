"""Tokenizer engines: each turns a batch of texts into one array of token ids per text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

#: Ids of one text, shape (tokens,), any integer type that holds them.
Tokens: TypeAlias = npt.NDArray[np.integer[Any]]

#: The integer type of the output.
IdType: TypeAlias = np.dtype[np.integer[Any]]

#: Characters per call of the exact engine, which needs some hundred bytes for each.
_EXACT_GROUP_CHARACTERS = 1 << 18

#: Bytes of padded text per call of the fast engine: keeps its rectangular result small.
_GROUP_BYTES = 1 << 18


class Engine(Protocol):
    """Something that tokenizes."""

    #: Texts encoded so far, by the name of the engine that did it.
    counts: dict[str, int]

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Ids of every text, in order. An error for one text fails the call."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``."""


class HuggingFaceEngine:
    """The ``tokenizers`` library: what Megatron's HuggingFace tokenizers end in."""

    def __init__(self, tokenizer_json: bytes, *, add_special_tokens: bool) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        self._add_special_tokens = add_special_tokens
        self.counts = {"tokenizers": 0}

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        self.counts["tokenizers"] += len(texts)
        result: list[Tokens] = []
        group: list[str] = []
        size = 0
        for text in texts:
            group.append(text)
            size += len(text)
            if size >= _EXACT_GROUP_CHARACTERS:
                result += self._encode_group(group, self._add_special_tokens)
                group, size = [], 0
        return result + self._encode_group(group, self._add_special_tokens)

    def _encode_group(self, texts: list[str], add_special_tokens: bool) -> list[Tokens]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def encode_in_pieces(self, text: str, cuts: re.Pattern[str]) -> Tokens:
        """Ids of a long text, in memory that does not grow with it.

        :param cuts: matches the empty string where the text may be cut without changing ids.
        """
        prefix, suffix = self.affixes()
        parts: list[Tokens] = [np.array(prefix, np.uint32)]
        start = 0
        while start < len(text):
            cut = cuts.search(text, start + _EXACT_GROUP_CHARACTERS)
            end = cut.start() if cut else len(text)
            parts += self._encode_group([text[start:end]], add_special_tokens=False)
            start = end
        return np.concatenate([*parts, np.array(suffix, np.uint32)])

    def special_tokens(self) -> list[str]:
        """Literals that become ids of their own."""
        return [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]

    def affixes(self) -> tuple[list[int], list[int]]:
        """Ids that the post-processor puts before and after every text."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a", add_special_tokens=self._add_special_tokens).ids
        start = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
        return full[:start], full[start + len(bare) :]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


class GigatokenEngine:
    """gigatoken: about a hundred times faster, and exact only under :mod:`.guard`."""

    def __init__(
        self, tokenizer_json: bytes, prefix: Sequence[int] = (), suffix: Sequence[int] = ()
    ) -> None:
        from gigatoken.gigatoken_rs import BytesSource, PadTruncate, load_hf_json

        self._source = BytesSource
        self._backend = load_hf_json(tokenizer_json)
        self._options = PadTruncate(0, prefix=list(prefix), suffix=list(suffix))

    def encode_utf8(self, texts: Sequence[bytes]) -> list[Tokens]:
        """Ids of texts in UTF-8.

        A call costs some 20 microseconds, too much for short texts, and the batch call that
        returns ragged rows needs the awkward package (0.35 s to import), as does any call with
        a list. So texts of like length go together as a source, and a padded matrix returns.
        """
        result: list[Tokens] = [np.empty(0, np.uint32)] * len(texts)
        lengths = [len(text) for text in texts]
        order = sorted(range(len(texts)), key=lengths.__getitem__)
        end = len(order)
        while end:
            longest = max(lengths[order[end - 1]], 1)
            start = max(0, end - max(1, _GROUP_BYTES // longest))
            group = order[start:end]
            matrix, counts = self._backend.encode_batch_padded(
                self._source([texts[index] for index in group]), self._options, parallel=False
            )
            for index, row, count in zip(group, matrix, counts.tolist(), strict=True):
                result[index] = row[:count]
            end = start
        return result


def id_type(vocab_size: int) -> IdType:
    """The integer type that Megatron picks for a vocabulary of ``vocab_size``."""
    return np.dtype(np.uint16 if vocab_size < 65500 else np.int32)

"""Engines that have no fast twin: each is the library, or the rule, that Megatron itself uses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import orjson

from .engines import IdType, Tokens


class NullEngine:
    """Megatron's NullTokenizer: the text is the ids, as decimal numbers between spaces."""

    def __init__(self, dtype: IdType, vocab_size: int) -> None:
        self._dtype = dtype
        self._vocab_size = vocab_size
        self.counts = {"null": 0}

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        self.counts["null"] += len(texts)
        return [self._encode_one(text) for text in texts]

    def _encode_one(self, text: str) -> Tokens:
        ids = np.array([int(word) for word in text.split(" ")], dtype=np.int64)
        if ids.min() < 0 or ids.max() >= self._vocab_size:
            raise OverflowError(f"an id is outside the vocabulary, 0 to {self._vocab_size - 1}")
        return ids.astype(self._dtype)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


class SentencePieceEngine:
    """The sentencepiece library, as Megatron's SentencePieceTokenizer calls it.

    :param special_tokens: tokens of the ``--tokenizer-sentencepiece-legacy`` mode and their
        ids; they are cut out of the text before the rest is tokenized.
    :param bos: id put before every text (Megatron 0.12's Llama2Tokenizer), or ``None``.
    """

    #: Stands for a doubled space where those are to be kept; from Megatron.
    _EXTRA_SPACE = "☯"
    _EXTRA_SPACES = re.compile(r"(?<= )(?= )|^ | $")

    def __init__(
        self,
        model: bytes,
        *,
        special_tokens: Mapping[str, int] | None = None,
        ignore_extra_whitespaces: bool = True,
        bos: int | None = None,
    ) -> None:
        from sentencepiece import SentencePieceProcessor

        self._processor = SentencePieceProcessor(model_proto=model)
        self._special_tokens = dict(special_tokens or {})
        self._prefix = [] if bos is None else [bos]
        pieces = self._processor.encode_as_pieces
        merges_spaces = pieces("x  y") == pieces("x y")
        self._keep_spaces = merges_spaces and not ignore_extra_whitespaces
        self._separator = self._processor.piece_to_id("▁")
        self.counts = {"sentencepiece": 0}

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        self.counts["sentencepiece"] += len(texts)
        return [np.array(self._prefix + self._ids(text), dtype=np.int32) for text in texts]

    def _ids(self, text: str) -> list[int]:
        if self._keep_spaces:
            text = self._EXTRA_SPACES.sub(f" {self._EXTRA_SPACE} ", text).rstrip()
        ids: list[int] = []
        while self._special_tokens:
            found = [(text.find(token), token) for token in self._special_tokens]
            place, token = min(
                ((place, token) for place, token in found if place >= 0),
                key=lambda pair: pair[0],
                default=(-1, ""),
            )
            if place < 0:
                break
            part = self._processor.encode(text[:place])
            after_special = ids and ids[-1] in self._special_tokens.values()
            if after_special and part and part[0] == self._separator:
                # No separator between a special token and the word after it.
                part = part[1:]
            ids += [*part, self._special_tokens[token]]
            text = text[place + len(token) :]
        return ids + self._tail(text)

    def _tail(self, text: str) -> list[int]:
        if not self._keep_spaces:
            return list(self._processor.encode_as_ids(text))
        ids: list[int] = []
        for part in text.split(self._EXTRA_SPACE):
            if part:
                ids += self._processor.encode_as_ids(part + self._EXTRA_SPACE)[:-1]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        size = self._processor.get_piece_size()
        return str(self._processor.decode_ids([int(item) for item in ids if item < size]))


class TiktokenEngine:
    """The tiktoken library, as Megatron's TikTokenizer calls it.

    :param literal: treat special tokens in the text as plain text (Megatron 0.12).
    """

    def __init__(
        self,
        pattern: str,
        ranks: Mapping[bytes, int],
        special_tokens: Mapping[str, int],
        *,
        literal: bool,
    ) -> None:
        import tiktoken

        self._encoding = tiktoken.Encoding(
            "megatron",
            pat_str=pattern,
            mergeable_ranks=dict(ranks),
            special_tokens=dict(special_tokens),
        )
        self._literal = literal
        self.counts = {"tiktoken": 0}

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        self.counts["tiktoken"] += len(texts)
        if self._literal:
            ids = [self._encoding.encode_ordinary(text) for text in texts]
        else:
            ids = [self._encoding.encode(text, allowed_special="all") for text in texts]
        return [np.array(item, dtype=np.int32) for item in ids]

    def decode(self, ids: Sequence[int]) -> str:
        return self._encoding.decode(list(ids))


class LiteralGpt2Engine:
    """GPT-2 as Megatron 0.12 has it: words by the ``regex`` package, no special tokens.

    :param tokenizer_json: the same tokenizer, whose model merges the bytes of a word.
    """

    _WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

    def __init__(self, tokenizer_json: bytes) -> None:
        import regex
        from tokenizers import Tokenizer

        document = orjson.loads(tokenizer_json)
        document["pre_tokenizer"]["use_regex"] = False
        self._tokenizer = Tokenizer.from_buffer(orjson.dumps(document))
        self._words = regex.compile(self._WORDS)
        self.counts = {"regex": 0}

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        self.counts["regex"] += len(texts)
        return [np.array(self._ids(text), dtype=np.uint32) for text in texts]

    def _ids(self, text: str) -> list[int]:
        words = self._words.findall(text)
        return [item for word in self._tokenizer.encode_batch_fast(words) for item in word.ids]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

"""Blocks of conversations in, rows of ids out. Runs in worker processes.

The tokenizer is the model's, with the tokens of the prompt template.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from accel_bridge.pretrain.preprocess.truncation import shares

from ._conversations import Conversation, Message, RecordError, conversation, part
from ._handlers import HandlerArguments
from ._huggingface import ask_transformers
from ._prompt_templates import Piece, PromptTemplate, Token, cut_pair, read_template
from .blocks import Block, LinesBlock, NoValue, read_block
from .encoder import EncodedBlock, KeyTokens
from .engines import Engine, Tokens
from .errors import TokenizerError
from .records import BadRecord, parse, reason_of, split_lines
from .tokenizer_flags import TokenizerArguments
from .tokenizers import TokenizerSpec, read_tokenizer, required

#: Label of a token that is not learned.
IGNORED = -100
#: Room for a conversation where no length is given.
_ANY_LENGTH = 100_000
#: Type of every id on disk: labels are negative.
ID = np.dtype(np.int32)

Ids = list[int]


@dataclass(frozen=True)
class TokenIds:
    """Ids of the tokens that templates name; None where the tokenizer has none."""

    bos: int | None
    eos: int | None
    pad: int | None
    named: Mapping[str, int]

    def of(self, token: Token) -> Ids:
        """The id of a slot's token."""
        if token.text in ("bos_token", "eos_token"):
            found = self.bos if token.text == "bos_token" else self.eos
            return [] if found is None else [found]
        return [self.named[token.text]]


@dataclass(frozen=True)
class Row:
    """What becomes of one record: ids of each key, or none where it is too long."""

    ids: dict[str, Ids] | None


class HandlerEncoder:
    """Encodes blocks of records as one of MindSpeed-LLM's handlers does.

    :param eod: id appended to every row, or ``None``.
    :param keys: for plain text, which values of a record are text.
    """

    def __init__(
        self,
        engine: Engine,
        asked: HandlerArguments,
        template: PromptTemplate | None,
        ids: TokenIds,
        eod: int | None,
        keys: Sequence[str],
    ) -> None:
        self._engine = engine
        self._asked = asked
        self._template = template
        self._ids = ids
        self._eod = [] if eod is None else [eod]
        self._keys = tuple(keys)

    def encode(self, block: Block) -> EncodedBlock:
        """Encode one block; conversations that make no row are counted as left out."""
        bad: list[BadRecord] = []
        content, size = read_block(block)
        if isinstance(content, LinesBlock):
            lines = split_lines(content.data)
            count = len(lines)
            records = _parsed(lines, bad)
        else:
            count = len(next(iter(content.columns.values())))
            records = _rows(content.columns, bad)
        before = dict(self._engine.counts)
        rows, left_out = self._encode(records, bad)
        bad.sort()
        return EncodedBlock(
            records=count,
            documents=len(rows),
            input_bytes=size,
            keys={key: _on_disk(rows, key) for key in self._keys},
            bad=bad,
            engine_counts={
                name: number - before.get(name, 0) for name, number in self._engine.counts.items()
            },
            left_out=left_out,
        )

    def _encode(
        self, records: Iterable[tuple[int, Mapping[str, Any]]], bad: list[BadRecord]
    ) -> tuple[list[Row], int]:
        if self._asked.handler.kind == "text":
            return self._encode_texts(records, bad)
        assert self._template is not None
        pieces = _Pieces(self._engine, self._ids)
        plans = []
        left_out = 0
        for place, record in records:
            try:
                found = conversation(record, self._asked.handler, self._asked.columns)
                if found is None:
                    left_out += 1
                    continue
                plans.append([pieces.plan(turns) for turns in self._talks(found)])
            except RecordError as error:
                bad.append(BadRecord(place, None, str(error)))
        pieces.encode()
        rows = []
        for plan in plans:
            ids = self._row([[pieces.ids(turn) for turn in turns] for turns in plan])
            row = self._fitted(ids)
            left_out += row is None or row.ids is None
            if row is not None:
                rows.append(row)
        return rows, left_out

    def _talks(self, found: Conversation) -> Iterator[list[list[Piece]]]:
        """Turns as pieces: one conversation, or one for each answer of a pair."""
        assert self._template is not None
        if self._asked.handler.kind == "pairs":
            for answer in found.response[:2]:
                yield self._thoughtful(found, [*found.prompt, answer], last_only=True)
        else:
            yield self._thoughtful(found, found.messages, last_only=False)

    def _thoughtful(
        self, talk: Conversation, messages: list[Message], *, last_only: bool
    ) -> list[list[Piece]]:
        """The turns, with the reasoning that ``--enable-thinking`` asks for."""
        template = self._template
        assert template is not None
        if template.kind != "ReasoningTemplate":
            return template.render(talk, messages)
        first, last = template.thought_words
        thought = re.compile(f"{re.escape(first)}(.*?){re.escape(last)}", re.DOTALL)
        final = len(messages) - 1
        for index in range(1, len(messages), 2):
            is_past = last_only and index < final - 1
            if is_past or (self._asked.thinking is False and (index == final or not last_only)):
                text = thought.sub("", messages[index].content).lstrip("\n")
                messages[index] = replace(messages[index], content=text)
        turns = template.render(talk, messages)
        for index in (final,) if last_only else range(1, len(messages), 2):
            content = messages[index].content
            if first in content or last in content:
                continue
            # Reasoning that is empty is learned only where the model is to think.
            if self._asked.thinking:
                turns[index] = [first + last, *turns[index]]
            else:
                turns[index - 1] = [*turns[index - 1], first + last]
        return turns

    def _row(self, talks: list[list[Ids]]) -> dict[str, Ids]:
        """Ids of each key."""
        if self._asked.handler.kind == "pairs":
            return self._pair(talks)
        tokens, labels = self._joined(talks[0])
        if self._asked.handler.kind == "prompts":
            return {"input_ids": tokens, "attention_mask": [1] * len(tokens)}
        tokens += self._eod
        labels += self._eod
        return {"input_ids": tokens, "attention_mask": [1] * len(tokens), "labels": labels}

    def _joined(self, turns: list[Ids]) -> tuple[Ids, Ids]:
        """All turns in a row, and their labels: questions are not learned."""
        assert self._template is not None
        efficient = self._template.efficient_eos
        eos = [] if self._ids.eos is None else [self._ids.eos]
        learns = self._asked.handler.kind == "instruction"
        tokens: Ids = []
        labels: Ids = []
        for question, answer in self._cut(turns):
            mask = [IGNORED] * len(question)
            if labels and efficient and learns:
                mask = eos + mask[1:]
            if self._asked.neat_pack:
                room = (self._asked.seq_length or 0) - 1
                kept, answered = shares(len(question), len(answer), room)
                question, mask, answer = question[:kept], mask[:kept], answer[:answered]
            tokens += question + (answer if learns else [])
            labels += mask + answer
        if efficient and learns:
            tokens += eos
            labels += eos
        return tokens, labels

    def _cut(self, turns: list[Ids]) -> Iterator[tuple[Ids, Ids]]:
        """Questions with answers, cut to the rows' length one after another."""
        template = self._template
        assert template is not None
        room = self._asked.seq_length or _ANY_LENGTH
        if template.kind in ("LFDefaultTemplate", "ReasoningTemplate"):
            room -= 1
        for index in range(0, len(turns), 2):
            if room <= 0:
                return
            question, answer = turns[index], turns[index + 1]
            kept, answered = cut_pair(template, len(question), len(answer), room)
            yield question[:kept], answer[:answered]
            room -= kept + answered

    def _pair(self, talks: list[list[Ids]]) -> dict[str, Ids]:
        """A chosen and a rejected answer to the same prompt, both whole."""
        assert self._template is not None
        end = [self._ids.eos] if self._template.efficient_eos and self._ids.eos is not None else []
        prompt = [token for turn in talks[0][:-1] for token in turn]
        row: dict[str, Ids] = {}
        for name, turns in zip(("chosen", "rejected"), talks, strict=True):
            answer = turns[-1] + end
            row[f"{name}_input_ids"] = prompt + answer
            row[f"{name}_labels"] = [IGNORED] * len(prompt) + answer
        return row

    def _fitted(self, ids: dict[str, Ids]) -> Row | None:
        """The row, without ids where it is too long; None where it is not even counted."""
        if not any(ids.values()):
            return None
        length = self._asked.seq_length
        if length is None or max(map(len, ids.values())) < length:
            return Row(ids)
        if self._asked.neat_pack:
            return Row({key: values[: length - 1] for key, values in ids.items()})
        return None if self._asked.pack else Row(None)

    def _encode_texts(
        self, records: Iterable[tuple[int, Mapping[str, Any]]], bad: list[BadRecord]
    ) -> tuple[list[Row], int]:
        """Rows of plain text; a text without ids makes none."""
        texts: list[str] = []
        for place, record in records:
            try:
                texts += [_text(record, key, self._asked) for key in self._keys]
            except RecordError as error:
                bad.append(BadRecord(place, None, str(error)))
        encoded = self._engine.encode(texts)
        rows = []
        step = len(self._keys)
        for first in range(0, len(texts), step):
            ids = {
                key: [*encoded[first + i].tolist(), *self._eod] if texts[first + i] else []
                for i, key in enumerate(self._keys)
            }
            rows.append(self._fitted(ids))
        kept = [row for row in rows if row is not None]
        return kept, len(rows) - sum(row.ids is not None for row in kept)


class _Pieces:
    """Texts of all turns of a block, encoded in one call."""

    def __init__(self, engine: Engine, ids: TokenIds) -> None:
        self._engine = engine
        self._ids = ids
        self._numbers: dict[str, int] = {}
        self._encoded: list[Tokens] = []

    def plan(self, turns: list[list[Piece]]) -> list[list[int | Token]]:
        """The turns with a number for each text."""
        return [
            [
                piece
                if isinstance(piece, Token)
                else self._numbers.setdefault(piece, len(self._numbers))
                for piece in turn
                if piece != ""
            ]
            for turn in turns
        ]

    def encode(self) -> None:
        """Encode every text once."""
        self._encoded = self._engine.encode(list(self._numbers))

    def ids(self, turn: list[int | Token]) -> Ids:
        """The ids of a planned turn."""
        found: Ids = []
        for piece in turn:
            found += (
                self._ids.of(piece) if isinstance(piece, Token) else self._encoded[piece].tolist()
            )
        return found


def _text(record: Mapping[str, Any], key: str, asked: HandlerArguments) -> str:
    """The text of a record: a value, or the values of a list of turns in a row."""
    value = part(record, key)
    if asked.columns.messages and isinstance(value, list):
        found = [turn.get("value", turn.get("content")) for turn in value]
        value = "".join(found) if all(isinstance(one, str) for one in found) else None
    if not isinstance(value, str):
        raise RecordError(f"{key!r} is no text")
    return value


def _parsed(lines: list[bytes], bad: list[BadRecord]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Records of lines; those that are no objects are added to ``bad``."""
    for place, line in enumerate(lines):
        try:
            record = parse(line)
        except (ValueError, RecursionError) as error:
            bad.append(BadRecord(place, None, reason_of(error, line)))
            continue
        if isinstance(record, dict):
            yield place, record
        else:
            bad.append(BadRecord(place, None, "not an object"))


def _rows(
    columns: Mapping[str, list[object]], bad: list[BadRecord]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for place, values in enumerate(zip(*columns.values(), strict=True)):
        broken = next((value for value in values if isinstance(value, NoValue)), None)
        if broken is not None:
            bad.append(BadRecord(place, None, broken.reason))
        else:
            yield place, dict(zip(columns, values, strict=True))


def _on_disk(rows: list[Row], key: str) -> KeyTokens:
    # A text without ids is no document; a row that is too long is one without a sequence.
    kept = [
        None if row.ids is None else row.ids[key] for row in rows if row.ids is None or row.ids[key]
    ]
    lengths = [len(ids) for ids in kept if ids is not None]
    joined = [token for ids in kept if ids is not None for token in ids]
    return KeyTokens(
        np.array(joined, ID).tobytes(),
        np.array(lengths, ID).tobytes(),
        np.array([ids is not None for ids in kept], ID).tobytes(),
    )


def template_of(asked: HandlerArguments) -> PromptTemplate | None:
    """The prompt template that ``--prompt-type`` names, if conversations are made.

    :raises UsageError: it is not known.
    """
    if asked.template is None:
        return None
    return read_template(asked.template, asked.template_file)


def read_handler_tokenizer(
    arguments: TokenizerArguments, asked: HandlerArguments, template: PromptTemplate | None
) -> TokenizerSpec:
    """The tokenizer as transformers loads it, with the template's tokens added.

    :raises TokenizerError: it cannot be loaded, or lacks a token that the template needs.
    """
    if arguments.tokenizer_type != "HuggingFaceTokenizer":
        return read_tokenizer(arguments)
    (path,) = required(arguments, "--tokenizer-model")
    if importlib.util.find_spec("transformers") is None:
        raise TokenizerError(
            "data handlers load tokenizers through transformers",
            evidence="transformers is not installed",
            next="pip install transformers",
        )
    found = ask_transformers(
        path,
        arguments,
        {
            "template": template is not None,
            "stop_words": template.stop_words if template else (),
            "replace_eos": bool(template and template.replace_eos),
            "tokens": template.tokens if template else (),
        },
    )
    missing = [token for token, number in found["named"].items() if number is None]
    if missing and template is not None:
        raise TokenizerError(
            f"the tokenizer has no token for the template {template.name}",
            evidence=f"{path}: no {', '.join(missing)}",
            next="use the template of this model with --prompt-type, or the model's tokenizer",
        )
    if asked.pack and found["pad"] is None:
        raise TokenizerError(
            "packed rows are filled up, and the tokenizer has no token for that",
            evidence=f"{path}: no pad_token and no eos_token",
            next="name one in its tokenizer_config.json",
        )
    ids = {"bos": found["bos"], "eos": found["eod"], "pad": found["pad"], "named": found["named"]}
    return TokenizerSpec(
        family="huggingface",
        payload=found["tokenizer_json"].encode(),
        vocab_size=found["vocab_size"],
        eod=found["eod"],
        options={"add_special_tokens": asked.is_text, "ids": ids},
    )


def token_ids(spec: TokenizerSpec) -> TokenIds:
    """The ids that :func:`read_handler_tokenizer` found."""
    return TokenIds(**spec.options.get("ids", {"bos": None, "eos": None, "pad": None, "named": {}}))

"""The command line of ``accel-bridge tokenizer``; --help needs no package of an extra."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from accel_bridge.process.parser import Parser, positive

from ._arguments import INPUT_FORMATS

#: Name of a kind of tokenizer -> what it is.
KINDS = {
    "bpe": "byte-level BPE as GPT-2 and Llama 3 have it: vocab.json, merges.txt, tokenizer.json",
    "sentencepiece": "BPE with bytes as Llama 2 has it: tokenizer.model",
    "wordpiece": "WordPiece as BERT has it: vocab.txt, tokenizer.json",
}


@dataclass(frozen=True)
class TrainingArguments:
    """A parsed ``accel-bridge tokenizer train``."""

    inputs: tuple[str, ...]
    input_format: str | None
    json_keys: tuple[str, ...]
    output: str
    vocab_size: int
    kind: str
    cased: bool


def parse(argv: Sequence[str] | None = None) -> TrainingArguments:
    """Parse a command line.

    :raises CommandLineError: it makes no sense.
    """
    parsed = _parser().parse_args(argv)
    return TrainingArguments(
        inputs=tuple(parsed.input),
        input_format=parsed.input_format,
        json_keys=tuple(dict.fromkeys(parsed.json_keys)),
        output=parsed.output,
        vocab_size=parsed.vocab_size,
        kind=parsed.kind,
        cased=parsed.cased,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="accel-bridge tokenizer", description="Make a tokenizer of your own.")
    commands = parser.add_subparsers(required=True, metavar="train")
    train = commands.add_parser(
        "train",
        description="Learns a vocabulary from your text, and writes the files that `accel-bridge "
        "preprocess` and `accel-bridge pretrain` take. Nothing is downloaded or overwritten.",
    )
    train.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="PATH",
        help="files, globs, directories, or - for standard input, as for `accel-bridge preprocess`",
    )
    train.add_argument(
        "--input-format",
        choices=INPUT_FORMATS,
        help="read every input as this format instead of going by its name; text: plain text",
    )
    train.add_argument(
        "--json-keys",
        nargs="+",
        default=["text"],
        metavar="KEY",
        help="keys (columns) with text; all are learned from (default: text)",
    )
    train.add_argument(
        "--output",
        required=True,
        metavar="DIRECTORY",
        help="where the files go: a directory that is new or empty",
    )
    train.add_argument(
        "--vocab-size", type=positive, required=True, metavar="N", help="tokens to have"
    )
    train.add_argument(
        "--kind",
        choices=KINDS,
        default="bpe",
        help="; ".join(f"{name}: {text}" for name, text in KINDS.items()) + " (default: bpe)",
    )
    train.add_argument("--cased", action="store_true", help="wordpiece: tell upper from lower case")
    return parser

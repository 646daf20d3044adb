"""The command lines of `preprocess` (Megatron-LM 0.19's flags with their meaning, and this tool's
own), `inspect` and `tokenizer`. --help needs no package.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from accel_bridge.process.parser import Parser, positive

from ._handlers import HandlerArguments, add_handler, handler_arguments
from .errors import UsageError
from .tokenizer_flags import (
    REFUSED_TOKENIZER_TYPES,
    TOKENIZER_TYPES,
    TokenizerArguments,
    add_tokenizer,
    fields_of,
    tokenizer_arguments,
)

#: What an input can hold. ``text`` is never guessed: Megatron's tool reads .txt as JSON lines.
INPUT_FORMATS = ("jsonl", "parquet", "csv", "tsv", "text")

#: Bytes of input per unit of work. Bounds memory; also how much an interruption can lose.
BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class Arguments:
    """A parsed command line."""

    inputs: tuple[str, ...]
    output_prefix: str
    tokenizer: TokenizerArguments
    json_keys: tuple[str, ...] = ("text",)
    input_format: str | None = None
    append_eod: bool = False
    split_sentences: bool = False
    keep_newlines: bool = False
    lang: str = "english"
    workers: int = 1
    partitions: int = 1
    keep_sequential_samples: bool = False
    log_interval: int = 1000
    find_optimal_num_workers: bool = False
    workers_to_check: tuple[int, ...] = (16, 32, 64)
    max_documents: int | None = None
    on_error: str = "raise"
    error_log: str | None = None
    resume: bool = False
    engine: str = "local"
    ray_address: str | None = None
    block_bytes: int = BLOCK_BYTES
    handler: HandlerArguments | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def output_partitions(self) -> int:
        """Partitions that the order of documents follows; 1 is the input's order."""
        return 1 if self.keep_sequential_samples else self.partitions

    @property
    def columns(self) -> tuple[str, ...]:
        """The parts of a record that are read."""
        return self.json_keys if self.handler is None else self.handler.parts(self.json_keys)

    @property
    def level(self) -> str:
        """What one sequence is: part of the output's file names."""
        return "sentence" if self.split_sentences else "document"


def available_cpus() -> int:
    """CPUs that this process may use (affinity, not what the machine has)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def build_parser() -> argparse.ArgumentParser:
    """The parser; flags that are Megatron's keep its names."""
    parser = Parser(
        prog="accel-bridge preprocess",
        description="Tokenize text into Megatron's .bin/.idx, byte-identical to its own tool.",
    )
    _add_input(parser.add_argument_group("input data"))
    add_tokenizer(parser.add_argument_group("tokenizer"), required=True)
    add_handler(parser.add_argument_group("data handlers of MindSpeed-LLM"))
    _add_output(parser.add_argument_group("output data"))
    _add_runtime(parser.add_argument_group("runtime"))
    _add_ignored(parser.add_argument_group("accepted and without effect here"))
    return parser


def parse(argv: Sequence[str] | None = None) -> Arguments:
    """Parse and check a command line.

    :raises UsageError: for combinations that cannot work.
    """
    parsed = build_parser().parse_args(argv)
    _check(parsed)
    handler = handler_arguments(parsed)
    return Arguments(
        **{
            **fields_of(Arguments, parsed),
            "json_keys": (handler and handler.handler.keys) or tuple(parsed.json_keys),
            "workers": parsed.workers or available_cpus(),
            "tokenizer": tokenizer_arguments(parsed),
            "handler": handler,
            "notes": _notes(parsed),
        }
    )


def _add_input(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--input",
        dest="inputs",
        nargs="+",
        required=True,
        metavar="PATH",
        help="files, globs, directories, or - for standard input: JSON lines, Parquet, CSV or TSV, "
        "each optionally .gz, .zst or .bz2",
    )
    group.add_argument(
        "--input-format",
        choices=INPUT_FORMATS,
        help="read every input as this format instead of going by its name; text: plain text, "
        "one document a file",
    )
    group.add_argument(
        "--json-keys",
        nargs="+",
        default=["text"],
        metavar="KEY",
        help="keys (columns) to tokenize; one .bin/.idx pair each",
    )
    group.add_argument(
        "--split-sentences", action="store_true", help="split documents into sentences"
    )
    group.add_argument(
        "--keep-newlines",
        action="store_true",
        help="keep newlines between sentences when splitting",
    )
    group.add_argument("--lang", default="english", help="language for sentence splitting")
    group.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="what a bad record does: end the run, or be skipped and counted",
    )
    group.add_argument("--error-log", metavar="FILE", help="list skipped records here (JSON lines)")


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--output-prefix", required=True, help="output path without suffix")
    group.add_argument("--append-eod", action="store_true", help="append the end-of-document token")
    group.add_argument(
        "--resume",
        action="store_true",
        help="continue an interrupted run from its last completed block",
    )


def _add_runtime(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workers", type=positive, help="worker processes (default: available CPUs)"
    )
    group.add_argument(
        "--partitions",
        type=positive,
        default=1,
        help="order documents as Megatron does with this many partitions (no files are made)",
    )
    group.add_argument(
        "--keep-sequential-samples",
        action="store_true",
        help="keep the input's order whatever --partitions says",
    )
    group.add_argument(
        "--log-interval", type=positive, default=1000, help="documents between progress lines"
    )
    group.add_argument("--find-optimal-num-workers", action="store_true")
    group.add_argument("--workers-to-check", nargs="+", type=positive, default=[16, 32, 64])
    group.add_argument(
        "--max-documents",
        type=positive,
        default=100_000,
        help="documents to time with --find-optimal-num-workers",
    )
    group.add_argument("--engine", choices=("local", "ray"), default="local")
    group.add_argument("--ray-address", help="address of the Ray cluster (with --engine ray)")
    group.add_argument("--block-bytes", type=positive, default=BLOCK_BYTES, help=argparse.SUPPRESS)


def _add_ignored(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dataset-impl", help="only the indexed (mmap) format exists since 0.4")
    group.add_argument("--padded-vocab-size", type=int)
    group.add_argument(
        "--no-pad-vocab-size",
        "--disable-pad-vocab-size",
        dest="pad_vocab_size",
        action="store_false",
    )
    group.add_argument("--vocab-extra-ids", type=int, default=0)
    group.add_argument("--tokenizer-metadata")
    group.add_argument("--null-tokenizer-pad-id", type=int, default=-1)
    group.add_argument("--chat-template")
    # MindSpeed-LLM's; they are about caches and parts of its own.
    for flag in ("--overwrite-cache", "--streaming"):
        group.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    for flag in ("--cache-dir", "--n-subs", "--make-vocab-size-divisible-by"):
        group.add_argument(flag, help=argparse.SUPPRESS)


def _check(parsed: argparse.Namespace) -> None:
    if parsed.tokenizer_type in REFUSED_TOKENIZER_TYPES:
        raise UsageError(
            f"--tokenizer-type {parsed.tokenizer_type} makes no data from lines of text",
            evidence=f"supported: {', '.join(TOKENIZER_TYPES)}",
            next="use the tokenizer that it wraps, for example HuggingFaceTokenizer",
        )
    if not parsed.output_prefix:
        raise UsageError(
            "--output-prefix is empty",
            evidence="--output-prefix ''",
            next="give it a path without suffix; the variable that it came from may not be set",
        )
    if parsed.error_log is not None and parsed.on_error != "skip":
        raise UsageError(
            "--error-log lists skipped records, and none is skipped",
            evidence=f"--on-error {parsed.on_error}",
            next="add --on-error skip, or leave --error-log out",
        )
    if len(set(parsed.json_keys)) != len(parsed.json_keys):
        raise UsageError(
            "--json-keys names a key twice",
            evidence=" ".join(parsed.json_keys),
            next="name each key once",
        )


def _notes(parsed: argparse.Namespace) -> tuple[str, ...]:
    notes = []
    if parsed.dataset_impl:
        notes.append(
            f"--dataset-impl {parsed.dataset_impl} has no effect: "
            "Megatron reads one format (mmap) and this writes it"
        )
    if parsed.tokenizer_metadata:
        notes.append("--tokenizer-metadata has no effect on token ids and is not read")
    if parsed.tokenizer_type.startswith("Bert") and not parsed.split_sentences:
        notes.append("BERT and T5 data usually wants --split-sentences")
    if parsed.partitions > 1 and not parsed.keep_sequential_samples:
        notes.append(
            f"--partitions {parsed.partitions} reorders documents round-robin, as Megatron does; "
            "--keep-sequential-samples keeps the input's order"
        )
    return tuple(notes)


def parse_inspect(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line.

    :raises CommandLineError: it makes no sense.
    """
    parser = Parser(prog="accel-bridge inspect", description="Print and check an .idx/.bin pair.")
    parser.add_argument("prefix", help="path of the pair, with or without suffix")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    natural = partial(positive, least=0)
    parser.add_argument("--samples", type=natural, default=1, help="documents to show")
    parser.add_argument("--sample-tokens", type=natural, default=32, help="ids of each to show")
    add_tokenizer(
        parser.add_argument_group(
            "tokenizer",
            "as for `preprocess`: it decodes the samples, and every id must be below --vocab-size",
        ),
        required=False,
    )
    return parser.parse_args(argv)


#: Name of a kind of tokenizer -> what it is.
KINDS = {
    "bpe": "byte-level BPE as GPT-2 and Llama 3 have it: vocab.json, merges.txt, tokenizer.json",
    "sentencepiece": "BPE with bytes as Llama 2 has it: tokenizer.model",
    "wordpiece": "WordPiece as BERT has it: vocab.txt, tokenizer.json",
}


def parse_tokenizer(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line.

    :raises CommandLineError: it makes no sense.
    """
    parser = Parser(prog="accel-bridge tokenizer", description="Make a tokenizer of your own.")
    commands = parser.add_subparsers(required=True, metavar="train")
    train = commands.add_parser(
        "train",
        description="Learns a vocabulary from your text, and writes the files that `accel-bridge "
        "preprocess` and `accel-bridge pretrain` take. Nothing is downloaded or overwritten.",
    )
    train.add_argument(
        "--input",
        dest="inputs",
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
    return parser.parse_args(argv)

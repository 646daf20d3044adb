"""``accel-bridge tokenizer train``: a tokenizer learned from text, each kind with its files."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from accel_bridge.errors import printable
from accel_bridge.process.endings import ending_at_once
from accel_bridge.process.log import tell
from accel_bridge.process.outputs import OutputError, check_output, mapped

from ._arguments import BLOCK_BYTES
from .errors import InputError, TokenizerError
from .inputs import Source, bad_record, find_sources
from .planner import plan
from .records import BadRecord, RecordReader

_END: Final = "<|endoftext|>"
_BERT: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
#: SentencePiece's own tokens: unknown, begin, end; and one for each byte.
_SENTENCEPIECE_LEAST: Final = 3 + 256
_HIGHEST: Final = re.compile(r"value <= (\d+)")


class Trained(NamedTuple):
    """A tokenizer.

    :param files: name -> content.
    :param size: tokens that it has.
    :param flags: Megatron's flags for it; ``{}`` stands for the directory.
    """

    files: dict[str, bytes]
    size: int
    flags: str


_SUITABLE: Final = "--vocab-size 4096 suits a few megabytes of text, 32000 to 128000 a real corpus"
#: Tokens that a vocabulary may have.
_MOST: Final = 1 << 24


def train_bpe(texts: Iterator[str], vocab_size: int, cased: bool) -> Trained:
    """Byte-level BPE by GPT-2's scheme: any text can be encoded, and comes back as it was.

    :raises TokenizerError: ``vocab_size`` has no room for the 256 bytes and the end token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _check_size(vocab_size, len(alphabet) + 1, "256 bytes and the end of a document")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_END],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return Trained(
        {**_model_files(tokenizer), **_directory_files(tokenizer, eos_token=_END)},
        tokenizer.get_vocab_size(),
        "--tokenizer-type GPT2BPETokenizer --vocab-file {}/vocab.json --merge-file {}/merges.txt",
    )


def train_wordpiece(texts: Iterator[str], vocab_size: int, cased: bool) -> Trained:
    """WordPiece by BERT's scheme.

    :raises TokenizerError: ``vocab_size`` has no room for BERT's tokens and a few letters.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    least = 4 * len(_BERT)
    _check_size(vocab_size, least, f"{len(_BERT)} tokens of BERT and a few letters")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=list(_BERT),
        # Each letter counts twice: at the beginning of a word, and inside one.
        limit_alphabet=(vocab_size - len(_BERT)) // 2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    roles = {f"{token.strip('[]').lower()}_token": token for token in _BERT}
    case = "BertWordPieceCase" if cased else "BertWordPieceLowerCase"
    return Trained(
        {**_model_files(tokenizer), **_directory_files(tokenizer, **roles)},
        tokenizer.get_vocab_size(),
        f"--tokenizer-type {case} --vocab-file {{}}/vocab.txt",
    )


def train_sentencepiece(texts: Iterator[str], vocab_size: int, cased: bool) -> Trained:
    """SentencePiece's BPE as Llama 2 has it: text as it stands, digits apart, bytes for the rest.

    :raises TokenizerError: ``vocab_size`` has no room for all letters and bytes, or the text is
        too short for it.
    """
    from sentencepiece import SentencePieceTrainer

    _check_size(vocab_size, _SENTENCEPIECE_LEAST + 1, "256 bytes, three tokens and a letter")
    model = io.BytesIO()
    #: What ended the texts: SentencePiece swallows it.
    failed: list[BaseException] = []

    def lines() -> Iterator[str]:
        try:
            for text in texts:
                yield from filter(None, text.splitlines())
        except BaseException as error:
            failed.append(error)

    try:
        SentencePieceTrainer.train(
            sentence_iterator=lines(),
            model_writer=model,
            vocab_size=vocab_size,
            model_type="bpe",
            byte_fallback=True,
            split_digits=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            character_coverage=0.9999,
            max_sentence_length=1 << 20,
            # Errors come as exceptions.
            minloglevel=3,
        )
    except RuntimeError as error:
        if failed:
            raise failed[0] from None
        highest = _HIGHEST.search(str(error))
        raise TokenizerError(
            f"the text makes no SentencePiece model of {vocab_size} tokens",
            evidence=str(error).strip().rpartition("] ")[2] or str(error).strip(),
            next=f"--vocab-size {highest[1]}, or more text" if highest else "a larger --vocab-size",
        ) from error
    if failed:
        raise failed[0]
    return Trained(
        {"tokenizer.model": model.getvalue()},
        vocab_size,
        "--tokenizer-type Llama2Tokenizer --tokenizer-model {}/tokenizer.model",
    )


#: Name of a kind, as on the command line -> what trains it.
TRAINERS: Final[dict[str, Callable[[Iterator[str], int, bool], Trained]]] = {
    "bpe": train_bpe,
    "sentencepiece": train_sentencepiece,
    "wordpiece": train_wordpiece,
}


def _check_size(vocab_size: int, least: int, content: str) -> None:
    if vocab_size < least:
        raise TokenizerError(
            f"--vocab-size {vocab_size} is too small for this kind",
            evidence=f"{content} alone are {least}",
            next=_SUITABLE,
        )
    if vocab_size > _MOST:
        # The libraries take the memory for all of them at once, and abort without it.
        raise TokenizerError(
            f"--vocab-size {vocab_size} is too large",
            evidence=f"a vocabulary has at most {_MOST:,} tokens here",
            next=_SUITABLE,
        )


def _model_files(tokenizer: Any) -> dict[str, bytes]:
    """What the model saves: a vocabulary, and merges where it has some."""
    with (
        mapped(tempfile.gettempdir(), "temporary files"),
        tempfile.TemporaryDirectory() as directory,
    ):
        try:
            paths = tokenizer.model.save(directory)
        except Exception as error:  # tokenizers has no narrower one for a file that it cannot write
            raise OSError(str(error)) from error
        return {Path(path).name: Path(path).read_bytes() for path in paths}


def _directory_files(tokenizer: Any, **roles: str) -> dict[str, bytes]:
    """What ``HuggingFaceTokenizer`` reads; ``roles`` are its special tokens."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **roles,
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
    }


@dataclass
class Texts:
    """All texts of the input, counted as they are read."""

    sources: Sequence[Source]
    keys: Sequence[str]
    documents: int = 0
    #: Bytes of UTF-8.
    size: int = 0
    #: Records of the input file that is read.
    _before: dict[int, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        """Each text once; only once for standard input.

        :raises InputError: a record is bad.
        """
        reader = RecordReader(self.keys)
        for task in plan(self.sources, self.keys, BLOCK_BYTES):
            bad: list[BadRecord] = []
            records = reader.read(task.block, bad)
            before = self._before.get(task.source, 0)
            if bad:
                first, source = min(bad), self.sources[task.source]
                advice = "or name other --json-keys"
                raise bad_record(source, before + first.place + 1, first, advice)
            self._before[task.source] = before + records.number
            self.documents += len(records.places)
            for column in records.columns.values():
                for text in column.sentences:
                    try:
                        self.size += len(text.encode())
                    except UnicodeEncodeError as error:
                        # In the block's first such record, wherever that is.
                        reason = f"a lone surrogate {text[error.start]!a} is not text"
                        raise InputError(
                            f"a bad record in {self.sources[task.source].name}",
                            evidence=f"{reason}: {text[:40]!a}",
                            next="fix it: JSON's \\u escapes of such characters come in pairs",
                        ) from error
                    if text:
                        yield text


def main(arguments: argparse.Namespace) -> int:
    """Train a tokenizer and say how it is used.

    :raises PreprocessError: the input or the size makes none.
    :raises OutputError: the directory holds something, or cannot be written.
    """
    start = time.perf_counter()
    directory = Path(arguments.output)
    _check_directory(directory)
    sources = find_sources(arguments.inputs, arguments.input_format)
    texts = Texts(sources, list(dict.fromkeys(arguments.json_keys)))
    with ending_at_once():
        trained = TRAINERS[arguments.kind](iter(texts), arguments.vocab_size, arguments.cased)
    if not texts.size:
        raise InputError(
            "the input holds no text to learn from",
            evidence=f"{texts.documents} documents in {' '.join(arguments.inputs)}",
            next="give --input files with text, and name its keys with --json-keys",
        )
    _write(directory, trained.files)
    if trained.size < arguments.vocab_size:
        tell(
            f"note: the text has no more than {trained.size} tokens in it, "
            f"{arguments.vocab_size} were asked for"
        )
    seconds = time.perf_counter() - start
    lines = (
        f"documents  {texts.documents:,}, {texts.size / 1e6:,.1f} MB of text",
        f"tokens     {trained.size:,}",
        f"files      {', '.join(str(directory / name) for name in trained.files)}",
        f"use        {trained.flags.replace('{}', shlex.quote(str(directory)))}",
        f"time       {seconds:.2f} s",
    )
    for line in lines:
        print(printable(line), flush=True)
    return 0


def _check_directory(directory: Path) -> None:
    with mapped(directory, "--output"):
        if directory.is_dir() and any(directory.iterdir()):
            raise OutputError(
                "--output names a directory that holds files already.",
                evidence=f"{directory}: {', '.join(sorted(os.listdir(directory))[:5])}",
                next="give --output a new directory, or move those files away",
            )
        if not directory.is_dir() and os.path.lexists(directory):
            raise OutputError(
                "--output must name a directory.",
                evidence=f"{directory} is a file or a broken link",
                next="give --output a new directory",
            )
    check_output(directory / "tokenizer.json", option="--output", makes_directories=True)


def _write(directory: Path, files: dict[str, bytes]) -> None:
    """Write all files, then give their directory its name: it is whole or not there.

    :raises OutputError: it cannot be written, or something came into it meanwhile.
    """
    directory = directory.resolve()
    partial = directory.with_name(f"{directory.name}.{os.getpid()}.new")
    with mapped(directory, "--output"):
        try:
            partial.mkdir(parents=True)
            for name, content in files.items():
                (partial / name).write_bytes(content)
            partial.rename(directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

"""Tokenizers learned from text: each kind's files, in memory."""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from accel_bridge.process.outputs import mapped

from .errors import TokenizerError

_END: Final = "<|endoftext|>"
_BERT: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
#: SentencePiece's own tokens: unknown, begin, end; and one for each byte.
_SENTENCEPIECE_LEAST: Final = 3 + 256
_HIGHEST: Final = re.compile(r"value <= (\d+)")


class Trained(NamedTuple):
    """A tokenizer.

    :param files: name -> content.
    :param size: tokens that it has.
    :param flags: how Megatron is told of it; ``{}`` stands for the folder.
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
        {**_model_files(tokenizer), **_folder_files(tokenizer, eos_token=_END)},
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
        {**_model_files(tokenizer), **_folder_files(tokenizer, **roles)},
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
            f"--vocab-size {str(vocab_size)[:40]} is too large",
            evidence=f"a vocabulary has at most {_MOST:,} tokens here",
            next=_SUITABLE,
        )


def _model_files(tokenizer: Any) -> dict[str, bytes]:
    """What the model saves: a vocabulary, and merges where it has some."""
    with mapped(tempfile.gettempdir(), "temporary files"), tempfile.TemporaryDirectory() as folder:
        try:
            paths = tokenizer.model.save(folder)
        except Exception as error:  # tokenizers has no narrower one for a file that it cannot write
            raise OSError(str(error)) from error
        return {Path(path).name: Path(path).read_bytes() for path in paths}


def _folder_files(tokenizer: Any, **roles: str) -> dict[str, bytes]:
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

"""From a command line to a tokenizer: read its files once, and say which engine it needs.

A :class:`TokenizerSpec` holds file contents rather than paths, so that worker processes and
other machines build the same tokenizer from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from .errors import TokenizerError, accepted
from .tokenizer_flags import TokenizerArguments

#: Megatron's vocabulary size for TikTokenizer when none is given.
DEFAULT_TIKTOKEN_VOCAB_SIZE = 1 << 17

_ENDOFTEXT = "<|endoftext|>"


@dataclass(frozen=True)
class TokenizerSpec:
    """All that building an engine takes.

    :param family: which engines can serve it: ``huggingface``, ``gpt2-0.12``, ``sentencepiece``,
        ``tiktoken`` or ``null``.
    :param payload: contents of its file: tokenizer.json, ``.model``, vocabulary.
    :param vocab_size: number of ids, which decides the output's integer type.
    :param eod: id of the end-of-document token, or ``None`` if it has none.
    """

    family: str
    payload: bytes
    vocab_size: int
    eod: int | None
    options: Mapping[str, Any] = field(default_factory=dict)
    #: What the user should know about how it was read.
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Changes when any id could change."""
        digest = hashlib.sha256(self.payload)
        digest.update(json.dumps([self.family, self.eod, dict(self.options)]).encode())
        return digest.hexdigest()


def read_tokenizer(arguments: TokenizerArguments) -> TokenizerSpec:
    """Read the files that ``arguments`` name.

    :raises TokenizerError: a file is missing or is not what it should be.
    """
    with accepted(arguments.tokenizer_type):
        return _READERS[arguments.tokenizer_type](arguments)


def required(arguments: TokenizerArguments, *flags: str) -> list[Path]:
    """Paths given by ``flags``, which must all be there."""
    paths = []
    for flag in flags:
        value = getattr(arguments, flag.strip("-").replace("-", "_"))
        if value is None:
            raise TokenizerError(
                f"{arguments.tokenizer_type} needs {flag}",
                evidence=f"{flag} was not given",
                next=f"add {flag} PATH",
            )
        path = Path(value)
        if not path.exists():
            raise TokenizerError(
                f"no such file for {flag}",
                evidence=str(path),
                next="correct the path; nothing is ever downloaded",
            )
        paths.append(path)
    return paths


def _read_gpt2(arguments: TokenizerArguments) -> TokenizerSpec:
    vocab_file, merge_file = required(arguments, "--vocab-file", "--merge-file")
    vocab = _read_vocabulary(vocab_file)
    merges = _read_merges(merge_file)
    literal = arguments.compat == "0.12"
    if literal and _ENDOFTEXT not in vocab:
        raise TokenizerError(
            f"the vocabulary has no {_ENDOFTEXT}, which Megatron 0.12 needs",
            evidence=str(vocab_file),
            next="add it to the vocabulary, or leave --compat 0.12 out",
        )
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if not literal:
        tokenizer.add_special_tokens([_ENDOFTEXT, *arguments.special_tokens])
    return TokenizerSpec(
        family="gpt2-0.12" if literal else "huggingface",
        payload=tokenizer.to_str().encode(),
        vocab_size=tokenizer.get_vocab_size(),
        eod=tokenizer.token_to_id(_ENDOFTEXT),
        options={"add_special_tokens": True},
    )


def _read_huggingface(arguments: TokenizerArguments) -> TokenizerSpec:
    from ._huggingface import read_huggingface

    (path,) = required(arguments, "--tokenizer-model")
    found = read_huggingface(path, arguments)
    return TokenizerSpec(
        family="huggingface",
        payload=found.tokenizer_json,
        vocab_size=found.vocab_size,
        eod=found.eod,
        options={"add_special_tokens": arguments.include_special_tokens},
        notes=found.notes,
    )


def _read_bert(arguments: TokenizerArguments) -> TokenizerSpec:
    _refuse_compat_012(arguments)
    (path,) = required(arguments, "--vocab-file")
    vocab = {token: index for index, token in enumerate(_read_word_list(path))}
    own = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    missing = [token for token in own if token not in vocab]
    if missing:
        what = "the vocabulary lacks BERT's special tokens"
        raise _wrong(what, f"{path}: no {', '.join(missing)}", _WORDS)
    cased = arguments.tokenizer_type == "BertWordPieceCase"
    # 0.19 gives the cased tokenizer T5's sentinels and ignores --tokenizer-special-tokens there.
    extra = [f"<extra_id_{i}>" for i in range(100)] if cased else arguments.special_tokens
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"])
    )
    tokenizer.add_special_tokens([*own, *extra])
    return TokenizerSpec(
        family="huggingface",
        payload=tokenizer.to_str().encode(),
        vocab_size=tokenizer.get_vocab_size(),
        eod=vocab["[SEP]"],
        options={"add_special_tokens": arguments.include_special_tokens},
    )


def _read_sentencepiece(arguments: TokenizerArguments) -> TokenizerSpec:
    from sentencepiece import SentencePieceProcessor

    (path,) = required(arguments, "--tokenizer-model")
    model = path.read_bytes()
    try:
        processor = SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise TokenizerError(
            "not a SentencePiece model",
            evidence=f"{path}: {error}",
            next="give --tokenizer-model a .model file",
        ) from error
    if arguments.special_tokens and not arguments.sentencepiece_legacy:
        raise TokenizerError(
            "a SentencePiece model takes no further special tokens",
            evidence=f"--tokenizer-special-tokens {' '.join(arguments.special_tokens)}",
            next="add --tokenizer-sentencepiece-legacy, or train the model with them",
        )
    bos = None
    if arguments.compat == "0.12":
        if arguments.tokenizer_type == "SentencePieceTokenizer":
            _refuse_compat_012(arguments)
        if arguments.tokenizer_type == "Llama2Tokenizer":
            bos = processor.bos_id()
    special: dict[str, int] = {}
    size = processor.get_piece_size()
    for token in arguments.special_tokens:
        known = processor.piece_to_id(token)
        special.setdefault(token, size + len(special) if known == processor.unk_id() else known)
    eod = processor.eos_id()
    return TokenizerSpec(
        family="sentencepiece",
        payload=model,
        vocab_size=max([size, *(identifier + 1 for identifier in special.values())]),
        eod=None if eod < 0 else eod,
        options={
            "special_tokens": special,
            "ignore_extra_whitespaces": arguments.sentencepiece_ignore_extra_whitespaces,
            "bos": bos,
        },
    )


def _read_tiktoken(arguments: TokenizerArguments) -> TokenizerSpec:
    from ._tiktoken import special_tokens, vocabulary

    (path,) = required(arguments, "--tokenizer-model")
    special = special_tokens(arguments)
    size = arguments.vocab_size or DEFAULT_TIKTOKEN_VOCAB_SIZE
    entries = vocabulary(path, size - len(special))
    return TokenizerSpec(
        family="tiktoken",
        payload=orjson.dumps(entries),
        vocab_size=size,
        eod=special.index("</s>"),
        options={
            "special_tokens": special,
            "pattern": arguments.tiktoken_pattern or "v2",
            "literal": arguments.compat == "0.12",
        },
    )


def _read_null(arguments: TokenizerArguments) -> TokenizerSpec:
    if arguments.vocab_size is None:
        raise TokenizerError(
            "NullTokenizer needs --vocab-size",
            evidence="--vocab-size was not given",
            next="add --vocab-size N",
        )
    size = arguments.vocab_size
    if arguments.compat == "0.12":
        return TokenizerSpec("null", b"", vocab_size=size + 1, eod=size)
    eod = size - 1 if arguments.null_eod_id is None else arguments.null_eod_id
    return TokenizerSpec("null", b"", vocab_size=size, eod=eod)


def _refuse_compat_012(arguments: TokenizerArguments) -> None:
    if arguments.compat == "0.12":
        raise TokenizerError(
            f"--compat 0.12 is not known for {arguments.tokenizer_type}",
            evidence="0.12 has its own code for this type; not only special tokens differ",
            next="leave --compat 0.12 out, or use Megatron 0.12's tool for this tokenizer",
        )


#: What a file is called, and what to give for it.
_WORDS = ("vocabulary", "BERT's vocab.txt: one token a line")
_VOCABULARY = ("vocabulary", "GPT-2's vocab.json: an object of token to id")
_MERGES = ("merges", "GPT-2's merges.txt: two tokens a line")


def _wrong(what: str, evidence: str, form: tuple[str, str]) -> TokenizerError:
    return TokenizerError(what, evidence=evidence, next=f"give {form[1]}")


@contextlib.contextmanager
def _readable(path: Path, form: tuple[str, str]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise _wrong(f"the {form[0]} file cannot be read", f"{path}: {error}", form) from error


def _read_lines(path: Path, form: tuple[str, str]) -> list[str]:
    with _readable(path, form):
        return path.read_text(encoding="utf-8").split("\n")


def _read_word_list(path: Path) -> list[str]:
    lines = _read_lines(path, _WORDS)
    return lines[:-1] if not lines[-1] else lines


def _read_vocabulary(path: Path) -> dict[str, int]:
    with _readable(path, _VOCABULARY):
        vocab = orjson.loads(path.read_bytes())
    if not isinstance(vocab, dict) or not all(type(value) is int for value in vocab.values()):
        what = "the vocabulary file is not an object of token to id"
        raise _wrong(what, str(path), _VOCABULARY)
    return vocab


def _read_merges(path: Path) -> list[tuple[str, str]]:
    lines = _read_lines(path, _MERGES)
    if lines == [""]:
        # A tokenizer without merges would cut every word into its letters, and say nothing.
        raise _wrong("the merges file is empty", f"{path} has 0 bytes", _MERGES)
    pairs = []
    for number, line in enumerate(lines, start=1):
        if line and not line.startswith("#version"):
            first, _, second = line.partition(" ")
            pairs.append((first, second))
            if line.count(" ") != 1:
                what = "a line of the merges file is not a pair of tokens"
                raise _wrong(what, f"{path}:{number}: {line[:80]!r}", _MERGES)
    return pairs


_READERS: dict[str, Callable[[TokenizerArguments], TokenizerSpec]] = {
    "BertWordPieceLowerCase": _read_bert,
    "BertWordPieceCase": _read_bert,
    "GPT2BPETokenizer": _read_gpt2,
    "SentencePieceTokenizer": _read_sentencepiece,
    "GPTSentencePieceTokenizer": _read_sentencepiece,
    "Llama2Tokenizer": _read_sentencepiece,
    "HuggingFaceTokenizer": _read_huggingface,
    "TikTokenizer": _read_tiktoken,
    "NullTokenizer": _read_null,
}

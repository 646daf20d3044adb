"""From a command line to a tokenizer: read its files once, and say which engine it needs.

A :class:`TokenizerSpec` holds file contents rather than paths, so that worker processes and
other machines build the same tokenizer from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ._arguments import TokenizerArguments
from ._errors import TokenizerError

#: An end-of-document token is looked for under these names when no file says which it is.
_ENDOFTEXT = "<|endoftext|>"


@dataclass(frozen=True)
class TokenizerSpec:
    """All that building an engine takes.

    :param family: which engines can serve it; a key of :data:`_BUILDERS`.
    :param payload: contents of its file: tokenizer.json, ``.model``, vocabulary.
    :param vocab_size: number of ids, which decides the output's integer type.
    :param eod: id of the end-of-document token, or ``None`` if it has none.
    """

    family: str
    payload: bytes
    vocab_size: int
    eod: int | None
    options: Mapping[str, object] = field(default_factory=dict)

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
    special = () if literal else (_ENDOFTEXT, *arguments.special_tokens)
    added = dict(vocab)
    for token in special:
        added.setdefault(token, len(added))
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token, added[token]) for token in dict.fromkeys(special)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    return TokenizerSpec(
        family="gpt2-0.12" if literal else "huggingface",
        payload=json.dumps(document, ensure_ascii=False).encode(),
        vocab_size=len(added),
        eod=added[_ENDOFTEXT],
        options={"add_special_tokens": True},
    )


def _read_huggingface(arguments: TokenizerArguments) -> TokenizerSpec:
    from ._huggingface import read_huggingface

    (path,) = required(arguments, "--tokenizer-model")
    tokenizer_json, vocab_size, eod = read_huggingface(path, arguments)
    return TokenizerSpec(
        family="huggingface",
        payload=tokenizer_json,
        vocab_size=vocab_size,
        eod=eod,
        options={"add_special_tokens": arguments.include_special_tokens},
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


def _added_token(content: str, identifier: int) -> dict[str, object]:
    return {
        "id": identifier,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        vocab = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(
            "the vocabulary file cannot be read",
            evidence=f"{path}: {error}",
            next="give GPT-2's vocab.json: an object of token to id",
        ) from error
    if not isinstance(vocab, dict) or not all(type(value) is int for value in vocab.values()):
        raise TokenizerError(
            "the vocabulary file is not an object of token to id",
            evidence=str(path),
            next="give GPT-2's vocab.json",
        )
    return vocab


def _read_merges(path: Path) -> list[list[str]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise TokenizerError(
            "the merges file cannot be read",
            evidence=f"{path}: {error}",
            next="give GPT-2's merges.txt: two tokens a line",
        ) from error
    merges = []
    for number, line in enumerate(lines, start=1):
        pair = line.rstrip("\r").split(" ")
        if line.startswith("#version") or pair == [""]:
            continue
        if len(pair) != 2:
            raise TokenizerError(
                "a line of the merges file is not a pair of tokens",
                evidence=f"{path}:{number}: {line[:80]!r}",
                next="give GPT-2's merges.txt: two tokens a line",
            )
        merges.append(pair)
    return merges


_READERS: dict[str, Callable[[TokenizerArguments], TokenizerSpec]] = {
    "GPT2BPETokenizer": _read_gpt2,
    "HuggingFaceTokenizer": _read_huggingface,
    "NullTokenizer": _read_null,
}

"""HuggingFace tokenizers from local files.

Megatron loads a directory with transformers' ``AutoTokenizer``, which costs seconds. Where the
directory says that its tokenizer.json is all there is, that file is read alone. Where it names a
class of its own, transformers is asked, in a process of its own, what it makes of the directory.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from .errors import TokenizerError
from .tokenizer_flags import TokenizerArguments

#: Taken as the end of a document, in this order, when no file names one.
_KNOWN_EOD = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
#: Classes that add nothing to tokenizer.json (``None``: none is named).
_PLAIN_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True)
class HuggingFaceFiles:
    """A tokenizer as one tokenizer.json."""

    tokenizer_json: bytes
    vocab_size: int
    eod: int | None
    notes: tuple[str, ...] = ()


def read_huggingface(path: Path, arguments: TokenizerArguments) -> HuggingFaceFiles:
    """The tokenizer at ``path``: a directory or a tokenizer.json.

    :raises TokenizerError: tokenizer.json is missing or invalid.
    """
    if not path.is_dir():
        return _read_plain(path, {}, arguments)
    config = _read_config(path)
    obstacle = _why_not_plain(path, config, arguments)
    if obstacle is None:
        return _read_plain(path / "tokenizer.json", config, arguments)
    if importlib.util.find_spec("transformers") is not None:
        return _ask_transformers(path, arguments, obstacle)
    if not (path / "tokenizer.json").exists() or arguments.special_tokens:
        raise TokenizerError(
            "this tokenizer needs transformers",
            evidence=f"{path}: {obstacle}",
            next="pip install transformers",
        )
    found = _read_plain(path / "tokenizer.json", config, arguments)
    note = f"{path}: {obstacle}; transformers is not installed, so tokenizer.json is taken alone"
    return HuggingFaceFiles(found.tokenizer_json, found.vocab_size, found.eod, (note,))


def _read_config(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = directory / name
        if not file.exists():
            continue
        try:
            config.update(json.loads(file.read_bytes()))
        except ValueError as error:
            raise TokenizerError(
                "a tokenizer file is not JSON", evidence=f"{file}: {error}", next="download it anew"
            ) from error
    return config


def _why_not_plain(
    directory: Path, config: dict[str, Any], arguments: TokenizerArguments
) -> str | None:
    """Why tokenizer.json alone may not be what transformers makes of the directory."""
    if not (directory / "tokenizer.json").exists():
        return "it has no tokenizer.json"
    if config.get("tokenizer_class") not in _PLAIN_CLASSES or config.get("auto_map"):
        return f"its class is {config.get('tokenizer_class')}"
    if config.get("add_bos_token") or config.get("add_eos_token"):
        return "its configuration adds tokens around each text"
    if arguments.special_tokens:
        return "--tokenizer-special-tokens adds to it"
    if not arguments.use_fast:
        return "--tokenizer-hf-no-use-fast"
    document = orjson.loads((directory / "tokenizer.json").read_bytes())
    added = {token["content"] for token in document.get("added_tokens") or ()}
    named = {_content(config.get(role)) for role in _ROLES} - {None}
    named |= {_content(token) for token in config.get("added_tokens_decoder", {}).values()}
    if named - added:
        return "its configuration has special tokens that tokenizer.json does not mark"
    return None


def _read_plain(
    file: Path, config: dict[str, Any], arguments: TokenizerArguments
) -> HuggingFaceFiles:
    try:
        contents = file.read_bytes()
        document = orjson.loads(contents)
        vocab = document["model"]["vocab"]
        # Unigram models have a list of pairs.
        pairs = vocab.items() if isinstance(vocab, dict) else enumerate(vocab)
        ids = dict(pairs if isinstance(vocab, dict) else ((pair[0], i) for i, pair in pairs))
        for token in document.get("added_tokens") or ():
            ids[token["content"]] = token["id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TokenizerError(
            "not a tokenizer.json",
            evidence=f"{file}: {type(error).__name__}: {error}",
            next="give --tokenizer-model a directory with, or the path of, a tokenizer.json",
        ) from error
    return HuggingFaceFiles(contents, len(ids), _end_token(ids, config, arguments.eod_token))


def _end_token(ids: dict[str, int], config: dict[str, Any], chosen: str | None) -> int | None:
    if chosen is not None:
        if chosen not in ids:
            raise TokenizerError(
                "the token of --eod-token is not in the vocabulary",
                evidence=repr(chosen),
                next="name a token of the vocabulary",
            )
        return ids[chosen]
    for role in ("eos_token", "sep_token"):
        content = _content(config.get(role))
        if content in ids:
            return ids[content]
    return next((ids[token] for token in _KNOWN_EOD if token in ids), None)


def _content(token: object) -> Any:
    """The text of a token, which configurations have as such or in an object."""
    return token.get("content") if isinstance(token, dict) else token


def ask_transformers(
    directory: Path, arguments: TokenizerArguments, handler: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """What transformers makes of a directory, in a process of its own; see :mod:`.resolve`.

    :param handler: the tokens of a prompt template; None adds those of Megatron.
    :raises TokenizerError: it makes nothing of it.
    """
    request = {
        "path": str(directory),
        "use_fast": arguments.use_fast,
        "trust_remote_code": arguments.trust_remote_code,
        "special_tokens": list(arguments.special_tokens),
        "handler": handler,
    }
    answer = subprocess.run(
        [sys.executable, "-m", "accel_bridge.pretrain.preprocess.resolve"],
        input=orjson.dumps(request),
        capture_output=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    if answer.returncode != 0:
        raise TokenizerError(
            "transformers cannot load this tokenizer",
            evidence=[str(directory), *answer.stderr.decode(errors="replace").splitlines()[-2:]],
            next="check the directory: AutoTokenizer.from_pretrained must load it",
        )
    found: dict[str, Any] = orjson.loads(answer.stdout)
    return found


def _ask_transformers(
    directory: Path, arguments: TokenizerArguments, reason: str
) -> HuggingFaceFiles:
    found = ask_transformers(directory, arguments)
    eod = found["eod"]
    document = orjson.loads(found["tokenizer_json"])
    if arguments.eod_token is not None:
        ids = {token["content"]: token["id"] for token in document.get("added_tokens") or ()}
        ids = {**document["model"]["vocab"], **ids}
        eod = _end_token(ids, {}, arguments.eod_token)
    note = f"{directory}: {reason}; loaded through transformers {found['version']}"
    return HuggingFaceFiles(found["tokenizer_json"].encode(), found["vocab_size"], eod, (note,))

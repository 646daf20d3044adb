"""HuggingFace tokenizers from local files."""

from __future__ import annotations

import json
from pathlib import Path

from ._arguments import TokenizerArguments
from ._errors import TokenizerError

#: Taken as the end of a document, in this order, when no file names one.
_KNOWN_EOD = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


def read_huggingface(path: Path, arguments: TokenizerArguments) -> tuple[bytes, int, int | None]:
    """Contents of the tokenizer.json at or in ``path``, vocabulary size, and id of its end token.

    :raises TokenizerError: there is no tokenizer.json, or it is none.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.exists():
        raise TokenizerError(
            "the tokenizer folder has no tokenizer.json",
            evidence=f"{path} holds {', '.join(sorted(item.name for item in path.iterdir()))}",
            next="save it with transformers: AutoTokenizer.from_pretrained(F).save_pretrained(F)",
        )
    try:
        document = json.loads(file.read_bytes())
        vocab = dict(document["model"]["vocab"])
    except (ValueError, KeyError, TypeError) as error:
        raise TokenizerError(
            "not a tokenizer.json",
            evidence=f"{file}: {type(error).__name__}: {error}",
            next="give --tokenizer-model a folder with, or the path of, a tokenizer.json",
        ) from error
    for token in document.get("added_tokens") or ():
        vocab[token["content"]] = token["id"]
    eod = _end_token(file.parent, vocab, arguments.eod_token)
    return file.read_bytes(), len(vocab), eod


def _end_token(folder: Path, vocab: dict[str, int], chosen: str | None) -> int | None:
    if chosen is not None:
        if chosen not in vocab:
            raise TokenizerError(
                "the token of --eod-token is not in the vocabulary",
                evidence=repr(chosen),
                next="name a token of the vocabulary",
            )
        return vocab[chosen]
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = folder / name
        if not file.exists():
            continue
        config = json.loads(file.read_bytes())
        for role in ("eos_token", "sep_token"):
            token = config.get(role)
            content = token.get("content") if isinstance(token, dict) else token
            if content is not None and content in vocab:
                return vocab[content]
    return next((vocab[token] for token in _KNOWN_EOD if token in vocab), None)

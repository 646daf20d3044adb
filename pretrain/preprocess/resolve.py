"""What transformers makes of a tokenizer directory. Run as a process: JSON in, JSON out.

The steps are those of Megatron 0.19's HuggingFaceTokenizer as far as ids depend on them, and with a
data handler those of MindSpeed-LLM.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    """Answer one request from standard input."""
    json.dump(answer(json.load(sys.stdin)), sys.stdout)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer as one tokenizer.json, and the ids of its own tokens."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(
        request["path"],
        use_fast=request["use_fast"],
        trust_remote_code=request["trust_remote_code"],
    )
    handler = request.get("handler")
    if handler is not None:
        _prepare(tokenizer, handler)
    else:
        _complete(tokenizer, request["special_tokens"])
    named = handler["tokens"] if handler is not None else []
    return {
        "tokenizer_json": tokenizer.backend_tokenizer.to_str(),
        "vocab_size": len(tokenizer),
        "eod": tokenizer.eos_token_id,
        "bos": tokenizer.bos_token_id,
        "pad": tokenizer.pad_token_id,
        "named": {token: tokenizer.convert_tokens_to_ids(token) for token in named},
        "version": transformers.__version__,
    }


def _prepare(tokenizer: Any, handler: dict[str, Any]) -> None:
    """The tokens of a prompt template, as MindSpeed-LLM's ``fix_model_tokenizer`` adds them."""
    stop_words = list(handler["stop_words"])
    if handler["replace_eos"] and stop_words:
        tokenizer.add_special_tokens({"eos_token": stop_words.pop(0)})
    if handler["template"] and tokenizer.eos_token_id is None:
        tokenizer.add_special_tokens({"eos_token": "<|endoftext|>"})
    if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    if stop_words:
        tokenizer.add_special_tokens({"additional_special_tokens": stop_words})


def _complete(tokenizer: Any, special_tokens: list[str]) -> None:
    """The tokens that Megatron 0.19 fills in."""
    special: dict[str, Any] = {"additional_special_tokens": special_tokens}
    # An end token stands in for a missing separator and the other way round.
    if tokenizer.sep_token is None and tokenizer.eos_token:
        special["sep_token"] = tokenizer.eos_token
    elif tokenizer.eos_token is None and tokenizer.sep_token:
        special["eos_token"] = tokenizer.sep_token
    if tokenizer.bos_token is None and tokenizer.cls_token:
        special["bos_token"] = tokenizer.cls_token
    if tokenizer.cls_token is None and tokenizer.bos_token:
        special["cls_token"] = tokenizer.bos_token
    tokenizer.add_special_tokens(special)


if __name__ == "__main__":
    main()

"""What transformers makes of a tokenizer folder. Run as a process: JSON in, JSON out.

The steps are those of Megatron 0.19's HuggingFaceTokenizer as far as ids depend on them.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    """Answer one request from standard input."""
    import transformers

    request = json.load(sys.stdin)
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        request["path"],
        use_fast=request["use_fast"],
        trust_remote_code=request["trust_remote_code"],
    )
    special: dict[str, Any] = {"additional_special_tokens": request["special_tokens"]}
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
    answer = {
        "tokenizer_json": tokenizer.backend_tokenizer.to_str(),
        "vocab_size": len(tokenizer),
        "eod": tokenizer.eos_token_id,
        "version": transformers.__version__,
    }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()

"""`accel-bridge preprocess` on a case, with transformers imported once for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from accel_bridge.pretrain.preprocess import _handler_encoder as handler_tokenizer_module
from accel_bridge.pretrain.preprocess import main
from accel_bridge.pretrain.preprocess import resolve as resolve_module
from accel_bridge.pretrain.preprocess.tokenizer_flags import TokenizerArguments

from .cases import Case, digest


def words(case: Case, data: Path, prefix: Path, tokenizer: Path) -> list[str]:
    """The command line, which MindSpeed-LLM's tool takes too."""
    return [
        *("--input", str(data), "--output-prefix", str(prefix)),
        *("--tokenizer-type", "PretrainedFromHF", "--tokenizer-name-or-path", str(tokenizer)),
        *case.words,
    ]


def preprocess(case: Case, data: Path, prefix: Path, tokenizer: Path) -> str:
    """Digest of what is written; what is printed, where it fails."""
    printed = StringIO()
    with (
        mock.patch.object(handler_tokenizer_module, "ask_transformers", ask_here),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        status = main([*words(case, data, prefix, tokenizer), "--workers", "1"])
    return digest(prefix, case) if status == 0 else printed.getvalue()


def ask_here(
    directory: Path, arguments: TokenizerArguments, handler: Mapping[str, object] | None = None
) -> dict[str, Any]:
    return resolve_module.answer(
        {
            "path": str(directory),
            "use_fast": True,
            "trust_remote_code": False,
            "special_tokens": [],
            "handler": handler,
        }
    )

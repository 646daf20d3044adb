"""Tokenizers from local files, without a network."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


@dataclass(frozen=True, slots=True)
class LocalTokenizer:
    """How Hugging Face's AutoTokenizer recognises a tokenizer in a local directory.

    :param model_type: for config.json.
    :param vocabulary: name that the vocabulary file must have in it.
    :param merges: name that the merges file must have in it; None without one.
    :param settings: for tokenizer_config.json, as on the hub.
    """

    model_type: str
    vocabulary: str
    merges: str | None
    settings: Mapping[str, object]


#: Megatron's --tokenizer-type -> the local form of what upstream fetches from the hub.
LOCAL: Mapping[str, LocalTokenizer] = {
    "GPT2BPETokenizer": LocalTokenizer(
        "gpt2", "vocab.json", "merges.txt", {"tokenizer_class": "GPT2Tokenizer"}
    ),
    "BertWordPieceLowerCase": LocalTokenizer(
        "bert", "vocab.txt", None, {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    ),
    "BertWordPieceCase": LocalTokenizer(
        "bert", "vocab.txt", None, {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    ),
}


def write_directory(
    directory: Path, tokenizer: LocalTokenizer, vocab_file: str, merges_file: str | None
) -> None:
    """Fill ``directory`` with what AutoTokenizer expects of a saved tokenizer."""
    shutil.copyfile(vocab_file, directory / tokenizer.vocabulary)
    if tokenizer.merges is not None and merges_file is not None:
        shutil.copyfile(merges_file, directory / tokenizer.merges)
    config = {"model_type": tokenizer.model_type}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(
        json.dumps(dict(tokenizer.settings)), encoding="utf-8"
    )


def _make(context: PatchContext) -> Callable[..., None]:
    upstream = context.original
    base: Any = context.owner.__bases__[0]  # type: ignore[attr-defined]
    files = [context.argument(n) for n in ("tokenizer_path", "vocab_file", "merges_file")]

    def __init__(*args: Any, **kwargs: Any) -> None:
        """Use the named files; fetch only the others from the hub."""
        path, vocab_file, merges_file = (file.get(args, kwargs) for file in files)
        local = LOCAL.get(path)
        if local is None or not vocab_file or (local.merges and not merges_file):
            upstream(*args, **kwargs)
            return
        taken = {file.name for file in files}
        rest = {name: value for name, value in kwargs.items() if name not in taken}
        with tempfile.TemporaryDirectory(prefix="accel_bridge_tokenizer_") as directory:
            write_directory(Path(directory), local, vocab_file, merges_file)
            base.__init__(args[0], directory, **rest)

    return __init__


PATCHES = (
    megatron_patch(
        id="local-tokenizer-files",
        target="megatron.core.tokenizers.text.libraries.megatron_hf_tokenizer:"
        "MegatronHFTokenizer.__init__",
        kind=Kind.WRAP,
        make=_make,
        why="upstream fetches 'gpt2' from the hub even if --vocab-file and --merge-file are given",
        removed_when="upstream builds these tokenizers from the named files alone",
        loses="GPT2BPETokenizer and BertWordPiece need a network or a warm hub cache",
        requires="megatron-core>=0.15",
        elsewhere="before 0.15 Megatron reads the files by itself",
        uses=("tokenizer_path", "vocab_file", "merges_file"),
    ),
)

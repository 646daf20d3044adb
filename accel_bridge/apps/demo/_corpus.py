"""Text that every Python has: the standard library's own sources."""

from __future__ import annotations

import itertools
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from accel_bridge._errors import BridgeError
from accel_bridge._interrupts import ending_at_once

#: Enough text for a minute of training (bytes).
WANTED = 6_000_000

#: Less text than this trains nothing worth a curve (bytes).
NEEDED = 500_000


def sources(folder: Path | None = None) -> Iterator[str]:
    """Text of the standard library's modules and packages, in the order of their paths.

    :param folder: look here instead of in this Python's standard library.
    """
    root = folder or Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).parts
        # Installed packages are not part of Python; its test data holds deliberate nonsense.
        if not {"site-packages", "dist-packages", "test", "tests", "idlelib"} & set(inside):
            try:
                yield path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a few sources declare another encoding


def write_corpus(path: Path, folder: Path | None = None) -> tuple[int, int]:
    """Write JSON lines with one source file a document; (documents, bytes of text).

    :raises BridgeError: this Python comes without its sources.
    """
    documents = size = 0
    with path.open("w", encoding="utf-8") as file:
        for text in sources(folder):
            file.write(json.dumps({"text": text}) + "\n")
            documents += 1
            size += len(text.encode())
            if size >= WANTED:
                break
    if size < NEEDED:
        raise BridgeError(
            "This Python has no sources of its standard library to train on.",
            evidence=f"{size} bytes of text in {folder or sysconfig.get_path('stdlib')}",
            next="use a Python with its .py files, or your own text with accel-bridge preprocess",
        )
    return documents, size


def train_bpe(
    corpus: Path, folder: Path, vocabulary_size: int, every: int = 1
) -> tuple[Path, Path]:
    """Train a byte-level BPE on the corpus; the paths of vocab.json and merges.txt.

    GPT-2's scheme, so that ``--tokenizer-type GPT2BPETokenizer`` reads it.

    :param every: learn from one document of so many.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with corpus.open(encoding="utf-8") as lines:
        some = itertools.islice(lines, 0, None, every)
        texts = (json.loads(line)["text"] for line in some)
        with ending_at_once():
            tokenizer.train_from_iterator(texts, trainer)
    try:
        tokenizer.model.save(str(folder))
    except Exception as error:
        # The library says what the system said, in an exception of no class of its own.
        raise OSError(str(error)) from error
    return folder / "vocab.json", folder / "merges.txt"

"""What Megatron's functional recipes read: indexed data and vocabularies, made of the checkout.

The names are those that the recipes give below their DATA_PATH. Texts are the checkout's own pages
and sources; nothing is fetched.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import BertWordPieceTokenizer, pre_tokenizers

DIRECTORY: Final = "text/common_pile/v01_filtered_data"

#: Ids below this are made of bytes and of the tokens that fill-in-the-middle wants.
VOCABULARY: Final = 1024

#: Documents of a data set: 9 in 100,000 must be one, for T5's validation and for its test.
DOCUMENTS: Final = 12_000

_SPECIAL: Final = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_FILL_IN: Final = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>")


def make(checkout: Path, directory: Path) -> None:
    """Write every file that the recipes name under ``directory``, once."""
    done = directory / "done"
    if done.is_file():
        return
    texts = list(_texts(checkout))
    target = directory / DIRECTORY
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    names = [*sorted(letters.alphabet()), *_FILL_IN, "<|endoftext|>"]
    names += [f"<unused{index}>" for index in range(VOCABULARY - len(names))]
    vocabulary = {name: index for index, name in enumerate(names)}
    for bpe in (target / "bpe", directory / "text/the_pile/shard00/bpe"):
        bpe.mkdir(parents=True, exist_ok=True)
        (bpe / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        (bpe / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    spelled = ["".join(part for part, _ in letters.pre_tokenize_str(text)) for text in texts]
    end = vocabulary["<|endoftext|>"]
    for place in (target, directory / "text/the_pile/shard00"):
        write_indexed(
            place / "my-gpt3_00_text_document",
            [[[*map(vocabulary.__getitem__, text), end]] for text in spelled],
        )
    pieces = BertWordPieceTokenizer(lowercase=False)
    pieces.train_from_iterator(texts, VOCABULARY, special_tokens=_SPECIAL, show_progress=False)
    words = sorted(pieces.get_vocab(), key=pieces.token_to_id)
    for name in ("vocab.txt", "bert-large-cased-vocab.txt"):
        (target / name).write_text("\n".join(words) + "\n", encoding="utf-8")
    lines = [pieces.encode(text, add_special_tokens=False).ids for text in texts]
    # A document of BERT needs two sentences; four short texts make one.
    write_indexed(
        target / "my-bert_00_text_sentence",
        [lines[start : start + 4] for start in range(0, len(lines) - 3, 4)],
    )
    write_indexed(target / "my-t5_00_text_document", [[line] for line in lines])
    done.write_text("", encoding="utf-8")


def write_indexed(prefix: Path, documents: Iterable[Sequence[Sequence[int]]]) -> None:
    """Documents, each of one or more sequences of ids, as Megatron's .bin and .idx."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Megatron misses what nothing here needs
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    prefix.parent.mkdir(parents=True, exist_ok=True)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for document in documents:
        ids = [one for sequence in document for one in sequence]
        builder.add_document(torch.tensor(ids), [len(sequence) for sequence in document])
    builder.finalize(f"{prefix}.idx")


def _texts(checkout: Path) -> Iterable[str]:
    """Short texts, so many that a split of 9 in 100,000 holds one."""
    taken = 0
    for path in sorted([*checkout.rglob("*.md"), *checkout.rglob("*.py")]):
        words = path.read_text(encoding="utf-8", errors="ignore").split()
        for start in range(0, len(words) - 12, 12):
            yield " ".join(words[start : start + 12])
            taken += 1
            if taken == DOCUMENTS:
                return

"""Rows of MindSpeed-LLM's instruction data: their order, their length, and what they teach.

Its tool writes three data sets beside one another, ``PREFIX_packed_input_ids_document``,
``..._labels_document`` and ``..._attention_mask_document``. A row is one conversation, or several
that were packed. A label of -100 is not learned: the prompt. Semantics are those of MindSpeed-LLM's
``decoder_packed_mtf_dataset.py`` (master of November 2026). Legend: n tokens of a row, s sequence.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy
from numpy.typing import NDArray

from accel_bridge.pretrain.preprocess.truncation import shares

Tokens = NDArray[numpy.int64]
#: Label of a token that is not learned.
IGNORED: Final = -100


def draw_order(
    rows: int, samples: int, seed: int, *, shuffle: bool = True, pad_epoch_to: int = 1
) -> Tokens:
    """Numbers of the rows in the order in which they are drawn, epoch after epoch.

    :param samples: at least as many are returned; whole epochs.
    :param pad_epoch_to: an epoch is filled up with its first rows to a multiple of this
        (``--padded-samples``: the global batch).
    """
    generator = numpy.random.RandomState(seed)
    missing = -rows % pad_epoch_to
    epochs: list[Tokens] = []
    while len(epochs) * (rows + missing) < samples:
        epoch = numpy.concatenate([numpy.arange(rows), numpy.arange(missing)])
        if shuffle:
            generator.shuffle(epoch)
        epochs.append(epoch)
    return numpy.concatenate(epochs) if epochs else numpy.arange(0)


def fit(tokens: Tokens, labels: Tokens, length: int) -> tuple[Tokens, Tokens]:
    """Cut a conversation [n] to ``length``, prompt and answer of each turn in proportion."""
    if len(tokens) <= length:
        return tokens, labels
    kept: list[tuple[Tokens, Tokens]] = []
    room = length
    for start, answer, end in _turns(labels):
        if room <= 0:
            break
        prompt, target = shares(answer - start, end - answer, room)
        for first, count in ((start, prompt), (answer, target)):
            kept.append((tokens[first : first + count], labels[first : first + count]))
        room -= prompt + target
    if not kept:
        # No prompt at all: plain text.
        return tokens[:length], labels[:length]
    return numpy.concatenate([k[0] for k in kept]), numpy.concatenate([k[1] for k in kept])


def _turns(labels: Tokens) -> list[tuple[int, int, int]]:
    """Start of the prompt, start of the answer, and end, of each turn."""
    ignored = numpy.concatenate([[False], labels == IGNORED, [False]])
    changes = numpy.flatnonzero(ignored[1:] != ignored[:-1])
    starts, answers = changes[0::2], changes[1::2]
    ends = [*starts[1:], len(labels)]
    return [(int(a), int(b), int(c)) for a, b, c in zip(starts, answers, ends, strict=False)]


def document_lengths(
    tokens: Tokens, mask: Tokens | None, end_of_document: int, length: int
) -> list[int]:
    """Lengths of the documents of a packed row; they sum to ``length``.

    :param mask: [n] number of each token's document from 1, 0 for padding (``--neat-pack``);
        None: a document ends with ``end_of_document``.
    """
    if mask is not None:
        ends = numpy.flatnonzero(mask[1:] != mask[:-1]) + 1
    else:
        ends = numpy.flatnonzero(tokens == end_of_document) + 1
    bounds = [0, *(int(end) for end in ends if 0 < end < length), length]
    return [b - a for a, b in pairwise(bounds)]

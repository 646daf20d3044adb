"""Instruction data of MindSpeed-LLM: order, cuts, documents."""

from __future__ import annotations

import numpy
import pytest

from accel_bridge.patches.mindspeed.instruction_rows import (
    IGNORED,
    document_lengths,
    draw_order,
    fit,
)


def test_an_epoch_has_every_row_once() -> None:
    order = draw_order(5, 12, seed=3)
    assert len(order) == 15
    for epoch in order.reshape(3, 5):
        assert sorted(epoch) == list(range(5))
    assert not (order[:5] == order[5:10]).all()
    assert (order == draw_order(5, 12, seed=3)).all()
    assert not (order == draw_order(5, 12, seed=4)).all()


def test_whole_batches_and_rows_in_their_order() -> None:
    order = draw_order(5, 8, seed=3, shuffle=False, pad_epoch_to=4)
    assert order.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def row(*parts: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Tokens 0, 1, 2...; positive parts are answers, negative ones prompts."""
    tokens = numpy.arange(sum(map(abs, parts)))
    labels = tokens.copy()
    start = 0
    for part in parts:
        if part < 0:
            labels[start : start - part] = IGNORED
        start += abs(part)
    return tokens, labels


@pytest.mark.parametrize(
    ("parts", "length", "kept"),
    [
        ((-4, 6), 10, list(range(10))),  # fits
        ((-10, 2), 6, [0, 1, 2, 3, 10, 11]),  # a short answer stays whole
        ((-2, 10), 6, [0, 1, 2, 3, 4, 5]),  # a short prompt stays whole
        ((-8, 8), 8, [0, 1, 2, 3, 8, 9, 10, 11]),  # both are cut
        ((-2, 2, -2, 8), 8, [0, 1, 2, 3, 4, 6, 7, 8]),  # the second turn gets what is left
        ((12,), 5, [0, 1, 2, 3, 4]),  # no prompt
    ],
)
def test_a_long_conversation_is_cut(parts: tuple[int, ...], length: int, kept: list[int]) -> None:
    tokens, labels = row(*parts)
    found, learned = fit(tokens, labels, length)
    assert found.tolist() == kept
    assert (learned == labels[kept]).all()


def test_documents_of_a_packed_row() -> None:
    tokens = numpy.array([5, 6, 0, 7, 0, 8])
    assert document_lengths(tokens, None, 0, 6) == [3, 2, 1]
    assert document_lengths(tokens, None, 0, 8) == [3, 2, 3]
    assert document_lengths(tokens, None, 9, 6) == [6]
    numbers = numpy.array([1, 1, 2, 2, 2, 0])
    assert document_lengths(tokens, numbers, 0, 6) == [2, 3, 1]

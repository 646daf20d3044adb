"""A test of the tests: every injected fault is caught, and the right module is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_bridge.apps.comparison import Kind, compare
from accel_bridge.apps.testing import Record
from accel_bridge.recording import read
from parity.injected import FAULTS

TESTS = Path(__file__).parents[1]
#: Three steps of a model with rotary embeddings.
RUN = tuple("--train-iters 3 --lr-decay-iters 3 --position-embedding-type rope".split())
TP2 = ("--tensor-model-parallel-size", "2")
DROPOUT = tuple("--attention-dropout 0.1 --hidden-dropout 0.1".split())

#: Injected fault -> (arguments, processes, kind of observation, name of the first that departs).
EXPECTED = {
    "wrong-scale": ((), 1, "output", "decoder.layers.2.self_attention.core_attention"),
    "transposed-layout": ((), 1, "output", "decoder.layers.2.self_attention.core_attention"),
    "mask-off-by-one": ((), 1, "output", "decoder.layers.0.self_attention.core_attention"),
    "dropped-norm": ((), 1, "output", "decoder.layers.0.self_attention.linear_qkv"),
    # Between linear_qkv, which agrees, and the attention: its query.
    "swapped-rotary-halves": (
        (),
        1,
        "output",
        "decoder.layers.0.self_attention.core_attention.query",
    ),
    "missing-all-reduce": (TP2, 2, "output", "decoder.layers.0.self_attention.linear_proj"),
    "wrong-rng": (
        (*TP2, *DROPOUT),
        2,
        "output",
        "decoder.layers.0.self_attention.core_attention",
    ),
    "low-precision-sums": ((), 1, "weight gradient", "decoder.layers.0.mlp.linear_fc2.weight"),
}
#: One for each kind of observation, one of them on two ranks; `make conformance` has all.
IN_EVERY_RUN = {"missing-all-reduce", "low-precision-sums"}


def test_every_plant_is_expected_somewhere() -> None:
    assert set(EXPECTED) == set(FAULTS)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(error, marks=() if error in IN_EVERY_RUN else pytest.mark.conformance)
        for error in EXPECTED
    ],
)
def test_an_injected_fault_is_caught_at_its_module(error: str, record: Record) -> None:
    arguments, processes, kind, name = EXPECTED[error]
    # Dropout is comparable only in one layout; all else is compared with one process.
    same_layout = arguments if DROPOUT[0] in arguments else ()
    good = record(*RUN, *same_layout, processes=processes if same_layout else 1)
    bad = record(
        *RUN,
        *arguments,
        processes=processes,
        plugins="parity.injected",
        environ={"INJECTED_ERROR": error, "PYTHONPATH": str(TESTS)},
    )
    found = compare(read(good), read(bad))
    assert not found.passed
    assert (found.first.kind, found.first.name) == (kind, name)
    assert name in found.first.where
    expected = Kind.ACCUMULATION if error == "low-precision-sums" else Kind.DEFECT
    assert found.kind is expected

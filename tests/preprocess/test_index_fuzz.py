"""Mutated .idx files: `inspect` and training's check take or report each, in bounded memory."""

from __future__ import annotations

import json
import random
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
from random_examples import FEW, TIMES

from accel_bridge.errors import BridgeError
from accel_bridge.pretrain.indexed_data import DataError, check_ids, check_indexed_datasets
from accel_bridge.pretrain.preprocess._inspect import inspect_pair

#: Numbers that break arithmetic.
EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
MUTATIONS = 250 if FEW else 1000 * TIMES
#: Growth of this process, in bytes.
MOST_BYTES = 200 << 20


def index(lengths: list[int], pointers: list[int], documents: list[int]) -> bytes:
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, len(lengths), len(documents))
    return (
        head
        + np.array(lengths, np.int32).tobytes()
        + np.array(pointers, np.int64).tobytes()
        + np.array(documents, np.int64).tobytes()
    )


SOUND = index([1, 2, 3], [0, 4, 12], [0, 1, 3])
IDS = np.arange(6, dtype=np.int32).tobytes()


def write_pair(directory: Path, data: bytes, ids: bytes = IDS) -> str:
    (directory / "x.idx").write_bytes(data)
    (directory / "x.bin").write_bytes(ids)
    return str(directory / "x")


def mutated(whole: bytes, source: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(data))
        kind = source.randrange(5)
        if kind == 0:
            data[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            value = struct.pack("<Q", source.choice(EXTREMES))
            data[at : at + 8] = value[: len(data) - at]
        elif kind == 2:
            del data[at : at + source.randint(1, 16)]
        elif kind == 3:
            del data[at:]
        else:
            data[at:at] = source.randbytes(source.randint(1, 16))
        if not data:
            return b""
    return bytes(data)


def refusal(prefix: str) -> BridgeError | None:
    try:
        check_indexed_datasets([prefix])
    except BridgeError as error:
        return error
    return None


def test_no_mutation_raises_anything_else(tmp_path: Path) -> None:
    source = random.Random(13)
    refused = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(MUTATIONS):
        pair = (SOUND, mutated(IDS, source)) if number % 4 == 0 else (mutated(SOUND, source), IDS)
        prefix = write_pair(tmp_path, *pair)
        report = inspect_pair(prefix, vocab_size=100)
        assert "\x1b" not in "".join([json.dumps(vars(report)), *report.lines()])
        error = refusal(prefix)
        if error is not None:
            refused += 1
            assert error.evidence
            assert error.next
            assert report.problems, error
    assert refused > MUTATIONS // 2
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert growth * 1024 < MOST_BYTES


@pytest.mark.parametrize(
    ("lengths", "pointers", "documents", "said"),
    [
        ([1, -2, 3], [0, 4, 12], [0, 1, 3], "negative length: -2"),
        ([1, 2, 3], [0, -4, 12], [0, 1, 3], "negative offset: -4"),
        ([1, 2, 3], [0, 4, 12], [0, 2, 1, 3], "do not divide"),
        ([1, 2, 3], [0, 4, 12], [0, 1, 2], "do not divide"),
        ([1, 2, 3], [0, 4, 12], [], "do not divide"),
        ([1, 900, 3], [0, 4, 12], [0, 1, 3], "x.bin has 24"),
        ([1, 2, 3], [0, 4, 2**63 - 1], [0, 1, 3], "x.bin has 24"),
        ([], [], [0], "has no tokens"),
    ],
)
def test_damage_that_training_must_see(tmp_path, lengths, pointers, documents, said) -> None:
    with pytest.raises(DataError) as error:
        check_indexed_datasets([write_pair(tmp_path, index(lengths, pointers, documents))])
    assert said in str(error.value)


@pytest.mark.parametrize(("largest", "smallest"), [(256, 0), (5, -1), (2**40, 0)])
def test_ids_outside_the_models_vocabulary(largest: int, smallest: int) -> None:
    check_ids(255, 0, 256)
    with pytest.raises(DataError, match="outside the model's vocabulary"):
        check_ids(largest, smallest, 256)

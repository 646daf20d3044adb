"""A look at tokenized data before training; upstream meets a broken file minutes later."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from accel_bridge._errors import BridgeError

#: First bytes of an index file (megatron/core/datasets/indexed_dataset.py).
_MAGIC = b"MMIDIDX\x00\x00"

#: dtype code of an index file -> bytes of one token.
_TOKEN_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2}


class DataError(BridgeError):
    """A path of training data does not hold what training needs."""


def check_indexed_datasets(prefixes: Iterable[str]) -> None:
    """Each prefix must have a whole ``.idx`` and the ``.bin`` that it describes.

    :raises DataError: for the first that has not.
    """
    for prefix in prefixes:
        if "://" not in prefix:  # object storage is Megatron's to check
            _check_indexed_dataset(prefix)


def _check_indexed_dataset(prefix: str) -> None:
    for suffix in (".idx", ".bin"):
        if not Path(prefix + suffix).is_file():
            raise DataError(
                f"The training data {prefix} is not there.",
                evidence=f"no file {prefix}{suffix}",
                next="give --data-path the prefix of the .idx and .bin files, without suffix; "
                "`accel-bridge preprocess --output-prefix ...` makes them",
            )
    expected = _bytes_of_tokens(Path(prefix + ".idx"))
    actual = Path(prefix + ".bin").stat().st_size
    if actual < expected:
        raise DataError(
            f"The training data {prefix} is truncated.",
            evidence=f"{prefix}.idx describes {expected} bytes of tokens, "
            f"{prefix}.bin has {actual}",
            next="run `accel-bridge preprocess` again",
        )


def _bytes_of_tokens(index: Path) -> int:
    """Bytes that the ``.bin`` beside ``index`` must have."""
    with index.open("rb") as file:
        head = file.read(34)
        if len(head) < 34 or not head.startswith(_MAGIC) or head[17] not in _TOKEN_BYTES:
            raise DataError(
                f"{index} is not an index of tokenized data.",
                evidence=f"it starts with {head[:9]!r}, an index with {_MAGIC!r}",
                next="run `accel-bridge preprocess` again",
            )
        width = _TOKEN_BYTES[head[17]]
        sequences, documents = struct.unpack("<QQ", head[18:34])
        # Sequence lengths (int32), byte pointers (int64), document index (int64).
        if index.stat().st_size < 34 + sequences * 12 + documents * 8:
            raise DataError(
                f"{index} is truncated.",
                evidence=f"it announces {sequences} sequences and has {index.stat().st_size} bytes",
                next="run `accel-bridge preprocess` again",
            )
        if sequences == 0:
            return 0
        file.seek(34 + 4 * (sequences - 1))
        (last_length,) = struct.unpack("<i", file.read(4))
        file.seek(34 + 4 * sequences + 8 * (sequences - 1))
        (last_pointer,) = struct.unpack("<q", file.read(8))
    return int(last_pointer + last_length * width)

"""Recordings, indices and command lines that a seed has changed."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Final

from parity.hostile import changed, document, packed, places

from conformance.hostile.case import Case, Prepare

#: How many cases of each are made.
MOST: Final = 200
#: Numbers that break arithmetic.
EXTREMES: Final = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)

#: `inspect` and `parity compare` judge: that is their answer.
_NOT_SOUND: Final = r'NOT SOUND|"problems": \["'
_OFF: Final = r'FAIL: |"passed": false'


def damaged(data: bytes, source: random.Random) -> bytes:
    """The bytes with one to three changes."""
    made_of = bytearray(data)
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(made_of) or 1)
        kind = source.randrange(5)
        if kind == 0 and made_of:
            made_of[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            value = struct.pack("<Q", source.choice(EXTREMES))
            made_of[at : at + 8] = value[: len(made_of) - at]
        elif kind == 2:
            del made_of[at : at + source.randint(1, 16)]
        elif kind == 3:
            made_of[at:at] = source.randbytes(source.randint(1, 16))
        else:
            del made_of[at:]
    return bytes(made_of)


def _damage(name: str, seed: int) -> Prepare:
    def prepare(directory: Path) -> None:
        path = directory / name
        path.write_bytes(damaged(path.read_bytes(), random.Random(seed)))

    return prepare


def _change(name: str, seed: int) -> Prepare:
    def prepare(directory: Path) -> None:
        source, path = random.Random(seed), directory / name
        value = document(path)
        found = changed(value, source, list(places(value)))
        path.write_bytes(packed(json.dumps(found).encode()))

    return prepare


def recordings(source: random.Random) -> list[Case]:
    """Damaged files, and documents with another value under a right checksum."""
    found = []
    for number in range(MOST):
        seed, name = source.randrange(2**32), source.choice(("a.rec", "b.rec"))
        words = ["accel_bridge", "parity", "compare", "a.rec", "b.rec"]
        words += source.choice(([], ["--json"], ["--html", "x.html"], ["--third", "b.rec"]))
        how, prepare = ("damaged", _damage) if number % 3 == 0 else ("changed", _change)
        refused = True if number % 3 == 0 else None
        found.append(
            Case("recordings", f"{how} by {seed}", words, refused, prepare(name, seed),
                 verdict=_OFF, outputs=["x.html"])
        )  # fmt: skip
    return found


def indices(source: random.Random) -> list[Case]:
    """Damaged pairs, under `inspect`."""
    found = []
    for _ in range(MOST):
        seed, suffix = source.randrange(2**32), source.choice((".idx", ".idx", ".bin"))
        words = ["accel_bridge", "inspect", "data_text_document", *source.choice(([], ["--json"]))]
        words += ["--vocab-size", "255"]
        prepare = _damage(f"data_text_document{suffix}", seed)
        found.append(
            Case("indices", f"{suffix} damaged by {seed}", words, None, prepare, verdict=_NOT_SOUND)
        )
    return found


COMMAND_WORDS: Final = (
    *"plugins backends env parity compare kernels patches libraries inspect preprocess".split(),
    *"demo pretrain --against --json --help --version -V -- --out --every --png --third".split(),
    *"--kernel --backend --wait --no-imports -1 0 1e999 nan . /dev/null --every=0".split(),
    *"--wait=1e-9 --input text.jsonl --output-prefix out --tokenizer-type NullTokenizer".split(),
    *"--vocab-size 255 a.rec b.rec data_text_document --samples --iterations --resumed".split(),
    *"doctor plot tokenizer train completion bash run.log --only --skip --list --all".split(),
    *"--last --names --smooth --title --kind --progress --output --html".split(),
    *("--record", "-m", "--nproc-per-node", "", " ", "\x1b[31m", "\u202e", "\udcff", "'"),
    *("x" * 3000, "-" * 50, "--=", "--x=" + "9" * 5000),
)


def command_lines(source: random.Random) -> list[Case]:
    """Words of the commands in any order, among words that are none."""
    found: list[Case] = []
    while len(found) < MOST:
        words = [source.choice(COMMAND_WORDS) for _ in range(source.randint(1, 6))]
        # A demo that is right takes minutes, as do all kernels.
        if words[0] == "demo" or "kernels" in words:
            words += ["--iterations", "0"] if words[0] == "demo" else ["--kernel", "x"]
        name = " ".join(word[:20] for word in words)
        found.append(
            Case("command lines", name, ["accel_bridge", *words], None,
                 outputs=["out_text_document.bin", "out_text_document.idx", *words], memory=None)
        )  # fmt: skip
    return found

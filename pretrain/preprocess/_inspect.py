"""``accel-bridge inspect``: read an .idx/.bin pair and check all that can be checked."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from accel_bridge.errors import printable
from accel_bridge.pretrain.indexed_data import DataError, Index, readable

from .build import build_engine
from .engines import Engine
from .errors import InputError
from .tokenizer_flags import tokenizer_arguments
from .tokenizers import read_tokenizer

#: Ids looked at per step when the data is scanned.
_SCAN_ITEMS = 1 << 22


@dataclass
class Report:
    """What a pair holds and what is wrong with it."""

    prefix: str
    dtype: str = ""
    sequences: int = 0
    documents: int = 0
    empty_documents: int = 0
    tokens: int = 0
    shortest: int = 0
    longest: int = 0
    largest_id: int = -1
    multimodal: bool = False
    problems: list[str] = field(default_factory=list)
    samples: list[dict[str, object]] = field(default_factory=list)

    def lines(self) -> list[str]:
        mean = self.tokens / self.sequences if self.sequences else 0
        result = [
            f"prefix     {self.prefix}",
            f"ids        {self.dtype or 'unknown'}, largest {self.largest_id:,}",
            f"documents  {self.documents:,} ({self.empty_documents:,} empty)",
            f"sequences  {self.sequences:,} of {self.shortest:,} to {self.longest:,} tokens, "
            f"mean {mean:,.1f}",
            f"tokens     {self.tokens:,}",
        ]
        for sample in self.samples:
            result.append(f"document {sample['document']}: {sample['ids']}")
            if "text" in sample:
                result.append(f"  {sample['text']!r}")
        result += [f"problem: {problem}" for problem in self.problems]
        result.append("sound" if not self.problems else "NOT SOUND")
        return result


def main(parsed: argparse.Namespace) -> int:
    """Print what a command line asks for; the exit status of ``inspect_main``."""
    engine, vocab_size = None, parsed.vocab_size
    if parsed.tokenizer_type:
        spec = read_tokenizer(tokenizer_arguments(parsed))
        engine = build_engine(spec, "exact").engine
        vocab_size = vocab_size or spec.vocab_size
    report = inspect_pair(parsed.prefix, vocab_size=vocab_size)
    _add_samples(report, parsed.samples, parsed.sample_tokens, engine)
    if parsed.json:
        # A lone surrogate in a path or a sample has no UTF-8.
        print(json.dumps(vars(report), ensure_ascii=False).encode(errors="replace").decode())
    else:
        print("\n".join(printable(line) for line in report.lines()))
    return 1 if report.problems else 0


def inspect_pair(prefix: str, vocab_size: int | None = None) -> Report:
    """Check the pair at ``prefix``.

    :param prefix: path without suffix; a path with ``.idx`` or ``.bin`` is taken too.
    :param vocab_size: ids must be below it, if given.
    :raises InputError: a file of the pair is missing.
    """
    prefix = prefix.removesuffix(".idx").removesuffix(".bin")
    for path in (prefix + ".idx", prefix + ".bin"):
        if not os.path.isfile(path):
            raise InputError(
                "an .idx/.bin pair is two files, and one is missing",
                evidence=f"{path} is no file"
                if os.path.lexists(path)
                else f"{path} does not exist",
                next="give the path without suffix, for example out/x_text_document",
            )
    report = Report(prefix)
    with readable(prefix):
        try:
            index = Index.read(Path(prefix + ".idx"))
        except DataError as error:
            report.problems.append(f"{error.what} ({', '.join(error.evidence)})")
            return report
        if index.more not in (0, len(index.lengths)) or index.kind.kind == "f":
            report.problems.append(f"{index.more} bytes are left over, or its ids are fractions")
            return report
        _check(index, os.path.getsize(prefix + ".bin"), report)
        _scan(prefix + ".bin", index.kind, vocab_size, report)
    return report


def _check(index: Index, bin_size: int, report: Report) -> None:
    itemsize = index.kind.itemsize
    report.dtype = index.kind.name
    report.multimodal = index.more > 0
    report.sequences = len(index.lengths)
    report.documents = max(len(index.documents) - 1, 0)
    report.tokens = bin_size // itemsize
    if report.sequences:
        report.shortest, report.longest = int(index.lengths.min()), int(index.lengths.max())
    total, follow = 0, True
    for start in range(0, report.sequences, _SCAN_ITEMS):
        lengths = index.lengths[start : start + _SCAN_ITEMS]
        ends = np.cumsum(lengths, dtype=np.int64) * itemsize + total
        starts = np.concatenate(([total], ends[:-1]))
        follow = follow and np.array_equal(index.pointers[start : start + _SCAN_ITEMS], starts)
        total = int(ends[-1])
    ascending, empty = True, 0
    for start in range(0, report.documents, _SCAN_ITEMS):
        bounds = index.documents[start : start + _SCAN_ITEMS + 1]
        ascending = ascending and bool((bounds[1:] >= bounds[:-1]).all())
        empty += int((bounds[1:] == bounds[:-1]).sum())
    report.empty_documents = empty
    checks = (
        (report.shortest >= 0, "a sequence has a negative length"),
        (follow, "byte offsets do not follow from the lengths"),
        (total == bin_size, f".bin has {bin_size} bytes where .idx asks for {total}"),
        (len(index.documents) > 0 and index.documents[0] == 0, "documents do not begin at 0"),
        (ascending, "documents overlap"),
        (
            len(index.documents) > 0 and int(index.documents[-1]) == report.sequences,
            "documents do not end with the last sequence",
        ),
    )
    report.problems += [problem for sound, problem in checks if not sound]


def _scan(path: str, dtype: np.dtype[Any], vocab_size: int | None, report: Report) -> None:
    """Look at every id."""
    count = os.path.getsize(path) // dtype.itemsize
    smallest = 0
    with open(path, "rb") as file:
        for start in range(0, count, _SCAN_ITEMS):
            ids = np.fromfile(file, dtype, min(_SCAN_ITEMS, count - start))
            if not len(ids):
                raise OSError("the .bin became shorter while it was read")
            report.largest_id = max(report.largest_id, int(ids.max()))
            smallest = min(smallest, int(ids.min()))
    if smallest < 0:
        report.problems.append(f"an id is negative: {smallest}")
    if vocab_size is not None and report.largest_id >= vocab_size:
        report.problems.append(f"id {report.largest_id} is outside the vocabulary of {vocab_size}")


def _add_samples(report: Report, count: int, length: int, engine: Engine | None) -> None:
    """The beginnings of the first documents that are not empty."""
    if report.problems or not report.sequences:
        return
    index = Index.read(Path(report.prefix + ".idx"))
    filled = np.flatnonzero(np.diff(index.documents) > 0)[:count]
    with readable(report.prefix), open(report.prefix + ".bin", "rb") as file:
        for document in filled.tolist():
            first = int(index.documents[document])
            last = int(index.documents[document + 1])
            total = int(index.lengths[first:last].sum())
            file.seek(int(index.pointers[first]))
            ids = np.fromfile(file, index.kind, min(length, total)).tolist()
            sample: dict[str, object] = {"document": document, "ids": ids}
            if engine is not None:
                sample["text"] = _decode(engine, ids)
            report.samples.append(sample)


def _decode(engine: Engine, ids: list[int]) -> str:
    try:
        return engine.decode(ids)
    # Each library has errors of its own for ids that it does not know; all mean the same.
    except Exception as error:
        raise InputError(
            "the tokenizer does not know the ids of the data",
            evidence=f"ids {ids[:8]}: {type(error).__name__}: {error}",
            next="name the tokenizer that made the data, or leave --tokenizer-type out",
        ) from error

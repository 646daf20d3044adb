"""Checks of `accel-bridge doctor` for training data and tokenizers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.patching.host import flag_of
from accel_bridge.plugins.checks import Check, Finding, Machine, Run, fails, of_error, ok, warning
from accel_bridge.process.parser import is_number

_SUBJECT: Final = "Data"
#: Arguments that name data: prefixes, with or without a weight before each.
_BLENDS: Final = ("data_path", "train_data_path", "valid_data_path", "test_data_path")
#: Ids looked at in one piece, and pieces of one data set: a whole one may be a terabyte.
_PIECE: Final = 1 << 20
_PIECES: Final = 64
#: How a file begins that Git LFS has not fetched.
_POINTER: Final = b"version https://git-lfs"
#: Arguments that name one file of a tokenizer.
_FILES: Final = ("vocab_file", "merge_file", "tokenizer_model")


def prefixes(run: Run) -> list[str]:
    """The data sets that a training names, each once.

    Source: megatron/training/utils.py, get_blend_and_blend_per_split.
    """
    found: list[str] = []
    for name in _BLENDS:
        value = run.argument(name, [])
        found += _without_weights([str(word) for word in _list(value)])
    for name in ("data_args_path", "per_split_data_args_path"):
        path = run.argument(name)
        if isinstance(path, str):
            found += _in_file(Path(path))
    return list(dict.fromkeys(found))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _without_weights(words: list[str]) -> list[str]:
    """Where every other word is a number, these are the weights."""
    weights, names = words[::2], words[1::2]
    if names and len(words) % 2 == 0 and all(map(is_number, weights)):
        return names
    return words


def _in_file(path: Path) -> list[str]:
    """Blends in a file: words, or JSON with one list for each split."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []  # the check of data says so
    try:
        splits = json.loads(text)
    except ValueError:
        return _without_weights(text.split())
    if not isinstance(splits, dict):
        return _without_weights(text.split())
    lists = [value for value in splits.values() if isinstance(value, list)]
    return [name for words in lists for name in _without_weights([str(word) for word in words])]


def _local(run: Run) -> list[str]:
    """Those on this machine; object storage is Megatron's to check."""
    return [prefix for prefix in prefixes(run) if "://" not in prefix]


def _data(machine: Machine) -> Iterator[Finding]:
    run = machine.run
    if run is None or run.parsed is None or run.argument("mock_data"):
        return
    for name in ("data_args_path", "per_split_data_args_path"):
        path = run.argument(name)
        if isinstance(path, str) and not Path(path).is_file():
            yield fails(
                f"the file that lists the data is not there: {path}",
                f"{flag_of(name)} {path}",
                next="give the path of an existing file",
            )
            return
    found = prefixes(run)
    if not found:
        yield warning(
            "no data is named, and no --mock-data: Megatron stops, or its script names data itself",
            f"none of {', '.join(f'--{name}' for name in ('data-path', 'train-data-path'))} ...",
            next="--data-path PREFIX (made by `accel-bridge preprocess`), or --mock-data",
        )
    if run.argument("sft"):
        return  # conversations in JSON lines
    for prefix in _local(run):
        yield from _whole(prefix)
        yield from _cache(machine, run, prefix)


def _whole(prefix: str) -> Iterator[Finding]:
    """Both files of a data set, and whether they belong together."""
    from accel_bridge.pretrain.indexed_data import check_indexed_datasets

    for suffix in (".bin", ".idx"):
        if prefix.endswith(suffix) and Path(prefix).is_file():
            yield fails(
                f"--data-path takes a prefix, and {prefix} is a file",
                f"Megatron would look for {prefix}.idx",
                next=f"--data-path {prefix.removesuffix(suffix)}",
            )
            return
        path = Path(prefix + suffix)
        if path.is_file() and _begins(path) == _POINTER:
            yield fails(
                f"{path} is a pointer of Git LFS, and not the data",
                f"it begins with {_POINTER.decode()!r}",
                next=f"git lfs pull --include '{path.name}'",
            )
            return
    try:
        check_indexed_datasets([prefix])
    except BridgeError as error:
        near = sorted(path.name for path in Path(prefix).parent.glob("*.idx"))[:5]
        found = of_error(error)
        if near and not Path(f"{prefix}.idx").is_file():
            names = ", ".join(name.removesuffix(".idx") for name in near)
            evidence = (*found.evidence, f"in that directory: {names}")
            found = fails(found.what, *evidence, next=found.next)
        yield found
    else:
        yield ok(f"{prefix} is whole")


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_POINTER))
    except OSError:
        return b""


def _cache(machine: Machine, run: Run, prefix: str) -> Iterator[Finding]:
    """Megatron writes the order of samples beside the data, unless told where."""
    if run.argument("data_cache_path"):
        return
    directory = Path(prefix).absolute().parent
    cache = directory / "cache"
    there = cache if cache.is_dir() else directory
    if there.is_dir() and not machine.access(there, os.W_OK | os.X_OK):
        yield fails(
            "Megatron keeps the order of samples beside the data, in a directory it cannot write",
            f"{there}; this is user {os.getuid()}",
            next="--data-cache-path A DIRECTORY THAT YOU MAY WRITE",
        )


def _ids(machine: Machine) -> Iterator[Finding]:
    """Token ids beyond the embedding are taken for zeros by tensor parallel ranks."""
    run = machine.run
    if run is None or run.parsed is None or run.argument("mock_data") or run.argument("sft"):
        return
    vocabulary = run.argument("padded_vocab_size") or _padded(run)
    if not isinstance(vocabulary, int):
        return
    for prefix in _local(run):
        seen = _largest_id(prefix)
        if seen is None:
            continue  # the check of data says why
        largest, looked, total = seen
        if largest >= vocabulary:
            yield fails(
                f"the data has token ids outside the model's vocabulary: {largest}",
                f"{prefix}: {looked:,} of {total:,} ids were looked at",
                f"the model knows 0 to {vocabulary - 1}",
                next="give the tokenizer that made the data; `accel-bridge inspect "
                f"{prefix} --vocab-size {vocabulary}` looks at every id",
            )
        else:
            yield ok(f"the ids of {prefix} are in the vocabulary", f"{looked:,} of {total:,}")


def _padded(run: Run) -> int | None:
    """The embedding's rows, from ``--vocab-size``; None where only a tokenizer knows it.

    Source: megatron/core/tokenizers/utils/build_tokenizer.py, vocab_size_with_padding.
    """
    size = run.argument("vocab_size")
    if not isinstance(size, int) or isinstance(size, bool):
        return None
    rows: int = size + (run.argument("tokenizer_type") == "NullTokenizer")
    multiple = int(run.argument("make_vocab_size_divisible_by", 128))
    multiple *= int(run.argument("tensor_model_parallel_size", 1))
    return -(-rows // multiple) * multiple


def _largest_id(prefix: str) -> tuple[int, int, int] | None:
    """Largest of the ids that were looked at, how many they are, and how many there are."""
    import numpy as np

    from accel_bridge.pretrain.indexed_data import DataError, Index

    try:
        kind = Index.read(Path(f"{prefix}.idx")).kind
        count = Path(f"{prefix}.bin").stat().st_size // kind.itemsize
        if not count or kind.kind == "f":
            return None
        ids = np.memmap(f"{prefix}.bin", kind, "r", shape=(count,))
    except (OSError, ValueError, DataError):
        return None
    pieces = -(-count // _PIECE)
    chosen = range(pieces) if pieces <= _PIECES else _spread(pieces)
    largest, looked = 0, 0
    for piece in chosen:
        part = ids[piece * _PIECE : (piece + 1) * _PIECE]
        largest, looked = max(largest, int(part.max())), looked + len(part)
    return largest, looked, count


def _spread(pieces: int) -> list[int]:
    """The first, the last, and others at even distances."""
    return sorted({place * (pieces - 1) // (_PIECES - 1) for place in range(_PIECES)})


def _amount(machine: Machine) -> Iterator[Finding]:
    """A split without documents never yields a sample."""
    run = machine.run
    if run is None or run.parsed is None or run.argument("mock_data") or run.argument("sft"):
        return
    split = str(run.argument("split") or "")
    per_split = any(run.argument(name) for name in (*_BLENDS[1:], "per_split_data_args_path"))
    if per_split or not split:
        return
    try:
        parts = [float(word) for word in split.replace("/", ",").split(",") if word]
    except ValueError:
        return  # Megatron says so
    total = sum(parts) or 1.0
    for prefix in _local(run):
        documents, tokens = _counts(prefix)
        if documents is None:
            continue
        length = run.argument("seq_length", 0)
        if isinstance(length, int) and 0 < tokens <= length:
            yield fails(
                f"{prefix} has fewer tokens than one sequence",
                f"{tokens:,} tokens; --seq-length {length}",
                next="use more data, or a shorter --seq-length",
            )
            continue
        begin, empty = 0.0, []
        for name, part in zip(("training", "validation", "test"), parts, strict=False):
            end = begin + part / total
            if part and round(end * documents) == round(begin * documents) and _wanted(run, name):
                empty.append(name)
            begin = end
        if empty:
            yield fails(
                f"{prefix} has too few documents for a part of --split: {', '.join(empty)} would "
                "hold none",
                f"{documents} documents; --split {split}",
                next="use more documents, a larger part in --split, or 0 to omit it "
                "(with --eval-iters 0)",
            )


def _wanted(run: Run, name: str) -> bool:
    """Whether a split is read at all."""
    return name == "training" or run.argument("eval_iters", 100) != 0


def _counts(prefix: str) -> tuple[int | None, int]:
    """Documents and tokens, by the header and the size of both files."""
    from accel_bridge.pretrain.indexed_data import DataError, Index

    try:
        index = Index.read(Path(f"{prefix}.idx"))
        size = Path(f"{prefix}.bin").stat().st_size
    except (OSError, DataError):
        return None, 0
    return max(0, len(index.documents) - 1), size // index.kind.itemsize


def _tokenizer(machine: Machine) -> Iterator[Finding]:
    """The files that a tokenizer is built from: fetched, and of the kind that they are for."""
    run = machine.run
    if run is None or run.parsed is None:
        return
    for name in _FILES:
        path = run.argument(name)
        if not isinstance(path, str) or "://" in path or not Path(path).expanduser().is_file():
            continue  # the check of inputs asks whether it is there
        file = Path(path).expanduser()
        flag = f"{flag_of(name)} {path}"
        if _begins(file) == _POINTER:
            yield fails(
                f"{file.name} is a pointer of Git LFS, and not the tokenizer",
                flag,
                next=f"git lfs pull --include '{file.name}'",
            )
        elif not file.stat().st_size:
            yield fails(f"{file.name} is empty", flag, next="fetch it again")
        elif file.suffix == ".json" and (problem := _json_problem(file)) is not None:
            yield fails(f"{file.name} is no JSON", flag, problem, next="fetch it again")
    kind = run.argument("tokenizer_type")
    needed = _NEEDS.get(str(kind), ())
    missing = [one for one in needed if not run.argument(one)]
    if missing:
        yield fails(
            f"--tokenizer-type {kind} needs {' and '.join(flag_of(one) for one in missing)}",
            f"not given: {', '.join(map(flag_of, missing))}",
            next=" ".join(f"{flag_of(one)} PATH" for one in missing),
        )


#: Type of tokenizer -> the arguments without which Megatron cannot build it.
_NEEDS: Final = {
    "HuggingFaceTokenizer": ("tokenizer_model",),
    "SentencePieceTokenizer": ("tokenizer_model",),
    "GPTSentencePieceTokenizer": ("tokenizer_model",),
    "Llama2Tokenizer": ("tokenizer_model",),
    "TikTokenizer": ("tokenizer_model",),
    "NullTokenizer": ("vocab_size",),
}


def _json_problem(file: Path) -> str | None:
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return None


CHECKS: Final = (
    Check(
        "data",
        _SUBJECT,
        "data that is not there, truncated, damaged, named with its suffix or not fetched; an "
        "unwritable directory for its cache",
        _data,
        with_run=True,
        seconds=120,
    ),
    Check(
        "token-ids",
        _SUBJECT,
        "token ids outside the padded vocabulary",
        _ids,
        with_run=True,
        seconds=60,
    ),
    Check(
        "amount-of-data",
        _SUBJECT,
        "fewer tokens than one sequence, or a split without documents",
        _amount,
        with_run=True,
    ),
    Check(
        "tokenizer",
        _SUBJECT,
        "tokenizer files that were not fetched, are empty or damaged, or are not named",
        _tokenizer,
        with_run=True,
    ),
)

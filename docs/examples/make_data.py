"""Makes data in the form that a tutorial starts from, out of what every Python brings.

    python make_data.py KIND PATH [--bytes N]

KIND is ``text`` (a plain text file), ``jsonl``, ``parquet`` (a column ``text``), ``alpaca``
(a Parquet file with instruction, input, output and text) or ``csv`` (a directory of three tables).
The text is the documentation of Python's standard library. Nothing is downloaded, and nothing is
overwritten: what is there already is left as it is.
"""

from __future__ import annotations

import argparse
import ast
import csv
import inspect
import json
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """A function, class or module of the standard library, and what its documentation says."""

    name: str
    signature: str
    text: str


def documentation() -> Iterator[Entry]:
    """Every docstring of more than a line, in the order of the files' paths."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.glob("**/*.py")):
        inside = path.relative_to(root)
        if {"site-packages", "dist-packages", "test", "tests", "idlelib"} & set(inside.parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        module = ".".join(inside.with_suffix("").parts)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            text = ast.get_docstring(node) or ""
            if text.count("\n") < 2:
                continue
            name = module if isinstance(node, ast.Module) else f"{module}.{node.name}"
            arguments = ast.unparse(node.args) if isinstance(node, ast.FunctionDef) else ""
            yield Entry(name, arguments, inspect.cleandoc(text))


def some(size: int) -> list[Entry]:
    """Entries with about ``size`` bytes of text."""
    entries = []
    for entry in documentation():
        entries.append(entry)
        size -= len(entry.text.encode())
        if size <= 0:
            break
    return entries


def write_text(path: Path, entries: list[Entry]) -> None:
    """One text, a chapter for each entry."""
    path.write_text("\n\n\n".join(f"{name}\n\n{text}" for name, _, text in entries) + "\n")


def write_jsonl(path: Path, entries: list[Entry]) -> None:
    """One object a line, as Megatron's tool wants it."""
    lines = [json.dumps({"name": name, "text": text}) for name, _, text in entries]
    path.write_text("\n".join(lines) + "\n")


def write_parquet(path: Path, entries: list[Entry]) -> None:
    """One column of text, as WikiText-2 comes."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": [text for _, _, text in entries]}), path)


def write_alpaca(path: Path, entries: list[Entry]) -> None:
    """Instructions with their answers, and the column ``text`` that holds both."""
    import pyarrow
    from pyarrow import parquet

    rows = [
        {
            "instruction": f"Explain {name}.",
            "input": signature,
            "output": text,
            "text": "Below is an instruction that describes a task. Write a response that "
            "appropriately completes the request.\n\n"
            f"### Instruction:\nExplain {name}.\n\n### Response:\n{text}",
        }
        for name, signature, text in entries
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def write_csv(directory: Path, entries: list[Entry]) -> None:
    """Three tables with a number, a title and a body."""
    directory.mkdir()
    for part in range(3):
        with (directory / f"part-{part}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "title", "body"])
            rows = enumerate(entries[part::3])
            writer.writerows((number, name, text) for number, (name, _, text) in rows)


KINDS: dict[str, Callable[[Path, list[Entry]], None]] = {
    "text": write_text,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "alpaca": write_alpaca,
    "csv": write_csv,
}


def main() -> None:
    """Make it, unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--bytes", type=int, default=1_500_000, help="of text, about")
    options = parser.parse_args()
    if options.path.exists():
        print(f"{options.path} is there already")
        return
    options.path.parent.mkdir(parents=True, exist_ok=True)
    entries = some(options.bytes)
    KINDS[options.kind](options.path, entries)
    print(f"{options.path}: {len(entries)} documents of Python's own documentation")


if __name__ == "__main__":
    main()

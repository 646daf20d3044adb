"""Which names of compiled libraries a framework imports, and whether they are served here.

    accel-bridge run tests/clients/names.py WHEEL|FOLDER ...

Prints one line for each name that is not served: a name that a module needs to be imported itself
(exit status 1), one that a function needs when it is called, or one that its importer does without.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from accel_bridge.libraries import LIBRARIES

ROOTS: Final = frozenset(root for library in LIBRARIES.values() for root in library.roots)


@dataclass(frozen=True, order=True)
class Use:
    """A name that a file imports.

    :param need: `module` where the file's own import fails without it, `function` where a call of
        a function does, `choice` where the importer goes on.
    """

    name: str
    need: str
    file: str


def files(package: Path) -> Iterator[tuple[str, str]]:
    """(path, text) of every Python file of a wheel or a folder."""
    if package.is_dir():
        for path in sorted(package.rglob("*.py")):
            yield str(path.relative_to(package.parent)), path.read_text(errors="replace")
        return
    with zipfile.ZipFile(package) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".py"):
                yield name, archive.read(name).decode(errors="replace")


def uses(file: str, text: str) -> Iterator[Use]:
    """What a file imports of the libraries that have a stand-in."""
    if not any(root in text for root in ROOTS):
        return
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    yield from _below(file, tree.body, "module")


def _below(file: str, nodes: list[ast.stmt], need: str) -> Iterator[Use]:
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = []
        for name in names:
            if name.split(".")[0] in ROOTS and not name.endswith("*"):
                yield Use(name, need, file)
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _below(file, getattr(node, field, []), _need(node, field, need))


def _need(node: ast.stmt, field: str, need: str) -> str:
    """How much what stands in that part of a statement is needed."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and need == "module":
        return "function"
    asks = isinstance(node, ast.Try) and field == "body" and bool(node.handlers)
    return "choice" if asks or (isinstance(node, ast.If) and need != "function") else need


def is_served(name: str) -> bool:
    """Whether the name can be imported here."""
    module, _, last = name.rpartition(".")
    try:
        return not module or hasattr(import_module(module), last) or bool(import_module(name))
    except (ImportError, AttributeError):
        return False


def main(words: list[str]) -> int:
    """The exit status: 1 if a module cannot be imported."""
    found = {use for word in words for file in files(Path(word)) for use in uses(*file)}
    missing = sorted(use for use in found if not is_served(use.name))
    for use in missing:
        print(f"{use.need}: {use.name} ({use.file})")
    print(f"{len({use.name for use in found})} names, {len({use.name for use in missing})} missing")
    return int(any(use.need == "module" for use in missing))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

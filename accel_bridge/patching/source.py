"""Targets in source code: their digests, without comments and documentation, and how they are found
in a checkout, a wheel or an installation that is not imported.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from accel_bridge.errors import BridgeError
from accel_bridge.patching._record import Shape


def source_digest(source: str) -> str:
    """Digest of the source of one definition or statement, decorators included.

    Blank lines, comment lines, the docstring and the overall indentation do not count. It works on
    the text, so every version of Python computes the same digest.

    :raises SyntaxError: ``source`` is not one whole definition or statement.
    """
    lines = source.splitlines()
    margin = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    # Indented text is parsed as it stands: dedenting would change strings that span lines.
    head = ["if True:"] if margin else []
    tree = ast.parse("\n".join([*head, *lines]))
    node = tree.body[0].body[0] if head else tree.body[0]  # type: ignore[attr-defined]
    documentation = _documentation(node, len(head))
    kept = [
        line.removeprefix(margin).rstrip()
        for number, line in enumerate(lines, 1)
        if number not in documentation and line.strip() and not line.lstrip().startswith("#")
    ]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16]


def digest_of(function: Any) -> str | None:
    """Digest of a loaded function's source; None if there is no source to read."""
    try:
        return source_digest(inspect.getsource(inspect.unwrap(function)))
    except (OSError, TypeError, ValueError, SyntaxError):
        return None


def _documentation(node: ast.AST, offset: int) -> range:
    """Lines of the docstring of a definition."""
    body = getattr(node, "body", [])
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
        value = body[0].value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return range(value.lineno - offset, (value.end_lineno or value.lineno) + 1 - offset)
    return range(0)


#: Imports and base classes that are followed before the search gives up.
_DEPTH = 12

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Named = _Definition | ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom


class NoSuchTree(BridgeError):
    """There is no source tree at a path."""


@dataclass(frozen=True, slots=True)
class Found:
    """A target in source code.

    :param node: its definition or statement.
    :param file: path inside the tree.
    :param module: the module that defines it; differs from the target's if that imports it.
    """

    node: _Named
    file: str
    module: str

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.file}:{_first_line(self.node)}"


class SourceTree:
    """The Python files of some packages in a directory or a wheel.

    :param path: the directory that holds the packages, one of those packages, or a wheel.
    :param packages: top-level packages to look at.
    :raises NoSuchTree: none of them is there.
    """

    def __init__(self, path: Path, packages: Collection[str]) -> None:
        self._wheel: zipfile.ZipFile | None = None
        if path.is_dir():
            root = path.parent if path.name in packages else path
            files = [file for package in packages for file in (root / package).rglob("*.py")]
            self._files = {file.relative_to(root).as_posix(): file for file in files}
        elif path.is_file() and zipfile.is_zipfile(path):
            self._wheel = zipfile.ZipFile(path)
            self._files = {n: path for n in self._wheel.namelist() if n.endswith(".py")}
        else:
            self._files = {}
        if not any(self.holds(package) for package in packages):
            raise NoSuchTree(
                f"there is no source of {' or '.join(sorted(packages))} at {path}",
                evidence="it is neither a directory nor a wheel"
                if not (path.is_dir() or self._wheel)
                else "it contains no Python file of these packages",
                next="give a checkout, a site-packages directory or a .whl file",
            )
        self._parsed: dict[str, ast.Module | None] = {}

    def text(self, file: str) -> str:
        """Content of one of the files."""
        if self._wheel is not None:
            return self._wheel.read(file).decode("utf-8", "replace")
        return self._files[file].read_text(encoding="utf-8", errors="replace")

    def holds(self, package: str) -> bool:
        """Whether the tree has files of that top-level package."""
        return any(file.startswith(f"{package}/") for file in self._files)

    def lacks_portion(self, module: str) -> bool:
        """Whether the subpackage of a namespace package that holds a module is missing as a whole.

        Megatron's older wheels bring ``megatron.core``, and only a checkout ``megatron.training``.
        """
        package, *inner = module.split(".")
        if len(inner) < 2 or f"{package}/__init__.py" in self._files:
            return False
        return not any(file.startswith(f"{package}/{inner[0]}/") for file in self._files)

    def find(self, target: str) -> Found | None:
        """The definition that ``module:qualname`` leads to, following imports and bases."""
        module, _, qualname = target.partition(":")
        found: Found | None = None
        for name in qualname.split("."):
            found = self._member(found, module, name, _DEPTH)
            if found is None:
                return None
        return found

    def shape(self, found: Found) -> Shape:
        """Parameters, digest and place of what was found."""
        node = found.node
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return Shape(None, None, found.place)
        return Shape(self._parameters(found), source_digest(self.source(found)), found.place)

    def source(self, found: Found) -> str:
        """The text of what was found, decorators included."""
        lines = self.text(found.file).splitlines()
        return "\n".join(lines[_first_line(found.node) - 1 : found.node.end_lineno])

    def uses(self, name: str) -> list[str]:
        """Lines that have a name as a word, as ``file:line``."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        return [
            f"{file}:{number}"
            for file in sorted(self._files)
            if word.search(text := self.text(file))
            for number, line in enumerate(text.splitlines(), 1)
            if word.search(line)
        ]

    def elsewhere(self, target: str) -> Iterator[str]:
        """Places in the target's package that define something with the same name."""
        module, _, qualname = target.partition(":")
        *owners, name = qualname.split(".")
        package = module.partition(".")[0]
        # A method's own name says little: it has moved with its class.
        wanted = owners[0] if owners else name
        pattern = re.compile(rf"^[ \t]*(?:async )?(?:def|class) {re.escape(wanted)}\b", re.M)
        for file in sorted(self._files):
            if not file.startswith(f"{package}/"):
                continue
            text = self.text(file)
            for match in pattern.finditer(text):
                if all(re.search(rf"^\s+def {re.escape(name)}\b", text, re.M) for _ in owners):
                    yield f"{file}:{text.count(chr(10), 0, match.start()) + 1}"

    def _member(self, owner: Found | None, module: str, name: str, depth: int) -> Found | None:
        if owner is None:
            return self._global(module, name, depth)
        if not isinstance(owner.node, ast.ClassDef):
            return None
        node = _named(owner.node.body, name)
        if node is not None:
            return Found(node, owner.file, owner.module)
        for base in owner.node.bases if depth else ():
            parent = self._global(owner.module, ast.unparse(base).split(".")[-1], depth - 1)
            inherited = parent and self._member(parent, parent.module, name, depth - 1)
            if inherited:
                return inherited
        return None

    def _global(self, module: str, name: str, depth: int) -> Found | None:
        file = self._file_of(module)
        tree = None if file is None else self._parse(file)
        if file is None or tree is None:
            return None
        node = _named(tree.body, name)
        if node is None:
            return self._starred(module, file, name, depth)
        if isinstance(node, ast.ImportFrom) and depth:
            source = _absolute(node, module, is_package=file.endswith("__init__.py"))
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            return self._global(source, original, depth - 1) or Found(node, file, module)
        return Found(node, file, module)

    def _starred(self, module: str, file: str, name: str, depth: int) -> Found | None:
        """What ``from ... import *`` brings."""
        tree = self._parse(file)
        for node in _statements(tree.body) if tree and depth else ():
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                source = _absolute(node, module, is_package=file.endswith("__init__.py"))
                if found := self._global(source, name, depth - 1):
                    return found
        return None

    def _parameters(self, found: Found) -> tuple[str, ...] | None:
        node: _Named | None = found.node
        if isinstance(node, ast.ClassDef):
            constructor = self._member(found, found.module, "__init__", _DEPTH)
            node = constructor.node if constructor else None
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        given = node.args
        names = [a.arg for a in (*given.posonlyargs, *given.args)]
        names += [given.vararg.arg] if given.vararg else []
        names += [a.arg for a in given.kwonlyargs]
        names += [given.kwarg.arg] if given.kwarg else []
        return tuple(names)

    def _file_of(self, module: str) -> str | None:
        path = module.replace(".", "/")
        return next((f for f in (f"{path}.py", f"{path}/__init__.py") if f in self._files), None)

    def _parse(self, file: str) -> ast.Module | None:
        if file not in self._parsed:
            try:
                self._parsed[file] = ast.parse(self.text(file))
            except SyntaxError:
                self._parsed[file] = None
        return self._parsed[file]


def _first_line(node: _Named) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _absolute(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    """The module that ``from ... import`` in ``module`` means."""
    if not node.level:
        return node.module or ""
    parents = module.split(".") if is_package else module.split(".")[:-1]
    kept = parents[: len(parents) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _named(body: list[ast.stmt], name: str) -> Any:
    """What gives ``name`` its value: a definition, else an import, else an assignment.

    Branches (``if HAVE_X``, ``try``) are searched too; which one runs is not known here.
    """
    found = [node for node in _statements(body) if name in _names(node)]
    order = ((ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef), ast.ImportFrom, ast.Import)
    for kind in order:
        for node in found:
            if isinstance(node, kind):
                return node
    return found[0] if found else None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from _statements(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body)


@cache
def _names(node: ast.stmt) -> frozenset[str]:
    """The names that a statement binds."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return frozenset((node.name,))
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return frozenset((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return frozenset(
        part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
    )

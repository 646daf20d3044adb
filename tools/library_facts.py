"""What others ask of the libraries that have shims, read from their sources.

    python tools/library_facts.py 0.12.1=PATH ... main=PATH verl-0.9.1=verl-0.9.1-py3-none-any.whl

Each word is a name and a source tree (or a wheel) of Megatron or of a framework above it; none is
imported. Writes tools/libraries/names.json (each name that they import or reach, and who does) and
tools/libraries/gates.json (each place that asks a library for its version, in trees whose name is a
version or ``main``). Trees that are not named keep what they had.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import json_lines
from packaging.version import Version

DIRECTORY: Final = Path(__file__).resolve().parent / "libraries"
NAMES: Final = DIRECTORY / "names.json"
GATES: Final = DIRECTORY / "gates.json"

#: Top-level modules of the compiled libraries.
ROOTS: Final = (
    *("transformer_engine", "transformer_engine_torch"),
    *("apex", "amp_C", "fused_layer_norm_cuda", "fused_weight_gradient_mlp_cuda"),
    *("scaled_masked_softmax_cuda", "scaled_softmax_cuda"),
    "scaled_upper_triang_masked_softmax_cuda",
    *("flash_attn", "mamba_ssm", "selective_scan_cuda", "causal_conv1d", "causal_conv1d_cuda"),
    *("fla", "grouped_gemm"),
    "fast_hadamard_transform",
)
_PATH: Final = re.compile(rf"({'|'.join(ROOTS)})(\.\w+)+")

#: Functions that ask for a version -> the library.
ASKING: Final = {
    "is_te_min_version": "transformer_engine",
    "is_fa_min_version": "flash_attn",
    "is_mamba_min_version": "mamba_ssm",
    "is_causal_conv1d_min_version": "causal_conv1d",
}
#: Functions and variables that hold one, beside ``PkgVersion("1.2")`` in a comparison.
HOLDING: Final = {
    "get_te_version": "transformer_engine",
    "te_version": "transformer_engine",
    "current_te_version": "transformer_engine",
    "TE_VERSION": "transformer_engine",
    "get_fa_version": "flash_attn",
    "get_mamba_version": "mamba_ssm",
    "get_causal_conv1d_version": "causal_conv1d",
}


def sources(tree: Path) -> Iterator[tuple[str, str]]:
    """(path, text) of every Python file of a source tree or a wheel; tests are left out."""
    if tree.suffix == ".whl":
        with zipfile.ZipFile(tree) as wheel:
            for name in sorted(wheel.namelist()):
                if name.endswith(".py"):
                    yield name, wheel.read(name).decode("utf-8", "replace")
        return
    inner = tree / "megatron"
    for path in sorted((inner if inner.is_dir() else tree).rglob("*.py")):
        name = path.relative_to(tree).as_posix()
        if "/tests/" not in f"/{name}":
            yield name, path.read_text(encoding="utf-8", errors="replace")


@dataclass(slots=True)
class Names:
    """The libraries' names that one file asks for.

    :param aliases: what the file calls them -> dotted path.
    """

    aliases: dict[str, str] = field(default_factory=dict)
    found: set[str] = field(default_factory=set)

    def read(self, tree: ast.AST) -> Names:
        """Collect imports first, then what is reached through them."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if _is_ours(alias.name):
                        self.found.add(alias.name)
                        root = alias.name.partition(".")[0]
                        self.aliases[alias.asname or root] = alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    if _is_ours(name) and alias.name != "*":
                        self.found.add(name)
                        self.aliases[alias.asname or alias.name] = name
        self.found |= self.reached(tree)
        return self

    def reached(self, tree: ast.AST) -> set[str]:
        """Dotted paths that expressions in ``tree`` lead to, and strings that spell one."""
        inner = {
            id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
        }  # the beginnings of longer chains
        found = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                name = self.path(node)
                if name is not None and name not in self.aliases.values():
                    found.add(name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value} if _PATH.fullmatch(node.value) else set()
        return found

    def path(self, node: ast.expr) -> str | None:
        """The dotted path behind an expression, or None."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self.path(node.value)
            return None if base is None else f"{base}.{node.attr}"
        return None


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in ROOTS


@dataclass(frozen=True, slots=True)
class Gate:
    """One place that asks a library for its version.

    :param where: file and function.
    :param names: what the branch that it opens asks of the library.
    :param keywords: names of arguments that it adds, with the classes that may take them.
    """

    library: str
    version: str
    where: str
    names: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


class Gates(ast.NodeVisitor):
    """Collects the gates of one file."""

    def __init__(self, path: str, names: Names) -> None:
        self.found: list[Gate] = []
        self._path = path
        self._names = names
        self._scope: list[ast.AST] = []
        self._statement: ast.stmt | None = None

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self._statement = node
        is_scope = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_scope:
            self._scope.append(node)
        statement = self._statement
        for library, version in _asked(node, self._scope):
            assert statement is not None
            self._add(library, version, statement)
        for child in ast.iter_child_nodes(node):
            self._statement = statement
            self.visit(child)
        if is_scope:
            self._scope.pop()

    def _add(self, library: str, version: str, statement: ast.stmt) -> None:
        scope = ".".join(getattr(node, "name", "") for node in self._scope)
        bases = [
            base
            for node in self._scope
            if isinstance(node, ast.ClassDef)
            for base in map(self._names.path, node.bases)
            if base is not None
        ]
        whole = ast.Module(body=_branch(statement), type_ignores=[])
        inner = Names(dict(self._names.aliases)).read(whole)
        gate = Gate(
            library,
            version,
            f"{self._path}:{scope}" if scope else self._path,
            tuple(sorted(inner.found)),
            tuple(sorted(_keywords(whole))) if bases else (),
            tuple(bases),
        )
        if gate not in self.found:
            self.found.append(gate)


def _asked(node: ast.AST, scope: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """(library, version) when ``node`` is a question for a version."""
    if isinstance(node, ast.Call):
        library = ASKING.get(_last_name(node.func))
        if library is not None and node.args:
            version = _text(node.args[0], scope)
            if version is not None:
                yield library, version
    elif isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        libraries = [HOLDING.get(_last_name(getattr(side, "func", side))) for side in sides]
        versions = [
            _text(side.args[0], scope)
            for side in sides
            if isinstance(side, ast.Call) and _last_name(side.func) == "PkgVersion"
        ]
        library = next((one for one in libraries if one), None)
        if library is not None and versions and versions[0] is not None:
            yield library, versions[0]


def _text(node: ast.expr, scope: Sequence[ast.AST]) -> str | None:
    """A constant, or the constant that a variable of the function holds."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    for place in reversed(scope):
        for one in ast.walk(place):
            if isinstance(one, ast.Assign) and isinstance(node, ast.Name):
                named = any(_last_name(target) == node.id for target in one.targets)
                if named and isinstance(one.value, ast.Constant):
                    return str(one.value.value)
    return None


def _last_name(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _branch(statement: ast.stmt) -> list[ast.stmt]:
    """The statements that a condition opens; of a refusal only the error."""
    if not isinstance(statement, ast.If):
        return [statement]
    is_refusal = isinstance(statement.body[-1], ast.Raise)
    return statement.body[-1:] if is_refusal else statement.body


def _keywords(branch: ast.AST) -> set[str]:
    """Arguments that a branch adds: ``kwargs["name"] = ...`` and ``kwargs.update(name=...)``."""
    return {
        str(target.slice.value)
        for node in ast.walk(branch)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and "kwargs" in ast.unparse(target.value)
    }


def read_tree(tree: Path, with_gates: bool) -> tuple[set[str], list[Gate]]:
    """The names and the gates of a source tree."""
    names: set[str] = set()
    gates: list[Gate] = []
    for path, text in sources(tree):
        if not any(root in text for root in ROOTS) and "_min_version" not in text:
            continue
        try:
            module = ast.parse(text)
        except SyntaxError:
            continue
        file = Names().read(module)
        names |= file.found
        if with_gates:
            visitor = Gates(path, file)
            visitor.visit(module)
            gates += visitor.found
    return names, gates


def main(words: Sequence[str]) -> int:
    """Read every tree that is named; the exit status."""
    if not words or not all("=" in word for word in words):
        print(__doc__, file=sys.stderr)
        return 2
    asked: dict[str, set[str]] = {name: set(who) for name, who in _read(NAMES).items()}
    gated: dict[str, set[str]] = {
        json.dumps({name: row[name] for name in row if name != "in"}): set(row["in"])
        for row in _read(GATES).get("gates", [])
    }
    for who, _, path in (word.partition("=") for word in words):
        is_megatron = who == "main" or who[:1].isdigit()
        found, gates = read_tree(Path(path), is_megatron)
        for importers in (*asked.values(), *gated.values()):
            importers.discard(who)
        for name in found:
            asked.setdefault(name, set()).add(who)
        for gate in gates:
            row = {name: getattr(gate, name) for name in Gate.__slots__ if getattr(gate, name)}
            gated.setdefault(json.dumps(row), set()).add(who)
    DIRECTORY.mkdir(exist_ok=True)
    names = {name: sorted(asked[name], key=_order) for name in sorted(asked) if asked[name]}
    NAMES.write_text(json_lines.dumps(names, 1) + "\n", encoding="utf-8")
    rows = [{**json.loads(row), "in": sorted(who, key=_order)} for row, who in gated.items() if who]
    rows.sort(key=lambda row: (row["library"], Version(row["version"]), row["where"], str(row)))
    GATES.write_text(json_lines.dumps({"gates": rows}, 2) + "\n", encoding="utf-8")
    return 0


def _order(who: str) -> tuple[int, list[int], str]:
    """Versions by number, then main, then the others by name."""
    numbers = [int(part) for part in re.findall(r"\d+", who)]
    return (0 if who[:1].isdigit() else 1 if who == "main" else 2), numbers, who


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

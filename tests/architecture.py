"""Checks of who may import whom, over the files as they are.

| part | folder | must not import |
|---|---|---|
| the plugin layer | accel_bridge/ | Megatron, any hardware library, all the parts below |
| library stand-ins | accel_bridge/libraries/ | Megatron, any hardware, all the other parts |
| applications | accel_bridge/apps/ | Megatron, any hardware library, backends, patches, pretrain |
| backends | backends/ | Megatron, applications, patches, pretrain |
| patches | patches/ | hardware libraries, applications, backends, pretrain |
| entry points | pretrain/ | hardware libraries, applications, backends, patches |
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HARDWARE: Final = (
    "torch_npu",
    "acl",
    "mindspeed",
    "transformer_engine",
    "apex",
    "flash_attn",
    "liger_kernel",
    "triton",
    "pynvml",
)
MEGATRON: Final = ("megatron",)
APPS: Final = "accel_bridge.apps"
LIBRARIES: Final = "accel_bridge.libraries"
BACKENDS: Final = "accel_bridge.backends"
PATCHES: Final = "accel_bridge.patches"
PRETRAIN: Final = "accel_bridge.pretrain"

_OWN_MODULE: Final = re.compile(r"(accel_bridge(?:\.\w+)+)(?::\w+)?")

#: Longest module, in lines.
MAX_LINES: Final = 450


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the project: its folder, its import name, and what it must not import."""

    folder: str
    package: str
    forbidden: tuple[str, ...]


PARTS: Final = (
    Part("accel_bridge", "accel_bridge", (*MEGATRON, *HARDWARE, APPS, BACKENDS, PATCHES, PRETRAIN)),
    Part(
        "accel_bridge/libraries",
        LIBRARIES,
        (*MEGATRON, "torch_npu", "acl", "mindspeed", "triton", APPS, BACKENDS, PATCHES, PRETRAIN),
    ),
    Part("accel_bridge/apps", APPS, (*MEGATRON, *HARDWARE, BACKENDS, PATCHES, PRETRAIN)),
    Part("backends", BACKENDS, (*MEGATRON, APPS, PATCHES, PRETRAIN)),
    Part("patches", PATCHES, (*HARDWARE, APPS, BACKENDS, PRETRAIN)),
    Part("pretrain", PRETRAIN, (*HARDWARE, APPS, BACKENDS, PATCHES)),
)

#: Folders that are a part of their own inside another part.
_NESTED: Final = ("accel_bridge/apps", "accel_bridge/libraries")


def files(root: Path, part: Part) -> list[Path]:
    """The modules of a part, those of a part nested in it left out."""
    nested = [root / folder for folder in _NESTED if folder != part.folder]
    return [
        path
        for path in sorted((root / part.folder).rglob("*.py"))
        if not any(folder in path.parents for folder in nested)
    ]


def imports(source: str, package: str) -> Iterator[str]:
    """Every module that a file may import, relative ones made absolute.

    For ``from a import b`` both ``a`` and ``a.b`` are given. A string that is the path of one of
    our own modules, or of a name in one (``a:b``), counts as well: it may be imported later.

    :param package: the package the file is in.
    """
    for node in _statements(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        else:
            path = _OWN_MODULE.fullmatch(str(node.value))
            if path:
                yield path[1]


@functools.cache
def _statements(source: str) -> tuple[ast.Import | ast.ImportFrom | ast.Constant, ...]:
    """What a file says of modules; each file is parsed once for all checks."""
    nodes = ast.walk(ast.parse(source))
    return tuple(
        node
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Constant) and "accel_bridge." in str(node.value))
    )


def circles(root: Path, parts: tuple[Part, ...] = PARTS) -> list[str]:
    """One line for each circle of modules that import one another.

    Imports inside functions and for type checkers count. ``from package import module`` is an
    import of the module alone.
    """
    modules = {}
    for part in parts:
        for path in files(root, part):
            inner = path.relative_to(root / part.folder).with_suffix("").parts
            modules[".".join([part.package, *inner]).removesuffix(".__init__")] = path
    graph = {
        name: set(_imported_modules(path, name, modules)) - {name} for name, path in modules.items()
    }
    # What imports nothing of the rest, and what nothing of the rest imports, is in no circle.
    for _ in range(len(graph)):
        wanted = set().union(*graph.values()) if graph else set()
        kept = {name for name in graph if graph[name] and name in wanted}
        graph = {name: graph[name] & kept for name in kept}
    return sorted(f"{name} -> {', '.join(sorted(graph[name]))}" for name in graph)


def _imported_modules(path: Path, module: str, modules: Mapping[str, Path]) -> Iterator[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _statements(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            for alias in node.names:
                found = f"{base}.{alias.name}"
                if found in modules or base in modules:
                    yield found if found in modules else base


def _base(node: ast.ImportFrom, package: str) -> str:
    """The module behind ``from``, a relative one made absolute."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    kept = parents[: len(parents) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def is_within(module: str, package: str) -> bool:
    """Whether ``module`` is ``package`` or inside it."""
    return module == package or module.startswith(f"{package}.")


def violations(root: Path, allowed: frozenset[tuple[str, str]] = frozenset()) -> list[str]:
    """One line for each import that crosses a forbidden border.

    :param root: the folder that holds the parts.
    :param allowed: pairs of (file, forbidden package) that are documented exceptions.
    """
    found = set()
    for part in PARTS:
        for path in files(root, part):
            name = path.relative_to(root).as_posix()
            inner = path.parent.relative_to(root / part.folder).parts
            package = ".".join([part.package, *inner])
            for module in imports(path.read_text(encoding="utf-8"), package):
                for forbidden in part.forbidden:
                    if is_within(module, forbidden) and (name, forbidden) not in allowed:
                        found.add(f"{name} imports {module}")
    return sorted(found)


def too_long(root: Path) -> list[str]:
    """One line for each module with more than :data:`MAX_LINES` lines."""
    found = []
    for part in PARTS:
        for path in files(root, part):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > MAX_LINES:
                found.append(f"{path.relative_to(root)} has {lines} lines")
    return found


def packages_on_disk(root: Path) -> set[str]:
    """Import names of all folders with an ``__init__.py``."""
    found = set()
    for part in PARTS:
        for path in (root / part.folder).rglob("__init__.py"):
            inner = path.parent.relative_to(root / part.folder).parts
            found.add(".".join([part.package, *inner]))
    return found


def packages_in_pyproject(root: Path) -> set[str]:
    """The list ``packages`` of setuptools in pyproject.toml (read without a TOML parser: 3.10)."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r"^packages = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert match, "pyproject.toml has no list `packages`"
    return set(re.findall(r'"([\w.]+)"', match.group(1)))

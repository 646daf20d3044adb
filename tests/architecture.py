"""Checks of who may import whom, over the files as they are.

The project is a stack of packages, :data:`LAYERS`; a module imports from its own package and from
those below it. What a package must not know besides, Megatron or hardware, is :data:`FOREIGN`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

#: Directory in the repository -> the package that it is.
ROOTS: Final = {
    "accel_bridge": "accel_bridge",
    "backends": "accel_bridge.backends",
    "patches": "accel_bridge.patches",
    "pretrain": "accel_bridge.pretrain",
}

#: Packages and root modules from the bottom up. Those of one layer do not import one another.
LAYERS: Final = (
    ("errors",),
    ("process",),
    ("recording",),
    ("kernels",),
    ("device",),
    ("patching",),
    ("plugins",),
    ("plugin",),  # what plugins import: names of the packages below
    ("libraries",),
    ("bridge",),
    ("auto", "run"),
    ("backends", "pretrain", "apps"),
    ("patches",),  # those for instruction data share preprocess's truncation
    ("__main__",),
)
_RANKS: Final = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

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
#: Package -> other people's packages that it must not import. The rest of the project: all of them.
FOREIGN: Final = {
    "backends": ("megatron",),
    "patches": HARDWARE,
    "pretrain": HARDWARE,
    "libraries": ("megatron", "torch_npu", "acl", "mindspeed", "triton"),
}

#: Longest module, in lines.
MAX_LINES: Final = 800

_OWN_MODULE: Final = re.compile(r"(accel_bridge(?:\.\w+)+)(?::\w+)?")


def modules(root: Path) -> dict[str, Path]:
    """Every module of the project by its import name."""
    found = {}
    for directory, package in ROOTS.items():
        for path in sorted((root / directory).rglob("*.py")):
            inner = path.relative_to(root / directory).with_suffix("").parts
            found[".".join([package, *inner]).removesuffix(".__init__")] = path
    return found


def package_of(module: str) -> str:
    """The entry of :data:`LAYERS` that a module is in; "" for ``accel_bridge`` itself."""
    return module.split(".")[1] if "." in module else ""


def violations(root: Path, allowed: frozenset[tuple[str, str]] = frozenset()) -> list[str]:
    """One line for each import of something above, beside, foreign, or private to another package.

    A string that is the path of a module of ours, or of a name in one (``a:b``), counts as an
    import: it may become one later. ``accel_bridge`` itself is loaded before any of its packages,
    so that all may import it; what it imports is for its users, by name.

    :param root: the directory that holds the parts.
    :param allowed: pairs of (module, imported name) that are documented exceptions.
    """
    found = set()
    for module, path in modules(root).items():
        if not (package := package_of(module)):
            continue
        parent = module if path.name == "__init__.py" else module.rpartition(".")[0]
        foreign = FOREIGN.get(package, ("megatron", *HARDWARE))
        for name in imports(path.read_text(encoding="utf-8"), parent):
            top = name.partition(".")[0]
            other = package_of(name) if top == "accel_bridge" else ""
            # A name of the root module is no package.
            above = other in _RANKS and _RANKS[other] >= _RANKS[package] and other != package
            own = name.split(".")[2:] if other != package and other in _RANKS else []
            private = any(re.match(r"_[a-z]", part) for part in own)
            if (above or private or top in foreign) and (module, name) not in allowed:
                found.add(f"{module} imports {name}")
    return sorted(found)


def imports(source: str, package: str) -> Iterator[str]:
    """Every module that a file may import, relative ones made absolute.

    For ``from a import b`` both ``a`` and ``a.b`` are given.

    :param package: the package the file is in.
    """
    for node in _statements(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif path := _OWN_MODULE.fullmatch(str(node.value)):
            yield path[1]


@functools.cache
def _statements(source: str) -> tuple[ast.Import | ast.ImportFrom | ast.Constant, ...]:
    """What a file says of modules; each file is parsed once for all checks."""
    return tuple(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Constant) and "accel_bridge." in str(node.value))
    )


def circles(root: Path) -> list[str]:
    """One line for each module in a circle of modules that import one another.

    Imports inside functions and for type checkers count. ``from package import module`` is an
    import of the module alone.
    """
    paths = modules(root)
    graph = {
        name: set(_imported_modules(path, name, paths)) - {name} for name, path in paths.items()
    }
    # What imports nothing of the rest, and what nothing of the rest imports, is in no circle.
    for _ in range(len(graph)):
        wanted = set().union(*graph.values()) if graph else set()
        kept = {name for name in graph if graph[name] and name in wanted}
        graph = {name: graph[name] & kept for name in kept}
    return sorted(f"{name} -> {', '.join(sorted(graph[name]))}" for name in graph)


def _imported_modules(path: Path, module: str, paths: Mapping[str, Path]) -> Iterator[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _statements(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in paths)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            for alias in node.names:
                found = f"{base}.{alias.name}"
                if found in paths or base in paths:
                    yield found if found in paths else base


def _base(node: ast.ImportFrom, package: str) -> str:
    """The module behind ``from``, a relative one made absolute."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    kept = parents[: len(parents) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def root_entries(root: Path) -> set[str]:
    """What stands in accel_bridge/."""
    return {path.name for path in (root / "accel_bridge").iterdir()} - {"__pycache__"}


def too_long(root: Path) -> list[str]:
    """One line for each module with more than :data:`MAX_LINES` lines."""
    lengths = {path: len(path.read_text().splitlines()) for path in modules(root).values()}
    return [
        f"{path.relative_to(root)} has {lines} lines"
        for path, lines in lengths.items()
        if lines > MAX_LINES
    ]

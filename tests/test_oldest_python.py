"""Nothing of the package needs more than the oldest Python that it claims (3.10)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIRECTORIES = ("accel_bridge", "backends", "patches", "pretrain")
#: Names of the standard library that came after 3.10.
LATER = {
    "typing": set(
        "Self Never LiteralString Required NotRequired Unpack TypeVarTuple assert_never "
        "assert_type dataclass_transform override reveal_type TypeAliasType ReadOnly TypeIs "
        "NoDefault".split()
    ),
    "datetime": {"UTC"},
    "enum": {"StrEnum", "ReprEnum", "verify", "member", "nonmember"},
    "itertools": {"batched"},
    "contextlib": {"chdir"},
    "hashlib": {"file_digest"},
}
MODULES = {"tomllib", "compression"}


def too_new(source: str) -> Iterator[str]:
    """Imports at run time of what came later; those inside functions and conditions are guarded."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            later = {alias.name for alias in node.names} & LATER.get(node.module, set())
            yield from (f"{node.module}.{name}" for name in sorted(later))
            yield from {node.module} & MODULES
        elif isinstance(node, ast.Import):
            yield from sorted({alias.name for alias in node.names} & MODULES)


def test_no_module_imports_what_came_later() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for directory in DIRECTORIES
        for path in (ROOT / directory).rglob("*.py")
        if (names := list(too_new(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from typing import Any, Self", ["typing.Self"]),
        ("import tomllib", ["tomllib"]),
        ("if TYPE_CHECKING:\n    from typing import Self", []),
        ("def f():\n    import tomllib", []),
    ],
)
def test_injected_imports(source: str, names: list[str]) -> None:
    assert list(too_new(source)) == names

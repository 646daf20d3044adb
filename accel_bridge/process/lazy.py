"""What the package itself is made of: names that are loaded late, and the parts of a checkout."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

# In a checkout, three parts of the package stand beside its directory and not in it.
#
# An installation has them inside. In a clone, however, ``python -m`` finds the clone's directory
# before the installed one, so it must be whole as well.

#: Directories beside accel_bridge/, as pyproject.toml's package-dir maps them.
PARTS: Final = ("backends", "patches", "pretrain")


def link_parts(package: ModuleType, directory: Path) -> None:
    """Make ``package``'s parts importable from a checkout; an installation is left alone.

    :param directory: the package's directory.
    """
    for part in PARTS:
        place = directory.parent / part
        source = place / "__init__.py"
        if (directory / part).exists() or not source.is_file():
            continue
        name = f"{package.__name__}.{part}"
        spec = spec_from_file_location(name, source, submodule_search_locations=[str(place)])
        assert spec is not None, source
        assert spec.loader is not None, source
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        setattr(package, part, sys.modules[name])


def lazy_names(public: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a module whose names stand in other modules.

    They are the names that it imports under ``if TYPE_CHECKING:``, so that type checkers find them
    where :func:`getattr` does.

    :param public: ``__name__`` of that module.
    """
    source = Path(str(sys.modules[public].__file__)).read_text(encoding="utf-8")
    modules = {
        alias.asname or alias.name: node.module
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {public!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[public]), *modules})

    return load, names, sorted(modules)

"""The module tree of a library, made from its shim's table.

A library's tree is wider than what a shim writes: ``MODULES`` in the shim's root says which of its
own modules implements each public module, and which names it has there::

    MODULES = {"apex.mlp.mlp": ("_layers", "MLP mlp_function"), "apex.mlp": ("_layers", "MLP")}

A public module loads its names when it is imported, the root when one is asked for. What the shim
defines belongs to the first public module with its name: that is its ``__module__``, which pickles
name. Packages between need no entry. ``""`` is the root itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

Table = Mapping[str, tuple[str, str]]


class ShimLoader(SourceFileLoader):
    """Executes a shim's file.

    A plain module has an empty ``__path__``: an import of a name that it does not have then asks
    the finder, which explains.
    """

    def exec_module(self, module: ModuleType) -> None:
        if not hasattr(module, "__path__"):
            module.__path__ = []
        super().exec_module(module)
        root = module.__name__.partition(".")[0]
        table = _table(root)
        for public, (inner, names) in table.items():
            if _full(root, inner) == module.__name__:
                for value in (getattr(module, name) for name in names.split()):
                    mine = isinstance(value, type | FunctionType)
                    if mine and value.__module__ == module.__name__:
                        line = vars(value).get("__firstlineno__")
                        value.__module__ = public
                        if line is not None:  # Python 3.13 drops it with the module
                            value.__firstlineno__ = line
        if module.__name__ == root and table:
            _serve(module, root, table)


class _PublicLoader(SourceFileLoader):
    """Fills a public module; its file is the one that implements it."""

    def __init__(self, fullname: str, file: str, root: str) -> None:
        super().__init__(fullname, file)
        self._root = root

    def exec_module(self, module: ModuleType) -> None:
        if not hasattr(module, "__path__"):
            module.__path__ = []
        table = _table(self._root)
        load = _serve(module, self._root, table)
        inner, names = table.get(module.__name__, ("", ""))
        module.__doc__ = import_module(_full(self._root, inner)).__doc__
        for name in names.split():
            load(name)


def find_public(fullname: str, root: str) -> ModuleSpec | None:
    """A module of the tree; None if the table does not have it.

    :param root: the top-level module that has the table.
    """
    if fullname == root:
        return None
    table = vars(import_module(root)).get("MODULES", {})
    if fullname not in table and not _inner(fullname, table):
        return None
    file = Path(str(sys.modules[root].__file__))
    if inner := table.get(fullname, ("", ""))[0]:
        file = file.with_name(f"{inner}.py")
    loader = _PublicLoader(fullname, str(file), root)
    spec = spec_from_file_location(fullname, file, loader=loader)
    if spec is not None:
        # Not by argument: the file's directory would be added.
        spec.submodule_search_locations = [] if _inner(fullname, table) else None
    return spec


def _table(root: str) -> Table:
    found: Table = vars(sys.modules[root]).get("MODULES", {})
    return found


def _full(root: str, inner: str) -> str:
    return f"{root}.{inner}" if inner else root


def _inner(module: str, table: Table) -> set[str]:
    """Names of the modules right inside a public one."""
    start = f"{module}."
    return {name[len(start) :].partition(".")[0] for name in table if name.startswith(start)}


def _serve(module: ModuleType, root: str, table: Table) -> Callable[[str], Any]:
    """Let a module load its names and the modules inside it when they are asked for.

    :returns: what loads one of them.
    """
    own = module.__name__
    source, text = table.get(own, ("", ""))
    names, inner = text.split(), _inner(own, table)

    def load(name: str) -> Any:
        if name not in names and name not in inner:
            raise AttributeError(f"module {own!r} has no attribute {name!r}")
        value: Any = None
        if name in inner:
            value = import_module(f"{own}.{name}")
        if name in names:  # before a module of the same name
            value = getattr(import_module(_full(root, source)), name)
            if getattr(value, "__module__", None) in table:
                import_module(value.__module__)  # where inspect looks for its source
        setattr(module, name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(module), *names, *inner})

    public = [name for name in names if not name.startswith("_")]
    vars(module).update(__getattr__=load, __dir__=listed, __all__=public)
    return load

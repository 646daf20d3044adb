"""Public names of a shim's package, loaded when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_package(
    package: str, exports: Mapping[str, Sequence[str]], submodules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    The real library imports all of its modules with the package, so that
    ``transformer_engine.pytorch.fp8`` works after ``import transformer_engine.pytorch``.

    :param package: ``__name__`` of the package.
    :param exports: module, relative to the package -> the names that it offers.
    :param submodules: modules that are reachable as attributes.
    """
    homes = {name: module for module, names in exports.items() for name in names}

    def load(name: str) -> Any:
        if name in homes:
            value = getattr(import_module(f".{homes[name]}", package), name)
        elif name in submodules:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *submodules})

    return load, names


def version_of(root: str) -> str:
    """The version that the shim with the top-level module ``root`` claims."""
    from accel_bridge.libraries._library import LIBRARIES

    return LIBRARIES[root].version

"""Public names that are loaded when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    public: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a module whose names stand in other modules.

    :param public: ``__name__`` of that module.
    :param modules: public name -> the module of the package ``accel_bridge`` that holds it.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {public!r} has no attribute {name!r}")
        return getattr(import_module(f"accel_bridge.{modules[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[public]), *modules})

    return load, names

"""The compiled extension's names: enumerations and functions, from kernel contracts.

The functions live in transformer_engine.pytorch.cpp_extensions; optimizers' in
transformer_engine.pytorch.optimizers.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_PACKAGE = "transformer_engine.pytorch.cpp_extensions"
_OPTIMIZERS = "transformer_engine.pytorch.optimizers"


def _homes() -> dict[str, str]:
    compiled = import_module(_PACKAGE).COMPILED
    return {name: f"{_PACKAGE}.{module}" for module in compiled for name in compiled[module]}


def __getattr__(name: str) -> Any:
    home = _homes().get(name)
    if home is None and name.startswith("multi_tensor_"):
        home = _OPTIMIZERS
    value = None if home is None else getattr(import_module(home), name, None)
    if value is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})

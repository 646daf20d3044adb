"""Throw-away packages to patch."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_numbers = itertools.count()

Writer = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Writer]:
    """``write(**{"a": source, "sub.b": source})`` makes a new package and returns its name.

    ``PKG`` in a source is the package's name. Its modules are forgotten after the test.
    """
    made: list[str] = []
    sys.path.insert(0, str(tmp_path))

    def writer(init: str = "", **modules: str) -> str:
        name = f"synthetic{next(_numbers)}"
        made.append(name)
        (tmp_path / name).mkdir()
        for module, source in {"__init__": init, **modules}.items():
            path = tmp_path / name / f"{module}.py"
            path.write_text(textwrap.dedent(source).replace("PKG", name))
        return name

    yield writer
    sys.path.remove(str(tmp_path))
    for loaded in list(sys.modules):
        if loaded.partition(".")[0] in made:
            del sys.modules[loaded]


@pytest.fixture
def a(write: Writer) -> Any:
    """A module whose ``f(x)`` gives x back."""
    return importlib.import_module(f"{write(a='def f(x): return x')}.a")

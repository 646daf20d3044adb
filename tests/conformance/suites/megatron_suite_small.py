"""Megatron's tests with smaller models, where a model of full size takes a CPU minutes.

``[[small]]`` entries of megatron_suite.toml name a file below tests/unit_tests and what is written
otherwise in it; a rank imports the file so, and the checkout stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import tomllib

Edits = Sequence[tuple[str, str]]


def read_small(path: Path, directory: Path, backend: str) -> dict[str, Edits]:
    """File below ``directory`` -> its edits, those of a backend."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("small", [])
    return {
        str(directory / entry["file"]): [(old, new) for old, new in entry["edits"]]
        for entry in entries
        if backend in entry["on"]
    }


@dataclass
class Small(MetaPathFinder):
    """Finds the files that are edited, before all other finders."""

    edits: Mapping[str, Edits]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec of its own for an edited file."""
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None or spec.origin not in self.edits:
            return None
        spec.loader = _Edited(name, spec.origin, self.edits[spec.origin])
        return spec

    def install(self) -> None:
        """Go before pytest's own finder, which takes every test."""
        sys.meta_path.insert(0, self)


class _Edited(SourceFileLoader):
    def __init__(self, name: str, path: str, edits: Edits) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        """Compiled each time: what Python keeps is of the file as it is."""
        text = Path(self.path).read_text(encoding="utf-8")
        for old, new in self._edits:
            if old not in text:
                raise ValueError(f"{self.path} has no {old!r}: mend its [[small]] entry")
            text = text.replace(old, new)
        code: CodeType = compile(text, self.path, "exec", dont_inherit=True)
        return code

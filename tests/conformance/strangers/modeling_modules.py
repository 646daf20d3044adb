"""Every modeling module of Transformers is imported; `make strangers` runs it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import transformers.models

DIRECTORY = Path(transformers.models.__path__[0])


@pytest.mark.parametrize(
    "file", sorted(DIRECTORY.glob("*/modeling_*.py")), ids=lambda file: file.stem
)
def test_import(file: Path) -> None:
    importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")

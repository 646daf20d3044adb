"""docs/extend-backend.md shows the example as it is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = Path(__file__).parent / "example_backend"
PAGE = (ROOT / "docs/extend-backend.md").read_text(encoding="utf-8")


def test_the_tutorial_shows_the_example_as_it_is() -> None:
    files = {
        path.relative_to(EXAMPLE).as_posix(): path.read_text(encoding="utf-8")
        for path in EXAMPLE.rglob("*")
        if path.is_file() and path.suffix in (".py", ".toml")
    }
    assert [name for name in files if f"`{name}`" not in PAGE] == []
    block = r"^`([\w./]+)`\n\n(?:<!--[^\n]*-->\n)?```\w+\n(.*?)^```$"
    shown = dict(re.findall(block, PAGE, re.MULTILINE | re.DOTALL))
    assert {"pyproject.toml", "abacus_bridge/backend.py"} <= set(shown)
    assert {name: files[name] for name in shown} == shown

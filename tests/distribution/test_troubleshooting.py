"""docs/troubleshooting.md quotes errors as they are printed, in both languages."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from pathlib import Path

import pytest

from distribution.support import ROOT

PAGES = ("docs/troubleshooting.md", "docs/troubleshooting.zh-CN.md")
#: A row's first cell, and the source file in its last; what others print has none.
ROW = re.compile(r"^\| `([^`|]+)` \|.*\| `([\w./-]+\.py)` \|$", re.MULTILINE)


def rows(page: str) -> list[tuple[str, str]]:
    return ROW.findall((ROOT / page).read_text(encoding="utf-8"))


@functools.cache
def texts(file: str) -> tuple[str, ...]:
    """Every text of a source file, with … for what is filled in."""
    path = ROOT / file
    if not path.is_file():
        spec = importlib.util.find_spec(file.partition("/")[0])
        # A namespace, of which the tests have a part too.
        places = [Path(place).parent / file for place in spec.submodule_search_locations or ()]
        (path,) = (place for place in places if place.is_file())
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(map(_part, node.values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(re.sub(r"%\w|{}", "…", node.value))
    return tuple(found)


def _part(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "…"


def is_printed(quoted: str, file: str) -> bool:
    """Whether a text of ``file`` holds what a page quotes; … stands for any text."""
    pattern = re.compile(".*".join(re.escape(part) for part in quoted.split("…")), re.DOTALL)
    return any(pattern.search(text) for text in texts(file))


@pytest.mark.parametrize("page", PAGES)
def test_every_quoted_error_is_printed_by_the_file_beside_it(page: str) -> None:
    found = rows(page)
    assert len(found) >= 40
    assert [row for row in found if not is_printed(*row)] == []


def test_both_languages_have_the_same_errors() -> None:
    assert rows(PAGES[0]) == rows(PAGES[1])


def test_an_error_that_nobody_prints_is_noticed() -> None:
    file = "accel_bridge/bridge/selection.py"
    assert is_printed("backend … was asked for by … and cannot be used", file)
    assert not is_printed("backend … was asked for by … and cannot be found", file)
    assert not is_printed("Megatron requires CUDA.", file)
    assert is_printed("Megatron requires CUDA.", "megatron/training/initialize.py")


def test_every_known_error_of_megatron_and_torch_is_on_the_page() -> None:
    """The table of advice is what explains errors at run time."""
    from accel_bridge.patches._advice_table import ADVICE, VALIDATION

    quoted = {text for text, _ in rows(PAGES[0])}
    missing = [advice.what for advice in (*ADVICE, VALIDATION) if advice.what not in quoted]
    assert missing == []

"""docs/plugins.md says what the code says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from accel_bridge import _hookspecs
from accel_bridge._environment import PLUGINS

ROOT = Path(__file__).parents[2]
EXAMPLE = Path(__file__).parent / "example_backend"
DOCS = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "docs/plugins.zh-CN.md").read_text(encoding="utf-8")

HOOKS = {
    name: function
    for name, function in vars(_hookspecs).items()
    if hasattr(function, f"{_hookspecs.PROJECT}_spec")
}


def heading(name: str) -> str:
    """The heading of a hook in the docs: its signature."""
    return f"### `{name}{inspect.signature(HOOKS[name])}`".replace("'", "")


def undocumented(text: str) -> list[str]:
    """Hooks without a section that has their signature and whole docstring."""
    missing = []
    for name, function in HOOKS.items():
        section = text.partition(heading(name) + "\n")[2].partition("\n## ")[0]
        documented = _plain(section.partition("\n### ")[0])
        if not documented or documented != _plain(inspect.getdoc(function) or ""):
            missing.append(name)
    return missing


def _plain(text: str) -> str:
    """Text without the marks in which reST and Markdown differ."""
    text = re.sub(r"<!--.*?-->", "", text)
    text = re.sub(r":param (\w+):", r"\1:", text).replace(":returns:", "Returns")
    return " ".join(re.sub(r"[`*]|^- ", "", text, flags=re.MULTILINE).split())


def test_there_are_hooks() -> None:
    assert {"accel_bridge_backends", "accel_bridge_patches"} <= set(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_says_what_it_is_for(name: str) -> None:
    assert len(inspect.getdoc(HOOKS[name]) or "") > 60


def test_every_hook_is_in_the_docs() -> None:
    assert undocumented(DOCS) == []
    for name in HOOKS:
        assert name in CHINESE


@pytest.mark.parametrize("name", HOOKS)
def test_a_missing_or_stale_hook_is_noticed(name: str) -> None:
    assert undocumented(DOCS.replace(heading(name), "### `gone()`")) == [name]
    first_sentence = (inspect.getdoc(HOOKS[name]) or "").splitlines()[0].replace("``", "`")
    assert first_sentence in DOCS
    assert undocumented(DOCS.replace(first_sentence, "Something else.")) == [name]


def test_no_hook_in_the_docs_is_gone() -> None:
    for text in (DOCS, CHINESE):
        named = set(re.findall(r"`(accel_bridge_\w+)[`(]", text))
        assert named <= set(HOOKS)


def code_blocks() -> dict[str, str]:
    """File name to text, for every code block in the docs that has a file name above it."""
    block = r"^`([\w./]+)`\n\n(?:<!--[^\n]*-->\n)?```\w+\n(.*?)^```$"
    return dict(re.findall(block, DOCS, re.MULTILINE | re.DOTALL))


def test_the_tutorial_shows_the_example_as_it_is() -> None:
    files = {
        path.relative_to(EXAMPLE).as_posix(): path.read_text(encoding="utf-8")
        for path in EXAMPLE.rglob("*")
        if path.is_file() and path.suffix in (".py", ".toml")
    }
    assert code_blocks() == files


def test_the_variable_is_in_both_languages() -> None:
    for text in (DOCS, CHINESE):
        assert PLUGINS.name in text
        assert "ACCEL_BRIDGE_BACKEND" in text

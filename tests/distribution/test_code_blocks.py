"""Every code block of README and docs is run, or says why not; see code_blocks.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from distribution.code_blocks import Block, blocks, fits, pages, problem, run

PAGES = pages()
RUN = {page: found for page in PAGES if (found := [b for b in blocks(page) if b.mark == "run"])}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_says_why_not(page: str) -> None:
    assert {str(b): wrong for b in blocks(page) if (wrong := problem(b))} == {}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in RUN if ".zh-CN." not in page])
def test_it_runs_and_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    settings: list[str] = []
    for block in RUN[page]:
        run(block, tmp_path, settings)


def test_blocks_are_found_with_their_lines() -> None:
    text = "# A\n\n<!-- run -->\n```python\nprint(1)\n```\n\n- x\n\n  ```console\n  $ ls\n  ```\n"
    first, second = blocks("a.md", text)
    assert first == Block("a.md", 4, "run", "python", "print(1)\n")
    assert (second.line, second.mark, second.commands) == (10, "", [("ls", "")])


def test_files_and_settings_stay(tmp_path: Path) -> None:
    text = (
        "`a.py`\n\n<!-- run -->\n```python\nprint(7)\n```\n\n"
        '<!-- run -->\n```console\n$ WORDS="a.py"\n$ export Y=1\n```\n\n'
        "<!-- run -->\n```console\n$ python $WORDS && echo $Y\n7\n1\n```\n"
    )
    settings: list[str] = []
    for block in blocks("a.md", text):
        run(block, tmp_path, settings)
    assert settings == ['WORDS="a.py"', "export Y=1"]


HERE = "run by: tests/distribution/test_code_blocks.py::test_blocks_are_found_with_their_lines"


#: A page that this file does not name in one piece.
UNNAMED = "docs/unheard" + "-of.md"


@pytest.mark.parametrize(
    ("mark", "language", "text", "wrong"),
    [
        ("", "console", "$ ls\n", "no comment"),
        ("not run:", "console", "$ ls\n", "no comment"),
        ("run", "console", "$ ls --all ...\n", "typed"),
        ("run", "console", "$ ls\na\n...\n", "ends in"),
        ("run", "python", "f()\n...\n", "typed"),
        ("run", "toml", "a = 1\n", "nobody knows"),
        (HERE.replace("found", "lost"), "python", "f()\n", "no test"),
        (HERE, "python", "f()\n", "never names"),
    ],
)
def test_a_bad_block_is_noticed(mark: str, language: str, text: str, wrong: str) -> None:
    assert wrong in (problem(Block(UNNAMED, 1, mark, language, text)) or "")


@pytest.mark.parametrize("mark", ["run", "not run: it needs a GPU", HERE])
def test_a_good_block_is_not(mark: str) -> None:
    page = "docs/a.md"  # this file names it
    assert problem(Block(page, 1, mark, "python", "print(1)\n")) is None


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("", "anything\n", True),
        ("a  b\n", "a b\n\n", True),
        ("took ... s\n", "took 1.2 s\n", True),
        ("a\n...\nc\n", "a\nb\nb\nc\n", True),
        ("a\n...\nc\n", "a\nc\n", True),
        ("...\nc\n", "a\nc\nd\n", False),
        ("a\n", "a\nb\n", False),
        ("a\nb\n", "a\n", False),
        ("took ... s\n", "took long\n", False),
    ],
)
def test_what_is_printed_is_compared(shown: str, printed: str, same: bool) -> None:
    assert fits(shown, printed) == same


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "raise SystemExit(1)\n"),
        ("console", "$ false\n"),
        ("console", "$ echo one\ntwo\n"),
        ("console", "$ true\naccel-bridge: error: it should fail\n"),
    ],
)
def test_a_block_that_fails_is_noticed(language: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run(Block("docs/a.md", 1, "run", language, text), tmp_path, [])

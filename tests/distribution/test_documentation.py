"""README and docs say what the code does: commands, variables, links, generated pages."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_site import Python

from accel_bridge import _environment
from accel_bridge._plugins import load_plugins
from accel_bridge.apps.cli.main import main
from distribution.support import ROOT, pyproject

READMES = ("README.md", "README.zh-CN.md")
GUIDES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = (*READMES, *GUIDES, *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))

PLUGINS = load_plugins()
#: What the plugin of the tutorial in docs/plugins.md brings; its own tests try both.
TUTORIAL = {"ACCEL_BRIDGE_ABACUS", "count-beads"}
SUBCOMMANDS = {found.item.name for found in PLUGINS.commands().items}
VARIABLES = (*_environment.VARIABLES, *PLUGINS.variables())


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def shown_commands(page: str) -> list[list[str]]:
    """The words of every command after a ``$`` in the page's console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", text(page), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]


def problem(words: list[str]) -> str | None:
    """What is wrong with a command that a page shows."""
    while "=" in words[0]:
        name, words = words[0].partition("=")[0], words[1:]
        if name.startswith("ACCEL_") and name not in TUTORIAL | {v.name for v in VARIABLES}:
            return f"no variable {name}"
    program = words[0]
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE)
        return None if words[1] in targets else f"no target {words[1]}"
    if program == "accel-bridge":
        return None if words[1] in SUBCOMMANDS | TUTORIAL else f"no command {words[1]}"
    if program == "torchrun":
        return None if "accel_bridge.run" in words else "torchrun without the bridge"
    if program.startswith(".venv/bin/"):
        known = program.endswith("/pre-commit") or words[1:4] == ["-m", "pip", "install"]
        return None if known else f"unknown program {program}"
    if program == "pip":
        extras = ",".join(re.findall(r"(?:\.|accel-bridge)\[(.*?)\]", " ".join(words)))
        unknown = set(filter(None, extras.split(","))) - set(
            pyproject()["project"]["optional-dependencies"]
        )
        return f"no extra {unknown}" if unknown else None
    # swift: the run of ms-swift that its Megatron is compared with.
    return None if program in ("touch", "swift") else f"unknown program {program}"


@pytest.mark.slow
def test_the_generated_pages_are_fresh(python: Python) -> None:
    done = python(str(ROOT / "tools/generated_docs.py"), "--check")
    assert done.returncode == 0, done.stderr


def test_a_stale_table_is_noticed() -> None:
    fill = runpy.run_path(str(ROOT / "tools/generated_docs.py"))["fill"]
    fresh = text("README.md")
    assert fill(fresh) == fresh
    stale = fresh.replace("what hardware was looked for", "what hardware is hoped for")
    assert stale != fresh
    assert fill(stale) == fresh


@pytest.mark.parametrize("page", READMES)
def test_both_languages_name_everything(page: str) -> None:
    names = [f"| `{name}` |" for name in SUBCOMMANDS]
    names += [f"| `{variable.name}` |" for variable in VARIABLES]
    assert [name for name in names if name not in text(page)] == []
    for extra in set(pyproject()["project"]["optional-dependencies"]) - {"dev", "docs", "maintain"}:
        assert f"`{extra}`" in text(page), extra


def test_both_languages_show_the_same_commands() -> None:
    assert shown_commands(READMES[0]) == shown_commands(READMES[1])


@pytest.mark.parametrize("page", PAGES)
def test_every_shown_command_exists(page: str) -> None:
    assert [found for words in shown_commands(page) if (found := problem(words))] == []


@pytest.mark.parametrize(
    "command",
    [
        "make love",
        "accel-bridge fly",
        "torchrun x.py",
        "pip install '.[gone]'",
        "ACCEL_BRIDGE_X=1 make test",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(command: str) -> None:
    assert problem(shlex.split(command)) is not None


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"", text(page))
    local = [link or image for link, image in targets if "://" not in link + image]
    for target in local:
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, target


def slug(heading: str) -> str:
    """The anchor that renderers make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_promise_names_tests_that_exist() -> None:
    rows = [line for line in text("docs/reliability.md").splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith("| promise |")]
    assert len(promises) >= 20
    for row in promises:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert tests, row
        for file, function in tests:
            assert f"def {function}(" in text(file), row


def test_every_page_is_in_the_index() -> None:
    index = text("docs/index.md")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main([name, "--help"])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 0
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.megatron
def test_the_example_of_the_readme_trains(tmp_path: Path) -> None:
    (example,) = (
        words
        for words in shown_commands("README.md")
        if words[:2] == ["accel-bridge", "pretrain"] and "--mock-data" in words
    )
    done = subprocess.run(
        [sys.executable, "-m", "accel_bridge", *example[1:]],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"iteration +10/ +10 ", done.stdout)
    # The lines that the page promises, up to what differs between machines.
    for line in (
        "stand-ins: transformer_engine ",
        "backend ",
        "patches: ",
        "argument ",
        "patches r",
    ):
        assert f"[accel_bridge] {line}" in done.stdout

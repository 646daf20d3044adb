"""README and docs say what the code does: commands, variables, links, generated pages."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process import environment
from distribution.code_blocks import SETTING, blocks
from distribution.support import ROOT, pyproject

READMES = ("README.md", "README.zh-CN.md")
GUIDES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = (
    *READMES,
    *GUIDES,
    *(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")),
)
PLUGINS = load_plugins()
#: What the plugins of the tutorials bring, whose own tests try it, and a name that the doctor's
#: page misspells on purpose.
TUTORIAL = {
    "ACCEL_BRIDGE_ABACUS",
    "count-beads",
    "ACCEL_BRIDGE_QUIPU",
    "ACCEL_BRIDGE_BACKENDS",
}
SUBCOMMANDS = {found.item.name for found in PLUGINS.commands().items}
VARIABLES = (*environment.VARIABLES, *PLUGINS.variables())


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def shown_commands(page: str) -> list[list[str]]:
    """The words of every command after a ``$`` in the page's console blocks."""
    return [
        shlex.split(command, comments=True)
        for block in blocks(page)
        for command, _ in block.commands
        if not SETTING.fullmatch(command)
    ]


def problem(words: list[str]) -> str | None:
    """What is wrong with a command that a page shows."""
    words = words[words[0] == "!" :]  # a command that must fail
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
    if program in ("bash", "python") and words[1].startswith("docs/"):
        return None if (ROOT / words[1]).is_file() else f"no script {words[1]}"
    if program == "docker":
        return None if words[1] in ("build", "run", "compose") else f"docker {words[1]}"
    # swift, megatron: ms-swift without the bridge, which its runs are compared with.
    known = ("python", "touch", "mkdir", "cp", "source", "nvidia-smi", "npu-smi")
    known += ("swift", "megatron")
    return None if program in known else f"unknown program {program}"


@pytest.mark.parametrize("page", ["docs/start.md", "docs/start.zh-CN.md"])
def test_every_extra_is_on_the_page(page: str) -> None:
    extras = set(pyproject()["project"]["optional-dependencies"]) - {"dev", "docs", "maintain"}
    assert [extra for extra in extras if f"`{extra}`" not in text(page)] == []


#: A reader finishes them: at most so many English pages in docs/, and words, generated ones too.
MOST_PAGES, MOST_WORDS = 25, 35_000


def test_the_pages_stay_few() -> None:
    english = [page for page in PAGES if page.startswith("docs/") and ".zh-CN." not in page]
    assert len(english) <= MOST_PAGES
    words = sum(len(text(page).split()) for page in english)
    assert words <= MOST_WORDS, "shorten a page: what your change generates counts, too"


TRANSLATED = [page for page in PAGES if page.replace(".md", ".zh-CN.md") in PAGES]


@pytest.mark.parametrize("page", TRANSLATED)
def test_both_languages_lead_to_one_another(page: str) -> None:
    chinese = page.replace(".md", ".zh-CN.md")
    assert f"]({Path(chinese).name})" in text(page)
    assert f"]({Path(page).name})" in text(chinese)


@pytest.mark.parametrize("page", TRANSLATED)
def test_both_languages_show_the_same_commands(page: str) -> None:
    chinese = page.replace(".md", ".zh-CN.md")
    assert shown_commands(page) == shown_commands(chinese)
    run = [[block.text for block in blocks(one) if block.mark == "run"] for one in (page, chinese)]
    assert run[1] in ([], run[0])


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
    prose = re.sub(r"^```.*?^```$", "", text(page), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"", prose)
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


@pytest.mark.parametrize("name", ["accel_bridge", "accel_bridge.plugin"])
def test_dir_lists_every_public_name(name: str) -> None:
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(dir(module))


def test_every_promise_names_tests_that_exist() -> None:
    rows = [line for line in text("docs/adopt.md").splitlines() if line.startswith("| ")]
    promises = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", "".join(rows))
    assert len(promises) >= 10
    for file, function in promises:
        assert f"def {function}(" in text(file), function


@pytest.mark.parametrize("home", READMES)
def test_every_page_is_in_the_readme(home: str) -> None:
    wanted = [
        page
        for page in PAGES
        if page.startswith("docs/") and (".zh-CN." in page) == (".zh-CN." in home)
    ]
    assert [page for page in wanted if f"]({page})" not in text(home)] == []


def test_the_example_of_the_quick_start_trains(tmp_path: Path, warm: str) -> None:
    (example,) = (
        words
        for words in shown_commands("docs/start.md")
        if words[:2] == ["accel-bridge", "pretrain"] and "--bf16" not in words
    )
    done = subprocess.run(
        [warm, "-m", "accel_bridge", *example[1:]],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"iteration +10/ +10 ", done.stdout)
    assert "[accel_bridge] backend " in done.stdout

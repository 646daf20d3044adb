"""The code blocks of README and docs: which are run, by whom, and how one is run.

The line above a block's fence says what becomes of it; readers do not see it:

``<!-- run -->``
    ``test_code_blocks.py`` runs it. Blocks of one page share a directory and run in order. A block
    with the name of a file in a line of its own above it is that file. A ``python`` block is a
    script. In a ``console`` block each line after ``$ `` is a command for bash, and what stands
    below it is what it prints: ``...`` stands for any text, or for any lines where it is alone in
    its line.
``<!-- run by: tests/x.py::test_y -->``
    That test runs it; its file names the page.
``<!-- not run: REASON -->``
    Nobody runs it, because.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from distribution.support import ROOT

_FENCE: Final = re.compile(
    r"(?:^`(?P<file>[\w./-]+)`\n\n)?"
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_RUN_BY: Final = re.compile(r"run by: (tests/[\w/]+\.py)::(\w+)")
#: A command that changes the shell it is typed in, and is typed before all later ones.
SETTING: Final = re.compile(r"(export )?\w+=(\S*|\"[^\"]*\"|\$\(.*\)\S*)|cd \S+")
_NOT_RUN: Final = re.compile(r"not run: \S.*\S")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    :param page: path from the root.
    :param line: number of its fence.
    :param mark: what the comment above it says, or "".
    :param file: the name above it, or "".
    """

    page: str
    line: int
    mark: str
    language: str
    text: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command of a console block with what it prints."""
        if self.language != "console":
            return []
        joined = self.text.replace("\\\n", " ")
        parts = re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]
        return [_command(part) for part in parts]


def _command(text: str) -> tuple[str, str]:
    """A command, which may have line ends between quotes, and the lines below it."""
    lines = text.splitlines(keepends=True)
    count = 1
    while "".join(lines[:count]).count('"') % 2 and count < len(lines):
        count += 1
    return "".join(lines[:count]).strip(), "".join(lines[count:])


def pages() -> list[str]:
    """Every page that a user reads."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def blocks(page: str, text: str | None = None) -> list[Block]:
    """The blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8") if text is None else text
    return [
        Block(
            page,
            text.count("\n", 0, match.start("text")),
            match["mark"] or "",
            match["language"],
            re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
            match["file"] or "",
        )
        for match in _FENCE.finditer(text)
    ]


def problem(block: Block) -> str | None:
    """What is wrong with a block's mark or words; None if nothing is."""
    if block.language == "console":
        cut = any("..." in command.split() for command, _ in block.commands)
    else:
        cut = block.language != "text" and re.search(r"^\s*\.\.\.$", block.text, re.MULTILINE)
    if cut:
        return "it cannot be typed as it stands: something is left out"
    if block.text.rstrip().endswith(("...", "…")):
        return "it ends in ..."
    if block.mark == "run":
        known = block.file or block.language in ("console", "python")
        return None if known else "nobody knows how to run it"
    if by := _RUN_BY.fullmatch(block.mark):
        file, function = ROOT / by[1], by[2]
        source = file.read_text(encoding="utf-8") if file.is_file() else ""
        if f"def {function}(" not in source:
            return f"there is no test {function} in {by[1]}"
        return None if Path(block.page).name in source else f"{by[1]} never names the page"
    if _NOT_RUN.fullmatch(block.mark):
        return None
    return "no comment above it says whether it is run"


def run(block: Block, directory: Path, settings: list[str]) -> None:
    """Run a block in ``directory``.

    :param settings: the commands before it that change the shell; its own are added.
    :raises AssertionError: it fails, or prints something else than it shows.
    """
    if block.file:
        (directory / block.file).write_text(block.text, encoding="utf-8")
        return
    if block.language == "python":
        status, printed = _execute([sys.executable, "-c", block.text], directory)
        assert status == 0, f"{block}: {printed}"
        return
    for command, shown in block.commands:
        if SETTING.fullmatch(command.strip()):
            settings.append(command)
            continue
        status, printed = _execute(["bash", "-c", "\n".join([*settings, command])], directory)
        fails = "accel-bridge: error:" in shown
        assert (status != 0) == fails, f"{block}: `{command}` ended with {status}:\n{printed}"
        assert fits(shown, printed), f"{block}: `{command}` printed\n{printed}"


def _execute(command: list[str], directory: Path) -> tuple[int, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    unset = ("PYTHONPATH", "COLUMNS")
    done = subprocess.run(
        command,
        cwd=directory,
        env={**{k: v for k, v in os.environ.items() if k not in unset}, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def fits(shown: str, printed: str) -> bool:
    """Whether a page shows what a command printed; blanks count as one."""
    wanted, real = _lines(shown), _lines(printed)
    #: How many of the real lines may have been matched so far.
    reached = {0}
    for line in wanted:
        if line == "...":
            reached = set(range(min(reached), len(real) + 1))
        else:
            pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
            reached = {n + 1 for n in reached if n < len(real) and pattern.fullmatch(real[n])}
        if not reached:
            return False
    return not wanted or len(real) in reached


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]

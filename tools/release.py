"""Builds what is published, checks it, and writes the checklist: `make release`.

    python tools/release.py [--python PYTHON]

dist/ gets the source distribution, the wheel and checklist.md. The first check that fails ends it,
with its output, and the checklist says which. ``--python`` is an environment that already has what
the wheel needs (PyTorch, megatron-core): the wheel is installed there instead of in a fresh one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"
#: What must hold before the files are published, and no program can say.
BY_HAND: Final = (
    "`make test` passed on this commit, and CI is green",
    "`accel-bridge parity kernels` passed on a GPU",
    "CHANGELOG.md reads well to a user, and its version has today's date",
    "docs/adopt.md still says what is true",
)


class Wrong(Exception):
    """A check that failed, in words."""


def run(*words: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """What a command prints.

    :raises Wrong: it failed.
    """
    done = subprocess.run(
        words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        command = " ".join(map(str, words))
        raise Wrong(f"{command} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def version() -> str:
    """The version, the same in pyproject.toml, the package and the changelog."""
    project = re.search(r'^version = "(.+)"$', text("pyproject.toml"), re.MULTILINE)
    package = re.search(r'^__version__ = "(.+)"$', text("accel_bridge/__init__.py"), re.MULTILINE)
    change = re.search(r"^## (\S+)", text("CHANGELOG.md"), re.MULTILINE)
    found = [match[1] if match else "none" for match in (project, package, change)]
    if len(set(found)) != 1:
        raise Wrong(f"pyproject.toml, __version__ and CHANGELOG.md say {', '.join(found)}")
    return found[0]


def text(name: str) -> str:
    """A file of the tree."""
    return (ROOT / name).read_text(encoding="utf-8")


def build() -> str:
    """The source distribution, and the wheel that is built from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build")
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    return ", ".join(path.name for path in sorted(DIST.iterdir()))


def wheel() -> Path:
    """The wheel in dist/."""
    return next(DIST.glob("*.whl"))


def contents() -> str:
    """The packages and no tests; a description without links that lead nowhere."""
    with zipfile.ZipFile(wheel()) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        described = archive.read(metadata).decode()
    missing = {
        f"accel_bridge/{name}/__init__.py"
        for name in ("backends/ascend", "backends/cpu", "backends/cuda", "patches", "pretrain")
    } - set(names)
    if missing:
        raise Wrong(f"the wheel lacks {', '.join(sorted(missing))}")
    if stray := [name for name in names if name.startswith(("tests/", "docs/", "tools/"))]:
        raise Wrong(f"the wheel has {', '.join(stray[:5])}")
    if relative := re.findall(
        r"\]\((?!https?:)[^)]*\)|<img [^>]*src=\"(?!https?:)[^>]*>", described
    ):
        raise Wrong(f"the description has relative links: {', '.join(relative[:5])}")
    return f"{len(names)} files; {len(described.split())} words of description"


def tried(python: Path | None) -> Callable[[], str]:
    """The wheel in an environment of its own: what it says of itself, and the demo."""

    def check() -> str:
        with tempfile.TemporaryDirectory(prefix="release-") as place:
            if python is None:
                run(sys.executable, "-m", "venv", Path(place) / "venv")
                chosen = Path(place) / "venv/bin/python"
                what = f"{wheel()}[megatron,preprocess,report]"
                run(chosen, "-m", "pip", "install", "-c", ROOT / "constraints.txt", what)
            else:
                chosen = python.absolute()
                run(chosen, "-m", "pip", "install", "--force-reinstall", "--no-deps", wheel())
            program = chosen.parent / "accel-bridge"
            # Neither this tree nor another accel_bridge may answer.
            env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            env["PATH"] = f"{chosen.parent}{os.pathsep}{env['PATH']}"
            said = run(program, "--version", cwd=Path(place), env=env).split()[-1]
            if said != version():
                raise Wrong(f"the installed program says that it is {said}")
            shown = run(program, "demo", cwd=Path(place), env=env)
            loss = re.search(r"^Loss ([\d.]+) -> ([\d.]+)", shown, re.MULTILINE)
            if loss is None or float(loss[2]) >= float(loss[1]):
                raise Wrong(f"the demo shows no loss that falls:\n{shown[-2000:]}")
            where = "a fresh environment" if python is None else python
            return f"in {where}: loss {loss[1]} to {loss[2]}"

    return check


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Builds and checks a release.")
    parser.add_argument("--python", type=Path, help="try the wheel in this environment")
    python = parser.parse_args().python
    checks: dict[str, Callable[[], str]] = {
        "one version everywhere": version,
        "sdist and wheel are built; twine finds their metadata valid": build,
        "the wheel's contents and description": contents,
        "the wheel is installed and runs the demo": tried(python),
    }
    lines = []
    failed = None
    for name, check in checks.items():
        print(f"{name} ...", flush=True)
        try:
            lines.append(f"- [x] {name}: {check()}")
        except Wrong as wrong:
            failed = str(wrong)
            lines.append(f"- [ ] {name}: FAILED")
            break
        print(f"  {lines[-1].partition(': ')[2]}", flush=True)
    commit = run("git", "rev-parse", "HEAD").strip()
    dirty = " with uncommitted changes" if run("git", "status", "--porcelain").strip() else ""
    sums = [
        f"    {hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"
        for path in sorted(DIST.glob("*.[tw]*"))
    ]
    head = [f"# Release of {date.today()}", "", f"Commit {commit}{dirty}.", ""]
    hands = [f"- [ ] {line}" for line in BY_HAND]
    signed = ["", "Signed off by: ______________", "", "SHA-256:", "", *sums, ""]
    DIST.mkdir(exist_ok=True)
    (DIST / "checklist.md").write_text("\n".join([*head, *lines, *hands, *signed]))
    if failed:
        print(failed, file=sys.stderr)
        return 1
    print("dist/checklist.md: tick what is left, and sign it")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Runs the tutorials of docs/examples as they stand, and notes how long they took.

    python tools/examples.py [NAME...]

Each runs in a temporary directory, at the size that `bash run.sh` has. The picture that it draws
and the ends of what it prints go beside its script; the seconds and what the picture shows go to
docs/examples/examples.json, of which the tables of docs/examples/README.md and the site's pages are
made (`make docs`, `make site`).
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any, Final

import charts

ROOT: Final = Path(__file__).resolve().parents[1]
DIRECTORY: Final = ROOT / "docs" / "examples"
FACTS: Final = DIRECTORY / "examples.json"

_LOSS: Final = re.compile(r"iteration\s+\d+/.*?lm loss: ([-+.\dEe]+)")


#: Lines of the output that are kept, of its beginning and of its end; and how wide they may be.
_FIRST, _LAST, _WIDTH = 14, 22, 200
#: What other libraries tell their developers, and rules across the page.
_NOISE: Final = re.compile(
    r"^(?:\S*site-packages/\S+:\d+: .*\n(?:  .*\n)?|(?:WARNING|INFO|DEBUG):.*\n|[WI]\d{4} .*\n"
    r"|\S*\.py:\d+: \w*Warning.*\n(?:  .*\n)?|.*DEPRECATED.*\n| *-{20,}\n|\s*\n)",
    re.MULTILINE,
)
#: A long stretch of iterations.
_STRETCH: Final = re.compile(
    r"((?:^.*\biteration +\d+/.*\n){2})(?:^.*\biteration +\d+/.*\n){2,}(^.*\biteration +\d+/.*\n)",
    re.MULTILINE,
)


def read() -> dict[str, dict[str, Any]]:
    """Directory of a tutorial -> what is known of it."""
    facts: dict[str, dict[str, Any]] = json.loads(FACTS.read_text(encoding="utf-8"))
    return facts


def table() -> str:
    """A Markdown table of all tutorials."""
    rows = []
    for name, fact in read().items():
        picture = f'<img src="{name}/curve.png" alt="{fact.get("alt")}" width="240">'
        rows.append(
            (
                f"[{fact['title']}]({name}/{script(fact)})",
                f"`bash docs/examples/{name}/{script(fact)}`",
                f"{fact['cpu'] / 60:.1f}" if "cpu" in fact else "not measured",
                picture if fact.get("alt") else "",
            )
        )
    return charts.table(("tutorial", "command", "CPU minutes", "curve"), rows)


def script(fact: dict[str, Any]) -> str:
    """The name of a tutorial's script."""
    name: str = fact.get("script", "run.sh")
    return name


def kept(output: str, place: str) -> str:
    """The first and the last lines of what a tutorial printed, without this machine's paths."""
    output = output.replace(f"{place}/", "").replace(f"{ROOT}/", "")
    output = _STRETCH.sub(r"\1...\n\2", _NOISE.sub("", output))
    lines = [line.rstrip() for line in output.splitlines()]
    lines = [line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…" for line in lines]
    if len(lines) > _FIRST + _LAST:
        last = lines[-_LAST:]
        lines = [*lines[:_FIRST], *([] if last[0] == "..." else ["..."]), *last]
    return "\n".join(lines) + "\n"


def shown(directory: Path) -> str:
    """What the picture of a run shows, for those who do not see it."""
    parts = []
    for log in sorted(directory.glob("**/*.log")):
        losses = _LOSS.findall(log.read_text(encoding="utf-8", errors="replace"))
        if losses:
            first, last = float(losses[0]), float(losses[-1])
            name = "" if log.stem == "training" else f"{log.stem}: "
            parts.append(f"{name}loss {first:.2f} to {last:.2f} in {len(losses)} iterations")
    alike = {part.partition(": ")[2] for part in parts}
    if len(parts) > 2 and len(alike) == 1:
        return f"each of {len(parts)} runs: {alike.pop()}"
    return "; ".join(parts)


def keep(name: str, directory: Path, **measured: object) -> None:
    """Put a run's picture beside its script, and note what is known of it.

    :param directory: what the tutorial wrote.
    """
    facts = read()
    facts[name] |= {"date": str(date.today()), **measured}
    if (directory / "curve.png").is_file():
        shutil.copyfile(directory / "curve.png", DIRECTORY / name / "curve.png")
        facts[name]["alt"] = shown(directory)
    FACTS.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def run(name: str) -> None:
    """Run one.

    :raises SystemExit: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="examples-") as place:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        log = Path(place) / "output.txt"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with log.open("w") as output:
            status = subprocess.call(
                ["bash", DIRECTORY / name / script(read()[name])],
                cwd=place,
                env={**os.environ, "PATH": path},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        seconds = time.monotonic() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if status:
            sys.exit(log.read_text(errors="replace")[-4000:] + f"\n{name} ended with {status}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        text = kept(log.read_text(errors="replace"), place)
        (DIRECTORY / name / "output.txt").write_text(text, encoding="utf-8")
        keep(name, Path(place) / name, seconds=round(seconds), cpu=round(cpu))
    print(f"{name}: {seconds:.0f} s, {cpu:.0f} s of processor time", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or read():
        run(name)
